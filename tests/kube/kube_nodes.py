"""Scheduler and kubelet of the stand-in cluster: pods get nodes, images, mounts and an end, as fast as a test wants it."""

from __future__ import annotations

import base64
import time
from pathlib import Path
from typing import Any

from kube_store import Obj, Store, stamp

KEY = "nvidia.com/gpu"
DIGEST = "sha256:" + "ab" * 32


def node(name: str, gpus: int, **labels: str) -> Obj:
    """Return a node with devices."""
    meta = {"name": name, "labels": {"kubernetes.io/hostname": name, **labels}}
    return {"metadata": meta, "spec": {}, "status": {"allocatable": {KEY: str(gpus), "cpu": "64", "memory": "512Gi"}}}


def quota(name: str, **hard: str) -> Obj:
    """Return a ResourceQuota; `gpu` is the devices' own."""
    limits = {f"requests.{KEY}" if k == "gpu" else k: v for k, v in hard.items()}
    return {"metadata": {"name": name}, "spec": {"hard": limits}, "status": {"hard": limits}}


def gpus(pod: Obj) -> int:
    """Return what a pod holds."""
    return sum(int(c["resources"].get("limits", {}).get(KEY, 0)) for c in pod["spec"]["containers"])


def condition(pod: Obj, kind: str) -> Obj:
    """Return a condition of a pod."""
    found: list[Obj] = pod.get("status", {}).get("conditions", [])
    return next((c for c in found if c["type"] == kind), {})


class Nodes:
    """Looks at every pod once per tick.

    Args:
        sandbox: the only folder under which a mount may lie: a container's file system is this machine's.
        start_s: from node to running container.
    """

    def __init__(self, store: Store, sandbox: Path, *, start_s: float = 0.0) -> None:
        self.store, self.sandbox, self.start_s = store, sandbox.resolve(), start_s
        self.bad_images: dict[str, str] = {}
        """Images that can't be pulled, with what the registry says."""

    def event(self, kind: str, about: Obj, reason: str, message: str, *, warning: bool = True) -> None:
        """Record an event about an object, once."""
        meta = about["metadata"]
        namespace = meta.get("namespace", "")
        if any(
            e["message"] == message and e["involvedObject"]["name"] == meta["name"] for e in self.store.list("events", namespace)
        ):
            return
        body = {
            "metadata": {"generateName": f"{meta['name']}."},
            "involvedObject": {"kind": kind, "name": meta["name"], "namespace": namespace},
            "reason": reason,
            "message": message,
            "type": "Warning" if warning else "Normal",
            "lastTimestamp": stamp(),
        }
        self.store.create("events", namespace, body)

    def tick(self) -> None:
        """Move every pod on by what is due."""
        for pod in self.store.list("pods"):
            if pod["metadata"].get("deletionTimestamp"):
                self._end(pod)
            elif not pod["spec"].get("nodeName"):
                self._schedule(pod)
            elif pod.get("status", {}).get("phase") == "Pending":
                self._start(pod)

    def _schedule(self, pod: Obj) -> None:
        others = [
            p
            for p in self.store.list("pods")
            if p["spec"].get("nodeName") and p["status"]["phase"] not in ("Succeeded", "Failed")
        ]
        wish = pod["spec"].get("affinity", {}).get("nodeAffinity", {}).get("preferredDuringSchedulingIgnoredDuringExecution", [])
        liked = [v for w in wish for e in w["preference"]["matchExpressions"] for v in e["values"]]
        for found in sorted(self.store.list("nodes"), key=lambda n: n["metadata"]["name"] not in liked):
            name = found["metadata"]["name"]
            used = sum(gpus(p) for p in others if p["spec"]["nodeName"] == name)
            if gpus(pod) <= int(found["status"]["allocatable"].get(KEY, 0)) - used:
                pod["spec"]["nodeName"] = name
                placed = {"type": "PodScheduled", "status": "True", "lastTransitionTime": stamp()}
                pod["status"] = {"phase": "Pending", "conditions": [placed], "placed": time.time()}
                self.store.update("pods", pod)
                return
        if not condition(pod, "PodScheduled"):
            message = f"0/{len(self.store.list('nodes'))} nodes are available: Insufficient {KEY}."
            no = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
            pod["status"] = {"phase": "Pending", "conditions": [{**no, "lastTransitionTime": stamp()}]}
            self.store.update("pods", pod)

    def _start(self, pod: Obj) -> None:
        if time.time() - pod["status"].get("placed", 0.0) < self.start_s or not self._mounted(pod):
            return
        statuses = []
        for container in pod["spec"]["containers"]:
            image, said = container["image"], self.bad_images.get(container["image"])
            if said is not None:
                waiting = {"reason": "ImagePullBackOff", "message": f'Back-off pulling image "{image}": {said}'}
                statuses.append({"name": container["name"], "image": image, "state": {"waiting": waiting}, "imageID": ""})
            else:
                running = {"running": {"startedAt": stamp()}}
                name = image.split("@")[0]
                statuses.append({"name": container["name"], "state": running, "ready": True, "imageID": f"{name}@{DIGEST}"})
        if statuses != pod["status"].get("containerStatuses"):
            pod["status"]["containerStatuses"] = statuses
            if all("running" in s["state"] for s in statuses):
                pod["status"]["phase"] = "Running"
                pod["status"]["conditions"].append({"type": "Ready", "status": "True", "lastTransitionTime": stamp()})
            self.store.update("pods", pod)

    def _mounted(self, pod: Obj) -> bool:
        """Put ConfigMaps where the containers mount them; False while one is missing."""
        mounts = {m["name"]: m["mountPath"] for c in pod["spec"]["containers"] for m in c.get("volumeMounts", [])}
        maps = {m["metadata"]["name"]: m for m in self.store.list("configmaps", pod["metadata"]["namespace"])}
        for volume in pod["spec"].get("volumes", []):
            if "configMap" not in volume:
                continue
            name = volume["configMap"]["name"]
            if name not in maps:
                text = f'MountVolume.SetUp failed for volume "{volume["name"]}" : configmap "{name}" not found'
                self.event("Pod", pod, "FailedMount", text)
                return False
            target = Path(mounts[volume["name"]]).resolve()
            assert target.is_relative_to(self.sandbox), f"{target}: a test mounts below {self.sandbox} only"
            target.mkdir(parents=True, exist_ok=True)
            found = maps[name]
            for file, text in found.get("data", {}).items():
                (target / file).write_text(text)
            for file, coded in found.get("binaryData", {}).items():
                (target / file).write_bytes(base64.b64decode(coded))
        return True

    def _end(self, pod: Obj) -> None:
        """End the containers of a deleted pod, then let it go."""
        finish(pod, code=0, phase="Succeeded")
        self.store.update("pods", pod)
        meta = pod["metadata"]
        self.store.remove("pods", meta["namespace"], meta["name"])

    def evict(
        self, name: str, *, namespace: str, reason: str = "Evicted", message: str = "The node was low on resource: memory."
    ) -> None:
        """Take a pod off its node, as the kubelet does under pressure."""
        with self.store.changed:
            pod = self.store.get("pods", namespace, name)
            finish(pod, code=137, phase="Failed")
            pod["status"] |= {"reason": reason, "message": message}
            why = {"type": "DisruptionTarget", "status": "True", "reason": "TerminationByKubelet", "lastTransitionTime": stamp()}
            pod["status"]["conditions"].append(why)
            self.store.update("pods", pod)


def finish(pod: Obj, *, code: int, phase: str, reason: str = "") -> None:
    """Write into a pod that its containers have ended, if they have not yet."""
    status: dict[str, Any] = pod.setdefault("status", {"phase": "Pending"})
    if status.get("phase") in ("Succeeded", "Failed"):
        return
    status["phase"] = phase
    ended = {"exitCode": code, "finishedAt": stamp(), "reason": reason or ("Completed" if code == 0 else "Error")}
    status["containerStatuses"] = [
        {**s, "ready": False, "state": {"terminated": ended}}
        for s in status.get("containerStatuses", [])
        if "running" in s["state"]
    ]
