"""A small Kubernetes with KubeRay for tests: server, nodes, operator, a cluster file's worth of settings, and launchers."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml
from kube_nodes import Nodes, node
from kube_operator import Operator, Order, PaperJobs, Ray
from kube_server import KubeServer
from kube_store import Rule, rules_of

from attuner.core.campaign import Cluster
from attuner.core.kube import KubeSpec
from attuner.core.run import Attempt
from attuner.launchers.kube_jobs import KubeRay
from attuner.launchers.kuberay.api import KubeApi
from attuner.ports import JobSpec, JobState
from attuner.runner import files
from attuner.runner.once import BEGUN_BEFORE, begin

ROOT = Path(__file__).resolve().parents[2]
KUBE = ROOT / "configs" / "kube"
NAMESPACE = "tuning"
CRD = "rayjobs.ray.io"
ANY: dict[str, Any] = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
WORDS = {"type": "object", "additionalProperties": {"type": "string"}}
GROUP: dict[str, Any] = {
    "type": "object",
    "required": ["template"],
    "properties": {
        **{"groupName": {"type": "string"}, "rayStartParams": WORDS, "template": ANY},
        **{k: {"type": "integer"} for k in ("replicas", "minReplicas", "maxReplicas")},
    },
}
SPEC: dict[str, Any] = {
    "type": "object",
    "properties": {
        **{k: {"type": "string"} for k in ("entrypoint", "runtimeEnvYAML", "jobId", "submissionMode")},
        **{k: {"type": "integer"} for k in ("backoffLimit", "activeDeadlineSeconds", "ttlSecondsAfterFinished")},
        **{"preRunningDeadlineSeconds": {"type": "integer", "minimum": 1}, "metadata": WORDS},
        **{k: {"type": "boolean"} for k in ("shutdownAfterJobFinishes", "suspend")},
        "rayClusterSpec": {
            "type": "object",
            "required": ["headGroupSpec"],
            "properties": {
                "rayVersion": {"type": "string"},
                "headGroupSpec": GROUP,
                "workerGroupSpecs": {"type": "array", "items": GROUP},
            },
        },
    },
}
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "apiVersion": {"type": "string"},
        "kind": {"type": "string"},
        "metadata": {"type": "object"},
        "spec": SPEC,
        "status": ANY,
    },
}
"""The fields of a RayJob that we set; the whole schema is used where it is at hand."""


def roles(*names: str) -> list[Rule]:
    """Return the rules that our own files give."""
    found = [x for n in names for x in yaml.safe_load_all((KUBE / f"{n}.yaml").read_text())]
    return rules_of(*[x for x in found if x["kind"] in ("Role", "ClusterRole")])


def spec(folder: Path, **more: Any) -> KubeSpec:
    """Return what a cluster file says under `kube`."""
    base: dict[str, Any] = {"namespace": NAMESPACE, "image": "registry.example/train@sha256:" + "cd" * 32}
    return KubeSpec(**{**base, "kubeconfig": str(folder / "kubeconfig"), "ship_mount": str(folder / "ship"), **more})


class Driver:
    """The driver's part, on paper: stamps as the real one does, and ends when the test lets it.

    Args:
        outcome: what it stamps at its end; '' is a driver that is killed without a word.
    """

    def __init__(self, *, outcome: str = "ok", run_s: float = 0.2, gpus: int = 4) -> None:
        self.outcome, self.run_s, self.gpus = outcome, run_s, gpus
        self.go = threading.Event()
        self.go.set()
        self.running = threading.Event()
        self.begun = 0
        self.late_s = 0.0
        """How long its last stamps take to be seen."""

    def __call__(self, entrypoint: str, stop: Order) -> int:
        """Do what `python -m attuner_runner.once RUN_DIR JOB` would."""
        run_dir = Path(entrypoint.split()[-2])
        if not begin(run_dir):
            return BEGUN_BEFORE
        self.begun += 1
        files.append_jsonl(run_dir / files.STAMPS, {"event": "allocated", "t": time.time(), "hosts": ["n1"], "gpus": self.gpus})
        self.running.set()
        end = time.monotonic() + self.run_s
        while time.monotonic() < end or not self.go.is_set():
            (run_dir / files.HEARTBEAT).write_text(f"{time.time():.3f}\n")
            if stop.wait(0.02):
                if not stop.killed:
                    self._release(run_dir, "stopped")
                return 80
        if not self.outcome:
            return 137
        files.write_json(run_dir / files.DONE, {})
        if self.late_s:
            threading.Timer(self.late_s, self._release, (run_dir, self.outcome)).start()
        else:
            self._release(run_dir, self.outcome)
        return 0 if self.outcome == "ok" else 1

    @staticmethod
    def _release(run_dir: Path, outcome: str) -> None:
        files.append_jsonl(run_dir / files.STAMPS, {"event": "released", "t": time.time(), "outcome": outcome, "detail": ""})


class Kube:
    """Everything, started; `close` ends it."""

    def __init__(self, folder: Path, ray: Ray, *, start_s: float = 0.0) -> None:
        self.folder = folder
        self.server = KubeServer({"attuner": roles("role", "capacity"), "admin": None})
        self.store = self.server.store
        self.store.schema["rayjobs"] = SCHEMA
        version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": SCHEMA}}
        self.store.create("customresourcedefinitions", "", {"metadata": {"name": CRD}, "spec": {"versions": [version]}})
        for name in ("n1", "n2"):
            self.store.create("nodes", "", node(name, 4))
        self.nodes = Nodes(self.store, folder, start_s=start_s)
        self.ray = ray
        self.operator = Operator(self.server, self.nodes, ray)
        self.launchers: list[KubeRay] = []
        self.write_config()

    def write_config(self) -> None:
        """Write the kubeconfig of the user `attuner`."""
        body = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "lab",
            "clusters": [{"name": "lab", "cluster": {"server": self.server.url}}],
            "contexts": [{"name": "lab", "context": {"cluster": "lab", "user": "attuner"}}],
            "users": [{"name": "attuner", "user": {"token": "attuner"}}],
        }
        (self.folder / "kubeconfig").write_text(json.dumps(body))

    def cluster(self, **more: Any) -> Cluster:
        """Return the cluster: two nodes of four devices."""
        base = {"name": "lab", "resource": "GPU", "devices": 8, "devices_per_node": 4, "start_timeout_s": 60}
        return Cluster(**{**base, "kube": spec(self.folder, **more)})

    def launcher(self, *, patience_s: float = 5.0, away_s: float = 60.0, cluster: Cluster | None = None, **more: Any) -> KubeRay:
        """Return a launcher as a new process would have it."""
        found = cluster or self.cluster(**more)
        assert found.kube is not None
        api = KubeApi(found.kube, patience_s=patience_s)
        made = KubeRay(found, self.folder, runner=ROOT / "attuner" / "runner", away_s=away_s, lag_s=0.5, api=api)
        self.launchers.append(made)
        return made

    def restart_operator(self) -> None:
        """Stop the operator and start another."""
        self.operator.stop()
        held, seen = self.operator.held, self.operator.seen
        self.operator = Operator(self.server, self.nodes, self.ray)
        self.operator.held, self.operator.seen = held, seen

    def attempt(self, number: int = 1, launch: str = "l01") -> Attempt:
        """Return an attempt of this campaign."""
        name = f"lab-0001-{launch}-a{number}"
        folder = str(self.folder / "runs" / f"{launch}-a{number}")
        return Attempt(launch_id=launch, number=number, submission_id=name, folder=folder, submitted_at=0.0)

    def evict(self, role: str) -> None:
        """Take a pod away, as the kubelet does under pressure; with the head goes every job."""
        self.nodes.evict(self.pods()[role]["metadata"]["name"], namespace=NAMESPACE)
        if role == "head":
            self.ray.forget()

    def pods(self) -> dict[str, Any]:
        """Return the pods by role, the newest of each."""
        return {p["metadata"]["labels"]["ray.io/node-type"]: p for p in self.store.list("pods", NAMESPACE)}

    def held_s(self) -> float:
        """Return device-seconds that were held, by the stand-in's own account."""
        return sum(n * (end - begin) for n, begin, end in self.operator.held.values())

    def close(self) -> None:
        """End everything that was started."""
        for launcher in self.launchers:
            launcher.close()
        self.operator.stop()
        self.server.stop()


def job(gpus: int = 4, per_node: int = 4, **more: Any) -> JobSpec:
    """Return what a stack would ask for."""
    base: dict[str, Any] = {"module": "train_mcore", "job": {"arguments": {}}, "env": {}, "time_limit_s": 60.0, "hang_s": 30.0}
    return JobSpec(**{**base, "gpus": gpus, "gpus_per_node": per_node, "resource": "GPU", **more})


def until(condition: Callable[[], Any], *, timeout_s: float = 10.0) -> Any:
    """Return what a condition says once it is true. Raises AssertionError when it never is."""
    deadline = time.monotonic() + timeout_s
    while not (found := condition()):
        assert time.monotonic() < deadline, "the condition never came true"
        time.sleep(0.02)
    return found


def end_of(launcher: KubeRay, attempt: Attempt, *, timeout_s: float = 20.0) -> JobState:
    """Poll to the end and return the last state."""

    def last() -> JobState | None:
        state = launcher.poll(attempt)
        return state if state.done() else None

    found: JobState = until(last, timeout_s=timeout_s)
    return found


def paper(driver: Driver) -> PaperJobs:
    """Return a Ray on paper whose jobs are this driver."""
    return PaperJobs(driver)
