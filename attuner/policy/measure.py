"""Honest measurement: is a run a valid measurement, what is its speed, how wide is the band, who leads.

Source: ATTUNE (October 2026), sections 2 and 3.1: mean tokens/s per device after warm-up; band = max(3%, 3σ).
"""

from __future__ import annotations

import math
import statistics

from attuner.core.campaign import Campaign, Noise
from attuner.core.judgement import Calibration
from attuner.core.recipe import Workload
from attuner.core.run import Trial


def invalid_because(trial: Trial, campaign: Campaign, *, hardware: list[str] | None = None) -> str:
    """Return why a finished run is not a valid measurement, or '' if it is one.

    Args:
        trial: a run that ended `ok`.
        campaign: its workload and noise limits.
        hardware: device models of the calibration's first run; None if there is nothing to compare with.
    """
    work = campaign.workload
    scored = [s for s in trial.steps if s.kind == "scored"]
    if [s.step for s in scored] != list(work.scored_steps()):
        return f"scored steps {[s.step for s in scored]} are not {list(work.scored_steps())}"
    if any(s.step in work.scored_steps() for s in trial.steps if s.kind != "scored"):
        return "a scored step was profiled or evaluated"
    wrong = [s.step for s in trial.steps if s.kind != "profiled" and s.tokens != work.tokens_per_step()]
    if wrong:
        return f"steps {wrong} consumed other than {work.tokens_per_step()} tokens"
    if trial.gpus != work.gpus:
        return f"ran on {trial.gpus} devices, not {work.gpus}"
    if hardware is not None and trial.hardware != hardware:
        return f"ran on other hardware: {', '.join(trial.hardware)}, the baseline on {', '.join(hardware)}"
    times = [s.step_s for s in scored]
    if any(not math.isfinite(t) or t <= 0 for t in times):
        return "a scored step has no usable time"
    spread = max(times) / statistics.median(times)
    if spread > campaign.noise.max_step_spread:
        return f"slowest scored step is {spread:.2f} × the median; limit {campaign.noise.max_step_spread:g}"
    return ""


def speed(trial: Trial, work: Workload) -> float:
    """Return tokens/s per device over the scored steps: all their tokens over all their time."""
    scored = [s for s in trial.steps if s.kind == "scored"]
    return sum(s.tokens for s in scored) / sum(s.step_s for s in scored) / work.gpus


def step_seconds(trial: Trial) -> float:
    """Return the mean time of a scored step, seconds."""
    return statistics.fmean(s.step_s for s in trial.steps if s.kind == "scored")


def calibrate(trials: list[Trial], campaign: Campaign, *, number: int) -> Calibration:
    """Return mean, σ (n-1, relative) and band of the baseline's runs."""
    noise: Noise = campaign.noise
    speeds = [speed(t, campaign.workload) for t in trials]
    mean = statistics.fmean(speeds)
    sigma = statistics.stdev(speeds) / mean
    losses = [loss for t in trials if (loss := t.step0_loss()) is not None]
    return Calibration(
        round=number,
        launches=[t.launch_id for t in trials],
        mean=mean,
        sigma=sigma,
        band=max(noise.floor, noise.sigmas * sigma),
        busy=sigma > noise.busy_sigma,
        launch_gpu_hours=statistics.fmean(t.own_gpu_hours() for t in trials),
        step0_loss=statistics.median(losses),
    )


def leads(candidate: float, leader: float, band: float) -> bool:
    """Tell whether a candidate replaces the leader: strictly above leader × (1 + band)."""
    return candidate > leader * (1.0 + band)
