"""Which collective each communication kernel is, told from what the host left beside it."""

from __future__ import annotations

from bisect import bisect_right

import numpy as np

from attuner.traces.collectives import Groups, kind_of, label
from attuner.traces.columns import Events
from attuner.traces.document import NO_ARGS, Args
from attuner.traces.intervals import Bools, Ints
from attuner.traces.launches import Launches
from attuner.traces.names import Cat, Says


def exchanges(events: Events, flags: Ints, launches: Launches, chosen: Ints, groups: Groups) -> tuple[list[str], Ints, int]:
    """Return kind and label of each communication kernel, and how many were told by time alone.

    A kernel's own name isn't enough: SendRecv also carries all-to-all, and ROCm calls every kernel Generic. So what the
    profiler recorded of the collective comes first, then the annotation its launch lies in, then the kernel's name.
    """
    notes = _Notes(events, flags)
    kinds: list[str] = []
    found: list[str] = []
    guessed = 0
    rows, calls, starts = (x[chosen].tolist() for x in (launches.rows, launches.launch, launches.start))
    for n, (row, call, start) in enumerate(zip(rows, calls, starts, strict=True)):
        note = notes.around(call) if call >= 0 else notes.by_time(start, n, len(chosen))
        guessed += call < 0 and note is not None
        own, said = events.collectives.get(row, NO_ARGS), notes.said(note)
        texts = [x for x in (own.collective, said.collective) if isinstance(x, str)]
        if note is not None:
            texts.append(events.names[events.name.item(note)])
        kind = next((x for t in texts if (x := kind_of(t)) != "other"), "") or kind_of(events.names[events.name.item(row)])
        source = said if own.group is None and own.group_name is None else own
        kinds.append(kind)
        found.append(groups.of(kind, source.group, source.group_name))
    return kinds, np.array(label(kinds, found), dtype=np.int64), guessed


_Marks = dict[int, tuple[list[int], list[int], list[int]]]
"""By thread: starts, ends and rows, in order of start."""


def _in_order(events: Events, chosen: Bools) -> Ints:
    rows = np.flatnonzero(chosen)
    return rows[np.argsort(events.start[rows], kind="stable")]


def _threads(events: Events, rows: Ints) -> _Marks:
    out = {}
    for thread in events.threads_of(rows).tolist():
        here = rows[events.thread[rows] == thread]
        out[thread] = (events.start[here].tolist(), events.end[here].tolist(), here.tolist())
    return out


class _Notes:
    """The marks that the host leaves of a collective: `nccl:…` annotations and `record_param_comms`."""

    def __init__(self, events: Events, flags: Ints) -> None:
        self._events = events
        host = (events.cat == Cat.CPU_OP) | (events.cat == Cat.NOTE)
        self._named = _in_order(events, host & ((flags & int(Says.NCCL)) != 0))
        self._named_starts = events.start[self._named].tolist()
        self._by_thread = _threads(events, self._named)
        self._params = _threads(events, _in_order(events, host & ((flags & int(Says.PARAMS)) != 0)))

    def around(self, call: int) -> int | None:
        """Return the mark that a launch call lies in; the innermost that began last."""
        at, thread = self._events.start.item(call), self._events.thread.item(call)
        annotated = self._at(self._by_thread, thread, at)
        return annotated if annotated is not None else self._at(self._params, thread, at)

    def _at(self, marks: _Marks, thread: int, at: int) -> int | None:
        starts, ends, rows = marks.get(thread, ([], [], []))
        k = bisect_right(starts, at) - 1
        return rows[k] if k >= 0 and at <= ends[k] else None

    def by_time(self, start: int, n: int, count: int) -> int | None:
        """Return the mark of a kernel without a launch: the n-th of as many, else the last that began before it."""
        if len(self._named) == count:
            return int(self._named[n])
        k = bisect_right(self._named_starts, start) - 1
        return int(self._named[k]) if k >= 0 else None

    def said(self, note: int | None) -> Args:
        """Return what was recorded of a mark's collective: its own arguments, or those recorded around it."""
        if note is None or not self._events.collectives:
            return NO_ARGS
        if (args := self._events.collectives.get(note)) is not None:
            return args
        at, thread = self._events.start.item(note), self._events.thread.item(note)
        params = self._at(self._params, thread, at)
        return self._events.collectives.get(params, NO_ARGS) if params is not None else NO_ARGS
