"""Laws of a night: when nothing is done, when it waits, goes on, begins or re-tunes; and of the list of watched recipes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import lab
import pytest
import yaml
from lab import ID, MICRO, ROOT, Lab, LabStack, begin, campaign, play

from attuner.core.campaign import Campaign
from attuner.core.errors import Refused, UserError
from attuner.core.events import History
from attuner.core.news import Alert, Told
from attuner.core.people import Directive
from attuner.core.recipe import EffectiveConfig, Recipe
from attuner.launchers.replay import Replay, Row
from attuner.ledgers.memory import MemoryLedger
from attuner.ports import Kit
from attuner.steps.birth import birth
from attuner.steps.watch import WATCH, Plan, alarm, alarm_unborn, plan
from attuner.watchfile import Watched, load_watch, pick

FAST = Row(match={"micro_batch_size": 4}, step_s=0.5)
REST = Row(step_s=1.0, jitter=0.002)
HERE = {"torch": "2.13.0", "python": "3.11.7", "kernel": "6.1"}
ENTRY = Watched(name="lab", campaign="lab.yaml", gpu_hours=1.0)


class Upgraded(LabStack):
    """The framework in another version; what it can't resolve any more is given."""

    def __init__(self, replay: Replay, version: str, broken: str = "") -> None:
        super().__init__(replay)
        self.version, self.broken = version, broken

    def resolve(self, recipe: Recipe, campaign: Campaign) -> EffectiveConfig:
        if self.broken:
            raise Refused(self.broken)
        return super().resolve(recipe, campaign).model_copy(update={"versions": {"megatron_core": self.version}})


def kit_of(made: Lab, **versions: str) -> Kit:
    found = {**HERE, **versions}
    return replace(made.kit(), versions=lambda: found)


def finished(tmp_path: Path, *rows: Row) -> Lab:
    """A lab whose campaign shipped on HERE; its lease is given back."""
    made = Lab(tmp_path, [*rows, FAST, REST])
    kit = kit_of(made)
    play(kit, campaign(MICRO))
    kit.ledger.close()
    return made


def once_more(made: Lab, monkeypatch: pytest.MonkeyPatch, born: Campaign, name: str = "lab-0002", **versions: str) -> History:
    """Play another campaign in the same ledger, after what is there."""
    monkeypatch.setattr(lab, "ID", name)
    kit = replace(kit_of(made, **versions), folder=made.folder / name)
    play(kit, born.model_copy(update={"id": name}))
    kit.ledger.close()
    return History(MemoryLedger(made.store).history(name))


def look(made: Lab, tmp_path: Path, *, entry: Watched = ENTRY, given: Campaign | None = None, **versions: str) -> Plan:
    """Plan the night, as a process that holds no lease."""
    kit = replace(kit_of(made, **versions), ledger=MemoryLedger(made.store))
    before = len(made.store.rows)
    found = plan(kit, entry, (given or campaign(MICRO)).model_copy(update={"id": "lab-ffff"}), folder=tmp_path / "data")
    assert len(made.store.rows) == before  # whatever it finds, looking records nothing
    return found


def test_nothing_changed_says_so_and_records_nothing(tmp_path: Path) -> None:
    made = finished(tmp_path)
    found = look(made, tmp_path, kernel="6.2")
    assert (found.act, found.why) == ("nothing", f"nothing changed since {ID}")
    assert sorted(p.name for p in made.folder.iterdir()) == ["lab-0001", "rules"]


def test_what_was_never_run_begins(tmp_path: Path) -> None:
    assert look(Lab(tmp_path, [REST]), tmp_path).act == "first"


def test_an_upgrade_re_tunes_what_was_shipped_with_its_speeds(tmp_path: Path) -> None:
    made = finished(tmp_path)
    found = look(made, tmp_path, torch="2.14.0")
    again, retunes = made.history().remeasurement(), found.retunes
    assert found.act == "retune"
    assert retunes is not None
    assert again is not None
    assert [str(c) for c in found.changes] == ["torch 2.13.0 → 2.14.0"]
    assert (retunes.of, retunes.band) == (ID, again.band)
    assert (retunes.tokens_per_s_per_gpu, retunes.baseline_tokens_per_s_per_gpu) == (again.leader_mean, again.baseline_mean)
    assert retunes.recipe.arguments["micro_batch_size"] == 4
    assert retunes.before.looked["torch"] == "2.13.0"


def test_the_plan_says_which_version_is_installed(tmp_path: Path) -> None:
    made = finished(tmp_path)
    made.stack = Upgraded(made.replay, "0.17.0")
    found = look(made, tmp_path, megatron_core="0.17.0")
    assert found.version == "0.17.0"
    assert "megatron_core none → 0.17.0" in found.why


def test_changed_rules_are_a_change_and_an_ignored_field_is_none(tmp_path: Path) -> None:
    made = finished(tmp_path)
    (made.rules / "mcore" / "more.yaml").write_text("[]")
    assert [c.key for c in look(made, tmp_path).changes] == ["rules"]
    assert look(made, tmp_path, entry=ENTRY.model_copy(update={"ignore": ["rules"]})).act == "nothing"


def test_a_kept_baseline_is_what_was_shipped(tmp_path: Path) -> None:
    made = Lab(tmp_path, [REST])
    kit = kit_of(made)
    play(kit, campaign())
    kit.ledger.close()
    found = look(made, tmp_path, torch="2.14.0").retunes
    assert found is not None
    assert found.recipe == campaign().baseline
    assert found.tokens_per_s_per_gpu == found.baseline_tokens_per_s_per_gpu


def test_an_edited_baseline_or_workload_is_another_campaign(tmp_path: Path) -> None:
    made = finished(tmp_path)
    other = campaign(MICRO).baseline.changed({"recompute_granularity": None})
    assert look(made, tmp_path, given=campaign(MICRO, baseline=other.data())).act == "first"
    steps = campaign(MICRO).workload.model_copy(update={"steps": 5})
    assert look(made, tmp_path, given=campaign(MICRO, workload=steps.data())).act == "first"


def test_other_hardware_re_tunes(tmp_path: Path) -> None:
    made = finished(tmp_path)
    work = campaign(MICRO).workload.model_copy(update={"hardware": "b300"})
    found = look(made, tmp_path, given=campaign(MICRO, workload=work.data()))
    assert [str(c) for c in found.changes] == ["hardware cpu → b300"]


def cut_off(tmp_path: Path) -> Lab:
    made = Lab(tmp_path, [FAST, REST])
    kit = kit_of(made)
    begin(kit, campaign(MICRO))
    kit.ledger.close()
    return made


def test_what_was_cut_off_goes_on(tmp_path: Path) -> None:
    found = look(cut_off(tmp_path), tmp_path)
    assert (found.act, found.campaign_id) == ("resume", ID)


def test_what_was_cut_off_in_another_environment_is_left_alone(tmp_path: Path) -> None:
    assert look(cut_off(tmp_path), tmp_path, torch="2.14.0").act == "first"


def test_what_was_cut_off_under_other_judging_code_is_left_alone(tmp_path: Path) -> None:
    made = cut_off(tmp_path)
    (made.rules / "mcore" / "more.yaml").write_text("[]")
    rules = ENTRY.model_copy(update={"ignore": ["rules"]})
    assert look(made, tmp_path, entry=rules).act == "first"


def test_what_ended_in_an_alert_waits_until_something_changes(tmp_path: Path) -> None:
    made = cut_off(tmp_path)
    kit = kit_of(made)
    alarm(kit, ID, "the machine is on fire")
    kit.ledger.close()
    found = look(made, tmp_path)
    assert found.act == "wait"
    assert "on fire" in found.why
    assert look(made, tmp_path, torch="2.14.0").act == "first"


def test_what_a_person_cancelled_waits_until_something_changes(tmp_path: Path) -> None:
    made = cut_off(tmp_path)
    made.kit().ledger.append(ID, "directive", "d1", Directive(act="cancel", by="ada"))
    found = look(made, tmp_path)
    assert found.act == "wait"
    assert "cancelled by ada" in found.why


def test_a_baseline_that_cannot_be_resolved_is_told_once_and_then_waits(tmp_path: Path) -> None:
    made = finished(tmp_path)
    made.stack = Upgraded(made.replay, "0.17.0", broken="tp must be 4 now")
    found = look(made, tmp_path, megatron_core="0.17.0")
    assert (found.act, found.campaign_id) == ("broken", ID)
    told: list[str] = []
    for _ in range(2):
        alarm_unborn(MemoryLedger(made.store), found, found.why, {"chat": lambda news: told.append(news.text)})
    assert len(told) == 1
    assert "tp must be 4 now" in told[0]
    again = look(made, tmp_path, megatron_core="0.17.0")
    assert again.act == "wait"
    assert look(made, tmp_path, megatron_core="0.17.1").act == "broken"
    history = History(MemoryLedger(made.store).history(WATCH))
    assert [len(history.all("alert", Alert)), len(history.all("told", Told))] == [1, 1]
    assert WATCH not in MemoryLedger(made.store).campaigns()


def test_a_birth_that_failed_is_tried_again_once_entry_or_file_were_mended(tmp_path: Path) -> None:
    made = finished(tmp_path)
    found = look(made, tmp_path, torch="2.14.0")
    alarm_unborn(MemoryLedger(made.store), found, "budget.gpu_hours: is less than calibration needs; raise it", {})
    assert look(made, tmp_path, torch="2.14.0").act == "wait"
    assert look(made, tmp_path, torch="2.14.0", entry=ENTRY.model_copy(update={"gpu_hours": 50.0})).act == "retune"
    assert look(made, tmp_path, torch="2.14.0", given=campaign(MICRO, launch={"expected_s": 5.0})).act == "retune"


def test_a_baseline_that_resolves_again_is_waited_for_no_longer(tmp_path: Path) -> None:
    made = finished(tmp_path)
    made.stack = Upgraded(made.replay, "0.16.1", broken="resolver: no answer within 120 s")
    found = look(made, tmp_path, torch="2.14.0")
    alarm_unborn(MemoryLedger(made.store), found, found.why, {})
    assert look(made, tmp_path, torch="2.14.0").act == "wait"
    made.stack = LabStack(made.replay)
    assert look(made, tmp_path, torch="2.14.0").act == "retune"


def test_what_says_nothing_of_the_recipe_is_told_once_and_tried_each_night(tmp_path: Path) -> None:
    made, told = finished(tmp_path), []
    for _ in range(2):
        found = look(made, tmp_path, torch="2.14.0")
        assert found.act == "retune"
        channels = {"chat": lambda news: told.append(news.text)}
        alarm_unborn(MemoryLedger(made.store), found, "No space left on device", channels, lasting=False)
    assert len(told) == 1


def test_what_a_person_ran_to_its_end_ends_the_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = finished(tmp_path)
    found = look(made, tmp_path, torch="2.14.0")
    alarm_unborn(MemoryLedger(made.store), found, "it can't be", {})
    assert look(made, tmp_path, torch="2.14.0").act == "wait"
    once_more(made, monkeypatch, campaign(MICRO), torch="2.14.0")
    after = look(made, tmp_path, torch="2.14.0")
    assert (after.act, after.why) == ("nothing", "nothing changed since lab-0002")
    alarm_unborn(MemoryLedger(made.store), found, "it can't be", {})
    assert look(made, tmp_path, torch="2.14.0").act == "nothing"  # the old alert, not a new one


def test_a_replayed_table_cannot_be_watched(tmp_path: Path) -> None:
    given = campaign().model_copy(update={"stack": campaign().stack.model_copy(update={"name": "replay"})})
    with pytest.raises(UserError, match="nothing that could change"):
        look(Lab(tmp_path, [REST]), tmp_path, given=given)


def test_a_planned_re_tuning_is_born_and_played_to_its_end(tmp_path: Path) -> None:
    found = look(finished(tmp_path), tmp_path, torch="2.14.0")
    made = Lab(tmp_path / "new", [FAST, REST])
    play(made.kit(), campaign().model_copy(update={"retunes": found.retunes}))
    shipment = made.history().shipment()
    assert shipment is not None
    assert found.retunes is not None
    assert shipment.recipe == found.retunes.recipe.digest()


def test_a_birth_that_was_cut_off_is_completed_with_its_environment(tmp_path: Path) -> None:
    made = Lab(tmp_path, [FAST, REST])
    kit = made.kit()
    birth(kit, campaign())
    kinds = [e.kind for e in made.history().events if e.kind != "lease"]
    assert kinds == ["campaign", "environment", "recipe", "effective"]


# --------------------------------------------------------------------------------------------------------- watch.yaml


def written(tmp_path: Path, *recipes: dict[str, Any], **more: Any) -> Path:
    (tmp_path / "campaigns").mkdir(exist_ok=True)
    (tmp_path / "campaigns" / "one.yaml").write_text("{}")
    file = tmp_path / "watch.yaml"
    file.write_text(yaml.safe_dump({"recipes": list(recipes), **more}))
    return file


ONE = {"name": "one", "campaign": "campaigns/one.yaml", "gpu_hours": 2.0}


def test_the_projects_own_list_can_be_read() -> None:
    assert [x.name for x in load_watch(ROOT / "configs" / "watch.yaml")] == ["quickstart"]


def test_a_list_is_read_in_order_and_what_is_off_is_run_only_by_name(tmp_path: Path) -> None:
    file = written(tmp_path, ONE, {**ONE, "name": "two", "enabled": False, "proposer": {"name": "catalog"}})
    found = load_watch(file)
    assert [x.name for x in pick(found, "", file)] == ["one"]
    assert [x.name for x in pick(found, "two", file)] == ["two"]
    assert found[1].changes(budget=True) == {"proposer.name": "catalog", "budget.gpu_hours": 2.0}
    assert found[1].changes(budget=False) == {"proposer.name": "catalog"}


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        ({**ONE, "gpu_hour": 1}, "one: gpu_hour: unknown key; did you mean gpu_hours?"),
        ({"name": "one", "campaign": "campaigns/one.yaml"}, "one: gpu_hours: is missing; add it"),
        ({**ONE, "gpu_hours": 0}, "one: gpu_hours: Input should be greater than 0"),
        ({**ONE, "campaign": "campaigns/two.yaml"}, "one: campaign: campaigns/two.yaml: no such file"),
        ({**ONE, "proposer": {"kind": "catalog"}}, "proposer.kind: unknown key"),
        ({**ONE, "alerts": {"slowdown": 2}}, "one: alerts.slowdown: Input should be less than 1"),
        ({**ONE, "campaign": "a" * 300}, "one: campaign: 'aaaa"),
        ({**ONE, "campaign": "a\0b"}, r"one: campaign: 'a\x00b'…: no such file"),
        ({**ONE, "gpu_hours": int("9" * 400)}, "one: gpu_hours: "),
        ({**ONE, "ignore": ["pyhton"]}, "one: ignore: pyhton: no field of an environment; did you mean python?"),
        ({**ONE, "ignore": ["weather"]}, "one: ignore: weather: no field of an environment; known: attuner, rules, "),
    ],
)
def test_a_fault_in_the_list_is_one_line_with_file_and_key(tmp_path: Path, entry: dict[str, Any], says: str) -> None:
    file = written(tmp_path, entry)
    with pytest.raises(UserError) as caught:
        load_watch(file)
    assert says in str(caught.value)
    assert str(caught.value).startswith(str(file))
    assert "\n" not in str(caught.value)


def test_a_name_stands_once_and_an_unknown_one_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="stands twice"):
        load_watch(written(tmp_path, ONE, ONE))
    file = written(tmp_path, ONE)
    with pytest.raises(UserError, match="nothing is called three; known: one"):
        pick(load_watch(file), "three", file)
