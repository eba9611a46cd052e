"""A step of a CPU run (gloo): every nanosecond of it goes to the first of these that holds.

compute   an `aten::` operator runs on the main or an autograd thread (autograd's own wrappers don't count: they span waits)
exposed   a collective is at work (`gloo:…`), or a `c10d::` operator launches or awaits one
host      the training threads are busy with something else: autograd, dispatch. Python itself leaves no mark; a pause
          of at most a millisecond between two marks is taken for it
idle      the rest: nothing was recorded anywhere
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

import numpy as np

from attuner.traces.collectives import Groups, kind_of, label, named
from attuner.traces.columns import Events
from attuner.traces.intervals import EMPTY, Ints, Spans, joined, shared_out, union
from attuner.traces.names import Cat, Says
from attuner.traces.records import StepParts
from attuner.traces.steps import PYTHON_GAP_NS, Steps, by_label, host_marks, phases


@dataclass(frozen=True, eq=False)
class Host:
    """All of a CPU run's trace on three kinds of track, and its communication without overlaps."""

    compute: Spans
    comm: Spans
    busy: Spans
    """Any mark of a training thread or of communication, short pauses closed."""
    pieces: tuple[Ints, Ints, Ints]
    detail: dict[str, Spans]
    works: list[tuple[int, int, str]]
    """Start, length and kind of each collective at work, in order."""


def host_of(events: Events, flags: Ints, steps: Steps, groups: Groups) -> Host:
    """Return a CPU run's tracks."""
    marks = host_marks(events, flags, steps.threads)
    says, thread = flags[marks], events.thread[marks]
    starts_comm = (says & Says.STARTS_COMM) != 0
    compute = EMPTY
    for t in steps.threads.tolist():
        here = thread == t
        operators, launches = marks[here & ((says & Says.ATEN) != 0)], marks[here & starts_comm]
        # an aten operator can contain a collective of the same thread; what other threads exchange is overlap
        own = union(events.start[launches], events.end[launches])
        compute = joined(compute, union(events.start[operators], events.end[operators]).minus(own))
    known = (events.cat == Cat.CPU_OP) | (events.cat == Cat.RUNTIME) | (events.cat == Cat.NOTE)
    work = np.flatnonzero(known & ((flags & Says.WORKS_COMM) != 0))
    rows, kinds, labels = _communication(events, work, marks[starts_comm], groups)
    a, b, of = shared_out(events.start[rows], events.end[rows])
    comm = union(a, b)
    host = union(events.start[marks], events.end[marks])
    return Host(
        compute=compute,
        comm=comm,
        busy=joined(host, comm, gap=PYTHON_GAP_NS),
        pieces=(a, b, labels[of] if len(of) else of),
        detail=_detail(events, flags, steps, marks),
        works=sorted(zip(events.start[work].tolist(), (events.end - events.start)[work].tolist(), kinds, strict=False)),
    )


def _communication(events: Events, work: Ints, launches: Ints, groups: Groups) -> tuple[Ints, list[str], Ints]:
    """Return the rows of all communication (collectives at work, then operators that launch or await them), kinds, labels.

    gloo carries out a reduce-scatter as one or more all-reduces and writes it so. Each all-reduce at work takes the
    name of the last launch of either kind before it: exact for calls that wait, and a guess only where calls of both
    kinds queue up.
    """
    kinds = {row: kind_of(events.names[events.name[row]]) for row in [*work.tolist(), *launches.tolist()]}
    named = sorted((int(events.start[r]), kinds[r]) for r in launches.tolist() if kinds[r] in ("all_reduce", "reduce_scatter"))
    starts = [start for start, _ in named]
    for row in work.tolist():
        at = bisect_right(starts, int(events.start[row])) - 1
        if kinds[row] == "all_reduce" and at >= 0:
            kinds[row] = named[at][1]
    rows = np.concatenate((work, launches))
    found = [kinds[r] for r in rows.tolist()]
    # a barrier and a bare wait are of no kind that a group could be told from: they don't count as untold
    whose = [groups.of(k) if k not in ("other", "barrier") else "unknown" for k in found]
    return rows, found, np.array(label(found, whose), dtype=np.int64)


def _detail(events: Events, flags: Ints, steps: Steps, marks: Ints) -> dict[str, Spans]:
    """Return the time of each phase on any training thread."""
    found = phases(events, flags, steps.threads)
    if not ((flags[marks] & Says.AUTOGRAD) != 0).any():
        return {}
    names = ("recompute", "backward", "optimizer")
    return {k: joined(EMPTY, *(getattr(p, k) for p in found.values())) for k in names}


def split(host: Host, steps: Steps, events: Events) -> tuple[list[StepParts], Spans]:
    """Return the parts of every step, and the host-bound time of all."""
    a, b = steps.start, steps.end
    worked = joined(host.compute, host.comm)
    compute, with_comm = host.compute.within(a, b), worked.within(a, b)
    idle_free = joined(worked, host.busy).within(a, b)
    labels, whole = by_label(host.pieces, host.compute, steps)
    comm = host.comm.within(a, b)
    operators = np.sort(events.start[events.cat == Cat.CPU_OP])
    out = []
    for n, number in enumerate(steps.number):
        exposed = int(with_comm[n] - compute[n])
        out.append(
            StepParts(
                number=number,
                start=int(a[n]),
                span=int(b[n] - a[n]),
                compute=int(compute[n]),
                exposed=exposed,
                copy=0,
                host=int(idle_free[n] - with_comm[n]),
                idle=int(b[n] - a[n] - idle_free[n]),
                hidden=int(comm[n]) - exposed,
                copies=0,
                exposed_by_kind=named(labels[n], 0),
                exposed_by_group=named(labels[n], 1),
                hidden_by_group=named(whole[n] - labels[n], 1),
                detail=_phases_of(host, int(a[n]), int(b[n])),
                records=int(np.searchsorted(operators, b[n]) - np.searchsorted(operators, a[n])),
                collectives=[(kind, length) for start, length, kind in host.works if a[n] <= start < b[n]],
            )
        )
    return out, host.busy.minus(worked)


def _phases_of(host: Host, start: int, end: int) -> dict[str, int]:
    """Return compute by phase; the phases partition it."""
    left, out = host.compute.clip(start, end), {}
    for name, spans in host.detail.items():
        out[name] = left.and_(spans).total()
        left = left.minus(spans)
    if not host.detail:
        return {}
    out["forward"] = left.total()
    return out if out["recompute"] else {k: v for k, v in out.items() if k != "recompute"}
