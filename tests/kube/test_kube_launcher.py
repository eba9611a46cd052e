"""The laws of the launcher `kuberay`, with the real client over HTTP and an operator stand-in: attach, charge, end."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from kube_lab import NAMESPACE, Driver, Kube, end_of, job, roles, until
from kube_nodes import quota

from attuner.core.errors import Transient, UserError
from attuner.launchers.kuberay import manifest

NAME = "lab-0001-l01-a1"


def test_a_launch_runs_to_its_end_and_is_charged_from_its_pods(kube: Kube) -> None:
    launcher, attempt = kube.launcher(), kube.attempt()
    where = launcher.submit(attempt, job(gpus=8))
    assert where.address == f"kube:{NAMESPACE}/{NAME}"
    state = end_of(launcher, where)
    assert (state.phase, state.gone) == ("succeeded", False)
    stamp = launcher.files(where).stamp
    assert stamp.gpu_seconds == pytest.approx(kube.held_s(), abs=2 * 4 * 1.1)
    assert (stamp.outcome, stamp.nodes) == ("ok", ["n1", "n2"])
    assert stamp.versions["image"].startswith("sha256:abab")
    assert kube.store.list("rayjobs") == kube.store.list("configmaps") == []
    assert kube.server.created("rayjobs") == [NAME]


def test_a_second_submission_and_another_process_attach(kube: Kube, driver: Driver) -> None:
    driver.go.clear()
    first = kube.launcher()
    where = first.submit(kube.attempt(), job())
    assert first.submit(kube.attempt(), job()) == where
    second = kube.launcher()
    assert second.submit(kube.attempt(), job()) == where
    until(lambda: second.poll(where).phase == "running")
    driver.go.set()
    assert end_of(second, where).phase == "succeeded"
    assert kube.server.created("rayjobs") == [NAME]
    assert driver.begun == 1


def test_what_has_ended_needs_no_server_to_say_so_again(kube: Kube) -> None:
    launcher = kube.launcher()
    where = launcher.submit(kube.attempt(), job())
    state = end_of(launcher, where)
    charge = launcher.files(where).stamp
    kube.server.stop()
    other = kube.launcher()
    assert other.poll(where) == state
    assert other.files(where).stamp == charge
    other.cancel(where)
    assert other.submit(kube.attempt(), job()) == where


def test_a_name_that_is_somebody_elses_is_refused(kube: Kube) -> None:
    body = {"metadata": {"name": NAME}, "spec": {"suspend": True}}
    kube.store.create("rayjobs", NAMESPACE, body)
    with pytest.raises(UserError, match=f"RayJob {NAME} exists and is not this attempt"):
        kube.launcher().submit(kube.attempt(), job())


def test_a_create_whose_answer_was_lost_is_attached_to(kube: Kube, driver: Driver) -> None:
    """The server made it, and then said 409 to the second ask: that is ours."""
    driver.go.clear()
    launcher = kube.launcher()
    where = launcher.submit(kube.attempt(), job())
    folder = Path(where.folder)
    record = (folder / "kube.jsonl").read_text() if (folder / "kube.jsonl").exists() else ""
    other = kube.launcher()
    until(lambda: kube.store.list("rayjobs"))
    body = kube.store.list("rayjobs")[0]
    found = other._create(kube.attempt(), {**body, "metadata": {**body["metadata"], "resourceVersion": ""}})
    assert found is not None
    assert found["metadata"]["uid"] == body["metadata"]["uid"]
    assert kube.server.created("rayjobs") == [NAME], record


def test_a_watch_that_is_behind_proves_nothing(kube: Kube, driver: Driver) -> None:
    """The list was empty, the watch has not told of the RayJob yet: it is there all the same."""
    kube.server.stalled = True
    launcher = kube.launcher()
    where = launcher.submit(kube.attempt(), job())
    for _ in range(3):
        assert not launcher.poll(where).done()
    kube.server.stalled = False
    assert end_of(launcher, where).phase == "succeeded"
    kube.server.stalled = True
    driver.go.clear()
    driver.running.clear()
    other = kube.attempt(2)
    where = launcher.submit(other, job())
    driver.running.wait(10)
    begun = time.time()
    until(lambda: time.time() > begun + 1.5)
    launcher.cancel(where)
    charged = launcher.files(where).stamp.gpu_seconds
    assert charged is not None
    assert charged >= 4.0, "pods that no watch told of are charged"


def test_cancel_frees_the_devices_and_is_harmless_again(kube: Kube, driver: Driver) -> None:
    driver.go.clear()
    launcher = kube.launcher()
    where = launcher.submit(kube.attempt(), job())
    until(lambda: launcher.poll(where).phase == "running")
    launcher.cancel(where)
    assert (launcher.poll(where).phase, launcher.poll(where).gone) == ("stopped", False)
    stamp = launcher.files(where).stamp
    assert (stamp.outcome, stamp.released_at is not None) == ("stopped", True)
    assert kube.store.list("pods") == kube.store.list("rayjobs") == []
    launcher.cancel(where)


def test_a_cancel_before_anything_was_submitted_is_harmless(kube: Kube) -> None:
    launcher = kube.launcher()
    launcher.cancel(kube.attempt())
    assert launcher.poll(kube.attempt()).phase == "stopped"
    assert launcher.files(kube.attempt()).stamp.gpu_seconds is None


def test_a_missing_right_is_named_with_the_file_that_grants_it(kube: Kube) -> None:
    kube.server.users["attuner"] = [r for r in roles("role") if r.resources != ["configmaps"]]
    with pytest.raises(UserError, match=r"the right to create configmaps is missing; apply configs/kube/role.yaml"):
        kube.launcher().submit(kube.attempt(), job())
    kube.server.users["attuner"] = [r for r in roles("role") if r.resources != ["pods"]]
    with pytest.raises(UserError, match="the right to list pods is missing"):
        kube.launcher().poll(kube.attempt())


def test_without_rights_on_the_whole_cluster_it_runs_all_the_same(kube: Kube, caplog: pytest.LogCaptureFixture) -> None:
    kube.server.users["attuner"] = roles("role")
    launcher = kube.launcher()
    assert end_of(launcher, launcher.submit(kube.attempt(), job())).phase == "succeeded"
    assert "nodes may not be listed here" in caplog.text
    assert "schema may not be read" in caplog.text


def test_the_runner_is_there_for_every_pod(kube: Kube) -> None:
    launcher = kube.launcher()
    where = launcher.submit(kube.attempt(), job())
    end_of(launcher, where)
    ship = kube.folder / "ship"
    package = manifest.runner_zip(launcher._runner)
    assert (ship / manifest.zip_name(package)).read_bytes() == package
    assert json.loads((ship / "job.json").read_text())["launch_id"] == "l01"
    assert json.loads((Path(where.folder) / "job.json").read_text())["gpus"] == 4


@pytest.mark.parametrize(
    ("name", "hard", "says"),
    [("team", {"gpu": "2"}, "ResourceQuota team admits at most 2"), ("team", {"pods": "1"}, "at most 1 of pods")],
)
def test_a_quota_that_never_admits_is_refused_before_anything_is_created(
    kube: Kube, name: str, hard: dict[str, str], says: str
) -> None:
    kube.store.create("resourcequotas", NAMESPACE, quota(name, **hard))
    with pytest.raises(UserError, match=says):
        kube.launcher().submit(kube.attempt(), job())
    assert kube.store.list("rayjobs") == []
    assert kube.server.created("rayjobs") == []


def test_nodes_that_never_hold_it_are_no_refusal_where_nodes_come_on_demand(kube: Kube) -> None:
    with pytest.raises(UserError, match=r"needs 3 × 4 nvidia.com/gpu; 2 nodes have room for 2, even when empty"):
        kube.launcher().submit(kube.attempt(), job(gpus=12))
    launcher = kube.launcher(autoscaled=True)
    where = launcher.submit(kube.attempt(), job(gpus=12))
    until(lambda: "finds no node (Unschedulable" in launcher.poll(where).detail)
    launcher.cancel(where)


def test_a_rayjob_that_breaks_the_schema_is_refused_by_the_server_too(kube: Kube) -> None:
    kube.store.schema["rayjobs"] = {"type": "object", "properties": {"spec": {"type": "object", "properties": {}}}}
    kube.server.users["attuner"] = roles("role")
    with pytest.raises(UserError, match=r"can't create rayjobs.ray.io: .*unknown field"):
        kube.launcher().submit(kube.attempt(), job())
    assert kube.server.created("rayjobs") == []


def test_a_server_that_is_never_there_is_contact_lost(kube: Kube) -> None:
    kube.server.stop()
    with pytest.raises(Transient, match="Kubernetes: can't"):
        kube.launcher(patience_s=0.3).submit(kube.attempt(), job())


def test_a_kubeconfig_that_is_missing_is_one_line(kube: Kube) -> None:
    with pytest.raises(UserError, match="name a kubeconfig, or run inside the cluster"):
        kube.launcher(kubeconfig="/nowhere").submit(kube.attempt(), job())


def test_a_queue_label_passes_through_and_suspension_is_waited_for(kube: Kube) -> None:
    launcher = kube.launcher(queue="team-a")
    kube.operator.stop()
    where = launcher.submit(kube.attempt(), job())
    found = kube.store.list("rayjobs")[0]
    assert found["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "team-a"
    found["spec"]["suspend"] = True  # what Kueue's webhook does
    kube.store.update("rayjobs", found)
    kube.restart_operator()
    until(lambda: launcher.poll(where).detail == "suspended; it waits in queue team-a")
    assert launcher.poll(where).phase == "queued"
    found = kube.store.list("rayjobs")[0]
    found["spec"]["suspend"] = False
    kube.store.update("rayjobs", found)
    assert end_of(launcher, where).phase == "succeeded"
    stages = [s for _, s in kube.operator.seen]
    assert stages[:4] == ["Initializing", "Suspending", "Suspended", ""]


def test_calibration_runs_go_to_different_nodes(kube: Kube) -> None:
    launcher, used = kube.launcher(), []
    for i in range(2):
        where = launcher.submit(kube.attempt(launch=f"l0{i}"), job(job={"arguments": {}, "placement_offset": i}))
        end_of(launcher, where)
        used += launcher.files(where).stamp.nodes
    assert used == ["n1", "n2"]


def test_what_a_run_leaves_in_storage_comes_back_before_it_counts_as_done(kube: Kube, driver: Driver) -> None:
    """The pods write on a claim, this machine sees it elsewhere."""
    claim = kube.folder / "claim"
    claim.mkdir()
    cluster = kube.cluster().model_copy(update={"storage": str(claim)})
    launcher, attempt = kube.launcher(cluster=cluster), kube.attempt()
    where = launcher.submit(attempt, job())
    assert end_of(launcher, where).phase == "succeeded"
    there = claim / kube.folder.name / "runs" / "l01-a1"
    assert (there / "stamps.jsonl").read_text() == (Path(where.folder) / "stamps.jsonl").read_text()
    assert (Path(where.folder) / "done.json").exists()
    assert (there / "begun").exists()
    assert json.loads((kube.folder / "ship" / "job.json").read_text())["storage"]["url"] == str(claim)
    assert launcher.files(where).stamp.outcome == "ok"
