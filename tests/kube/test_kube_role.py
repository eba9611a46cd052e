"""The Role that we ship is what the code uses: nothing that it lacks, nothing that it has for nothing."""

from __future__ import annotations

import pytest
import yaml
from kube_lab import KUBE, NAMESPACE, Driver, Kube, end_of, job, roles, until
from kube_nodes import node

from attuner.launchers.kuberay.api import HELPFUL, NEEDED, OPTIONAL, Right
from attuner.launchers.kuberay.doctor import doctor

Triple = tuple[str, str, str]


def granted(*names: str) -> set[Triple]:
    return {(g, r, v) for rule in roles(*names) for g in rule.groups for r in rule.resources for v in rule.verbs}


def triples(*rights: Right) -> set[Triple]:
    return {(r.group, r.resource, r.verb) for r in rights}


def test_the_files_grant_what_the_code_names() -> None:
    assert granted("role") == triples(*NEEDED, *HELPFUL)
    assert granted("capacity") == triples(*OPTIONAL)


def test_what_is_asked_of_the_server_is_what_the_files_grant(kube: Kube, driver: Driver) -> None:
    """A launch, an image that fails, a restart, a cancel and the doctor use every right that is given, and no other."""
    first = kube.launcher()
    end_of(first, first.submit(kube.attempt(), job()))
    driver.go.clear()
    second = kube.launcher()
    where = second.submit(kube.attempt(2), job())
    until(lambda: second.poll(where).phase == "running")
    second.cancel(where)
    _crashing(kube)
    made = kube.cluster(pvc="runs", queue="team")
    kube.store.create("nodes", "", node("n3", 4))
    doctor(made, home=kube.folder, runner=KUBE.parents[1] / "attuner" / "runner")
    asked = {x for x in kube.server.verbs("attuner") if x[1] != "selfsubjectaccessreviews"}
    assert asked == granted("role", "capacity")
    assert [r for r in kube.server.log if r.user == "attuner" and r.status == 403] == []


def _crashing(kube: Kube) -> None:
    """A head whose container fails again and again: its log is read."""
    kube.operator.stop()
    launcher = kube.launcher()
    where = launcher.submit(kube.attempt(3), job())
    tags = {"attuner/attempt": where.submission_id, "ray.io/node-type": "head"}
    ended = [{"name": "ray-head", "state": {"terminated": {"exitCode": 1}}}]
    for i in range(3):
        spec = {"nodeName": "n1", "containers": [{"name": "ray-head", "image": "x", "resources": {}}]}
        body = {"metadata": {"name": f"head-{i}", "labels": tags}, "spec": spec}
        kube.store.create("pods", NAMESPACE, {**body, "status": {"phase": "Failed", "containerStatuses": ended}})
        kube.server.logs[f"head-{i}"] = "Traceback\nModuleNotFoundError: No module named 'ray'\n"
    until(lambda: launcher.poll(where).phase == "releasing")
    assert "its last line: ModuleNotFoundError: No module named 'ray'" in launcher.poll(where).detail


def test_kustomize_names_every_file_of_the_namespace() -> None:
    body = yaml.safe_load((KUBE / "kustomization.yaml").read_text())
    beside = {p.name for p in KUBE.glob("*.yaml")} - {"kustomization.yaml", "capacity.yaml"}
    assert set(body["resources"]) == beside
    binding = yaml.safe_load((KUBE / "role_binding.yaml").read_text())
    account = yaml.safe_load((KUBE / "service_account.yaml").read_text())
    role = yaml.safe_load((KUBE / "role.yaml").read_text())
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    assert binding["subjects"][0]["name"] == account["metadata"]["name"]


@pytest.mark.parametrize("verb", ["update", "patch", "deletecollection", "*"])
def test_nothing_is_granted_that_changes_what_exists(verb: str) -> None:
    assert [t for t in granted("role", "capacity") if t[2] == verb] == []
