"""Verbs that report on many campaigns leave out what they never show, and what they show is the same; no step reads so."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from test_board_site import PRICES
from test_report_campaign import campaign_events

from attuner.cli import read, reading
from attuner.cli.main import main
from attuner.core.base import Record
from attuner.core.events import Event, History
from attuner.core.people import Invalidated
from attuner.ledgers import chain
from attuner.ledgers.chain import Marks, Part, Tail
from attuner.ledgers.duckdb_file import DuckdbLedger
from attuner.ledgers.memory import MemoryLedger, Store
from attuner.report import board, spend
from attuner.report.board_rows import entry
from attuner.report.board_site import files_of
from attuner.report.facts import gather

ROOT = Path(__file__).parents[2]


def stored(*campaigns: Sequence[Event]) -> MemoryLedger:
    """A ledger with these events, chained."""
    store = Store()
    for events in campaigns:
        tail = Tail(len(store.rows), 0, chain.FIRST_PREV, 0, None)
        for e in events:
            row = chain.next_row(tail, e.campaign_id, e.kind, key=e.key, at=e.at, fence=1, record=e.record)
            store.rows.append(row)
            store.marks = chain.moved(store.marks, row)
            tail = Tail(row.seq, row.n, row.hash, 1, None)
    return MemoryLedger(store)


def rerun(events: Sequence[Event], step: str, *hides: str) -> list[Event]:
    """The same campaign after a person had a step run again: these records hold no more."""
    said = Invalidated(step=step, key="final", by="ada", why="machine was busy", request="r1", hides=list(hides)).data()
    last = events[-1]
    more = {"n": last.n + 1, "seq": last.seq + 1, "kind": "invalidated", "key": "r1", "at": last.at + 5, "record": said}
    return [*events, last.model_copy(update=more)]


def stages() -> list[list[Event]]:
    """A campaign at many stages: after every fifth event and each of the last, and with its shipment and more set aside."""
    whole = campaign_events()
    again = [rerun(whole, "ship", "shipment final"), rerun(whole, "remeasure", "shipment final", "remeasurement final")]
    born = next(i for i, e in enumerate(whole) if e.kind == "campaign")
    ends = sorted({*range(born, len(whole), 5), *range(len(whole) - 4, len(whole))})
    return [*(whole[: k + 1] for k in ends), *again]


STAGES = stages()


def test_some_stages_have_an_open_review_and_some_have_shipped() -> None:
    rows = [board.row(board.brief(events)) for events in STAGES]
    assert {"calibrating", "searching", "shipped"} <= {r["state"] for r in rows}
    assert any(r["num_reviews"] for r in rows), "else nothing would show that verdicts are read where they count"


def of(without: Part, events: Sequence[Event]) -> list[Event]:
    ledger = stored(events)
    ((_, found),) = ledger.histories(ledger.campaigns(), without=without)
    return found


def test_status_is_the_same_from_what_it_reads() -> None:
    for events in STAGES:
        assert read.one(History(of(reading.STATUS, events))) == read.one(History(of(chain.NOTHING, events)))


def test_the_account_is_the_same_from_what_it_reads() -> None:
    for events in STAGES:
        part, whole = (History(of(without, events)) for without in (reading.SPEND, chain.NOTHING))
        assert spend.whole(part, PRICES) == spend.whole(whole, PRICES)


def test_the_board_is_the_same_from_what_it_reads_and_as_the_page_says() -> None:
    for events in STAGES:
        ledger = stored(events)
        ((_, part),) = reading.board_events(ledger, ledger.campaigns())  # type: ignore[arg-type]
        assert board.row(board.brief(part)) == board.row(board.brief(events)) == board.row(gather(events))


def test_the_site_is_the_same_from_what_it_reads() -> None:
    for events in STAGES[:: max(1, len(STAGES) // 5)] + STAGES[-3:]:
        part, whole = (files_of([entry(of(without, events), PRICES)]) for without in (reading.SITE, chain.NOTHING))
        assert part == whole


class Odd(Record):
    """A record of a shape that no kind has: a later version's."""

    shape: str = "of a later version"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A ledger of two campaigns, one of which has a trial and a score that this version can't read."""
    monkeypatch.setenv("ATTUNER_HOME", str(tmp_path))
    monkeypatch.setenv("ATTUNER_PROJECT", str(ROOT))
    whole = campaign_events()
    with DuckdbLedger(tmp_path / "attuner.duckdb") as ledger:
        for name in ("good-0001", "odd-0001"):
            ledger.claim(name)
            with ledger.batch():
                for e in whole:
                    record = {**e.record, "id": name} if e.kind == "campaign" else e.record
                    ledger.append(name, e.kind, e.key, Plain.of(record))
        launched = next(e.key for e in whole if e.kind == "trial")
        ledger.append("odd-0001", "trial", launched, Odd())
    return tmp_path


class Plain(Record):
    """Data that is a record already."""

    @classmethod
    def of(cls, data: dict[str, Any]) -> Plain:
        made = cls()
        made.__dict__["_data"] = data
        return made

    def data(self) -> dict[str, Any]:
        return dict(self.__dict__["_data"])


@pytest.mark.parametrize("verb", ["status", "board"])
def test_a_campaign_that_cannot_be_read_is_one_line_and_hides_no_other(
    home: Path, verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([verb]) == 0
    lines = [x for x in capsys.readouterr().out.splitlines() if "odd-0001" in x]
    assert len(lines) == 1
    assert "can't be read: Trial launch_id: Field required" in lines[0]
    assert main([verb, "--json"]) == 0
    rows = {r["campaign"]: r for r in json.loads(capsys.readouterr().out)}
    assert rows["odd-0001"]["problem"].startswith("Trial launch_id")
    assert "problem" not in rows["good-0001"]
    assert len(rows["good-0001"]) > 10


def test_the_site_says_what_it_cannot_show(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["board", "--html", str(home / "site")]) == 0
    page = (home / "site" / "index.html").read_text()
    assert "odd-0001" in page
    assert "can&#x27;t be read: Trial launch_id: Field required" in page or "can't be read: Trial launch_id" in page
    assert (home / "site" / "reports" / "good-0001.html").is_file()
    assert not (home / "site" / "reports" / "odd-0001.html").exists()
    capsys.readouterr()


@pytest.mark.parametrize("make", [lambda p: DuckdbLedger(p), lambda p: MemoryLedger()], ids=["duckdb", "memory"])
def test_what_is_left_out_is_what_was_asked_and_never_what_decides(make: Callable[[Path], Any], tmp_path: Path) -> None:
    with_names = ("a", "b", "c")
    ledger = make(tmp_path / "l.duckdb")
    for name in with_names:
        ledger.claim(name)
        for kind in ("campaign", "trial", "score", "invalidated", "trial"):
            ledger.append(name, kind, kind, Plain.of({"kept": 1, "long": [1, 2]}))
    part = Part(frozenset({"lease", "score", "invalidated", "campaign", "trial"}), {"trial": frozenset({"long"})})
    whole = dict(ledger.histories(["c", "a", "nobody"]))
    assert list(whole) == ["c", "a", "nobody"]
    assert whole == {"c": ledger.history("c"), "a": ledger.history("a"), "nobody": []}
    found = dict(ledger.histories(with_names, without=part))
    want = [(1, "lease"), (2, "campaign"), (5, "invalidated"), (6, "trial")]
    assert {name: [(e.n, e.kind) for e in events] for name, events in found.items()} == {name: want for name in with_names}
    assert found["a"][-1].record == {"kept": 1}
    assert found["a"][1].record == {"kept": 1, "long": [1, 2]}
    assert ledger.counts() == dict.fromkeys(with_names, 6)
    ledger.close()


def test_lots_hold_every_campaign_once() -> None:
    from attuner.ledgers import duckdb_read

    names = [f"c{k}" for k in range(40)]
    marks = Marks(0, {name: chain.Mark(5_000, "") for name in names})
    found = duckdb_read.lots([*names, "c3"], marks, chain.NOTHING)
    assert [name for lot in found for name in lot] == names
    assert {len(lot) for lot in found} == {duckdb_read.LOT_ROWS // 5_000}
