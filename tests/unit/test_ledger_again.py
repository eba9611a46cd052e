"""A campaign whose lease is held is read on from where it was read last, and what is read so is what a full read gives."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from attuner.core.base import Record
from attuner.core.errors import Broken
from attuner.core.events import Event
from attuner.ledgers.duckdb_file import DuckdbLedger


class Remark(Record):
    text: str = ""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.duckdb"


def afresh(path: Path, name: str = "a") -> list[Event]:
    """What a process that has read nothing yet reads."""
    with DuckdbLedger(path) as other:
        return other.history(name)


def test_every_read_is_what_a_fresh_process_reads(path: Path) -> None:
    with DuckdbLedger(path) as mine, DuckdbLedger(path) as person:
        for name in ("a", "b"):
            mine.claim(name)
        for i in range(4):
            mine.append("a", "score", f"l{i}", Remark(text=str(i)))
            assert mine.history("a") == afresh(path)
            mine.append("b", "score", f"l{i}", Remark())
            person.append("a", "note", str(i), Remark(text="a person's, without a lease"))
            assert mine.history("a") == afresh(path)
            assert mine.history("a") == mine.history("a")
            assert mine.history("b") == afresh(path, "b")


def test_events_are_read_once_and_no_reader_can_change_the_list_of_another(path: Path) -> None:
    with DuckdbLedger(path) as ledger:
        ledger.claim("a")
        ledger.append("a", "score", "l1", Remark())
        first = ledger.history("a")
        ledger.append("a", "score", "l2", Remark())
        second = ledger.history("a")
        assert all(x is y for x, y in zip(first, second, strict=False))
        first.clear()
        assert len(ledger.history("a")) == 3


def test_what_is_not_held_is_not_kept(path: Path) -> None:
    with DuckdbLedger(path) as ledger:
        ledger.claim("a")
        kept = ledger.history("a")
        assert ledger.history("a")[0] is kept[0]
        ledger.release("a")
        read = ledger.history("a")
        assert read == kept
        assert ledger.history("a")[0] is not read[0]


@pytest.mark.parametrize("more", [0, 1, 5])
def test_a_file_that_was_replaced_is_read_as_a_whole(path: Path, tmp_path: Path, more: int) -> None:
    """Another file of the same campaign, as long, longer or much longer: nothing of the first one may stay."""
    other = tmp_path / "other" / "ledger.duckdb"
    with DuckdbLedger(other) as ledger:
        ledger.claim("a")
        for i in range(2 + more):
            ledger.append("a", "score", f"other{i}", Remark())
    with DuckdbLedger(path) as mine:
        mine.claim("a")
        for i in range(2):
            mine.append("a", "score", f"mine{i}", Remark())
        assert len(mine.history("a")) == 3
        for suffix in ("", ".anchor"):
            shutil.copy(f"{other}{suffix}", f"{path}{suffix}")
        assert mine.history("a") == afresh(path) == afresh(other)


def test_a_file_that_was_rolled_back_is_still_refused(path: Path, tmp_path: Path) -> None:
    with DuckdbLedger(path) as ledger:
        ledger.claim("a")
        ledger.append("a", "score", "l1", Remark())
        shutil.copy(path, tmp_path / "older")
        ledger.append("a", "score", "l2", Remark())
        assert len(ledger.history("a")) == 3
        shutil.copy(tmp_path / "older", path)
        with pytest.raises(Broken, match="was acknowledged"):
            ledger.history("a")


def test_a_last_row_that_was_rewritten_is_still_refused(path: Path) -> None:
    with DuckdbLedger(path) as ledger:
        ledger.claim("a")
        ledger.append("a", "score", "l1", Remark())
        ledger.history("a")
        anchor = path.with_name("ledger.duckdb.anchor")
        data = json.loads(anchor.read_text())
        data["campaigns"]["a"][1] = "0" * 64
        anchor.write_text(json.dumps(data))
        with pytest.raises(Broken, match="not the row that was acknowledged"):
            ledger.history("a")
