"""Predicted against measured: what proposer and estimate said before a launch, beside what came of it, and how far off."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from attuner.core.events import History
from attuner.core.search import Forecast
from attuner.report.rows import LaunchRow

PROPOSER, ESTIMATE = "proposer", "estimate"


@dataclass(frozen=True)
class Prediction:
    """One predicted gain over the leader beside the measured one; fractions."""

    launch_id: str
    by: str
    """PROPOSER or ESTIMATE."""
    predicted: float
    error: float
    """Half width of the prediction."""
    measured: float

    @property
    def miss(self) -> float:
        """Measured minus predicted."""
        return self.measured - self.predicted

    @property
    def inside(self) -> bool:
        """Tell whether the measured gain lies within the predicted ±."""
        return abs(self.miss) <= self.error


@dataclass(frozen=True)
class Accuracy:
    """How good the predictions of one quantity were, over every launch that has both."""

    by: str
    what: str
    """gain, step time, or peak memory."""
    num: int
    mean_error: float
    """Mean absolute error: of a gain in fractions of speed (points), else as a fraction of the measured value."""
    bias: float
    """Mean error with its sign: below zero where less was measured than predicted."""
    num_inside: int
    """Within the predicted ± or range."""


def predictions(rows: Sequence[LaunchRow], history: History) -> tuple[Prediction, ...]:
    """Return every pair of a predicted and a measured gain, in order of the launches."""
    found: list[Prediction] = []
    for r in rows:
        if r.gain is None:
            continue
        if r.predicted_gain is not None:
            found.append(Prediction(r.id, PROPOSER, r.predicted_gain, r.predicted_error or 0.0, r.gain))
        forecast = history.forecast(r.hypothesis) if r.hypothesis else None
        if forecast is not None:
            found.append(Prediction(r.id, ESTIMATE, forecast.gain, forecast.gain_error, r.gain))
    return tuple(found)


def accuracy(found: Sequence[Prediction], rows: Sequence[LaunchRow], history: History) -> tuple[Accuracy, ...]:
    """Return how good proposer and estimate were at the gain, and the estimate at step time and memory."""
    out = []
    for by in (PROPOSER, ESTIMATE):
        mine = [p for p in found if p.by == by]
        if mine:
            misses = [p.miss for p in mine]
            mean = fmean(map(abs, misses))
            out.append(Accuracy(by, "gain", len(mine), mean, fmean(misses), sum(p.inside for p in mine)))
    forecasts = [(r, f) for r in rows if r.hypothesis and (f := history.forecast(r.hypothesis)) is not None]
    return (*out, *_estimated(forecasts, history))


def _estimated(forecasts: Sequence[tuple[LaunchRow, Forecast]], history: History) -> list[Accuracy]:
    times, memory = [], []
    for r, f in forecasts:
        score = history.score(r.id)
        if score is not None and score.valid and score.step_s > 0:
            times.append((f.step_s, score.step_s, f.step_low_s <= score.step_s <= f.step_high_s))
        if r.outcome == "ok" and r.peak_mem_gib:
            memory.append((f.peak_mem_gib, r.peak_mem_gib, f.mem_low_gib <= r.peak_mem_gib <= f.mem_high_gib))
    out = []
    for what, pairs in (("step time", times), ("peak memory", memory)):
        if pairs:
            errors = [(measured - predicted) / measured for predicted, measured, _ in pairs]
            inside = sum(within for _, _, within in pairs)
            out.append(Accuracy(ESTIMATE, what, len(pairs), fmean(map(abs, errors)), fmean(errors), inside))
    return out


def held_back(history: History) -> int:
    """Return how many hypotheses the estimate kept from being launched."""
    return sum(f.held for f in history.all("forecast", Forecast))
