"""The RayJob of one attempt, and the ConfigMap that brings runner and job document to its pods. Pure: data in, data out.

One submission, one cluster, no retry by anybody but attuner: HTTPMode without a submitter pod, backoffLimit 0, deadlines, and
the cluster is shut down with the job. The head pod has no devices; workers hold whole nodes' worth of them.
"""

from __future__ import annotations

import base64
import io
import json
import math
import shlex
import zipfile
from pathlib import Path
from typing import Any

import yaml

from attuner.core.base import digest_of
from attuner.core.campaign import Cluster
from attuner.core.errors import UserError
from attuner.core.kube import KubeSpec, Share
from attuner.core.run import Attempt
from attuner.ports import JobSpec
from attuner.runner import files

PACKAGE = "attuner_runner"
CAMPAIGN, LAUNCH, ATTEMPT = "attuner/campaign", "attuner/launch", "attuner/attempt"
"""Labels of everything that belongs to an attempt; pods carry them too."""
DIGEST = "attuner/job-digest"
"""Annotation: what the attempt was asked to run."""
QUEUE = "kueue.x-k8s.io/queue-name"
ENDING_S = 300
"""What a job may take beside starting and its own time limit: to stop ranks, copy files, tear down."""
STOPS = {"RAY_JOB_STOP_WAIT_TIME_S": "20"}
"""What a stopped driver gets to end its ranks and stamp the release, within the 30 s that pods have to end."""
HOSTNAME = "kubernetes.io/hostname"


def labels(attempt: Attempt) -> dict[str, str]:
    """Return the labels of everything that belongs to an attempt."""
    campaign = attempt.submission_id.removesuffix(f"-{attempt.launch_id}-a{attempt.number}")
    return {CAMPAIGN: campaign, LAUNCH: attempt.launch_id, ATTEMPT: attempt.submission_id}


def groups(job: JobSpec) -> list[tuple[int, int]]:
    """Return (pods, devices of each) of the worker groups: whole nodes, and what is left on one more."""
    if job.gpus <= job.gpus_per_node:
        return [(1, job.gpus)]
    whole, rest = divmod(job.gpus, job.gpus_per_node)
    return [(whole, job.gpus_per_node), *([(1, rest)] if rest else [])]


def runner_zip(runner: Path) -> bytes:
    """Return the runner's sources as Ray unpacks them: one folder at the top, which Ray takes off.

    Equal sources give equal bytes. Raises UserError if there are none.
    """
    sources = sorted(runner.rglob("*.py"))
    if not sources:
        raise UserError(f"{runner}: no runner sources; reinstall attuner")
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for source in sources:
            name = f"ship/{PACKAGE}/{source.relative_to(runner).as_posix()}"
            archive.writestr(zipfile.ZipInfo(name), source.read_bytes(), zipfile.ZIP_DEFLATED)
    return out.getvalue()


def zip_name(package: bytes) -> str:
    """Return the file's name; it tells the content, since Ray keeps what it unpacked by name."""
    return f"runner-{digest_of(base64.b64encode(package).decode())[:12]}.zip"


def ship(attempt: Attempt, namespace: str, document: dict[str, Any], package: bytes, *, owner: dict[str, str]) -> dict[str, Any]:
    """Return the ConfigMap of an attempt; the cluster deletes it together with its owner, the RayJob."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": attempt.submission_id,
            "namespace": namespace,
            "labels": labels(attempt),
            "ownerReferences": [{"apiVersion": "ray.io/v1", "kind": "RayJob", "name": owner["name"], "uid": owner["uid"]}],
        },
        "binaryData": {zip_name(package): base64.b64encode(package).decode()},
        "data": {files.JOB: json.dumps(document, sort_keys=True)},
        "immutable": True,
    }


def rayjob(
    attempt: Attempt,
    job: JobSpec,
    cluster: Cluster,
    *,
    document: dict[str, Any],
    package: str,
    run_dir: str,
    prefer: list[str],
    avoid: list[str],
) -> dict[str, Any]:
    """Return the RayJob of an attempt.

    Args:
        document: the job document, for its digest.
        package: file name of the runner's sources in the ConfigMap.
        run_dir: where the attempt writes, as its pods see it.
        prefer: nodes to run on if they are free.
        avoid: nodes to keep off if there are others.
    """
    spec = kube_of(cluster)
    owned = labels(attempt)
    start_s = math.ceil(cluster.start_timeout_s)
    wishes = [_wish(verb, names) for verb, names in (("In", prefer), ("NotIn", avoid)) if names]
    workers = [_group(attempt, cluster, i, pods=pods, devices=n, wishes=wishes) for i, (pods, n) in enumerate(groups(job))]
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayJob",
        "metadata": {
            "name": attempt.submission_id,
            "namespace": spec.namespace,
            "labels": {**owned, **({QUEUE: spec.queue} if spec.queue else {})},
            "annotations": {DIGEST: digest_of(document)},
        },
        "spec": {
            "entrypoint": shlex.join([spec.python, "-m", f"{PACKAGE}.once", run_dir, f"{spec.ship_mount}/{files.JOB}"]),
            "runtimeEnvYAML": yaml.safe_dump({"working_dir": f"file://{spec.ship_mount}/{package}", "env_vars": STOPS}),
            "jobId": attempt.submission_id,
            "metadata": {"launch": attempt.launch_id, "attempt": str(attempt.number)},
            "submissionMode": "HTTPMode",
            "backoffLimit": 0,
            "activeDeadlineSeconds": start_s + math.ceil(job.time_limit_s) + ENDING_S,
            "preRunningDeadlineSeconds": start_s,
            "shutdownAfterJobFinishes": True,
            "ttlSecondsAfterFinished": 0,
            "rayClusterSpec": {
                **({"rayVersion": spec.ray_version} if spec.ray_version else {}),
                "headGroupSpec": {"rayStartParams": {"num-cpus": "0"}, "template": _head(attempt, spec)},
                "workerGroupSpecs": workers,
            },
        },
    }


def _group(
    attempt: Attempt, cluster: Cluster, index: int, *, pods: int, devices: int, wishes: list[dict[str, Any]]
) -> dict[str, Any]:
    own = {} if cluster.resource == "GPU" else {"resources": f"'{json.dumps({cluster.resource: devices})}'"}
    return {
        "groupName": f"devices{index}" if index else "devices",
        **dict.fromkeys(("replicas", "minReplicas", "maxReplicas"), pods),
        "rayStartParams": own,
        "template": _worker(attempt, kube_of(cluster), devices, wishes),
    }


def kube_of(cluster: Cluster) -> KubeSpec:
    """Return what the cluster file says of Kubernetes. Raises UserError if it says nothing."""
    if cluster.kube is None:
        raise UserError(
            f"cluster {cluster.name}: kube: is missing; launcher kuberay needs namespace and image (docs/kubernetes.md)"
        )
    return cluster.kube


def _head(attempt: Attempt, spec: KubeSpec) -> dict[str, Any]:
    container = _container("ray-head", spec, _resources(spec.head, {}), shm=False)
    return _pod(attempt, spec, container, {}, node_selector=spec.head_node_selector)


def _worker(attempt: Attempt, spec: KubeSpec, devices: int, wishes: list[dict[str, Any]]) -> dict[str, Any]:
    more = {spec.gpu_key: str(devices), **spec.limits}
    container = _container("ray-worker", spec, _resources(spec.worker, more), shm=True)
    if any("rdma" in name for name in spec.limits):
        # registered memory of RDMA is locked memory; a pod's ulimit for it is small otherwise
        container["securityContext"] = {"capabilities": {"add": ["IPC_LOCK"]}}
    pod = _pod(attempt, spec, container, spec.annotations, node_selector=spec.node_selector)
    if wishes:
        pod["spec"]["affinity"] = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": wishes}}
    return pod


def _wish(verb: str, nodes: list[str]) -> dict[str, Any]:
    """Return a preference of the scheduler; never a demand, which could make a job wait for ever."""
    return {"weight": 100, "preference": {"matchExpressions": [{"key": HOSTNAME, "operator": verb, "values": nodes}]}}


def _pod(
    attempt: Attempt, spec: KubeSpec, container: dict[str, Any], annotations: dict[str, str], *, node_selector: dict[str, str]
) -> dict[str, Any]:
    volumes: list[dict[str, Any]] = [{"name": "ship", "configMap": {"name": attempt.submission_id}}]
    if spec.pvc:
        volumes.append({"name": "runs", "persistentVolumeClaim": {"claimName": spec.pvc}})
    if any(m["name"] == "shm" for m in container["volumeMounts"]):
        volumes.append({"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": f"{math.ceil(spec.shm_gib)}Gi"}})
    optional: dict[str, Any] = {
        "nodeSelector": node_selector,
        "tolerations": spec.tolerations,
        "imagePullSecrets": [{"name": n} for n in spec.image_pull_secrets],
        "serviceAccountName": spec.service_account,
        "priorityClassName": spec.priority_class,
    }
    body = {"restartPolicy": "Never", "containers": [container], "volumes": volumes}
    meta: dict[str, Any] = {"labels": labels(attempt)}
    if annotations:
        meta["annotations"] = annotations
    return {"metadata": meta, "spec": {**body, **{k: v for k, v in optional.items() if v}}}


def _container(name: str, spec: KubeSpec, resources: dict[str, Any], *, shm: bool) -> dict[str, Any]:
    mounts: list[dict[str, Any]] = [{"name": "ship", "mountPath": spec.ship_mount, "readOnly": True}]
    if spec.pvc:
        mounts.append({"name": "runs", "mountPath": spec.mount})
    if shm:
        mounts.append({"name": "shm", "mountPath": "/dev/shm"})
    env = [{"name": k, "value": v} for k, v in sorted(spec.env.items())]
    return {"name": name, "image": spec.image, "env": env, "resources": resources, "volumeMounts": mounts}


def _resources(share: Share, more: dict[str, str]) -> dict[str, dict[str, str]]:
    asked = {"cpu": share.cpu, "memory": share.memory, **more}
    return {"requests": asked, "limits": dict(asked)}


def is_ours(found: dict[str, Any], wanted: dict[str, Any]) -> bool:
    """Tell whether a RayJob that exists is this attempt: same labels, same digest of what it runs."""
    there, here = found.get("metadata", {}), wanted["metadata"]
    same_labels = (there.get("labels") or {}).get(ATTEMPT) == here["labels"][ATTEMPT]
    return bool(same_labels and (there.get("annotations") or {}).get(DIGEST) == here["annotations"][DIGEST])
