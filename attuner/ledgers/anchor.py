"""The anchor file beside a ledger: which rows were acknowledged. DuckDB opens a torn write-ahead file without an error
and drops everything after the damage, so the database alone can't tell that its end is missing; this file can.

It is small JSON, `{"seq": 12, "campaigns": {"id": [n, "hash"]}}`, replaced whole and flushed to disk under the ledger's
lock, after the commit and before `append` returns.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from attuner.core.errors import Broken, Transient
from attuner.ledgers.chain import Mark, Marks


def read_anchor(path: Path) -> Marks | None:
    """Return what was acknowledged, or None if there is no such file; raises Broken if it can't be read."""
    try:
        data = json.loads(path.read_bytes())
        campaigns = {str(name): Mark(int(n), str(digest)) for name, (n, digest) in data["campaigns"].items()}
        return Marks(int(data["seq"]), campaigns)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise Broken(f"{path}: the anchor can't be read ({type(error).__name__}); put it back from a copy") from error


def write_anchor(path: Path, marks: Marks) -> None:
    """Replace the anchor, durably. Raises Transient if the disk refuses (the row is there, but not acknowledged)."""
    text = json.dumps({"seq": marks.seq, "campaigns": marks.campaigns}, separators=(",", ":")) + "\n"
    draft = path.with_name(path.name + ".new")
    try:
        with draft.open("wb") as file:
            file.write(text.encode())
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
        sync_folder(path.parent)
    except OSError as error:
        raise Transient(f"{path}: the anchor can't be written ({error.strerror}); make room, then call again") from error


def sync_folder(folder: Path) -> None:
    """Flush the folder's entries to disk, so that new and renamed files outlive a power loss."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
