"""Runs planted and healthy launches without paying for imports: one process loads torch, megatron-core and the CPU shim
once, and forks the ranks of every run. `python -m tests.faults.farm` reads one JSON request a line and answers each with one
line; `Farm` starts it and asks. A run is the trainer's own `main`, with a fault planted before it."""

import contextlib
import gc
import importlib
import json
import os
import pkgutil
import signal
import socket
import subprocess
import sys
import time
import traceback
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
GRACE_S = 3.0
"""Time that the other ranks get to tell their failure once one has ended badly."""


class Farm:
    """The farm process; use it as a context manager."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> "Farm":
        """Start the process; it takes the imports' few seconds before it answers."""
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
        command = [sys.executable, "-m", "tests.faults.farm"]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, cwd=ROOT, env=environment, stdin=pipe, stdout=pipe, text=True)
        return self

    def __exit__(self, *_: object) -> None:
        """End the process and, through it, every rank."""
        if self._process is None:
            return
        if self._process.stdin:
            self._process.stdin.close()  # the farm leaves when its requests end
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=10)
        self._process.kill()
        self._process.wait()
        if self._process.stdout:
            self._process.stdout.close()

    def run(self, run_dir: Path, fault: str = "", limit_s: float = 120.0) -> dict[str, Any]:
        """Run the job of a run directory to its end. Returns {"status": [exit status of each rank], "seconds"}."""
        assert self._process is not None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        request = {"run_dir": str(run_dir), "fault": fault, "limit_s": limit_s}
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("the farm process has ended")
        answer: dict[str, Any] = json.loads(line)
        return answer


# ------------------------------------------------------------------------------------------------ inside the process


def serve() -> None:
    """Load everything, then run one request after the other until the requests end."""
    from attuner.runner import rank, train_mcore

    rank.die_with_parent()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # nothing but answers may reach the pipe
    train_mcore.import_megatron({"kind": "cpu", "threads": 1})
    _preload()
    gc.collect()
    gc.freeze()  # what is loaded stays shared with the children
    for line in sys.stdin:
        request = json.loads(line)
        start = time.perf_counter()
        status = _run(Path(request["run_dir"]), request["fault"], request["limit_s"])
        answers.write(json.dumps({"status": status, "seconds": round(time.perf_counter() - start, 3)}) + "\n")
        answers.flush()


def _preload() -> None:
    """Import what the ranks would import later, each for itself: torch._dynamo alone takes an optimizer two seconds."""
    import psutil  # noqa: F401
    import torch._dynamo  # noqa: F401
    from megatron.core.dist_checkpointing.strategies import torch as strategies  # noqa: F401

    from attuner import runner

    from . import plants_batch, plants_model, plants_update  # noqa: F401

    for module in pkgutil.walk_packages(runner.__path__, f"{runner.__name__}."):
        if module.name.startswith((f"{runner.__name__}.probe.", f"{runner.__name__}.mcore_")) and "__main__" not in module.name:
            importlib.import_module(module.name)
    for name in ("drills", "memory", "rows", "load"):
        importlib.import_module(f"{runner.__name__}.{name}")


def _run(run_dir: Path, fault: str, limit_s: float) -> list[int]:
    job = json.loads((run_dir / "job.json").read_text())
    world, port = int(job["world_size"]), _free_port()
    pids = [_fork(run_dir, job, fault, index, world, port) for index in range(world)]
    return _wait(pids, limit_s)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def _fork(run_dir: Path, job: dict[str, Any], fault: str, index: int, world: int, port: int) -> int:
    pid = os.fork()
    if pid:
        return pid
    from attuner.runner import rank, train_mcore

    from . import faults

    try:
        rank.die_with_parent()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        log = os.open(run_dir / "log.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        for target in (1, 2):
            os.dup2(log, target)
        os.close(0)
        os.environ.update(RANK=str(index), LOCAL_RANK=str(index), WORLD_SIZE=str(world), LOCAL_WORLD_SIZE=str(world))
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
        faults.plant(fault, job)
        train_mcore.main(str(run_dir))
    except BaseException:  # noqa: BLE001 - a child must never run on into its parent's loop
        traceback.print_exc()
    sys.stderr.flush()
    os._exit(1)


def _wait(pids: list[int], limit_s: float) -> list[int]:
    """Wait for all ranks; a failed one or the time limit ends the others."""
    ended: dict[int, int] = {}
    deadline = time.monotonic() + limit_s
    while len(ended) < len(pids):
        for pid in [p for p in pids if p not in ended]:
            found, status = os.waitpid(pid, os.WNOHANG)
            if found:
                ended[pid] = os.waitstatus_to_exitcode(status)
                if ended[pid]:
                    deadline = min(deadline, time.monotonic() + GRACE_S)
        if time.monotonic() > deadline:
            for pid in [p for p in pids if p not in ended]:
                os.kill(pid, signal.SIGKILL)
            deadline = float("inf")
        time.sleep(0.01)
    return [ended[pid] for pid in pids]


if __name__ == "__main__":
    serve()
