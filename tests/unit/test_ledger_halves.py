"""Two processes verify a long ledger and tell its campaigns, and say what one alone says, also when the second fails."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import duckdb
import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_report_campaign import campaign_events

from attuner.cli.reading import Unreadable, board_rows
from attuner.core.base import Record, canonical_json
from attuner.ledgers import chain, halves
from attuner.ledgers import duckdb_read as sql
from attuner.ledgers.anchor import write_anchor
from attuner.ledgers.chain import Marks, Row, Tail
from attuner.ledgers.duckdb_file import DuckdbLedger
from attuner.report import board

NUM_ROWS = sql.LOT_ROWS // 2 * 3 + 500
"""Four lots, two for each process."""
LOT = sql.LOT_ROWS // 2

two = pytest.mark.skipif(not halves.may_fork(), reason="one core, or another thread runs: one process does it all")


class Remark(Record):
    text: str = ""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A ledger of more rows than a lot has."""
    path = tmp_path / "l.duckdb"
    with DuckdbLedger(path) as ledger:
        ledger.claim("a")
        last = ledger.history("a")[-1]
        rows, tail = [], Tail(last.seq, last.n, last.hash, 1, None)
        for i in range(NUM_ROWS - 1):
            rows.append(chain.next_row(tail, "a", "score", key=f"l{i}", at=1e9 + i, fence=1, record={"x": [i, 1e-7]}))
            tail = Tail(rows[-1].seq, rows[-1].n, rows[-1].hash, 1, None)
    with duckdb.connect(str(path)) as db:
        db.execute(
            f"INSERT INTO events SELECT {', '.join(['unnest(?)'] * len(Row._fields))}", [list(c) for c in zip(*rows, strict=True)]
        )
    write_anchor(path.with_name("l.duckdb.anchor"), Marks(rows[-1].seq, {"a": chain.Mark(rows[-1].n, rows[-1].hash)}))
    return path


def edit(path: Path, *rows: int) -> None:
    with duckdb.connect(str(path)) as db:
        db.execute("DROP TRIGGER events_no_update ON events")
        db.execute(f"UPDATE events SET key = 'other' WHERE n IN ({', '.join(map(str, rows))})")


def test_every_lot_is_verified_and_an_edit_is_found_in_each(path: Path) -> None:
    with DuckdbLedger(path) as ledger:
        assert ledger.verify() == []
        at = [1, LOT, LOT + 1, 2 * LOT, 2 * LOT + 1, 3 * LOT + 1, NUM_ROWS]
        edit(path, *at)
        found = ledger.verify()
        assert [p.n for p in found if p.what.startswith("edited")] == at
        assert len(found) == len(at) + 1, "and the trigger that is gone"


def test_a_ledger_is_verified_beside_another_thread_by_one_process(path: Path) -> None:
    end = threading.Event()
    thread = threading.Thread(target=end.wait)
    thread.start()
    try:
        assert not halves.may_fork()
        with DuckdbLedger(path) as ledger:
            assert ledger.verify() == []
    finally:
        end.set()
        thread.join()


def fails() -> bytes:
    raise OSError("no memory left")


def dies() -> bytes:
    os.kill(os.getpid(), 9)
    return b""


@two
@pytest.mark.parametrize("there", [fails, dies])
def test_a_second_process_that_fails_answers_nothing(there: Callable[[], bytes], capfd: pytest.CaptureFixture[str]) -> None:
    assert halves.both(os.getpid, there) == (os.getpid(), None)
    assert capfd.readouterr() == ("", "")


@two
def test_a_long_answer_arrives_whole_from_another_process() -> None:
    text = b"x" * 2**21
    assert halves.both(lambda: 1, lambda: text) == (1, text)
    mine, told = halves.both(os.getpid, lambda: str(os.getpid()).encode())
    assert told is not None
    assert int(told) != mine == os.getpid()


@two
def test_what_goes_wrong_here_ends_the_second_process() -> None:
    wait, go = os.pipe()

    def waits() -> bytes:
        os.close(go)
        return os.read(wait, 1)

    before = psutil.Process().children()
    with pytest.raises(KeyError):
        halves.both(lambda: {}["gone"], waits)
    assert psutil.Process().children() == before
    assert halves.both(os.getpid, waits, patience_s=0.2) == (os.getpid(), None), "nobody waits for one that hangs"
    assert psutil.Process().children() == before
    for fd in (wait, go):
        os.close(fd)


@given(st.text(), st.text(), st.floats(allow_nan=False, allow_infinity=False), st.integers(0, 2**31), st.integers(0, 2**63))
def test_a_rows_text_is_what_its_hash_was_made_of(key: str, kind: str, at: float, fence: int, n: int) -> None:
    row = Row(1, 'a"é\x1f', n, kind, key, at, fence, '{"x":1}', "", "")
    body = {name: getattr(row, name) for name in ("campaign_id", "n", "kind", "key", "at", "fence")}
    assert chain.row_text(row) == canonical_json({**body, "record": {"x": 1}})


def test_a_row_of_no_time_is_not_intact() -> None:
    row = chain.next_row(Tail(0, 0, chain.FIRST_PREV, 1, None), "a", "score", key="k", at=1.0, fence=1, record={})
    assert chain.checked(row).intact
    for at in (float("nan"), float("inf")):
        assert not chain.checked(row._replace(at=at)).intact


class Plain(Record):
    """Data that is a record already."""

    @classmethod
    def of(cls, data: dict[str, object]) -> Plain:
        made = cls()
        made.__dict__["_data"] = data
        return made

    def data(self) -> dict[str, object]:
        return dict(self.__dict__["_data"])


@pytest.fixture
def four(tmp_path: Path) -> Iterator[Path]:
    """Campaigns that shipped, that search, that wait for a person, and one that this version can't read."""
    whole, path = campaign_events(), tmp_path / "l.duckdb"
    cuts = {"shipped": len(whole), "half": len(whole) // 2, "near": len(whole) - 1, "odd": len(whole)}
    with DuckdbLedger(path) as ledger:
        for name, num in cuts.items():
            ledger.claim(name)
            with ledger.batch():
                for e in whole[:num]:
                    ledger.append(name, e.kind, e.key, Plain.of({**e.record, "id": name} if e.kind == "campaign" else e.record))
        ledger.append("odd", "trial", next(e.key for e in whole if e.kind == "trial"), Remark(text="of a later version"))
    return path


def test_the_board_of_two_processes_is_that_of_whole_records(four: Path) -> None:
    one, both = (board_rows(lambda: DuckdbLedger(four), long=long) for long in (sys.maxsize, 0))
    assert sorted(map(repr, one)) == sorted(map(repr, both))
    assert [r.campaign for r in both if isinstance(r, Unreadable)] == ["odd"]
    with DuckdbLedger(four) as ledger:
        want = board.rows(ledger.history(name) for name in ("shipped", "half", "near"))
    assert board.in_order(r for r in both if isinstance(r, dict)) == want
