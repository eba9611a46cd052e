"""Early stop: a trial that is surely slower than the leader ends, an equally fast one does not, an end is charged."""

from __future__ import annotations

import math
import random
import statistics
from pathlib import Path
from typing import Any

import pytest
from book import Book
from book import steps as made_steps
from lab import BASE, ID, MICRO, Lab, PowerCut, begin, campaign, search

from attuner.cli.read import detail, one
from attuner.core.campaign import Campaign
from attuner.core.judgement import Calibration, Score
from attuner.core.run import Attempt, StepRecord
from attuner.core.search import Abort
from attuner.launchers.replay import Replay, Row, VirtualClock
from attuner.policy import early
from attuner.policy.early import Yardstick, aborted, surely_slower, yardstick
from attuner.policy.stats import student_quantile, student_tail
from attuner.report.rows import launch_rows
from attuner.steps.launch import launch

YARD: dict[str, Any] = {
    **{"leader": "l01", "step_s": 1.0, "leader_runs": 5, "run_sigma": 0.005, "runs": 5, "step_sigma": 0.01, "step_dof": 75},
    **{"num_scored": 20, "margin": 0.03, "confidence": 0.999},
}


def yard(**changes: Any) -> Yardstick:
    return Yardstick(**{**YARD, **changes})


def timed(times: list[float], *, warmup: int = 2, **more: Any) -> list[StepRecord]:
    """Warm-up steps that are ten times slower, then scored ones of these times."""
    head = [9.0] * warmup
    return [
        s.model_copy(update={"step_s": t, **more})
        for s, t in zip(made_steps(warmup + len(times), warmup=warmup), [*head, *times], strict=True)
    ]


# ---------------------------------------------------------------------------- Student's t


@pytest.mark.parametrize(
    ("tail", "dof", "value"),  # printed tables of Student's t
    [(0.025, 1, 12.706), (0.05, 2, 2.920), (0.025, 4, 2.776), (0.0005, 4, 8.610), (0.005, 9, 3.250), (0.0005, 30, 3.646)],
)
def test_quantiles_are_those_of_the_printed_tables(tail: float, dof: int, value: float) -> None:
    assert student_quantile(tail, dof) == pytest.approx(value, abs=6e-4)
    assert student_tail(student_quantile(tail, dof), dof) == pytest.approx(tail, rel=1e-9)


def test_far_tails_agree_with_the_normal_distribution_where_there_are_many_degrees_of_freedom() -> None:
    normal = statistics.NormalDist().inv_cdf(1 - 3e-5)
    assert student_quantile(3e-5, 100_000) == pytest.approx(normal, rel=1e-3)


@pytest.mark.parametrize(("tail", "dof"), [(0.0, 4), (0.6, 4), (0.1, 0)])
def test_a_tail_that_is_none_is_refused(tail: float, dof: int) -> None:
    with pytest.raises(ValueError, match="no quantile"):
        student_quantile(tail, dof)


# ---------------------------------------------------------------------------- how often it is wrong, how soon it is right


def played(
    rng: random.Random, *, slower: float, run_sigma: float, step_sigma: float, num: int = 20, tailed: bool = False
) -> tuple[Yardstick, list[float]]:
    """Calibrate on five noisy runs of the leader, then run one trial that is truly slower by a fraction."""

    def run(speed: float) -> list[float]:
        level = speed * math.exp(rng.gauss(0.0, run_sigma))
        heavy = [1.5 if tailed and rng.random() < 0.02 else 1.0 for _ in range(num)]  # one step in fifty takes half as long again
        return [level * h * math.exp(rng.gauss(0.0, step_sigma)) for h in heavy]

    runs = [run(1.0) for _ in range(5)]
    speeds = [num / sum(r) for r in runs]
    mean = statistics.fmean(speeds)
    squares = sum((t / statistics.fmean(r) - 1.0) ** 2 for r in runs for t in r)
    made = yard(
        **{"step_s": 1 / mean, "run_sigma": statistics.stdev(speeds) / mean, "num_scored": num},
        step_sigma=math.sqrt(squares / (5 * (num - 1))),
        step_dof=5 * (num - 1),
    )
    return made, run(1.0 + slower)


def ended_after(made: Yardstick, times: list[float]) -> int:
    """Return the scored steps after which the trial is ended, 0 if it never is."""
    return next((n for n in range(1, len(times) + 1) if surely_slower(timed(times[:n]), made)), 0)


@pytest.mark.parametrize(
    ("run_sigma", "step_sigma", "tailed"),
    [(0.007, 0.01, False), (0.02, 0.01, False), (0.05, 0.08, False), (0.013, 0.02, True), (0.0, 0.05, False)],
    ids=["gpus", "spread", "busy-cpu", "heavy-tails", "steps-only"],
)
def test_an_equally_fast_trial_is_ended_no_oftener_than_the_confidence_says(
    run_sigma: float, step_sigma: float, tailed: bool
) -> None:
    rng = random.Random(20261130)
    # without the margin for ties, and at a confidence low enough that a thousand trials can show it
    confidence, trials = 0.95, 1000
    wrong = 0
    for _ in range(trials):
        made, times = played(rng, slower=0.0, run_sigma=run_sigma, step_sigma=step_sigma, tailed=tailed)
        bare = Yardstick(**{**vars(made), "margin": 0.0, "confidence": confidence})
        wrong += bool(ended_after(bare, times))
    # 5% allowed; 1,000 honest trials at exactly 5% stay below 73 with a probability above 0.999
    assert wrong <= 73


@pytest.mark.parametrize("tailed", [False, True])
def test_at_the_default_confidence_no_honest_trial_of_hundreds_is_ended(tailed: bool) -> None:
    rng = random.Random(7)
    pairs = [played(rng, slower=0.0, run_sigma=0.01, step_sigma=0.02, tailed=tailed) for _ in range(600)]
    assert [n for made, times in pairs if (n := ended_after(made, times))] == []


def test_a_fifth_slower_is_ended_within_few_steps() -> None:
    rng = random.Random(11)
    after = [ended_after(*played(rng, slower=0.20, run_sigma=0.007, step_sigma=0.01)) for _ in range(200)]
    assert sum(1 for n in after if n) >= 190
    assert statistics.median(n for n in after if n) <= 4


def test_a_trial_within_the_noise_floor_runs_on_however_quiet_the_machine() -> None:
    quiet = yard(run_sigma=0.0, step_sigma=0.0)
    assert ended_after(quiet, [1.029] * 20) == 0
    assert ended_after(quiet, [1.031] * 20) == 3


def test_one_slow_step_of_few_says_nothing_of_a_recipe() -> None:
    assert surely_slower(timed([1.0, 1.0, 4.0]), yard()) == ""
    assert surely_slower(timed([1.0, 4.0, 4.0, 1.0, 1.0]), yard()) == ""


# ---------------------------------------------------------------------------- when it looks


def test_it_looks_from_the_third_scored_step_until_the_last_but_one() -> None:
    slow = [3.0] * 20
    assert surely_slower(timed(slow[:2]), yard()) == ""
    assert surely_slower(timed(slow[:3]), yard()) != ""
    assert surely_slower(timed(slow), yard()) == ""  # complete: now the score may say it
    assert surely_slower(timed([], warmup=9), yard()) == ""
    profiled = [s.model_copy(update={"kind": "profiled"}) for s in timed(slow[:5])]
    assert surely_slower(profiled, yard()) == ""


@pytest.mark.parametrize("times", [[0.0, 3.0, 3.0], [math.inf, 3.0, 3.0], [math.nan, 3.0, 3.0]])
def test_a_step_without_a_usable_time_is_no_evidence(times: list[float]) -> None:
    assert surely_slower(timed(times), yard()) == ""


def test_the_cause_is_told_in_figures() -> None:
    said = surely_slower(timed([1.5, 1.5, 1.5]), yard())
    assert said.startswith("slower than the leader l01: 1.5 s a step over 3 scored steps, the leader 1 s; 50.0% slower")
    assert "(0.999 sure)" in said


def test_the_yardstick_is_the_leaders_speed_and_the_calibrations_noise() -> None:
    book = Book()
    assert yardstick(book.history) is None
    for name, step_s in (("l01", 1.0), ("l02", 1.1)):
        book.ran(name, kind="calibrate")
        found = book.history.trial(name)
        assert found is not None
        lines = [s.model_copy(update={"step_s": step_s * f}) for s, f in zip(found.steps, (9.0, 0.9, 1.0, 1.1), strict=True)]
        book.put("trial", name, found.model_copy(update={"steps": lines}))
    given = {"round": 1, "launches": ["l01", "l02"], "mean": 64.0, "sigma": 0.02, "band": 0.06, "busy": False}
    book.put("calibration", "1", Calibration.model_validate({**given, "launch_gpu_hours": 1.0, "step0_loss": 5.0}))
    first = yardstick(book.history)
    assert first is not None
    assert (first.leader, first.leader_runs, first.runs, first.step_dof) == ("l01", 2, 2, 4)
    assert first.step_s == pytest.approx(128 / (64.0 * 2))
    assert first.step_sigma == pytest.approx(0.1)
    book.ran("l03")
    said = {"launch_id": "l03", "attempt": 1, "valid": True, "new_leader": True, "tokens_per_s_per_gpu": 128.0}
    book.put("score", "l03", Score.model_validate(said))
    second = yardstick(book.history)
    assert second is not None
    assert (second.leader, second.leader_runs, second.step_s) == ("l03", 1, pytest.approx(0.5))
    assert second.threshold(5) > first.threshold(5)  # one run is a less certain leader than two


# ---------------------------------------------------------------------------- the hypothesis's own condition


@pytest.mark.parametrize(
    ("metric", "value", "ends"),
    [
        ("step_s", 1.31, True),
        ("step_s", 1.3, False),
        ("peak_mem_gib", 1.4, True),
        ("lm_loss", 1.2, False),
        ("lm_loss", math.nan, True),
    ],
)
def test_an_abort_condition_is_a_median_beyond_its_bound(metric: str, value: float, ends: bool) -> None:
    steps = timed([1.0, 1.0, 1.0], **{metric: value})
    said = aborted(steps, Abort.model_validate({"metric": metric, "above": 1.3, "after_step": 3}), num_scored=20)
    assert bool(said) is ends
    assert not ends or f"median {metric}" in said


def test_an_abort_condition_waits_for_its_steps_and_never_ends_a_complete_run() -> None:
    abort = Abort(metric="step_s", above=1.3, after_step=4)
    assert aborted(timed([2.0] * 3), abort, num_scored=20) == ""
    assert aborted(timed([2.0] * 4), abort, num_scored=20) != ""
    assert aborted(timed([2.0] * 4), abort, num_scored=4) == ""
    assert aborted(timed([2.0] * 4), None, num_scored=20) == ""
    assert aborted(timed([2.0] * 4), Abort(metric="peak_mem_gib", above=1.0), num_scored=20) == ""  # nobody told the memory


# ---------------------------------------------------------------------------- in a campaign, on the replayed cluster

SLOW = Row(match={"micro_batch_size": 4}, step_s=5.0)
FAST = Row(match={"micro_batch_size": 4}, step_s=0.5)
STEPS = 12


def lab(folder: Path, *rows: Row) -> Lab:
    return Lab(folder, [*rows, Row(step_s=1.0)], clock=VirtualClock())


def born(*script: dict[str, Any], **changes: Any) -> Campaign:
    work = {**campaign().workload.data(), "steps": STEPS, "warmup_steps": 2}
    return campaign(*(script or (MICRO,)), **{"workload": work, **changes})


def ended(found: Lab, launch_id: str = "l06") -> Any:
    trial = found.history().trial(launch_id)
    assert trial is not None
    return trial


def test_a_slow_trial_is_ended_charged_to_that_moment_and_not_scored(tmp_path: Path) -> None:
    found = lab(tmp_path, SLOW)
    kit = found.kit()
    begin(kit, born())
    search(kit)
    trial, history = ended(found), found.history()
    assert trial.status == "stopped_early"
    assert trial.cause.startswith("slower than the leader l01: 5 s a step over 3 scored steps, the leader 1 s")
    # five seconds of start-up, two warm-up steps and three scored ones, on two devices; the poll is a quarter of a second
    assert trial.gpu_hours * 3600 / 2 == pytest.approx(5 + 5 * 5, abs=0.26)
    assert [s.step for s in trial.steps] == [0, 1, 2, 3, 4]
    (settled,) = [s for s in history.settlements() if s.launch_id == "l06"]
    assert settled.how == "released"
    assert history.score("l06") is None
    assert history.leader() == "l01"
    assert len(history.attempts("l06")) == 1


def test_status_and_report_tell_an_early_end_from_a_failure(tmp_path: Path) -> None:
    found = lab(tmp_path, SLOW)
    kit = found.kit()
    begin(kit, born())
    search(kit)
    history = found.history()
    data = one(history)
    assert data["failed"] == 0
    assert "stopped early" in detail(data, history)
    row = next(r for r in launch_rows(history) if r.id == "l06")
    assert row.outcome == "stopped_early"
    assert not row.failed
    assert row.reason.startswith("slower than the leader l01")


def test_a_fast_trial_runs_to_its_end(tmp_path: Path) -> None:
    found = lab(tmp_path, FAST)
    kit = found.kit()
    begin(kit, born())
    search(kit)
    assert ended(found).status == "ok"
    assert found.history().leader() == "l06"


@pytest.mark.parametrize(
    "changes", [{"early_stop": {"enabled": False}}, {"workload": {**campaign().workload.data(), "steps": 5, "warmup_steps": 2}}]
)
def test_nothing_is_ended_where_the_campaign_says_so_or_the_launch_is_too_short(tmp_path: Path, changes: dict[str, Any]) -> None:
    found = lab(tmp_path, SLOW)
    kit = found.kit()
    begin(kit, born(**changes))
    search(kit)
    assert ended(found).status == "ok"


def test_only_search_launches_are_ended(tmp_path: Path) -> None:
    """Calibration runs of one recipe that differ by half: the slow ones are measured to their end."""
    found = Lab(tmp_path, [Row(step_s=1.0, jitter=0.5)], clock=VirtualClock())
    kit = found.kit()
    begin(kit, born(noise={"max_step_spread": 30.0, "busy_sigma": 9.0}))
    statuses = {x.kind: t.status for x in found.history().launches() if (t := found.history().trial(x.id))}
    assert statuses == {"calibrate": "ok"}


def test_the_hypothesis_s_own_abort_condition_ends_a_trial_too(tmp_path: Path) -> None:
    move = {**MICRO, "abort": {"metric": "peak_mem_gib", "above": 0.5, "after_step": 1}}
    found = lab(tmp_path, Row(match={"micro_batch_size": 4}, step_s=0.5, peak_mem_gib=0.9))
    kit = found.kit()
    begin(kit, born())
    book_move(kit, move)
    trial = launch(kit, ID, "l06")
    assert trial.status == "stopped_early"
    assert trial.cause.startswith("its own abort condition: median peak_mem_gib 0.9 over 1 scored steps, limit 0.5")


def book_move(kit: Any, move: dict[str, Any]) -> None:
    """Put a hypothesis on record and decide its launch; the scripted proposer knows no abort conditions."""
    from book import hypothesis

    from attuner.steps.gate import gate

    kit.ledger.append(ID, "hypothesis", "h01", hypothesis(**move))
    gate(kit, ID, "h01")


def test_a_recipe_that_was_ended_early_is_not_launched_again(tmp_path: Path) -> None:
    found = lab(tmp_path, SLOW)
    kit = found.kit()
    begin(kit, born(MICRO, {**MICRO, "title": "again"}))
    search(kit)
    verdict = found.history().verdict("h02")
    assert verdict is not None
    assert "was stopped early in l06" in verdict.findings[0].reason


@pytest.mark.parametrize("died_before", ["cancel", "settled", "trial"])
def test_a_crash_after_the_decision_ends_the_trial_all_the_same(tmp_path: Path, died_before: str) -> None:
    found = lab(tmp_path, SLOW)
    kit = found.kit()
    begin(kit, born())
    book_move(kit, MICRO)
    if died_before == "cancel":
        first: Any = found.kit(launcher=Mortal(found.replay))
    else:  # an attempt (twice: decided, submitted), the early end, and then the settlement
        first = found.kit(lives=3 if died_before == "settled" else 4)
    with pytest.raises(PowerCut):
        launch(first, ID, "l06")
    found.clock.sleep(1.0)
    trial = launch(found.kit(), ID, "l06")
    assert trial.status == "stopped_early"
    assert len(found.history().attempts("l06")) == 1
    assert len(found.history().all("early_end", early_end_type())) == 1


def early_end_type() -> Any:
    from attuner.core.run import EarlyEnd

    return EarlyEnd


class Mortal:
    """A launcher whose process dies when it is asked to stop a job."""

    def __init__(self, inner: Replay) -> None:
        self.inner = inner

    def cancel(self, attempt: Attempt) -> None:
        raise PowerCut(f"before the end of {attempt.submission_id}")

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


def test_a_run_that_came_to_its_end_before_the_order_counts_as_it_ended(tmp_path: Path) -> None:
    found = lab(tmp_path, SLOW)
    kit = found.kit()
    begin(kit, born())
    book_move(kit, MICRO)
    with pytest.raises(PowerCut):
        launch(found.kit(launcher=Mortal(found.replay)), ID, "l06")
    found.clock.sleep(1000.0)  # nobody stopped it
    assert launch(found.kit(), ID, "l06").status == "ok"


def test_the_step_time_of_the_leader_is_what_its_score_says(tmp_path: Path) -> None:
    found = lab(tmp_path, FAST)
    kit = found.kit()
    begin(kit, born())
    search(kit)
    made = yardstick(found.history())
    assert made is not None
    assert made.leader == "l06"
    assert made.step_s == pytest.approx(0.5)
    assert early.scored_times(ended(found).steps) == [0.5] * 10
    assert BASE["micro_batch_size"] == 1
