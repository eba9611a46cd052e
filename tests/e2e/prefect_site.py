"""A whole Prefect installation of a test's own: server, work pool, deployments, workers; every process ended by its id."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from prefect_server import PREFECT, Server

ROOT = Path(__file__).resolve().parents[2]
QUIET = {
    **{"PREFECT_SERVER_ANALYTICS_ENABLED": "false", "DO_NOT_TRACK": "1", "RAY_USAGE_STATS_ENABLED": "0"},
    **{"PREFECT_WORKER_QUERY_SECONDS": "1", "PREFECT_LOGGING_LEVEL": "WARNING", "PREFECT_FLOWS_HEARTBEAT_FREQUENCY": "30"},
}


class Site:
    """A server with its pool and its workers."""

    def __init__(self, folder: Path, *, project: Path = ROOT, env: Mapping[str, str] | None = None) -> None:
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("ATTUNER_", "PREFECT_", "RAY_"))}
        self.folder, self.project, self.workers = folder, project, list[subprocess.Popen[bytes]]()
        self.home = folder / "home"
        own = {"PREFECT_HOME": str(folder / "prefect"), "ATTUNER_HOME": str(self.home), "ATTUNER_PROJECT": str(project)}
        self.server = Server({**kept, **QUIET, **own, **(env or {})}, folder / "server.log")

    def pool(self) -> None:
        """Make the work pool."""
        self.server.command("work-pool", "create", "attuner", "--type", "process", cwd=self.project)

    def deploy(self) -> None:
        """Deploy everything that prefect.yaml names."""
        self.server.command("--no-prompt", "deploy", "--all", cwd=self.project)

    def worker(self) -> subprocess.Popen[bytes]:
        """Start a worker."""
        with (self.folder / f"worker{len(self.workers)}.log").open("w") as out:
            command = [*PREFECT, "worker", "start", "--pool", "attuner", "--limit", "10"]
            process = subprocess.Popen(command, env=self.server.env, cwd=self.project, stdout=out, stderr=out)
        self.workers.append(process)
        return process

    def trigger(self, deployment: str, **parameters: Any) -> str:
        """Start a run of `flow/deployment`; return the flow run's id."""
        return self.server.run_of(deployment, parameters)

    def run(self, flow_run: str) -> dict[str, Any]:
        """Return a flow run as the server knows it."""
        found = self.server.ask("GET", f"/flow_runs/{flow_run}")
        return dict(found) if found else {"state": {"type": "", "name": "", "message": ""}}

    def until_state(self, flow_run: str, *names: str, timeout: float = 120) -> dict[str, Any]:
        """Wait until a flow run's state has one of these names or types; return its state."""
        deadline = time.monotonic() + timeout
        while True:
            state = self.run(flow_run)["state"]
            if state["name"] in names or state["type"] in names:
                return dict(state)
            assert time.monotonic() < deadline, f"{flow_run}: {state['name']}, not {names}: {state.get('message')}\n{self.log()}"
            time.sleep(0.3)

    def states(self, flow_run: str) -> list[tuple[str, str]]:
        """Return (name, message) of every state that a flow run was in, oldest first."""
        found = self.server.ask("GET", f"/flow_run_states/?flow_run_id={flow_run}") or []
        return [(s["name"], s["message"] or "") for s in sorted(found, key=lambda s: s["timestamp"])]

    def process_of(self, flow_run: str) -> int:
        """Return the process that runs a flow run: the one that carries its id in its environment and has no child that does."""
        mark = f"PREFECT__FLOW_RUN_ID={flow_run}".encode()
        found = [int(p.name) for p in Path("/proc").iterdir() if p.name.isdigit() and mark in environment(p)]
        parents = {parent_of(pid) for pid in found}
        (leaf,) = [pid for pid in found if pid not in parents]
        return leaf

    def log(self) -> str:
        """Return the end of the workers' logs."""
        return "\n".join(p.read_text()[-1500:] for p in sorted(self.folder.glob("worker*.log")))

    def close(self) -> None:
        """End workers (they let what runs come to its end, for a while), then the server."""
        for worker in self.workers:
            if worker.poll() is None:
                worker.terminate()
        for worker in self.workers:
            try:
                worker.wait(60)
            except subprocess.TimeoutExpired:
                worker.kill()
                worker.wait()
        mine = f"PREFECT_API_URL={self.server.url}".encode()
        for entry in Path("/proc").iterdir():
            if (
                entry.name.isdigit()
                and int(entry.name) not in (os.getpid(), self.server.process.pid)
                and mine in environment(entry)
            ):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(entry.name), signal.SIGKILL)
        self.server.process.terminate()
        self.server.process.wait(30)


def environment(entry: Path) -> list[bytes]:
    """Return a process's environment, empty if it is not ours to read."""
    try:
        return (entry / "environ").read_bytes().split(b"\0")
    except OSError:
        return []


def parent_of(pid: int) -> int:
    """Return a process's parent."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


@contextlib.contextmanager
def site_in(folder: Path, **options: Any) -> Iterator[Site]:
    """Run a site for the length of a block."""
    site = Site(folder, **options)
    try:
        yield site
    finally:
        site.close()
