"""From a breakdown to a diagnosis: what holds the step up, ranked, the most that easing it can give, and which levers ease it.

The bound of a part is the speed-up if it vanished and nothing else grew: 1/(1 - share) - 1. No launch can do better on that
part; most do far worse, since what is taken away here comes back there. Pure, so a proposer may call it too.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from attuner.core.base import Value
from attuner.core.campaign import Cluster
from attuner.core.diagnosis import Bottleneck, Diagnosis
from attuner.core.events import History
from attuner.core.run import StepBreakdown
from attuner.policy.conditions import holds
from attuner.traces.parts import Parts, eased_of, layout_parts, parts_of
from attuner.traces.schedule import bubble_of, stage_imbalance

LAUNCH_BOUND = 0.25
"""Share of the step that the device waits for the host, from which on a step is called launch-bound."""
STRAGGLER = 0.05
"""A rank is a straggler if it is busy for this fraction of the step longer than the median rank."""
UNBOUNDED = 0.999
USEFUL = "compute"
"""The part that no lever takes away whole: a step of nothing else has no bottleneck left."""
NOISE_BAND = 0.03


def diagnose(
    breakdown: StepBreakdown | None,
    *,
    arguments: Mapping[str, Value],
    facts: Mapping[str, Value],
    levers: Sequence[Mapping[str, Any]],
    peak_mem_gib: float | None = None,
    device_mem_gib: float | None = None,
    band: float = NOISE_BAND,
    parts: Parts | None = None,
    launch_id: str = "",
) -> Diagnosis:
    """Return the diagnosis of one launch.

    Args:
        breakdown: where its profiled steps went; None: nobody profiled it, and the layout alone speaks.
        arguments: final arguments.
        facts: derived facts, for conditions and the schedule.
        levers: the lever catalog.
        peak_mem_gib: the largest memory of any device, GiB.
        device_mem_gib: what a device has, GiB.
        band: the smallest gain that counts, for `flat`.
        parts: the step's parts, where they are another launch's.
        launch_id: for the record.
    """
    if parts is None:
        parts = parts_of(breakdown, arguments, facts) if breakdown is not None else layout_parts(arguments, facts)
    flat = {**arguments, **{f"fact:{k}": v for k, v in facts.items()}}
    found = [_bottleneck(name, share, parts, levers, flat) for name, share in parts.shares.items()]
    found.sort(key=lambda b: (-b.max_gain, b.name))
    host = parts.shares.get("host", 0.0)
    return Diagnosis(
        launch_id=launch_id,
        bottlenecks=found,
        bubble=bubble_of(arguments, facts),
        stage_imbalance=stage_imbalance(arguments, facts),
        launch_bound=host >= LAUNCH_BOUND if breakdown is not None else None,
        mem_headroom_gib=device_mem_gib - peak_mem_gib if device_mem_gib is not None and peak_mem_gib is not None else None,
        stragglers=stragglers(breakdown) if breakdown is not None else [],
        flat=is_flat(found, band),
        notes=list(parts.notes),
    )


def bound(share: float) -> float:
    """Return the speed-up, as a fraction, if this share of the step vanished and nothing else grew."""
    return 1.0 / (1.0 - min(share, UNBOUNDED)) - 1.0


def is_flat(bottlenecks: Sequence[Bottleneck], band: float) -> bool:
    """Tell whether nothing stands out beside the useful compute: no bound exceeds the band, or the first two are that close."""
    bounds = sorted((b.max_gain for b in bottlenecks if b.name != USEFUL), reverse=True)
    return not bounds or bounds[0] <= band or (len(bounds) > 1 and bounds[0] - bounds[1] <= band)


def _bottleneck(
    name: str, share: float, parts: Parts, levers: Sequence[Mapping[str, Any]], flat: Mapping[str, Value]
) -> Bottleneck:
    strength = {str(lever["id"]): _strength(lever, name, parts, flat) for lever in levers}
    helping = sorted((k for k, v in strength.items() if v > 0), key=lambda k: (-strength[k], k))
    return Bottleneck(name=name, share=share, max_gain=bound(share), why=parts.told.get(name, "measured"), levers=helping)


def _strength(lever: Mapping[str, Any], part: str, parts: Parts, flat: Mapping[str, Value]) -> float:
    """Return the most that a lever's options that apply here take away from a part, as a fraction of the step."""
    options = [o for o in lever["options"] if all(holds(c, flat, flat) for c in o.get("when", []))]
    if not lever["options"]:
        options = [{}]
    return max((eased_of({**lever["eases"], **o.get("eases", {})}, parts, part) for o in options), default=0.0)


def stragglers(breakdown: StepBreakdown) -> list[str]:
    """Return the ranks that others wait for, one line each: longer busy than the median rank by more than 5% of the step.

    Busy is what neither waits nor communicates: compute, copies and host time, the mean over the profiled steps.
    """
    busy: dict[int, list[float]] = {}
    for r in breakdown.rank_steps:
        busy.setdefault(r.rank, []).append(r.compute_s + r.copy_s + r.host_s)
    means = {rank: statistics.fmean(values) for rank, values in busy.items()}
    if len(means) < 2:
        return []
    step_s = statistics.fmean(r.step_s for r in breakdown.rank_steps)
    # of two ranks the median would lie between them, and the slow one would hide half of its excess
    usual = statistics.median_low(means.values())
    late = [rank for rank, mean in means.items() if mean - usual > STRAGGLER * step_s]
    return [
        f"rank {rank}: busy {means[rank]:.3g} s of a step of {step_s:.3g} s, the usual rank {usual:.3g} s"
        for rank in sorted(late, key=lambda r: -means[r])
    ]


def profiled_ancestor(history: History, launch_id: str) -> str:
    """Return the nearest profiled launch: this one, its parent, and so on, else the last profiled baseline run; or ''."""
    seen = launch_id
    for _ in range(len(history.launches()) + 1):
        if history.breakdown(seen) is not None:
            return seen
        launch = history.launch(seen)
        hypothesis = history.hypothesis(launch.hypothesis) if launch and launch.hypothesis else None
        if hypothesis is None:
            break
        seen = hypothesis.parent
    profiled = [x.id for x in history.launches() if x.kind == "calibrate" and history.breakdown(x.id) is not None]
    return profiled[-1] if profiled else ""


def launch_parts(history: History, launch_id: str) -> tuple[str, Parts | None]:
    """Return the nearest profiled launch and the parts of its step; ('', None) if none was profiled."""
    source = profiled_ancestor(history, launch_id)
    breakdown = history.breakdown(source) if source else None
    if breakdown is None:
        return "", None
    arguments, facts = _final(history, source)
    return source, parts_of(breakdown, arguments, facts)


def diagnose_launch(history: History, launch_id: str, levers: Sequence[Mapping[str, Any]]) -> Diagnosis:
    """Return the diagnosis of a launch on record, by its own profile or that of the nearest launch it descends from."""
    source, parts = launch_parts(history, launch_id)
    arguments, facts = _final(history, launch_id)
    trial, calibration = history.trial(launch_id), history.calibration()
    found = diagnose(
        history.breakdown(source) if source else None,
        arguments=arguments,
        facts=facts,
        levers=levers,
        peak_mem_gib=trial.peak_mem_gib() if trial else None,
        device_mem_gib=device_memory_gib(history.campaign().launcher.cluster),
        band=calibration.band if calibration else NOISE_BAND,
        parts=parts,
        launch_id=launch_id,
    )
    if not source or source == launch_id or _recipe(history, source) == _recipe(history, launch_id):
        return found
    said = f"{launch_id} was not profiled: the shares are those of {source}, the nearest launch that was"
    return found.model_copy(update={"notes": [said, *found.notes], "stragglers": [f"{source}: {x}" for x in found.stragglers]})


def device_memory_gib(cluster: Cluster) -> float | None:
    """Return the memory of one device, GiB: the cluster's limit, or its published figure; None if nobody states one."""
    figure = cluster.figures.get("mem_gib")
    return cluster.device.mem_gib or (figure.value if figure else None)


def _recipe(history: History, launch_id: str) -> str:
    launch = history.launch(launch_id)
    return launch.recipe if launch else ""


def _final(history: History, launch_id: str) -> tuple[Mapping[str, Value], Mapping[str, Value]]:
    launch = history.launch(launch_id)
    effective = history.effective(launch.recipe) if launch else None
    return (effective.arguments, effective.facts) if effective else ({}, {})
