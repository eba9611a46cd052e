"""Names of communication, as profilers write them, brought to one short list of kinds.

The same exchange is `gloo:all_to_all` on a CPU worker thread, `c10d::alltoall_base_` where it is launched and
`ncclDevKernel_SendRecv` on a GPU. People choose levers by what is exchanged, so that is what the kinds say.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable
from typing import Any, NamedTuple

from attuner.traces.document import Slice
from attuner.traces.intervals import Interval

KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv", "broadcast", "barrier", "other")

# in this order: a send inside `all_to_all` must not win over it
_STEMS = (
    ("reducescatter", "reduce_scatter"),
    ("allreduce", "all_reduce"),
    ("allgather", "all_gather"),
    ("alltoall", "all_to_all"),
    ("broadcast", "broadcast"),
    ("barrier", "barrier"),
    ("send", "send_recv"),
    ("recv", "send_recv"),
)
_NOT_A_LETTER = re.compile(r"[^a-z]+")
_GPU_COLLECTIVE = re.compile(r"[nr]ccl", re.IGNORECASE)
_LAUNCH_PREFIXES = ("c10d::", "_c10d_functional::", "c10d_functional::")
_WORK_PREFIXES = ("gloo:", "mpi:", "ucc:")


class Communication(NamedTuple):
    """One stretch of communication, microseconds, with its kind."""

    start: float
    end: float
    kind: str


def kind_of(name: str) -> str:
    """Return the kind of a collective, one of `KINDS`, from any profiler's spelling of it."""
    letters = _NOT_A_LETTER.sub("", name.lower())
    return next((kind for stem, kind in _STEMS if stem in letters), "other")


def is_launch(name: str) -> bool:
    """Tell whether a host operator starts (or waits for) a collective."""
    return name.startswith(_LAUNCH_PREFIXES)


def is_work(name: str) -> bool:
    """Tell whether an annotation is a CPU backend's collective at work, wherever it runs."""
    return name.startswith(_WORK_PREFIXES)


def is_gpu_collective(name: str) -> bool:
    """Tell whether a kernel is NCCL's or RCCL's (`ncclKernel_…`, `ncclDevKernel_…`, `rccl…`)."""
    return _GPU_COLLECTIVE.search(name) is not None


def cpu_communication(work: list[Slice], launches: list[Slice]) -> list[Communication]:
    """Return all communication of a CPU run: collectives at work and the operators that launch or await them.

    gloo carries out a reduce-scatter as one or more all-reduces and writes it so. Each all-reduce at work takes the
    name of the last launch of either kind before it: exact for calls that wait, and a guess only where calls of both
    kinds queue up.
    """
    named = [(x.start, k) for x in launches if (k := kind_of(x.name)) in ("all_reduce", "reduce_scatter")]
    named.sort()
    starts = [start for start, _ in named]

    def kind(w: Slice) -> str:
        written = kind_of(w.name)
        at = bisect_right(starts, w.start) - 1
        return named[at][1] if written == "all_reduce" and at >= 0 else written

    at_work = [Communication(w.start, w.end, kind(w)) for w in work]
    return at_work + [Communication(x.start, x.end, kind_of(x.name)) for x in launches]


def gpu_communication(kernels: list[Slice], launches: dict[Any, Slice], notes: list[Slice]) -> list[Communication]:
    """Return the GPU's communication; `launches` are host calls by correlation id, `notes` the `nccl:…` annotations.

    A kernel's own name isn't enough: SendRecv also carries all-to-all, and ROCm calls every kernel Generic. So the
    recorded collective name comes first, then the annotation its launch lies in, then the kernel's name.
    """
    by_thread: dict[Any, list[Slice]] = {}
    for note in sorted(notes, key=lambda n: n.start):
        by_thread.setdefault(note.thread, []).append(note)
    starts = {thread: [n.start for n in found] for thread, found in by_thread.items()}

    def kind(kernel: Slice) -> str:
        recorded = kernel.args.get("Collective name")
        if isinstance(recorded, str) and kind_of(recorded) != "other":
            return kind_of(recorded)
        correlation = kernel.args.get("correlation")
        launch = launches.get(correlation) if isinstance(correlation, int) else None
        if launch is not None and launch.thread in starts:
            at = bisect_right(starts[launch.thread], launch.start) - 1
            if at >= 0 and launch.start <= by_thread[launch.thread][at].end:
                return kind_of(by_thread[launch.thread][at].name)
        return kind_of(kernel.name)

    return [Communication(k.start, k.end, kind(k)) for k in kernels]


def by_kind(communication: Iterable[Communication]) -> dict[str, list[Interval]]:
    """Share the time of all communication out by kind, so that no instant counts twice.

    Where two collectives run at once, the instant belongs to the one that started first.
    """
    out: dict[str, list[Interval]] = {}
    covered = float("-inf")
    for start, end, kind in sorted(communication):
        if end > covered:
            out.setdefault(kind, []).append((max(start, covered), end))
            covered = end
    return out
