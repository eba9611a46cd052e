"""Final values are flat and have one spelling for one meaning."""

from __future__ import annotations

import dataclasses
import enum
import functools
import json
import os
import re
import subprocess
import sys
import types
from typing import Any

import pytest
import torch

from attuner.runner import megatron_facts
from attuner.runner.errors import LayoutError
from attuner.runner.megatron_final import ddp_mapping
from attuner.runner.megatron_values import final_values, plain, reason


class Backend(enum.Enum):
    flash = 1


class Scope(enum.StrEnum):
    attn = "a"


@dataclasses.dataclass
class Transformer:
    num_layers: int = 4
    num_experts: int | None = None
    num_moe_experts: int | None = None
    moe_layer_freq: int | list[int] = 1
    recompute_modules: list[str] | None = dataclasses.field(default_factory=lambda: ["core_attn"])
    moe_flex_dispatcher_backend: str = "deepep"
    moe_enable_deepep: bool = False
    moe_expert_capacity_factor: float | None = None
    attention_backend: Backend = Backend.flash
    cpu_offloading: bool = False
    _private: int = 0


@dataclasses.dataclass
class Part:
    lr: float | None = None
    grad_reduce_in_fp32: bool = True


def final(given: dict[str, Any], **config: Any) -> dict[str, Any]:
    args = types.SimpleNamespace(
        **{"num_layers": 4, "virtual_pipeline_model_parallel_size": None, "recompute_modules": None, "rank": 0, **given}
    )
    dests = {*vars(args)} - {"cpu_offloading"}
    return final_values(args, dests, transformer=Transformer(**config), ddp=Part(), optimizer=Part())


@pytest.mark.parametrize(
    ("value", "flat"),
    [
        (torch.bfloat16, "bfloat16"),
        (Backend.flash, "flash"),
        (Scope.attn, "attn"),
        (["p2p"], "p2p"),
        ((1, 2), [1, 2]),
        ([[1], [2]], "[[1],[2]]"),
        ({"b": 1, "a": [2]}, '{"a":[2],"b":1}'),
        (float("inf"), "inf"),
        (torch.nn.functional.silu, "torch.nn.functional.silu"),
        (functools.partial(torch.nn.init.normal_, std=0.02, mean=0.0), "torch.nn.init.normal_(mean=0.0, std=0.02)"),
        ({3, 1}, [1, 3]),
        ([], []),
        (None, None),
    ],
    ids=lambda x: re.sub(r" at 0x[0-9a-f]+", "", str(x))[:30],
)
def test_a_value_has_one_plain_form(value: Any, flat: Any) -> None:
    assert plain(value) == flat


def test_an_argument_left_open_takes_what_the_configuration_decides() -> None:
    assert final({})["recompute_modules"] == "core_attn"
    assert final({"recompute_modules": ["core_attn"]}) == final({})


def test_a_deprecated_argument_is_its_successor() -> None:
    spelled = final({"moe_enable_deepep": True}, moe_enable_deepep=True)
    assert spelled == final({"moe_enable_deepep": False})
    assert spelled["transformer.moe_flex_dispatcher_backend"] == "deepep"


def test_a_negative_capacity_is_none() -> None:
    assert final({"moe_expert_capacity_factor": -1}) == final({"moe_expert_capacity_factor": None})


def test_a_field_is_named_only_where_no_argument_says_the_same() -> None:
    found = final({"attention_backend": Backend.flash})
    assert "transformer.attention_backend" not in found
    assert found["ddp.grad_reduce_in_fp32"] is True
    assert final({"attention_backend": "local"})["transformer.attention_backend"] == "flash"


def test_a_field_that_validation_adds_to_the_namespace_stays_a_field() -> None:
    assert "cpu_offloading" not in final({"cpu_offloading": True}, cpu_offloading=True)
    assert final({"cpu_offloading": True}, cpu_offloading=True)["transformer.cpu_offloading"] is True


def test_what_is_none_or_private_or_a_rank_is_left_out() -> None:
    found = final({"load": None})
    assert {"load", "rank", "transformer._private", "_private"} & set(found) == set()
    assert None not in found.values()


def test_a_frequency_of_expert_layers_is_the_list_that_it_means() -> None:
    one = final({"num_experts": 8, "moe_layer_freq": 2})
    assert one["moe_layer_freq"] == [1, 0, 1, 0]
    assert one["moe_layer_freq"] == final({"num_experts": 8, "moe_layer_freq": [1, 0, 1, 0]})["moe_layer_freq"]


def test_a_reason_without_words_is_the_line_that_failed() -> None:
    def check(bf16: bool) -> None:
        assert not bf16

    with pytest.raises(AssertionError) as failed:
        check(True)
    failed.value.args = ()
    assert reason(failed.value).endswith("assert not bf16")


def test_the_formula_and_its_numbers_are_said() -> None:
    with pytest.raises(LayoutError, match=r"world size 60 does not divide by tp·pp·cp = 4·2·1 = 8"):
        megatron_facts.divide("world size", 60, "tp·pp·cp·shards", (4, 2, 1, 1))


def test_the_mapping_of_the_ddp_configuration_is_read_from_the_source() -> None:
    def get_model(args: Any, num_parameters: int) -> Any:
        kwargs = {}
        kwargs["grad_reduce_in_fp32"] = args.accumulate_allreduce_grads_in_fp32
        if args.ddp_num_buckets is not None:
            kwargs["bucket_size"] = num_parameters // args.ddp_num_buckets
        else:
            kwargs["bucket_size"] = args.ddp_bucket_size
        return kwargs

    wanted = {"grad_reduce_in_fp32": "accumulate_allreduce_grads_in_fp32", "bucket_size": "ddp_bucket_size"}
    assert ddp_mapping(get_model) == wanted


STAGES = """
import json, sys, types, warnings
warnings.simplefilter("ignore")
from attuner.runner import cpu_shim
cpu_shim.skip_compilation()
import torch
from megatron.core.transformer.transformer_config import TransformerConfig
from attuner.runner.megatron_facts import layers_per_stage
for layout in json.loads(sys.argv[1]):
    config = TransformerConfig(num_layers=92, hidden_size=64, num_attention_heads=4, pipeline_dtype=torch.float32, **layout)
    try:
        print(json.dumps(layers_per_stage(types.SimpleNamespace(), config)))
    except ValueError as error:
        print(json.dumps(str(error)))
"""


def test_stages_come_from_megatrons_own_tables_or_are_refused_with_the_formula() -> None:
    four, uneven = {"pipeline_model_parallel_size": 4}, {"first": 22, "last": 22}
    layouts = [
        four,
        {**four, **{f"num_layers_in_{end}_pipeline_stage": n for end, n in uneven.items()}},
        {"pipeline_model_parallel_size": 2, "virtual_pipeline_model_parallel_size": 2},
        {**four, "virtual_pipeline_model_parallel_size": 2},
    ]
    command = [sys.executable, "-c", STAGES, json.dumps(layouts)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert [json.loads(line) for line in done.stdout.splitlines()] == [
        [23, 23, 23, 23],
        [22, 24, 24, 22],
        [23, 23, 23, 23],
        "num_layers 92 does not divide by pp·vpp = 4·2 = 8",
    ]
