"""What is sent: one cluster per attempt, no retry by others, whole nodes, and nothing that KubeRay would refuse later."""

from __future__ import annotations

import copy
import io
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from kube_lab import ROOT, SCHEMA, job, spec
from kube_nodes import node, quota
from kube_store import validate

from attuner.core.campaign import Cluster
from attuner.core.run import Attempt
from attuner.launchers.kuberay import capacity, checks, manifest
from attuner.ports import JobSpec

CRD = ROOT / "shared" / "data" / "rayjobs.crd.yaml"
CRDS = [p for p in (CRD, ROOT.parent / "shared" / "data" / "rayjobs.crd.yaml") if p.is_file()]


def attempt(name: str = "lab-0001") -> Attempt:
    return Attempt(launch_id="l01", number=2, submission_id=f"{name}-l01-a2", folder="/w/runs/l01-a2", submitted_at=0.0)


def body(job_: JobSpec | None = None, *, name: str = "lab-0001", resource: str = "GPU", **kube: Any) -> dict[str, Any]:
    cluster = Cluster(name="c", resource=resource, devices=64, devices_per_node=8, kube=spec(Path("/w"), **kube))
    run = {"run_dir": "/mnt/attuner/runs/l01-a2", "package": "runner-0.zip", "prefer": ["n7"], "avoid": ["n3"]}
    return manifest.rayjob(attempt(name), job_ or job(gpus=16, per_node=8), cluster, document={"a": 1}, **run)


FULL: dict[str, Any] = {
    "queue": "team-a",
    "pvc": "runs",
    "ray_version": "2.60.0",
    "service_account": "trainer",
    "priority_class": "low",
    "image_pull_secrets": ["registry"],
    "node_selector": {"gpu": "h100"},
    "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
    "annotations": {"k8s.v1.cni.cncf.io/networks": "rdma"},
    "limits": {"rdma/hca_shared_devices": "1"},
    "env": {"NCCL_SOCKET_IFNAME": "eth0"},
}


def test_nobody_but_attuner_retries_and_the_cluster_ends_with_the_job() -> None:
    found = body()["spec"]
    wanted = {"submissionMode": "HTTPMode", "backoffLimit": 0, "shutdownAfterJobFinishes": True, "ttlSecondsAfterFinished": 0}
    assert {k: found[k] for k in wanted} == wanted
    assert found["preRunningDeadlineSeconds"] == 600
    assert found["activeDeadlineSeconds"] == 600 + 60 + manifest.ENDING_S
    assert "submitterPodTemplate" not in found


def test_name_and_labels_say_whose_it_is_and_pods_carry_them() -> None:
    found = body(**FULL)
    labels = {"attuner/campaign": "lab-0001", "attuner/launch": "l01", "attuner/attempt": "lab-0001-l01-a2"}
    assert found["metadata"]["name"] == found["spec"]["jobId"] == "lab-0001-l01-a2"
    assert found["metadata"]["labels"] == {**labels, "kueue.x-k8s.io/queue-name": "team-a"}
    cluster = found["spec"]["rayClusterSpec"]
    for template in (cluster["headGroupSpec"]["template"], cluster["workerGroupSpecs"][0]["template"]):
        assert template["metadata"]["labels"] == labels


@pytest.mark.parametrize(
    ("gpus", "per_node", "groups"), [(2, 8, [(1, 2)]), (8, 8, [(1, 8)]), (16, 8, [(2, 8)]), (20, 8, [(2, 8), (1, 4)])]
)
def test_workers_hold_whole_nodes_and_the_head_holds_none(gpus: int, per_node: int, groups: list[tuple[int, int]]) -> None:
    found = body(job(gpus=gpus, per_node=per_node))
    asked = [
        (count, int(s["containers"][0]["resources"]["limits"]["nvidia.com/gpu"]))
        for group, count, s in capacity.pods_of(found)
        if group != "head"
    ]
    assert asked == groups
    head = found["spec"]["rayClusterSpec"]["headGroupSpec"]
    assert "nvidia.com/gpu" not in head["template"]["spec"]["containers"][0]["resources"]["limits"]
    assert head["rayStartParams"] == {"num-cpus": "0"}


def test_a_ray_resource_of_ones_own_is_told_to_ray() -> None:
    worker = body(job(gpus=2, per_node=2), resource="slot")["spec"]["rayClusterSpec"]["workerGroupSpecs"][0]
    assert worker["rayStartParams"] == {"resources": "'{\"slot\": 2}'"}
    assert body()["spec"]["rayClusterSpec"]["workerGroupSpecs"][0]["rayStartParams"] == {}


def test_memory_to_share_and_rdma_are_set_on_workers() -> None:
    worker = body(**FULL)["spec"]["rayClusterSpec"]["workerGroupSpecs"][0]["template"]["spec"]
    assert {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "64Gi"}} in worker["volumes"]
    assert worker["containers"][0]["securityContext"] == {"capabilities": {"add": ["IPC_LOCK"]}}
    wishes = worker["affinity"]["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    said = [(e["operator"], e["values"]) for w in wishes for e in w["preference"]["matchExpressions"]]
    assert said == [("In", ["n7"]), ("NotIn", ["n3"])]


def test_runner_and_job_travel_as_a_config_map_that_the_rayjob_owns() -> None:
    package = manifest.runner_zip(ROOT / "attuner" / "runner")
    assert package == manifest.runner_zip(ROOT / "attuner" / "runner")
    with zipfile.ZipFile(io.BytesIO(package)) as archive:
        assert {"ship/attuner_runner/driver.py", "ship/attuner_runner/once.py"} <= set(archive.namelist())
        assert {n.split("/")[0] for n in archive.namelist()} == {"ship"}
    found = manifest.ship(attempt(), "ns", {"a": 1}, package, owner={"name": "lab-0001-l01-a2", "uid": "u1"})
    assert found["metadata"]["ownerReferences"][0] | {"apiVersion": 0} == {
        **{"apiVersion": 0, "kind": "RayJob", "name": "lab-0001-l01-a2", "uid": "u1"}
    }
    assert list(found["binaryData"]) == [manifest.zip_name(package)]
    assert checks.oversized(found) == ""
    found["data"]["job.json"] = "x" * (1 << 20)
    assert "a ConfigMap holds 1048576" in checks.oversized(found)


def test_only_the_same_work_under_the_same_name_is_ours() -> None:
    found = body()
    assert manifest.is_ours(copy.deepcopy(found), found)
    other = copy.deepcopy(found)
    other["metadata"]["annotations"] = {"attuner/job-digest": "else"}
    assert not manifest.is_ours(other, found)
    assert not manifest.is_ours({"metadata": {"name": found["metadata"]["name"]}}, found)


# ------------------------------------------------------------------------------------- checks


@pytest.mark.parametrize("kube", [{}, FULL])
def test_ours_passes_its_checks_and_the_stand_ins_schema(kube: dict[str, Any]) -> None:
    assert checks.problems(body(**kube)) == []
    assert validate(body(**kube), SCHEMA, strict=True) == []
    assert checks.schema_problems(body(**kube), checks.schema_of(_crd(SCHEMA)) or {}) == []


def _crd(schema: dict[str, Any]) -> dict[str, Any]:
    return {"spec": {"versions": [{"name": "v1", "served": True, "schema": {"openAPIV3Schema": copy.deepcopy(schema)}}]}}


def changed(path: str, value: Any) -> dict[str, Any]:
    found = body(**FULL)
    *parents, last = path.split(".")
    at: Any = found
    for word in parents:
        at = at[int(word)] if word.isdigit() else at[word]
    at[last] = value
    return found


WORKER = "spec.rayClusterSpec.workerGroupSpecs.0"
CONTAINER = f"{WORKER}.template.spec.containers.0"


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        ("spec.submissionMode", "Bogus", "submissionMode: Bogus: unknown"),
        ("spec.backoffLimit", 1, "backoffLimit: must be 0"),
        ("spec.ttlSecondsAfterFinished", 60, "shutdownAfterJobFinishes"),
        ("spec.activeDeadlineSeconds", 2**31, "activeDeadlineSeconds"),
        ("spec.preRunningDeadlineSeconds", 0, "preRunningDeadlineSeconds"),
        ("spec.entrypoint", "", "entrypoint: is empty"),
        ("metadata.name", "9-starts-with-a-digit", "must begin with a letter"),
        ("metadata.name", "a" * 48, "has 48 characters"),
        ("metadata.labels", {"attuner/campaign": "x" * 64}, "is no label value"),
        (f"{CONTAINER}.image", "two words", "is no image name"),
        (f"{CONTAINER}.env", [{"name": "A=B", "value": ""}], "is no name"),
        (f"{CONTAINER}.resources", {"limits": {"nvidia.com/gpu": "0.5"}}, "devices come whole"),
        (f"{CONTAINER}.resources", {"limits": {"memory": "lots"}}, "is no quantity"),
        (f"{CONTAINER}.volumeMounts", [{"name": "none", "mountPath": "/x"}], "no such volume"),
        (f"{WORKER}.replicas", 0, "0 pods"),
    ],
)
def test_what_no_schema_catches_is_caught_here(path: str, value: Any, says: str) -> None:
    found = checks.problems(changed(path, value))
    assert len(found) >= 1
    assert says in found[0]


@pytest.fixture(scope="module")
def real() -> dict[str, Any]:
    if not CRDS:
        pytest.skip("the schema of KubeRay's RayJob is not at hand (shared/data)")
    found: dict[str, Any] = yaml.load(CRDS[0].read_text(), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    return found


@pytest.mark.parametrize("kube", [{}, FULL])
def test_ours_fits_kuberays_own_schema(real: dict[str, Any], kube: dict[str, Any]) -> None:
    schema = checks.schema_of(real)
    assert schema is not None
    assert checks.schema_problems(body(**kube), schema) == []
    assert validate(body(**kube), real["spec"]["versions"][0]["schema"]["openAPIV3Schema"], strict=True) == []


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("spec.backOffLimit", 1),
        ("spec.activeDeadlineSeconds", "1h"),
        ("spec.preRunningDeadlineSeconds", 0),
        ("spec.rayClusterSpec.headGroupSpec.template", None),
        (f"{CONTAINER}.imagePullPolcy", "Always"),
        (f"{CONTAINER}.env", {"A": "B"}),
    ],
)
def test_misspelt_and_mistyped_fields_break_kuberays_own_schema(real: dict[str, Any], path: str, value: Any) -> None:
    schema = checks.schema_of(real)
    assert schema is not None
    assert checks.schema_problems(changed(path, value), schema)


# ------------------------------------------------------------------------------------- room


def test_quantities_are_numbers() -> None:
    asked = {"500m": 0.5, "8": 8.0, "64Gi": 64 * 2**30, "1.5k": 1500.0, "2e3": 2000.0}
    assert {k: capacity.quantity(k) for k in asked} == asked
    with pytest.raises(ValueError, match="lots"):
        capacity.quantity("lots")


@pytest.mark.parametrize(
    ("hard", "says"),
    [
        ({"gpu": "15"}, "admits at most 15 of requests.nvidia.com/gpu, the job asks 16"),
        ({"gpu": "16"}, ""),
        ({"pods": "2"}, "admits at most 2 of pods, the job asks 3"),
        ({"limits.memory": "100Gi"}, "admits at most 100Gi of limits.memory"),
        ({"count/secrets": "1"}, ""),
    ],
)
def test_a_quota_that_can_never_admit_is_seen_before_anything_is_sent(hard: dict[str, str], says: str) -> None:
    found = capacity.quota_problem([quota("team", **hard)], body())
    assert says in found if says else found == ""


def test_nodes_that_could_never_hold_it_are_seen_before_anything_is_sent() -> None:
    nodes = [node("a", 8, gpu="h100"), node("b", 8), node("c", 4, gpu="h100")]
    key = "nvidia.com/gpu"
    assert capacity.capacity_problem(nodes, body(), key=key) == ""
    assert "group devices needs 2 × 8 nvidia.com/gpu; 3 nodes have room for 1 with {'gpu': 'h100'}" in capacity.capacity_problem(
        nodes, body(**FULL), key=key
    )
    nodes[0]["spec"]["unschedulable"] = True
    assert "have room for 1" in capacity.capacity_problem(nodes, body(), key=key)


def test_calibration_runs_prefer_other_nodes_where_there_are_spares() -> None:
    nodes = [node(f"n{i}", 8) for i in range(5)] + [node("small", 4)]
    picked = [capacity.preferred(nodes, body(), key="nvidia.com/gpu", offset=i) for i in range(3)]
    assert picked == [["n0", "n1"], ["n2", "n3"], ["n4", "n0"]]
    assert capacity.preferred(nodes[:2], body(), key="nvidia.com/gpu", offset=1) == []
    assert capacity.preferred(nodes, body(), key="nvidia.com/gpu", offset=None) == []
