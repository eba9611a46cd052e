"""Hold-back: what surely runs out of memory or can't beat the leader isn't launched, and says so in figures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from lab import ID, Lab, begin, campaign, workload

from attuner.core.base import Value
from attuner.core.campaign import Campaign
from attuner.core.judgement import Note, Verdict
from attuner.core.recipe import Recipe
from attuner.core.run import Trial
from attuner.core.search import Forecast, Hypothesis
from attuner.launchers.replay import Row
from attuner.policy import budget, conduct
from attuner.policy.hold_back import unmodelled, weighed
from attuner.steps.gate import NO_ESTIMATE, gate, launch_of
from attuner.steps.hypothesize import hypothesize
from attuner.steps.launch import launch

MODEL: dict[str, Value] = {
    **{"num_layers": 32, "hidden_size": 4096, "num_attention_heads": 32, "num_query_groups": 8, "ffn_hidden_size": 14336},
    **{"gated_linear_unit": True, "vocab_size": 128256, "seq_length": 4096, "global_batch_size": 64, "bf16": True},
    **{"lr": 0.001, "seed": 1, "tensor_model_parallel_size": 4, "pipeline_model_parallel_size": 1, "sequence_parallel": True},
    **{"micro_batch_size": 8, "recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1},
    **{"use_distributed_optimizer": True, "attention_implementation": "sdpa"},
}
FIGURES = {"peak_tflops": 989.0, "mem_gb_s": 3350.0, "intra_gb_s": 450.0}
WIDER = {"group": "layout", "arguments": {"tensor_model_parallel_size": 8}}
HUGE = {"group": "layout", "arguments": {"tensor_model_parallel_size": 1}}
LESS = {"group": "recompute", "arguments": {"recompute_granularity": None}}
VARIABLE = {"group": "open", "env": {"NCCL_MIN_NCHANNELS": "8"}}
BUCKET = {"group": "open", "arguments": {"bucket_size": 1000}}


def born(*script: dict[str, Any], figures: dict[str, float] | None = None, **changes: Any) -> Campaign:
    """Eight devices of 80 GiB and a model of eight billion parameters."""
    stated = {k: {"value": v, "source": "a data sheet"} for k, v in (FIGURES if figures is None else figures).items()}
    cluster = {"name": "h100", "devices": 8, "devices_per_node": 8, "device": {"mem_gib": 80.0}, "figures": stated}
    work = {**workload().data(), "seq_len": 4096, "global_batch": 64, "gpus": 8, "precision": "bf16"}
    sections = {"workload": work, "baseline": {"stack": "mcore", "arguments": MODEL}, "budget": {"gpu_hours": 1000.0}}
    return campaign(*script, **{**sections, "launcher": {"name": "replay", "cluster": cluster}, **changes})


def judged(folder: Path, *moves: dict[str, Any], table: list[Row] | None = None, **changes: Any) -> tuple[Lab, list[Verdict]]:
    """Calibrate, then play the moves as far as their launches."""
    found = Lab(folder, [*(table or []), Row(step_s=6.5, peak_mem_gib=30.0)])
    kit = found.kit()
    begin(kit, born(*moves, **changes))
    verdicts = []
    for number in range(1, len(moves) + 1):
        name = f"h{number:02d}"
        assert isinstance(hypothesize(kit, ID, name), Hypothesis)
        verdicts.append(gate(kit, ID, name))
        if launch_id := launch_of(found.history(), name):
            launch(kit, ID, launch_id)
    return found, verdicts


@pytest.mark.parametrize(
    ("move", "words"), [(HUGE, "GiB on its fullest device, which has 80 GiB"), (WIDER, "within the noise band of 3.0%")]
)
def test_what_cant_pay_for_itself_is_not_launched_and_costs_nothing(tmp_path: Path, move: dict[str, Any], words: str) -> None:
    found, (verdict,) = judged(tmp_path, move)
    history = found.history()
    assert verdict.decision == "refuse"
    assert verdict.findings[0].rule == "held_back"
    assert words in verdict.findings[0].reason
    assert [x.kind for x in history.launches()] == ["calibrate"] * 5
    assert [s.launch_id for s in history.settlements()] == [x.id for x in history.launches()]
    assert budget.reserved(history) == 0.0
    forecast = history.forecast("h01")
    assert forecast is not None
    assert forecast.held
    assert forecast.why == verdict.findings[0].reason
    assert forecast.num_learnt == 1


def test_what_may_win_is_launched_with_its_forecast_on_record(tmp_path: Path) -> None:
    found, (verdict,) = judged(tmp_path, LESS)
    assert verdict.decision != "refuse"
    forecast = found.history().forecast("h01")
    assert forecast is not None
    assert not forecast.held
    assert forecast.step_low_s <= forecast.step_s <= forecast.step_high_s < 6.5 * 1.5
    assert forecast.recipe == verdict.recipe
    assert launch_of(found.history(), "h01") == "l06"


def test_a_campaign_may_switch_it_off_and_still_sees_the_forecast(tmp_path: Path) -> None:
    found, (verdict,) = judged(tmp_path, WIDER, estimate={"hold_back": False})
    assert verdict.decision != "refuse"
    forecast = found.history().forecast("h01")
    assert forecast is not None
    assert forecast.held


@pytest.mark.parametrize("move", [VARIABLE, BUCKET])
def test_what_the_estimate_does_not_model_is_never_held_back_as_slow(tmp_path: Path, move: dict[str, Any]) -> None:
    found, (verdict,) = judged(tmp_path, move)
    assert verdict.decision != "refuse"
    assert launch_of(found.history(), "h01") == "l06"


def test_a_launch_that_ran_out_of_memory_is_tried_again_with_less_whatever_its_speed(tmp_path: Path) -> None:
    full = Row(match={"recompute_granularity": None}, outcome="oom", detail="85 GiB asked")
    found, (first, second) = judged(tmp_path, LESS, {**WIDER, "parent": "h01"}, table=[full], noise={"floor": 0.2})
    assert first.decision != "refuse"
    assert found.history().trial("l06").status == "oom"  # type: ignore[union-attr]
    assert second.decision != "refuse", second.findings
    forecast = found.history().forecast("h02")
    assert forecast is not None
    assert forecast.gain + forecast.gain_error < 0.2  # on its own it would have been held back
    huge = {**HUGE, "parent": "h01"}
    _, (_, third) = judged(tmp_path / "2", LESS, huge, table=[full])
    assert third.findings[0].rule == "held_back"
    assert "GiB on its fullest device" in third.findings[0].reason


def test_where_no_estimate_is_possible_one_note_says_why_and_nothing_is_held(tmp_path: Path) -> None:
    found, verdicts = judged(tmp_path, WIDER, HUGE, figures={})
    assert all(v.decision != "refuse" for v in verdicts)
    history = found.history()
    note = history.find("note", NO_ESTIMATE, Note)
    assert note is not None
    assert "figures.peak_tflops" in note.text or "peak_tflops" in note.text
    assert sum(1 for e in history.events if e.kind == "note" and e.key == NO_ESTIMATE) == 1
    assert history.forecast("h01") is None


def test_a_candidate_that_the_estimate_cant_read_is_launched_with_a_note(tmp_path: Path) -> None:
    odd = {"group": "micro-batch", "arguments": {"micro_batch_size": 3}}
    found, (verdict,) = judged(tmp_path, odd)
    assert verdict.decision != "refuse"
    note = found.history().find("note", f"{NO_ESTIMATE} h01", Note)
    assert note is not None
    assert "does not divide" in note.text
    assert found.history().find("note", NO_ESTIMATE, Note) is None


def test_what_the_register_refuses_is_refused_by_the_register(tmp_path: Path) -> None:
    _, (verdict,) = judged(tmp_path, {"group": "open", "arguments": {"lr": 0.1}})
    assert verdict.findings[0].rule == "LAB-TST-001"


def test_a_forecast_on_record_is_not_made_again(tmp_path: Path) -> None:
    found, _ = judged(tmp_path, WIDER)
    before = sum(1 for e in found.history().events if e.kind == "forecast")
    assert gate(found.kit(), ID, "h01").findings[0].rule == "held_back"
    assert sum(1 for e in found.history().events if e.kind == "forecast") == before == 1


def test_moves_that_are_held_back_count_as_moves_that_launched_nothing(tmp_path: Path) -> None:
    found, _ = judged(tmp_path, WIDER, HUGE)
    assert conduct.no_launch_streak(found.history()) == 2


def test_unmodelled_changes_are_found_in_arguments_and_environment() -> None:
    leader = Recipe(stack="mcore", arguments=MODEL)
    assert unmodelled(leader, leader.changed({"tensor_model_parallel_size": 1, "recompute_granularity": None})) == []
    both = leader.changed({"tensor_model_parallel_size": 1, "bucket_size": 1}, {"A": "1"})
    assert unmodelled(leader, both) == ["bucket_size", "env:A"]
    assert unmodelled(both, leader) == ["bucket_size", "env:A"]


def said(**changes: Any) -> Forecast:
    times = {"step_s": 1.0, "step_low_s": 0.9, "step_high_s": 1.1, "gain": -0.1, "gain_error": 0.01}
    memory = {"peak_mem_gib": 1.0, "mem_low_gib": 0.9, "mem_high_gib": 1.1}
    return Forecast.model_validate(
        {"hypothesis": "h01", "recipe": "r", **times, **memory, "held": True, "why": "slow", **changes}
    )


def ran(status: str) -> Trial:
    return Trial.model_validate({"launch_id": "l01", "attempt": 1, "status": status, "gpu_hours": 1.0})


def test_reasons_are_weighed() -> None:
    assert weighed(said(), memory="", parent=ran("ok"), unknown=[]).held
    assert not weighed(said(), memory="", parent=ran("oom"), unknown=[]).held
    assert not weighed(said(), memory="", parent=ran("ok"), unknown=["bucket_size"]).held
    assert weighed(said(), memory="too large", parent=ran("oom"), unknown=["bucket_size"]).held
    assert weighed(said(), memory="", parent=ran("oom"), unknown=[]).why == ""
