"""The estimate's shapes and layouts: parameter counts of public models, refusals with their formula, reading of arguments."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from attuner.core.errors import Refused, UserError
from attuner.core.recipe import Workload
from attuner.estimate.memory import in_flight, stage_params, static_bytes
from attuner.estimate.reading import moe_layers, read
from attuner.estimate.shape import Layout, Shape, padded_vocab

GPT3 = Shape(num_layers=96, hidden=12288, heads=96, ffn=49152, vocab=51200, learned_positions=2048, tied=True)
MIXTRAL = Shape(
    **{"num_layers": 32, "hidden": 4096, "heads": 32, "kv_groups": 8, "ffn": 14336, "vocab": 32000, "gated": True},
    **{"num_experts": 8, "topk": 2},
)
DEEPSEEK_V3 = Shape(
    **{"num_layers": 61, "hidden": 7168, "heads": 128, "head_dim": 128, "rope_dim": 64, "v_dim": 128, "q_lora": 1536},
    **{"kv_lora": 512, "ffn": 18432, "vocab": 129280, "gated": True, "num_experts": 256, "topk": 8, "moe_ffn": 2048},
    **{"shared_ffn": 2048, "moe_layers": (0, 0, 0, *(1,) * 58)},
)
LLAMA_8B = Shape(num_layers=32, hidden=4096, heads=32, kv_groups=8, ffn=14336, vocab=128256, gated=True)
WORK = Workload(
    **{"model": "m", "dataset": "d", "seq_len": 4096, "global_batch": 64, "precision": "bf16", "seed": 1, "steps": 4},
    **{"warmup_steps": 1, "gpus": 16, "hardware": "h"},
)


@pytest.mark.parametrize(("shape", "billions"), [(GPT3, 174.6), (MIXTRAL, 46.7), (DEEPSEEK_V3, 671.0), (LLAMA_8B, 8.03)])
def test_parameters_are_those_of_the_published_models(shape: Shape, billions: float) -> None:
    assert shape.num_params() / 1e9 == pytest.approx(billions, rel=0.002)


def test_a_rank_of_gpt3_holds_its_slice_of_weights_and_states() -> None:
    # 175B at tp8 pp8: one stage has 12 layers of 12·h² parameters, divided by 8; the first also the embedding
    layout = Layout(gpus=64, global_batch=64, seq_len=2048, tp=8, pp=8)
    dense, expert = stage_params(GPT3, layout, 1, range(12, 24))
    assert expert == 0
    assert dense == pytest.approx(12 * (12 * 12288**2 / 8 + 2 * 12288))
    held = static_bytes(layout, dense, expert)
    assert (held["weights"], held["gradients"]) == (2 * dense, 4 * dense)
    assert held["optimizer"] == 12 * dense  # one data-parallel rank holds it all


def test_the_distributed_optimizer_is_divided_over_replicas_of_dense_and_expert_weights() -> None:
    layout = Layout(gpus=64, global_batch=64, seq_len=2048, tp=2, pp=2, ep=4)
    assert (layout.dp, layout.edp) == (16, 8)
    held = static_bytes(layout, 1600.0, 800.0)
    assert held["optimizer"] == 12 * (1600 / 16 + 800 / 8)
    half = static_bytes(Layout(gpus=64, global_batch=64, seq_len=2048, tp=2, pp=2, ep=4, offload=0.5), 1600.0, 800.0)
    assert half["optimizer"] == held["optimizer"] / 2


def test_first_stage_holds_most_micro_batches_and_virtual_stages_hold_more() -> None:
    layout = Layout(gpus=8, global_batch=64, seq_len=128, pp=8)
    assert [in_flight(layout, s) for s in range(8)] == [8, 7, 6, 5, 4, 3, 2, 1]
    few = Layout(gpus=8, global_batch=2, seq_len=128, pp=8)
    assert in_flight(few, 0) == 2
    assert 8 < in_flight(Layout(gpus=8, global_batch=64, seq_len=128, pp=8, vp=2), 0) <= 16


@pytest.mark.parametrize(
    ("change", "formula"),
    [
        ({"tp": 3}, r"world size 64 does not divide by tp·pp·cp = 3·1·1 = 3"),
        ({"pp": 2, "ep": 8, "etp": 8}, r"world size 64 does not divide by etp·ep·pp = 8·8·2 = 128"),
        ({"ep": 16}, r"num_experts 8 does not divide by ep = 16"),
        ({"micro_batch": 3}, r"global_batch_size 512 does not divide by micro_batch_size·dp = 3·64 = 192"),
        ({"pp": 64, "gpus": 64}, r"num_layers 32 does not divide into pp = 64"),
        ({"pp": 4, "first_layers": 9}, r"pp = 4 stages, first 9"),
        ({"pp": 4, "vp": 3}, r"layers per stage 8 do not divide by vp = 3"),
        ({"vp": 2}, r"vp = 2 needs pp ≥ 2"),
        ({"pp": 8, "vp": 2, "global_batch": 32}, r"micro-batches 4 do not divide by pp = 8"),
        ({"tp": 64}, r"does not divide by tp = 64"),
        ({"tp": 2, "sequence_parallel": False}, r"experts with tp = 2 need sequence_parallel"),
        ({"recompute": "some"}, r"none, selective or full"),
        ({"seq_len": 4095, "tp": 2}, r"seq_length 4095 does not divide by 2"),
    ],
)
def test_what_cannot_be_built_is_refused_with_the_formula(change: dict[str, object], formula: str) -> None:
    given: dict[str, object] = {"gpus": 64, "global_batch": 512, "seq_len": 4096, **change}
    with pytest.raises(Refused, match=re.escape(formula) if "\\" not in formula else formula):
        Layout(**given).check(MIXTRAL)  # type: ignore[arg-type]


def test_what_can_be_built_is_not_refused() -> None:
    Layout(gpus=64, global_batch=512, seq_len=4096, tp=2, pp=4, vp=2, ep=8, etp=1).check(MIXTRAL)
    Layout(gpus=64, global_batch=512, seq_len=4096, pp=4, first_layers=7, last_layers=9).check(MIXTRAL)


def test_vocabulary_is_padded_to_a_multiple_of_128_times_tp() -> None:
    assert (padded_vocab(50257, 1), padded_vocab(50257, 8), padded_vocab(50257, 2, divisor=1)) == (50304, 51200, 50258)


@pytest.mark.parametrize(
    ("frequency", "expected"),
    [
        (None, (1, 1, 1, 1)),
        (2, (1, 0, 1, 0)),
        ([0, 1, 1, 1], (0, 1, 1, 1)),
        ("[0]*1+[1]*3", (0, 1, 1, 1)),
        ("([0]*3 + [1])", (0, 0, 0, 1)),
    ],
)
def test_layers_with_experts_are_read_as_megatron_writes_them(frequency: object, expected: tuple[int, ...]) -> None:
    assert moe_layers(frequency, 4) == expected  # type: ignore[arg-type]


@pytest.mark.parametrize("frequency", [[1, 1], "[0]*9", "__import__('os')", "[2]*4"])
def test_a_pattern_that_cannot_be_read_is_an_error(frequency: object) -> None:
    with pytest.raises(UserError, match="moe_layer_freq"):
        moe_layers(frequency, 4)  # type: ignore[arg-type]


def test_arguments_of_three_stacks_give_one_layout() -> None:
    model = {"num_layers": 8, "hidden_size": 256, "num_attention_heads": 8, "num_query_groups": 2, "vocab_size": 1000}
    sizes = {"tensor_model_parallel_size": 2, "sequence_parallel": True, "pipeline_model_parallel_size": 2}
    megatron = {**model, **sizes, "num_experts": 4, "swiglu": True, "bf16": True, "recompute_granularity": "full"}
    mcore = {**model, **sizes, "num_moe_experts": 4, "gated_linear_unit": True, "recompute_granularity": "full"}
    first, second = (read(a, workload=WORK, stack=s) for a, s in ((megatron, "megatron"), (mcore, "mcore")))
    assert first[1] == second[1]
    layout = first[1]
    assert (layout.tp, layout.pp, layout.etp, layout.dp, layout.num_microbatches) == (2, 2, 2, 4, 16)
    assert (layout.recompute, layout.distributed_optimizer, layout.precision) == ("full", False, "bf16")
    assert first[0].tied
    assert not second[0].tied  # the small trainer's output matrix is its own unless it says otherwise


def test_a_missing_size_is_named() -> None:
    with pytest.raises(UserError, match="hidden_size"):
        read({"num_layers": 2}, workload=WORK)


def test_embedding_and_loss_may_count_as_layers_of_the_end_stages() -> None:
    # Llama-3.1-405B's 126 layers on 8 stages of 8 chunks; megatron/core/transformer/transformer_config.py counts 128
    shape = Shape(num_layers=126, hidden=16384, heads=128, kv_groups=8, ffn=53248, vocab=128256, gated=True)
    layout = Layout(gpus=128, global_batch=64, seq_len=8192, tp=4, pp=8, vp=8, cp=2, counts_embedding=True, counts_loss=True)
    assert layout.layers_per_stage(shape) == (15, *(16,) * 6, 15)
    layout.check(shape)
    with pytest.raises(Refused, match="126 does not divide"):
        replace(layout, counts_loss=False).check(shape)
    stated = replace(layout, first_layers=9, last_layers=9, vp=1)
    assert stated.layers_per_stage(shape) == (9, *(18,) * 6, 9), "stated counts hold"


def test_a_padded_vocabulary_that_only_the_recipe_states_is_no_other_model() -> None:
    given = {"num_layers": 4, "hidden_size": 64, "num_attention_heads": 4, "vocab_size": 255}
    recipe, _ = read({**given, "padded_vocab_size": 256}, workload=WORK, stack="megatron")
    assert recipe == read(given, workload=WORK, stack="megatron")[0], "final values of Megatron don't have it: it is a fact there"


def test_a_replay_table_leaves_the_ends_shorter() -> None:
    model = {"num_layers": 62, "hidden_size": 3072, "num_attention_heads": 48, "pipeline_model_parallel_size": 8}
    work = WORK.model_copy(update={"gpus": 64, "global_batch": 128})
    _, layout = read({**model, "tensor_model_parallel_size": 2}, workload=work, stack="replay")
    assert (layout.first_layers, layout.last_layers, layout.sequence_parallel) == (7, 7, True)
