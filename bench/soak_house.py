"""The house of a soak: a Prefect server (SQLite) and a process worker as a team runs them, kept alive as a supervisor would."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import soak_processes as processes

ROOT = Path(__file__).resolve().parents[1]
PREFECT = [sys.executable, "-m", "prefect"]
POOL = "soak"
DEPLOYMENT = "campaign/soak"
DEPLOY = f"""name: soak
deployments:
  - name: soak
    entrypoint: flows/campaign.py:campaign
    work_pool: {{name: {POOL}}}
"""


def environment(folder: Path, **more: str) -> dict[str, str]:
    """Return the environment of everything that a soak starts."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("ATTUNER_", "PREFECT_", "RAY_"))}
    quiet = {"PREFECT_SERVER_ANALYTICS_ENABLED": "false", "DO_NOT_TRACK": "1", "PREFECT_LOGGING_LEVEL": "WARNING"}
    polls = {"PREFECT_WORKER_QUERY_SECONDS": "2", "PREFECT_RUNNER_POLL_FREQUENCY": "3", "PREFECT_CLI_PROMPT": "false"}
    ours = {"ATTUNER_HOME": str(folder / "home"), "ATTUNER_PROJECT": str(ROOT), "PREFECT_HOME": str(folder / "prefect")}
    return {**kept, **quiet, **polls, **ours, **more}


class Api:
    """Prefect's HTTP interface; None is the answer while the server is away."""

    def __init__(self, url: str) -> None:
        self.url = url

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """Return the answer, or None for a server that is away or refuses."""
        data = json.dumps(body).encode() if body is not None else None
        request = urllib.request.Request(self.url + path, data=data, method=method, headers={"content-type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=8) as answer:
                return json.loads(answer.read() or b"null")
        except (OSError, ValueError):
            return None

    def up(self) -> bool:
        """Tell whether the server answers."""
        return self.ask("GET", "/health") is True

    def start(self, parameters: dict[str, str]) -> str:
        """Trigger a flow run of the deployment; return its id, or '' while the server is away."""
        found = self.ask("GET", f"/deployments/name/{DEPLOYMENT}")
        made = self.ask("POST", f"/deployments/{found['id']}/create_flow_run", {"parameters": parameters}) if found else None
        return str(made["id"]) if made else ""

    def state(self, run: str) -> tuple[str, str]:
        """Return (type, message) of a flow run's state; ('', '') while the server is away."""
        found = self.ask("GET", f"/flow_runs/{run}")
        state = (found or {}).get("state") or {}
        return str(state.get("type", "")), str(state.get("message") or "")

    def unfinished(self, names: Collection[str] = ()) -> list[str]:
        """Return the flow runs that have not come to an end; of these names, if any are given."""
        kinds = ["SCHEDULED", "PENDING", "RUNNING", "CANCELLING", "PAUSED"]
        found = self.ask("POST", "/flow_runs/filter", {"flow_runs": {"state": {"type": {"any_": kinds}}}, "limit": 200})
        return [str(x["id"]) for x in found or [] if not names or x["name"] in names]

    def put(self, run: str, kind: str, *, name: str = "", message: str = "") -> bool:
        """Set a flow run's state, as a button of the UI or an automation does."""
        state = {"type": kind, "name": name or kind.capitalize(), "message": message}
        return self.ask("POST", f"/flow_runs/{run}/set_state", {"state": state, "force": True}) is not None


class Keeper:
    """One process that is started again some seconds after its death."""

    def __init__(self, name: str, command: list[str], env: dict[str, str], *, log: Path, cwd: Path) -> None:
        self.name, self._command, self._env, self._log, self._cwd = name, command, env, log, cwd
        self.process: subprocess.Popen[bytes] | None = None
        self.again_at: float | None = None
        self.starts = 0

    def start(self) -> None:
        """Start it now."""
        with self._log.open("ab") as out:
            self.process = subprocess.Popen(self._command, env=self._env, cwd=self._cwd, stdout=out, stderr=out)
        self.again_at, self.starts = None, self.starts + 1

    def kill(self, *, down_s: float) -> bool:
        """Kill it outright; it comes back after `down_s` seconds. Returns: whether it lived."""
        if self.process is None or self.process.poll() is not None:
            return False
        self.process.kill()
        self.process.wait()
        self.again_at = time.monotonic() + down_s
        return True

    def tick(self) -> None:
        """Start it again if it is due, or if it died by itself."""
        if self.process is not None and self.process.poll() is not None and self.again_at is None:
            self.again_at = time.monotonic() + 2.0
        if self.again_at is not None and time.monotonic() >= self.again_at:
            self.start()

    def end(self, *, patience_s: float = 60) -> None:
        """End it as a person does: SIGTERM, then patience, then SIGKILL."""
        if self.process is None or self.process.poll() is not None:
            return
        self.process.terminate()
        try:
            self.process.wait(patience_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class House:
    """Server and worker of one soak folder."""

    def __init__(self, folder: Path, *, limit: int) -> None:
        self.folder, self._reaped_at = folder, 0.0
        port = _port(folder / "port")
        self.api = Api(f"http://127.0.0.1:{port}/api")
        self.env = environment(folder, PREFECT_API_URL=self.api.url)
        own = {k: v for k, v in self.env.items() if k != "PREFECT_API_URL"}
        words = [*PREFECT, "server", "start", "--host", "127.0.0.1", "--port", str(port)]
        self.server = Keeper("server", words, own, log=folder / "server.log", cwd=folder)
        words = [*PREFECT, "worker", "start", "--pool", POOL, "--name", "soak", "--limit", str(limit)]
        self.worker = Keeper("worker", words, self.env, log=folder / "worker.log", cwd=ROOT)

    def open(self, *, worker: bool = True) -> None:
        """Start the server, deploy the flow, start the worker."""
        for pid in processes.of_home(self.folder / "home"):
            processes.send(pid)  # left by a soak that was killed itself
        self.server.start()
        until(self.api.up, 600)
        if not worker:
            return
        self._prefect("work-pool", "create", POOL, "--type", "process", "--overwrite")
        for run in self.api.unfinished():
            self.api.put(run, "CANCELLED", message="left by a soak that was stopped")
        (self.folder / "deploy.yaml").write_text(DEPLOY)
        self._prefect("--no-prompt", "deploy", "--all", "--prefect-file", str(self.folder / "deploy.yaml"))
        self.worker.start()

    def _prefect(self, *arguments: str) -> None:
        done = subprocess.run([*PREFECT, *arguments], env=self.env, cwd=ROOT, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"prefect {' '.join(arguments)}: {done.stdout[-800:]}{done.stderr[-800:]}")

    def tick(self, *, known: Collection[int] = ()) -> None:
        """Keep both alive, and reap what nobody waits for; `known` are waited for by their Popen."""
        for keeper in (self.server, self.worker):
            keeper.tick()
        if time.monotonic() - self._reaped_at < 2.0:
            return  # it reads all of /proc
        self._reaped_at = time.monotonic()
        processes.reap({*known, *(k.process.pid for k in (self.server, self.worker) if k.process is not None)})

    def starts(self) -> int:
        """Return how often server and worker were started; it changes when one of them died."""
        return self.server.starts + self.worker.starts

    def close(self) -> None:
        """End worker and server."""
        self.worker.end()
        self.server.end()


def until(condition: Callable[[], bool], timeout_s: float) -> None:
    """Wait for a condition. Raises SystemExit if it never comes true."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if condition():
            return
        time.sleep(0.3)
    raise SystemExit(f"{condition}: did not come true within {timeout_s:.0f} s")


def _port(file: Path) -> int:
    """Return the folder's port: a run that outlives the server must find it again."""
    if not file.exists():
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            file.write_text(str(probe.getsockname()[1]))
    return int(file.read_text())
