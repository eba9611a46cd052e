"""Early stop: is a running trial surely slower than the leader, or beyond its hypothesis's own abort condition?

The test looks after every scored step from the third on. Two things make an equally fast trial look slow: its run as a whole
(nodes, other load) and its single steps. Each gets half of the allowed error. What the run adds is the same at every look and is
taken from the spread of the calibration runs; what the steps add is taken from the calibration's steps or this run's own,
whichever spread more, and its half is shared by all looks (Bonferroni: it holds whatever ties the looks together). Both are
estimated from few runs, so both use Student's t. A trial that is slower by no more than the noise floor is a tie and runs on.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from attuner.core.events import History
from attuner.core.run import StepRecord
from attuner.core.search import Abort
from attuner.policy.stats import student_quantile

MIN_SCORED = 3
"""Scored steps before the first look."""


@dataclass(frozen=True)
class Yardstick:
    """What a running trial is held against."""

    leader: str
    step_s: float
    """The leader's mean scored step."""
    leader_runs: int
    """Runs that its speed is a mean of: the calibration's for the baseline, else one."""
    run_sigma: float
    """Relative spread of a run's speed from run to run."""
    runs: int
    """Calibration runs that it was estimated from."""
    step_sigma: float
    """Relative spread of a step's time inside a run."""
    step_dof: int
    """Degrees of freedom that it was estimated with."""
    num_scored: int
    """Scored steps of a whole launch."""
    margin: float
    """Slower by no more than this is a tie."""
    confidence: float
    """Of the whole test, over all looks at one launch."""

    def threshold(self, num_seen: int, own_sigma: float = 0.0) -> float:
        """Return how much slower, as a fraction, the trial must look after so many scored steps."""
        half = (1.0 - self.confidence) / 2.0
        looks = max(self.num_scored - MIN_SCORED, 1)
        run = student_quantile(half, max(self.runs - 1, 1)) * self.run_sigma * math.sqrt(1.0 + 1.0 / self.leader_runs)
        sigma = max(self.step_sigma, own_sigma)
        steps = student_quantile(half / looks, max(self.step_dof, 1)) * sigma / math.sqrt(num_seen)
        return self.margin + run + steps


def yardstick(history: History) -> Yardstick | None:
    """Return what running trials are held against now; None before the calibration."""
    campaign, calibration = history.campaign(), history.calibration()
    speed = history.leader_speed()
    if calibration is None or speed <= 0:
        return None
    leads = any(s.new_leader for s in history.scores())
    sigma, dof = _step_sigma(history, calibration.launches)
    work = campaign.workload
    return Yardstick(
        leader=history.leader(),
        step_s=work.tokens_per_step() / (speed * work.gpus),
        leader_runs=1 if leads else len(calibration.launches),
        run_sigma=calibration.sigma,
        runs=len(calibration.launches),
        step_sigma=sigma,
        step_dof=dof,
        num_scored=len(work.scored_steps()),
        margin=campaign.noise.floor,
        confidence=campaign.early_stop.confidence,
    )


def _step_sigma(history: History, launches: Sequence[str]) -> tuple[float, int]:
    """Return the relative spread of steps inside the calibration runs, pooled, with its degrees of freedom."""
    squares, dof = 0.0, 0
    for launch_id in launches:
        trial = history.trial(launch_id)
        times = scored_times(trial.steps) if trial else []
        if len(times) > 1:
            mean = statistics.fmean(times)
            squares += sum((t / mean - 1.0) ** 2 for t in times)
            dof += len(times) - 1
    return (math.sqrt(squares / dof) if dof else 0.0), dof


def scored_times(steps: Sequence[StepRecord]) -> list[float]:
    """Return the times of the scored steps, seconds."""
    return [s.step_s for s in steps if s.kind == "scored"]


def surely_slower(steps: Sequence[StepRecord], yard: Yardstick) -> str:
    """Return why a running trial is ended as slower than the leader, in figures, or ''.

    Mean and median must both say so: one slow step moves the mean of a few, and says nothing of the recipe.
    """
    times = scored_times(steps)
    seen = len(times)
    if not MIN_SCORED <= seen < yard.num_scored or not all(math.isfinite(t) and t > 0 for t in times):
        return ""
    mean = statistics.fmean(times)
    slower = min(mean, statistics.median(times)) / yard.step_s - 1.0
    need = yard.threshold(seen, statistics.stdev(times) / mean)
    if slower <= need:
        return ""
    return (
        f"slower than the leader {yard.leader}: {mean:.4g} s a step over {seen} scored steps, the leader {yard.step_s:.4g} s; "
        f"{slower:.1%} slower, and noise makes at most {need:.1%} of it ({yard.confidence:.4g} sure)"
    )


def aborted(steps: Sequence[StepRecord], abort: Abort | None, *, num_scored: int) -> str:
    """Return why a running trial meets its hypothesis's abort condition, in figures, or ''; what is no number meets it."""
    scored = [s for s in steps if s.kind == "scored"]
    if abort is None or not abort.after_step <= len(scored) < num_scored:
        return ""
    values = [value for s in scored if (value := getattr(s, abort.metric)) is not None]
    if not values:
        return ""
    middle = math.nan if any(math.isnan(v) for v in values) else statistics.median(values)
    if middle <= abort.above:
        return ""
    return f"its own abort condition: median {abort.metric} {middle:.4g} over {len(scored)} scored steps, limit {abort.above:.4g}"
