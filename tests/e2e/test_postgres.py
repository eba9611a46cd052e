"""A shared installation: Prefect on PostgreSQL (private, on loopback, with a password), a worker, a campaign to its end."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from prefect_site import site_in

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]
REPLAY = "configs/campaigns/replay-quickstart.yaml"
PASSWORD = "of-this-test-only"


def tool(name: str) -> str:
    """Return PostgreSQL's program of this name, '' if it isn't installed."""
    own = sorted(str(p) for p in Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))
    return own[-1] if own else shutil.which(name) or ""


if not all(tool(x) for x in ("initdb", "postgres", "createdb", "psql")):
    pytest.skip("needs PostgreSQL (initdb, postgres, createdb, psql)", allow_module_level=True)


class Postgres:
    """A PostgreSQL of the test's own; it refuses to run as root, so root lends it a user that isn't."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.data = folder, folder / "data"
        self._as: dict[str, object] = {}
        if os.getuid() == 0:
            shutil.chown(folder, "postgres", "postgres")
            self._as = {"user": "postgres", "group": "postgres", "extra_groups": []}
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = int(probe.getsockname()[1])
        self.url = f"postgresql+asyncpg://prefect:{PASSWORD}@127.0.0.1:{self.port}/prefect"
        self.env = {**os.environ, "PGPASSWORD": PASSWORD, "LC_ALL": "C.UTF-8"}
        secret = folder / "password"
        secret.write_text(PASSWORD)
        self.call("initdb", "-D", str(self.data), "-U", "prefect", "--auth=scram-sha-256", f"--pwfile={secret}", server=True)
        command = [tool("postgres"), "-D", str(self.data), "-p", str(self.port), "-k", str(folder)]
        with (folder / "postgres.log").open("w") as log:
            self.process = subprocess.Popen(
                [*command, "-c", "listen_addresses=127.0.0.1"], stdout=log, stderr=log, cwd=folder, env=self.env, **self._as
            )
        deadline = time.monotonic() + 60
        while self.asked("postgres", "SELECT 1") != "1":
            assert time.monotonic() < deadline, (folder / "postgres.log").read_text()
            time.sleep(0.3)
        self.call("createdb", *self.where(), "prefect")

    def where(self) -> list[str]:
        return ["-h", "127.0.0.1", "-p", str(self.port), "-U", "prefect"]

    def call(self, name: str, *words: str, server: bool = False, check: bool = True) -> str:
        options = self._as if server else {}
        done = subprocess.run(
            [tool(name), *words],
            env=self.env,
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            **options,
        )
        assert not check or done.returncode == 0, done.stdout + done.stderr
        return done.stdout.strip()

    def asked(self, database: str, query: str) -> str:
        """Return the answer to a query, '' if there is none."""
        return self.call("psql", *self.where(), "-d", database, "-tAc", query, check=False)

    def close(self) -> None:
        self.process.send_signal(signal.SIGINT)  # PostgreSQL's fast shutdown
        self.process.wait(60)


@pytest.fixture
def postgres() -> Iterator[Postgres]:
    folder = Path(tempfile.mkdtemp(prefix="attuner-postgres-"))  # not below tmp_path: another user must get into it
    found = Postgres(folder)
    yield found
    found.close()
    shutil.rmtree(folder)


def test_a_campaign_on_a_server_with_postgresql(postgres: Postgres, tmp_path: Path) -> None:
    with site_in(tmp_path, env={"PREFECT_SERVER_DATABASE_CONNECTION_URL": postgres.url}) as site:
        site.pool()
        site.deploy()
        site.worker()
        run = site.trigger("campaign/campaign", file=REPLAY)
        site.until_state(run, "COMPLETED", timeout=600)
        assert postgres.asked("prefect", f"SELECT state_type FROM flow_run WHERE id = '{run}'") == "COMPLETED"
        tasks = int(postgres.asked("prefect", f"SELECT count(*) FROM task_run WHERE flow_run_id = '{run}'"))
        version = postgres.asked("prefect", "SHOW server_version")
        log = (tmp_path / "server.log").read_text()
        print(f"PostgreSQL {version}: {tasks} task runs of one campaign; 'locked' in the server's log: {log.count('locked')}")
        assert tasks > 40
        assert "database is locked" not in log
