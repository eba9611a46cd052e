"""What may be wrong with a trace, each counted and said: known faults of recorders, and what follows for the figures."""

from __future__ import annotations

from attuner.core.errors import UserError
from attuner.traces.columns import Events
from attuner.traces.gpu import Device
from attuner.traces.intervals import Bools, Ints
from attuner.traces.records import RankProfile

_FIRST_SHORT = 0.95
"""A first step with fewer kernels than this share of the next-shortest's lost some (pytorch 192021)."""
_LOST_SHARE = 0.05
"""A step in which more than this share of the launches left no record doesn't count."""


def refuse_empty(events: Events) -> None:
    """Raise UserError for a trace without a single usable event."""
    if len(events):
        return
    dropped = events.dropped
    bad = dropped.negative + dropped.zero_clock + dropped.malformed + events.told.lost
    if events.told.truncated:
        raise UserError(f"trace: it ends early, before a single event is whole ({events.told.truncated}); profile again")
    if bad:
        raise UserError(f"trace: none of its {bad:,} events can be used ({_dropped(events)}); profile again")
    raise UserError("trace: no ProfilerStep, no operator and no kernel in it: nothing was recorded; profile again")


def refuse_lost_device(events: Events, launching: Bools) -> None:
    """Raise UserError where the host launched GPU work and the device shows nothing: that is not a device at rest."""
    if not launching.any():
        return
    count = int(launching.sum())
    if events.told.truncated:
        raise UserError(f"trace: it ends early ({events.told.truncated}), before the device's records; profile again")
    if any(isinstance(n, str) and "cupti_profiler" in n for n in _spans(events)):
        raise UserError(
            "trace: recorded with CUPTI's range profiler, which counts and doesn't time kernels (HTA 146): "
            "profile again without an experimental config for metrics"
        )
    raise UserError(
        f"trace: the host launched GPU work ({count:,} calls) but no kernel was recorded: "
        "check CUPTI permissions (WSL has none, kineto 762) and that the profiler records ProfilerActivity.CUDA"
    )


def _spans(events: Events) -> list[str]:
    return [str(tid) for _, tid in events.threads] + events.names[:2000]


def doubt(out: RankProfile) -> None:
    """Mark the steps of a GPU run that shouldn't enter a mean, with the reason."""
    counts = [s.records for s in out.steps if s.records]
    for n, step in enumerate(out.steps):
        launched = step.records + step.missing
        if not step.records and not step.copies:
            step.doubt = "no record of the device in its window: lost, or run on; not called host-bound"
        elif step.missing > _LOST_SHARE * launched:
            step.doubt = f"{step.missing:,} of {launched:,} kernel launches left no record on the device"
        elif n == 0 and len(counts) >= 3 and step.records < _FIRST_SHORT * min(counts[1:]):
            step.doubt = (
                f"{step.records:,} kernels, the others have {min(counts[1:]):,} or more: lost at the start (pytorch 192021)"
            )
    for step in out.steps:
        if not step.records and not step.copies:
            step.idle, step.host = step.idle + step.host, 0


def say_device(out: RankProfile, device: Device, events: Events) -> None:
    """Say what is odd about the device's records and their launches."""
    stats = device.launches.stats
    orphans = stats.records - stats.matched
    out.say("orphans", orphans, f"{orphans:,} of {stats.records:,} device records have no launch in the trace (HTA 16)")
    lost = f"{stats.lost:,} kernel launches left no record on the device (records lost, or still running at the end)"
    out.say("lost", stats.lost, lost)
    out.say("shared_id", stats.shared, f"{stats.shared:,} device records share their correlation id with another")
    graph = (
        f"{stats.graph:,} records are of {stats.graph_launches:,} CUDA-graph launches; a loop in a graph shows once (kineto 1062)"
    )
    out.say("graphs", stats.graph, graph)
    early = f"{stats.clamped:,} records begin before their launch: clocks differ (kineto 1380); their delay counts as 0"
    out.say("clamped", stats.clamped, early)
    moved = f"device clock differs from the host's: device times were moved by {stats.clock_shift / 1e3:,.1f} µs"
    out.say("clock_shift", int(stats.clock_shift != 0), moved)
    out.say("overlaps", stats.overlapping, f"{stats.overlapping:,} records overlap their predecessor on one stream; unions count")
    told = f"{device.matched_by_order:,} collectives have no launch (correlation 0 on ROCm): told by time and order"
    out.say("by_time", device.matched_by_order, told)
    unnamed = sum(kind == "other" for kind in device.kinds)
    out.say("unnamed", unnamed, f"{unnamed:,} communication kernels don't say what they exchange: kind `other`")
    streams = events.threads_of(device.launches.rows).tolist()
    if events.no_stream == stats.records and device.is_comm.any() and len(streams) == 1:
        out.say("streams", stats.records, "no stream is recorded: what overlaps can't be told (ROCm 7.0.1)")
    pids = {events.threads[t][0] for t in streams}
    out.say("devices", len(pids) if len(pids) > 1 else 0, f"records of {len(pids)} devices in one trace, taken as one")


def say_all(out: RankProfile, events: Events, flags: Ints) -> None:
    """Say what is odd about the file, the steps and the groups."""
    told = events.told
    cut = f"the file ends early ({told.truncated}): {len(events):,} complete events were recovered, later ones are missing"
    out.say("truncated", int(bool(told.truncated)), cut)
    at = f", first at byte {told.first_bad:,} ({told.why_bad})" if told.first_bad is not None else ""
    bad = f"{told.repaired:,} events of invalid JSON were mended, {told.lost:,} lost{at}"
    out.say("invalid_json", told.repaired + told.lost, bad)
    out.say("not_utf8", told.not_utf8, "names with bytes that aren't UTF-8: those bytes are shown as �")
    dropped = events.dropped
    out.say("dropped", dropped.negative + dropped.zero_clock + dropped.malformed, f"dropped: {_dropped(events)}")
    out.say("ns_clock", int(events.in_ns), "the clock counts nanoseconds, not microseconds")
    out.say("no_steps", int(out.whole), "no step marks (ProfilerStep#N): the one step is the whole of what was recorded")
    out.say("no_rank", int(not out.rank_from), "neither trace nor file name says which rank this is")
    doubted = [s for s in out.steps if s.doubt]
    if len(doubted) == len(out.steps):
        out.say("doubted", len(doubted), f"every step is in doubt: {doubted[0].doubt if doubted else ''}")
    else:
        for s in doubted:
            out.say("doubted", 1, f"step {s.number} is left out of means: {s.doubt}")
    told_from = out.groups_from
    only = told_from.get("only_group", 0)
    out.say("group_deduced", only, f"{only:,} collectives: group told as the only one of several ranks that exchanges so")
    by_kind = told_from.get("kind", 0)
    guess = f"{by_kind:,} collectives: group guessed from their kind (all-to-all: expert, send and receive: pipeline)"
    out.say("group_guessed", by_kind, guess)
    untold = told_from.get("untold", 0)
    out.say("group_untold", untold, f"{untold:,} collectives: the trace doesn't tell whose (tensor, data, …): group `unknown`")


def _dropped(events: Events) -> str:
    d = events.dropped
    parts = (
        (d.negative, "with a negative length (end never written, kineto PR 646)"),
        (d.zero_clock, "at time 0 (kineto 109)"),
        (d.malformed, "without a proper time or name"),
        (events.told.lost, "of invalid JSON"),
    )
    return ", ".join(f"{n:,} {what}" for n, what in parts if n)
