"""How alike two layouts are: a kernel for what the model's formulas miss, which is shared by neighbouring layouts."""

from __future__ import annotations

import math
from collections.abc import Sequence

from attuner.estimate.gauss import Matrix, Vector, cholesky, solve
from attuner.estimate.shape import Layout

REACH = 8.0
"""Doublings (or switches) after which two layouts share little of what the formulas miss."""
LEVEL = {"none": 0.0, "selective": 1.0, "full": 2.0}
Place = tuple[float, ...]


def place(layout: Layout) -> Place:
    """Return a layout's coordinates: logarithms of its sizes, and its switches."""
    sizes = (layout.tp, layout.pp, layout.vp, layout.cp, layout.ep, layout.etp, layout.micro_batch)
    switches = (
        *(layout.sequence_parallel, layout.distributed_optimizer, layout.overlap_grad_reduce, layout.overlap_param_gather),
        *(layout.attention == "flash", layout.dispatcher == "alltoall", layout.offload > 0, layout.overlap_ep),
    )
    return (*(math.log2(s) for s in sizes), LEVEL[layout.recompute], *(float(s) for s in switches))


def likeness(a: Place, b: Place) -> float:
    """Return 1 for the same layout, less the more differs."""
    return math.exp(-sum(abs(x - y) for x, y in zip(a, b, strict=True)) / REACH)


class Residual:
    """What observed layouts deviate by, as a Gaussian process over layouts."""

    def __init__(self, places: Sequence[Place] = (), values: Sequence[float] = (), *, sigma: float, noise: float) -> None:
        self.places, self.sigma = list(places), sigma
        matrix: Matrix = [[sigma**2 * likeness(a, b) for b in self.places] for a in self.places]
        for i in range(len(matrix)):
            matrix[i][i] += noise**2
        self._low = cholesky(matrix) if matrix else []
        self._weights = solve(self._low, list(values)) if matrix else []

    def mean(self, at: Place) -> float:
        """Return the deviation expected at a layout."""
        return sum(w * k for w, k in zip(self._weights, self._reach(at), strict=True))

    def covariance(self, a: Place, b: Place) -> float:
        """Return how far the deviations of two layouts are open, together."""
        own = self.sigma**2 * likeness(a, b)
        if not self.places:
            return own
        known = solve(self._low, self._reach(b))
        return own - sum(x * y for x, y in zip(self._reach(a), known, strict=True))

    def _reach(self, at: Place) -> Vector:
        return [self.sigma**2 * likeness(at, p) for p in self.places]
