"""Device time from pods: what is seen of each pod, how it is kept on disk, and the charge that follows from it.

A pod holds its devices from the moment it is scheduled until its containers have ended for good or the pod is gone,
whatever runs inside meanwhile: an image being pulled and a container being restarted cost the same as training. Pods vanish,
so everything is written down while it is watched; what happened while nobody watched is bounded by what else is known (the
driver's stamps, the RayJob's times), and said so.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import Any

from attuner.core.base import Record
from attuner.ports import Stamp
from attuner.runner import files

LOG = "kube.jsonl"
"""Append-only file in an attempt's folder: what was seen of its pods and its RayJob."""
RESOLUTION_S = 2.0
"""Kubernetes keeps whole seconds: what pods tell may be this much shorter than what a driver stamped."""
OVERDUE_S = 60.0
"""A pod that should have gone this long ago has lost its node; nobody else can use its devices, and neither do we."""


class Pod(Record):
    """What is known of one pod, by its last sight; times are unix seconds."""

    uid: str
    name: str
    role: str = ""
    gpus: int = 0
    node: str = ""
    scheduled: float | None = None
    finished: float | None = None
    """When the last container ended, of a pod that starts none again; or when a pod on a lost node should have gone."""
    gone: float | None = None
    """When the pod was seen to be deleted, or missed."""
    missed: bool = False
    """It vanished while nobody watched: it ended between `last_seen` and `gone`."""
    last_seen: float | None = None
    phase: str = ""
    reason: str = ""
    image: str = ""
    """Digest of the image that ran."""

    def end(self) -> float | None:
        """Return when it gave its devices back; None while it holds them."""
        return self.finished if self.finished is not None else self.gone

    def holds(self) -> bool:
        """Tell whether it holds devices now."""
        return self.gpus > 0 and self.scheduled is not None and self.end() is None


class Account(Record):
    """The charge of one attempt, as its pods tell it."""

    gpu_seconds: float
    allocated_at: float | None
    released_at: float | None
    nodes: list[str] = []
    images: list[str] = []
    notes: list[str] = []
    """What was not seen, and what was taken instead."""


def seconds(text: str | None) -> float | None:
    """Return unix seconds of a Kubernetes time."""
    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp() if text else None


def read_pod(found: dict[str, Any], *, key: str, now: float, deleted: bool = False) -> Pod:
    """Return what a pod object says.

    Args:
        key: the devices' name among resources.
        deleted: it is the last sight of a pod that is gone.
    """
    meta, spec, status = found["metadata"], found.get("spec", {}), found.get("status", {})
    conditions = {c["type"]: c for c in status.get("conditions") or []}
    placed = conditions.get("PodScheduled", {})
    image = next((digest for s in status.get("containerStatuses") or [] if (digest := image_digest(s.get("imageID", "")))), "")
    finished = _finished(status)
    leaving = seconds(meta.get("deletionTimestamp"))
    if finished is None and leaving is not None and now - leaving > OVERDUE_S:
        finished = leaving
    return Pod(
        uid=meta["uid"],
        name=meta["name"],
        role=(meta.get("labels") or {}).get("ray.io/node-type", ""),
        gpus=gpus_of(spec, key),
        node=spec.get("nodeName") or "",
        scheduled=seconds(placed.get("lastTransitionTime")) if placed.get("status") == "True" else None,
        finished=finished,
        gone=now if deleted else None,
        phase=status.get("phase", ""),
        reason=loss(status) or status.get("reason") or "",
        image=image,
    )


def gpus_of(spec: dict[str, Any], key: str) -> int:
    """Return the devices that a pod holds: the sum over its containers, or what one init container needs if that is more."""

    def limit(container: dict[str, Any]) -> int:
        return int(container.get("resources", {}).get("limits", {}).get(key, 0))

    return max([sum(limit(c) for c in spec.get("containers") or []), *(limit(c) for c in spec.get("initContainers") or [])])


def image_digest(image_id: str) -> str:
    """Return the sha256 of an imageID (docker-pullable://name@sha256:…)."""
    _, at, digest = image_id.rpartition("@")
    return digest if at else (image_id if image_id.startswith("sha256:") else "")


def _finished(status: dict[str, Any]) -> float | None:
    """Return when the last container ended, if the pod is over: a container that ended in a live pod is started again."""
    if status.get("phase") not in ("Succeeded", "Failed"):
        return None
    states = [s.get("state", {}).get("terminated") for s in status.get("containerStatuses") or []]
    ends = [t for s in states if s and (t := seconds(s.get("finishedAt"))) is not None]
    return max(ends) if ends and len(ends) == len(states) else None


def loss(status: dict[str, Any]) -> str:
    """Return why the cluster took a pod away; '' if it did not."""
    for condition in status.get("conditions") or []:
        if condition["type"] == "DisruptionTarget" and condition.get("status") == "True":
            return str(condition.get("reason") or "DisruptionTarget")
    return (
        str(status.get("reason", ""))
        if status.get("reason") in ("Evicted", "NodeLost", "Preempted", "Shutdown", "Terminated")
        else ""
    )


class PodLog:
    """The file of one attempt, and what it says. Lines are `pod`, `job`, `alive`, `ended`,
    `closed`; a torn last line tells nothing."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / LOG
        self.pods: dict[str, Pod] = {}
        self.job: dict[str, Any] = {}
        self.ended: dict[str, Any] = {}
        self.closed: dict[str, Any] = {}
        self.last: float | None = None
        """When somebody last watched the pods."""
        for line in self._lines():
            self._take(line)

    def _lines(self) -> Iterable[dict[str, Any]]:
        try:
            text = self.path.read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            return
        for raw in text.splitlines():
            try:
                line = json.loads(raw)
            except ValueError:
                continue
            if isinstance(line, dict) and isinstance(line.get("at"), float | int):
                yield line

    def _take(self, line: dict[str, Any]) -> None:
        kind = line.get("kind")
        if kind in ("pod", "alive"):
            self.last = max(self.last or 0.0, float(line["at"]))
        if kind == "pod":
            pod = Pod.model_validate(line["pod"])
            self.pods[pod.uid] = pod
        elif kind == "job":
            self.job = line["status"]
        elif kind in ("ended", "closed"):
            setattr(self, kind, line)

    def _write(self, line: dict[str, Any]) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        files.append_jsonl(self.path, line)
        self._take(line)

    def all(self) -> list[Pod]:
        """Return every pod that was seen, as it is now: a watch may add some meanwhile."""
        return list(self.pods.values())

    def see(self, pod: Pod, now: float) -> None:
        """Write down a pod, if it is new or has changed. A later sight never takes back an end that was seen."""
        known = self.pods.get(pod.uid)
        if known is not None:
            kept = {k: v for k in ("scheduled", "finished", "gone") if (v := getattr(known, k)) is not None}
            kept |= {k: v for k in ("image", "node", "reason") if (v := getattr(known, k)) and not getattr(pod, k)}
            pod = pod.model_copy(update=kept)
        if pod != known:
            self._write({"kind": "pod", "at": now, "pod": pod.data()})

    def missing(self, present: set[str], now: float, *, watched: float | None) -> None:
        """Write down the pods that a fresh list no longer has: they ended after `watched`, while nobody looked."""
        for pod in [p for p in self.all() if p.gone is None and p.uid not in present]:
            self.see(pod.model_copy(update={"gone": now, "missed": True, "last_seen": watched}), now)

    def see_job(self, status: dict[str, Any], now: float) -> None:
        """Write down the RayJob's status, if what matters of it has changed."""
        if status != self.job:
            self._write({"kind": "job", "at": now, "status": status})

    def alive(self, now: float, *, every_s: float = 30.0) -> None:
        """Write down that somebody watches, now and then: what vanishes later was there until then."""
        if self.last is None or now - self.last >= every_s:
            self._write({"kind": "alive", "at": now})

    def end(self, now: float, verdict: dict[str, Any]) -> None:
        """Write down how the attempt ended; it stays so."""
        if not self.ended:
            self._write({**verdict, "kind": "ended", "at": now})

    def close(self, now: float, detail: str) -> None:
        """Write down that every device was given back: the charge stands."""
        if not self.closed:
            self._write({"kind": "closed", "at": now, "detail": detail})


def account(pods: Iterable[Pod], *, now: float, bounds: list[float] | None = None) -> Account | None:
    """Return the charge of these pods; None if none of them was ever given devices.

    Args:
        now: pods that hold devices are charged up to here.
        bounds: times at which the devices were surely still held, or were given back, by others' word; a pod that vanished
            unseen is charged to the latest of them, within what is possible, and to when it was missed if there is none.
    """
    total, notes = 0.0, []
    held = sorted((p for p in pods if p.gpus and p.scheduled is not None), key=lambda p: (p.scheduled or 0.0, p.name))
    ends: list[float | None] = []
    for pod in held:
        end = pod.end()
        if pod.missed and pod.finished is None and pod.gone is not None:
            low = max(pod.last_seen or 0.0, pod.scheduled or 0.0)
            known = [b for b in bounds or [] if low <= b <= pod.gone]
            end = max(known) if known else pod.gone
            source = "its driver's stamps" if known else "when it was missed"
            notes.append(f"{pod.name} vanished unseen within {pod.gone - low:.0f} s; charged to {source}")
        ends.append(end)
        total += pod.gpus * max((now if end is None else end) - (pod.scheduled or 0.0), 0.0)
    if not held:
        return None
    return Account(
        gpu_seconds=total,
        allocated_at=held[0].scheduled,
        released_at=max(e for e in ends if e is not None) if None not in ends else None,
        nodes=sorted({p.node for p in held if p.node}),
        images=sorted({p.image for p in held if p.image}),
        notes=notes,
    )


def stamp_of(driver: Stamp, log: PodLog, *, gpus: int, now: float) -> Stamp:
    """Return the driver's stamps with the cluster's own account of the devices.

    Where the driver held devices for longer than all pods that were seen together, some pods were not seen. They held theirs
    before the driver did and after it, so the charge is then the most it can have been: from the RayJob's start to its end.
    """
    end = driver.released_at or driver.last_heartbeat
    start, finish = seconds(log.job.get("startTime")), seconds(log.job.get("endTime"))
    seen = account(log.all(), now=now, bounds=[b for b in (end, finish) if b is not None])
    if seen is None and driver.allocated_at is None:
        return driver
    charge, notes = (seen.gpu_seconds, list(seen.notes)) if seen else (0.0, [])
    first, last = (seen.allocated_at, seen.released_at) if seen else (driver.allocated_at, driver.released_at)
    if driver.allocated_at is not None and end is not None:
        own = gpus * max(end - driver.allocated_at, 0.0)
        if own > charge + (RESOLUTION_S * gpus if seen else 0.0):
            first, last = (
                min(t for t in (start, driver.allocated_at) if t is not None),
                max(t for t in (finish, end) if t is not None),
            )
            notes.append(
                f"pods were seen for {charge:.0f} of {own:.0f} device-seconds or more; charged as if all were held throughout"
            )
            charge = max(charge, gpus * max(last - first, 0.0))
    return driver.model_copy(
        update={
            "gpu_seconds": charge,
            "allocated_at": first,
            "released_at": last,
            "nodes": seen.nodes if seen and seen.nodes else driver.nodes,
            "versions": {**driver.versions, **({"image": ",".join(seen.images)} if seen and seen.images else {})},
            "detail": "; ".join(x for x in (driver.detail, *notes) if x),
        }
    )
