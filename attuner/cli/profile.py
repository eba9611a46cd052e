"""`attuner profile TRACE...`: where each step of a profiler trace went, on one rank or many; exit 0 if any could be read.

Nothing heavy is imported here (no pydantic, no Prefect): a trace is answered in the time that Python needs to read it.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from attuner.core.errors import UserError

_PIECE = 1 << 16
_SUFFIXES = (".json", ".json.gz")


def profile(arguments: argparse.Namespace) -> int:
    """Read the traces, print the breakdown (or JSON), write the page; a trace that can't be read gets its reason."""
    from attuner.traces import profile as reader
    from attuner.traces.ranks import compare, together

    found, refused = [], []
    for path in traces_of(arguments.traces):
        try:
            read = reader.profile(pieces(path), name=str(path), whole=True, timeline=bool(arguments.html))
        except UserError as error:
            refused.append((str(path), str(error).removeprefix("trace: ")))
        else:
            found.append(read)
    if not found:
        raise UserError("; ".join(f"{path}: {why}" for path, why in refused))
    result = compare(together(found))
    if arguments.html:
        from attuner.report.trace_page import page

        Path(arguments.html).write_text(page(result, refused), encoding="utf-8")
    if arguments.json:
        print(json.dumps(as_data(result, refused), indent=1, ensure_ascii=False))
    else:
        from attuner.report.trace_text import lines

        print("\n".join(lines(result, top=arguments.top)))
        if arguments.html:
            print(f"page: {arguments.html}")
    for name, why in refused:
        print(f"attuner: {name}: not read: {why}", file=sys.stderr)
    return 0


def traces_of(named: list[str]) -> list[Path]:
    """Return the files that were named; a folder stands for the traces in it.

    Raises:
        UserError: one doesn't exist, or a folder has none.
    """
    out: list[Path] = []
    for name in named:
        path = Path(name)
        inside = sorted(p for p in path.iterdir() if p.name.endswith(_SUFFIXES)) if path.is_dir() else [path]
        if not inside or not all(p.is_file() for p in inside):
            raise UserError(f"{name}: {'no trace (.json, .json.gz) in this folder' if path.is_dir() else 'no such file'}")
        out += inside
    return out


def pieces(path: Path) -> Iterator[bytes]:
    """Yield a file's bytes piece by piece.

    Raises:
        UserError: it can't be read.
    """
    try:
        with path.open("rb", buffering=0) as file:
            while piece := file.read(_PIECE):
                yield piece
    except OSError as error:
        raise UserError(f"{path}: {error.strerror or error}") from None


def as_data(result: Any, refused: list[tuple[str, str]]) -> dict[str, Any]:
    """Return a comparison as plain data; all times are whole nanoseconds."""
    ranks = []
    for p in result.ranks:
        data = asdict(p)
        del data["timeline"], data["timeline_step"]
        for s in data["steps"]:
            del s["collectives"]
        ranks.append(data)
    return {
        "unit": "ns",
        "ranks": ranks,
        "stragglers": [asdict(s) for s in result.stragglers],
        "common_steps": result.steps,
        "matched_collectives": result.matched,
        "steps_without_match": result.unmatched,
        "refused": [{"file": path, "why": why} for path, why in refused],
    }
