"""Bottlenecks of a step, ranked, each with the most that removing it could give."""

from __future__ import annotations

import math

from attuner.core.base import Record
from attuner.core.run import StepBreakdown


class Bottleneck(Record):
    """One part of the step: its share, and the gain if it vanished and nothing else grew."""

    name: str
    share: float
    """Fraction of the step, mean over ranks and steps."""
    max_gain: float
    """Fraction of speed, 1 / (1 − share) − 1: an upper bound; infinite for a step that is nothing else."""


def ranked(breakdown: StepBreakdown) -> list[Bottleneck]:
    """Return the parts of the step, largest first; communication by kind as `exposed_comm:<kind>`.

    Parts that take no time are left out. Exposed time that no kind explains appears as `exposed_comm:other`.
    """
    shares = breakdown.shares()
    exposed = shares.pop("exposed_comm")
    kinds = breakdown.comm_shares()
    unexplained = exposed - sum(kinds.values())
    if unexplained > 1e-9:
        kinds["other"] = kinds.get("other", 0.0) + unexplained
    parts = {**shares, **{f"exposed_comm:{kind}": share for kind, share in kinds.items()}}
    found = [Bottleneck(name=n, share=share, max_gain=_max_gain(share)) for n, share in parts.items() if share > 0]
    return sorted(found, key=lambda b: (-b.share, b.name))


def _max_gain(share: float) -> float:
    return 1.0 / (1.0 - share) - 1.0 if share < 1.0 else math.inf
