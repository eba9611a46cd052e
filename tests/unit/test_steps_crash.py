"""A crash between any two records, and a rerun: the same end, and nothing is paid twice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from lab import ID, LAYOUT, LR, MICRO, SDPA, UNCOVERED, Lab, PowerCut, campaign, finish, launch, play, search

from attuner.core.errors import Transient
from attuner.core.events import History
from attuner.core.run import Attempt
from attuner.launchers.replay import Replay, Row
from attuner.policy import budget
from attuner.ports import JobSpec, JobState, Stamp
from attuner.steps.birth import birth
from attuner.steps.calibrate import plan_calibration, plan_prepare

TABLE = [
    Row(match={"tensor_model_parallel_size": 1}, outcome="oom"),
    Row(match={"micro_batch_size": 4}, step_s=0.5),
    Row(step_s=1.0),
]
SCRIPT = [LR, MICRO, LAYOUT, SDPA]
IN_BIRTH = (1, 2, 3)
"""Crash points between the records of birth: lease, campaign, recipe, effective."""


def after_a_crash(folder: Path, lives: int) -> tuple[Lab, str]:
    """Play until the process dies before record `lives` + 1, then again to the end; return the lab and where it died."""
    made = Lab(folder, list(TABLE))
    with pytest.raises(PowerCut) as cut:
        play(made.kit(lives=lives), campaign(*SCRIPT))
    play(made.kit(), campaign(*SCRIPT))
    return made, str(cut.value)


def end_of(history: History) -> dict[str, Any]:
    """What must not depend on a crash."""
    shipment = history.shipment()
    assert shipment is not None
    return {
        "shipped": (shipment.recipe, shipment.launch_id, shipment.kept_baseline, shipment.gain, shipment.open_reviews),
        "verdicts": {e.key: e.record["decision"] for e in history.events if e.kind == "verdict"},
        "trials": {x.id: (x.kind, t.status, t.attempt) for x in history.launches() if (t := history.trial(x.id))},
        "spent": round(budget.spent(history), 6),
    }


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    made = Lab(tmp_path_factory.mktemp("whole"), list(TABLE))
    play(made.kit(), campaign(*SCRIPT))
    return made


def records(whole: Lab) -> list[str]:
    """Kinds and keys in order, without the leases (a claim, not a step)."""
    return [f"{e.kind} {e.key}" for e in whole.history().events]


def check_prefixes(whole: Lab, folder: Path, prefixes: list[int]) -> None:
    expected, submitted = end_of(whole.history()), whole.replay.submitted
    for lives in prefixes:
        made, where = after_a_crash(folder / str(lives), lives)
        assert end_of(made.history()) == expected, f"died {where}"
        assert made.replay.submitted == submitted, f"died {where}"


def test_the_campaign_of_this_file_has_every_kind_of_record(whole: Lab) -> None:
    kinds = {e.kind for e in whole.history().events}
    assert kinds >= {"campaign", "recipe", "launch", "attempt", "settled", "trial", "score", "verdict", "calibration"}
    assert kinds >= {"hypothesis", "component", "stop", "remeasurement", "shipment"}


def test_a_crash_at_a_sample_of_records_changes_nothing(whole: Lab, tmp_path: Path) -> None:
    check_prefixes(whole, tmp_path, list(range(len(records(whole))))[4::31])


@pytest.mark.slow
def test_a_crash_before_any_record_changes_nothing(whole: Lab, tmp_path: Path) -> None:
    check_prefixes(whole, tmp_path, list(range(len(records(whole)))))


@pytest.mark.parametrize("lives", IN_BIRTH)
def test_a_crash_within_birth_changes_nothing(whole: Lab, tmp_path: Path, lives: int) -> None:
    check_prefixes(whole, tmp_path, [lives])


@pytest.mark.parametrize("lives", IN_BIRTH[1:])
def test_a_resume_by_id_finishes_a_birth_that_was_cut_off(tmp_path: Path, lives: int) -> None:
    made = Lab(tmp_path, list(TABLE))
    with pytest.raises(PowerCut):
        birth(made.kit(lives=lives), campaign())
    kit = made.kit()  # as flows/campaign.py with a campaign id: birth is not called again
    assert plan_prepare(kit, ID) == ""
    baseline = made.history().effective(campaign().baseline.digest())
    assert baseline is not None
    assert launch(kit, ID, plan_calibration(kit, ID, number=1)[0]).status == "ok"


def test_a_crash_around_a_verdict_and_its_launch_changes_nothing(whole: Lab, tmp_path: Path) -> None:
    names = records(whole)
    assert names[names.index("verdict h02") + 1] == "launch l06"
    check_prefixes(whole, tmp_path, [names.index("verdict h02"), names.index("launch l06"), names.index("launch l06") + 1])


def test_a_crash_never_loses_an_open_review(tmp_path: Path) -> None:
    table = [Row(match={"bucket_size": 1000}, step_s=0.5), Row(step_s=1.0)]
    whole = Lab(tmp_path / "whole", list(table))
    assert play(whole.kit(), campaign(UNCOVERED)).kept_baseline
    start = records(whole).index("verdict h01")
    for lives in (start, start + 1, start + 2):
        made = Lab(tmp_path / str(lives), list(table))
        with pytest.raises(PowerCut):
            play(made.kit(lives=lives), campaign(UNCOVERED))
        assert play(made.kit(), campaign(UNCOVERED)).kept_baseline
        assert end_of(made.history()) == end_of(whole.history())


TIGHT = {"gpu_hours": 11 * budget.RESERVE * 2 * 10 / 3600 + 1e-9}
"""What birth asks for at least: here it pays for two searched launches and a check, and not for the third searched one."""
SPENT = [{"group": "open", "arguments": {"bucket_size": 1000 + n}} for n in range(2)] + [SDPA]


def test_a_crash_around_a_refusal_for_want_of_budget_changes_nothing(tmp_path: Path) -> None:
    whole = Lab(tmp_path / "whole", list(TABLE))
    play(whole.kit(), campaign(*SPENT, budget=TIGHT))
    verdict = whole.history().verdict("h03")
    assert verdict is not None
    assert [f.rule for f in verdict.findings] == ["budget", "LAB-TST-004"]
    names = records(whole)
    assert names.count("verdict h03") == 2  # admitted, then refused: no launch in between
    refused = len(names) - 1 - names[::-1].index("verdict h03")
    for lives in range(names.index("hypothesis h03"), refused + 2):
        made = Lab(tmp_path / str(lives), list(TABLE))
        with pytest.raises(PowerCut) as cut:
            play(made.kit(lives=lives), campaign(*SPENT, budget=TIGHT))
        play(made.kit(), campaign(*SPENT, budget=TIGHT))
        assert end_of(made.history()) == end_of(whole.history()), f"died {cut.value}"
        assert made.replay.submitted == whole.replay.submitted, f"died {cut.value}"


def test_a_refused_hypothesis_never_runs_whatever_crashed(whole: Lab, tmp_path: Path) -> None:
    names = records(whole)
    made, _ = after_a_crash(tmp_path, names.index("verdict h01"))
    assert "h01" not in {x.hypothesis for x in made.history().launches()}


class Flaky(Replay):
    """Loses contact once in every call of `poll` and `submit` named in `drop`."""

    drop: set[str] = set()

    def submit(self, attempt: Attempt, job: JobSpec) -> Attempt:
        where = super().submit(attempt, job)
        if "submit" in self.drop:
            self.drop.discard("submit")
            raise Transient("contact lost after the job was accepted")
        return where

    def poll(self, attempt: Attempt) -> JobState:
        if "poll" in self.drop:
            self.drop.discard("poll")
            raise Transient("contact lost")
        return super().poll(attempt)


@pytest.mark.parametrize("call", ["submit", "poll"])
def test_contact_lost_attaches_to_the_same_attempt_and_pays_once(tmp_path: Path, call: str) -> None:
    made = Lab(tmp_path, list(TABLE))
    flaky = Flaky(list(TABLE), made.clock)
    flaky.drop = {call}
    made.stack.replay = flaky
    kit = made.kit(launcher=flaky)
    birth(kit, campaign())
    first = plan_calibration(kit, ID, number=1)[0]
    with pytest.raises(Transient):
        launch(kit, ID, first)
    assert launch(kit, ID, first).status == "ok"
    assert flaky.submitted == [f"{ID}-{first}-a1"]
    assert [a.number for a in made.history().attempts(first)] == [1]


class Losing(Replay):
    """The allocation of the first `losses` submissions is proved gone, without a release, after a heartbeat."""

    losses = 1

    def poll(self, attempt: Attempt) -> JobState:
        if attempt.number <= self.losses:
            return JobState(phase="gone", detail="the node is dead", gone=True)
        return super().poll(attempt)

    def files(self, attempt: Attempt) -> Any:
        found = super().files(attempt)
        if attempt.number > self.losses or found.stamp.allocated_at is None:
            return found
        start = found.stamp.allocated_at
        return found.model_copy(update={"stamp": Stamp(allocated_at=start, last_heartbeat=start + 36.0)})


def lose(tmp_path: Path, losses: int) -> tuple[Lab, Any]:
    made = Lab(tmp_path, list(TABLE))
    losing = Losing(list(TABLE), made.clock)
    losing.losses = losses
    made.stack.replay = losing
    kit = made.kit(launcher=losing)
    birth(kit, campaign())
    first = plan_calibration(kit, ID, number=1)[0]
    return made, launch(kit, ID, first)


def test_a_lost_allocation_is_charged_to_its_last_heartbeat_and_tried_once_more(tmp_path: Path) -> None:
    made, found = lose(tmp_path, 1)
    lost, kept = made.history().settlements()
    assert (found.status, found.attempt) == ("ok", 2)
    assert (lost.lost, lost.how, lost.gpu_hours) == (True, "last_heartbeat", pytest.approx(2 * 36 / 3600))
    assert found.gpu_hours == pytest.approx(lost.gpu_hours + kept.gpu_hours)
    assert budget.spent(made.history()) == pytest.approx(found.gpu_hours)


def test_a_second_lost_allocation_is_a_trial_with_cause_infrastructure(tmp_path: Path) -> None:
    made, found = lose(tmp_path, 2)
    assert (found.status, found.attempt) == ("infrastructure", 2)
    assert found.cause == "the node is dead"
    assert len(made.history().settlements()) == 2


class Interrupted(Replay):
    """A person presses Ctrl-C while the first attempt runs."""

    pressed = False

    def poll(self, attempt: Attempt) -> JobState:
        if not self.pressed:
            self.pressed = True
            raise KeyboardInterrupt
        return super().poll(attempt)


def test_an_interrupted_attempt_is_settled_and_a_resume_opens_the_next(tmp_path: Path) -> None:
    made = Lab(tmp_path, list(TABLE))
    launcher = Interrupted(list(TABLE), made.clock)
    made.stack.replay = launcher
    kit = made.kit(launcher=launcher)
    birth(kit, campaign())
    first = plan_calibration(kit, ID, number=1)[0]
    with pytest.raises(KeyboardInterrupt):
        launch(kit, ID, first)
    assert made.history().settlements()[0].interrupted
    assert made.history().trial(first) is None
    assert launch(kit, ID, first).attempt == 2
    assert launcher.submitted == [f"{ID}-{first}-a1", f"{ID}-{first}-a2"]


def test_a_second_process_resumes_where_the_first_died_in_the_search(tmp_path: Path, whole: Lab) -> None:
    names = records(whole)
    made = Lab(tmp_path, list(TABLE))
    with pytest.raises(PowerCut):
        play(made.kit(lives=names.index("hypothesis h03")), campaign(*SCRIPT))
    kit = made.kit()
    search(kit)
    assert not finish(kit).kept_baseline


class DishonestOnce(Lab):
    """The candidate's first attempt reports other arguments than were judged, so its measurement is invalid."""

    def __post_init__(self) -> None:
        super().__post_init__()
        honest, told = self.stack.resolve, iter([True])

        class Liar(type(self.stack)):  # type: ignore[misc]
            def command(self, recipe: Any, campaign: Any, **more: Any) -> JobSpec:
                job = super().command(recipe, campaign, **more)
                if recipe.arguments["micro_batch_size"] == 4 and next(told, False):
                    self.replay.final_arguments(recipe.arguments, {**honest(recipe, campaign).arguments, "lr": 1})
                return job

        self.stack = Liar(self.replay)


def fresh_attempts(folder: Path, *, at_trial: bool) -> None:
    """Die at every record from the invalid score to that of the fresh attempt: at the fresh trial alone, or at the others."""
    first = DishonestOnce(folder / "whole", list(TABLE))
    play(first.kit(), campaign(MICRO))
    names = [f"{e.kind} {e.key}" for e in first.history().events]
    start = names.index("score l06")
    last = len(names) - 1 - names[::-1].index("score l06")
    assert start < last
    for lives in range(start, last + 1):
        if (names[lives] == "trial l06") is not at_trial:
            continue
        made = DishonestOnce(folder / str(lives), list(TABLE))
        with pytest.raises(PowerCut) as cut:
            play(made.kit(lives=lives), campaign(MICRO))
        play(made.kit(), campaign(MICRO))
        assert made.replay.submitted == first.replay.submitted, f"died {cut.value}"
        assert end_of(made.history()) == end_of(first.history()), f"died {cut.value}"


def test_a_crash_around_the_fresh_attempt_of_an_invalid_measurement_pays_it_once(tmp_path: Path) -> None:
    fresh_attempts(tmp_path, at_trial=False)


def test_a_crash_between_the_charge_and_the_trial_of_a_fresh_attempt_loses_nothing(tmp_path: Path) -> None:
    fresh_attempts(tmp_path, at_trial=True)
