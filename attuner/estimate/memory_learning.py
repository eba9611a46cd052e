"""What observed peaks and out-of-memory trials teach: factors on parts of memory, an amount beside them, a residual."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from attuner.estimate.gauss import Matrix, Vector, posterior, quadratic
from attuner.estimate.kin import Residual, place

if TYPE_CHECKING:
    from attuner.estimate.model import Model
    from attuner.estimate.shape import Layout

KNOBS = ("static", "none", "selective", "full", "moe", "logits", "working", "whole", "extra_gib")
WIDTH = (0.01, 0.08, 0.20, 0.15, 0.10, 0.25, 0.3, 0.03, 1.0)
"""Prior widths. Logarithms of factors on static memory, on activations by recompute, on experts' activations, on logits, on what
is alive only for a moment, and on the whole (peaks are reported as allocated or as reserved); the last is GiB beside them."""
CPU_EXTRA = 0.03
"""On a CPU: the width of what lies beside the parts, as a share of device memory."""
RESIDUAL = 0.02
NOISE = 0.005
Z = 1.75
SURE = 0.67
"""Standard deviations below the middle that still don't fit: three cases in four."""
BAND_MAX = 0.15
CPU_BAND_MAX = 0.6
"""A half width is never said larger: beyond it the estimate is wrong, not unsure."""
WHOLE = KNOBS.index("whole")
GROUPS = {"weights": 0, "gradients": 0, "optimizer": 0, "moe": 4, "logits": 5, "working": 6}


@dataclass(frozen=True)
class MemoryLearnt:
    """Corrections of memory with their uncertainty."""

    theta: Vector
    covariance: Matrix
    residual: Residual
    floor_gib: tuple[tuple[Layout, float], ...] = ()

    def bare(self, model: Model, layout: Layout) -> tuple[float, Vector]:
        """Return the peak without the residual, GiB, and its slope along the knobs."""
        scale = [math.exp(t) for t in self.theta]
        act = 1 + ("none", "selective", "full").index(layout.recompute)
        beside = model.machine.context_gib if model.machine.synchronous else 0.0  # a CPU process is measured whole
        best, slope = -math.inf, [0.0] * len(KNOBS)
        for stage in model.taker.atoms(layout).memory:
            now = [0.0] * len(KNOBS)
            for name, gib in stage.items():
                if name == "reserve":
                    continue
                knob = GROUPS.get(name, act)
                second = act if name == "moe" and layout.recompute != "none" else None
                part = gib * scale[knob] * scale[WHOLE] * (scale[second] if second else 1.0)
                now[knob] += part
                now[WHOLE] += part
                if second:
                    now[second] += part
            total = now[WHOLE] + self.theta[-1] + beside
            if total > best:
                best, slope = total, [*now[:-1], 1.0]
        return max(best, 1e-3), slope

    def peak(self, model: Model, layout: Layout) -> tuple[float, float, float]:
        """Return what torch allocates at its peak on the fullest rank, GiB, and the band around it."""
        gib, slope = self.bare(model, layout)
        at = place(layout)
        variance = quadratic(self.covariance, slope, slope) / gib**2 + self.residual.covariance(at, at)
        gib *= math.exp(self.residual.mean(at))
        half = min(CPU_BAND_MAX if model.machine.synchronous else BAND_MAX, Z * math.sqrt(max(variance, 1e-8)))
        return gib, gib * (1 - half), gib * (1 + half)


def surely_above(peak_gib: float, low_gib: float, limit_gib: float) -> bool:
    """Tell whether a peak lies above the limit in at least three of four cases, given the lower end of its band."""
    return peak_gib - SURE / Z * (peak_gib - low_gib) > limit_gib


def memory_prior(mem_gib: float | None = None, *, cpu: bool = False) -> MemoryLearnt:
    """Return the corrections before anything was seen."""
    width = [*WIDTH[:-1], CPU_EXTRA * (mem_gib or 1.0) if cpu else WIDTH[-1]]
    matrix = [[width[i] ** 2 if i == j else 0.0 for j in range(len(KNOBS))] for i in range(len(KNOBS))]
    return MemoryLearnt([0.0] * len(KNOBS), matrix, Residual(sigma=RESIDUAL, noise=NOISE))


def learn_memory(model: Model, seen: list[tuple[Layout, str, float | None]]) -> MemoryLearnt:
    """Return the corrections after trials (layout, outcome, peak); an out-of-memory trial says "at least the device's memory"."""
    machine = model.machine
    start = memory_prior(machine.mem_gib, cpu=machine.synchronous)
    learnt = start
    known = [(a, float(p)) for a, outcome, p in seen if outcome == "ok" and p]
    failed = [a for a, outcome, _ in seen if outcome == "oom" and machine.mem_gib]
    for _ in range(5):
        rows = []
        points = [*((a, p, NOISE) for a, p in known)]
        for layout in failed:
            if learnt.bare(model, layout)[0] < (machine.mem_gib or 0.0):
                points.append((layout, (machine.mem_gib or 0.0) * 1.02, 0.03))
        for layout, gib, noise in points:
            mine, slope = learnt.bare(model, layout)
            sigma = math.hypot(RESIDUAL, noise) * gib
            rows.append((slope, gib - mine + sum(s * t for s, t in zip(slope, learnt.theta, strict=True)), sigma))
        theta, covariance = posterior(start.covariance, rows)
        learnt = MemoryLearnt(theta, covariance, start.residual)
    places = [(place(a), math.log(p / learnt.bare(model, a)[0])) for a, p in known]
    for layout in failed:
        short = learnt.bare(model, layout)[0] / (machine.mem_gib or 1.0)
        if short < 1:
            places.append((place(layout), math.log(1.01 / short)))
    residual = Residual([p for p, _ in places], [v for _, v in places], sigma=RESIDUAL, noise=NOISE)
    return MemoryLearnt(learnt.theta, learnt.covariance, residual)
