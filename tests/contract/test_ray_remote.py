"""The Ray launcher against a remote cluster, at the wire: tokens, room, trouble of the server, jobs that never start."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from contract.ray_api import RayApi, serving

from attuner.core.access import Access
from attuner.core.campaign import Cluster
from attuner.core.errors import Transient, UserError
from attuner.core.run import Attempt
from attuner.launchers.ray_client import secrets_of
from attuner.launchers.ray_jobs import RayJobs
from attuner.ports import JobSpec
from attuner.runner import files

pytestmark = pytest.mark.filterwarnings("ignore")  # Ray warns while it is imported
NAME = "c-l01-a1"


@pytest.fixture
def api() -> Iterator[RayApi]:
    with serving(RayApi()) as found:
        yield found


@pytest.fixture
def runner(tmp_path: Path) -> Path:
    folder = tmp_path / "runner"
    folder.mkdir()
    (folder / "driver.py").write_text("")
    return folder


def job(gpus: int = 2) -> JobSpec:
    limits = {"time_limit_s": 60.0, "hang_s": 10.0}
    return JobSpec(module="m", job={}, env={}, gpus=gpus, gpus_per_node=2, resource="slot", **limits)


def attempt(folder: Path, ago: float = 0.0) -> Attempt:
    run = folder / "runs" / "l01-a1"
    run.mkdir(parents=True, exist_ok=True)
    return Attempt(launch_id="l01", number=1, submission_id=NAME, folder=str(run), submitted_at=time.time() - ago)


def launcher(folder: Path, url: str, runner: Path, *, gone_s: float = 240.0, **cluster: Any) -> RayJobs:
    access = cluster.pop("access", Access(address=url))
    made = Cluster(name="c", devices=4, devices_per_node=2, **cluster)
    return RayJobs(made, folder, runner=runner, access=access, answer_timeout_s=2.0, gone_s=gone_s)


def stamp(a: Attempt, *events: dict[str, Any], beat: float | None = None) -> None:
    for event in events:
        files.append_jsonl(Path(a.folder) / files.STAMPS, event)
    if beat is not None:
        (Path(a.folder) / files.HEARTBEAT).write_text(f"{beat}\n")


ALLOCATED = {"event": "allocated", "t": 100.0, "hosts": ["h"], "gpus": 2, "nodes": ["n1"]}


def test_a_launch_that_the_cluster_can_never_hold_is_refused_with_figures_and_not_submitted(
    tmp_path: Path, api: RayApi, runner: Path
) -> None:
    with pytest.raises(UserError, match=r"needs 2 nodes with 2 × slot each; of its 1 nodes 1 have that \(2 × slot in all\)"):
        launcher(tmp_path, api.url, runner).submit(attempt(tmp_path), job(gpus=4))
    assert api.jobs == {}


def test_a_submission_carries_the_limits_of_the_cluster_and_no_secret(tmp_path: Path, api: RayApi, runner: Path) -> None:
    secret = tmp_path / "token"
    secret.write_text("s3cr3t\n")
    api.token = "s3cr3t"
    access = Access(address=api.url, token_file=str(secret))
    made = attempt(tmp_path)
    where = launcher(tmp_path, api.url, runner, access=access, start_timeout_s=77, cpus_per_node=3).submit(made, job())
    document = json.loads((Path(made.folder) / files.JOB).read_text())
    assert (document["alloc_timeout_s"], document["cpus_per_node"], document["devices_by"]) == (77, 3, "driver")
    assert set(api.authorizations) == {"Bearer s3cr3t"}
    written = [p.read_text() for p in tmp_path.rglob("*") if p.is_file() and p != secret]
    assert not any("s3cr3t" in text for text in [*written, where.model_dump_json(), json.dumps(api.jobs)])


def test_a_refused_token_is_an_error_of_set_up_that_names_the_setting_and_not_the_token(
    tmp_path: Path, api: RayApi, runner: Path
) -> None:
    secret = tmp_path / "token"
    secret.write_text("wrong")
    api.token = "right"
    access = Access(address=api.url, token_file=str(secret))
    with pytest.raises(UserError, match="ATTUNER_RAY_TOKEN_FILE") as told:
        launcher(tmp_path, api.url, runner, access=access).poll(attempt(tmp_path))
    assert "wrong" not in str(told.value)


def test_a_renewed_token_is_read_anew(tmp_path: Path, api: RayApi, runner: Path) -> None:
    secret = tmp_path / "token"
    secret.write_text("one")
    api.token = "one"
    api.job(NAME, "RUNNING")
    made = launcher(tmp_path, api.url, runner, access=Access(address=api.url, token_file=str(secret)))
    made.poll(attempt(tmp_path))
    api.token = "two"
    replaced = tmp_path / "new"
    replaced.write_text("two")
    import os

    os.utime(replaced, (1, 1))
    replaced.replace(secret)
    assert made.poll(attempt(tmp_path)).phase == "queued"


@pytest.mark.parametrize("text", ["", "two words", "ü"])
def test_a_file_that_holds_no_token_is_named_without_its_content(tmp_path: Path, text: str) -> None:
    (tmp_path / "t").write_text(text)
    with pytest.raises(UserError, match="expected one token and nothing else") as told:
        secrets_of(Access(address="https://x", token_file=str(tmp_path / "t")))
    assert not text or text not in str(told.value)


def test_a_token_over_plain_http_to_another_machine_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "t").write_text("abc")
    with caplog.at_level(logging.WARNING):
        secrets_of(Access(address="http://head:8265", token_file=str(tmp_path / "t")))
    assert "unencrypted" in caplog.text
    assert "abc" not in caplog.text


def test_trouble_of_the_server_before_any_allocation_proves_nothing(tmp_path: Path, api: RayApi, runner: Path) -> None:
    made = launcher(tmp_path, api.url, runner, gone_s=0.0)
    api.job(NAME, "RUNNING")
    made.poll(attempt(tmp_path))
    api.trouble = 500
    with pytest.raises(Transient, match="no devices were allocated"):
        made.poll(attempt(tmp_path))


def test_trouble_of_the_server_while_the_heartbeat_moves_is_contact_lost(tmp_path: Path, api: RayApi, runner: Path) -> None:
    made, a = launcher(tmp_path, api.url, runner, gone_s=0.2), attempt(tmp_path)
    api.job(NAME, "RUNNING")
    stamp(a, ALLOCATED, beat=101.0)
    assert made.poll(a).phase == "running"
    api.trouble = 500
    for beat in range(5):
        stamp(a, beat=102.0 + beat)
        with pytest.raises(Transient, match="heartbeat was last seen to move"):
            made.poll(a)
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:  # now it stands still: the tie is broken
        try:
            state = made.poll(a)
        except Transient:
            continue
        break
    assert (state.phase, state.gone) == ("gone", True)
    stamped = made.files(a).stamp
    assert (stamped.allocated_at, stamped.released_at, stamped.last_heartbeat) == (100.0, None, 106.0)


def test_a_release_on_disk_is_the_end_whatever_the_server_says(tmp_path: Path, api: RayApi, runner: Path) -> None:
    made, a = launcher(tmp_path, api.url, runner), attempt(tmp_path)
    api.job(NAME, "RUNNING")
    made.poll(a)
    stamp(a, ALLOCATED, {"event": "released", "t": 160.0, "outcome": "ok", "phase": "", "detail": ""}, beat=160.0)
    api.trouble = 500
    assert (made.poll(a).phase, made.poll(a).gone) == ("succeeded", False)


def test_running_by_rays_word_with_a_heartbeat_that_stands_still_is_gone_and_asked_to_stop(
    tmp_path: Path, api: RayApi, runner: Path
) -> None:
    made, a = launcher(tmp_path, api.url, runner, gone_s=0.1), attempt(tmp_path)
    api.job(NAME, "RUNNING")
    stamp(a, ALLOCATED, beat=101.0)
    deadline = time.monotonic() + 10
    while not (state := made.poll(a)).gone and time.monotonic() < deadline:
        pass
    assert state.gone
    assert api.stopped == [NAME]


def test_a_node_that_was_lost_closes_the_attempt_as_lost_and_names_the_node(tmp_path: Path, api: RayApi, runner: Path) -> None:
    made, a = launcher(tmp_path, api.url, runner), attempt(tmp_path)
    api.job(NAME, "FAILED", code=83, message="exit code 83")
    end = {"event": "released", "t": 130.0, "outcome": "node_lost", "phase": "", "detail": "node n1 lost", "lost": ["n1"]}
    stamp(a, ALLOCATED, end, beat=130.0)
    state = made.poll(a)
    assert (state.gone, state.detail) == (True, "node n1 lost")
    assert made.files(a).stamp.lost_nodes == ["n1"]


def test_a_404_that_is_not_rays_own_proves_nothing(tmp_path: Path, api: RayApi, runner: Path) -> None:
    made = launcher(tmp_path, api.url, runner)
    api.job(NAME, "RUNNING")
    made.poll(attempt(tmp_path))
    api.trouble = 404  # a proxy before a head that is away
    with pytest.raises(Transient):
        made.poll(attempt(tmp_path))


def test_a_job_that_never_starts_is_given_up_uncharged_and_its_driver_forbidden_to_begin(
    tmp_path: Path, api: RayApi, runner: Path
) -> None:
    made, a = launcher(tmp_path, api.url, runner, start_timeout_s=5), attempt(tmp_path, ago=6.0)
    api.job(NAME, "PENDING", message="Job has not started yet.")  # and Ray does nothing when it is asked to stop it
    state = made.poll(a)
    assert (state.phase, state.gone) == ("stopped", False)
    assert "no devices within 5 s" in state.detail
    assert (Path(a.folder) / files.CANCELLED).exists()
    assert api.stopped == [NAME]
    assert made.files(a).stamp.allocated_at is None


def test_a_job_that_waits_is_not_given_up_before_its_time(tmp_path: Path, api: RayApi, runner: Path) -> None:
    made = launcher(tmp_path, api.url, runner, start_timeout_s=60)
    api.job(NAME, "PENDING")
    assert made.poll(attempt(tmp_path, ago=50.0)).phase == "pending"


def test_an_ended_job_is_not_settled_before_its_stamps_are_seen(tmp_path: Path, api: RayApi, runner: Path) -> None:
    made, a = launcher(tmp_path, api.url, runner), attempt(tmp_path)
    api.job(NAME, "SUCCEEDED", code=0)
    stamp(a, ALLOCATED, beat=101.0)
    assert made.poll(a).phase == "ending"
    stamp(a, {"event": "released", "t": 160.0, "outcome": "ok", "phase": "", "detail": ""})
    assert made.poll(a).phase == "succeeded"
