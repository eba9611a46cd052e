"""A Ray of this campaign alone, for when no cluster is given: started on loopback, ended by process id.

Ray has no way to end one of several heads on a machine (`ray stop` acts by name, on all of them), and its servers listen on
every interface whatever one asks. So: every process of this Ray carries a mark in its environment, by which exactly these
are found and ended, ranks included; and the cluster demands a token that only this user can read. The head is recorded in
the campaign's folder before it starts: a resumed campaign attaches to it, or ends exactly that one.
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
import urllib.error
import urllib.request
from pathlib import Path

from attuner.core.base import Record
from attuner.core.errors import Transient

LOOPBACK = "127.0.0.2"
"""Ray replaces 127.0.0.1 by the machine's outward address; any other loopback address it takes as it is."""
MARK = "ATTUNER_RAY_ID"
START_TIMEOUT_S = 90.0
GRACE_S = 2.0


class Head(Record):
    """What is on record of a local Ray."""

    id: str
    dashboard: str
    temp: str
    token_path: str


class LocalRay:
    """The local Ray of one campaign folder."""

    def __init__(self, folder: Path, *, resource: str, devices: int) -> None:
        self._record = folder / "ray.json"
        self._pid_file = folder / "ray.pid"
        self._log = folder / "ray.log"
        self._resource, self._devices = resource, devices

    @property
    def pid(self) -> int | None:
        """Return the head's process id, if one is on record."""
        try:
            return int(self._pid_file.read_text())
        except (FileNotFoundError, ValueError):
            return None

    def head(self) -> Head | None:
        """Return what is on record, alive or not."""
        try:
            return Head.model_validate_json(self._record.read_text())
        except FileNotFoundError:
            return None

    def alive(self) -> bool:
        """Tell whether the recorded head's process lives."""
        head, pid = self.head(), self.pid
        return head is not None and pid is not None and _carries(pid, head.id)

    def answers(self) -> bool:
        """Tell whether the recorded head answers."""
        head = self.head()
        return head is not None and _answers(head)

    def token(self) -> str:
        """Return the token that the recorded head demands."""
        head = self.head()
        return Path(head.token_path).read_text() if head else ""

    def ensure(self) -> Head:
        """Return a head that answers: the recorded one, or a new one in place of a dead one.

        Raises:
            Transient: it does not come up in time; the line ends with Ray's own last words.
        """
        head = self.head()
        if head is not None and self.alive() and self._wait(head):
            return head
        if head is not None:
            self.end()
        return self._start()

    def _start(self) -> Head:
        identity = secrets.token_hex(8)
        temp = Path(tempfile.mkdtemp(prefix="attuner-ray-", dir="/tmp" if Path("/tmp").is_dir() else None))
        token = temp / "token"
        token.touch(mode=0o600)
        token.write_text(secrets.token_hex(32))
        port, dashboard, client, agent, agent_grpc, metrics = _free_ports(6)
        head = Head(id=identity, dashboard=f"http://127.0.0.1:{dashboard}", temp=str(temp), token_path=str(token))
        self._pid_file.unlink(missing_ok=True)
        self._record.write_text(head.model_dump_json())
        ray = [
            *(sys.executable, "-m", "ray.scripts.scripts", "start", "--head", f"--node-ip-address={LOOPBACK}"),
            *(f"--port={port}", f"--ray-client-server-port={client}"),
            # every port is chosen: Ray's fixed defaults let no second Ray run beside this one
            *(
                f"--dashboard-agent-listen-port={agent}",
                f"--dashboard-agent-grpc-port={agent_grpc}",
                f"--metrics-export-port={metrics}",
            ),
            *("--include-dashboard=true", "--dashboard-host=127.0.0.1", f"--dashboard-port={dashboard}"),
            *(f"--resources={json.dumps({self._resource: self._devices})}", f"--num-cpus={max(4, self._devices)}"),
            *("--object-store-memory=100000000", f"--temp-dir={temp}", "--disable-usage-stats", "--block"),
        ]
        # the shell records its own pid before it becomes Ray, so there is no moment in which a head runs unrecorded
        shell = ["/bin/sh", "-c", 'echo "$$" > "$0.new" && mv "$0.new" "$0" && exec "$@"', str(self._pid_file), *ray]
        with self._log.open("ab") as log:
            subprocess.Popen(
                shell, env=_environment(identity, token), stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        if self._wait(head):
            return head
        words = " ".join(self._log.read_text(errors="replace").split())[-300:]
        self.end()
        raise Transient(f"the local Ray did not answer within {START_TIMEOUT_S:.0f} s (log: {self._log}); it said: {words}")

    def _wait(self, head: Head) -> bool:
        deadline = time.monotonic() + START_TIMEOUT_S
        born = time.monotonic()
        while time.monotonic() < deadline:
            if _answers(head):
                return True
            if time.monotonic() - born > 2.0 and not self.alive():
                return False
            time.sleep(0.1)
        return False

    def end(self) -> list[int]:
        """End exactly this Ray and everything it started, ranks too; return the process ids that were ended."""
        head = self.head()
        if head is None:
            return []
        victims = marked(head.id)
        pid = self.pid
        if pid in victims:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
            deadline = time.monotonic() + GRACE_S
            while time.monotonic() < deadline and marked(head.id):
                _reap(pid)
                time.sleep(0.05)
        for _ in range(100):
            left = marked(head.id)
            if not left:
                break
            victims = sorted({*victims, *left})
            for process in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
            _reap(pid)
            time.sleep(0.05)
        shutil.rmtree(head.temp, ignore_errors=True)
        self._record.unlink(missing_ok=True)
        self._pid_file.unlink(missing_ok=True)
        return victims


def marked(identity: str) -> list[int]:
    """Return the ids of all live processes that carry this Ray's mark."""
    return [int(entry.name) for entry in os.scandir("/proc") if entry.name.isdigit() and _carries(int(entry.name), identity)]


def _carries(pid: int, identity: str) -> bool:
    try:
        # a zombie's environment reads as empty: it holds nothing any more
        return f"{MARK}={identity}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False


def _reap(pid: int | None) -> None:
    if pid is not None:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)


def _environment(identity: str, token: Path) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("RAY_", "PREFECT_", "ANTHROPIC_"))}
    return {
        **kept,
        MARK: identity,
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(token),
    }


def _answers(head: Head) -> bool:
    try:
        token = Path(head.token_path).read_text()
        request = urllib.request.Request(f"{head.dashboard}/api/version", headers={"Authorization": f"Bearer {token}"})
        with urllib.request.urlopen(request, timeout=2) as answer:
            return bool(answer.status == 200)
    except (OSError, urllib.error.URLError):
        return False


def _free_ports(count: int) -> list[int]:
    """Return ports that are free now, all different: they are held until the last one is found."""
    probes = [socket.socket() for _ in range(count)]
    try:
        for probe in probes:
            probe.bind(("", 0))
        return [int(probe.getsockname()[1]) for probe in probes]
    finally:
        for probe in probes:
            probe.close()
