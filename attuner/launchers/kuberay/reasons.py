"""Why an attempt does not run, or ran no longer: pods, events and the RayJob's status, brought to one line. Pure.

A reason is *final* when waiting can't help; it is *lost* when the cluster took the devices away, so that the attempt proves
nothing about the recipe and one more may be made.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from attuner.launchers.kuberay.capacity import quantity
from attuner.launchers.kuberay.pods import loss, seconds

HEAD = "head"
PULL = ("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "RegistryUnavailable", "ImageInspectError")
HOPELESS = re.compile(
    r"not found|manifest unknown|denied|unauthorized|authentication required|invalid reference|no such host", re.I
)
STUCK = ("CreateContainerConfigError", "CreateContainerError", "RunContainerError")
STUCK_S = 60.0
LOST_GRACE_S = 60.0
"""How long a driver may take to see a lost worker and stamp its release; then it never will."""
EXCEEDED = re.compile(r"requested: (?P<asked>[^ ]+?), used: (?P<used>[^ ]+?), limited: (?P<limit>[^ ]+)")
NEVER = re.compile(
    r"> maximum capacity|exceeds the maximum|request > maximum|can never|not enough (nominal )?quota in cohort", re.I
)
NO_QUEUE = re.compile(r"(LocalQueue|ClusterQueue)\S* .*(doesn't exist|does not exist|not found|inactive)", re.I)


@dataclass(frozen=True)
class Reason:
    """One line for a person, and what follows from it."""

    kind: str
    line: str
    final: bool = False
    lost: bool = False


def assess(
    job: dict[str, Any],
    pods: list[dict[str, Any]],
    events: list[dict[str, Any]],
    *,
    now: float,
    pull_patience_s: float,
    begun: bool,
) -> Reason | None:
    """Return the strongest reason, None if nothing stands in the way.

    Args:
        pods: every pod that was seen, those that are gone too.
        events: of the namespace; those about this job are picked out.
        begun: the driver has been given devices and has not given them back.
    """
    found = [*_taken(pods, now, begun), *_images(pods, now, pull_patience_s), *_containers(pods, now)]
    found += [*_unplaced(pods), *_told(job, pods, events)]
    return next((r for r in found if r.final), found[0] if found else None)


def _role(pod: dict[str, Any]) -> str:
    return str((pod["metadata"].get("labels") or {}).get("ray.io/node-type", "pod"))


def _where(pod: dict[str, Any]) -> str:
    node = pod.get("spec", {}).get("nodeName")
    return f"{_role(pod)} pod {pod['metadata']['name']}" + (f" on node {node}" if node else "")


def _taken(pods: list[dict[str, Any]], now: float, begun: bool) -> list[Reason]:
    """Return pods that the cluster took away, or that ended under a running driver."""
    found = []
    for pod in pods:
        status, name = pod.get("status", {}), _role(pod)
        taken, killed = loss(status), _out_of_memory(pod)
        over = status.get("phase") == "Failed" or pod.get("gone") is not None
        since = now - float(pod.get("gone") or pod.get("seen") or now)
        # the head carries the driver: without it nobody is left to end the attempt
        final = begun and over and (name == HEAD or since > LOST_GRACE_S)
        if killed:
            line = (
                f"{_where(pod)} was killed for memory (limit {killed}); raise kube.{'head' if name == HEAD else 'worker'}.memory"
            )
            found.append(Reason("oom_killed", line, final=final))
        elif taken:
            more = " ".join(str(status.get("message", "")).split())[:160]
            line = f"{_where(pod)} was taken away: {taken}" + (f" ({more})" if more else "")
            found.append(Reason("taken", line, final=final, lost=True))
        elif begun and over and name == HEAD:
            found.append(Reason("gone", f"{_where(pod)} is gone", final=True, lost=True))
    return found


def _out_of_memory(pod: dict[str, Any]) -> str:
    """Return the memory limit of a container that was killed for it, '' if none was."""
    limits = {
        c["name"]: c.get("resources", {}).get("limits", {}).get("memory", "none") for c in pod["spec"].get("containers") or []
    }
    for status in pod.get("status", {}).get("containerStatuses") or []:
        for state in (status.get("state", {}), status.get("lastState", {})):
            if (state.get("terminated") or {}).get("reason") == "OOMKilled":
                return str(limits.get(status["name"], "none"))
    return ""


def _waiting(pod: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Return (reason, message, image) of containers that wait to be started."""
    status = pod.get("status", {})
    images = {
        c["name"]: c.get("image", "")
        for c in [*(pod["spec"].get("initContainers") or []), *(pod["spec"].get("containers") or [])]
    }
    found = []
    for one in [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]:
        waits = one.get("state", {}).get("waiting") or {}
        found.append(
            (str(waits.get("reason", "")), " ".join(str(waits.get("message", "")).split())[:160], images.get(one["name"], ""))
        )
    return found


def _since(pod: dict[str, Any], now: float) -> float:
    """Return for how long a pod has been on its node, or known."""
    placed = {c["type"]: c for c in pod.get("status", {}).get("conditions") or []}.get("PodScheduled", {})
    return now - (seconds(placed.get("lastTransitionTime")) or now)


def _live(pods: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [p for p in pods if p.get("gone") is None]


def _images(pods: list[dict[str, Any]], now: float, patience_s: float) -> list[Reason]:
    found = []
    for pod in _live(pods):
        for why, message, image in _waiting(pod):
            if why in PULL:
                hopeless = why in ("InvalidImageName", "ErrImageNeverPull") or bool(HOPELESS.search(message))
                final = hopeless or _since(pod, now) > patience_s
                line = f"image {image} can't be pulled ({why}: {message or 'no more is told'}) for {_where(pod)}"
                found.append(Reason("image", f"{line}; check kube.image and kube.image_pull_secrets", final=final))
    return found


def _containers(pods: list[dict[str, Any]], now: float) -> list[Reason]:
    found = []
    for pod in _live(pods):
        for why, message, _ in _waiting(pod):
            if why in STUCK:
                final = _since(pod, now) > STUCK_S
                found.append(Reason("container", f"{_where(pod)} can't start its container: {why}: {message}", final=final))
    failed = [p for p in pods if p.get("status", {}).get("phase") == "Failed" and not loss(p["status"]) and not _out_of_memory(p)]
    if len(failed) >= 3:
        last = failed[-1]
        code = [
            (s.get("state", {}).get("terminated") or {}).get("exitCode") for s in last["status"].get("containerStatuses") or []
        ]
        found.append(
            Reason("container", f"{len(failed)} pods failed while starting, the last {_where(last)} with {code}", final=True)
        )
    return found


def _unplaced(pods: list[dict[str, Any]]) -> list[Reason]:
    for pod in _live(pods):
        for condition in pod.get("status", {}).get("conditions") or []:
            if condition["type"] == "PodScheduled" and condition.get("status") == "False":
                message = " ".join(str(condition.get("message", "")).split())[:240]
                line = f"{_where(pod)} finds no node ({condition.get('reason', 'Unschedulable')}: {message})"
                return [Reason("unschedulable", line)]
    return []


def _told(job: dict[str, Any], pods: list[dict[str, Any]], events: list[dict[str, Any]]) -> list[Reason]:
    """Return what events say: quotas, queues, volumes."""
    name = job["metadata"]["name"]
    known = {p["metadata"]["name"] for p in pods}
    about = [e for e in events if _concerns(e, name, known)]
    found = []
    for event in sorted(about, key=_when, reverse=True):
        message = " ".join(str(event.get("message", "")).split())[:300]
        quota = EXCEEDED.search(message)
        if quota and "exceeded quota" in message:
            final = _never(quota["asked"], quota["limit"])
            tail = "; it can never be admitted: ask for less, or for a larger quota" if final else ""
            found.append(Reason("quota", f"the namespace's quota is exceeded ({quota[0]}){tail}", final=final))
        elif NO_QUEUE.search(message):
            found.append(Reason("queue", f"Kueue: {message}; check kube.queue", final=True))
        elif NEVER.search(message):
            found.append(Reason("queue", f"Kueue can never admit it: {message}", final=True))
        elif event.get("reason") in ("Pending", "QuotaReserved", "Preempted", "EvictedDueToPreempted"):
            found.append(Reason("queue", f"Kueue: {message}"))
        elif event.get("type") == "Warning" and event.get("reason") in ("FailedMount", "FailedAttachVolume", "FailedBinding"):
            found.append(Reason("volume", f"{event['involvedObject'].get('name')}: {message}"))
    if not found and job.get("status", {}).get("jobDeploymentStatus") == "Suspended":
        queue = (job["metadata"].get("labels") or {}).get("kueue.x-k8s.io/queue-name", "")
        found.append(Reason("queue", f"suspended; it waits in queue {queue}" if queue else "suspended"))
    return found


def _concerns(event: dict[str, Any], name: str, pods: set[str]) -> bool:
    about = event.get("involvedObject", {})
    what = str(about.get("name", ""))
    if about.get("kind") == "Workload":
        return what.startswith(f"rayjob-{name}-")
    if about.get("kind") == "RayCluster":
        return re.fullmatch(re.escape(name) + r"-[a-z0-9]{5}", what) is not None
    return what == name or what in pods


def _when(event: dict[str, Any]) -> float:
    return seconds(event.get("lastTimestamp") or event.get("eventTime") or event["metadata"].get("creationTimestamp")) or 0.0


def _never(asked: str, limit: str) -> bool:
    """Tell whether a request is larger than the whole quota: requests.nvidia.com/gpu=8 of limited: requests.nvidia.com/gpu=4."""
    limits = dict(x.split("=", 1) for x in limit.split(",") if "=" in x)
    try:
        wanted = [(k, quantity(v)) for k, v in (x.split("=", 1) for x in asked.split(",") if "=" in x)]
        return any(k in limits and v > quantity(limits[k]) for k, v in wanted)
    except ValueError:
        return False
