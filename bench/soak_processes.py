"""Finds, signals and reaps the processes of a soak: by process id and by what their environment says, never by name."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
from pathlib import Path

FLOW_RUN = "PREFECT__FLOW_RUN_ID"
PR_SET_CHILD_SUBREAPER = 36


def adopt() -> None:
    """Become the parent of every orphan below this process, so that a killed parent hides nothing that it left."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def environment(pid: int) -> dict[str, str]:
    """Return a process's environment as it was at its start; {} for one that is gone, or dead and not yet reaped."""
    try:
        words = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return {}
    return dict(w.decode(errors="replace").split("=", 1) for w in words if b"=" in w)


def everybody() -> list[int]:
    """Return all process ids."""
    return [int(e.name) for e in os.scandir("/proc") if e.name.isdigit()]


def status(pid: int) -> tuple[str, int]:
    """Return (state letter, parent's id); ('', 0) for a process that is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return "", 0
    state, parent = text.rpartition(")")[2].split()[:2]
    return state, int(parent)


def alive(pid: int) -> bool:
    """Tell whether a process lives (one that only waits to be reaped does not)."""
    return status(pid)[0] not in ("", "Z", "X")


def command(pid: int) -> str:
    """Return a process's command line."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return ""


def of_home(home: Path) -> list[int]:
    """Return the live processes, other than this one, that were started for an ATTUNER_HOME."""
    here = os.getpid()
    return [p for p in everybody() if p != here and environment(p).get("ATTUNER_HOME") == str(home) and alive(p)]


def flow_processes(home: Path) -> dict[str, int]:
    """Return the process of each flow run that is under way: flow run's id → process id."""
    found: dict[str, list[int]] = {}
    for pid in of_home(home):
        run = environment(pid).get(FLOW_RUN)
        if run:
            found.setdefault(run, []).append(pid)
    # its children carry the id too: the flow is the one whose parent doesn't
    return {run: next((p for p in pids if status(p)[1] not in pids), pids[0]) for run, pids in found.items()}


def descendants(pid: int) -> list[int]:
    """Return every live process below this one."""
    parents: dict[int, list[int]] = {}
    for p in everybody():
        state, parent = status(p)
        if state not in ("", "Z", "X"):
            parents.setdefault(parent, []).append(p)
    found, front = [], [pid]
    while front:
        below = parents.get(front.pop(), [])
        found += below
        front += below
    return found


def send(pid: int, what: int = signal.SIGKILL) -> bool:
    """Send a signal; tell whether there was a process to send it to."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, what)
        return True
    return False


def reap(known: set[int]) -> None:
    """Reap dead children that nobody waits for; `known` are waited for by their Popen."""
    here = os.getpid()
    for pid in everybody():
        if pid not in known and status(pid) == ("Z", here):
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
