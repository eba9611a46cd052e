"""A stand-in for Ray's job API at the wire, for what a real Ray can't be told to do: trouble, and jobs that stay as they are."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import ray


class RayApi:
    """What the server says; tests set it, and read what was asked."""

    def __init__(self) -> None:
        self.url = ""
        self.jobs: dict[str, dict[str, Any]] = {}
        self.trouble = 0
        self.token = ""
        self.nodes = [{"state": "ALIVE", "resources_total": {"slot": 2.0}}]
        self.stopped: list[str] = []
        self.authorizations: list[str] = []

    def job(self, name: str, status: str, *, code: int | None = None, message: str = "") -> None:
        """Set a job's state."""
        self.jobs[name] = {
            **{"type": "SUBMISSION", "submission_id": name, "job_id": None, "status": status, "entrypoint": "x"},
            **{"message": message, "driver_exit_code": code, "runtime_env": {}, "metadata": {}},
        }

    def answer(self, method: str, path: str, body: bytes) -> tuple[int, Any]:
        """Return status and answer of one request."""
        if self.trouble:
            return self.trouble, "trouble"
        path = path.partition("?")[0].rstrip("/")
        if path == "/api/version":
            return 200, {"version": "4", "ray_version": ray.__version__, "ray_commit": "x", "session_name": "s"}
        if path == "/api/v0/nodes":
            return 200, {"result": True, "msg": "", "data": {"result": {"result": self.nodes}}}
        if path == "/api/cluster_status":
            return 200, {"result": True, "msg": "", "data": {"clusterStatus": None}}
        if path.startswith("/api/packages"):
            return 200, "there"
        if path == "/api/jobs" and method == "POST":
            name = json.loads(body)["submission_id"]
            self.job(name, "PENDING")
            self.jobs[name]["submitted"] = json.loads(body)
            return 200, {"job_id": name, "submission_id": name}
        if path == "/api/jobs":
            return 200, list(self.jobs.values())
        name = path.split("/")[3]
        if name not in self.jobs:
            return 404, f"Job {name} does not exist"
        if path.endswith("/stop"):
            self.stopped.append(name)
            return 200, {"stopped": True}
        return 200, self.jobs[name]


@contextmanager
def serving(api: RayApi) -> Iterator[RayApi]:
    """Serve on loopback for the time of the block."""

    class Handler(BaseHTTPRequestHandler):
        def _do(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            said = self.headers.get("Authorization", "")
            api.authorizations.append(said)
            refused = bool(api.token) and said != f"Bearer {api.token}"
            code, answer = (401, "no") if refused else api.answer(self.command, self.path, body)
            data = answer.encode() if isinstance(answer, str) else json.dumps(answer).encode()
            self.send_response(code)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = do_PUT = do_DELETE = _do

        def log_message(self, *_args: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    api.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield api
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
