"""Laws of repeated nights: what shipped is not dropped by one that could not judge it, and no two recipes chase each other."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import lab
import pytest
from lab import BASE, ID, MICRO, Lab, campaign, play
from test_watch import ENTRY, FAST, REST, finished, look, once_more

from attuner.core.campaign import Campaign
from attuner.core.environment import Environment, Retunes
from attuner.core.events import History
from attuner.core.news import Alert
from attuner.core.people import Directive
from attuner.core.recipe import Change
from attuner.core.run import Trial
from attuner.launchers.replay import Row
from attuner.ledgers.memory import MemoryLedger
from attuner.policy import drift
from attuner.steps.watch import WATCH, Plan, alarm_wait, plan
from attuner.watchfile import Watched

LOST = Row(match={"micro_batch_size": 4}, outcome="never_allocated")
REFUSED = Row(match={"micro_batch_size": 4}, step_s=0.5, losses=[5.6])
SLOW = Row(match={"micro_batch_size": 4}, step_s=1.2)
NEW = {"torch": "2.14.0"}


def again(made: Lab, monkeypatch: pytest.MonkeyPatch, found: Plan, name: str, *rows: Row, **versions: str) -> History:
    """Play the re-tuning that a night planned, on a cluster that runs like this; its budget is the entry's."""
    assert found.act == "retune", found.why
    made.table[:] = [*rows, REST]
    born = campaign(budget={"gpu_hours": 1.0}).model_copy(update={"retunes": found.retunes})
    return once_more(made, monkeypatch, born, name, **versions)


def of(found: Plan) -> tuple[str, Any]:
    assert found.retunes is not None
    return found.retunes.of, found.retunes.recipe.arguments["micro_batch_size"]


def test_a_shipped_recipe_that_got_no_devices_is_tried_again_and_then_waits_for_people(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = finished(tmp_path)
    history = again(made, monkeypatch, look(made, tmp_path, **NEW), "lab-0002", LOST, **NEW)
    assert history.shipment() is not None
    assert [a.kind for a in drift.alerts(history)] == ["unverified"]
    second = look(made, tmp_path, **NEW)
    assert (second.act, of(second)) == ("retune", (ID, 4))
    assert "could not be re-verified by lab-0002" in second.why
    assert [str(c) for c in second.changes] == ["torch 2.13.0 → 2.14.0"]
    again(made, monkeypatch, second, "lab-0003", LOST, **NEW)
    third = look(made, tmp_path, **NEW)
    assert (third.act, third.alarm) == ("wait", "unverified")
    assert "by lab-0002, lab-0003, and nothing changed since" in third.why
    told: list[str] = []
    for _ in range(2):
        alarm_wait(MemoryLedger(made.store), third, {"chat": lambda news: told.append(news.text)})
    assert len(told) == 1
    assert len(History(MemoryLedger(made.store).history(WATCH)).all("alert", Alert)) == 1


def test_more_hours_or_another_change_try_what_was_never_judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = finished(tmp_path)
    for name in ("lab-0002", "lab-0003"):
        again(made, monkeypatch, look(made, tmp_path, **NEW), name, LOST, **NEW)
    rich = look(made, tmp_path, entry=ENTRY.model_copy(update={"gpu_hours": 99.0}), **NEW)
    assert (rich.act, of(rich)) == ("retune", (ID, 4))
    later = look(made, tmp_path, torch="2.15.0")
    assert (later.act, of(later)) == ("retune", (ID, 4))
    assert [str(c) for c in later.changes] == ["torch 2.13.0 → 2.15.0"]
    back = look(made, tmp_path)
    assert (back.act, of(back)) == ("retune", (ID, 4))
    assert [str(c) for c in back.changes] == ["torch 2.14.0 → 2.13.0"]


def test_what_was_verified_at_last_is_what_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = finished(tmp_path)
    again(made, monkeypatch, look(made, tmp_path, **NEW), "lab-0002", LOST, **NEW)
    again(made, monkeypatch, look(made, tmp_path, **NEW), "lab-0003", FAST, **NEW)
    assert look(made, tmp_path, **NEW).why == "nothing changed since lab-0003"
    assert of(look(made, tmp_path, torch="2.15.0")) == ("lab-0003", 4)


def test_a_refused_recipe_waits_for_the_version_that_cures_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = finished(tmp_path)
    history = again(made, monkeypatch, look(made, tmp_path, **NEW), "lab-0002", REFUSED, **NEW)
    assert [a.kind for a in drift.alerts(history)] == ["gate"]
    assert look(made, tmp_path, **NEW).act == "nothing"
    later = look(made, tmp_path, torch="2.15.0")
    assert (later.act, of(later)) == ("retune", (ID, 4))
    cured = again(made, monkeypatch, later, "lab-0003", FAST, torch="2.15.0")
    shipment = cured.shipment()
    assert shipment is not None
    assert not shipment.kept_baseline


def test_what_was_measured_well_and_brought_nothing_is_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = finished(tmp_path)
    history = again(made, monkeypatch, look(made, tmp_path, **NEW), "lab-0002", SLOW, **NEW)
    assert not drift.still_open(history)
    assert look(made, tmp_path, **NEW).act == "nothing"
    assert of(look(made, tmp_path, torch="2.15.0")) == ("lab-0002", 1)


def test_a_search_that_a_person_ended_is_not_tried_again_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = finished(tmp_path)
    again(made, monkeypatch, look(made, tmp_path, **NEW), "lab-0002", LOST, **NEW)
    MemoryLedger(made.store).append("lab-0002", "directive", "d1", Directive(act="finish", by="ada"))
    assert look(made, tmp_path, **NEW).act == "nothing"
    assert of(look(made, tmp_path, torch="2.15.0")) == (ID, 4)


# ------------------------------------------------------------------------------------------ one cluster, two recipes


def named(name: str, **changes: Any) -> Campaign:
    return campaign(MICRO, **changes).model_copy(update={"name": name})


def remote(made: Lab, monkeypatch: pytest.MonkeyPatch, born: Campaign, name: str, **reported: str) -> None:
    """Play a campaign on a cluster elsewhere, whose launches report this of themselves."""
    monkeypatch.setattr(lab, "ID", name)
    kit = replace(made.kit(), folder=made.folder / name)
    kit.ledger.claim(name)
    play(kit, born.model_copy(update={"id": name}))
    for trial in History(kit.ledger.history(name)).all("trial", Trial):
        kit.ledger.append(name, "trial", trial.launch_id, trial.model_copy(update={"versions": reported}))
    kit.ledger.close()


def night(made: Lab, tmp_path: Path, given: Campaign) -> Plan:
    kit = replace(made.kit(), ledger=MemoryLedger(made.store))
    entry = Watched(name=given.name, campaign="x.yaml", gpu_hours=1.0)
    return plan(kit, entry, given.model_copy(update={"id": f"{given.name}-ffff"}), folder=tmp_path / "data")


ONE, TWO = {"driver": "550.1", "torch": "2.13"}, {"driver": "560.2", "torch": "2.13"}


def test_recipes_with_another_environment_are_not_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, mine = Lab(tmp_path, [FAST, REST]), named("lab")
    other = named("other", baseline={"stack": "mcore", "arguments": BASE, "env": {"NCCL_NET_PLUGIN": "aws"}})
    remote(made, monkeypatch, mine, "lab-0001", **ONE)
    remote(made, monkeypatch, other, "other-0001", **TWO)
    for given in (mine, other):
        assert night(made, tmp_path, given).act == "nothing"


def test_recipes_on_nodes_that_differ_re_tune_once_and_then_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = Lab(tmp_path, [FAST, REST])
    where = {"lab": ONE, "other": TWO}
    for name, reported in where.items():
        remote(made, monkeypatch, named(name), f"{name}-0001", **reported)
    acts = []
    for number in (2, 3, 4):
        for name, reported in where.items():
            found = night(made, tmp_path, named(name))
            acts.append((name, found.act))
            if found.act == "retune":
                born = named(name).model_copy(update={"retunes": found.retunes})
                remote(made, monkeypatch, born, f"{name}-{number:04d}", **reported)
    assert [x for x in acts if x[1] == "retune"] == [("lab", "retune"), ("other", "retune")]
    found = night(made, tmp_path, named("lab"))
    assert (found.act, found.alarm) == ("wait", "nodes_differ")
    assert "lab-0002 was re-tuned for driver 550.1 → 560.2, and its own launches did not see it" in found.why
    assert night(made, tmp_path, named("other")).act in ("wait", "nothing")


def test_a_real_upgrade_is_seen_though_nodes_differ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = Lab(tmp_path, [FAST, REST])
    remote(made, monkeypatch, named("lab"), "lab-0001", **ONE)
    remote(made, monkeypatch, named("other"), "other-0001", **TWO)
    found = night(made, tmp_path, named("lab"))
    remote(made, monkeypatch, named("lab").model_copy(update={"retunes": found.retunes}), "lab-0002", **ONE)
    remote(made, monkeypatch, named("other"), "other-0002", driver="560.2", torch="2.14")
    found = night(made, tmp_path, named("lab"))
    assert found.act == "retune"
    assert "torch 2.13 → 2.14" in found.why


def test_what_a_candidate_loads_is_not_what_the_baseline_runs_on(tmp_path: Path) -> None:
    made = Lab(tmp_path, [FAST, REST])
    kit = made.kit()
    play(kit, campaign(MICRO))
    baseline = campaign().baseline.digest()
    for launch in made.history().launches():
        trial = made.history().trial(launch.id)
        assert trial is not None
        plugin = {"nccl_plugin": "none" if launch.recipe == baseline else "aws"}
        kit.ledger.append(ID, "trial", launch.id, trial.model_copy(update={"versions": plugin}))
    assert drift.reported(made.history()) == {"nccl_plugin": "none"}


def test_only_what_was_reported_and_never_seen_is_in_vain(tmp_path: Path) -> None:
    made = Lab(tmp_path, [FAST, REST])
    kit = made.kit()
    aims = [Change(key="driver", before="1", after="2"), Change(key="data", before="a", after="b")]
    given = {"of": "lab-0000", "recipe": campaign().baseline, "tokens_per_s_per_gpu": 1.0, "baseline_tokens_per_s_per_gpu": 1.0}
    retunes = Retunes.model_validate({**given, "band": 0.03, "before": Environment(), "changes": aims})
    play(kit, campaign().model_copy(update={"retunes": retunes}))
    for trial in made.history().all("trial", Trial):
        kit.ledger.append(ID, "trial", trial.launch_id, trial.model_copy(update={"versions": {"driver": "1"}}))
    now = Environment(reported={"driver": "2"}, declared={"data": "b"})
    assert drift.in_vain([made.history()], now, aims) == aims[:1]
    assert drift.in_vain([made.history()], now.model_copy(update={"looked": {"driver": "2"}}), aims) == []
    assert drift.in_vain([made.history()], now, [Change(key="driver", before="3", after="2")]) == []
    assert drift.in_vain([], now, aims) == []
