"""Diagnosis: parts that add up to the step, the bound on what easing gives, levers strongest first, what is not told."""

from __future__ import annotations

from typing import Any

import pytest
from book import Book
from lab import ROOT

from attuner.cli.read import bottleneck_lines, diagnosed
from attuner.config import load_levers
from attuner.core.base import Value
from attuner.core.campaign import Cluster
from attuner.core.diagnosis import Bottleneck, Diagnosis
from attuner.core.judgement import Calibration
from attuner.core.run import RankStep, StepBreakdown
from attuner.traces import schedule
from attuner.traces.diagnosis import bound, device_memory_gib, diagnose, diagnose_launch, is_flat, stragglers
from attuner.traces.parts import Parts, eased, eased_of, layout_parts, parts_of

PIPELINE: dict[str, Value] = {
    **{"num_layers": 8, "hidden_size": 64, "num_attention_heads": 4, "seq_length": 32, "ffn_hidden_size": 256},
    **{"pipeline_model_parallel_size": 4, "vocab_size": 512, "recompute_granularity": None},
}
DP: dict[str, Value] = {"num_microbatches": 8, "data_parallel_size": 1}
LEVERS: list[dict[str, Any]] = [
    {"id": "weak", "eases": {"exposed_comm:tensor": 0.2}, "options": []},
    {"id": "strong", "eases": {"exposed_comm:tensor": 0.9, "compute": -0.1}, "options": []},
    {"id": "by-kind", "eases": {"exposed_comm:all_gather": 0.5}, "options": []},
    {"id": "elsewhere", "eases": {"host": 0.5}, "options": []},
    {
        "id": "bubble",
        "eases": {"idle": 0.4},
        "options": [{"set": {}, "when": [{"arg": "pipeline_model_parallel_size", "ge": 2}]}],
    },
]


def step(rank: int = 0, number: int = 4, step_s: float = 1.0, **parts: Any) -> RankStep:
    zero = dict.fromkeys(("compute_s", "exposed_comm_s", "host_s", "idle_s"), 0.0)
    return RankStep.model_validate({"rank": rank, "step": number, "step_s": step_s, **zero, **parts})


def profiled(*steps: RankStep, launch_id: str = "l05") -> StepBreakdown:
    return StepBreakdown(launch_id=launch_id, rank_steps=list(steps))


TENSOR = profiled(
    step(
        compute_s=0.5,
        exposed_comm_s=0.3,
        comm_by_group={"tensor": 0.3},
        comm_by_kind={"all_gather": 0.3},
        host_s=0.15,
        idle_s=0.05,
    )
)
REPLAYED = profiled(
    step(
        **{"compute_s": 0.6, "exposed_comm_s": 0.25, "idle_s": 0.15},
        comm_by_group={"tensor_expert": 0.2, "pipeline": 0.05},
        detail={"forward": 0.15, "backward": 0.3, "recompute": 0.1, "optimizer": 0.05, "bubble": 0.12, "straggler": 0.02},
    )
)


def named(found: Diagnosis, name: str) -> Bottleneck:
    return next(b for b in found.bottlenecks if b.name == name)


@pytest.mark.parametrize("breakdown", [TENSOR, REPLAYED], ids=["traced", "replayed"])
@pytest.mark.parametrize("granularity", [None, "full", "selective"])
@pytest.mark.parametrize("stages", [1, 4])
def test_the_parts_of_a_step_add_up_to_it(breakdown: StepBreakdown, granularity: str | None, stages: int) -> None:
    arguments = {**PIPELINE, "recompute_granularity": granularity, "pipeline_model_parallel_size": stages}
    parts = parts_of(breakdown, arguments, DP)
    assert sum(parts.shares.values()) == pytest.approx(1.0, abs=1e-12)
    assert min(parts.shares.values()) > 0


def test_bottlenecks_are_ranked_by_the_bound_on_what_easing_them_gives() -> None:
    found = diagnose(TENSOR, arguments={}, facts={}, levers=LEVERS)
    assert [b.name for b in found.bottlenecks] == ["compute", "exposed_comm:tensor", "host", "idle"]
    tensor = named(found, "exposed_comm:tensor")
    assert tensor.share == pytest.approx(0.3)
    # without the 0.3 a step takes 0.7, so no change of it can give more than 1/0.7
    assert tensor.max_gain == pytest.approx(1 / 0.7 - 1)
    assert bound(1.0) > 100


def test_levers_stand_strongest_first_and_only_where_they_ease_the_part() -> None:
    found = diagnose(TENSOR, arguments={"pipeline_model_parallel_size": 1}, facts={}, levers=LEVERS)
    assert named(found, "exposed_comm:tensor").levers == ["strong", "by-kind", "weak"]
    assert named(found, "host").levers == ["elsewhere"]
    assert named(found, "idle").levers == []
    deep = {"pipeline_model_parallel_size": 2, "num_layers": 2}
    assert named(diagnose(TENSOR, arguments=deep, facts=DP, levers=LEVERS), "bubble").levers == ["bubble"]


def test_the_shipped_levers_answer_exposed_exchange_of_experts() -> None:
    levers = load_levers(ROOT / "rules", "megatron")
    arguments: dict[str, Value] = {
        **{"expert_model_parallel_size": 16, "moe_token_dispatcher_type": "alltoall", "overlap_moe_expert_parallel_comm": False},
        **{"recompute_granularity": "selective", "pipeline_model_parallel_size": 1, "num_experts": 160},
    }
    traced = profiled(step(compute_s=0.6, exposed_comm_s=0.4, comm_by_group={"expert": 0.4}, comm_by_kind={"all_to_all": 0.4}))
    answer = named(diagnose(traced, arguments=arguments, facts={}, levers=levers), "exposed_comm:expert")
    assert answer.levers[:2] == ["expert-overlap", "expert-parallel"]
    assert {"dispatcher"} <= set(answer.levers)
    assert not {"recompute", "grad-overlap", "tensor-parallel"} & set(answer.levers)


def test_a_finer_word_of_a_lever_counts_before_the_coarser_one_where_the_source_tells_it() -> None:
    parts = parts_of(REPLAYED, PIPELINE, DP)
    both = {"compute": 0.25, "recompute": 1.0}
    assert eased(both, parts) == pytest.approx(0.1)
    plain = parts_of(TENSOR, {**PIPELINE, "pipeline_model_parallel_size": 1}, DP)
    assert eased(both, plain) == pytest.approx(0.25 * 0.5)
    grouped = {"exposed_comm:all_gather": 0.5, "exposed_comm:tensor": 0.8}
    assert eased(grouped, plain) == pytest.approx(0.8 * 0.3)
    untold = parts_of(profiled(step(compute_s=0.7, exposed_comm_s=0.3, comm_by_kind={"all_gather": 0.3})), {}, {})
    assert eased(grouped, untold) == pytest.approx(0.5 * 0.3)
    assert "exposed_comm:unknown" in untold.shares
    assert any("doesn't tell whose group" in note for note in untold.notes)


def test_communication_that_a_source_lumps_together_is_told_apart_where_only_one_can_be() -> None:
    alone = {"tensor_model_parallel_size": 1, "expert_model_parallel_size": 8}
    assert parts_of(REPLAYED, alone, {}).shares["exposed_comm:expert"] == pytest.approx(0.2)
    dense = {"tensor_model_parallel_size": 4, "expert_model_parallel_size": 1, "expert_tensor_parallel_size": 1}
    assert parts_of(REPLAYED, dense, {}).shares["exposed_comm:tensor"] == pytest.approx(0.2)
    both = parts_of(REPLAYED, {"tensor_model_parallel_size": 2, "expert_model_parallel_size": 8}, {})
    assert both.shares["exposed_comm:tensor_expert"] == pytest.approx(0.2)
    assert eased({"exposed_comm:tensor": 0.9, "exposed_comm:expert": 0.5}, both) == pytest.approx(0.9 * 0.2)
    assert eased({"exposed_comm:pipeline": 0.5}, both) == pytest.approx(0.5 * 0.05)


def test_what_a_part_is_eased_by_is_what_the_whole_is_eased_by() -> None:
    parts = parts_of(REPLAYED, PIPELINE, DP)
    for eases in (
        {"idle": 0.4, "compute": 0.1},
        {"bubble": 0.5, "exposed_comm:pipeline": 0.3},
        {"exposed_comm": 0.2, "host": 1.0},
    ):
        assert sum(eased_of(eases, parts, part) for part in parts.shares) == pytest.approx(eased(eases, parts))


def test_the_words_of_levers_cover_coarse_and_fine() -> None:
    words = parts_of(REPLAYED, PIPELINE, DP).words()
    assert words["compute"] == pytest.approx(0.6)
    assert words["idle"] == pytest.approx(0.15)
    assert words["exposed_comm"] == pytest.approx(0.25)
    assert parts_of(TENSOR, {}, {}).words()["exposed_comm:all_gather"] == pytest.approx(0.3)


def test_the_bubble_is_the_schedules() -> None:
    assert schedule.bubble(stages=4, chunks=1, microbatches=8) == pytest.approx(3 / 11)
    assert schedule.bubble(stages=4, chunks=2, microbatches=8) == pytest.approx(3 / 19)
    assert schedule.bubble(stages=1, chunks=1, microbatches=8) == 0.0
    interleaved = {**PIPELINE, "virtual_pipeline_model_parallel_size": 2}
    found = diagnose(REPLAYED, arguments=interleaved, facts=DP, levers=[])
    assert found.bubble == pytest.approx(3 / 19)
    assert named(found, "bubble").share == pytest.approx(0.12)  # what the source measured, not what the schedule says
    rows: dict[str, Value] = {**PIPELINE, "global_batch_size": 16, "micro_batch_size": 2}
    assert schedule.bubble_of(rows, {"data_parallel_size": 2}) == pytest.approx(3 / 7)
    untold = diagnose(TENSOR, arguments=PIPELINE, facts={}, levers=[])
    assert untold.bubble is None
    assert any("micro-batches is not told" in note for note in untold.notes)


def test_a_bubble_that_is_not_told_is_looked_for_in_the_waits_of_the_step() -> None:
    waiting = profiled(
        step(compute_s=0.6, exposed_comm_s=0.3, comm_by_group={"pipeline": 0.3}, comm_by_kind={"send_recv": 0.3}, idle_s=0.1)
    )
    parts = parts_of(waiting, PIPELINE, DP)
    assert parts.shares["bubble"] == pytest.approx(3 / 11)
    assert parts.shares["exposed_comm:pipeline"] == pytest.approx(0.4 - 3 / 11)
    assert "idle" not in parts.shares
    busy = profiled(step(compute_s=0.95, idle_s=0.05))
    assert parts_of(busy, PIPELINE, DP).shares["bubble"] == pytest.approx(0.05)  # never more than the step waits


def test_uneven_stages_count_their_layers_and_the_output_layer() -> None:
    layer = 64 * (2 * 64 + 2 * 64) + 32 * 64 + 2 * 64 * 256
    output = 64 * 512
    even = schedule.stage_imbalance(PIPELINE, {})
    assert even == pytest.approx((2 * layer + output) / ((8 * layer + output) / 4) - 1)
    lighter = {**PIPELINE, "num_layers_in_last_pipeline_stage": 2, "num_layers_in_first_pipeline_stage": 2}
    assert schedule.stage_imbalance(lighter, {}) == pytest.approx(even)
    short = schedule.stage_imbalance({**PIPELINE, "num_layers": 9, "num_layers_in_last_pipeline_stage": 0}, {})
    assert short == pytest.approx(3 * layer / ((9 * layer + output) / 4) - 1)
    assert schedule.stage_imbalance({**PIPELINE, "pipeline_model_parallel_size": 1}, {}) == 0.0
    assert schedule.stage_imbalance({**PIPELINE, "hidden_size": None}, {}) is None
    assert schedule.stage_imbalance({**PIPELINE, "num_layers": 9}, {}) is None  # doesn't divide: nothing is guessed


def test_layers_of_chunks_are_read_in_the_order_that_the_stack_lists_them() -> None:
    dense_first = {**PIPELINE, "pipeline_model_parallel_size": 2, "virtual_pipeline_model_parallel_size": 2, "vocab_size": 0}
    moe = {**dense_first, "num_moe_experts": 8, "moe_ffn_hidden_size": 2048, "moe_layer_freq": "[0]*2+[1]*6"}
    work = schedule.layer_work(moe)
    assert work is not None
    assert work[1] < work[2]
    assert work[2:] == [work[2]] * 6
    by_chunk = schedule.stage_imbalance(moe, {"layers_per_stage": [2, 2, 2, 2]})
    assert by_chunk == pytest.approx(4 * work[2] / ((2 * work[0] + 6 * work[2]) / 2) - 1)
    # the same layers listed rank by rank: 3 and 1 on the first rank, 1 and 3 on the second
    listed = {**moe, "decoder_first_pipeline_num_layers": None, "moe_layer_freq": 1}
    even = schedule.stage_imbalance(listed, {"layers_per_stage": [3, 1, 1, 3]})
    assert even == pytest.approx(0.0)
    del listed["decoder_first_pipeline_num_layers"]
    uneven = schedule.stage_imbalance(listed, {"layers_per_stage": [3, 1, 3, 1]})
    assert uneven == pytest.approx(0.5)


def test_every_other_layer_has_experts_as_megatron_counts_them() -> None:
    work = schedule.layer_work({**PIPELINE, "num_moe_experts": 8, "moe_ffn_hidden_size": 4096, "moe_layer_freq": 2})
    assert work is not None
    assert work[0] == work[2] > work[1] == work[3]


def test_full_recompute_is_a_quarter_of_the_compute_and_a_block_its_part() -> None:
    full: dict[str, Value] = {"recompute_granularity": "full", "recompute_method": "uniform", "num_layers": 8}
    assert schedule.recomputed_share(full, {}) == pytest.approx(0.25)
    found = diagnose(TENSOR, arguments=full, facts={}, levers=[])
    assert named(found, "recompute").share == pytest.approx(0.125)
    assert "quarter" in named(found, "recompute").why
    assert named(found, "compute").why == "measured"
    half: dict[str, Value] = {**full, "recompute_method": "block", "recompute_num_layers": 2, "pipeline_model_parallel_size": 2}
    assert schedule.recomputed_share(half, {}) == pytest.approx(0.5 / 3.5)
    assert schedule.recomputed_share({"recompute_granularity": "selective"}, {}) is None
    told = diagnose(TENSOR, arguments={"recompute_granularity": "selective"}, facts={}, levers=[])
    assert any("selective recompute" in note for note in told.notes)
    assert named(diagnose(REPLAYED, arguments=full, facts={}, levers=[]), "recompute").share == pytest.approx(0.1)


@pytest.mark.parametrize(("host", "bound_by"), [(0.3, True), (0.2, False)])
def test_a_step_that_waits_for_its_host_is_launch_bound(host: float, bound_by: bool) -> None:
    found = diagnose(profiled(step(compute_s=1.0 - host, host_s=host)), arguments={}, facts={}, levers=[])
    assert found.launch_bound is bound_by


def test_memory_headroom_is_told_where_both_sides_are_known() -> None:
    both = diagnose(TENSOR, arguments={}, facts={}, levers=[], peak_mem_gib=60.0, device_mem_gib=80.0)
    assert both.mem_headroom_gib == pytest.approx(20.0)
    assert diagnose(TENSOR, arguments={}, facts={}, levers=[], device_mem_gib=80.0).mem_headroom_gib is None
    figures = {"mem_gib": {"value": 180.0, "source": "a data sheet"}}
    stated = Cluster.model_validate({"name": "b200", "devices": 8, "devices_per_node": 8, "figures": figures})
    assert device_memory_gib(stated) == 180.0
    assert device_memory_gib(stated.model_copy(update={"figures": {}})) is None


def test_a_rank_that_the_others_wait_for_is_named() -> None:
    fast = [step(rank, compute_s=0.6, exposed_comm_s=0.4) for rank in (0, 1, 3)]
    slow = step(2, compute_s=0.9, exposed_comm_s=0.1)
    (line,) = stragglers(profiled(*fast, slow))
    assert line.startswith("rank 2: busy 0.9 s")
    assert "usual rank 0.6 s" in line
    assert stragglers(profiled(*fast)) == []
    assert stragglers(profiled(slow)) == []
    pair = profiled(step(0, compute_s=0.6, exposed_comm_s=0.4), step(1, compute_s=0.7, exposed_comm_s=0.3))
    assert stragglers(pair)[0].startswith("rank 1")
    near = profiled(step(0, compute_s=0.6, exposed_comm_s=0.4), step(1, compute_s=0.64, exposed_comm_s=0.36))
    assert stragglers(near) == []


@pytest.mark.parametrize(
    ("gains", "flat"),
    [((0.5, 0.1), False), ((0.02, 0.01), True), ((0.5, 0.49), True), ((0.5,), False), ((), True), ((0.031,), False)],
)
def test_flat_is_a_step_in_which_nothing_stands_out(gains: tuple[float, ...], flat: bool) -> None:
    parts = [Bottleneck(name=f"part{i}", share=0.1, max_gain=gain) for i, gain in enumerate(gains)]
    useful = Bottleneck(name="compute", share=0.8, max_gain=4.0)
    assert is_flat([useful, *parts], 0.03) is flat


def test_without_a_profile_only_the_layout_speaks() -> None:
    found = diagnose(None, arguments={**PIPELINE, "recompute_granularity": "full"}, facts=DP, levers=[])
    assert named(found, "bubble").share == pytest.approx(3 / 11)
    assert named(found, "recompute").share == pytest.approx(0.25 * 8 / 11)
    assert found.launch_bound is None
    assert "no profiled step" in found.notes[0]
    assert sum(layout_parts(PIPELINE, {}).shares.values()) == pytest.approx(1.0)


def test_a_launch_without_a_profile_is_read_by_the_nearest_one_it_descends_from() -> None:
    book = Book()
    book.ran("l01", kind="calibrate")
    book.ran("l05", kind="calibrate")
    book.put("breakdown", "l05", TENSOR)
    book.suppose("h01", parent="l01")
    book.ran("l06", hypothesis="h01", recipe=book.recipe(micro_batch_size=4))
    book.put("breakdown", "l06", REPLAYED.model_copy(update={"launch_id": "l06"}))
    book.suppose("h02", parent="l06")
    book.ran("l07", hypothesis="h02", recipe=book.recipe(micro_batch_size=8), status="oom")
    levers = load_levers(ROOT / "rules", "mcore")
    own = diagnose_launch(book.history, "l06", levers)
    assert own.launch_id == "l06"
    assert named(own, "bubble").share == pytest.approx(0.12)
    assert not any("was not profiled" in note for note in own.notes)
    child = diagnose_launch(book.history, "l07", levers)
    assert [(b.name, b.share) for b in child.bottlenecks] == [(b.name, b.share) for b in own.bottlenecks]
    assert child.notes[0].startswith("l07 was not profiled: the shares are those of l06")
    # the first baseline run is read by the profiled one, which ran the same recipe
    first = diagnose_launch(book.history, "l01", levers)
    assert named(first, "exposed_comm:tensor").share == pytest.approx(0.3)
    assert not any("was not profiled" in note for note in first.notes)


def test_a_campaign_without_any_profile_says_so() -> None:
    book = Book()
    book.ran("l01", kind="calibrate")
    assert "no profiled step" in diagnose_launch(book.history, "l01", []).notes[0]


def test_parts_of_a_made_up_word_are_nothing() -> None:
    assert Parts({"compute": 1.0}).of("exposed_comm:tensor") == 0.0
    assert eased({"nonsense": 1.0}, Parts({"compute": 1.0})) == 0.0


def test_status_tells_where_the_leaders_step_goes() -> None:
    book = Book()
    assert diagnosed(book.history, ROOT / "rules") is None
    book.ran("l01", kind="calibrate")
    book.put("breakdown", "l01", TENSOR)
    given = {"round": 1, "launches": ["l01"], "mean": 100.0, "sigma": 0.0, "band": 0.03, "busy": False}
    book.put("calibration", "1", Calibration.model_validate({**given, "launch_gpu_hours": 1.0, "step0_loss": 5.0}))
    found = diagnosed(book.history, ROOT / "rules")
    assert found is not None
    text = "\n".join(bottleneck_lines(found))
    assert "where the step of l01 goes" in text
    assert "exposed_comm:tensor       30.0%  at most  +42.9%  layout" in text
