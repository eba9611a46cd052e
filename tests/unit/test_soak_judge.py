"""The soak's judge finds every law that a history breaks, and nothing in a sound one."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from lab import ID, MICRO, ROOT, Lab, campaign, play

from attuner.core.events import Event
from attuner.launchers.replay import Row

sys.path.insert(0, str(ROOT / "bench"))

from soak_evidence import judged, left_by
from soak_judge import Found, Left, judge
from soak_plan import REAL_FAULTS, REPLAY_FAULTS, draw, real_case, replay_case
from soak_record import Record

Edit = Callable[[list[Event]], list[Event]]


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Found:
    """Return a campaign that shipped another recipe than its baseline, as its steps and its runs left it."""
    folder = tmp_path_factory.mktemp("soak")
    lab = Lab(folder, [Row(match={"micro_batch_size": 4}, step_s=0.5), Row()])
    shipment = play(lab.kit(), campaign(MICRO))
    assert not shipment.kept_baseline, shipment.reason
    files = [p.name for p in (folder / ID).iterdir()]
    return Found(ID, lab.history().events, left_by(folder / ID), files, real=True)


def changed(found: Found, edit: Edit, **more: Any) -> list[str]:
    return judge(Found(found.campaign_id, edit(list(found.events)), found.runs, found.files, real=found.real, **more))


def rewritten(kind: str, key: str, **changes: Any) -> Edit:
    """Return an edit that changes fields of one record."""

    def edit(events: list[Event]) -> list[Event]:
        assert any(e.kind == kind and e.key == key for e in events), f"no {kind} {key}"
        return [e.model_copy(update={"record": {**e.record, **changes}}) if (e.kind, e.key) == (kind, key) else e for e in events]

    return edit


def without(kind: str, key: str) -> Edit:
    return lambda events: [e for e in events if (e.kind, e.key) != (kind, key)]


def again(kind: str, key: str) -> Edit:
    return lambda events: [*events, next(e for e in events if (e.kind, e.key) == (kind, key))]


def paid_again(launch_id: str) -> Edit:
    """Return an edit that adds a second attempt, with its charge, to a launch that had come to its end."""

    def edit(events: list[Event]) -> list[Event]:
        attempt = next(e for e in events if e.kind == "attempt" and e.key == f"{launch_id}#1")
        charge = next(e for e in events if e.kind == "settled" and e.key == f"{launch_id}#1")
        later = {"allocated_at": charge.record["allocated_at"] + 1e6, "released_at": charge.record["released_at"] + 1e6}
        return [
            *events,
            attempt.model_copy(update={"key": f"{launch_id}#2", "record": {**attempt.record, "number": 2}}),
            charge.model_copy(update={"key": f"{launch_id}#2", "record": {**charge.record, "attempt": 2, **later}}),
        ]

    return edit


def test_a_sound_campaign_breaks_no_law(sound: Found) -> None:
    assert judge(sound) == []


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (again("settled", "l01#1"), "paid 2 times: l01#1"),
        (paid_again("l06"), "paid twice: l06"),
        (without("settled", "l03#1"), "an attempt without a charge: l03#1"),
        (without("settled", "l03#1"), "ran and was not charged: l03#1"),
        (without("attempt", "l03#1"), "a charge without an attempt: l03#1"),
        (rewritten("settled", "l02#1", gpu_hours=0.5), "its charge 900.00 s"),
        (rewritten("trial", "l02", gpu_hours=0.5), "the trial says"),
        (rewritten("settled", "l02#1", allocated_at=0.0), "held devices at once"),
        (again("launch", "l06"), "decided 2 times: launch l06"),
        (again("shipment", "final"), "decided 2 times: shipment final"),
        (without("shipment", "final"), "no end"),
        (rewritten("shipment", "final", reason=" "), "a shipment without a reason"),
        (without("verdict", "h01"), "shipped without an admitting look: h01"),
        (rewritten("verdict", "l06#1", decision="review"), "shipped without an admitting look: l06#1"),
        (without("verdict", "l06#1:update"), "shipped without an admitting look: l06#1:update"),
        (without("verdict", "l08#1"), "shipped without an admitting look: l08#1"),
        (rewritten("verdict", "l08#1:update", recipe="0"), "shipped without an admitting look: l08#1:update"),
        (without("remeasurement", "final"), "shipped without launch, score or re-measurement"),
        (rewritten("remeasurement", "final", leader_launches=["l08"]), "re-measured in fewer than 3 pairs"),
        (rewritten("shipment", "final", recipe="0"), "shipped recipe is not the one of l06"),
        (rewritten("shipment", "final", on_paper="replayed"), "as if it were shippable"),
    ],
)
def test_each_planted_violation_is_found(sound: Found, edit: Edit, said: str) -> None:
    wrong = changed(sound, edit)
    assert any(said in line for line in wrong), wrong


def test_a_budget_is_not_passed(sound: Found) -> None:
    """The law of tests/unit/test_spend_bound.py, read from records."""
    spent = sum(e.record["gpu_hours"] for e in sound.events if e.kind == "settled")
    assert spent > 0
    assert changed(sound, rewritten("campaign", ID, budget={"gpu_hours": spent})) == []
    assert any("device-hours" in line for line in changed(sound, rewritten("campaign", ID, budget={"gpu_hours": spent * 0.999})))


def test_a_further_attempt_is_no_second_payment_where_the_first_was_lost_or_interrupted(sound: Found) -> None:
    for why in ("lost", "interrupted"):
        wrong = changed(sound, lambda events, why=why: paid_again("l01")(rewritten("settled", "l01#1", **{why: True})(events)))
        assert not [line for line in wrong if "paid" in line], wrong


def test_a_job_that_ran_on_after_its_charge_is_found(sound: Found) -> None:
    run = sound.runs[0]
    assert run.allocated_at is not None
    ran_on = Left(run.launch_id, run.attempt, run.allocated_at, None, run.allocated_at + 1e4)
    wrong = judge(Found(ID, sound.events, [ran_on, *sound.runs[1:]], sound.files, real=True))
    assert [line for line in wrong if "its folder says 10000.00 s" in line], wrong


def test_a_campaign_that_stopped_with_a_reason_needs_no_shipment(sound: Found) -> None:
    assert changed(sound, without("shipment", "final"), said="UserError: the budget is too small") == []


def test_an_edited_ledger_and_a_campaign_without_an_end_are_found(tmp_path: Path) -> None:
    from attuner.ledgers.duckdb_file import DuckdbLedger

    (tmp_path / "home").mkdir()
    born = campaign().model_copy(update={"id": "soak-a000-0001"})
    with DuckdbLedger(tmp_path / "home" / "attuner.duckdb") as ledger:
        ledger.claim(born.id)
        ledger.append(born.id, "campaign", born.id, born)
    record = Record(tmp_path / "soak.jsonl")
    record.say("replay", 0, "begin", name="soak-a000", shape="", planned=0)
    record.say("replay", 0, "end", how="completed", message="", mends=0, missed=0, campaign=born.id)
    record.say("soak", -1, "left", pid=1, command="python")
    found, wrong = judged(tmp_path)
    assert found[0].wrong == ["no end: neither a shipment nor a reason"]
    assert wrong == ["left running after the end: 1 python"]
    (tmp_path / "home" / "attuner.duckdb.anchor").write_text('{"seq": 3, "campaigns": {"soak-a000-0001": [3, "0"]}}')
    _, wrong = judged(tmp_path)
    assert [line for line in wrong if line.startswith("ledger: ")], wrong


def test_the_same_seed_gives_the_same_soak_and_faults_reach_every_window() -> None:
    import random

    import yaml

    names = ("replay-formula", "replay-quickstart", "quickstart")
    base = {n: yaml.safe_load((ROOT / "configs" / "campaigns" / f"{n}.yaml").read_text()) for n in names}
    for make in (replay_case, real_case):
        cases = [make(i, seed=3, configs=ROOT / "configs", base=base) for i in range(20)]
        assert cases == [make(i, seed=3, configs=ROOT / "configs", base=base) for i in range(20)]
        assert cases != [make(i, seed=4, configs=ROOT / "configs", base=base) for i in range(20)]
    for kinds in (REPLAY_FAULTS, REAL_FAULTS):
        faults = draw(random.Random(0), kinds, number=1000, events=100)
        assert {f.kind for f in faults} == set(kinds)
        assert {f.after for f in faults} == set(range(100))
        assert any(f.delay_s == 0 for f in faults)
