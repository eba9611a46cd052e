"""Laws of the report's facts: charges add up, predictions stay beside outcomes, the leader is the one that shipped."""

from __future__ import annotations

import pytest
from test_report_campaign import GPUS, campaign_events

from attuner.core.errors import Broken, UserError
from attuner.report.facts import ReportFacts, gather


@pytest.fixture(scope="module")
def facts() -> ReportFacts:
    return gather(campaign_events())


def test_every_launch_and_every_refusal_has_a_row_in_order(facts: ReportFacts) -> None:
    ids = [r.id for r in facts.rows]
    assert ids[:7] == ["l01", "l02", "l03", "l04", "l05", "l06", "h02"]
    assert len(ids) == 23
    assert {r.id: r.outcome for r in facts.rows if r.outcome != "ok"} == {
        "h02": "refused",
        "l08": "oom",
        "l12": "hang",
        "l16": "infrastructure",
    }


def test_predictions_stand_beside_outcomes(facts: ReportFacts) -> None:
    row = {r.id: r for r in facts.rows}
    assert (row["l06"].predicted_gain, row["l06"].predicted_error) == (0.70, 0.20)
    assert row["l06"].gain == pytest.approx(1930 / 1160 - 1)
    assert row["l06"].miss() == pytest.approx(1930 / 1160 - 1 - 0.70)
    assert row["l08"].miss() is None


def test_every_charge_is_counted_once_and_adds_up(facts: ReportFacts) -> None:
    assert sum(s.gpu_hours for s in facts.spend) == pytest.approx(facts.total_gpu_hours)
    assert sum(r.gpu_hours for r in facts.rows) == pytest.approx(facts.total_gpu_hours)
    assert max(r.spent_after for r in facts.rows) == pytest.approx(facts.total_gpu_hours)
    lost = next(r for r in facts.rows if r.id == "l16")
    assert lost.num_attempts == 2
    assert lost.gpu_hours == pytest.approx(2 * 20 * GPUS / 3600)
    shown = facts.units.amounts([s.gpu_hours for s in facts.spend])
    assert round(sum(map(float, shown)), 2) == float(facts.units.amount(facts.total_gpu_hours))


def test_the_claim_is_the_remeasured_one(facts: ReportFacts) -> None:
    assert facts.state == "shipped"
    assert facts.leader is not None
    assert facts.leader.id == "l14"
    assert facts.claim is not None
    assert (facts.claim.before, facts.claim.after, facts.claim.remeasured) == (1158.0, 3870.0, True)


def test_every_changed_final_value_names_its_rule(facts: ReportFacts) -> None:
    by_key = {c.change.key: c for c in facts.changes}
    assert list(by_key)[-1] == "fact:data_parallel_size"
    assert by_key["micro_batch_size"].findings[0].rule == "MCORE-PLC-011"
    assert [k for k, c in by_key.items() if c.findings[0].decision == "review"] == ["optimizer_cpu_offload"]


def test_looks_that_agree_are_one_row_that_names_every_run(facts: ReportFacts) -> None:
    assert [(r.look, r.subject) for r in facts.looks] == [
        ("1 · final values", "h09 (l14)"),
        ("2 · forward", "l14#1, l18#1, l20#1, l22#1"),
        ("2 · forward", "l14#1, l18#1, l20#1, l22#1"),
    ]
    assert facts.looks[1].tolerance == "0.05"
    assert not facts.has_third_look


def test_the_step_is_compared_between_baseline_and_leader(facts: ReportFacts) -> None:
    assert facts.before is not None
    assert facts.after is not None
    assert (facts.before.launch_id, facts.after.launch_id) == ("l05", "l14")


def test_a_later_event_of_the_same_key_holds() -> None:
    events = campaign_events()
    score = next(e for e in events if e.kind == "score" and e.key == "l06")
    n = len(events) + 1
    worse = {**score.record, "valid": False, "why_invalid": "a scored step was profiled"}
    again = gather([*events, score.model_copy(update={"n": n, "seq": n, "record": worse})])
    row = next(r for r in again.rows if r.id == "l06")
    assert (row.tokens_per_s, row.gain) == (None, None)
    assert "not a valid measurement" in row.reason


def test_a_remeasurement_without_a_valid_side_claims_nothing_from_it() -> None:
    failed = {"leader_mean": 0.0, "gain": -1.0, "kept_baseline": True, "decision": "refuse", "reason": "2 of 3 failed"}
    events = [
        e.model_copy(update={"record": {**e.record, **failed}}) if e.kind == "remeasurement" else e
        for e in campaign_events()
        if e.kind != "shipment"
    ]
    again = gather(events)
    assert again.claim is not None
    assert (again.claim.after, again.claim.remeasured) == (3880.0, False)
    assert again.recipe == again.campaign.baseline


def test_a_candidate_that_waits_is_named_even_if_another_ships(facts: ReportFacts) -> None:
    (line,) = facts.other_reviews
    assert line.startswith("l15 (bucket 40 M → 160 M, +237% over the baseline)")


def test_a_campaign_that_waits_for_a_person_says_so() -> None:
    events = [e for e in campaign_events() if e.kind != "shipment"]
    gate = {**events[0].record["gate"], "review": "before_ship"}
    first = events[0].model_copy(update={"record": {**events[0].record, "gate": gate}})
    waiting = gather([first, *events[1:]])
    assert waiting.state == "waiting for review"
    assert len(waiting.reviews) == 1


def test_events_without_a_campaign_are_refused() -> None:
    with pytest.raises(UserError, match="no campaign"):
        gather([])
    with pytest.raises(UserError, match="no campaign"):
        gather(campaign_events()[1:])


def test_a_record_that_cannot_be_read_is_one_line() -> None:
    events = campaign_events()
    broken = [e.model_copy(update={"record": {"x": 1}}) if e.kind == "trial" else e for e in events]
    with pytest.raises(Broken) as caught:
        gather(broken)
    assert "\n" not in str(caught.value)
