"""A step of a GPU run: every nanosecond of it goes to the first of these that holds.

compute   a kernel runs that is no collective
exposed   an NCCL or RCCL kernel runs
copy      memory is copied or filled
host      the device does nothing, and the launch call of what it does next hasn't returned yet: it waits for the host
idle      the device does nothing although its next work is launched, or the host itself waits in a synchronize call
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from attuner.traces.collectives import Groups, named
from attuner.traces.columns import Events
from attuner.traces.exchanges import exchanges
from attuner.traces.intervals import EMPTY, Ints, Spans, joined, shared_out, union
from attuner.traces.launches import Launches, match, waiting
from attuner.traces.names import Cat, Says
from attuner.traces.records import StepParts
from attuner.traces.steps import PYTHON_GAP_NS, Steps, by_label, host_marks, phases


@dataclass(frozen=True, eq=False)
class Device:
    """All of a trace's device records, by what they are."""

    launches: Launches
    is_comm: Ints
    """Of each record (in order of start): whether it is a collective's kernel."""
    is_kernel: Ints
    compute: Spans
    comm: Spans
    copies: Spans
    busy: Spans
    pieces: tuple[Ints, Ints, Ints]
    """Communication without overlaps: start, end, label (kind and group)."""
    kinds: list[str]
    """Of each communication kernel, in order of start."""
    matched_by_order: int
    """Communication kernels without a launch whose collective was told by time."""


def device_of(events: Events, flags: Ints, groups: Groups) -> Device:
    """Return the device side of a trace."""
    launches = match(events, flags)
    cat = events.cat[launches.rows]
    kernel = cat == Cat.KERNEL
    comm = kernel & ((flags[launches.rows] & Says.NCCL) != 0)
    start, end = launches.start, launches.end
    kinds, labels, guessed = exchanges(events, flags, launches, np.flatnonzero(comm), groups)
    a, b, of = shared_out(start[comm], end[comm])
    compute, exchange, copies = (union(start[m], end[m]) for m in (kernel & ~comm, comm, ~kernel))
    return Device(
        launches=launches,
        is_comm=comm,
        is_kernel=kernel,
        compute=compute,
        comm=exchange,
        copies=copies,
        busy=joined(compute, exchange, copies),
        pieces=(a, b, labels[of] if len(of) else of),
        kinds=kinds,
        matched_by_order=guessed,
    )


def split(events: Events, flags: Ints, device: Device, steps: Steps) -> tuple[list[StepParts], Spans]:
    """Return the parts of every step, and the host-bound time of all."""
    a, b = steps.start, steps.end
    compute = device.compute.within(a, b)
    with_comm = joined(device.compute, device.comm).within(a, b)
    busy = device.busy.within(a, b)
    idle_spans = _gaps(device.busy, steps)
    host = _host_bound(events, flags, device.launches, idle_spans, steps)
    host_ns = host.within(a, b)
    exposed, all_comm = by_label(device.pieces, device.compute, steps)
    detail = _detail(events, flags, device, steps)
    records = _per_step(device.launches.start[device.is_kernel], steps)
    missing = _per_step(np.sort(events.start[device.launches.unseen]), steps)
    copies = device.copies.within(a, b)
    out = []
    for n, number in enumerate(steps.number):
        hidden = all_comm[n] - exposed[n]
        out.append(
            StepParts(
                number=number,
                start=int(a[n]),
                span=int(b[n] - a[n]),
                compute=int(compute[n]),
                exposed=int(with_comm[n] - compute[n]),
                copy=int(busy[n] - with_comm[n]),
                host=int(host_ns[n]),
                idle=int(b[n] - a[n] - busy[n] - host_ns[n]),
                hidden=int(hidden.sum()),
                copies=int(copies[n]),
                exposed_by_kind=named(exposed[n], 0),
                exposed_by_group=named(exposed[n], 1),
                hidden_by_group=named(hidden, 1),
                detail={k: int(v[n]) for k, v in detail.items()},
                records=int(records[n]),
                missing=int(missing[n]),
            )
        )
    _list_collectives(device, out)
    return out, host


def _gaps(busy: Spans, steps: Steps) -> Spans:
    found = [busy.gaps(int(a), int(b)) for a, b in zip(steps.start, steps.end, strict=True)]
    return joined(*found) if found else EMPTY


def _host_bound(events: Events, flags: Ints, launches: Launches, gaps: Spans, steps: Steps) -> Spans:
    """Return the idle stretches in which the device waits for the host.

    Where nothing tells which launch ends a stretch, it is the host's if its threads show work there.
    """
    if not len(gaps):
        return EMPTY
    following = np.searchsorted(launches.start, gaps.end, side="left")
    known = following < len(launches.start)
    launch = np.where(known, launches.launch[np.minimum(following, len(launches.start) - 1)], -1)
    told = launch >= 0
    returned = np.clip(events.end[launch[told]], gaps.start[told], gaps.end[told])
    lagging = union(gaps.start[told], returned)
    untold = Spans(gaps.start[~told], gaps.end[~told])
    if len(untold):
        marks = host_marks(events, flags, steps.threads)
        near = (events.end[marks] >= untold.start[0] - PYTHON_GAP_NS) & (events.start[marks] <= untold.end[-1] + PYTHON_GAP_NS)
        marks = marks[near]
        lagging = joined(lagging, union(events.start[marks], events.end[marks], gap=PYTHON_GAP_NS).and_(untold))
    waits = waiting(events, flags, steps.threads)
    return lagging.minus(union(events.start[waits], events.end[waits]))


def _detail(events: Events, flags: Ints, device: Device, steps: Steps) -> dict[str, Ints]:
    """Return forward, backward, recompute and optimizer inside compute, by where each kernel was launched.

    Empty without a mark of the autograd engine. A kernel without a launch is in none of them.
    """
    if not ((flags & Says.AUTOGRAD) != 0).any():
        return {}
    found = device.launches
    mine = np.flatnonzero(device.is_kernel & ~device.is_comm & (found.launch >= 0))
    calls = found.launch[mine]
    at, thread = events.start[calls], events.thread[calls]
    phase = np.zeros(len(mine), dtype=np.int8)  # 0 forward, 1 optimizer, 2 backward, 3 recompute
    for t, marks in phases(events, flags, events.threads_of(calls)).items():
        here = np.flatnonzero(thread == t)
        for code, spans in ((1, marks.optimizer), (2, marks.backward), (3, marks.recompute)):
            phase[here[spans.holds(at[here])]] = code
    so_far, out, before = EMPTY, {}, np.zeros(len(steps.number), dtype=np.int64)
    for code, name in ((3, "recompute"), (2, "backward"), (1, "optimizer"), (0, "forward")):
        rows = mine[phase == code]
        so_far = joined(so_far, union(found.start[rows], found.end[rows]))
        reached = so_far.within(steps.start, steps.end)
        out[name], before = reached - before, reached
    return out if out["recompute"].any() else {k: v for k, v in out.items() if k != "recompute"}


def _per_step(at: Ints, steps: Steps) -> Ints:
    """Return how many of the sorted instants lie in each step."""
    found = np.searchsorted(at, steps.end, side="left") - np.searchsorted(at, steps.start, side="left")
    return np.asarray(found, dtype=np.int64)


def _list_collectives(device: Device, out: list[StepParts]) -> None:
    chosen = np.flatnonzero(device.is_comm)
    start, end = device.launches.start[chosen], device.launches.end[chosen]
    for parts in out:
        first, last = np.searchsorted(start, (parts.start, parts.start + parts.span), side="left").tolist()
        lengths = (end[first:last] - start[first:last]).tolist()
        parts.collectives = list(zip(device.kinds[first:last], lengths, strict=True))
