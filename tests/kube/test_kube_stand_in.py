"""The stand-in is worth what it is like: what the real server does that the launcher relies on, seen by the official client."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kube_lab import NAMESPACE, ROOT, SCHEMA, roles, spec, until
from kube_server import KubeServer
from kube_store import Refuse, selected, validate

from attuner.core.errors import Transient, UserError
from attuner.launchers.kuberay.api import GET_JOB, LIST_PODS, KubeApi
from attuner.launchers.kuberay.watch import Watcher
from attuner.runner.once import BEGUN_BEFORE


@pytest.fixture
def server(tmp_path: Path) -> Iterator[KubeServer]:
    with KubeServer({"attuner": roles("role"), "admin": None}, bookmark_s=0.1) as made:
        yield made


@pytest.fixture
def api(server: KubeServer, tmp_path: Path) -> KubeApi:
    (tmp_path / "kubeconfig").write_text(
        f"{{apiVersion: v1, kind: Config, current-context: c, clusters: [{{name: c, cluster: {{server: '{server.url}'}}}}], "
        "contexts: [{name: c, context: {cluster: c, user: u}}], users: [{name: u, user: {token: attuner}}]}"
    )
    return KubeApi(spec(tmp_path), patience_s=0.5)


def pod(name: str, attempt: str = "a") -> dict[str, Any]:
    return {"metadata": {"name": name, "labels": {"attuner/attempt": attempt}}, "spec": {"containers": []}}


def test_objects_have_uids_versions_and_conflicts(server: KubeServer) -> None:
    first = server.store.create("pods", NAMESPACE, pod("p"))
    assert first["metadata"]["uid"]
    with pytest.raises(Refuse, match="already exists"):
        server.store.create("pods", NAMESPACE, pod("p"))
    second = server.store.update("pods", {**first, "status": {"phase": "Running"}})
    assert int(second["metadata"]["resourceVersion"]) > int(first["metadata"]["resourceVersion"])
    with pytest.raises(Refuse, match="has been modified"):
        server.store.update("pods", {**first, "status": {"phase": "Failed"}})


def test_what_is_owned_goes_with_its_owner_and_finalizers_hold(server: KubeServer) -> None:
    owner = server.store.create("rayjobs", NAMESPACE, {"metadata": {"name": "j", "finalizers": ["f"]}})
    mine = {"metadata": {"name": "m", "ownerReferences": [{"uid": owner["metadata"]["uid"]}]}}
    server.store.create("configmaps", NAMESPACE, mine)
    server.store.delete("rayjobs", NAMESPACE, "j")
    held = server.store.get("rayjobs", NAMESPACE, "j")
    assert held["metadata"]["deletionTimestamp"]
    held["metadata"]["finalizers"] = []
    server.store.update("rayjobs", held)
    assert server.store.list("rayjobs") == server.store.list("configmaps") == []


def test_a_client_without_the_right_is_refused_and_one_word_names_it(server: KubeServer, api: KubeApi) -> None:
    server.users["attuner"] = []
    with pytest.raises(UserError, match=r"the right to list pods is missing; apply configs/kube/role\.yaml"):
        api.call(LIST_PODS, api.core().list_namespaced_pod, NAMESPACE)


def test_selectors_pick(server: KubeServer, api: KubeApi) -> None:
    for name, attempt in (("p1", "a"), ("p2", "b")):
        server.store.create("pods", NAMESPACE, pod(name, attempt))
    found = api.call(LIST_PODS, api.core().list_namespaced_pod, NAMESPACE, label_selector="attuner/attempt=a").body["items"]
    assert [x["metadata"]["name"] for x in found] == ["p1"]
    assert selected(pod("p"), "")


def test_what_is_not_there_is_an_answer_where_the_caller_says_so(api: KubeApi) -> None:
    method, where = api.custom().get_namespaced_custom_object, {**api.rayjobs(), "name": "none"}
    assert api.call(GET_JOB, method, **where, ok=(404,)).status == 404
    with pytest.raises(UserError, match="is KubeRay installed"):
        api.call(GET_JOB, method, **where)


def test_patience_ends(server: KubeServer, api: KubeApi) -> None:
    server.broken = 1000
    with pytest.raises(Transient, match="it answers 503: etcdserver"):
        api.call(LIST_PODS, api.core().list_namespaced_pod, NAMESPACE)


def watcher(server: KubeServer, api: KubeApi, folder: Path) -> Watcher:
    made = Watcher(api, "a", folder)
    assert made.view(wait_s=5).synced
    return made


def names(found: Watcher) -> set[str]:
    return {p["metadata"]["name"] for p in found.view().pods if "gone" not in p}


def test_a_watch_sees_what_comes_and_goes_and_only_its_own(server: KubeServer, api: KubeApi, tmp_path: Path) -> None:
    found = watcher(server, api, tmp_path)
    server.store.create("pods", NAMESPACE, pod("p1"))
    server.store.create("pods", NAMESPACE, pod("x", "b"))
    until(lambda: names(found) == {"p1"})
    server.store.remove("pods", NAMESPACE, "p1")
    until(lambda: names(found) == set())
    found.close()
    lists = [r for r in server.log if r.verb == "list" and r.resource == "pods"]
    assert len(lists) == 1


def test_a_cut_watch_resumes_and_an_expired_one_lists_again(server: KubeServer, api: KubeApi, tmp_path: Path) -> None:
    found = watcher(server, api, tmp_path)
    server.store.create("pods", NAMESPACE, pod("p1"))
    until(lambda: names(found) == {"p1"})
    server.drop_watches()
    server.store.create("pods", NAMESPACE, pod("p2"))
    until(lambda: names(found) == {"p1", "p2"})
    assert sum(r.verb == "list" and r.resource == "pods" for r in server.log) == 1
    server.stop()
    server.store.remove("pods", NAMESPACE, "p1")
    server.store.create("pods", NAMESPACE, pod("p3"))
    server.store.expire()
    server.start()
    until(lambda: names(found) == {"p2", "p3"})
    assert sum(r.verb == "list" and r.resource == "pods" for r in server.log) == 2
    assert found.log.pods[next(u for u, p in found.log.pods.items() if p.name == "p1")].missed
    found.close()


def test_bookmarks_keep_a_quiet_watch_young(server: KubeServer, api: KubeApi, tmp_path: Path) -> None:
    """Others' changes move the version on; a watch that resumes from a bookmark does not need what was forgotten."""
    found = watcher(server, api, tmp_path)
    for i in range(5):
        server.store.create("pods", NAMESPACE, pod(f"x{i}", "b"))
    until(lambda: found.log.last)  # a bookmark came
    until(lambda: found._pods_feed.lost_at is None)
    server.store.create("pods", NAMESPACE, pod("p1"))
    until(lambda: names(found) == {"p1"})
    found.close()


def test_a_right_to_watch_that_is_missing_is_no_contact_lost(server: KubeServer, api: KubeApi, tmp_path: Path) -> None:
    for rule in server.users["attuner"] or []:
        rule.verbs = [v for v in rule.verbs if v != "watch"]
    found = Watcher(api, "a", tmp_path)

    def refused() -> bool:
        try:
            found.view(wait_s=1)
        except UserError as error:
            return "the right to watch" in str(error)
        return False

    until(refused)
    found.close()


def test_the_stand_ins_schema_is_strict() -> None:
    assert validate({"spec": {"backOffLimit": 1}}, SCHEMA, strict=True)
    assert validate({"spec": {"preRunningDeadlineSeconds": 0}}, SCHEMA, strict=True)
    assert validate({"spec": {"backoffLimit": "1"}}, SCHEMA, strict=True)
    assert not validate({"spec": {"backoffLimit": 1}}, SCHEMA, strict=True)


def test_a_second_driver_of_the_same_run_does_not_begin(tmp_path: Path) -> None:
    """The real entrypoint, in processes of their own; the driver is replaced by what stands on the path in its place."""
    package = tmp_path / "attuner_runner"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "once.py").write_text((ROOT / "attuner" / "runner" / "once.py").read_text())
    (package / "driver.py").write_text("import pathlib, sys\npathlib.Path(sys.argv[1], 'ran').touch()\n")
    command = [sys.executable, "-m", "attuner_runner.once", str(tmp_path / "run"), "job.json"]
    codes = [subprocess.run(command, cwd=tmp_path, capture_output=True, check=False).returncode for _ in range(2)]
    assert codes == [0, BEGUN_BEFORE]
    assert (tmp_path / "run" / "ran").exists()
