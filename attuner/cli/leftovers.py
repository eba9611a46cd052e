"""Prefect's temporary server outlives a command that is killed outright; the next run or resume ends it, by process id.

The server is a child that Prefect starts; it inherits a mark that names the command it serves and that command's home.
"""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

MARK = "ATTUNER_SERVES"


def mark(home: Path) -> None:
    """Mark what this process starts from now on."""
    os.environ[MARK] = f"{os.getpid()}:{home}"


def end_leftovers(home: Path) -> list[int]:
    """End temporary Prefect servers of this home whose command is dead; return their process ids."""
    ended = []
    for entry in Path("/proc").glob("[0-9]*"):
        served = _served(entry, home)
        if served is not None and not Path(f"/proc/{served}").exists():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(entry.name), signal.SIGKILL)
                ended.append(int(entry.name))
    return ended


def _served(entry: Path, home: Path) -> int | None:
    """Return the process id that a temporary server of this home serves, or None for any other process."""
    try:
        if b"uvicorn" not in (entry / "cmdline").read_bytes():
            return None
        environment = (entry / "environ").read_bytes().split(b"\0")
    except OSError:
        return None
    found = next((e.decode() for e in environment if e.startswith(f"{MARK}=".encode())), "")
    pid, _, where = found.removeprefix(f"{MARK}=").partition(":")
    return int(pid) if pid.isdigit() and where == str(home) else None
