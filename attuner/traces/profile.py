"""From the bytes of a profiler trace to where each step of its rank went, with everything odd about it said."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np

from attuner.core.errors import UserError
from attuner.traces import cpu, gpu, oddities
from attuner.traces.collectives import GROUPS, Groups
from attuner.traces.columns import Events, read_events
from attuner.traces.intervals import EMPTY, Ints, Spans, union
from attuner.traces.names import Cat, Says, says
from attuner.traces.records import Lane, RankProfile, StepParts, Use
from attuner.traces.steps import Steps, find_steps

_RANK = re.compile(r"rank[-_ ]?(\d{1,7})", re.IGNORECASE)
_FINEST = 16_000
"""Stretches closer than a step over this are drawn as one: a tenth of a pixel, so that shading stays true."""


def profile(
    source: bytes | Iterable[bytes] | dict[str, Any],
    *,
    rank: int | None = None,
    name: str = "",
    whole: bool = True,
    timeline: bool = False,
) -> RankProfile:
    """Return where each profiled step of a rank went.

    `source` is a chrome trace: plain JSON or gzip, in one or several pieces, or already parsed. `rank` overrides what
    trace and file name say. `whole`: a trace without step marks counts as one step; else it is refused.

    Raises:
        UserError: it can't be read, or holds nothing that a breakdown could be made of; the message says why.
    """
    events = read_events(source)
    flags = says(events.names)[events.name]
    out = RankProfile(rank=0, source=name, events=len(events))
    _who(out, events, rank)
    distributed = events.told.meta.get("distributedInfo")
    groups = Groups(distributed if isinstance(distributed, dict) else {})
    oddities.refuse_empty(events)
    on_device = bool((events.cat <= Cat.MEMSET).any())
    launching = ((flags & Says.LAUNCH) != 0) & (events.cat == Cat.RUNTIME)
    if not on_device:
        oddities.refuse_lost_device(events, launching)
    steps = find_steps(events, flags)
    if not steps.number:
        if not whole:
            raise UserError(
                "trace: no ProfilerStep#N in it; call profiler.step() once per training step while it records"
                + (f" (and {events.told.truncated})" if events.told.truncated else "")
            )
        steps, out.whole = _whole(events, flags), True
    if on_device:
        _gpu(out, events, flags, steps, groups, timeline=timeline)
    else:
        host = cpu.host_of(events, flags, steps, groups)
        out.steps, lagging = cpu.split(host, steps, events)
        _kernels(out, events, steps, np.flatnonzero((events.cat == Cat.CPU_OP) & ((flags & Says.ATEN) != 0)), flags, 0)
        if timeline:
            _draw(out, host.compute, host.pieces, EMPTY, lagging)
    out.groups_from = groups.told_from
    oddities.say_all(out, events, flags)
    return out


def _gpu(out: RankProfile, events: Events, flags: Ints, steps: Steps, groups: Groups, *, timeline: bool) -> None:
    device = gpu.device_of(events, flags, groups)
    out.device = "rocm" if any(n.startswith("hip") for n in events.names) else "cuda"
    out.steps, lagging = gpu.split(events, flags, device, steps)
    out.launches = device.launches.stats
    oddities.doubt(out)
    if not any(s.records or s.copies for s in out.steps):
        raise UserError(
            f"trace: {device.launches.stats.records:,} records of the device lie outside every profiled step; "
            "its clock and the host's differ (kineto 996), or the steps' records were lost: profile again"
        )
    oddities.say_device(out, device, events)
    kernels = device.launches.rows[device.is_kernel]
    _kernels(out, events, steps, kernels, flags, device.launches.stats.clock_shift)
    if timeline:
        _draw(out, device.compute, device.pieces, device.copies, lagging)


def _who(out: RankProfile, events: Events, rank: int | None) -> None:
    """Fill in which rank this is, on what, in how large a world."""
    meta = events.told.meta
    distributed = meta.get("distributedInfo")
    told = distributed if isinstance(distributed, dict) else {}
    named = _RANK.search(out.source.rsplit("/", 1)[-1])
    if rank is not None:
        out.rank, out.rank_from = rank, "given"
    elif isinstance(told.get("rank"), int):
        out.rank, out.rank_from = told["rank"], "trace"
    elif named:
        out.rank, out.rank_from = int(named.group(1)), "file name"
    world = told.get("world_size")
    out.world_size = world if isinstance(world, int) else None
    out.backend = str(told.get("backend") or "")
    devices = meta.get("deviceProperties")
    listed = [str(d.get("name")) for d in devices if isinstance(d, dict)] if isinstance(devices, list) else []
    out.hardware = ", ".join(dict.fromkeys(listed))


def _whole(events: Events, flags: Ints) -> Steps:
    """Return the whole of what was recorded as one step: the device's records, or on a CPU run the operators."""
    rows = np.flatnonzero(events.cat <= Cat.MEMSET)
    host = np.flatnonzero((events.cat == Cat.CPU_OP) | (events.cat == Cat.RUNTIME) | (events.cat == Cat.NOTE))
    rows = rows if len(rows) else host
    if not len(rows) or events.end[rows].max() <= events.start[rows].min():
        raise UserError("trace: neither a step mark (ProfilerStep#N) nor operators or kernels in it; profile again")
    threads = events.threads_of((flags & Says.AUTOGRAD) != 0)
    busiest = np.bincount(events.thread[host]).argmax() if len(host) else 0
    return Steps(
        number=[0],
        start=events.start[rows].min(keepdims=True),
        end=events.end[rows].max(keepdims=True),
        threads=np.append(threads, busiest),
    )


def _kernels(out: RankProfile, events: Events, steps: Steps, rows: Ints, flags: Ints, shift: int, *, top: int = 50) -> None:
    """Fill in the kernels (CPU run: operators) that took longest in the steps that count."""
    counted = {s.number for s in out.counted()}
    inside = np.zeros(len(rows), dtype=np.bool_)
    at = events.start[rows] + shift
    for number, low, high in zip(steps.number, steps.start.tolist(), steps.end.tolist(), strict=True):
        if number in counted:
            inside |= (at >= low) & (at < high)
    rows = rows[inside]
    total = np.bincount(events.name[rows], weights=(events.end - events.start)[rows], minlength=len(events.names))
    count = np.bincount(events.name[rows], minlength=len(events.names))
    for k in np.argsort(-total, kind="stable")[:top].tolist():
        if count[k]:
            talks = bool(np.any(flags[rows[events.name[rows] == k]][:1] & Says.NCCL))
            out.kernels.append(Use(events.names[k], int(count[k]), int(total[k]), talks))


def _draw(out: RankProfile, compute: Spans, pieces: tuple[Ints, Ints, Ints], copies: Spans, host: Spans) -> None:
    """Fill in the timeline of the step of median length."""
    steps = sorted(out.counted(), key=lambda s: (s.span, s.number))
    if not steps:
        return
    step = steps[(len(steps) - 1) // 2]
    start, end, of = pieces
    out.timeline_step = step.number
    _lane(out, step, "compute", "compute", compute)
    for g, group in enumerate(GROUPS):
        here = of % len(GROUPS) == g
        name = "communication" if group == "unknown" else f"{group} communication"
        _lane(out, step, name, "comm0", union(start[here], end[here]))
    _lane(out, step, "copies", "copy", copies)
    _lane(out, step, "host-bound", "host", host)


def _lane(out: RankProfile, step: StepParts, name: str, css: str, spans: Spans) -> None:
    inside = spans.clip(step.start, step.start + step.span)
    merged = union(inside.start, inside.end, gap=step.span // _FINEST)
    if len(merged):
        pairs = zip((merged.start - step.start).tolist(), (merged.end - step.start).tolist(), strict=True)
        out.timeline.append(Lane(name, css, list(pairs)))


def renamed(found: RankProfile, rank: int) -> RankProfile:
    """Return the profile under another rank: its place in the order given, where nothing told it."""
    return replace(found, rank=rank, rank_from="order")
