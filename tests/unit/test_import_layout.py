"""Another number of devices: the smallest change that breaks no formula; the global batch never changes."""

from __future__ import annotations

import pytest

from attuner.core.base import Value
from attuner.core.errors import Refused
from attuner.importing.layout import LayoutOf, devices

GLM: dict[str, Value] = {
    **{"num_layers": 92, "num_attention_heads": 96, "num_query_groups": 8, "ffn_hidden_size": 12288, "num_experts": 160},
    **{"moe_ffn_hidden_size": 1536, "tensor_model_parallel_size": 8, "pipeline_model_parallel_size": 4},
    **{"context_parallel_size": 2, "expert_model_parallel_size": 16, "expert_tensor_parallel_size": 1},
    **{"sequence_parallel": True, "seq_length": 4096, "global_batch_size": 1024, "micro_batch_size": 1},
}
DENSE: dict[str, Value] = {
    **{"num_layers": 32, "num_attention_heads": 32, "tensor_model_parallel_size": 4, "pipeline_model_parallel_size": 2},
    **{"global_batch_size": 64, "micro_batch_size": 2},
}


def first(stack: str, arguments: dict[str, Value], gpus: int) -> dict[str, tuple[Value, Value]] | None:
    candidate = next(LayoutOf(stack, arguments).candidates(gpus), None)
    return None if candidate is None else candidate.changes


def test_data_parallelism_takes_up_more_devices_where_the_batch_allows() -> None:
    assert first("megatron", GLM, 128) == {}
    assert first("megatron", DENSE, 64) == {}


def test_the_fewest_arguments_change_and_never_the_batch() -> None:
    assert first("megatron", GLM, 32) == {"pipeline_model_parallel_size": (4, 2)}
    assert first("megatron", DENSE, 4) == {"pipeline_model_parallel_size": (2, 1)}
    for gpus in (2, 8, 16, 32, 64, 256):
        for candidate in LayoutOf("megatron", GLM).candidates(gpus):
            assert "global_batch_size" not in candidate.changes


def test_every_candidate_keeps_every_law() -> None:
    for gpus in (4, 8, 24, 96):
        for candidate in LayoutOf("megatron", GLM).candidates(gpus):
            a = {**GLM, **candidate.arguments()}
            tp, pp, cp = (
                int(str(a[f"{n}_model_parallel_size"])) if n != "context" else int(str(a["context_parallel_size"]))
                for n in ("tensor", "pipeline", "context")
            )
            ep, etp = int(str(a["expert_model_parallel_size"])), int(str(a["expert_tensor_parallel_size"]))
            assert gpus % (tp * pp * cp) == 0
            assert gpus % (etp * ep * pp) == 0
            assert 160 % ep == 0
            assert 92 % pp == 0
            assert 96 % tp == 0
            assert 1024 % (gpus // (tp * pp * cp) * int(str(a["micro_batch_size"]))) == 0
            assert 4096 % ((2 * cp if cp > 1 else 1) * tp) == 0


@pytest.mark.parametrize(
    ("changed", "gpus", "formula"),
    [
        ({}, 96, "96 devices do not divide by tp·pp·cp = 8·4·2 = 64"),
        ({"expert_model_parallel_size": 64}, 64, "64 devices do not divide by etp·ep·pp = 1·64·4 = 256"),
        ({"num_experts": 100}, 64, "100 experts do not divide by ep = 16"),
        (
            {"moe_ffn_hidden_size": 1535, "expert_tensor_parallel_size": 2},
            128,
            "moe_ffn_hidden_size 1535 does not divide by etp = 2",
        ),
        ({"num_attention_heads": 92}, 64, "num_attention_heads 92 does not divide by tp = 8"),
        ({"num_query_groups": 12}, 64, "num_query_groups 12 and tp = 8: neither divides the other"),
        ({"seq_length": 4100}, 64, "seq_length 4100 does not divide by 32"),
        ({"num_layers": 90}, 64, "90 layers do not divide by pp = 4"),
        ({"num_virtual_stages_per_pipeline_rank": 2}, 64, "23 layers of a stage do not divide by vp = 2"),
        ({"global_batch_size": 1001}, 128, "a global batch of 1001 does not divide by micro batch·dp = 1·2 = 2"),
        ({"num_virtual_stages_per_pipeline_rank": 23, "global_batch_size": 2}, 64, "2 micro-batches do not divide by pp = 4"),
    ],
)
def test_a_broken_law_is_said_as_its_formula(changed: dict[str, Value], gpus: int, formula: str) -> None:
    assert LayoutOf("megatron", {**GLM, **changed}).broken(gpus).startswith(formula)


def test_where_nothing_fits_there_is_no_candidate() -> None:
    assert first("megatron", {**DENSE, "num_layers": 31, "num_attention_heads": 31, "global_batch_size": 3}, 7) is None


def test_the_fewest_devices_of_a_layout_are_those_that_break_nothing() -> None:
    assert LayoutOf("megatron", GLM).smallest() == 64
    assert LayoutOf("megatron", {**GLM, "expert_model_parallel_size": 32}).smallest() == 128
    assert LayoutOf("megatron", {**GLM, "num_layers": 91}).smallest() == 0


def test_stages_laid_out_by_hand_keep_their_number() -> None:
    uneven = {**GLM, "decoder_first_pipeline_num_layers": 22}
    assert all("pipeline_model_parallel_size" not in c.changes for c in LayoutOf("megatron", uneven).candidates(32))


def test_slimes_batch_is_made_of_its_rollouts_and_its_nodes_count_the_devices() -> None:
    slime: dict[str, Value] = {**GLM, "rollout_batch_size": 128, "n_samples_per_prompt": 8, "num_steps_per_rollout": 4}
    del slime["global_batch_size"]
    assert LayoutOf("slime", slime).batch == 256
    counted: dict[str, Value] = {"actor_num_nodes": 8, "actor_num_gpus_per_node": 8}
    assert devices("slime", counted, 32) == {"actor_num_nodes": (8, 4)}
    assert devices("slime", counted, 4) == {"actor_num_nodes": (8, 1), "actor_num_gpus_per_node": (8, 4)}
    with pytest.raises(Refused, match="no whole number of nodes of 8"):
        devices("slime", counted, 12)


def test_other_stacks_have_their_own_names() -> None:
    bridge: dict[str, Value] = {"recipe": "x", "model.tensor_model_parallel_size": 8, "train.global_batch_size": 64}
    assert first("bridge", bridge, 4) == {"model.tensor_model_parallel_size": (8, 4)}
    automodel: dict[str, Value] = {"distributed.tp_size": 1, "distributed.pp_size": 4, "distributed.ep_size": 32}
    assert first("automodel", {**automodel, "step_scheduler.global_batch_size": 2048}, 64) == {"distributed.ep_size": (32, 16)}
