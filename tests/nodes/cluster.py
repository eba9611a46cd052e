"""A Ray cluster of several nodes on this machine: a head without devices and raylets on loopback addresses of their own.

Every node's processes carry a mark of that node in their environment, so that one node, ranks included, can be killed like a
machine that loses its power, and all of them are ended by process id.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

MARK = "NODES_TEST_ID"
START_S = 90.0
TRIES = 8
PATIENCE = 3
"""Limits of waiting are for a quiet machine; a busy one gets this many times more."""
RESOURCE = "slot"
POSSIBLE = shutil.which("unshare") is not None and os.geteuid() == 0
"""Nodes get mounts of their own, as machines that share no disk; that needs root."""


def free_ports(count: int) -> list[int]:
    """Return ports that are free now, all different."""
    probes = [socket.socket() for _ in range(count)]
    try:
        for probe in probes:
            probe.bind(("", 0))
        return [int(probe.getsockname()[1]) for probe in probes]
    finally:
        for probe in probes:
            probe.close()


def wait_for(condition: Callable[[], Any], limit_s: float, what: str) -> Any:
    """Return what the condition gives once it is true."""
    deadline = time.monotonic() + PATIENCE * limit_s
    while time.monotonic() < deadline:
        if found := condition():
            return found
        time.sleep(0.1)
    raise AssertionError(f"{what}: not within {limit_s:g} s")


class Nodes:
    """The cluster. Nodes are numbered from 1; 0 is the head."""

    def __init__(self, count: int, *, slots: int = 1, env: dict[str, str] | None = None) -> None:
        self.id = secrets.token_hex(6)
        self.temp = Path(tempfile.mkdtemp(prefix="nodes-", dir="/tmp"))
        self.token_file = self.temp / "token"
        self.token_file.write_text(secrets.token_hex(16))
        self.token_file.chmod(0o600)
        self.private = self.temp / "private"
        """A folder of which each node has its own."""
        self.private.mkdir()
        self._started: list[subprocess.Popen[bytes]] = []
        self._slots, self._env = slots, env or {}
        self.port, dashboard, client = free_ports(3)
        self.url = f"http://127.0.0.1:{dashboard}"
        self._start(
            0,
            *("--head", f"--port={self.port}", f"--ray-client-server-port={client}", f"--temp-dir={self.temp / 'ray'}"),
            *("--include-dashboard=true", "--dashboard-host=127.0.0.1", f"--dashboard-port={dashboard}", "--num-cpus=2"),
        )
        try:
            wait_for(self._answers, START_S, "the head")
            for number in range(1, count + 1):
                self.add(number)
        except BaseException:
            self.end()
            raise

    def add(self, number: int) -> None:
        """Start a node and wait until it is there: two that start at once on one machine take each other's sockets."""
        arguments = (f"--address=127.0.0.2:{self.port}", f"--resources={json.dumps({RESOURCE: self._slots})}", "--num-cpus=1")
        for _ in range(TRIES):  # a raylet gives up when its agent takes more than 15 s to come up, as on a busy machine
            self._start(number, *arguments)
            raylet = self._started[-1]
            deadline = time.monotonic() + START_S
            while time.monotonic() < deadline and raylet.poll() is None:
                if f"127.0.0.{number + 2}" in self.alive():
                    return
                if time.monotonic() > deadline - START_S + 20 and not self.processes(number, running="raylet/raylet"):
                    break
                time.sleep(0.2)
            self.kill(number)
        raise AssertionError(f"node {number} did not come up in {TRIES} tries")

    def _start(self, number: int, *arguments: str) -> None:
        agent, agent_grpc, metrics = free_ports(3)
        command = [
            *(sys.executable, "-m", "ray.scripts.scripts", "start", f"--node-ip-address=127.0.0.{number + 2}", *arguments),
            *(f"--dashboard-agent-listen-port={agent}", f"--dashboard-agent-grpc-port={agent_grpc}"),
            *(f"--metrics-export-port={metrics}", "--object-store-memory=100000000", "--disable-usage-stats", "--block"),
        ]
        if number:  # what the nodes of one session would fight for on one machine: where each unpacks a job's files
            unpacked = next((self.temp / "ray").glob("session_2*")) / "runtime_resources"
            unpacked.mkdir(exist_ok=True)
            own = 'mount -t tmpfs tmpfs "$0" && mount -t tmpfs tmpfs "$1" && shift && exec "$@"'
            apart = ["unshare", "--mount", "--propagation", "private", "sh", "-c", own, str(self.private), str(unpacked)]
            command = [*apart, *command]
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("RAY_", "ATTUNER_"))}
        env = {
            **{
                **kept,
                **self._env,
                MARK: f"{self.id}-{number}",
                "RAY_USAGE_STATS_ENABLED": "0",
                "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
            },
            **{"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(self.token_file), "RAY_raylet_start_wait_time_s": "200"},
            **{"RAY_enable_worker_prestart": "0", "RAY_prestart_worker_first_driver": "0"},  # a busy machine has better to do
        }
        with (self.temp / f"node{number}.log").open("ab") as log:
            self._started.append(
                subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
            )

    def get(self, path: str) -> Any:
        """Return the JSON of a request to the head."""
        request = urllib.request.Request(f"{self.url}{path}", headers={"Authorization": f"Bearer {self.token_file.read_text()}"})
        with urllib.request.urlopen(request, timeout=10) as answer:
            return json.load(answer)

    def _answers(self) -> bool:
        with contextlib.suppress(OSError, ValueError):
            return bool(self.get("/api/version"))
        return False

    def alive(self) -> dict[str, str]:
        """Return address → node id of live nodes, without the head."""
        with contextlib.suppress(OSError, ValueError):
            rows = self.get("/api/v0/nodes?detail=1")["data"]["result"]["result"]
            return {r["node_ip"]: r["node_id"] for r in rows if r["state"] == "ALIVE" and r["node_ip"] != "127.0.0.2"}
        return {}

    def number_of(self, node_id: str) -> int:
        """Return a live node's number."""
        return next(int(ip.rsplit(".", 1)[1]) - 2 for ip, x in self.alive().items() if x == node_id)

    def processes(self, number: int | None = None, *, running: str = "") -> list[int]:
        """Return the ids of live processes of one node or all, with these words in their command."""
        wanted = f"{MARK}={self.id}-{'' if number is None else number}".encode()
        found = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            with contextlib.suppress(OSError):
                marks = [x for x in (entry / "environ").read_bytes().split(b"\0") if x.startswith(f"{MARK}=".encode())]
                mine = any(x == wanted if number is not None else x.startswith(wanted) for x in marks)
                if mine and running.encode() in (entry / "cmdline").read_bytes().replace(b"\0", b" "):
                    found.append(int(entry.name))
        return found

    def kill(self, number: int, *, running: str = "") -> None:
        """Kill a node's processes outright: all of them, or those with these words in their command."""
        for pid in self.processes(number, running=running):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def end(self) -> None:
        """End all that was started, by process id."""
        for _ in range(100):
            left = self.processes()
            if not left:
                break
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            for process in self._started:
                process.poll()
            time.sleep(0.05)
        for process in self._started:
            process.wait()
        shutil.rmtree(self.temp, ignore_errors=True)
