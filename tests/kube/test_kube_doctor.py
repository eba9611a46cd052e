"""`attuner cluster doctor`: every fault has a line of its own that says how to mend it; a sound cluster has none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from kube_lab import CRD, NAMESPACE, ROOT, Kube, roles
from kube_nodes import node, quota

from attuner.cli.main import main
from attuner.core.access import Check
from attuner.core.campaign import Cluster
from attuner.launchers.kuberay.doctor import doctor

GOOD: dict[str, Any] = {
    "pvc": "runs",
    "mount": "/mnt/attuner",
    "queue": "team",
    "env": {"NCCL_SOCKET_IFNAME": "eth0", "NCCL_IB_HCA": "=mlx5_0"},
    "limits": {"rdma/hca": "1"},
}


@pytest.fixture
def sound(kube: Kube) -> Kube:
    claim = {"metadata": {"name": "runs"}, "spec": {"accessModes": ["ReadWriteMany"]}, "status": {"phase": "Bound"}}
    kube.store.create("persistentvolumeclaims", NAMESPACE, claim)
    kube.store.create("localqueues", NAMESPACE, {"metadata": {"name": "team"}})
    return kube


def cluster(lab: Kube, **more: Any) -> Cluster:
    found = lab.cluster(**{**GOOD, **more.pop("kube", {})})
    update = {"storage": "/mnt/attuner/runs", "device": {"kind": "cuda"}, **more}
    return Cluster.model_validate({**found.data(), **update})


def look(lab: Kube, **more: Any) -> dict[str, Check]:
    found = doctor(cluster(lab, **more), home=lab.folder, runner=ROOT / "attuner" / "runner")
    return {c.name: c for c in found}


def test_a_sound_cluster_has_nothing_to_mend(sound: Kube) -> None:
    found = look(sound)
    assert {n: c.detail for n, c in found.items() if not c.ok} == {}
    assert list(found) == [
        *("rights", "rights to look", "rights on the cluster", "KubeRay", "RayJob", "image", "claim", "storage"),
        *("NCCL_SOCKET_IFNAME", "NCCL_IB_HCA", "/dev/shm", "locked memory", "devices", "quota", "queue"),
    ]
    assert sound.server.created("rayjobs") == []
    assert sound.store.list("rayjobs") == []


@pytest.mark.parametrize(
    ("name", "more", "says", "mend"),
    [
        ("image", {"kube": {"image": "r.io/train:latest"}}, "named by a tag", "name@sha256"),
        ("claim", {"kube": {"pvc": "other"}}, "no claim other", "mend kube.pvc"),
        ("storage", {"storage": "/scratch"}, "is on no claim", "set kube.pvc"),
        ("storage", {"storage": "", "kube": {"pvc": ""}}, "is on no claim", "or s3://bucket/prefix"),
        ("NCCL_SOCKET_IFNAME", {"kube": {"env": {"NCCL_IB_HCA": "x"}}}, "is not set", "eth0"),
        ("NCCL_IB_HCA", {"kube": {"env": {"NCCL_SOCKET_IFNAME": "eth0"}}}, "is not told which", "set kube.env.NCCL_IB_HCA"),
        ("NCCL_IB_HCA", {"kube": {"limits": {}}}, "no RDMA resource", "kube.limits"),
        ("NCCL_IB_HCA", {"kube": {"env": {"NCCL_IB_DISABLE": "1"}}}, "and NCCL_IB_DISABLE=1", "take NCCL_IB_DISABLE out"),
        ("/dev/shm", {"kube": {"shm_gib": 512}}, "512 GiB of 256 GiB", "larger than kube.shm_gib"),
        ("/dev/shm", {"kube": {"shm_gib": 1}}, "1 GiB for 4 ranks", "set kube.shm_gib to 4"),
        (
            "devices",
            {"devices": 16},
            "8 nvidia.com/gpu on 2 nodes, 2 of them with 4 or more; the file says 16",
            "kube.autoscaled",
        ),
        ("devices", {"kube": {"node_selector": {"gpu": "h100"}}}, "0 nvidia.com/gpu on 0 nodes", "kube.node_selector"),
        ("queue", {"kube": {"queue": "none"}}, "no LocalQueue none", "create the LocalQueue"),
        (
            "RayJob",
            {"kube": {"worker": {"cpu": "1", "memory": "1Gi"}, "env": {"A=B": ""}}},
            "is no name",
            "mend the cluster file",
        ),
    ],
)
def test_each_fault_of_the_file_says_how_to_mend_it(sound: Kube, name: str, more: dict[str, Any], says: str, mend: str) -> None:
    found = look(sound, **more)[name]
    assert (found.ok, says in found.detail, mend in found.mend) == (False, True, True), found


def test_each_missing_right_is_named(sound: Kube) -> None:
    sound.server.users["attuner"] = [r for r in roles("role") if r.resources not in (["rayjobs"], ["pods/log"])]
    found = look(sound)
    lacks = [f"{v} rayjobs.ray.io" for v in ("create", "get", "list", "watch", "delete")]
    assert found["rights"].detail == f"missing: {', '.join(lacks)}"
    assert found["rights"].mend == f"kubectl apply -k configs/kube -n {NAMESPACE}"
    assert found["rights to look"].detail == "missing: get pods/log"
    assert found["rights on the cluster"].ok
    assert "what they tell is skipped" in found["rights on the cluster"].detail
    assert found["devices"].ok
    assert not found["RayJob"].ok


def test_a_cluster_without_kuberay_or_with_an_old_one(sound: Kube) -> None:
    crd = sound.store.get("customresourcedefinitions", "", CRD)
    del crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["preRunningDeadlineSeconds"]
    sound.store.update("customresourcedefinitions", crd)
    assert "does not know preRunningDeadlineSeconds" in look(sound)["KubeRay"].detail
    crd = sound.store.get("customresourcedefinitions", "", CRD)
    crd["spec"]["versions"][0]["served"] = False
    sound.store.update("customresourcedefinitions", crd)
    assert "serves no v1" in look(sound)["KubeRay"].detail
    sound.store.remove("customresourcedefinitions", "", CRD)
    assert "no rayjobs.ray.io is installed" in look(sound)["KubeRay"].detail


def test_a_claim_that_only_one_node_may_write_and_one_that_is_not_bound(sound: Kube) -> None:
    claim = sound.store.get("persistentvolumeclaims", NAMESPACE, "runs")
    claim["spec"]["accessModes"] = ["ReadWriteOnce"]
    sound.store.update("persistentvolumeclaims", claim)
    assert "runs is ReadWriteOnce" in look(sound)["claim"].detail
    claim = sound.store.get("persistentvolumeclaims", NAMESPACE, "runs")
    claim["status"]["phase"] = "Pending"
    sound.store.update("persistentvolumeclaims", claim)
    assert "runs is Pending" in look(sound)["claim"].detail


def test_a_quota_and_a_queue_in_the_way(sound: Kube) -> None:
    sound.store.create("resourcequotas", NAMESPACE, quota("team", gpu="4"))
    queue = sound.store.get("localqueues", NAMESPACE, "team")
    queue["status"] = {"conditions": [{"type": "Active", "status": "False", "message": "Can't submit new workloads"}]}
    sound.store.update("localqueues", queue)
    found = look(sound)
    assert "admits at most 4 of requests.nvidia.com/gpu, the job asks 8" in found["quota"].detail
    assert "not active: Can't submit new workloads" in found["queue"].detail


def test_a_server_that_is_not_there_is_the_only_finding(sound: Kube) -> None:
    made = cluster(sound)
    sound.server.stop()
    found = doctor(made, home=sound.folder, runner=ROOT / "attuner" / "runner")
    assert [(c.name, c.ok) for c in found] == [("server", False)]


def write(path: Path, found: Cluster) -> Path:
    path.write_text(yaml.safe_dump(found.data()))
    return path


def test_the_command_prints_what_to_mend_and_exits_1(sound: Kube, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = write(tmp_path / "good.yaml", cluster(sound))
    assert main(["cluster", "doctor", str(good)]) == 0
    assert "all is well" in capsys.readouterr().out
    bad = write(tmp_path / "bad.yaml", cluster(sound, kube={"queue": "none"}))
    assert main(["cluster", "doctor", str(bad)]) == 1
    said = capsys.readouterr().out
    assert "MEND  queue" in said
    assert "→ create the LocalQueue" in said
    assert main(["cluster", "doctor", str(bad), "--json"]) == 1
    body = json.loads(capsys.readouterr().out)
    assert (body["ok"], body["launcher"], len(body["checks"])) == (False, "kuberay", 15)


def test_a_campaign_file_names_its_cluster(sound: Kube, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    campaign = yaml.safe_load((ROOT / "configs" / "campaigns" / "quickstart.yaml").read_text())
    campaign["launcher"] = {"name": "kuberay", "cluster": cluster(sound).data()}
    path = tmp_path / "c.yaml"
    path.write_text(yaml.safe_dump(campaign))
    assert main(["cluster", "doctor", str(path)]) == 0
    assert "cluster lab, launcher kuberay" in capsys.readouterr().out


def test_spare_nodes_do_no_harm(sound: Kube) -> None:
    for i in range(5):
        sound.store.create("nodes", "", node(f"cpu{i}", 0))
    assert look(sound)["devices"].ok
