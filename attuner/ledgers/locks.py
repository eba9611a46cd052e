"""File locks of the ledger: one that lets many read or one write, and one that a process keeps as a campaign's lease.

DuckDB's own lock is not enough: it lost acknowledged rows when several processes each did open, insert, close
(4 of 2,052, measured; 0 of 2,656 with a lock around it). `flock` dies with its process, so a kill leaves nothing to
clean up. It has no queue, so readers in a row could starve a writer: whoever wants in passes a turnstile first (a
second file), and the one that waits for the lock keeps the turnstile shut.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

from attuner.core.errors import Refused, Transient
from attuner.ledgers.chain import Lease

_POLL_S = 0.001  # flock can't wait with a deadline; polling costs about 1% of a core while waiting


class FileLock:
    """Shared for reading, exclusive for writing, across processes and ledger objects; waits at most `timeout_s`."""

    def __init__(self, path: Path, *, timeout_s: float) -> None:
        """Guard with the files `path` and `path`.turn, made when first used."""
        self._path = path
        self._timeout_s = timeout_s

    @contextlib.contextmanager
    def hold(self, *, write: bool) -> Iterator[None]:
        """Hold the lock. Raises Transient if it can't be had in time."""
        deadline = time.monotonic() + self._timeout_s
        with _opened(self._path, write=write) as lock, _opened(Path(f"{self._path}.turn"), write=write) as turn:
            if turn is not None:
                self._wait(turn, fcntl.LOCK_EX, deadline)
            if lock is not None:
                self._wait(lock, fcntl.LOCK_EX if write else fcntl.LOCK_SH, deadline)
            if turn is not None:
                fcntl.flock(turn, fcntl.LOCK_UN)
            yield

    def _wait(self, fd: int, how: int, deadline: float) -> None:
        while True:
            try:
                fcntl.flock(fd, how | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if time.monotonic() > deadline:
                    waited = f"{self._timeout_s:g} s"
                    raise Transient(
                        f"{self._path}: another process kept this lock for {waited}; `fuser` tells who; try again"
                    ) from None
            time.sleep(_POLL_S)


@contextlib.contextmanager
def _opened(path: Path, *, write: bool) -> Iterator[int | None]:
    """Open a lock file; None where a reader may not make one: who can't write there needs no lock against itself."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError:
        if write:
            raise
        try:
            fd = os.open(path, os.O_RDONLY)
        except OSError:
            fd = -1
    if fd < 0:
        yield None
        return
    try:
        yield fd
    finally:
        os.close(fd)


class LeaseFile:
    """The lease of one campaign on this machine, held until `free` or the end of the process."""

    def __init__(self, path: Path, what: str) -> None:
        """Take the lease. Raises Refused, naming the holder, if a live process has it."""
        # os.open makes it non-inheritable: a trainer that this process starts must not keep the lease alive.
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        self._pid = os.getpid()
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = _holder(path)
            os.close(self._fd)
            raise Refused(f"{what}: {holder} runs this campaign; wait for it, or end it first (lease {path})") from None

    def write(self, lease: Lease) -> None:
        """Say in the file who holds it; only for the message that a second process gets."""
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, json.dumps(lease.data()).encode(), 0)

    def free(self) -> None:
        """Give the lease back. The file stays: deleting it would let two processes lock two files of one name."""
        if os.getpid() == self._pid:  # not in a forked child: the lock is its parent's
            # closing alone would leave the lock to a child that is just being spawned and holds a copy until its exec
            fcntl.flock(self._fd, fcntl.LOCK_UN)
        os.close(self._fd)


def _holder(path: Path) -> str:
    try:
        lease = Lease.model_validate_json(path.read_bytes())
    except (OSError, ValueError):
        return "another process"
    return f"process {lease.pid} on {lease.host}"
