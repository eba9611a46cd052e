"""Plain SQL over a ledger, and copies of it to take away: both read-only, both while a campaign runs."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager, closing
from pathlib import Path
from typing import Any, NamedTuple

import duckdb

from attuner.core.errors import UserError
from attuner.ledgers.duckdb_session import attach, one_line, told

_FORMATS = {".parquet": "FORMAT parquet", ".csv": "FORMAT csv, HEADER", ".json": "FORMAT json, ARRAY true"}


class Table(NamedTuple):
    """The answer of a query."""

    columns: list[str]
    rows: list[tuple[Any, ...]]


def ask(path: Path, sql: str) -> Table:
    """Run one statement over the ledger at `path`, unable to write or to see other files. The caller holds the lock."""
    with closing(duckdb.connect(":memory:", config={"threads": 1})) as db:
        with told(path):
            attach(db, path, write=False)
        # Without this, a query could COPY to a file or read one; the lock keeps it from being switched on again.
        db.execute("SET enable_external_access = false")
        db.execute("SET lock_configuration = true")
        try:
            answer = db.execute(sql)
            return Table([d[0] for d in answer.description or []], answer.fetchall())
        except (duckdb.IOException, duckdb.InternalException, duckdb.FatalException):
            with told(path):
                raise
        except duckdb.Error as error:
            raise UserError(f"query: {one_line(error)}; the tables are listed by SHOW TABLES") from error


def copy_to(path: Path, target: Path, lock: Callable[[], AbstractContextManager[None]]) -> Path:
    """Copy the ledger at `path` to `target`; the lock is held only while its bytes are copied."""
    if target.suffix not in {".duckdb", *_FORMATS}:
        raise UserError(f"export {target}: unknown suffix {target.suffix!r}; use .duckdb, .parquet, .csv or .json")
    if target.exists() and target.samefile(path):
        raise UserError(f"export {target}: that is the ledger itself; name another file")
    if not target.parent.is_dir():
        raise UserError(f"export {target}: no folder {target.parent}; make it first")
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".export-") as folder:
        copy = Path(folder) / "copy.duckdb"
        with lock():
            for suffix in ("", ".wal"):
                source = path.with_name(path.name + suffix)
                if source.exists():
                    shutil.copyfile(source, copy.with_name(copy.name + suffix))
        out = copy if target.suffix == ".duckdb" else Path(folder) / f"events{target.suffix}"
        with told(path), closing(duckdb.connect(":memory:", config={"threads": 1})) as db:
            attach(db, copy, write=True)
            if out != copy:
                quoted = str(out).replace("'", "''")
                db.execute(f"COPY (SELECT * FROM events ORDER BY seq) TO '{quoted}' ({_FORMATS[target.suffix]})")
            db.execute("USE memory")
            db.execute("DETACH ledger")
        out.replace(target)
    return target
