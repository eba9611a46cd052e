"""Laws of a rerun: a new attempt with name and reason; what follows is computed again, the rest stays, all is charged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from lab import ID, LAYOUT, MICRO, SDPA, Lab, campaign, play

from attuner.core.errors import AttunerError, BudgetExceeded, Refused, RegisterChanged, UserError
from attuner.core.events import History
from attuner.core.people import Invalidated, ReviewAnswer
from attuner.launchers.replay import Row
from attuner.ledgers.memory import MemoryLedger
from attuner.policy import budget
from attuner.report.reruns import rerun_rows
from attuner.steps import people
from attuner.steps.remeasure import plan_remeasure
from attuner.steps.rerun import rerun

BY = {"by": "Ada", "why": "the switch was flaky"}
REST = Row(step_s=1.0, jitter=0.005)
MICRO_ROW = Row(match={"micro_batch_size": 4}, step_s=0.5, jitter=0.005)
LAYOUT_ROW = Row(match={"tensor_model_parallel_size": 1}, step_s=0.8)
OOM = Row(match={"micro_batch_size": 4}, outcome="oom", detail="out of memory in forward")


def played(tmp_path: Path, *rows: Row, script: tuple[dict[str, Any], ...] = (MICRO, LAYOUT), **more: Any) -> Lab:
    made = Lab(tmp_path, [*rows, REST])
    play(made.kit(), campaign(*script, **more))
    return made


def again(made: Lab, step: str, key: str = "", **more: Any) -> Invalidated:
    made.store.holders.clear()
    ledger = MemoryLedger(made.store, now=made.clock.now)
    return rerun(ledger, ID, step, key, **{**BY, "rules_dir": made.rules, **more})


def go_on(made: Lab, *script: dict[str, Any], **more: Any) -> History:
    play(made.kit(), campaign(*(script or (MICRO, LAYOUT)), **more))
    return made.history()


def ran(made: Lab) -> dict[str, str]:
    return {f"{r.step} {r.key}".strip(): r.what for r in rerun_rows(made.history())}


def counted(history: History) -> dict[str, int]:
    return {x.id: len(history.attempts(x.id)) for x in history.launches()}


def test_a_failed_launch_is_run_again_and_takes_its_place_in_the_chain_of_leaders(tmp_path: Path) -> None:
    made = played(tmp_path, OOM, LAYOUT_ROW)
    before = made.history()
    assert before.trial("l06").status == "oom"  # type: ignore[union-attr]
    assert before.shipment().launch_id == "l07"  # type: ignore[union-attr]
    made.table[0] = MICRO_ROW
    again(made, "launch", "l06")
    history = go_on(made)
    assert [(s.launch_id, s.new_leader) for s in history.scores() if s.launch_id in ("l06", "l07")] == [
        ("l06", True),
        ("l07", False),
    ]
    second, first = history.score("l07"), before.score("l07")
    assert second is not None
    assert first is not None
    assert second.leader_before == "l06"
    assert first.leader_before == "l01"
    assert counted(history)["l07"] == 1, "a later launch stays"
    assert history.shipment().launch_id == "l06"  # type: ignore[union-attr]
    assert history.remeasurement().leader == "l06"  # type: ignore[union-attr]


def test_every_attempt_stays_on_record_and_is_charged(tmp_path: Path) -> None:
    made = played(tmp_path, OOM, LAYOUT_ROW)
    before = made.history()
    made.table[0] = MICRO_ROW
    again(made, "launch", "l06")
    history = go_on(made)
    assert [a.number for a in history.attempts("l06")] == [1, 2]
    assert len(history.settlements()) == len({(s.launch_id, s.attempt) for s in history.settlements()})
    assert budget.spent(history) > budget.spent(before)
    assert history.events[: len(before.events)] == before.events
    assert history.trial("l06").gpu_hours == pytest.approx(history.charge("l06"))  # type: ignore[union-attr]


def test_remeasure_and_ship_stay_when_leader_and_band_do(tmp_path: Path) -> None:
    made = played(tmp_path, MICRO_ROW, Row(match={"tensor_model_parallel_size": 1}, outcome="oom"))
    before = made.history()
    made.table[1] = LAYOUT_ROW
    again(made, "launch", "l07")
    history = go_on(made)
    assert history.score("l07") is not None
    assert history.shipment() == before.shipment()
    new = {k: n - counted(before).get(k, 0) for k, n in counted(history).items() if n != counted(before).get(k, 0)}
    assert new == {"l07": 1}
    assert ran(made)["ship final"] == "kept"


def test_a_rerun_launch_that_fails_again_leaves_the_leader(tmp_path: Path) -> None:
    made = played(tmp_path, OOM, LAYOUT_ROW)
    again(made, "launch", "l06")
    history = go_on(made)
    assert history.trial("l06").attempt == 2  # type: ignore[union-attr]
    assert history.shipment().launch_id == "l07"  # type: ignore[union-attr]
    assert history.remeasurement() is not None


def test_a_rerun_leader_that_is_slow_now_loses_the_lead_and_the_shipment(tmp_path: Path) -> None:
    alone = {**LAYOUT, "parent": "l01"}
    made = played(tmp_path, MICRO_ROW, LAYOUT_ROW, script=(MICRO, alone))
    assert made.history().shipment().launch_id == "l06"  # type: ignore[union-attr]
    made.table[0] = Row(match={"micro_batch_size": 4}, step_s=1.5)
    again(made, "launch", "l06")
    history = go_on(made, MICRO, alone)
    assert history.shipment().launch_id == "l07"  # type: ignore[union-attr]
    assert history.remeasurement().leader == "l07"  # type: ignore[union-attr]
    assert sum(x.kind == "remeasure" for x in history.launches()) == 12, "the first round's launches stay on record"


def test_the_same_request_twice_is_one_rerun(tmp_path: Path) -> None:
    made = played(tmp_path, OOM, LAYOUT_ROW)
    first = again(made, "launch", "l06", request="form-7")
    assert again(made, "launch", "l06", request="form-7") == first
    assert len(made.history().reruns()) == 1
    made.table[0] = MICRO_ROW
    history = go_on(made)
    assert again(made, "launch", "l06", request="form-7") == first
    assert len(history.attempts("l06")) == 2


def test_a_rerun_is_refused_while_a_process_runs_the_campaign(tmp_path: Path) -> None:
    made = played(tmp_path, OOM, LAYOUT_ROW)
    kit = made.kit()  # holds the lease
    assert kit is not None
    with pytest.raises(Refused, match="runs this campaign"):
        rerun(MemoryLedger(made.store, now=made.clock.now), ID, "launch", "l06", rules_dir=made.rules, **BY)


def test_a_rerun_never_passes_the_budget(tmp_path: Path) -> None:
    made = played(tmp_path, OOM, LAYOUT_ROW)
    ledger = MemoryLedger(made.store, now=made.clock.now)
    made.store.holders.clear()
    spent = budget.spent(made.history())
    people.set_budget(ledger, ID, spent + 1e-6, by="Ada", why="enough")
    with pytest.raises(BudgetExceeded, match=f"attuner budget {ID}"):
        again(made, "launch", "l06")
    assert not made.history().reruns()


@pytest.mark.parametrize(
    ("step", "key", "what"),
    [
        ("launch", "l99", "no such launch"),
        ("launch", "", "needs the id"),
        ("ship", "l06", "takes no key"),
        ("dance", "", "no such step"),
        ("gate", "h01", "became l06"),
        ("score", "l06", "has no run to score"),
        ("calibrate", "7", "no such round"),
    ],
)
def test_what_cant_be_rerun_is_one_clear_line_and_changes_nothing(tmp_path: Path, step: str, key: str, what: str) -> None:
    made = played(tmp_path, OOM, LAYOUT_ROW)
    before = len(made.history().events)
    with pytest.raises(UserError, match=what):
        again(made, step, key)
    assert len(made.history().events) == before


@pytest.mark.parametrize("missing", ["by", "why"])
def test_a_rerun_bears_name_and_reason(tmp_path: Path, missing: str) -> None:
    made = played(tmp_path, OOM, LAYOUT_ROW)
    with pytest.raises(UserError, match=f"rerun: {missing}"):
        again(made, "launch", "l06", **{missing: "  "})


def test_a_score_is_computed_again_from_the_same_run(tmp_path: Path) -> None:
    made = played(tmp_path, MICRO_ROW, LAYOUT_ROW)
    before = made.history()
    again(made, "score", "l06")
    history = go_on(made)
    assert history.score("l06") == before.score("l06")
    assert counted(history) == counted(before)
    assert history.shipment() == before.shipment()
    assert "computed again" in ran(made)["score l06"]


def test_a_ship_is_decided_again_and_nothing_is_launched(tmp_path: Path) -> None:
    made = played(tmp_path, MICRO_ROW, LAYOUT_ROW)
    before = made.history()
    (made.folder / ID / "recipe.yaml").unlink()
    again(made, "ship")
    history = go_on(made)
    assert history.shipment() == before.shipment()
    assert counted(history) == counted(before)
    assert (made.folder / ID / "recipe.yaml").is_file()


def test_a_remeasurement_is_made_again_with_fresh_launches(tmp_path: Path) -> None:
    made = played(tmp_path, MICRO_ROW, LAYOUT_ROW)
    again(made, "remeasure")
    history = go_on(made)
    again_measured = history.remeasurement()
    assert again_measured is not None
    assert len(set(again_measured.leader_launches)) == 3
    assert sum(x.kind == "remeasure" for x in history.launches()) == 12
    assert history.launch(again_measured.leader_launches[0]).purpose.endswith("round 2")  # type: ignore[union-attr]


def test_one_remeasured_launch_is_run_again_and_the_gain_computed_anew(tmp_path: Path) -> None:
    made = played(tmp_path, MICRO_ROW, LAYOUT_ROW)
    before = made.history().remeasurement()
    assert before is not None
    again(made, "launch", before.leader_launches[0])
    history = go_on(made)
    after = history.remeasurement()
    assert after is not None
    assert after.leader_launches == before.leader_launches
    assert after.leader_mean != before.leader_mean
    assert sum(x.kind == "remeasure" for x in history.launches()) == 6


def test_a_calibration_run_again_moves_mean_and_every_gain_over_it(tmp_path: Path) -> None:
    made = played(tmp_path, MICRO_ROW, LAYOUT_ROW)
    before = made.history()
    again(made, "launch", "l02")
    history = go_on(made)
    assert history.calibration().mean != before.calibration().mean  # type: ignore[union-attr]
    first, second = before.score("l06"), history.score("l06")
    assert first is not None
    assert second is not None
    assert second.gain_over_baseline != first.gain_over_baseline
    assert second.tokens_per_s_per_gpu == first.tokens_per_s_per_gpu
    assert {k for k, n in counted(history).items() if n != counted(before).get(k)} == {"l02"}


def test_the_search_is_taken_up_again_after_its_stop(tmp_path: Path) -> None:
    made = played(tmp_path, MICRO_ROW, LAYOUT_ROW, Row(match={"attention_implementation": "sdpa"}, step_s=0.9), script=(LAYOUT,))
    assert made.history().shipment().launch_id == "l06"  # type: ignore[union-attr]
    again(made, "hypothesize")
    ledger = MemoryLedger(made.store, now=made.clock.now)
    from attuner.proposals import Proposal

    people.queue(ledger, ID, Proposal.model_validate(MICRO).hypothesis(), by="Ada")
    history = go_on(made, LAYOUT)
    assert [h.by for h in history.hypotheses()] == ["", "Ada"]
    assert history.shipment().launch_id == history.launches()[-7].id  # type: ignore[union-attr]
    assert history.remeasurement().leader == history.shipment().launch_id  # type: ignore[union-attr]


def test_a_refused_hypothesis_is_judged_again(tmp_path: Path) -> None:
    made = played(tmp_path, MICRO_ROW, script=({"group": "open", "arguments": {"lr": 0.5}}, MICRO))
    again(made, "gate", "h01")
    history = go_on(made, {"group": "open", "arguments": {"lr": 0.5}}, MICRO)
    assert history.verdict("h01").decision == "refuse", "a person's word moves no objective"  # type: ignore[union-attr]
    assert "judged again" in ran(made)["gate h01"]


def test_what_was_decided_or_charged_cant_be_set_aside() -> None:
    body = {"step": "launch", "key": "l06", **BY}
    for kind in ("settled", "attempt", "launch", "campaign", "hypothesis", "review", "directive"):
        with pytest.raises(ValueError, match="stays on record"):
            Invalidated.model_validate({**body, "hides": [f"{kind} l06"]})


def test_history_ignores_a_forged_hiding_of_a_charge(tmp_path: Path) -> None:
    made = played(tmp_path, MICRO_ROW)
    history = made.history()
    event = history.events[-1].model_copy(update={"kind": "invalidated", "key": "x", "record": {"hides": ["settled l01#1"]}})
    assert len(History([*history.events, event]).settlements()) == len(history.settlements())


def test_a_crash_at_any_record_of_a_rerun_changes_nothing(tmp_path: Path) -> None:
    from lab import PowerCut

    made = played(tmp_path / "whole", OOM, LAYOUT_ROW)
    made.table[0] = MICRO_ROW
    again(made, "launch", "l06")
    whole = go_on(made)
    records = len(whole.events) - next(e.n for e in whole.events if e.kind == "invalidated")
    for lives in range(0, records, 7):
        torn = played(tmp_path / f"torn{lives}", OOM, LAYOUT_ROW)
        torn.table[0] = MICRO_ROW
        again(torn, "launch", "l06")
        with pytest.raises(PowerCut):
            play(torn.kit(lives=lives), campaign(MICRO, LAYOUT))
        history = go_on(torn)
        assert history.shipment() == whole.shipment().model_copy(  # type: ignore[union-attr]
            update={"folder": history.shipment().folder, "gain": history.shipment().gain}  # type: ignore[union-attr]
        )
        assert counted(history) == counted(whole)


def test_component_tests_and_checkpoints_are_not_rerun(tmp_path: Path) -> None:
    made = played(tmp_path, Row(match={"attention_implementation": "sdpa"}, step_s=0.6), script=(SDPA,))
    check = next(x.id for x in made.history().launches() if x.component)
    with pytest.raises(AttunerError, match="component test"):
        again(made, "launch", check)


def change_rules(made: Lab) -> None:
    file = made.rules / "mcore" / "lab.yaml"
    file.write_text(file.read_text() + "\n# changed\n")


@pytest.mark.parametrize("step", ["launch", "score", "ship", "remeasure", "calibrate", "hypothesize"])
def test_nothing_is_set_aside_that_the_changed_rules_could_not_judge_again(tmp_path: Path, step: str) -> None:
    made = played(tmp_path, MICRO_ROW, LAYOUT_ROW)
    change_rules(made)
    before = len(made.history().events)
    key = {"launch": "l06", "score": "l06", "calibrate": "1"}.get(step, "")
    with pytest.raises(RegisterChanged):
        again(made, step, key)
    assert len(made.history().events) == before
    assert made.history().shipment() is not None


def test_a_resume_under_changed_rules_leaves_the_shipment_as_it_is(tmp_path: Path) -> None:
    made = played(tmp_path, MICRO_ROW, LAYOUT_ROW)
    shipment = made.history().shipment()
    again(made, "score", "l07")  # something to do again, so that a resume goes through its steps
    refusal = {"launch_id": "l06", "recipe": made.history().launch("l06").recipe, "decision": "refuse", "by": "Ada"}  # type: ignore[union-attr]
    kit = made.kit()
    kit.ledger.append(ID, "review", "l06", ReviewAnswer.model_validate(refusal))
    change_rules(made)
    with pytest.raises(RegisterChanged):
        plan_remeasure(kit, ID)
    assert made.history().shipment() == shipment
