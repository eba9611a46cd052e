"""Where the profiled steps of one rank went, from the chrome trace that torch.profiler (Kineto) exports.

Every instant of a step (`ProfilerStep#N`, as the main thread annotated it) belongs to exactly one of four parts,
looked up in this order:

compute       CPU run: an `aten::` operator runs on the main or an autograd thread (autograd's own wrappers don't
              count: they span waits). CUDA run: a kernel runs that isn't a collective.
exposed comm  Communication is under way and nothing computes. CPU run: a collective at work (`gloo:…`), or a `c10d::`
              operator that launches or awaits one. CUDA run: an NCCL or RCCL kernel.
host          The training threads are busy with something that is neither: autograd, dispatch, launching kernels.
              Python itself leaves no mark; a pause of at most `PYTHON_GAP_US` between two marks is taken for it. On
              CUDA, a stretch with nothing but memory copies counts here too: the device waits for data.
idle          The rest: nothing was recorded anywhere, or (CUDA) the host waits in a synchronize call for a device
              that does nothing.

Communication time includes waiting for the peer: a slow rank shows as the other ranks' communication.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from attuner.core.errors import UserError
from attuner.core.run import RankStep
from attuner.traces.collectives import (
    Communication,
    by_kind,
    cpu_communication,
    gpu_communication,
    is_gpu_collective,
    is_launch,
    is_work,
)
from attuner.traces.document import Slice, read_slices
from attuner.traces.intervals import Interval, clip, length, subtract, union

PYTHON_GAP_US = 1000.0
"""Longest pause between two recorded marks that still counts as Python (interpreter work between operators)."""

_STEP = "ProfilerStep#"
_HOST_CATEGORIES = frozenset({"cpu_op", "cuda_runtime", "cuda_driver", "hip_runtime", "operator", "runtime"})
_COPIES = frozenset({"gpu_memcpy", "gpu_memset", "memcpy", "memset"})
_AUTOGRAD = "autograd::engine::"
_US = 1e-6

Thread = tuple[int | str, int | str]


@dataclass(frozen=True)
class _Lanes:
    """All of a trace on four kinds of track, microseconds, each without overlaps."""

    compute: list[Interval]
    communication: dict[str, list[Interval]]
    busy: list[Interval]
    """Host work or memory copies, whatever else goes on."""
    device: list[Interval] | None
    """Kernels of a CUDA run; None for a CPU run."""


@dataclass
class _Sorted:
    """The slices of a trace by what they are."""

    steps: dict[int, Slice] = field(default_factory=dict)
    kernels: list[Slice] = field(default_factory=list)
    copies: list[Slice] = field(default_factory=list)
    host: dict[Thread, list[Slice]] = field(default_factory=dict)
    work: list[Slice] = field(default_factory=list)
    notes: list[Slice] = field(default_factory=list)


def breakdown(data: bytes | dict[str, Any], *, rank: int) -> list[RankStep]:
    """Return where each profiled step of a rank went, in seconds, in the order of the steps.

    `data` is a chrome trace: plain JSON, gzip, or already parsed. The four parts of a step add up to `step_s`;
    `comm_by_kind` adds up to `exposed_comm_s`, and includes waiting for the peer. In a CUDA run a step without a
    single kernel is left out (the profiler's own last step, or records that were lost).

    Raises:
        UserError: the trace can't be read, has no profiled step, or is a CUDA run without a GPU record.
    """
    found = _sort(read_slices(data))
    if not found.steps:
        raise UserError("trace: no ProfilerStep#N in it; call profiler.step() once per training step while it records")
    lanes = _gpu_lanes(found) if _is_cuda(found) else _cpu_lanes(found)
    spans = {n: (s.start, s.end) for n, s in sorted(found.steps.items())}
    if lanes.device is not None:
        spans = {n: span for n, span in spans.items() if clip(lanes.device, *span)}
        if not spans:
            raise UserError(
                "trace: the host launched GPU work but no kernel was recorded in any step; "
                "check CUPTI permissions and that the profiler records ProfilerActivity.CUDA"
            )
    return [_split(lanes, span, rank=rank, step=number) for number, span in spans.items()]


def _sort(slices: list[Slice]) -> _Sorted:
    out = _Sorted()
    for s in slices:
        if s.category == "kernel":
            out.kernels.append(s)
        elif s.category in _HOST_CATEGORIES:
            if is_work(s.name):
                out.work.append(s)
            else:
                out.host.setdefault(s.thread, []).append(s)
        elif s.category in _COPIES:
            out.copies.append(s)
        elif s.category == "user_annotation":
            if is_work(s.name):
                out.work.append(s)
            elif is_gpu_collective(s.name):
                out.notes.append(s)
        if s.name.startswith(_STEP) and not s.category.startswith("gpu"):
            _add_step(out.steps, s)
    return out


def _add_step(steps: dict[int, Slice], s: Slice) -> None:
    digits = s.name[len(_STEP) :]
    if digits.isascii() and digits.isdigit() and len(digits) < 16 and s.end > s.start:
        number = int(digits)
        # nested or repeated marks of one step: the longest is the whole of it
        if number not in steps or s.end - s.start > steps[number].end - steps[number].start:
            steps[number] = s


def _is_cuda(found: _Sorted) -> bool:
    if found.kernels or found.copies:
        return True
    return any("LaunchKernel" in s.name for slices in found.host.values() for s in slices)


def _training_threads(found: _Sorted) -> list[list[Slice]]:
    """Return the host slices of the main thread (it annotated the steps) and of autograd's threads."""
    main = {s.thread for s in found.steps.values()}
    return [
        slices for thread, slices in found.host.items() if thread in main or any(s.name.startswith(_AUTOGRAD) for s in slices)
    ]


def _cpu_lanes(found: _Sorted) -> _Lanes:
    compute: list[Interval] = []
    launches: list[Slice] = []
    host: list[Interval] = []
    for slices in _training_threads(found):
        own_launches = [s for s in slices if is_launch(s.name)]
        operators = union((s.start, s.end) for s in slices if s.name.startswith("aten::"))
        # an aten operator can contain a collective of the same thread; what other threads exchange is overlap
        compute += subtract(operators, union((s.start, s.end) for s in own_launches))
        launches += own_launches
        host += ((s.start, s.end) for s in slices if not s.name.startswith(_STEP))
    communication = cpu_communication(found.work, launches)
    marks = host + [(c.start, c.end) for c in communication]
    return _Lanes(
        compute=union(compute),
        communication=by_kind(communication),
        busy=union(marks, gap=PYTHON_GAP_US),
        device=None,
    )


def _gpu_lanes(found: _Sorted) -> _Lanes:
    host: list[Interval] = []
    waits: list[Interval] = []
    launches: dict[Any, Slice] = {}
    for slices in found.host.values():
        for s in slices:
            correlation = s.args.get("correlation")
            if isinstance(correlation, int):
                launches[correlation] = s
    for slices in _training_threads(found):
        host += ((s.start, s.end) for s in slices if not s.name.startswith(_STEP))
        waits += ((s.start, s.end) for s in slices if "Synchronize" in s.name)
    collectives = [k for k in found.kernels if is_gpu_collective(k.name)]
    communication: list[Communication] = gpu_communication(collectives, launches, found.notes)
    copies = union((s.start, s.end) for s in found.copies)
    kernels = union((k.start, k.end) for k in found.kernels)
    busy = subtract(union([*host, *kernels, *copies], gap=PYTHON_GAP_US), union(waits))
    return _Lanes(
        compute=union((k.start, k.end) for k in found.kernels if not is_gpu_collective(k.name)),
        communication=by_kind(communication),
        busy=union([*busy, *copies]),
        device=kernels,
    )


def _split(lanes: _Lanes, span: Interval, *, rank: int, step: int) -> RankStep:
    compute = clip(lanes.compute, *span)
    by_name = {kind: clip(intervals, *span) for kind, intervals in lanes.communication.items()}
    exposed = {kind: length(subtract(intervals, compute)) * _US for kind, intervals in by_name.items()}
    communication = union(pair for intervals in by_name.values() for pair in intervals)
    host = subtract(subtract(clip(lanes.busy, *span), compute), communication)
    idle = subtract(subtract(subtract([span], compute), communication), host)
    compute_s, host_s, idle_s = (length(x) * _US for x in (compute, host, idle))
    exposed_s = sum(exposed.values())
    # the four are a partition of the span by construction; their sum is the step, to rounding
    return RankStep(
        rank=rank,
        step=step,
        step_s=compute_s + exposed_s + host_s + idle_s,
        compute_s=compute_s,
        exposed_comm_s=exposed_s,
        host_s=host_s,
        idle_s=idle_s,
        overlapped_comm_s=max(0.0, length(communication) * _US - exposed_s),
        comm_by_kind={kind: s for kind, s in sorted(exposed.items()) if s > 0},
    )
