"""A stand-in for KubeRay's operator: moves a RayJob's status as rayjob_controller.go does, with a Ray of the test's choice.

Followed: the order of states, finalizer, ids set before anything is created, deadlines from status.startTime, suspension that
clears ids, HTTPMode's submission of a job that the head does not know, deletion of the cluster after the end. Its state is
in the API server's objects alone, so it can be stopped and started in the middle.
"""

from __future__ import annotations

import copy
import json
import threading
import time
import uuid
from collections.abc import Callable
from datetime import datetime
from typing import Any, Protocol

import yaml
from kube_nodes import KEY, Nodes, condition, gpus
from kube_server import KubeServer
from kube_store import Obj, Refuse, stamp

FINALIZER = "ray.io/rayjob-finalizer"
OVER = ("SUCCEEDED", "FAILED", "STOPPED")


class Ray(Protocol):
    """The Ray that a head would run."""

    def info(self, job_id: str) -> tuple[str, str] | None:
        """Return (status, message), None if it does not know the job."""
        ...

    def submit(self, job_id: str, entrypoint: str, runtime_env: Obj, metadata: dict[str, str]) -> None:
        """Start a job."""
        ...

    def stop(self, job_id: str) -> None:
        """Ask a job to stop."""
        ...

    def forget(self) -> None:
        """The head is lost, and every job with it."""
        ...


def when(text: str) -> float:
    """Return unix seconds."""
    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()


class Operator:
    """Reconciles every RayJob, RayCluster and pod, again and again."""

    def __init__(self, server: KubeServer, nodes: Nodes, ray: Ray, *, tick_s: float = 0.03) -> None:
        self.server, self.store, self.nodes, self.ray = server, server.store, nodes, ray
        self._tick_s, self._end = tick_s, threading.Event()
        self.seen: list[tuple[str, str]] = []
        """(RayJob, jobDeploymentStatus) in the order in which they were set."""
        self.held: dict[str, tuple[int, float, float]] = {}
        """Of every pod with devices: how many, since when, until when; exact, by the stand-in's own clock."""
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop reconciling; everything stays as it is."""
        self._end.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._end.wait(self._tick_s):
            if not self.server.away:
                self.tick()

    def tick(self) -> None:
        """Reconcile once."""
        for job in self.store.list("rayjobs"):
            try:
                self._reconcile(job)
            except Refuse as refused:
                if refused.code not in (404, 409):
                    raise
        for cluster in self.store.list("rayclusters"):
            if not cluster["metadata"].get("deletionTimestamp"):
                self._pods_of(cluster)
        self.nodes.tick()
        self._account()

    def _account(self) -> None:
        for pod in self.store.list("pods"):
            placed = condition(pod, "PodScheduled")
            if gpus(pod) and placed.get("status") == "True":
                name, now = pod["metadata"]["name"], time.time()
                begun = self.held.get(name, (0, when(placed["lastTransitionTime"]), 0.0))[1]
                if pod["status"]["phase"] not in ("Succeeded", "Failed"):
                    self.held[name] = (gpus(pod), begun, now)

    def _set(self, job: Obj, **status: Any) -> None:
        new = {**job.get("status", {}), **status}
        if status.get("jobDeploymentStatus") != job.get("status", {}).get("jobDeploymentStatus"):
            self.seen.append((job["metadata"]["name"], new["jobDeploymentStatus"]))
        if new.get("jobDeploymentStatus") in ("Complete", "Failed"):
            new["endTime"] = stamp()
        self.store.update("rayjobs", {**job, "status": new})

    def _reconcile(self, job: Obj) -> None:
        status, spec, meta = job.get("status", {}), job["spec"], job["metadata"]
        if meta.get("deletionTimestamp"):
            if status.get("jobStatus") not in OVER and status.get("jobId"):
                self.ray.stop(status["jobId"])
            meta["finalizers"] = []
            self.store.update("rayjobs", job)
            return
        stage = status.get("jobDeploymentStatus", "")
        if stage == "":
            meta["finalizers"] = [FINALIZER]
            name = f"{meta['name']}-{uuid.uuid4().hex[:5]}"
            first = {"jobId": spec.get("jobId"), "rayClusterName": name, "jobStatus": "", "startTime": stamp()}
            self._set(job, jobDeploymentStatus="Initializing", **first)
        elif stage == "Initializing":
            self._initialize(job, status, spec)
        elif stage == "Running":
            self._running(job, status, spec)
        elif stage == "Suspending":
            if self._no_cluster(job):
                cleared = {"rayClusterName": "", "jobId": "", "jobStatus": "", "message": "", "reason": ""}
                self._set(job, jobDeploymentStatus="Suspended", **cleared)
        elif stage == "Suspended" and not spec.get("suspend"):
            self._set(job, jobDeploymentStatus="", jobStatus="")
        elif stage in ("Complete", "Failed"):
            self._no_cluster(job)

    def _overdue(self, job: Obj, key: str, reason: str) -> bool:
        limit = job["spec"].get(key)
        if limit is None or time.time() < when(job["status"]["startTime"]) + limit:
            return False
        message = f"The RayJob has passed the {key}. StartTime: {job['status']['startTime']}. {key}: {limit}"
        self._set(job, jobDeploymentStatus="Failed", reason=reason, message=message)
        return True

    def _initialize(self, job: Obj, status: Obj, spec: Obj) -> None:
        if spec.get("suspend"):
            self._set(job, jobDeploymentStatus="Suspending")
            return
        if self._overdue(job, "activeDeadlineSeconds", "DeadlineExceeded"):
            return
        if self._overdue(job, "preRunningDeadlineSeconds", "PreRunningDeadlineExceeded"):
            return
        if self._cluster(job).get("status", {}).get("state") == "ready":
            self._set(job, jobDeploymentStatus="Running", dashboardURL="head-svc:8265")

    def _running(self, job: Obj, status: Obj, spec: Obj) -> None:
        if spec.get("suspend"):
            self._set(job, jobDeploymentStatus="Suspending")
            return
        if self._overdue(job, "activeDeadlineSeconds", "DeadlineExceeded"):
            return
        found = self.ray.info(status["jobId"])
        if found is None:  # HTTPMode: a head that does not know the job is given it, again if need be
            cluster = self._cluster(job)
            if cluster.get("status", {}).get("state") == "ready":
                env = yaml.safe_load(spec.get("runtimeEnvYAML", "") or "{}")
                self.ray.submit(status["jobId"], spec["entrypoint"], env, spec.get("metadata", {}))
            return
        state, message = found
        stage = "Running" if state not in OVER else "Failed" if state == "FAILED" else "Complete"
        if (state, stage) != (status.get("jobStatus"), "Running"):
            reason = "AppFailed" if state == "FAILED" else ""
            self._set(job, jobDeploymentStatus=stage, jobStatus=state, message=message, reason=reason)

    def _owned(self, kind: str, owner: Obj) -> list[Obj]:
        return [{"apiVersion": "ray.io/v1", "kind": kind, "name": owner["metadata"]["name"], "uid": owner["metadata"]["uid"]}]

    def _cluster(self, job: Obj) -> Obj:
        name, namespace = job["status"]["rayClusterName"], job["metadata"]["namespace"]
        try:
            return self.store.get("rayclusters", namespace, name)
        except Refuse:
            body = {
                "metadata": {"name": name, "labels": job["metadata"]["labels"], "ownerReferences": self._owned("RayJob", job)},
                "spec": copy.deepcopy(job["spec"]["rayClusterSpec"]),
            }
            return self.store.create("rayclusters", namespace, body)

    def _no_cluster(self, job: Obj) -> bool:
        """Delete the RayCluster; tell whether it and its pods are gone."""
        name, namespace = job["status"].get("rayClusterName", ""), job["metadata"]["namespace"]
        if name:
            try:
                self.store.delete("rayclusters", namespace, name)
            except Refuse:
                return not self.store.list("pods", namespace, f"ray.io/cluster={name}")
            return False
        return True

    def _pods_of(self, cluster: Obj) -> None:
        meta, spec = cluster["metadata"], cluster["spec"]
        found = self.store.list("pods", meta["namespace"], f"ray.io/cluster={meta['name']}")
        for pod in [p for p in found if p.get("status", {}).get("phase") in ("Failed", "Succeeded")]:
            if not pod["metadata"].get("deletionTimestamp"):  # KubeRay deletes what has ended, and makes it anew
                self.store.delete("pods", meta["namespace"], pod["metadata"]["name"])
        wanted = [("head", "headgroup", 1, spec["headGroupSpec"]["template"])]
        wanted += [("worker", w["groupName"], w["replicas"], w["template"]) for w in spec["workerGroupSpecs"]]
        for kind, group, count, template in wanted:
            mine = [p for p in found if p["metadata"]["labels"]["ray.io/group"] == group]
            for _ in range(count - len(mine)):
                self._make(cluster, kind, group, template)
        total = sum(count for _, _, count, _ in wanted)
        ready = [p for p in found if condition(p, "Ready") and p["status"]["phase"] == "Running"]
        state = "ready" if len(ready) >= total else cluster.get("status", {}).get("state", "")
        if state != cluster.get("status", {}).get("state", ""):
            self.store.update("rayclusters", {**cluster, "status": {"state": state}})

    def _make(self, cluster: Obj, kind: str, group: str, template: Obj) -> None:
        meta = cluster["metadata"]
        tags = {"ray.io/cluster": meta["name"], "ray.io/node-type": kind, "ray.io/group": group, "ray.io/is-ray-node": "yes"}
        body = {
            "metadata": {
                "generateName": f"{meta['name']}-{kind}-",
                "labels": {**template["metadata"].get("labels", {}), **tags},
                "ownerReferences": self._owned("RayCluster", cluster),
            },
            "spec": copy.deepcopy(template["spec"]),
            "status": {"phase": "Pending"},
        }
        refused = self._quota(meta["namespace"], body)
        if refused:
            title = "FailedToCreateHeadPod" if kind == "head" else "FailedToCreateWorkerPod"
            self.nodes.event(
                "RayCluster", cluster, title, f'Failed to create {kind} Pod: pods "{meta["name"]}-{kind}" is forbidden: {refused}'
            )
            return
        self.store.create("pods", meta["namespace"], body)

    def _quota(self, namespace: str, pod: Obj) -> str:
        """Return what the admission of quotas says, '' if it admits."""
        name = f"requests.{KEY}"
        used = sum(gpus(p) for p in self.store.list("pods", namespace))
        for found in self.store.list("resourcequotas", namespace):
            hard = found["spec"]["hard"].get(name)
            if hard is not None and gpus(pod) and used + gpus(pod) > int(hard):
                sums = f"requested: {name}={gpus(pod)}, used: {name}={used}, limited: {name}={hard}"
                return f"exceeded quota: {found['metadata']['name']}, {sums}"
        return ""


class LocalJobs:
    """Takes jobs to a Ray that runs here, through its job API."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def info(self, job_id: str) -> tuple[str, str] | None:
        """Return (status, message)."""
        try:
            found = self._client.get_job_info(job_id)
        except RuntimeError as error:
            if "404" in str(error) or "does not exist" in str(error):
                return None
            return "RUNNING", ""
        return str(found.status.value), found.message or ""

    def submit(self, job_id: str, entrypoint: str, runtime_env: Obj, metadata: dict[str, str]) -> None:
        """Start a job."""
        self._client.submit_job(
            entrypoint=entrypoint, submission_id=job_id, runtime_env=json.loads(json.dumps(runtime_env)), metadata=metadata
        )

    def stop(self, job_id: str) -> None:
        """Ask it to stop."""
        self._client.stop_job(job_id)

    def forget(self) -> None:
        """A local head is not taken away."""


class Order(threading.Event):
    """Set: stop. `killed`: without a word."""

    killed = False


class PaperJobs:
    """A Ray on paper: every job is a function of the test, in a thread."""

    def __init__(self, work: Callable[[str, Order], int]) -> None:
        self._work = work
        self._jobs: dict[str, tuple[Order, list[int], threading.Thread]] = {}
        self.started: list[str] = []
        """Entrypoints that were started, in order."""

    def info(self, job_id: str) -> tuple[str, str] | None:
        """Return (status, message)."""
        if job_id not in self._jobs:
            return None
        stop, code, _ = self._jobs[job_id]
        if not code:
            return "RUNNING", "Job is currently running."
        status = "SUCCEEDED" if code[0] == 0 else "STOPPED" if stop.is_set() else "FAILED"
        return status, f"Job entrypoint command failed with exit code {code[0]}" if code[0] else "Job finished successfully."

    def submit(self, job_id: str, entrypoint: str, runtime_env: Obj, metadata: dict[str, str]) -> None:
        """Start a job."""
        stop, code = Order(), list[int]()
        self.started.append(entrypoint)
        thread = threading.Thread(target=lambda: code.append(self._work(entrypoint, stop)), daemon=True)
        self._jobs[job_id] = (stop, code, thread)
        thread.start()

    def stop(self, job_id: str) -> None:
        """Ask it to stop, and wait for it as a pod's grace does."""
        if job_id in self._jobs:
            self._jobs[job_id][0].set()
            self._jobs[job_id][2].join(2.0)

    def forget(self) -> None:
        """The head is lost: its jobs die unheard."""
        while self._jobs:
            order, _, thread = self._jobs.popitem()[1]
            order.killed = True
            order.set()
            thread.join(2.0)
