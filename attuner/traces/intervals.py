"""Arithmetic on time intervals in whole nanoseconds, on numpy arrays: exact, and quick on a million of them.

`Spans` is a set of instants kept as sorted stretches that neither overlap nor touch. What of it lies before any
instant is looked up in its running total, so that the length of a set in a thousand windows costs two searches each.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

NONE: Ints = np.empty(0, dtype=np.int64)


@dataclass(frozen=True, eq=False)
class Spans:
    """A set of instants: `start` and `end` of its stretches in ns, sorted, without overlaps, none empty."""

    start: Ints
    end: Ints

    def __len__(self) -> int:
        return len(self.start)

    @cached_property
    def _before(self) -> Ints:
        """Length of all stretches before the k-th; one longer than the stretches."""
        return np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(self.end - self.start)))

    def total(self) -> int:
        """Return the length of the whole set, ns."""
        return int(self._before[-1])

    def before(self, at: Ints) -> Ints:
        """Return how much of the set lies before each instant, ns."""
        k = np.searchsorted(self.end, at, side="right")
        whole = self._before[k]
        if not len(self.start):
            return whole
        inside = np.maximum(at - self.start[np.minimum(k, len(self.start) - 1)], 0)
        return whole + np.where(k < len(self.start), inside, 0)

    def within(self, start: Ints, end: Ints) -> Ints:
        """Return how much of the set lies in each window [start, end), ns."""
        return self.before(end) - self.before(start)

    def holds(self, at: Ints) -> Bools:
        """Tell for each instant whether it is in the set."""
        if not len(self.start):
            return np.zeros(len(at), dtype=np.bool_)
        k = np.searchsorted(self.start, at, side="right") - 1
        return (k >= 0) & (at < self.end[np.maximum(k, 0)])

    def clip(self, start: int, end: int) -> Spans:
        """Return the part of the set in [start, end)."""
        first = int(np.searchsorted(self.end, start, side="right"))
        last = int(np.searchsorted(self.start, end, side="left"))
        if first >= last:
            return EMPTY
        return Spans(np.maximum(self.start[first:last], start), np.minimum(self.end[first:last], end))

    def and_(self, other: Spans) -> Spans:
        """Return what is in both sets."""
        if not len(self) or not len(other):
            return EMPTY
        first = np.searchsorted(other.end, self.start, side="right")
        counts = np.maximum(np.searchsorted(other.start, self.end, side="left") - first, 0)
        mine = np.repeat(np.arange(len(self.start)), counts)
        run = np.arange(len(mine)) - np.repeat(np.cumsum(counts) - counts, counts)
        theirs = first[mine] + run
        return Spans(np.maximum(self.start[mine], other.start[theirs]), np.minimum(self.end[mine], other.end[theirs]))

    def gaps(self, start: int, end: int) -> Spans:
        """Return the part of [start, end) that isn't in the set."""
        inside = self.clip(start, end)
        a = np.concatenate((np.array([start], dtype=np.int64), inside.end))
        b = np.concatenate((inside.start, np.array([end], dtype=np.int64)))
        keep = b > a
        return Spans(a[keep], b[keep])

    def minus(self, other: Spans) -> Spans:
        """Return what is in this set and not in the other."""
        if not len(self) or not len(other):
            return self
        return self.and_(other.gaps(int(self.start[0]), int(self.end[-1])))


EMPTY = Spans(NONE, NONE)


def union(start: Ints, end: Ints, *, gap: int = 0) -> Spans:
    """Return the time that any of the intervals covers; empty and reversed ones are dropped.

    Stretches at most `gap` ns apart are joined into one.
    """
    keep = end > start
    if not keep.all():
        start, end = start[keep], end[keep]
    if not len(start):
        return EMPTY
    if (start[1:] < start[:-1]).any():
        order = np.argsort(start, kind="stable")
        start, end = start[order], end[order]
    reach = np.maximum.accumulate(end)
    breaks = np.flatnonzero(start[1:] > reach[:-1] + gap)
    firsts = np.concatenate((np.zeros(1, dtype=np.int64), breaks + 1))
    lasts = np.concatenate((breaks, np.array([len(start) - 1])))
    return Spans(start[firsts], reach[lasts])


def joined(*sets: Spans, gap: int = 0) -> Spans:
    """Return what is in any of the sets."""
    return union(np.concatenate([s.start for s in sets]), np.concatenate([s.end for s in sets]), gap=gap)


def shared_out(start: Ints, end: Ints) -> tuple[Ints, Ints, Ints]:
    """Share overlapping intervals out, so that no instant counts twice: it belongs to the interval that began first.

    Returns start and end of the pieces in order of time, and for each the index of the interval it is of.
    """
    order = np.lexsort((end, start))
    a, b = start[order], end[order]
    reach = np.maximum.accumulate(b) if len(b) else b
    a = np.maximum(a, np.concatenate((a[:1], reach[:-1])))
    keep = b > a
    return a[keep], b[keep], order[keep]
