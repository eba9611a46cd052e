"""Several processes on one ledger file: nothing is lost, nobody starves, a kill takes no acknowledged row with it."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import duckdb
import pytest

from attuner.core.base import Record
from attuner.core.errors import Refused, Transient
from attuner.ledgers.duckdb_file import DuckdbLedger
from attuner.ledgers.locks import FileLock

ROOT = Path(__file__).parents[2]

HELPER = """
import os, sys
sys.path[:0] = [sys.argv[1]]
from pathlib import Path
from attuner.core.search import Stop
from attuner.ledgers.duckdb_file import DuckdbLedger
_, _, what, path, name, count = sys.argv
ledger = DuckdbLedger(path)
def say(*words):
    print(*words, flush=True)
def claim():
    ledger.claim(name)
    say("ready")
def write():
    ledger.claim(name)
    for i in range(int(count)):
        say(ledger.append(name, "score", str(i), Stop(reason="x" * 300)))
def batches():
    ledger.claim(name)
    while True:
        with ledger.batch():
            for i in range(10):
                say(ledger.append(name, "score", str(i), Stop(reason="x" * 300)))
def read():
    seen = 0
    while seen < int(count):
        events = ledger.history(name)
        assert len(events) >= seen and [e.n for e in events] == list(range(1, len(events) + 1))
        seen = len(events)
def hold():
    import duckdb
    with duckdb.connect(path):
        say("ready")
        sys.stdin.read()
{"claim": claim, "write": write, "batches": batches, "read": read, "hold": hold}[what]()
if what == "claim":
    sys.stdin.read()
"""


class Remark(Record):
    text: str = ""


def start(what: str, path: Path, name: str = "a", count: int = 0) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", HELPER, str(ROOT), what, str(path), name, str(count)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_three_writers_and_a_reader_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "ledger.duckdb"
    names = ["a", "b", "c"]
    writers = [start("write", path, name, 20) for name in names]
    reader = start("read", path, "a", 21)
    acked = [int(seq) for writer in writers for seq in writer.communicate(timeout=60)[0].split()]
    reader.communicate(timeout=60)
    assert [p.returncode for p in (*writers, reader)] == [0, 0, 0, 0]
    with DuckdbLedger(path) as ledger:
        assert ledger.verify() == []
        assert [len(ledger.history(name)) for name in names] == [21, 21, 21]
        found = {e.seq for name in names for e in ledger.history(name)}
    assert len(acked) == len(set(acked)) == 60
    assert set(acked) <= found == set(range(1, 64))


def test_kill_9_takes_no_acknowledged_row(tmp_path: Path) -> None:
    path = tmp_path / "ledger.duckdb"
    acked: set[int] = set()
    for what, after in (("write", 7), ("batches", 25), ("batches", 4)):
        writer = start(what, path, "a", 1000)
        acked |= {int(line(writer)) for _ in range(after)}
        writer.kill()
        acked |= {int(seq) for seq in writer.communicate(timeout=60)[0].split()}
    with DuckdbLedger(path) as ledger:
        assert ledger.verify() == []
        assert ledger.claim("a") == 4
        assert acked <= {e.seq for e in ledger.history("a")}
        assert ledger.verify() == []


def test_a_live_process_keeps_its_lease_and_a_dead_one_does_not(tmp_path: Path) -> None:
    path = tmp_path / "ledger.duckdb"
    holder = start("claim", path)
    assert line(holder) == "ready"
    with DuckdbLedger(path) as ledger:
        with pytest.raises(Refused, match=f"process {holder.pid} on "):
            ledger.claim("a")
        holder.kill()
        holder.communicate(timeout=60)
        assert ledger.claim("a") == 2


def claimed_soon(ledger: DuckdbLedger) -> int:
    """Claim `a`: a child that was started a moment ago may hold a copy of the lease until the kernel is done with its exec."""
    for _ in range(100):
        try:
            return ledger.claim("a")
        except Refused:
            time.sleep(0.05)
    return ledger.claim("a")


def test_a_child_does_not_keep_the_lease(tmp_path: Path) -> None:
    path = tmp_path / "ledger.duckdb"
    with DuckdbLedger(path) as ledger:
        ledger.claim("a")
        child = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE, close_fds=False)
        ledger.release("a")
        with DuckdbLedger(path) as other:
            assert claimed_soon(other) == 2
        child.communicate(timeout=60)


def test_a_fork_does_not_write_with_its_parents_lease(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with DuckdbLedger(tmp_path / "ledger.duckdb") as ledger:
        ledger.claim("a")
        real = os.getpid()
        monkeypatch.setattr(os, "getpid", lambda: real + 1)
        with pytest.raises(Refused, match="its fork"):
            ledger.append("a", "score", "k", Remark())
        monkeypatch.undo()
        ledger.append("a", "score", "k", Remark())


def test_another_program_on_the_file_is_waited_for_then_transient(tmp_path: Path) -> None:
    path = tmp_path / "ledger.duckdb"
    with DuckdbLedger(path, lock_timeout_s=0.2) as ledger:
        ledger.claim("a")
        holder = start("hold", path)
        assert line(holder) == "ready"
        for act in (lambda: ledger.append("a", "score", "k", Remark()), lambda: ledger.history("a"), ledger.verify):
            with pytest.raises(Transient, match=r"(?s)\A[^\n]*another program holds it[^\n]*\Z"):
                act()
        with DuckdbLedger(path, lock_timeout_s=60) as patient:
            waiting = threading.Thread(target=lambda: patient.append("a", "note", "k", Remark()))
            waiting.start()
            holder.communicate(timeout=60)
            waiting.join(60)
        assert len(ledger.history("a")) == 2


def test_another_connection_of_this_process_is_transient_too(tmp_path: Path) -> None:
    path = tmp_path / "ledger.duckdb"
    with DuckdbLedger(path, lock_timeout_s=0.1) as ledger:
        ledger.claim("a")
        with duckdb.connect(str(path)), pytest.raises(Transient, match="another program"):
            ledger.append("a", "score", "k", Remark())
        assert ledger.append("a", "score", "k", Remark()) == 2


def test_a_lock_held_too_long_is_transient(tmp_path: Path) -> None:
    path = tmp_path / "ledger.duckdb"
    with DuckdbLedger(path) as ledger, DuckdbLedger(path, lock_timeout_s=0.1) as other:
        ledger.claim("a")
        with ledger.batch(), pytest.raises(Transient, match="kept this lock"):
            other.history("a")
        assert len(other.history("a")) == 1


def test_readers_in_a_row_do_not_starve_a_writer(tmp_path: Path) -> None:
    """Two readers whose holds always overlap would keep a plain flock shared for ever."""
    lock = FileLock(tmp_path / "lock", timeout_s=20)
    done = threading.Event()
    overlap = threading.Barrier(2)

    def read() -> None:
        while not done.is_set():
            with lock.hold(write=False):
                try:
                    overlap.wait(0.05)  # let go only when the other one is in, or has been kept out
                except threading.BrokenBarrierError:
                    overlap.reset()

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    for _ in range(5):
        with lock.hold(write=True):
            pass
    done.set()
    for reader in readers:
        reader.join(20)
    assert not any(reader.is_alive() for reader in readers)


def test_threads_share_one_ledger(tmp_path: Path) -> None:
    with DuckdbLedger(tmp_path / "ledger.duckdb") as ledger:
        ledger.claim("a")

        def write() -> None:
            for i in range(10):
                with ledger.batch():
                    ledger.append("a", "score", str(i), Remark())
                    ledger.append("a", "score", str(i), Remark())
                ledger.history("a")

        threads = [threading.Thread(target=write) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        keys = [e.key for e in ledger.history("a")[1:]]
        assert len(keys) == 60
        assert keys[::2] == keys[1::2], "a batch is not interrupted by another thread"
        assert ledger.verify() == []
