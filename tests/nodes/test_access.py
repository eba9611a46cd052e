"""A remote Ray for real: token, TLS, trouble of the server, room, start time-out, folders that aren't shared, the doctor."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import time
from pathlib import Path

import pytest
from nodes.cluster import wait_for
from nodes.node_lab import Site, walk
from nodes.proxy import before

from attuner.core.campaign import Cluster
from attuner.core.errors import Transient, UserError
from attuner.launchers.ray_doctor import doctor
from attuner.runner import files
from attuner.steps.launch import settle

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
BOTO3 = importlib.util.find_spec("boto3") is not None


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return a certificate for 127.0.0.1 that nobody but its owner trusts, and its key."""
    if shutil.which("openssl") is None:
        pytest.skip("no openssl here to make a certificate with")
    folder = tmp_path_factory.mktemp("tls")
    made, key = folder / "cert.pem", folder / "key.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-keyout", str(key), "-out", str(made)),
            *("-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"),
        ],
        check=True,
        capture_output=True,
    )
    return made, key


def test_a_wrong_token_is_refused_by_ray_and_told_in_one_line(site: Site, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong"
    wrong.write_text("0123456789abcdef")
    launcher = site.launcher(access={"token_file": str(wrong)})
    with pytest.raises(UserError, match="ATTUNER_RAY_TOKEN_FILE"):
        site.submit(launcher, "l01", walk())
    with pytest.raises(UserError, match="refuses"):
        site.submit(site.launcher(access={"token_file": ""}), "l01", walk())
    assert site.made == []


def test_a_run_goes_through_tls_with_a_token_and_a_proxys_header(
    site: Site, certificate: tuple[Path, Path], tmp_path: Path
) -> None:
    headers = tmp_path / "headers.json"
    headers.write_text(json.dumps({"X-Proxy-Key": "abc"}))
    with before(site.nodes.url, certificate=certificate[0], key=certificate[1]) as proxy:
        with pytest.raises(UserError, match="ATTUNER_RAY_CA"):
            site.submit(site.launcher(access={"address": proxy.url}), "l01", walk())
        access = {"address": proxy.url, "ca": str(certificate[0]), "headers_file": str(headers)}
        launcher = site.launcher(access=access)
        attempt = site.submit(launcher, "l01", walk())
        assert site.end_of(launcher, attempt).phase == "succeeded"
        assert {h.get("X-Proxy-Key") for h in proxy.headers} == {"abc"}
        site.made.clear()
    token = site.nodes.token_file.read_text()
    left = [p for p in site.home.rglob("*") if p.is_file() and token.encode() in p.read_bytes()]
    assert left == []
    assert token not in json.dumps(site.nodes.get("/api/jobs/"))


def test_a_server_in_trouble_is_contact_lost_while_the_run_beats_and_the_run_is_not_paid_twice(site: Site) -> None:
    with before(site.nodes.url) as proxy:
        launcher = site.launcher(access={"address": proxy.url}, gone_s=20.0)
        attempt = site.submit(launcher, "l01", walk(steps=80, pace_s=0.1))
        wait_for(lambda: site.stamps(attempt).allocated(), 60, "allocation")
        launcher.poll(attempt)
        proxy.trouble = True
        with pytest.raises(Transient, match="500"):
            launcher.poll(attempt)
        with pytest.raises(Transient):
            site.launcher(access={"address": proxy.url}).submit(attempt, walk())
        wait_for(lambda: site.stamps(attempt).released(), 60, "release")
        state = launcher.poll(attempt)  # the server is still in trouble: the stamps tell the end
        assert (state.phase, state.gone) == ("succeeded", False)
        proxy.trouble = False
        site.submit(launcher, "l01", walk())
        assert len([j for j in site.nodes.get("/api/jobs/") if j["submission_id"] == attempt.submission_id]) == 1


def test_a_run_whose_driver_died_behind_a_server_in_trouble_is_gone_and_charged_to_its_last_beat(site: Site) -> None:
    with before(site.nodes.url) as proxy:
        launcher = site.launcher(access={"address": proxy.url}, gone_s=3.0)
        attempt = site.submit(launcher, "l01", walk(steps=900))
        wait_for(lambda: (Path(attempt.folder) / files.STEPS).exists(), 60, "the first step")
        proxy.trouble = True
        site.nodes.kill(0, running="-m attuner_runner.driver")
        killed = time.time()

        def gone() -> bool:
            try:
                return launcher.poll(attempt).gone
            except Transient:
                return False

        wait_for(gone, 30, "gone")
        settled = settle(launcher.files(attempt), attempt, gpus=1, state=launcher.poll(attempt))
        assert (settled.how, settled.lost) == ("last_heartbeat", True)
        assert settled.released_at == pytest.approx(killed, abs=3.0)
        proxy.trouble = False


def test_what_the_cluster_can_never_hold_is_refused_and_what_it_holds_later_is_queued(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    launcher = site.launcher()
    with pytest.raises(UserError, match=r"needs 4 nodes with 1 × slot each; of its \d nodes 3 have that \(3 × slot in all\)"):
        site.submit(launcher, "l01", walk(4))
    holder = site.submit(launcher, "l02", walk(3, steps=150, pace_s=0.1, node_check="off"))
    wait_for(lambda: site.stamps(holder).allocated(), 60, "the holder")
    wait_for(lambda: launcher.room(walk(2)).free == 0, 30, "that Ray reports the nodes as taken")
    waiting = site.submit(launcher, "l03", walk(2))
    assert "queued: 0 of 2 nodes with 1 × slot are free" in caplog.text
    assert site.end_of(launcher, holder).phase == "succeeded"
    assert site.end_of(launcher, waiting).phase == "succeeded"
    first, second = launcher.files(holder).stamp, launcher.files(waiting).stamp
    assert second.allocated_at is not None
    assert first.released_at is not None
    assert second.allocated_at >= first.released_at - 1.0, "charged while it waited"


def test_a_run_that_gets_no_devices_in_time_is_given_up_and_costs_nothing(site: Site) -> None:
    launcher = site.launcher(start_timeout_s=6)
    holder = site.submit(launcher, "l01", walk(3, steps=900, node_check="off"))
    wait_for(lambda: site.stamps(holder).allocated(), 60, "the holder")
    waiting = site.submit(launcher, "l02", walk(2))
    state = site.end_of(launcher, waiting)
    settled = settle(launcher.files(waiting), waiting, gpus=2, state=state)
    assert (settled.how, settled.gpu_hours) == ("never_allocated", 0.0)
    assert launcher.files(waiting).stamp.detail.startswith("no 2 × slot on 2 nodes within 6 s")


@pytest.mark.parametrize(
    "kind", ["path", pytest.param("s3", marks=pytest.mark.skipif(not BOTO3, reason="boto3 is not installed"))]
)
def test_a_run_on_nodes_that_do_not_see_this_machines_folder_comes_back_through_storage(
    site: Site, tmp_path: Path, kind: str, s3: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = site.home / "inputs" / "rows"
    rows.mkdir(parents=True)
    (rows / "rows.bin").write_bytes(b"r" * 1000)
    if kind == "s3":
        for name, value in s3.items():
            monkeypatch.setenv(name, value)
    place = "s3://bucket/attuner" if kind == "s3" else str(tmp_path / "storage")
    scratch = str(site.nodes.private) if kind == "s3" else ""  # of which each node has its own
    launcher = site.launcher(storage=place, scratch=scratch)
    attempt = site.submit(launcher, "l01", walk(1, rows=str(rows), steps=30, pace_s=0.2))
    assert str(site.home) not in json.dumps(files.read_json(Path(attempt.folder) / files.JOB))
    wait_for(lambda: launcher.files(attempt).stamp.last_heartbeat, 60, "the heartbeat")
    state = site.end_of(launcher, attempt)
    stamp = launcher.files(attempt).stamp
    assert (state.phase, stamp.outcome) == ("succeeded", "ok"), state
    assert len(files.read_jsonl(Path(attempt.folder) / files.STEPS)) == 30
    assert (Path(attempt.folder) / files.LOG).exists()


def test_a_run_whose_nodes_do_not_see_its_folder_ends_before_its_ranks_and_names_the_setting(site: Site) -> None:
    site.home = site.nodes.private / site.home.name
    site.home.mkdir()
    launcher = site.launcher()
    attempt = site.submit(launcher, "l01", walk())
    state = site.end_of(launcher, attempt)
    stamp = launcher.files(attempt).stamp
    assert (stamp.outcome, stamp.phase, state.gone) == ("crash", "topology", False)
    assert "all nodes of a run need one folder: set storage" in state.detail
    assert not (Path(attempt.folder) / files.LOG).exists()


def test_the_doctor_of_a_healthy_cluster_finds_nothing_to_mend(site: Site) -> None:
    cluster = Cluster(name="nodes", resource="slot", devices=3, devices_per_node=1)
    access = site.launcher()._access
    found = doctor(cluster, access, home=site.home, runner=site.runner)
    for check in found:
        print(("ok  " if check.ok else "BAD ") + f"{check.name:14} {check.detail}" + (f"  → {check.mend}" if check.mend else ""))
    assert [c.name for c in found] == ["address", "version", "token", "room", "storage here", "python", "storage there"]
    assert all(c.ok for c in found)


def test_the_doctor_names_what_is_wrong_and_how_to_mend_it(site: Site, tmp_path: Path) -> None:
    access = site.launcher()._access
    few = Cluster(name="nodes", resource="slot", devices=3, devices_per_node=1)
    said = {
        "room": doctor(few.model_copy(update={"devices": 8}), access, home=site.home, runner=site.runner),
        "python": doctor(few, access.model_copy(update={"python": "/nowhere/python"}), home=site.home, runner=site.runner),
        "address": doctor(few, access.model_copy(update={"address": "http://127.0.0.1:9"}), home=site.home, runner=site.runner),
    }
    for name, found in said.items():
        wrong = [c for c in found if not c.ok]
        print(name, wrong)
        assert wrong[0].name == name
        assert wrong[0].mend
