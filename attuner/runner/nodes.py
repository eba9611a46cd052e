"""The nodes of a run: what is asked of each, in this process or through a Ray actor, and how a lost one is noticed.

A remote node answers polls; it is lost when Ray says that its actor or its raylet died, or when it has not answered for
`node_silent_s`. No call to a node can wait for ever.
"""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from . import files, machine
from .load import OtherLoad
from .storage import Storage, StorageError

STOP_GRACE_S = 3.0
ANSWER_S = 60.0
SILENT_S = 40.0
POLL_S = 0.5
VERSIONS_S = 60.0
PIECE_BYTES = 64 << 20


class NodeLost(Exception):
    """A node of the run went away."""

    def __init__(self, node_id: str, why: str) -> None:
        self.node_id, self.why = node_id, why
        super().__init__(f"node {node_id} lost: {why}")


def inherited() -> dict[str, str]:
    """Return this process's environment for the ranks, without the folder that Ray put on the path for this session.

    The ranks find their code in the working directory; a path that changes with every Ray session would look like a
    change of the environment.
    """
    env = dict(os.environ)
    kept = [p for p in env.pop("PYTHONPATH", "").split(os.pathsep) if p and "runtime_resources" not in p]
    return {**env, "PYTHONPATH": os.pathsep.join(kept)} if kept else env


class Node:
    """One node's part of a run: its facts, and one group of processes at a time."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._load, self._sampled = OtherLoad(), 0.0

    def address(self) -> tuple[str, int]:
        """Return this node's address and a free port, for the rendezvous."""
        with socket.socket() as probe:
            probe.bind(("", 0))
            return ray.util.get_node_ip_address(), probe.getsockname()[1]

    def facts(self) -> dict[str, Any]:
        """Return devices, NVLink and ports; see machine.facts."""
        return machine.facts()

    def versions(self, env: dict[str, str]) -> dict[str, str]:
        """Return the software of a run with this environment, {} if it can't be told."""
        command = [sys.executable, "-m", f"{__package__}.versions"]
        try:
            done = subprocess.run(command, env={**inherited(), **env}, capture_output=True, timeout=VERSIONS_S, check=True)
            found = json.loads(done.stdout)
        except (OSError, ValueError, subprocess.SubprocessError):
            return {}
        return {str(k): str(v) for k, v in found.items()}

    def sees(self, path: str, token: str) -> bool:
        """Tell whether this node sees the run's folder, by a file that the driver wrote there."""
        with contextlib.suppress(OSError):
            return Path(path).read_text() == token
        return False

    def settle_in(self, run_dir: str, job: dict[str, Any]) -> None:
        """Make the run's folder on a node that doesn't see the driver's, and bring the inputs there."""
        Path(run_dir).mkdir(parents=True, exist_ok=True)
        files.write_json(Path(run_dir) / files.JOB, job)
        Storage(job, Path(run_dir)).begin()

    def changed(self, run_dir: str, seen: dict[str, str]) -> dict[str, tuple[str, bytes]]:
        """Return name → (tag, content) of files in this node's folder of the run that are new or have changed."""
        found, total = {}, 0
        for path in sorted(
            p for p in Path(run_dir).rglob("[!.]*") if p.is_file() and p.name != files.JOB and ".tmp" not in p.name
        ):
            name = path.relative_to(run_dir).as_posix()
            with contextlib.suppress(OSError):
                stat = path.stat()
                tag = f"{stat.st_mtime_ns}:{stat.st_size}"
                if seen.get(name) != tag and total < PIECE_BYTES:
                    found[name] = (tag, path.read_bytes())
                    total += stat.st_size
        return found

    def hand_over(self, run_dir: str, job: dict[str, Any]) -> None:
        """Copy what this node saved (a checkpoint) to storage."""
        Storage(job, Path(run_dir)).keep_saved()

    def start(self, command: list[str], env: dict[str, str], log: str) -> int:
        """Start processes, tied to this one's life; return their session id."""
        leash = [sys.executable, "-S", "-m", f"{__package__}.leash", str(os.getpid())]
        self._load, self._sampled = OtherLoad(), 0.0
        with Path(log).open("ab") as out:
            self._process = subprocess.Popen(
                leash + command, env={**inherited(), **env}, stdout=out, stderr=subprocess.STDOUT, start_new_session=True
            )
        return self._process.pid

    def poll(self, measuring: bool = False) -> int | None:
        """Return the exit code of what was started, or None while it runs; `measuring`: note what others take of this machine."""
        if measuring and self._process and time.monotonic() - self._sampled >= POLL_S:
            self._sampled = time.monotonic()
            self._load.sample({self._process.pid})
        return self._process.poll() if self._process else None

    def cores(self) -> float | None:
        """Return the mean cores that others took; see load.OtherLoad."""
        return self._load.cores()

    def stop(self) -> None:
        """End what was started: politely, then outright. torchrun forwards SIGTERM to its workers."""
        if self._process is None:
            return
        if self._process.poll() is None:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(STOP_GRACE_S)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


class Local:
    """A node that is the driver's own."""

    remote = False

    def __init__(self, node_id: str) -> None:
        self.id = node_id
        self._node = Node()

    def ask(self, method: str, *arguments: Any) -> Any:
        """Call at once; what is returned is the answer."""
        return getattr(self._node, method)(*arguments)

    def answer(self, asked: Any, _limit_s: float) -> Any:
        """Return the answer."""
        return asked

    def poll(self, measuring: bool) -> int | None:
        """Return the exit code, or None while it runs."""
        return self._node.poll(measuring)

    def heard(self) -> float:
        """Return when it was heard last (monotonic seconds): just now."""
        return time.monotonic()

    def end(self, asked: Any) -> None:
        """Nothing is left to do: `ask("stop")` has ended what ran here."""


class Remote:
    """The same calls, on another node of the placement group through a Ray actor."""

    remote = True

    def __init__(self, group: PlacementGroup, index: int, node_id: str, silent_s: float) -> None:
        self.id, self._silent_s = node_id, silent_s
        strategy = PlacementGroupSchedulingStrategy(placement_group=group, placement_group_bundle_index=index)
        actor = ray.remote(Node).options(num_cpus=0, max_restarts=0, scheduling_strategy=strategy)
        self._actor: Any = actor.remote()
        self._asked: Any = None
        self._code: int | None = None
        self._heard = time.monotonic()

    def ask(self, method: str, *arguments: Any) -> Any:
        """Ask; what is returned is a promise for `answer`."""
        if method == "start":
            self._asked, self._code, self._heard = None, None, time.monotonic()
        return getattr(self._actor, method).remote(*arguments)

    def answer(self, asked: Any, limit_s: float) -> Any:
        """Return what was promised. Raises NodeLost if the node died or says nothing within the limit."""
        try:
            found = ray.get(asked, timeout=limit_s)
        except ray.exceptions.GetTimeoutError:
            raise NodeLost(self.id, f"no answer within {limit_s:g} s") from None
        except (ray.exceptions.RayActorError, ray.exceptions.NodeDiedError) as error:
            raise NodeLost(self.id, _line(error)) from None
        except ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, StorageError):  # Ray wraps it in a page of traceback
                raise error.cause from None
            raise
        self._heard = time.monotonic()
        return found

    def poll(self, measuring: bool) -> int | None:
        """Return the exit code as last heard, without waiting. Raises NodeLost."""
        if self._asked is None:
            if time.monotonic() - self._heard >= POLL_S:
                self._asked = self._actor.poll.remote(measuring)
            return self._code
        done, _ = ray.wait([self._asked], timeout=0)
        if done:
            try:
                self._code = ray.get(self._asked)
                self._heard = time.monotonic()
            except ray.exceptions.ActorUnavailableError:
                pass  # perhaps a moment of bad network: the silence is what counts
            except (ray.exceptions.RayActorError, ray.exceptions.NodeDiedError) as error:
                raise NodeLost(self.id, _line(error)) from None
            self._asked = None
        if time.monotonic() - self._heard > self._silent_s:
            raise NodeLost(self.id, f"no answer for {self._silent_s:g} s")
        return self._code

    def heard(self) -> float:
        """Return when it was heard last (monotonic seconds)."""
        return self._heard

    def end(self, asked: Any) -> None:
        """Wait until what runs there has ended, as far as that node can be reached."""
        with contextlib.suppress(NodeLost):
            self.answer(asked, STOP_GRACE_S + 10.0)
        with contextlib.suppress(ray.exceptions.RayError):
            ray.kill(self._actor)


AnyNode = Local | Remote


def gather(nodes: list[AnyNode], method: str, *arguments: Any, limit_s: float = ANSWER_S) -> list[Any]:
    """Ask all nodes at once and return their answers in order. Raises NodeLost."""
    asked = [node.ask(method, *arguments) for node in nodes]
    deadline = time.monotonic() + limit_s
    return [node.answer(a, max(deadline - time.monotonic(), 0.1)) for node, a in zip(nodes, asked, strict=True)]


def end_all(nodes: list[AnyNode]) -> None:
    """End what runs on all nodes, at the same time."""
    asked = [(node, node.ask("stop")) for node in sorted(nodes, key=lambda n: not n.remote)]
    for node, a in asked:
        node.end(a)


def dead(ids: list[str]) -> list[str]:
    """Return those of these nodes that Ray holds for dead."""
    alive = {n["NodeID"] for n in ray.nodes() if n["Alive"]}
    return [x for x in ids if x not in alive]


def _line(error: BaseException) -> str:
    """Return Ray's words without its ids of actor, process and namespace."""
    text = " ".join(str(error).split())
    first, _, rest = text.partition(" class_name:")
    return f"{first} {rest[rest.find('The actor') :] if 'The actor' in rest else ''}".strip()[:200]
