"""The Ray job of one attempt: reserve devices, run the ranks under torchrun, stamp allocation and release.

`python -m attuner_runner.driver RUN_DIR`, as the entrypoint of a Ray job. Devices are reserved with a placement group, so
a busy cluster queues the attempt without charging it. GPU-hours come from the stamps written here, never from Ray's job
times (its start time is the submit time). The driver also decides what the control plane can't see from afar: no step for
`hang_s` is a hang, `time_limit_s` after allocation is the end. Whatever happens, the release is stamped, and a heartbeat
tells until when the devices were held if the driver is killed outright.
"""

import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup, placement_group, placement_group_table, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from . import files
from .load import OtherLoad

TICK_S = 0.1
HEARTBEAT_S = 0.5
STOP_GRACE_S = 3.0
EXIT = {"ok": 0, "oom": 77, "hang": 78, "time_limit": 79, "stopped": 80, "never_allocated": 81}


class Stopped(Exception):
    """The job was asked to stop."""


def inherited() -> dict[str, str]:
    """Return this process's environment for the ranks, without the folder that Ray put on the path for this session.

    The ranks find their code in the working directory; a path that changes with every Ray session would look like a
    change of the environment.
    """
    env = dict(os.environ)
    kept = [p for p in env.pop("PYTHONPATH", "").split(os.pathsep) if p and "runtime_resources" not in p]
    return {**env, "PYTHONPATH": os.pathsep.join(kept)} if kept else env


class TorchrunNode:
    """The ranks of one node, under one torchrun."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def address(self) -> tuple[str, int]:
        """Return this node's address and a free port, for the rendezvous."""
        with socket.socket() as probe:
            probe.bind(("", 0))
            return ray.util.get_node_ip_address(), probe.getsockname()[1]

    def hardware(self) -> list[str]:
        """Return the models of this node's devices: GPUs where there are any, else the processor."""
        gpus = [_field(p, "Model:") for p in Path("/proc/driver/nvidia/gpus").glob("*/information")]
        return sorted({*gpus}) if gpus else [_field(Path("/proc/cpuinfo"), "model name")]

    def start(self, command: list[str], env: dict[str, str], log: str) -> int:
        """Start the ranks, tied to this process's life; return their session id."""
        leash = [sys.executable, "-S", "-m", f"{__package__}.leash", str(os.getpid())]
        with Path(log).open("ab") as out:
            self._process = subprocess.Popen(
                leash + command, env={**inherited(), **env}, stdout=out, stderr=subprocess.STDOUT, start_new_session=True
            )
        return self._process.pid

    def poll(self) -> int | None:
        """Return the exit code of torchrun, or None while it runs."""
        return self._process.poll() if self._process else None

    def stop(self) -> None:
        """End the ranks: politely, then outright. torchrun forwards SIGTERM to its workers."""
        if self._process is None:
            return
        if self._process.poll() is None:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(STOP_GRACE_S)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


def _field(path: Path, name: str) -> str:
    try:
        lines = path.read_text(errors="replace").splitlines()
    except OSError:
        return "unknown"
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith(name)), "unknown")


class RemoteNode:
    """The same calls, on another node of the placement group through a Ray actor."""

    def __init__(self, group: PlacementGroup, index: int) -> None:
        strategy = PlacementGroupSchedulingStrategy(placement_group=group, placement_group_bundle_index=index)
        self._actor: Any = ray.remote(TorchrunNode).options(num_cpus=0, scheduling_strategy=strategy).remote()

    def address(self) -> tuple[str, int]:
        """Return that node's address and a free port."""
        address, port = ray.get(self._actor.address.remote())
        return address, port

    def hardware(self) -> list[str]:
        """Return the models of that node's devices."""
        models: list[str] = ray.get(self._actor.hardware.remote())
        return models

    def start(self, command: list[str], env: dict[str, str], log: str) -> int:
        """Start the ranks there; the session id means nothing here."""
        ray.get(self._actor.start.remote(command, env, log))
        return -1

    def poll(self) -> int | None:
        """Return the exit code of torchrun there, or None while it runs."""
        code: int | None = ray.get(self._actor.poll.remote())
        return code

    def stop(self) -> None:
        """End the ranks there."""
        ray.get(self._actor.stop.remote())


def reserve(job: dict[str, Any]) -> PlacementGroup:
    """Return a placement group with a bundle per node.

    Raises:
        TimeoutError: the cluster had no room within `alloc_timeout_s`; nothing is charged.
    """
    resource, gpus, per_node = job["resource"], job["gpus"], job["gpus_per_node"]
    counts = [min(per_node, gpus - first) for first in range(0, gpus, per_node)]
    bundles: list[dict[str, float]] = [{resource: count} for count in counts]
    for bundle, address in zip(bundles, chosen_nodes(job, len(counts)), strict=False):
        bundle[f"node:{address}"] = 0.001
    group = placement_group(bundles, strategy="PACK" if len(bundles) == 1 else "STRICT_SPREAD")
    if not group.wait(job["alloc_timeout_s"]):
        remove_placement_group(group)
        raise TimeoutError(f"no {gpus} × {resource} within {job['alloc_timeout_s']} s")
    return group


def chosen_nodes(job: dict[str, Any], needed: int) -> list[str]:
    """Return node addresses to pin to, so that calibration runs land on different nodes where there is a choice."""
    offset = job.get("placement_offset")
    nodes = [
        n for n in ray.nodes() if n["Alive"] and n["Resources"].get(job["resource"], 0) >= min(job["gpus"], job["gpus_per_node"])
    ]
    if offset is None or len(nodes) <= needed:
        return []
    addresses = sorted(n["NodeManagerAddress"] for n in nodes)
    return [addresses[(offset * needed + i) % len(addresses)] for i in range(needed)]


def torchrun(job: dict[str, Any], run_dir: Path, nodes: list[TorchrunNode | RemoteNode], counts: list[int]) -> list[list[str]]:
    """Return the command of every node."""
    module = f"{__package__}.{job['module']}"
    if not job["torchrun"]:
        return [[sys.executable, "-m", module, str(run_dir)] for _ in nodes]
    address, port = nodes[0].address()
    host = "127.0.0.1" if len(nodes) == 1 else address
    base = [sys.executable, "-m", "torch.distributed.run", f"--nnodes={len(nodes)}", "--max-restarts=0", "--monitor-interval=0.1"]
    return [
        [
            *base,
            f"--nproc-per-node={count}",
            f"--node-rank={i}",
            f"--master-addr={host}",
            f"--master-port={port}",
            "-m",
            module,
            str(run_dir),
        ]
        for i, count in enumerate(counts)
    ]


def watch(
    job: dict[str, Any], run_dir: Path, nodes: list[TorchrunNode | RemoteNode], sessions: set[int], load: OtherLoad
) -> tuple[str, str]:
    """Follow the ranks to their end; return outcome and detail."""
    steps = run_dir / files.STEPS
    start = last_progress = time.time()
    beat, size, other = 0.0, 0, (0, 0)
    while True:
        now = time.time()
        if now - beat >= HEARTBEAT_S:
            (run_dir / files.HEARTBEAT).write_text(f"{now:.3f}\n")
            beat = now
            if size:
                load.sample(sessions)
        grown = steps.stat().st_size if steps.exists() else 0
        written = _written(run_dir)
        if (grown, written) != (size, other):
            size, other, last_progress = grown, written, now
        codes = [node.poll() for node in nodes]
        if any(codes):
            return "failed", f"torchrun exit codes {codes}"
        if all(code == 0 for code in codes):
            return "ok", ""
        if now - last_progress > job["hang_s"]:
            done = len(files.read_jsonl(steps))
            return "hang", f"no step for {job['hang_s']:g} s; {done} steps done"
        if now - start > job["time_limit_s"]:
            return "time_limit", f"still running {job['time_limit_s']:g} s after allocation"
        time.sleep(TICK_S)


def _written(run_dir: Path) -> tuple[int, int]:
    """Return number and size of what a run writes beside its steps: a checkpoint or a trace in the making is no hang."""
    job = files.read_json(run_dir / files.JOB)
    folders = [run_dir / files.TRACES, *([Path(job["save"])] if job.get("save") else [])]
    found = [p.stat().st_size for folder in folders if folder.is_dir() for p in folder.iterdir() if p.is_file()]
    return len(found), sum(found)


def cause(run_dir: Path, outcome: str, detail: str) -> tuple[str, str, str]:
    """Return (outcome, phase, detail) of failed ranks, from what they wrote; out of memory explains the others' crashes."""
    found = [files.read_json(p) for p in sorted(run_dir.glob("failure.rank*.json"))]
    if outcome != "failed":
        return outcome, "", detail
    found.sort(key=lambda f: {"oom": 0, "config": 1}.get(f["kind"], 2))
    if not found:
        tail = (run_dir / files.LOG).read_text(errors="replace").splitlines()[-1:]
        return "crash", "", f"{detail}; {''.join(tail)}"[:300]
    kind = found[0]["kind"] if found[0]["kind"] in ("oom", "config") else "crash"
    return kind, str(found[0].get("phase", "")), str(found[0].get("message", detail))[:300]


def run(job: dict[str, Any], run_dir: Path, group: PlacementGroup) -> tuple[str, str, str, float | None]:
    """Run the ranks on reserved devices; return outcome, phase, detail and the cores that others took."""
    where = placement_group_table(group)["bundles_to_node_id"]
    here = ray.get_runtime_context().get_node_id()
    counts = [int(b[job["resource"]]) for b in group.bundle_specs]
    nodes: list[TorchrunNode | RemoteNode] = [
        TorchrunNode() if where[i] == here else RemoteNode(group, i) for i in range(len(counts))
    ]
    load = OtherLoad()
    try:
        models = sorted({model for node in nodes for model in node.hardware()})
        files.append_jsonl(run_dir / files.STAMPS, {"event": "nodes", "t": time.time(), "hardware": models})
        commands = torchrun(job, run_dir, nodes, counts)
        logs = [run_dir / (files.LOG if i == 0 else f"node{i}.{files.LOG}") for i in range(len(nodes))]
        sessions = {n.start(c, job["env"], str(log)) for n, c, log in zip(nodes, commands, logs, strict=True)}
        outcome, detail = watch(job, run_dir, nodes, sessions, load)
    except Stopped:
        outcome, detail = "stopped", "asked to stop"
    finally:
        for node in nodes:
            node.stop()
    return *cause(run_dir, outcome, detail), load.cores()


def main(run_dir: Path) -> int:
    """Run one attempt; the exit code tells the outcome."""
    job = files.read_json(run_dir / files.JOB)
    stamp = run_dir / files.STAMPS

    def asked(_signum: int, _frame: object) -> None:
        raise Stopped

    signal.signal(signal.SIGTERM, asked)
    ray.init(log_to_driver=False, logging_level=logging.ERROR)
    try:
        group = reserve(job)
    except (TimeoutError, Stopped) as error:
        files.append_jsonl(stamp, {"event": "released", "t": time.time(), "outcome": "never_allocated", "detail": str(error)})
        return EXIT["never_allocated"]
    allocated = time.time()
    ids = set(placement_group_table(group)["bundles_to_node_id"].values())
    hosts = sorted(n["NodeManagerHostname"] for n in ray.nodes() if n["NodeID"] in ids)
    files.append_jsonl(stamp, {"event": "allocated", "t": allocated, "hosts": hosts, "gpus": job["gpus"], "pid": os.getpid()})
    outcome, phase, detail, load = "crash", "driver", "the driver failed", None
    try:
        outcome, phase, detail, load = run(job, run_dir, group)
    except Stopped:
        outcome, phase, detail = "stopped", "", "asked to stop"
    finally:
        remove_placement_group(group)
        files.append_jsonl(
            stamp,
            {"event": "released", "t": time.time(), "outcome": outcome, "phase": phase, "detail": detail, "other_load": load},
        )
    return EXIT.get(outcome, 1)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
