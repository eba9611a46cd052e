"""What a campaign's own trials teach the estimate: corrections of components with shrinkage, and what stays beside them.

Each knob of model.py is a logarithm with a normal prior around 0 (`PRIOR`, its width from how far public measurements scatter).
An observed step is one equation, each part of a breakdown another; the posterior is found by Gauss-Newton. What no knob explains
goes to a Gaussian process over layouts (kin.py), so that an observed layout is reproduced and its neighbours follow a little.
Memory is learnt the same way by memory_learning.py.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from attuner.estimate.gauss import Matrix, Vector, posterior, quadratic
from attuner.estimate.hardware import Hardware
from attuner.estimate.kin import Residual, place
from attuner.estimate.memory_learning import MemoryLearnt, learn_memory, memory_prior
from attuner.estimate.model import AT, KNOBS, NO_THETA, Estimate, Model, Theta, model_of
from attuner.estimate.shape import Layout, Shape

PRIOR = {
    **{"gemm": 0.15, "grouped": 0.25, "attention": 0.3, "elementwise": 0.3, "context": 0.4, "host": 0.5},
    **{"tensor_near": 0.3, "tensor_far": 0.5, "expert_near": 0.4, "expert_far": 0.6, "expert_split": 1.0},
    **{"backward": 0.1, "again_selective": 0.5, "again_full": 0.1},
    **{"pipeline": 0.6, "data_near": 0.4, "data_far": 0.5, "optimizer": 0.5, "offload": 0.7, "straggler": 1.0, "bubble": 0.2},
}
"""Prior widths of the knobs, as standard deviations of their logarithms."""
CPU_PRIOR = {"host": 1.0, "offload": 1.0, "optimizer": 1.0, "expert_near": 0.8, "tensor_near": 0.8, "data_near": 0.8}
SHARED = (("tensor_far", "expert_far", "data_far"), ("tensor_near", "expert_near", "data_near"))
"""Knobs that answer to one cause (the links out of a node, the links inside): half of their variance is common."""
RESIDUAL = 0.10
"""How far a layout's step lies from the formulas once the knobs are right: the scatter of vTrain's layouts within one model."""
STEP_NOISE = 0.01
PART_NOISE = 0.08
TRACE_NOISE = 0.7
Z = 1.75
"""Half width of a band in standard deviations: about nine in ten with the tails of a few observations."""
PART_NAMES: dict[str, tuple[str, ...]] = {
    "busy": ("compute", "recompute", "optimizer"),
    "comm:tensor_expert": ("comm:tensor", "comm:expert"),
    "wait": ("bubble", "straggler"),
    "pipeline_wait": ("comm:pipeline", "bubble", "straggler"),
    "comm": ("comm:tensor", "comm:expert", "comm:context", "comm:data"),
    "comm_and_wait": ("comm:tensor", "comm:expert", "comm:context", "comm:data", "comm:pipeline", "bubble", "straggler"),
}
"""Observed parts that are sums of the model's; any other name is a part of its own."""


@dataclass(frozen=True)
class Observation:
    """What came of one launch. `parts`: seconds by part of STEP_PARTS or PART_NAMES, as the ranks of `stage` saw them."""

    layout: Layout
    outcome: str = "ok"
    step_s: float = 0.0
    parts: dict[str, float] = field(default_factory=dict)
    peak_mem_gib: float | None = None
    stage: int | None = None
    weight: int = 1


@dataclass(frozen=True)
class Learnt:
    """A correction with its uncertainty."""

    theta: Theta
    covariance: Matrix
    residual: Residual
    memory: MemoryLearnt
    num_observations: int = 0

    def log_step(self, model: Model, layout: Layout) -> tuple[float, Vector, float]:
        """Return log seconds, their slope along the knobs, and log seconds without the residual."""
        step = model.step(layout, self.theta)
        bare = math.log(step.seconds)
        return bare + self.residual.mean(place(layout)), [s / step.seconds for s in step.slope], bare

    def estimate(self, model: Model, layout: Layout) -> Estimate:
        """Return the estimate of a layout that was checked."""
        step = model.step(layout, self.theta)
        at = place(layout)
        factor = math.exp(self.residual.mean(at))
        seconds = step.seconds * factor
        slope = [s / step.seconds for s in step.slope]
        sigma = math.sqrt(max(1e-8, quadratic(self.covariance, slope, slope) + self.residual.covariance(at, at)))
        spread = math.exp(Z * sigma)
        stages = model.taker.atoms(layout).memory
        peak, low, high = self.memory.peak(model, layout)
        return Estimate(
            step_s=seconds,
            step_low_s=seconds / spread,
            step_high_s=seconds * spread,
            tokens_per_s_per_gpu=layout.global_batch * layout.seq_len / seconds / layout.gpus,
            parts={name: part * factor for name, part in step.parts.items()},
            stages=stages,
            peak_mem_gib=peak,
            mem_low_gib=low,
            mem_high_gib=high,
            assumptions=[],
        )

    def gain(self, model: Model, layout: Layout, over: Layout) -> tuple[float, float]:
        """Return the speed of a layout over another, minus one, and the half width of its band."""
        (new, new_slope, _), (old, old_slope, _) = self.log_step(model, layout), self.log_step(model, over)
        a, b = place(layout), place(over)
        slope = [x - y for x, y in zip(new_slope, old_slope, strict=True)]
        r = self.residual
        variance = quadratic(self.covariance, slope, slope)
        variance += r.covariance(a, a) + r.covariance(b, b) - 2 * r.covariance(a, b)
        ratio = math.exp(old - new)
        return ratio - 1, ratio * (math.exp(Z * math.sqrt(max(variance, 1e-8))) - 1)


def prior_of(machine: Hardware | None = None) -> Matrix:
    """Return the prior covariance of the knobs."""
    width = dict(PRIOR)
    if machine is not None and machine.synchronous:
        width.update(CPU_PRIOR)
    matrix = [[0.0] * len(KNOBS) for _ in KNOBS]
    for name, sigma in width.items():
        matrix[AT[name]][AT[name]] = sigma * sigma
    for names in SHARED:
        for a in names:
            for b in names:
                if a != b:
                    matrix[AT[a]][AT[b]] = 0.5 * width[a] * width[b]
    return matrix


NEUTRAL = Learnt(NO_THETA, prior_of(), Residual(sigma=RESIDUAL, noise=STEP_NOISE), memory_prior())


def learn(shape: Shape, machine: Hardware, observations: list[Observation]) -> Learnt:
    """Return the correction after these observations; none gives the priors."""
    model = model_of(shape, machine)
    prior = prior_of(machine)
    seen = [o for o in observations if o.outcome == "ok" and o.step_s > 0]
    theta, covariance = list(NO_THETA), prior
    for _ in range(6 if seen else 0):
        rows = [row for o in seen for row in _equations(model, o, tuple(theta))]
        before = theta
        theta, covariance = posterior(prior, rows)
        if max(abs(a - b) for a, b in zip(theta, before, strict=True)) < 1e-4:
            break
    fixed = tuple(theta)
    residual = Residual(
        [place(o.layout) for o in seen],
        [math.log(o.step_s) - math.log(model.step(o.layout, fixed).seconds) for o in seen],
        sigma=RESIDUAL,
        noise=STEP_NOISE,
    )
    memory = learn_memory(model, [(o.layout, o.outcome, o.peak_mem_gib) for o in observations])
    return Learnt(fixed, covariance, residual, memory, len(observations))


def _equations(model: Model, seen: Observation, theta: Theta) -> list[tuple[Vector, float, float]]:
    """Return the linearised equations of one observation around `theta`."""
    rows = []
    step = model.step(seen.layout, theta)
    slope = [s / step.seconds for s in step.slope]
    rows.append(_row(slope, math.log(seen.step_s / step.seconds), theta, math.hypot(RESIDUAL, STEP_NOISE)))
    if not seen.parts:
        return rows
    told, slopes = model.rank_slopes(seen.layout, seen.stage, theta)
    for name, seconds in seen.parts.items():
        members = [n for n in PART_NAMES.get(name, (name,)) if n in told]
        mine = sum(told[n] for n in members)
        if not members or mine <= 1e-4 * step.seconds:
            continue
        if seconds <= 1e-3 * seen.step_s:
            if mine <= 2e-3 * step.seconds:
                continue
            seconds = 1e-3 * seen.step_s
        slope = [sum(slopes[n][i] for n in members) / mine for i in range(len(KNOBS))]
        sigma = min(math.hypot(PART_NOISE, 0.01 * seen.step_s / seconds), TRACE_NOISE)
        rows.append(_row(slope, math.log(seconds / mine), theta, sigma))
    return rows


def _row(slope: Vector, gap: float, theta: Theta, sigma: float) -> tuple[Vector, float, float]:
    return slope, gap + sum(s * t for s, t in zip(slope, theta, strict=True)), sigma
