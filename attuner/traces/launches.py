"""Ties what ran on a device to the host call that launched it, by correlation id, and says how that went.

ROCm writes correlation 0 for communication kernels (ROCm/roctracer 100): 0 is no id. One launch of a CUDA graph has many
kernels under its id. Where device records begin before their launch, the two clocks differ (kineto 1380, roctracer).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from attuner.traces.columns import Events
from attuner.traces.intervals import Bools, Ints
from attuner.traces.names import Cat, Says
from attuner.traces.records import LaunchStats

_SHIFT_SHARE = 0.2
"""Clocks plainly differ where this share of the records begins before its launch by more than `_SLACK_NS`."""
_SLACK_NS = 2_000


@dataclass(frozen=True, eq=False)
class Launches:
    """The device's records in order of their start, and the launch of each."""

    rows: Ints
    """Rows in `Events`."""
    start: Ints
    end: Ints
    launch: Ints
    """Row of the launch call; -1 where the trace has none."""
    stats: LaunchStats
    unseen: Ints
    """Rows of launch calls without a record on the device."""


def match(events: Events, flags: Ints) -> Launches:
    """Return the device's records with their launches; `flags` are `Says` by row."""
    rows = np.flatnonzero(events.cat <= Cat.MEMSET)
    calls = np.flatnonzero((events.cat == Cat.RUNTIME) & (events.correlation > 0))
    calls = calls[np.argsort(events.correlation[calls], kind="stable")]
    ids, wanted = events.correlation[calls], events.correlation[rows]
    launch = np.full(len(rows), -1, dtype=np.int64)
    if len(calls):
        at = np.searchsorted(ids, wanted, side="right") - 1
        hit = (wanted > 0) & (ids[np.maximum(at, 0)] == wanted) & (at >= 0)
        launch[hit] = calls[at[hit]]
    shift = _shift(events, rows, launch)
    order = np.argsort(events.start[rows], kind="stable")
    rows, launch = rows[order], launch[order]
    start, end = events.start[rows] + shift, events.end[rows] + shift
    launching = calls[(flags[calls] & Says.LAUNCH) != 0]
    recorded = np.sort(wanted)
    here = np.searchsorted(recorded, events.correlation[launching])
    unseen = launching[recorded[np.minimum(here, len(recorded) - 1)] != events.correlation[launching]]
    return Launches(rows, start, end, launch, _stats(events, flags, rows, start, launch, len(unseen), shift), unseen)


def _shift(events: Events, rows: Ints, launch: Ints) -> int:
    """Return by how much device times must move so that (nearly) nothing begins before its launch; mostly 0."""
    hit = launch >= 0
    delay = events.start[rows[hit]] - events.start[launch[hit]]
    if len(delay) < 8 or float((delay < -_SLACK_NS).mean()) < _SHIFT_SHARE:
        return 0
    return -int(np.sort(delay)[len(delay) // 100])


def _stats(events: Events, flags: Ints, rows: Ints, start: Ints, launch: Ints, lost: int, shift: int) -> LaunchStats:
    hit = launch >= 0
    calls = launch[hit]
    delay = start[hit] - events.start[calls]
    clamped = int((delay < 0).sum())
    delay = np.maximum(delay, 0)
    in_graph = (flags[calls] & Says.GRAPH) != 0
    single = np.sort(calls[~in_graph])
    return LaunchStats(
        records=len(rows),
        matched=int(hit.sum()),
        lost=lost,
        shared=int((single[1:] == single[:-1]).sum()),
        graph=int(in_graph.sum()),
        graph_launches=int((np.diff(np.sort(calls[in_graph]), prepend=-1) > 0).sum()),
        clamped=clamped,
        mean_delay=round(float(delay.mean())) if len(delay) else 0,
        median_delay=int(np.sort(delay)[(len(delay) - 1) // 2]) if len(delay) else 0,
        max_queue=_queue(events.start[calls], events.start[calls] + delay),
        overlapping=_overlaps(events, rows, start, shift),
        clock_shift=shift,
    )


def _queue(launched: Ints, began: Ints) -> int:
    """Return the largest number of launches that had not begun on the device."""
    if not len(launched):
        return 0
    at = np.concatenate((launched, began))
    change = np.concatenate((np.ones(len(launched), dtype=np.int64), -np.ones(len(began), dtype=np.int64)))
    return int(np.cumsum(change[np.lexsort((change, at))]).max())


def _overlaps(events: Events, rows: Ints, start: Ints, shift: int) -> int:
    streams = events.thread[rows]
    order = np.argsort(streams, kind="stable")
    stream, begin, stop = streams[order], start[order], events.end[rows[order]] + shift
    return int(((stream[1:] == stream[:-1]) & (begin[1:] < stop[:-1])).sum())


def waiting(events: Events, flags: Ints, threads: Ints) -> Bools:
    """Return which rows are calls, on the given threads, in which the host waits for the device."""
    waits: Bools = (events.cat == Cat.RUNTIME) & ((flags & Says.SYNC) != 0) & events.on(threads)
    return waits
