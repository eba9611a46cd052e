"""One DuckDB instance in memory that attaches a ledger file for the length of one call. Making an instance costs 15 ms,
attaching a file to one that exists 0.5 ms (measured), so an append takes 7 ms instead of 20 and others still get
their turn. Every DuckDB error becomes one line of ours here.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

import duckdb

from attuner.core.errors import Broken, Transient

Connection = duckdb.DuckDBPyConnection
INTERRUPTED = "Query interrupted"
"""DuckDB asks for signals between its tasks, and puts this RuntimeError over whatever the handler raised (2.0.1)."""
ROW_GROUP = 8192
"""Rows that DuckDB keeps together, a multiple of 2,048. The last group is written again at each append: with the usual 122,880 an
append to a ledger of 100,000 rows cost 65 ms of CPU and 4 MiB of writing, with this 5 to 25 ms and 1 to 2.5 MiB (measured)."""


class Session:
    """Attaches and detaches one ledger file. The caller holds the lock; one thread at a time."""

    def __init__(self, path: Path, *, timeout_s: float) -> None:
        """Work on the file `path`; wait at most `timeout_s` for a program that holds it without our lock."""
        self._path = path
        self._timeout_s = timeout_s
        self._db: Connection | None = None
        self._pid = 0

    @contextlib.contextmanager
    def attached(self, *, write: bool) -> Iterator[Connection]:
        """Yield the instance with the file attached and in use.

        Raises:
            Transient: another program holds the file, or the disk is full.
            Broken: DuckDB says that the file is damaged.
        """
        with told(self._path):
            db = self._attach(write=write)
            try:
                yield db
            finally:
                self._detach(db)

    def close(self) -> None:
        """Free the instance; the next call makes a new one."""
        if self._db is not None and self._pid == os.getpid():
            self._db.close()
        self._db = None

    def _attach(self, *, write: bool) -> Connection:
        deadline = time.monotonic() + self._timeout_s
        pause = 0.01
        while True:
            db = self._instance()
            try:
                attach(db, self._path, write=write)
                return db
            except duckdb.Error as error:
                if not _held_elsewhere(str(error)) or time.monotonic() > deadline:
                    raise
            except BaseException:  # a signal: perhaps it is attached
                self.close()
                raise
            time.sleep(pause)
            pause = min(pause * 1.5, 0.5)

    def _instance(self) -> Connection:
        # A DuckDB instance does not survive a fork (the child hangs), so a child makes its own.
        if self._db is None or self._pid != os.getpid():
            self._db = duckdb.connect(":memory:", config={"threads": 1})
            self._pid = os.getpid()
        return self._db

    def _detach(self, db: Connection) -> None:
        try:
            db.execute("USE memory")
            db.execute("DETACH ledger")
        except duckdb.Error:
            # What was committed is on disk already; a fresh instance reads it from the write-ahead file.
            self.close()
        except BaseException:  # a signal: it is still attached
            self.close()
            raise


def attach(db: Connection, path: Path, *, write: bool) -> None:
    """Attach the file as `ledger` and make it the default catalog."""
    quoted = str(path).replace("'", "''")
    db.execute(f"ATTACH '{quoted}' AS ledger ({f'ROW_GROUP_SIZE {ROW_GROUP}' if write else 'READ_ONLY'})")
    db.execute("USE ledger")


@contextlib.contextmanager
def told(path: Path) -> Iterator[None]:
    """Turn DuckDB's errors about this file into one-line Transient or Broken."""
    try:
        yield
    except duckdb.Error as error:
        text = one_line(error)
        if _held_elsewhere(text):
            raise Transient(f"{path}: another program holds it ({text}); close it, then call again") from error
        if "No space left" in text:
            raise Transient(f"{path}: the disk is full; make room, then call again") from error
        raise Broken(f"{path}: damaged ({text}); run `attuner ledger verify`, then put back a copy") from error
    except RuntimeError as error:
        if str(error) != INTERRUPTED:
            raise
        raise KeyboardInterrupt(f"{path}: stopped while it was in use") from error


def _held_elsewhere(text: str) -> bool:
    """Tell whether another program, or another DuckDB connection of this one, has the file open."""
    return "Could not set lock" in text or "Unique file handle conflict" in text


def one_line(error: Exception) -> str:
    """Return the first line of an error, at most 200 characters."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
