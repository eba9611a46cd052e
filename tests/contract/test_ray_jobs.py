"""The Ray launcher at the wire: a head that does not answer is contact lost, in bounded time, and nothing is ended for it."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from attuner.core.campaign import Cluster
from attuner.core.errors import Transient
from attuner.core.run import Attempt
from attuner.launchers.local_ray import MARK, Head
from attuner.launchers.ray_jobs import RayJobs

CLUSTER = Cluster(name="c", devices=2, devices_per_node=2)


@pytest.fixture
def deaf() -> Iterator[str]:
    """Return the address of a server that takes connections and never says a word."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


def attempt(folder: Path) -> Attempt:
    return Attempt(launch_id="l01", number=1, submission_id="c-l01-a1", folder=str(folder), address="x", submitted_at=0.0)


@pytest.mark.filterwarnings("ignore")  # Ray warns while it is imported
def test_a_cluster_that_does_not_answer_is_contact_lost(tmp_path: Path, deaf: str) -> None:
    launcher = RayJobs(CLUSTER, tmp_path, address=deaf, python="python", runner=tmp_path, answer_timeout_s=0.3)
    started = time.monotonic()
    with pytest.raises(Transient):
        launcher.poll(attempt(tmp_path))
    assert time.monotonic() - started < 20


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="a local Ray needs /proc")
def test_a_local_head_that_lives_but_does_not_answer_is_contact_lost_and_left_alone(tmp_path: Path, deaf: str) -> None:
    token = tmp_path / "token"
    token.write_text("t")
    marked = os.posix_spawn("/bin/sleep", ["sleep", "60"], {MARK: "test"})
    try:
        head = Head(id="test", dashboard=deaf, temp=str(tmp_path / "ray"), token_path=str(token))
        (tmp_path / "ray.json").write_text(head.model_dump_json())
        (tmp_path / "ray.pid").write_text(str(marked))
        launcher = RayJobs(CLUSTER, tmp_path, address="", python="python", runner=tmp_path, answer_timeout_s=0.3)
        with pytest.raises(Transient):
            launcher.poll(attempt(tmp_path).model_copy(update={"head_pid": marked}))
        assert Path(f"/proc/{marked}").exists()
        assert (tmp_path / "ray.json").exists()
    finally:
        os.kill(marked, 9)
        os.waitpid(marked, 0)
