"""The whole trial's curve: at no step far from the baseline's, and not drifting to one side of it.

The bound at each step is max(5%, 3 × the replicates' spread). The trend is a signed test whose unit is the run, not the step:
the differences of one run are correlated from step to step (a smooth drift has one sign for ever), so a sign test over steps
would alarm at every healthy layout. Each run gives one number, the mean of its signed differences from the replicates' mean,
late steps weighing more; the candidate's number is compared with the replicates' by Student's t. False alarms: at most
ALPHA = 0.001 for a candidate whose number is drawn from the same normal distribution as the replicates', however its steps are
correlated; and below the floor (`curve_trend` of the tolerances) nothing alarms, so that rounding, which replicates of one
layout don't show, is no evidence. docs/adr/0011-looks.md has the simulation.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from attuner.core.judgement import Finding
from attuner.core.run import Evidence
from attuner.policy.zones import Limits, Measured, judge

ALPHA = 0.001
"""False-alarm rate of the trend, two-sided."""
SPREADS = 3.0
"""A step may be this many of the replicates' standard deviations off, where that is wider than the limit."""
MIN_STEPS = 4
"""Fewer steps after step 0 have no trend to speak of."""
# Student's t, two-sided 0.001, by degrees of freedom. Source: tables of the t distribution.
T_QUANTILE = (
    *(636.62, 31.599, 12.924, 8.610, 6.869, 5.959, 5.408, 5.041, 4.781, 4.587),
    *(4.437, 4.318, 4.221, 4.140, 4.073, 4.015, 3.965, 3.922, 3.883, 3.850),
)


@dataclass(frozen=True)
class Curves:
    """Losses by step at the steps that all runs have: the replicates' mean and spread, and the candidate."""

    steps: list[int]
    replicates: list[list[float]]
    candidate: list[float]

    @property
    def mean(self) -> list[float]:
        """Return the replicates' mean at each step."""
        return [statistics.fmean(x) for x in zip(*self.replicates, strict=True)]

    def spread(self) -> list[float]:
        """Return the replicates' relative standard deviation at each step (n-1); 0 for a single run."""
        if len(self.replicates) < 2:
            return [0.0] * len(self.steps)
        columns = zip(*self.replicates, strict=True)
        return [statistics.stdev(x) / abs(m) if m else 0.0 for x, m in zip(columns, self.mean, strict=True)]

    def drift(self, losses: Sequence[float]) -> float:
        """Return one run's signed mean difference from the replicates' mean, a fraction; step t weighs t."""
        weights = [float(t - self.steps[0]) for t in self.steps]
        parts = [w * (x - m) / abs(m) if m else 0.0 for w, x, m in zip(weights, losses, self.mean, strict=True)]
        return sum(parts) / sum(weights) if sum(weights) else 0.0

    def progress(self) -> float:
        """Return the drift that a run without any training would show, less two of its standard errors; not below 0.

        From the straight line through the replicates' mean: what it falls (or rises) by is what training did.
        """
        n, y = len(self.steps), self.mean
        if n < 3:
            return 0.0
        x = [float(t - self.steps[0]) for t in self.steps]
        mean_x, mean_y = statistics.fmean(x), statistics.fmean(y)
        sxx = sum((a - mean_x) ** 2 for a in x)
        slope = sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True)) / sxx
        rest = sum((b - mean_y - slope * (a - mean_x)) ** 2 for a, b in zip(x, y, strict=True))
        certain = max(abs(slope) - 2.0 * math.sqrt(rest / (n - 2) / sxx), 0.0)
        reach = sum(a * a for a in x) / sum(x)
        return certain * reach / abs(mean_y) if mean_y else 0.0


def threshold(curves: Curves, floor: float) -> float:
    """Return the drift beyond which a trend is said: the floor, or what the replicates' own drifts make unlikely."""
    n = len(curves.replicates)
    if n < 2:
        return floor
    sigma = statistics.stdev([curves.drift(r) for r in curves.replicates])
    t = T_QUANTILE[min(n - 1, len(T_QUANTILE)) - 1]
    return max(floor, t * sigma * math.sqrt(1.0 + 1.0 / n))


def curve_look(reference: Sequence[Evidence], candidate: Evidence, *, limits: Limits, excused: str = "") -> list[Finding]:
    """Return what the curve says.

    Args:
        reference: the baseline's runs; all of them give the spread.
        candidate: the run that is judged.
        limits: the tolerances.
        excused: why a curve that is too flat or too short to tell needs no person, e.g. because the third look saw the
            update itself; '' if it does.
    """
    found = _common(reference, candidate)
    if isinstance(found, Finding):
        return [found]
    out = [_each_step(found, limits, candidate.precision)]
    length = _length(reference[0], candidate)
    if length:
        out.append(length)
    if candidate.label == reference[0].label:
        return out
    out.append(_trend(found, limits, candidate.precision, excused))
    return out


def _common(reference: Sequence[Evidence], candidate: Evidence) -> Curves | Finding:
    runs = [r.losses() for r in reference]
    mine = candidate.losses()
    steps = sorted(set(mine).intersection(*runs))
    curves = Curves(steps, [[r[t] for t in steps] for r in runs], [mine[t] for t in steps])
    if not steps:
        reason = f"{candidate.label} has no step in common with the baseline's runs"
        return _finding("refuse", "curve", reason, todo="run both for the same steps, from step 0 on")
    if not all(math.isfinite(x) for x in [*curves.candidate, *(x for r in curves.replicates for x in r)]):
        return _finding("refuse", "curve", "a loss is not finite, so the curves can't be compared")
    return curves


def _each_step(curves: Curves, limits: Limits, precision: str) -> Finding:
    """Return the finding about the step that uses most of its own bound."""
    tolerance = limits.find("curve", precision)
    wide = [max(tolerance.outer, SPREADS * s) for s in curves.spread()]
    off = [abs(c - m) / abs(m) if m else math.inf for c, m in zip(curves.candidate, curves.mean, strict=True)]
    k = max(range(len(off)), key=lambda i: off[i] / wide[i])
    inside = off[k] <= wide[k]
    bound = f"max({tolerance.outer:.0%}, {SPREADS:g} × the replicates' spread {curves.spread()[k]:.1e})"
    beyond = [curves.steps[i] for i in range(len(off)) if off[i] > wide[i]]
    reason = f"over {len(off)} steps at most {off[k]:.1e} off, at step {curves.steps[k]}; limit {bound}"
    if not inside:
        reason = f"off by {off[k]:.1e} at step {curves.steps[k]}, beyond {bound}; so are steps {beyond[:8]}"
    return Finding(
        rule=tolerance.id,
        decision="admit" if inside else "refuse",
        key="curve",
        before=curves.mean[k],
        after=curves.candidate[k],
        reason=reason,
        source=tolerance.source,
        deviation=off[k] if math.isfinite(off[k]) else None,
        tolerance=wide[k],
        outer=wide[k],
    )


def _trend(curves: Curves, limits: Limits, precision: str, excused: str) -> Finding:
    floor = limits.find("curve_trend", precision)
    bound, drift = threshold(curves, floor.limit), curves.drift(curves.candidate)
    after = len(curves.steps) - 1
    signs = [c > m for c, m in zip(curves.candidate[1:], curves.mean[1:], strict=True) if c != m]
    said = f"signed drift {drift:+.1e} over {after} steps ({sum(signs)} above the baseline, {len(signs) - sum(signs)} below)"
    n = len(curves.replicates)
    rate = f"threshold {bound:.1e} from {n} baseline run{'s' if n > 1 else ''}, false alarms at most {ALPHA:.1%}"
    progress = curves.progress()
    if after < MIN_STEPS or progress <= bound:
        why = f"only {after} steps follow step 0" if after < MIN_STEPS else f"training itself moved it by {progress:.1e} or less"
        flat = f"the curve is too {'short' if after < MIN_STEPS else 'flat'} to tell: {why}; {rate}"
        if abs(drift) <= bound:
            todo = "" if excused else "attach the probe, or run more steps at the production learning rate"
            reason = f"{flat}; {excused}" if excused else flat
            return _finding("admit" if excused else "review", "curve trend", reason, rule=floor.id, todo=todo)
    tolerance = {"own": [floor.model_copy(update={"limit": bound, "outer": max(bound, floor.outer)})], "caps": {}}
    found = judge(
        "curve trend",
        Measured(0.0, drift, abs(drift)),
        limits=limits.model_copy(update=tolerance),
        measure="curve_trend",
        precision=precision,
    )
    if found is None:
        return _finding("admit", "curve trend", f"{said}; not judged in {precision}", rule=floor.id)
    power = f"; a run that trained {bound / progress:.0%} less or more would show" if 0 < bound < progress else ""
    return found.model_copy(update={"reason": f"{said}; {rate}{power}"})


def _length(base: Evidence, candidate: Evidence) -> Finding | None:
    mine, own = ({s.step for s in e.steps if s.kind != "profiled"} for e in (candidate, base))
    missing = sorted(own - mine)
    if not missing:
        return None
    reason = f"{candidate.label} has {len(own & mine)} of the baseline's {len(own)} steps (not {missing[0]}…{missing[-1]})"
    todo = "run the candidate as long as the baseline"
    return _finding("review", "number of steps", reason, todo=todo, before=len(own), after=len(mine))


def _finding(decision: str, key: str, reason: str, *, rule: str = "forward-look", todo: str = "", **more: int) -> Finding:
    return Finding.model_validate({"rule": rule, "decision": decision, "key": key, "reason": reason, "todo": todo, **more})
