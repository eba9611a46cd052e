"""A Prefect server of a test's own, on loopback, ended by its process."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
import uuid
from pathlib import Path
from typing import Any

PREFECT = [sys.executable, "-m", "prefect"]


class Server:
    """A Prefect server on loopback, asked over its REST API."""

    def __init__(self, env: dict[str, str], log: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}/api"
        self.env = {**env, "PREFECT_API_URL": self.url}
        self._command = [*PREFECT, "server", "start", "--host", "127.0.0.1", "--port", str(port)]
        # the UI asks the API at the address that the server tells it
        self._env = {**env, "PREFECT_UI_API_URL": self.url, "PREFECT_SERVER_UI_SHOW_PROMOTIONAL_CONTENT": "false"}
        self._log = log
        self.start()

    def start(self) -> None:
        """Start the server, again if it was ended."""
        with self._log.open("a") as out:
            self.process = subprocess.Popen(self._command, env=self._env, stdout=out, stderr=out)
        self.until(lambda: self.ask("GET", "/health") is True, 120)

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        data = json.dumps(body).encode() if body is not None else None
        request = urllib.request.Request(self.url + path, data=data, method=method, headers={"content-type": "application/json"})
        for _ in range(30):
            try:
                with urllib.request.urlopen(request, timeout=60) as answer:
                    return json.loads(answer.read() or b"null")
            except urllib.error.HTTPError as error:
                if error.code != 503:
                    return None
            except OSError:
                return None
            time.sleep(0.5)  # SQLite is locked: Prefect's own client asks again too
        return None

    def run_of(self, deployment: str, parameters: dict[str, Any]) -> str:
        """Trigger a deployment and return the flow run; a busy SQLite answers 503, and is asked again as a client would."""
        body = {"parameters": parameters, "idempotency_key": uuid.uuid4().hex}
        for _ in range(30):
            found = self.ask("GET", f"/deployments/name/{deployment}")
            made = self.ask("POST", f"/deployments/{found['id']}/create_flow_run", body) if found else None
            if made:
                return str(made["id"])
            time.sleep(1)
        raise AssertionError(f"{deployment}: the server took no run of {parameters}")

    def command(self, *arguments: str, cwd: Path) -> None:
        done = subprocess.run(
            [*PREFECT, *arguments], env=self.env, cwd=cwd, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr

    def until(self, condition: Any, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            if condition():
                return
            time.sleep(0.3)
        raise AssertionError("the condition never came true")

    def state(self, flow_run: str) -> str:
        found = self.ask("GET", f"/flow_runs/{flow_run}")
        return str(found["state"]["type"]) if found else ""

    def tasks(self, flow_run: str) -> list[tuple[str, str, int]]:
        """Return (name, state name, run count) of the flow run's task runs, newest state each, in order of start."""
        body = {"flow_runs": {"id": {"any_": [flow_run]}}, "sort": "EXPECTED_START_TIME_ASC", "limit": 200}
        return [
            (t["name"], t["state"]["name"], t["run_count"])
            for t in self.ask("POST", "/task_runs/filter", body) or []
            if t["state"]
        ]


def stopped(process: subprocess.Popen[bytes]) -> None:
    """End a server or a worker; a worker of Prefect 3.9 at times sits on its first SIGTERM, and heeds the second."""
    for _ in range(2):
        process.terminate()
        try:
            process.wait(60)
            return
        except subprocess.TimeoutExpired:
            continue
    process.kill()
    process.wait(30)
