"""slime's way of passing arguments, by its own code: defaults, a batch that follows from rollouts, words that vanish.

Skips unless ATTUNER_SLIME_SRC names slime's checkout and ATTUNER_MEGATRON_SRC the Megatron-LM that it pins.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from megatron_bench import RECIPES, SLIME, Bench, frame, needs_checkout, needs_slime

from attuner.config import load_recipe
from attuner.core.base import Value
from attuner.core.errors import UserError

RL = "glm4.5-355b-slime"
pytestmark = [needs_checkout, needs_slime]


@pytest.fixture(scope="module")
def pinned() -> Iterator[Bench]:
    made = Bench.made()
    if made.version.release[:2] != (0, 16):
        pytest.skip(f"slime pins core 0.16, this is {made.version}")
    yield made
    made.stack.close()


def test_the_example_list_resolves_as_slime_would(pinned: Bench) -> None:
    found = pinned.base(RL)
    assert (found.facts["data_parallel_size"], found.facts["expert_data_parallel_size"]) == (1, 1)
    assert found.facts["layers_per_stage"] == [23, 23, 23, 23]
    assert found.facts["rows_per_update"] == 128 * 8 // 4
    assert found.facts["num_microbatches"] == "dynamic"
    assert found.facts["loss_masks"] == "uneven"
    assert found.facts["train_steps"] == 3000 * 128 * 8 // 256
    assert found.arguments["moe_token_dispatcher_type"] == "flex"
    assert found.facts["duplicated_arguments"] == ["moe_token_dispatcher_type"]
    assert found.facts["unparsed_arguments"] == []


def test_slimes_defaults_hold(pinned: Bench) -> None:
    found = pinned.base(RL).arguments
    wanted = {
        "use_distributed_optimizer": True,
        "bf16": True,
        "use_persistent_ckpt_worker": True,
        "ckpt_assume_constant_structure": True,
        "ckpt_fully_parallel_load": True,
        "dist_ckpt_save_pre_mcore_014": True,
        "seq_length": 4096,
        "max_position_embeddings": 4096,
        "variable_seq_lengths": True,
        "offload_train": True,
        "disable_param_buffers_cpu_backup": True,
        "tokenizer_type": "HuggingFaceTokenizer",
    }
    assert {k: found.get(k) for k in wanted} == wanted


def test_the_actor_groups_variables_are_final_values(pinned: Bench) -> None:
    found = pinned.resolve(RL, {"train_env_vars": '{"NCCL_ALGO": "Ring"}'})
    assert found.env["NCCL_CUMEM_ENABLE"] == "0"
    assert found.env["NVTE_FP8_BLOCK_SCALING_FP32_SCALES"] == "1"
    assert found.env["NCCL_ALGO"] == "Ring"
    assert found.env["TMS_INIT_ENABLE"] == "1"


def test_a_mistyped_lever_is_inert_and_listed(pinned: Bench) -> None:
    argv = load_recipe(RECIPES / f"{RL}.yaml").arguments["argv"]
    assert isinstance(argv, list)
    assert pinned.changes(RL, {"argv": [*argv, "--overlap-grad-reduc", "3"]}) == {
        "fact:unparsed_arguments": ([], ["--overlap-grad-reduc", "3"])
    }
    assert pinned.changes(RL, {"overlap_grad_reduc": True}) == {"fact:unparsed_arguments": ([], ["--overlap-grad-reduc"])}


def test_serving_options_are_not_unknown(pinned: Bench) -> None:
    serving = {"sglang_mem_fraction_static": 0.7, "sglang_enable_dp_attention": True, "debug_train_only": True}
    changed = pinned.changes(RL, dict(serving))
    assert "fact:unparsed_arguments" not in changed


def test_the_allgather_dispatcher_becomes_alltoall(pinned: Bench) -> None:
    both = [pinned.resolve(RL, {"argv": ["--moe-token-dispatcher-type", kind]}) for kind in ("allgather", "alltoall")]
    assert both[0].arguments == both[1].arguments


@pytest.mark.parametrize(
    ("change", "wanted"),
    [
        ({"global_batch_size": 128}, "= 128·8/4 = 256"),
        ({"actor_num_nodes": 4}, "= 4·8 = 32, the job has 64"),
        ({"max_tokens_per_gpu": None}, "use_dynamic_batch_size needs max_tokens_per_gpu"),
        ({"custom_config_path": "x.yaml"}, "slime lets this file override any argument"),
        ({"decoder_first_pipeline_num_layers": 20, "num_virtual_stages_per_pipeline_rank": 3}, "first stage: 20"),
    ],
)
def test_what_slime_would_refuse_is_refused(pinned: Bench, change: dict[str, Value], wanted: str) -> None:
    assert wanted in pinned.refusal(RL, change)


def test_a_list_for_more_devices(pinned: Bench) -> None:
    changes = {"actor_num_nodes": 32, "context_parallel_size": 1}
    found = pinned.resolve(RL, dict(changes), gpus=256)
    assert (found.facts["data_parallel_size"], found.facts["expert_data_parallel_size"]) == (8, 4)


def test_without_slimes_checkout_it_says_what_is_missing(pinned: Bench) -> None:
    with pytest.raises(UserError, match="set ATTUNER_SLIME_SRC"):
        pinned.resolve(RL, slime_source="")


def assigned(source: Path, function: str) -> set[str]:
    """Return the attributes of `args` that a function assigns."""
    tree = ast.parse(source.read_text())
    body = next(n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name == function)
    targets = [t for n in ast.walk(body) if isinstance(n, ast.Assign) for t in n.targets]
    return {t.attr for t in targets if isinstance(t, ast.Attribute) and isinstance(t.value, ast.Name) and t.value.id == "args"}


def test_what_slime_derives_for_training_is_what_we_repeat(pinned: Bench) -> None:
    """slime_validate_args is repeated, not called: it looks for files. A version that assigns more of Megatron's is seen here."""
    recipe = load_recipe(RECIPES / "llama3-8b.yaml")
    megatron = {a["name"] for a in pinned.stack.known_arguments(frame(recipe, 64))}
    ours = assigned(Path(__file__).resolve().parents[2] / "attuner" / "runner" / "megatron_final.py", "_slime_training")
    theirs = assigned(Path(SLIME) / "slime" / "utils" / "arguments.py", "slime_validate_args")
    unrepeated = {"save_interval"}  # of --release-train: how often a checkpoint is written
    assert theirs & megatron - unrepeated <= ours
    assert {"offload_train", "disable_grad_buffers_cpu_backup", "disable_param_buffers_cpu_backup"} <= ours & theirs
