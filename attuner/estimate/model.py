"""The estimate of one layout: step time with its parts, memory with its parts per stage, and a band around both.

A step of pp stages and m micro-batches lasts (m - 1) turns of the slowest stage, plus one pass through all stages (with virtual
stages the other stages' share of that pass shrinks by vp), plus what is paid once: gradient reduction, update, waiting for the
slowest replica. Corrections (`Theta`) scale components and phases; learning.py finds them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING

from attuner.estimate.atoms import Atoms, StageKind, Taker
from attuner.estimate.hardware import Hardware
from attuner.estimate.layer import (
    COMPONENTS,
    COMPUTE,
    CONTEXT,
    EXPERT_FAR,
    EXPERT_NEAR,
    EXPERT_SPLIT,
    HOST,
    NUM,
    TENSOR_FAR,
    TENSOR_NEAR,
)
from attuner.estimate.shape import Layout, Shape

if TYPE_CHECKING:
    from attuner.estimate.learning import Learnt

PHASES = ("backward", "again_selective", "again_full")
ONCE = ("pipeline", "data_near", "data_far", "optimizer", "offload", "straggler", "bubble")
KNOBS = (*COMPONENTS, *PHASES, *ONCE)
"""What a correction can scale, in the order of every vector of corrections; each is a logarithm, 0 is none."""
AT = {name: i for i, name in enumerate(KNOBS)}
Theta = tuple[float, ...]
NO_THETA: Theta = (0.0,) * len(KNOBS)
STEP_PARTS = (
    *("compute", "recompute", "comm:tensor", "comm:expert", "comm:context", "comm:pipeline", "comm:data"),
    *("bubble", "straggler", "host", "optimizer"),
)


@dataclass(frozen=True)
class Estimate:
    """What a layout will take, with a band that holds about nine times in ten."""

    step_s: float
    step_low_s: float
    step_high_s: float
    tokens_per_s_per_gpu: float
    parts: dict[str, float]
    stages: list[dict[str, float]]
    peak_mem_gib: float
    mem_low_gib: float
    mem_high_gib: float
    assumptions: list[str] = field(default_factory=list)


@dataclass
class Turn:
    """One stage's micro-batch under a correction: seconds by part and in all, and how they answer to each knob."""

    total: float
    parts: dict[str, float]
    slope: list[float]
    forward: float


@dataclass
class Step:
    """A step under a correction: seconds, parts on the slowest stage, and d(step)/d(knob)."""

    seconds: float
    parts: dict[str, float]
    slope: list[float]
    turns: list[Turn]
    slowest: int


class Model:
    """Evaluates layouts of one shape on one machine under any correction."""

    def __init__(self, shape: Shape, machine: Hardware) -> None:
        self.shape, self.machine = shape, machine
        self.taker = Taker(shape, machine)

    def step(self, layout: Layout, theta: Theta = NO_THETA) -> Step:
        """Return the step of a layout under a correction."""
        atoms = self.taker.atoms(layout)
        scale = [math.exp(t) for t in theta]
        again = AT["again_full" if layout.recompute == "full" else "again_selective"]
        turns = [_turn(kind, scale, again) for kind in atoms.kinds]
        slowest = max(range(len(turns)), key=lambda i: turns[i].total)
        m, turn = layout.num_microbatches, turns[slowest]
        fill = (sum(k.count * t.total for k, t in zip(atoms.kinds, turns, strict=True)) - turn.total) / layout.vp
        bubble = fill * scale[AT["bubble"]]
        slope = [m * x for x in turn.slope]
        for kind, other in zip(atoms.kinds, turns, strict=True):
            weight = (kind.count - (kind is atoms.kinds[slowest])) / layout.vp * scale[AT["bubble"]]
            if weight:
                slope = [a + weight * b for a, b in zip(slope, other.slope, strict=True)]
        slope[AT["bubble"]] += bubble
        parts = {name: m * seconds for name, seconds in turn.parts.items()}
        parts["bubble"] = bubble
        self._once(atoms, scale, parts, slope, m * turn.total + bubble)
        return Step(sum(parts.values()), parts, slope, turns, slowest)

    def _once(self, atoms: Atoms, scale: list[float], parts: dict[str, float], slope: list[float], busy: float) -> None:
        data = {"data_near": atoms.data_near_s * scale[AT["data_near"]], "data_far": atoms.data_far_s * scale[AT["data_far"]]}
        whole = sum(data.values())
        floor = self.machine.constants.overlap_left * whole if atoms.data_hidden_s else whole
        parts["comm:data"] = max(whole - atoms.data_hidden_s, floor)
        rate = 1.0 if whole - atoms.data_hidden_s >= floor or not atoms.data_hidden_s else self.machine.constants.overlap_left
        for name, seconds in data.items():
            slope[AT[name]] += seconds * rate
        offload = atoms.offload_s * scale[AT["offload"]]
        parts["optimizer"] = atoms.optimizer_s * scale[AT["optimizer"]] + offload
        slope[AT["optimizer"]] += parts["optimizer"] - offload
        slope[AT["offload"]] += offload
        wait = atoms.straggler * scale[AT["straggler"]]
        parts["straggler"] = wait * busy
        for i, value in enumerate(slope):
            slope[i] = value * (1 + wait) if i not in (AT["data_near"], AT["data_far"], AT["optimizer"], AT["offload"]) else value
        slope[AT["straggler"]] += wait * busy

    def rank_slopes(self, layout: Layout, stage: int | None, theta: Theta) -> tuple[dict[str, float], dict[str, list[float]]]:
        """Return the parts as the ranks of one stage see them, and each part's d/d(knob), by small steps."""
        told = self.rank_parts(layout, stage, theta)
        slopes: dict[str, list[float]] = {name: [0.0] * len(KNOBS) for name in told}
        h = 1e-4
        for i in range(len(KNOBS)):
            moved = self.rank_parts(layout, stage, (*theta[:i], theta[i] + h, *theta[i + 1 :]))
            for name, seconds in moved.items():
                slopes[name][i] = (seconds - told[name]) / h
        return told, slopes

    def rank_parts(self, layout: Layout, stage: int | None, theta: Theta = NO_THETA) -> dict[str, float]:
        """Return the parts as the ranks of one stage see them (None: their mean over stages): the rest of the step is bubble.

        `forward` and `backward` split `compute` and are not counted beside it.
        """
        atoms, step = self.taker.atoms(layout), self.step(layout, theta)
        weights = {atoms.kind_of[stage]: 1.0} if stage is not None else {}
        if stage is None:
            weights = {i: k.count / layout.pp for i, k in enumerate(atoms.kinds)}
        parts = {name: step.parts[name] for name in ("comm:data", "straggler", "optimizer")}
        forward = 0.0
        for i, weight in weights.items():
            turn, m = step.turns[i], layout.num_microbatches
            for name, seconds in turn.parts.items():
                parts[name] = parts.get(name, 0.0) + weight * m * seconds
            forward += weight * m * turn.forward
        parts["bubble"] = step.seconds - sum(parts.values())
        return {**parts, "forward": forward, "backward": parts["compute"] - forward}


def _turn(kind: StageKind, scale: list[float], again_knob: int) -> Turn:
    """Return one micro-batch of one stage kind."""
    back, again = scale[AT["backward"]], scale[again_knob]
    slope = [0.0] * len(KNOBS)
    forward, backward, repeat = kind.cost.forward, kind.cost.backward, kind.cost.again
    seconds = [0.0] * NUM
    repeated = repeated_compute = 0.0
    for i in range(NUM):
        f, b, r = forward[i] * scale[i], backward[i] * scale[i], repeat[i] * scale[i]
        if i in COMPUTE:
            b *= back
            slope[AT["backward"]] += b
            repeated_compute += r * again
        r *= again
        repeated += r
        seconds[i] = f + b + r
        slope[i] = f + b + r
    slope[again_knob] += repeated
    p2p = kind.p2p_s * scale[AT["pipeline"]]
    slope[AT["pipeline"]] += p2p
    parts = {
        "compute": sum(seconds[i] for i in COMPUTE) - repeated_compute,
        "recompute": repeated_compute,
        "comm:tensor": seconds[TENSOR_NEAR] + seconds[TENSOR_FAR],
        "comm:expert": seconds[EXPERT_NEAR] + seconds[EXPERT_FAR] + seconds[EXPERT_SPLIT],
        "comm:context": seconds[CONTEXT],
        "comm:pipeline": p2p,
        "host": seconds[HOST],
    }
    return Turn(sum(seconds) + p2p, parts, slope, sum(forward[i] * scale[i] for i in COMPUTE))


@lru_cache(maxsize=64)
def model_of(shape: Shape, machine: Hardware) -> Model:
    """Return the model of a shape on a machine; its prices are kept from call to call."""
    return Model(shape, machine)


def estimate(shape: Shape, layout: Layout, machine: Hardware, learnt: Learnt | None = None) -> Estimate:
    """Return what a layout will take, corrected by what was learnt.

    Raises:
        Refused: if the layout can't be built, with the formula.
    """
    layout.check(shape)
    from attuner.estimate.learning import NEUTRAL

    return (learnt or NEUTRAL).estimate(model_of(shape, machine), layout)
