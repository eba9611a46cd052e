"""Which stretches of a trace are steps, which threads train, and what the host did there."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from attuner.traces.collectives import NUM_LABELS
from attuner.traces.columns import Events
from attuner.traces.intervals import Ints, Spans, union
from attuner.traces.names import Cat, Says, step_number

PYTHON_GAP_NS = 1_000_000
"""Longest pause between two recorded marks that still counts as Python (interpreter work between operators)."""


@dataclass(frozen=True, eq=False)
class Steps:
    """The steps in order: number, window in ns, and the threads that train."""

    number: list[int]
    start: Ints
    end: Ints
    threads: Ints
    """The thread that annotated the steps, and autograd's."""


def find_steps(events: Events, flags: Ints) -> Steps:
    """Return the profiled steps as the main thread annotated them; nested or repeated marks: the longest is the step."""
    rows = np.flatnonzero(((flags & Says.STEP) != 0) & (events.cat != Cat.GPU_NOTE) & (events.end > events.start))
    best: dict[int, int] = {}
    for row in rows.tolist():
        number = step_number(events.names[events.name[row]])
        if number is None:
            continue
        old = best.get(number)
        if old is None or events.end[row] - events.start[row] > events.end[old] - events.start[old]:
            best[number] = row
    numbers = sorted(best)
    kept = np.array([best[n] for n in numbers], dtype=np.int64)
    autograd = np.flatnonzero((flags & Says.AUTOGRAD) != 0)
    return Steps(numbers, events.start[kept], events.end[kept], events.threads_of(np.concatenate((kept, autograd))))


def host_marks(events: Events, flags: Ints, threads: Ints) -> Ints:
    """Return the rows that show a training thread at work."""
    worker = (flags & Says.WORKS_COMM) == 0
    host = (events.cat == Cat.CPU_OP) | (events.cat == Cat.RUNTIME)
    return np.flatnonzero(host & worker & ((flags & Says.STEP) == 0) & events.on(threads))


@dataclass(frozen=True, eq=False)
class Phases:
    """Where a thread is in the backward pass, recomputes, or updates weights."""

    backward: Spans
    recompute: Spans
    optimizer: Spans


def phases(events: Events, flags: Ints, threads: Ints) -> dict[int, Phases]:
    """Return the phases of each training thread.

    Recompute is the time inside the backward of a checkpointed block that isn't inside a backward of its own.
    """
    out: dict[int, Phases] = {}
    host = (events.cat == Cat.CPU_OP) | (events.cat == Cat.NOTE)
    marked = np.flatnonzero(host & ((flags & (Says.AUTOGRAD | Says.CHECKPOINT | Says.OPTIMIZER)) != 0))
    says, thread = flags[marked], events.thread[marked]
    checkpoint = (says & Says.CHECKPOINT) != 0
    for t in threads.tolist():
        here = thread == t

        def spans(chosen: Ints, here: Ints = here) -> Spans:
            rows = marked[here & chosen]
            return union(events.start[rows], events.end[rows])

        autograd = (says & Says.AUTOGRAD) != 0
        outer = spans(checkpoint)
        out[t] = Phases(
            backward=spans(autograd),
            recompute=outer.minus(spans(autograd & ~checkpoint).and_(outer)) if len(outer) else outer,
            optimizer=spans((says & Says.OPTIMIZER) != 0),
        )
    return out


def by_label(pieces: tuple[Ints, Ints, Ints], compute: Spans, steps: Steps) -> tuple[Ints, Ints]:
    """Return exposed and all communication per step and label, ns; `pieces` don't overlap and come in order of time."""
    start, end, of = pieces
    exposed = np.zeros((len(steps.number), NUM_LABELS), dtype=np.int64)
    whole = np.zeros_like(exposed)
    for n, (low, high) in enumerate(zip(steps.start.tolist(), steps.end.tolist(), strict=True)):
        here = slice(int(np.searchsorted(end, low, side="right")), int(np.searchsorted(start, high, side="left")))
        a, b = np.maximum(start[here], low), np.minimum(end[here], high)
        np.add.at(whole[n], of[here], b - a)
        np.add.at(exposed[n], of[here], b - a - compute.within(a, b))
    return exposed, whole
