"""What broke in a failed trial, read from all that its run left: the logs of its nodes, what its ranks and its driver said last.

A log is untrusted and may be huge: each is read piece by piece, of a very long one its beginning and its end. Nothing that
stands in it can keep a trial from being recorded.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from attuner.core.errors import UserError
from attuner.core.failure import UNDETERMINED, Failure
from attuner.failures import lever_ids, load_failures
from attuner.logs.scan import LogScan
from attuner.logs.triage import diagnose
from attuner.ports import RunFiles

HEALTHY = ("ok", "stopped_early")
OWN = "attuner"
"""Name of what the run's own files say, as evidence gives it."""
HEAD_BYTES, TAIL_BYTES = 8 << 20, 64 << 20
"""Read of one log's beginning and end; of many logs less of each, ALL_LOGS times as much together."""
ALL_LOGS = 4
MAX_FILES = 256
MAX_RANKS = 4096
_PIECE = 1 << 20


def triaged(files: RunFiles, rules_dir: Path, stack: str, *, status: str, cause: str, phase: str) -> Failure | None:
    """Return the diagnosis of a trial, None for one that did not fail.

    Args:
        files: where the run wrote.
        rules_dir: the rules' folder.
        stack: whose signatures and levers.
        status, cause, phase: of the trial, as its driver and its ranks told them.
    """
    if status in HEALTHY:
        return None
    try:
        book = load_failures(rules_dir, stack)
        catalog = lever_ids(rules_dir, stack)
    except UserError as error:
        return Failure(kind=UNDETERMINED, seen=status, why=f"the signatures can't be read: {error}", open="everything")
    folder = Path(files.folder)
    scans = []
    logs = _logs(folder)
    part = min(1.0, ALL_LOGS / max(len(logs), 1))
    for log in logs:
        scan = LogScan(book, log.name)
        try:
            _read(scan, log, head=int(HEAD_BYTES * part), tail=int(TAIL_BYTES * part))
        except OSError:
            continue  # it went away, or can't be read: the others tell
        scans.append(scan)
    own = LogScan(book, OWN)
    for line in (*ranks_words(folder), f"attuner run failed ({status}) in {phase or 'unknown'}: {' '.join(cause.split())}"):
        own.feed(f"{line}\n".encode("utf-8", "replace"))
    own.close()
    return diagnose([*scans, own], book, catalog=catalog, phase=phase)


def _logs(folder: Path) -> list[Path]:
    """Return the logs, the first node's first."""
    found = [p for p in (*folder.glob("*.txt"), *folder.glob("*.log")) if p.is_file() and not p.is_symlink()]
    return sorted(found, key=lambda p: (not p.name.startswith("log"), len(p.name), p.name))[:MAX_FILES]


def _read(scan: LogScan, path: Path, *, head: int, tail: int) -> None:
    size = path.stat().st_size
    with path.open("rb") as file:
        left = size
        if size > head + tail:
            for piece in _pieces(file, head):
                scan.feed(piece)
            skipped = sum(piece.count(b"\n") for piece in _pieces(file, size - head - tail))
            scan.skip(skipped)
            left = tail
        for piece in _pieces(file, left):
            scan.feed(piece)
    scan.close()


def _pieces(file: Any, size: int) -> Iterator[bytes]:
    while size > 0 and (piece := file.read(min(_PIECE, size))):
        size -= len(piece)
        yield piece


def ranks_words(folder: Path) -> Iterator[str]:
    """Yield each failed rank's last words, as lines of a log."""
    for path in sorted(folder.glob("failure.rank*.json"))[:MAX_RANKS]:
        digits = path.name.removeprefix("failure.rank").removesuffix(".json")
        try:
            said = json.loads(path.read_text(encoding="utf-8", errors="replace"))
            line = f"attuner rank failed ({said['kind']}) in {said['phase']}: {said['message']}"
        except (OSError, ValueError, KeyError, TypeError):
            continue
        if digits.isdigit():
            yield f"[rank{int(digits)}]: {' '.join(line.split())}"
