"""Laws of the steps around a search, on the replayed cluster: what stops it, what must not move, what is measured again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from lab import BASE, ID, LR, MICRO, SDPA, Lab, begin, campaign, finish, measured, play, search, workload

from attuner.core.errors import Refused, RegisterChanged, Transient, UserError
from attuner.core.judgement import Note
from attuner.core.run import Attempt
from attuner.core.search import Hypothesis, Stop
from attuner.launchers.replay import Replay, Row
from attuner.policy import budget
from attuner.ports import Brief, JobState
from attuner.steps.birth import birth
from attuner.steps.calibrate import plan_calibration
from attuner.steps.gate import gate, launch_of
from attuner.steps.hypothesize import hypothesize
from attuner.steps.launch import launch
from attuner.steps.remeasure import plan_remeasure, remeasure
from attuner.steps.score import score
from attuner.steps.ship import ship

FASTER = Row(match={"micro_batch_size": 4}, step_s=0.5)
REST = Row(step_s=1.0, jitter=0.005)


LEAST = 11 * budget.RESERVE * 2 * 10 / 3600 + 1e-9
"""What birth asks for at least: calibration 5, re-measurement 6; two devices, ten seconds each."""


def lab(tmp_path: Path, *rows: Row, **more: Any) -> Lab:
    return Lab(tmp_path, [*rows, REST], **more)


class Endless:
    """A proposer that asks for the forbidden, for ever."""

    def ask(self, brief: Brief) -> Hypothesis | Stop:
        said = {"title": "lr", "bottleneck": "none", "mechanism": "none", "predicted_gain": 1.0, "predicted_error": 0.1}
        arguments = {"lr": 0.002 + len(brief.history.hypotheses()) / 1000}
        return Hypothesis.model_validate(
            {"id": "h01", "parent": brief.history.leader(), "group": "open", "arguments": arguments, **said}
        )


def test_ten_moves_in_a_row_that_launch_nothing_end_the_search(tmp_path: Path) -> None:
    made = lab(tmp_path, proposer=Endless())
    play(made.kit(), campaign())
    stop = made.history().stop()
    assert stop is not None
    assert stop.reason == "no_launch"
    assert len(made.history().hypotheses()) == 10


def test_a_proposer_cannot_overwrite_an_earlier_hypothesis_by_naming_it(tmp_path: Path) -> None:
    made = lab(tmp_path, proposer=Endless())
    kit = made.kit()
    begin(kit, campaign())
    hypothesize(kit, ID, "h01")
    hypothesize(kit, ID, "h02")
    assert [h.id for h in made.history().hypotheses()] == ["h01", "h02"]


def test_a_hypothesis_on_record_is_not_asked_for_again(tmp_path: Path) -> None:
    made = lab(tmp_path, proposer=Endless())
    kit = made.kit()
    begin(kit, campaign())
    assert hypothesize(kit, ID, "h01") == hypothesize(kit, ID, "h01")


def test_a_hypothesis_is_written_down_before_it_is_judged(tmp_path: Path) -> None:
    made = lab(tmp_path)
    kit = made.kit()
    begin(kit, campaign())
    with pytest.raises(Refused, match="h01 is not on record"):
        gate(kit, ID, "h01")


def moves(count: int) -> list[dict[str, Any]]:
    return [{"group": "open", "arguments": {"bucket_size": 1000 + n}} for n in range(count)]


def test_a_spent_budget_stops_the_search(tmp_path: Path) -> None:
    made = lab(tmp_path)
    kit = made.kit()
    begin(kit, campaign(*moves(50), budget={"gpu_hours": LEAST}))
    search(kit)
    history = made.history()
    stop = history.stop()
    assert stop is not None
    assert stop.reason == "the budget is spent"
    assert budget.spent(history) + budget.remeasure_reserve(history) <= budget.total(history)


def test_a_campaign_that_spends_its_budget_can_still_remeasure_and_ship(tmp_path: Path) -> None:
    made = lab(tmp_path, FASTER)
    kit = made.kit()
    begin(kit, campaign(MICRO, *moves(50), budget={"gpu_hours": LEAST}, gate={"review": "report_only"}))
    search(kit)
    assert not finish(kit).kept_baseline
    assert budget.spent(made.history()) <= LEAST


def test_a_slow_candidate_that_overdraws_the_budget_does_not_end_the_campaign_without_a_shipment(tmp_path: Path) -> None:
    made = lab(tmp_path, FASTER, Row(match={"bucket_size": 1000}, step_s=8.0))
    slow = {"group": "open", "arguments": {"bucket_size": 1000}, "parent": "l01"}
    play(made.kit(), campaign(MICRO, slow, budget={"gpu_hours": LEAST}))
    assert made.history().shipment() is not None


def test_a_budget_that_birth_accepts_pays_for_the_calibration(tmp_path: Path) -> None:
    made = lab(tmp_path)
    begin(made.kit(), campaign(budget={"gpu_hours": LEAST}))
    assert made.history().calibration() is not None


def change_rules(made: Lab) -> None:
    file = made.rules / "mcore" / "lab.yaml"
    file.write_text(file.read_text() + "\n# changed\n")


def test_gate_refuses_when_the_register_changed_after_birth(tmp_path: Path) -> None:
    made = lab(tmp_path)
    kit = made.kit()
    begin(kit, campaign(MICRO))
    hypothesize(kit, ID, "h01")
    change_rules(made)
    with pytest.raises(RegisterChanged):
        gate(kit, ID, "h01")
    assert launch_of(made.history(), "h01") == ""


def test_score_refuses_when_the_register_changed_after_birth(tmp_path: Path) -> None:
    made = lab(tmp_path, FASTER)
    kit = made.kit()
    begin(kit, campaign(MICRO))
    hypothesize(kit, ID, "h01")
    gate(kit, ID, "h01")
    launch(kit, ID, "l06")
    change_rules(made)
    with pytest.raises(RegisterChanged):
        score(kit, ID, "l06")
    assert made.history().score("l06") is None


def test_ship_refuses_when_the_register_changed_after_birth(tmp_path: Path) -> None:
    made = lab(tmp_path)
    kit = made.kit()
    begin(kit, campaign())
    search(kit)
    change_rules(made)
    with pytest.raises(RegisterChanged):
        ship(kit, ID)
    assert made.history().shipment() is None


def test_remeasure_refuses_when_the_register_changed_after_birth(tmp_path: Path) -> None:
    made = lab(tmp_path, FASTER)
    kit = made.kit()
    begin(kit, campaign(MICRO))
    search(kit)
    for launch_id in plan_remeasure(kit, ID):
        measured(kit, launch_id)
    change_rules(made)
    with pytest.raises(RegisterChanged):
        remeasure(kit, ID)


def test_ship_refuses_a_leader_that_was_not_remeasured(tmp_path: Path) -> None:
    made = lab(tmp_path, FASTER)
    kit = made.kit()
    begin(kit, campaign(MICRO))
    search(kit)
    with pytest.raises(Refused, match="was not re-measured"):
        ship(kit, ID)


class Fading(Lab):
    """The candidate is fast while it is searched, and as slow as the baseline when it is re-measured."""

    def __post_init__(self) -> None:
        super().__post_init__()
        table = self.table

        class Tired(type(self.stack)):  # type: ignore[misc]
            def command(self, recipe: Any, campaign: Any, *, kind: str, **more: Any) -> Any:
                if kind == "remeasure":
                    table[0] = table[0].model_copy(update={"step_s": 0.99})
                return super().command(recipe, campaign, kind=kind, **more)

        self.stack = Tired(self.replay)


def test_a_remeasured_gain_inside_the_band_keeps_the_baseline(tmp_path: Path) -> None:
    made = Fading(tmp_path, [FASTER, REST])
    shipment = play(made.kit(), campaign(MICRO))
    again = made.history().remeasurement()
    assert again is not None
    assert again.kept_baseline
    assert shipment.kept_baseline
    assert "inside the band" in shipment.reason


def test_the_remeasured_pairs_are_interleaved_and_alternate(tmp_path: Path) -> None:
    made = lab(tmp_path, FASTER)
    play(made.kit(), campaign(MICRO))
    purposes = [x.purpose for x in made.history().launches() if x.kind == "remeasure"]
    assert purposes == ["baseline 1", "leader 1", "leader 2", "baseline 2", "baseline 3", "leader 3"]


def test_a_baseline_that_fails_its_own_forward_look_is_no_baseline(tmp_path: Path) -> None:
    made = lab(tmp_path)
    made.stack.spoiled = True
    with pytest.raises(UserError):
        begin(made.kit(), campaign())


def test_a_busy_machine_is_calibrated_once_more(tmp_path: Path) -> None:
    made = Lab(tmp_path, [Row(jitter=0.4)])
    begin(made.kit(), campaign(noise={"busy_sigma": 0.08, "max_step_spread": 9.0}))
    assert [x.kind for x in made.history().launches()] == ["calibrate"] * 10
    found = made.history().calibration()
    assert found is not None
    assert found.round == 2
    assert found.band == pytest.approx(3 * found.sigma)


BUSY = {"busy_sigma": 0.08, "max_step_spread": 9.0}


def test_a_second_calibration_that_the_budget_does_not_pay_is_not_run_and_noted(tmp_path: Path) -> None:
    made = Lab(tmp_path, [FASTER, Row(jitter=0.4)])
    shipment = play(made.kit(), campaign(MICRO, budget={"gpu_hours": LEAST}, noise=BUSY))
    history = made.history()
    assert [x.kind for x in history.launches()].count("calibrate") == 5
    found, note = history.calibration(), history.find("note", "calibration 2", Note)
    assert found is not None
    assert note is not None
    assert (found.round, found.busy, found.band) == (1, True, pytest.approx(3 * found.sigma))
    assert "no second calibration" in note.text
    assert shipment is not None
    assert budget.spent(history) <= LEAST


def test_a_second_calibration_that_began_is_finished(tmp_path: Path) -> None:
    made = Lab(tmp_path, [Row(jitter=0.4)])
    kit = made.kit()
    begin(kit, campaign(noise=BUSY))
    assert plan_calibration(kit, ID, number=2) == [f"l{n:02d}" for n in range(6, 11)]


def test_a_second_calibration_that_was_not_run_is_not_run_later(tmp_path: Path) -> None:
    made = Lab(tmp_path, [FASTER.model_copy(update={"step_s": 0.1}), Row(jitter=0.4)])
    born = campaign(MICRO, budget={"gpu_hours": LEAST + 2 * 30 / 3600}, noise=BUSY)
    assert not play(made.kit(), born).kept_baseline
    submitted = list(made.replay.submitted)
    assert [x.kind for x in made.history().launches()].count("calibrate") == 5
    play(made.kit(), born)
    assert made.replay.submitted == submitted


def test_a_second_calibration_that_was_not_run_is_noted_once(tmp_path: Path) -> None:
    made = Lab(tmp_path, [Row(jitter=0.4)])
    born = campaign(budget={"gpu_hours": LEAST}, noise=BUSY)
    begin(made.kit(), born)
    begin(made.kit(), born)
    assert [e.key for e in made.history().events if e.kind == "note"].count("calibration 2") == 1


def test_the_common_checkpoint_is_made_once_before_anything_else(tmp_path: Path) -> None:
    made = lab(tmp_path)
    kit = made.kit()
    begin(kit, campaign(prepare={"steps": 3, "arguments": {"micro_batch_size": 4}}))
    begin(kit, campaign(prepare={"steps": 3, "arguments": {"micro_batch_size": 4}}))
    kinds = [x.kind for x in made.history().launches()]
    assert kinds == ["prepare", *["calibrate"] * 5]


def test_the_campaign_is_born_once_and_left_as_it_is(tmp_path: Path) -> None:
    made = lab(tmp_path)
    kit = made.kit()
    begin(kit, campaign(MICRO))
    begin(kit, campaign(LR))
    assert made.history().campaign().proposer.script == [MICRO]


def test_the_shipped_recipe_is_a_recipe_file_that_reads_back_as_itself(tmp_path: Path) -> None:
    from attuner.config import load_recipe

    made = lab(tmp_path, FASTER)
    shipment = play(made.kit(), campaign(MICRO))
    assert load_recipe(tmp_path / ID / "recipe.yaml").digest() == shipment.recipe


def test_a_finished_campaign_called_again_writes_no_record_and_pays_nothing(tmp_path: Path) -> None:
    made = lab(tmp_path, FASTER)
    first = play(made.kit(), campaign(MICRO))
    events, submitted = len(made.history().events), len(made.replay.submitted)
    kit = made.kit()
    claimed = len(made.history().events)
    assert play(kit, campaign(MICRO)) == first
    assert len(made.history().events) == claimed == events + 1  # the lease of the second process
    assert len(made.replay.submitted) == submitted


def test_the_baseline_of_the_lab_is_the_one_that_is_judged_against(tmp_path: Path) -> None:
    made = lab(tmp_path)
    begin(made.kit(), campaign())
    assert made.history().campaign().baseline.arguments == BASE


@pytest.mark.parametrize(("key", "value"), [("seq_len", 32), ("global_batch", 16), ("seed", 2)])
def test_a_baseline_that_trains_another_workload_is_refused_at_birth(tmp_path: Path, key: str, value: int) -> None:
    made = lab(tmp_path)
    with pytest.raises(UserError, match=rf"workload\.{key}: {value}"):
        begin(made.kit(), campaign(workload=workload(**{key: value}).data()))
    assert made.history().events == []


def test_a_baseline_in_another_precision_is_refused_at_birth(tmp_path: Path) -> None:
    made = lab(tmp_path)
    baseline = {"stack": "mcore", "arguments": {**BASE, "params_dtype": "bf16"}}
    with pytest.raises(UserError, match=r"workload\.precision: fp32, but the baseline's params_dtype is bf16"):
        begin(made.kit(), campaign(baseline=baseline))
    assert made.history().events == []


@pytest.mark.parametrize(
    ("versions", "agrees"),
    [
        ({}, True),
        ({"megatron_core": "0.16.1"}, True),
        ({"mcore": "0.16.1", "megatron_core": "9"}, True),
        ({"megatron_core": "0.17.0"}, False),
        ({"mcore": "0.17.0"}, False),
    ],
)
def test_the_stated_version_of_the_stack_is_the_one_that_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, versions: dict[str, str], agrees: bool
) -> None:
    made = lab(tmp_path)
    told = made.stack.resolve
    monkeypatch.setattr(made.stack, "resolve", lambda *given: told(*given).model_copy(update={"versions": versions}))
    if agrees:
        birth(made.kit(), campaign())
        return
    with pytest.raises(UserError, match=r"stack\.version: 0\.16\.1, but 0\.17\.0 is installed"):
        birth(made.kit(), campaign())
    assert made.history().events == []


def test_a_component_test_that_lost_contact_is_run_once_when_the_gate_is_called_again(tmp_path: Path) -> None:
    made = lab(tmp_path)
    cut = Cut(made.table, made.clock)
    made.stack.replay = cut
    kit = made.kit(launcher=cut)
    begin(kit, campaign(SDPA))
    hypothesize(kit, ID, "h01")
    with pytest.raises(Transient):
        gate(kit, ID, "h01")
    assert gate(kit, ID, "h01").decision == "admit"
    assert cut.submitted.count(f"{ID}-l06-a1") == 1
    assert [a.number for a in made.history().attempts("l06")] == [1]


class Cut(Replay):
    """Contact is lost once, while the first launch after the calibration runs."""

    cut = False

    def poll(self, attempt: Attempt) -> JobState:
        if attempt.launch_id == "l06" and not self.cut:
            self.cut = True
            raise Transient("contact lost")
        return super().poll(attempt)
