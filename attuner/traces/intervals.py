"""Arithmetic on time intervals: sorted lists of (start, end) pairs that don't overlap, in any one unit.

`union` makes such a list from any pairs; the other functions expect one and return one. Every function is linear in
its input (after the sort in `union`), so a trace of a million events stays cheap.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable

Interval = tuple[float, float]


def union(pairs: Iterable[Interval], *, gap: float = 0.0) -> list[Interval]:
    """Return the time that any of `pairs` covers; empty and reversed pairs are dropped.

    Stretches closer than or exactly `gap` (same unit) are joined into one.
    """
    out: list[Interval] = []
    start = end = 0.0
    for a, b in sorted(p for p in pairs if p[1] > p[0]):
        if out and a <= end + gap:
            if b > end:
                end = b
                out[-1] = (start, end)
        else:
            start, end = a, b
            out.append((start, end))
    return out


def subtract(base: list[Interval], holes: list[Interval]) -> list[Interval]:
    """Return the time in `base` that isn't in `holes`."""
    out: list[Interval] = []
    k = 0
    for base_start, end in base:
        start = base_start
        while k < len(holes) and holes[k][1] <= start:
            k += 1
        j = k
        while j < len(holes) and holes[j][0] < end:
            if holes[j][0] > start:
                out.append((start, holes[j][0]))
            start = max(start, holes[j][1])
            j += 1
        if start < end:
            out.append((start, end))
    return out


def clip(intervals: list[Interval], start: float, end: float) -> list[Interval]:
    """Return the part of `intervals` that lies in [start, end]."""
    first = bisect_left(intervals, start, key=lambda p: p[1])
    last = bisect_right(intervals, end, key=lambda p: p[0])
    clipped = ((max(a, start), min(b, end)) for a, b in intervals[first:last])
    return [(a, b) for a, b in clipped if b > a]


def length(intervals: Iterable[Interval]) -> float:
    """Return the time covered, in the intervals' unit."""
    return sum(b - a for a, b in intervals)
