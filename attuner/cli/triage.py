"""`attuner triage LOG...`: what failed first in the logs of one run, where, and what to change next.

A LOG is a file (.gz too), a folder (the logs in it), or `-` for what is piped in. Nothing heavy is imported, and each log is read
once, piece by piece. Exit 0: a cause was found; 3: the logs establish none.
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from attuner.core.errors import UserError
from attuner.core.failure import Failure

UNDETERMINED = 3
RETRY = {"no": "no: the same run fails again", "may_help": "may help", "unknown": "unknown until the cause is"}
LAST_WORDS = "failure.rank*.json"
"""What failed ranks of our own runs leave in the run's folder."""
_PIECE = 1 << 20
_SUFFIXES = (".log", ".txt", ".out", ".err", ".log.gz", ".txt.gz")
_RANK = re.compile(r"(?:^|[._/-])rank[._-]?(\d{1,7})(?=[._/-]|$)")


def triage(arguments: argparse.Namespace) -> int:
    """Read the logs of one run and print the diagnosis."""
    from attuner.failures import lever_ids, load_failures
    from attuner.logs.scan import LogScan
    from attuner.logs.triage import diagnose
    from attuner.settings import load_settings

    rules_dir = load_settings(project=arguments.project).rules_dir()
    book = load_failures(rules_dir, arguments.stack)
    scans = []
    for name, path in logs_of(arguments.logs):
        scan = LogScan(book, name, rank=_rank_of(name))
        for piece in pieces(path):
            scan.feed(piece)
        scan.close()
        scans.append(scan)
    for folder in (Path(name) for name in arguments.logs if name != "-" and any(Path(name).glob(LAST_WORDS))):
        from attuner.steps.triage import ranks_words

        scan = LogScan(book, str(folder / LAST_WORDS))
        scan.feed("".join(f"{line}\n" for line in ranks_words(folder)).encode("utf-8", "replace"))
        scan.close()
        scans.append(scan)
    found = diagnose(scans, book, catalog=lever_ids(rules_dir, arguments.stack))
    if arguments.json:
        read = {"logs": len(scans), "lines": sum(s.lines for s in scans), "steps": sum(s.progress.num_steps for s in scans)}
        print(json.dumps({**found.data(), "read": read}, indent=1, ensure_ascii=False))
    else:
        print("\n".join(lines_of(found)))
    return UNDETERMINED if found.undetermined else 0


def lines_of(found: Failure) -> Iterator[str]:
    """Yield the diagnosis as a person reads it."""
    yield found.headline() + (f", node {found.node}" if found.node else "")
    yield f"  why       {found.why}" + (f" ({found.rule})" if found.rule else "")
    for i, line in enumerate(found.evidence):
        yield f"  {'evidence' if i == 0 else '':8}  {line.said()}"
    if found.levers:
        yield f"  levers    {', '.join(found.levers)}"
    yield f"  next      {found.action}"
    yield f"  retry     {RETRY[found.retry]}"
    if found.open:
        yield f"  not told  {found.open}"
    if found.also:
        yield f"  also seen {', '.join(found.also)}"


def logs_of(named: list[str]) -> list[tuple[str, Path | None]]:
    """Return name and path of every log; None for what is piped in.

    Raises:
        UserError: one doesn't exist, or a folder has none.
    """
    out: list[tuple[str, Path | None]] = []
    for name in named:
        path = Path(name)
        if name == "-":
            out.append((name, None))
        elif path.is_dir():
            inside = sorted(p for p in path.rglob("*") if p.is_file() and p.name.endswith(_SUFFIXES))
            if not inside:
                raise UserError(f"{name}: no log ({', '.join(_SUFFIXES)}) in this folder")
            out += [(str(p), p) for p in inside]
        elif path.is_file():
            out.append((name, path))
        else:
            raise UserError(f"{name}: no such file")
    return out


def pieces(path: Path | None) -> Iterator[bytes]:
    """Yield a log's bytes piece by piece; a .gz is unpacked.

    Raises:
        UserError: it can't be read.
    """
    try:
        with _opened(path) as file:
            while piece := file.read(_PIECE):
                yield piece
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise UserError(f"{path}: {' '.join(str(reason).split())[:200]}") from None


def _opened(path: Path | None) -> IO[bytes] | Any:
    if path is None:
        return sys.stdin.buffer
    return gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb")


def _rank_of(name: str) -> int | None:
    match = _RANK.search(name)
    return int(match[1]) if match else None
