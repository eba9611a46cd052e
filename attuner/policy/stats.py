"""The one distribution that judging needs and the standard library lacks: Student's t, exact for whole degrees of freedom."""

from __future__ import annotations

import functools
import math


def student_tail(t: float, dof: int) -> float:
    """Return P(T > t) of Student's t for t ≥ 0. Source: Abramowitz and Stegun, 26.7.3 and 26.7.4."""
    angle = math.atan2(t, math.sqrt(dof))
    sine, cosine = math.sin(angle), math.cos(angle)
    odd = dof % 2
    term = cosine if odd else 1.0
    inside = 0.0
    for k in range(1 + odd, dof, 2):
        inside += term
        term *= cosine * cosine * k / (k + 1)
    both = 2 / math.pi * (angle + sine * inside) if odd else sine * inside
    return max((1.0 - both) / 2.0, 0.0)


@functools.lru_cache(maxsize=4096)
def student_quantile(tail: float, dof: int) -> float:
    """Return the t ≥ 0 that is exceeded with probability `tail` (above 0, at most a half).

    Raises:
        ValueError: no such tail, or no degree of freedom.
    """
    if not 0 < tail <= 0.5 or dof < 1:
        raise ValueError(f"no quantile for a tail of {tail} with {dof} degrees of freedom")
    low, high = 0.0, 1.0
    while student_tail(high, dof) > tail and high < 1e12:
        high *= 2.0
    for _ in range(100):
        middle = (low + high) / 2.0
        low, high = (middle, high) if student_tail(middle, dof) > tail else (low, middle)
    return high
