"""`verify` finds every kind of damage, and no step writes over a gap or acts on a shortened past."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest

from attuner.core.base import Record
from attuner.core.errors import Broken
from attuner.ledgers.chain import row_hash
from attuner.ledgers.duckdb_file import DuckdbLedger

ROOT = Path(__file__).parents[2]
NUM_ROWS = 8  # a lease, then seven scores


class Remark(Record):
    text: str = ""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.duckdb"


@pytest.fixture
def ledger(path: Path) -> Iterator[DuckdbLedger]:
    with DuckdbLedger(path) as made:
        made.claim("a")
        with made.batch():
            for i in range(2, NUM_ROWS + 1):
                made.append("a", "score", f"l{i}", Remark(text=f"row {i} " + "x" * 100))
        yield made


def tamper(path: Path, *statements: str) -> None:
    """Do what a person with a SQL prompt could: drop the triggers, change rows, put the triggers back."""
    with duckdb.connect(str(path)) as db:
        kept = db.execute("SELECT trigger_name, sql FROM duckdb_triggers()").fetchall()
        for name, _ in kept:
            db.execute(f"DROP TRIGGER {name} ON events")
        for statement in statements:
            db.execute(statement)
        for _, sql in kept:
            db.execute(sql)


def lines(ledger: DuckdbLedger) -> list[str]:
    return [p.line() for p in ledger.verify()]


@pytest.mark.parametrize("sql", ["UPDATE events SET n = 1", "DELETE FROM events", "TRUNCATE events"])
def test_rows_cannot_be_changed_through_sql(ledger: DuckdbLedger, path: Path, sql: str) -> None:
    with duckdb.connect(str(path)) as db, pytest.raises(duckdb.Error, match="append-only"):
        db.execute(sql)
    assert ledger.verify() == []


def test_dropped_triggers_are_missed(ledger: DuckdbLedger, path: Path) -> None:
    with duckdb.connect(str(path)) as db:
        db.execute("DROP TRIGGER events_no_update ON events")
    assert lines(ledger) == ["missing trigger: events_no_update, rows could be edited"]


@pytest.mark.parametrize(
    "change",
    [
        """record = '{"text":"better"}'""",
        "record = replace(record, ':', ': ')",
        """record = '{"text":"other","text":"row 4"}'""",
        "record = 'no json'",
        "kind = 'note'",
        "key = 'l9'",
        '"at" = "at" + 1',
        "fence = 1 - fence",
    ],
)
def test_an_edited_row_is_found(ledger: DuckdbLedger, path: Path, change: str) -> None:
    if "no json" in change:
        change = "record = '[]'"
    tamper(path, f"UPDATE events SET {change} WHERE n = 4")
    assert [(p.n, p.what.split(":")[0]) for p in ledger.verify()] == [(4, "edited")]
    assert ledger.verify("a") == ledger.verify()


def test_an_edit_with_a_new_hash_breaks_the_next_link(ledger: DuckdbLedger, path: Path) -> None:
    row = ledger.history("a")[3]
    fields = {"campaign_id": "a", "n": 4, "kind": row.kind, "key": row.key, "at": row.at, "fence": row.fence}
    digest = row_hash(row.prev, **fields, record={"text": "better"})  # type: ignore[arg-type]
    tamper(path, f"""UPDATE events SET record = '{{"text":"better"}}', hash = '{digest}' WHERE n = 4""")
    assert lines(ledger) == ["a row 5: reordered or replaced: it does not follow the row before it"]


def test_a_rewritten_last_row_differs_from_the_anchor(ledger: DuckdbLedger, path: Path) -> None:
    row = ledger.history("a")[-1]
    fields = {"campaign_id": "a", "n": NUM_ROWS, "kind": row.kind, "key": row.key, "at": row.at, "fence": row.fence}
    digest = row_hash(row.prev, **fields, record={"text": "better"})  # type: ignore[arg-type]
    tamper(path, f"""UPDATE events SET record = '{{"text":"better"}}', hash = '{digest}' WHERE n = {NUM_ROWS}""")
    assert [(p.n, p.what.split(":")[0]) for p in ledger.verify()] == [(NUM_ROWS, "rewritten")]
    with pytest.raises(Broken, match="not the row that was acknowledged"):
        ledger.append("a", "score", "k", Remark())


def test_a_missing_row_is_found(ledger: DuckdbLedger, path: Path) -> None:
    tamper(path, "DELETE FROM events WHERE n = 3")
    assert lines(ledger) == ["a row 3: missing row: 3 before row 4"]
    tamper(path, "DELETE FROM events WHERE n IN (4, 5)")
    assert lines(ledger) == ["a row 3: missing row: 3 to 5 before row 6"]


def test_a_campaign_that_is_wholly_gone_is_found_without_its_mark(ledger: DuckdbLedger, path: Path) -> None:
    ledger.claim("b")
    ledger.append("a", "score", "last", Remark())
    tamper(path, "DELETE FROM events WHERE campaign_id = 'b'")
    assert any("lost tail" in line for line in lines(ledger))
    anchor = path.with_name("ledger.duckdb.anchor")
    data = json.loads(anchor.read_text())
    del data["campaigns"]["b"]
    anchor.write_text(json.dumps(data))
    assert lines(ledger) == [f"missing row: seq {NUM_ROWS + 1} of {NUM_ROWS + 2}"]


def test_reordered_rows_are_found(ledger: DuckdbLedger, path: Path) -> None:
    tamper(path, "UPDATE events SET n = CASE n WHEN 3 THEN 4 ELSE 3 END WHERE n IN (3, 4)")
    assert {p.what.split(":")[0] for p in ledger.verify()} == {"reordered or replaced", "edited", "reordered"}


def test_a_row_added_past_the_fence_is_found(ledger: DuckdbLedger, path: Path) -> None:
    path.with_name("ledger.duckdb.lease.a").unlink()
    with DuckdbLedger(path) as other:
        other.claim("a")
    row = ledger.history("a")[-1]
    fields = {"campaign_id": "a", "n": row.n + 1, "kind": "score", "key": "k", "at": 1.0, "fence": 1}
    digest = row_hash(row.hash, **fields, record={})  # type: ignore[arg-type]
    values = f"({row.seq + 1}, 'a', {row.n + 1}, 'score', 'k', 1.0, 1, '{{}}', '{row.hash}', '{digest}')"
    tamper(path, f"INSERT INTO events VALUES {values}")
    assert lines(ledger) == [f"a row {row.n + 1}: written past the fence: lease 1 after lease 2"]


def test_a_lost_tail_is_found_and_never_written_over(ledger: DuckdbLedger, path: Path) -> None:
    tamper(path, f"DELETE FROM events WHERE n = {NUM_ROWS}")
    assert lines(ledger) == [f"a row {NUM_ROWS}: lost tail: rows {NUM_ROWS} to {NUM_ROWS} were acknowledged and are gone"]
    for act in (
        lambda: ledger.append("a", "score", "k", Remark()),
        lambda: ledger.history("a"),
        lambda: ledger.claim("b"),
    ):
        with pytest.raises(Broken, match="was acknowledged"):
            act()


def test_a_file_rolled_back_to_an_older_copy_is_found(ledger: DuckdbLedger, path: Path, tmp_path: Path) -> None:
    shutil.copy(path, tmp_path / "older")
    ledger.append("a", "score", "k", Remark())
    shutil.copy(tmp_path / "older", path)
    assert [p.what.split(":")[0] for p in ledger.verify()] == ["lost tail"]
    with pytest.raises(Broken):
        ledger.append("a", "score", "k", Remark())


def test_a_chain_ahead_of_its_anchor_is_healthy(ledger: DuckdbLedger, path: Path, tmp_path: Path) -> None:
    """A writer killed between commit and anchor leaves a row that nobody was told of."""
    anchor = path.with_name("ledger.duckdb.anchor")
    shutil.copy(anchor, tmp_path / "older")
    ledger.append("a", "score", "k", Remark())
    shutil.copy(tmp_path / "older", anchor)
    assert ledger.verify() == []
    ledger.append("a", "score", "k", Remark())
    assert ledger.verify() == []
    assert len(ledger.history("a")) == NUM_ROWS + 2


def test_a_deleted_anchor_is_found(ledger: DuckdbLedger, path: Path) -> None:
    path.with_name("ledger.duckdb.anchor").unlink()
    assert [p.what.split(":")[0] for p in ledger.verify()] == ["missing anchor"]
    assert len(ledger.history("a")) == NUM_ROWS
    with pytest.raises(Broken, match="anchor is gone"):
        ledger.append("a", "score", "k", Remark())


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"seq": 1, "campaigns": {"a": 3}}', "\x00\xff"])
def test_an_unreadable_anchor_is_found(ledger: DuckdbLedger, path: Path, text: str) -> None:
    path.with_name("ledger.duckdb.anchor").write_text(text)
    assert ["anchor can't be read" in line for line in lines(ledger)] == [True]
    with pytest.raises(Broken, match="anchor"):
        ledger.append("a", "score", "k", Remark())


def test_a_deleted_ledger_is_not_a_new_one(ledger: DuckdbLedger, path: Path) -> None:
    path.unlink()
    assert [p.what.split(":")[0] for p in ledger.verify()] == ["lost tail"]
    for act in (lambda: ledger.history("a"), ledger.campaigns, lambda: ledger.claim("b")):
        with pytest.raises(Broken, match="gone or empty"):
            act()


@pytest.mark.parametrize("keep", [0, 100, 5000, 0.5, 0.9])
def test_a_truncated_file_is_found(ledger: DuckdbLedger, path: Path, keep: float) -> None:
    past = ledger.history("a")
    os.truncate(path, int(keep * path.stat().st_size) if isinstance(keep, float) else keep)
    if not ledger.verify():
        assert keep == 0.9, "the end of the file may be unused"
        assert ledger.history("a") == past
        return
    with pytest.raises(Broken):
        ledger.append("a", "score", "k", Remark())


def test_a_flipped_byte_in_the_file_never_changes_the_past(ledger: DuckdbLedger, path: Path) -> None:
    """Some bytes are unused; every other one must be found."""
    whole, past = path.read_bytes(), ledger.history("a")
    found = 0
    for at in range(5, len(whole), len(whole) // 24):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1 :])
        problems = ledger.verify()
        found += bool(problems)
        if not problems:
            assert ledger.history("a") == past
    assert found >= 5
    path.write_bytes(whole)
    assert ledger.verify() == []


WRITER = """
import os, signal, sys
sys.path[:0] = sys.argv[2].split(os.pathsep)
from attuner.core.judgement import Shipment
from attuner.ledgers.duckdb_file import DuckdbLedger
ledger = DuckdbLedger(sys.argv[1])
ledger.claim("a")
record = Shipment(launch_id="l", recipe="r", gain=0.1, kept_baseline=False, reason="x", folder="f")
with ledger.batch():
    for i in range(8):
        ledger.append("a", "score", str(i), record)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ledger whose writer was killed: its last eight rows are in the write-ahead file only."""
    path = tmp_path_factory.mktemp("killed") / "ledger.duckdb"
    done = subprocess.run([sys.executable, "-c", WRITER, str(path), str(ROOT)], check=False)
    assert done.returncode == -9
    assert path.with_name("ledger.duckdb.wal").stat().st_size > 500
    return path.parent


@pytest.fixture
def wal(killed: Path, tmp_path: Path) -> Path:
    shutil.copytree(killed, tmp_path, dirs_exist_ok=True)
    return tmp_path / "ledger.duckdb.wal"


def test_a_killed_writer_loses_nothing(wal: Path) -> None:
    with DuckdbLedger(wal.with_name("ledger.duckdb")) as ledger:
        assert ledger.verify() == []
        assert len(ledger.history("a")) == 9
        assert wal.exists(), "reading must not fold it in"
        assert ledger.claim("a") == 2
        assert ledger.verify() == []
        assert not wal.exists()


@pytest.mark.parametrize("keep", [0, 0.2, 0.5, 0.99])
def test_a_truncated_write_ahead_file_is_found(wal: Path, keep: float) -> None:
    os.truncate(wal, int(keep * wal.stat().st_size))
    check_wal_damage(wal)


@pytest.mark.parametrize("where", [0.1, 0.3, 0.5, 0.7, 0.9, 0.999])
def test_a_flipped_byte_in_the_write_ahead_file_is_found(wal: Path, where: float) -> None:
    whole = wal.read_bytes()
    at = int(where * len(whole))
    wal.write_bytes(whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1 :])
    check_wal_damage(wal)


def check_wal_damage(wal: Path) -> None:
    damaged = wal.read_bytes()
    with DuckdbLedger(wal.with_name("ledger.duckdb")) as ledger:
        found = lines(ledger)
        assert any("write-ahead" in line or "damaged" in line for line in found), found
        for act in (lambda: ledger.history("a"), lambda: ledger.claim("a")):
            with pytest.raises(Broken):
                act()
        assert lines(ledger) == found
    assert wal.read_bytes() == damaged, "the evidence is kept"
