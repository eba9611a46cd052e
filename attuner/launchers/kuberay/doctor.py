"""Looks at a namespace before anything is paid for: rights, KubeRay, image, storage, network settings, devices, queue.

Each look is a Check with what to do about it; nothing is created (the RayJob is sent as a dry run).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from attuner.core.access import Check
from attuner.core.campaign import Cluster
from attuner.core.errors import AttunerError
from attuner.core.kube import KubeSpec
from attuner.core.run import Attempt
from attuner.launchers.kuberay import capacity, checks, manifest
from attuner.launchers.kuberay.api import (
    CLUSTER_ROLE,
    CREATE_JOB,
    GET_CLAIM,
    GET_CRD,
    GET_QUEUE,
    HELPFUL,
    LIST_NODES,
    LIST_QUOTAS,
    NEEDED,
    OPTIONAL,
    ROLE,
    KubeApi,
    Right,
    said,
)
from attuner.ports import JobSpec

CRD = "rayjobs.ray.io"
FIELDS = ("preRunningDeadlineSeconds", "backoffLimit", "submissionMode")
"""Fields of the RayJob that an older KubeRay doesn't know."""
REVIEW = Right("create", "selfsubjectaccessreviews", "authorization.k8s.io", cluster=True)
SHM_GIB_PER_DEVICE = 1.0
"""NCCL and data loaders of one rank share about this much (NCCL's own figure is far less; PyTorch workers pass batches there)."""


def doctor(cluster: Cluster, *, home: Path, runner: Path, api: KubeApi | None = None) -> list[Check]:
    """Return what was looked at, in order.

    Args:
        home: folder of the ledger on this machine (ATTUNER_HOME).
        runner: folder of the runner's sources.
        api: instead of one made from the cluster file.
    """
    spec = manifest.kube_of(cluster)
    api = api or KubeApi(spec, patience_s=5.0)
    try:
        found = _rights(api)
    except AttunerError as error:
        return [Check(name="server", ok=False, detail=str(error), mend="check kube.kubeconfig, kube.context and the network")]
    looks: list[tuple[str, Callable[[], list[Check]]]] = [
        ("KubeRay", lambda: _installed(api)),
        ("RayJob", lambda: _dry_run(api, cluster, runner)),
        ("image", lambda: [_image(spec)]),
        ("storage", lambda: _storage(api, cluster, home)),
        ("network", lambda: _network(cluster, spec)),
        ("devices", lambda: [_devices(api, cluster)]),
        ("quota", lambda: [_quota(api, cluster)]),
        ("queue", lambda: [_queue(api)] if spec.queue else []),
    ]
    for name, look in looks:
        try:
            found += look()
        except AttunerError as error:
            found.append(Check(name=name, ok=False, detail=str(error)))
    return found


def _rights(api: KubeApi) -> list[Check]:
    """Ask for every verb that the launcher may use."""
    missing = {kind: [r for r in rights if not _may(api, r)] for kind, rights in _KINDS.items()}
    mend = f"kubectl apply -k {Path(ROLE).parent} -n {api.spec.namespace}"
    found = []
    for kind, rights in _KINDS.items():
        lacks = ", ".join(r.words() for r in missing[kind])
        every = f"all {len(rights)} are there"
        if kind == "rights on the cluster":
            detail = f"not there: {lacks}; what they tell is skipped" if lacks else every
            found.append(
                Check(name=kind, ok=True, detail=detail, mend=f"an administrator may apply {CLUSTER_ROLE}" if lacks else "")
            )
        else:
            found.append(
                Check(name=kind, ok=not lacks, detail=f"missing: {lacks}" if lacks else every, mend=mend if lacks else "")
            )
    return found


_KINDS = {"rights": NEEDED, "rights to look": HELPFUL, "rights on the cluster": OPTIONAL}


def _may(api: KubeApi, right: Right) -> bool:
    resource, _, sub = right.resource.partition("/")
    where = {} if right.cluster else {"namespace": api.spec.namespace}
    named = {"name": CRD} if right is GET_CRD else {}
    asked = {"verb": right.verb, "group": right.group, "resource": resource, "subresource": sub, **where, **named}
    body = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview", "spec": {"resourceAttributes": asked}}
    answer = api.call(REVIEW, api.reviews().create_self_subject_access_review, body=body)
    return bool(answer.body.get("status", {}).get("allowed"))


def _installed(api: KubeApi) -> list[Check]:
    answer = api.call(GET_CRD, api.extensions().read_custom_resource_definition, CRD, ok=(403, 404))
    if answer.status == 403:
        return [Check(name="KubeRay", ok=True, detail=f"{CRD} may not be read; the dry run tells")]
    if not answer.ok:
        mend = "install the KubeRay operator 1.6 or later (helm install kuberay-operator kuberay/kuberay-operator)"
        return [Check(name="KubeRay", ok=False, detail=f"no {CRD} is installed", mend=mend)]
    schema = checks.schema_of(answer.body)
    if schema is None:
        return [Check(name="KubeRay", ok=False, detail=f"{CRD} serves no v1", mend="upgrade the KubeRay operator")]
    known = schema["properties"].get("spec", {}).get("properties", {})
    lacks = [f for f in FIELDS if f not in known]
    detail = f"{CRD} v1 does not know {', '.join(lacks)}" if lacks else f"{CRD} v1 is served"
    return [Check(name="KubeRay", ok=not lacks, detail=detail, mend="upgrade the KubeRay operator and its CRDs" if lacks else "")]


def sample(cluster: Cluster, runner: Path, *, gpus: int) -> dict[str, Any]:
    """Return a RayJob as a launch on so many devices would send it."""
    attempt = Attempt(launch_id="l00", number=1, submission_id="attuner-doctor-l00-a1", folder="/doctor", submitted_at=0.0)
    limits = {"time_limit_s": 600.0, "hang_s": 120.0}
    job = JobSpec(
        module="", job={}, env={}, gpus=gpus, gpus_per_node=cluster.devices_per_node, resource=cluster.resource, **limits
    )
    package = manifest.zip_name(manifest.runner_zip(runner))
    return manifest.rayjob(attempt, job, cluster, document={}, package=package, run_dir="/doctor", prefer=[], avoid=[])


def _dry_run(api: KubeApi, cluster: Cluster, runner: Path) -> list[Check]:
    body = sample(cluster, runner, gpus=min(cluster.devices, cluster.devices_per_node))
    if wrong := checks.problems(body):
        return [Check(name="RayJob", ok=False, detail=wrong[0], mend="mend the cluster file")]
    method = api.custom().create_namespaced_custom_object
    more: dict[str, Any] = {**api.rayjobs(), "body": body, "dry_run": "All", "field_validation": "Strict"}
    answer = api.call(CREATE_JOB, method, **more, ok=(400, 403, 404, 409, 422))
    if answer.ok or answer.status == 409:
        return [Check(name="RayJob", ok=True, detail="the server takes ours (dry run)")]
    return [
        Check(name="RayJob", ok=False, detail=said(answer), mend="see the checks above; if all are fine, upgrade KubeRay's CRDs")
    ]


def _image(spec: KubeSpec) -> Check:
    pull = f"try it on a node: kubectl -n {spec.namespace} run pull-test --rm -it --restart=Never --image={spec.image} -- true"
    secrets = f"pull secrets {', '.join(spec.image_pull_secrets)}" if spec.image_pull_secrets else "no pull secret"
    if "@sha256:" in spec.image:
        return Check(name="image", ok=True, detail=f"{spec.image}: named by its digest; {secrets}", mend=pull)
    mend = (
        "name it by digest (name@sha256:…): a tag may move within a campaign, and then two launches differ in more than a lever"
    )
    return Check(name="image", ok=False, detail=f"{spec.image}: named by a tag; {secrets}", mend=mend)


def _storage(api: KubeApi, cluster: Cluster, home: Path) -> list[Check]:
    spec = api.spec
    found = [_claim(api, cluster)] if spec.pvc else []
    where = cluster.storage
    if where.startswith("s3://"):
        return [*found, Check(name="storage", ok=True, detail=f"runs go to {where}; pods need its credentials")]
    mounted = spec.pvc and Path(where or home).is_relative_to(spec.mount)
    if mounted:
        return [*found, Check(name="storage", ok=True, detail=f"runs go to {where or home}, on claim {spec.pvc}")]
    mend = "set kube.pvc, and storage to a folder below kube.mount (or ATTUNER_HOME, if attuner runs in the cluster); or s3://bucket/prefix"
    return [
        *found,
        Check(
            name="storage", ok=False, detail=f"{where or home} is on no claim: what pods write there goes with them", mend=mend
        ),
    ]


def _claim(api: KubeApi, cluster: Cluster) -> Check:
    name, spec = api.spec.pvc, api.spec
    answer = api.call(GET_CLAIM, api.core().read_namespaced_persistent_volume_claim, name, spec.namespace, ok=(403, 404))
    if answer.status == 403:
        return Check(name="claim", ok=False, detail=f"{name} may not be read", mend=f"apply {ROLE}")
    if not answer.ok:
        return Check(name="claim", ok=False, detail=f"no claim {name} in {spec.namespace}", mend="create it, or mend kube.pvc")
    phase, modes = answer.body.get("status", {}).get("phase", ""), answer.body.get("spec", {}).get("accessModes", [])
    if phase != "Bound":
        return Check(
            name="claim", ok=False, detail=f"{name} is {phase or 'not bound'}", mend="see its events: kubectl describe pvc"
        )
    if "ReadWriteMany" not in modes:
        mend = "use a claim with ReadWriteMany: head and workers lie on different nodes"
        return Check(name="claim", ok=False, detail=f"{name} is {', '.join(modes) or 'of no mode'}", mend=mend)
    return Check(name="claim", ok=True, detail=f"{name} is bound, ReadWriteMany")


def _network(cluster: Cluster, spec: KubeSpec) -> list[Check]:
    """Look at what NCCL will find: interface, adapters, shared memory, locked memory."""
    env, rdma = {**cluster.env, **spec.env}, sorted(n for n in spec.limits if "rdma" in n or "hca" in n)
    found = []
    several = cluster.devices > cluster.devices_per_node
    if several and cluster.device.kind == "cuda":
        named = env.get("NCCL_SOCKET_IFNAME", "")
        mend = (
            "" if named else "set kube.env.NCCL_SOCKET_IFNAME to the pods' interface (eth0 as a rule): NCCL may take a wrong one"
        )
        found.append(Check(name="NCCL_SOCKET_IFNAME", ok=bool(named), detail=named or "is not set", mend=mend))
        found.append(_adapters(env, rdma))
    memory, shm = capacity.quantity(spec.worker.memory) / 2**30, spec.shm_gib
    wanted = SHM_GIB_PER_DEVICE * cluster.devices_per_node
    if shm >= memory:
        mend = "make kube.worker.memory larger than kube.shm_gib: what lies in /dev/shm counts against the pod's memory"
        found.append(Check(name="/dev/shm", ok=False, detail=f"{shm:g} GiB of {memory:g} GiB memory", mend=mend))
    else:
        mend = "" if shm >= wanted else f"set kube.shm_gib to {wanted:g} or more"
        found.append(
            Check(name="/dev/shm", ok=shm >= wanted, detail=f"{shm:g} GiB for {cluster.devices_per_node} ranks", mend=mend)
        )
    if rdma:
        found.append(
            Check(
                name="locked memory", ok=True, detail="IPC_LOCK is given to workers; the node's memlock limit must be unlimited"
            )
        )
    return found


def _adapters(env: dict[str, str], rdma: list[str]) -> Check:
    off = env.get("NCCL_IB_DISABLE", "0") == "1"
    if rdma and off:
        mend = "take NCCL_IB_DISABLE out, or the RDMA resource"
        return Check(name="NCCL_IB_HCA", ok=False, detail=f"{', '.join(rdma)} is asked for, and NCCL_IB_DISABLE=1", mend=mend)
    if rdma and not env.get("NCCL_IB_HCA"):
        mend = "set kube.env.NCCL_IB_HCA to the adapters that training may use (e.g. =mlx5_0,mlx5_1)"
        return Check(
            name="NCCL_IB_HCA", ok=False, detail=f"{', '.join(rdma)} is asked for, but NCCL is not told which", mend=mend
        )
    if not rdma and not off:
        mend = (
            "add the nodes' RDMA resource to kube.limits, or set NCCL_IB_DISABLE=1: else NCCL falls back to TCP and says nothing"
        )
        return Check(name="NCCL_IB_HCA", ok=False, detail="no RDMA resource is asked for", mend=mend)
    return Check(name="NCCL_IB_HCA", ok=True, detail=env.get("NCCL_IB_HCA") or "TCP, as NCCL_IB_DISABLE=1 says")


def _devices(api: KubeApi, cluster: Cluster) -> Check:
    answer = api.call(LIST_NODES, api.core().list_node, ok=(403,))
    if answer.status == 403:
        return Check(name="devices", ok=True, detail=f"nodes may not be listed; not looked at (apply {CLUSTER_ROLE})")
    key, selector = api.spec.gpu_key, api.spec.node_selector
    fitting = [n for n in answer.body.get("items", []) if capacity.usable(n, selector)]
    room = capacity.free_devices(fitting, key)
    there = sum(room.values())
    whole = sum(1 for n in room.values() if n >= cluster.devices_per_node)
    needed = -(-cluster.devices // cluster.devices_per_node)
    large = f"{whole} of them with {cluster.devices_per_node} or more"
    detail = f"{there} {key} on {len(room)} nodes, {large}; the file says {cluster.devices}"
    ok = whole >= needed or api.spec.autoscaled
    mend = "" if ok else "mend devices, devices_per_node or kube.node_selector, or set kube.autoscaled if nodes come on demand"
    return Check(name="devices", ok=ok, detail=detail, mend=mend)


def _quota(api: KubeApi, cluster: Cluster) -> Check:
    answer = api.call(LIST_QUOTAS, api.core().list_namespaced_resource_quota, api.spec.namespace, ok=(403,))
    if answer.status == 403:
        return Check(name="quota", ok=False, detail="quotas may not be listed", mend=f"apply {ROLE}")
    quotas = answer.body.get("items", [])
    wrong = capacity.quota_problem(quotas, sample(cluster, _RUNNER, gpus=cluster.devices)) if quotas else ""
    mend = "ask for a larger quota, or make devices smaller" if wrong else ""
    return Check(name="quota", ok=not wrong, detail=wrong or f"{len(quotas)} quotas, none in the way", mend=mend)


_RUNNER = Path(__file__).parents[2] / "runner"


def _queue(api: KubeApi) -> Check:
    name, spec = api.spec.queue, api.spec
    where: dict[str, Any] = {
        "group": "kueue.x-k8s.io",
        "version": "v1beta1",
        "namespace": spec.namespace,
        "plural": "localqueues",
        "name": name,
    }
    answer = api.call(GET_QUEUE, api.custom().get_namespaced_custom_object, **where, ok=(403, 404))
    if answer.status == 403:
        return Check(name="queue", ok=False, detail=f"LocalQueue {name} may not be read", mend=f"apply {ROLE}")
    if not answer.ok:
        mend = "create the LocalQueue, mend kube.queue, or take it out if there is no Kueue"
        return Check(name="queue", ok=False, detail=f"no LocalQueue {name} in {spec.namespace}", mend=mend)
    active: dict[str, Any] = next((c for c in answer.body.get("status", {}).get("conditions", []) if c["type"] == "Active"), {})
    ok = active.get("status", "True") == "True"
    detail = f"LocalQueue {name} is {'active' if ok else 'not active: ' + str(active.get('message', ''))}"
    return Check(name="queue", ok=ok, detail=detail, mend="" if ok else "ask who runs the ClusterQueue")
