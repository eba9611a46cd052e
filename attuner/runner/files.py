"""Names of everything that a run reads from and leaves in its run directory, and small helpers to
read and write them safely. Standard library only, so that every part of the package may import it."""

import json
import os
from pathlib import Path
from typing import Any

JOB = "job.json"
"""The input of a run."""
STAMPS = "stamps.jsonl"
"""Time stamps of the launch, written by the driver."""
HEARTBEAT = "heartbeat"
"""Touched by the driver while the launch is alive."""
LOG = "log.txt"
"""Everything that the ranks said, collected by the driver."""
STEPS = "steps.jsonl"
"""One line for every training step, written as it happens."""
CONFIG = "config.json"
"""Effective arguments, derived facts, environment and versions of the run."""
DONE = "done.json"
"""Written last by a run that came to its end."""
RESOLVED = "resolved.json"
"""Final values that a job worked out in the training image."""
COMPONENT = "component.json"
"""Outcome of a component comparison."""
TRACES = "traces"
"""Folder with one profiler trace a rank."""
FINGERPRINT = "fingerprint.json"
"""What the probe saw of the first steps."""
TOPOLOGY = "topology.json"
"""What the probe of the nodes measured, before the ranks start."""
CANCELLED = "cancelled"
"""Forbids the driver to begin: the control side has given the run up."""
SHARES = "probe"
"""Folder with the ranks' shares of the fingerprint, while it is made."""


def failure(rank: int) -> str:
    """Name of the file in which one rank says why it failed."""
    return f"failure.rank{rank}.json"


def trace(rank: int) -> str:
    """Name of one rank's profiler trace, relative to the run directory."""
    return f"{TRACES}/rank{rank}.json"


def share(rank: int) -> str:
    """Name of one rank's share of the fingerprint, relative to the run directory."""
    return f"{SHARES}/share{rank:05d}.json"


def read_json(path: str | os.PathLike[str]) -> Any:
    """Read one JSON document.

    Raises: OSError when the file can't be read, ValueError when it isn't JSON.
    """
    return json.loads(Path(path).read_text(encoding="utf-8"))


def write_json(path: str | os.PathLike[str], value: Any) -> None:
    """Write one strict JSON document atomically: a reader sees the old file or the whole new one.

    Raises: ValueError for a number that isn't finite (strict JSON has none).
    """
    path = Path(path)
    temporary = path.with_name(f"{path.name}.tmp{os.getpid()}")
    text = json.dumps(value, indent=1, sort_keys=True, allow_nan=False) + "\n"
    with temporary.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def append_jsonl(path: str | os.PathLike[str], value: Any) -> None:
    """Append one strict JSON line with a single write, so that a killed writer tears at most the last line.

    Raises: ValueError for a number that isn't finite.
    """
    line = json.dumps(value, sort_keys=True, allow_nan=False) + "\n"
    with Path(path).open("a", encoding="utf-8") as file:
        file.write(line)
        file.flush()


def read_jsonl(path: str | os.PathLike[str]) -> list[Any]:
    """Read the lines of a JSONL file; a torn last line (its writer was killed) is left out, no file is no lines.

    Raises: ValueError when a line other than the last isn't JSON.
    """
    try:
        lines = Path(path).read_bytes().split(b"\n")
    except FileNotFoundError:
        return []
    # What follows the last newline is empty, or torn.
    return [json.loads(line) for line in lines[:-1] if line.strip()]
