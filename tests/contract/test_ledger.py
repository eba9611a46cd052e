"""The laws of a ledger, held by every adapter: the file and the one in memory."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from attuner.core.base import Record, canonical_json
from attuner.core.errors import Refused, UserError
from attuner.ledgers.duckdb_file import DuckdbLedger
from attuner.ledgers.memory import MemoryLedger, Store

Ledger = DuckdbLedger | MemoryLedger


class Remark(Record):
    text: str = ""
    number: float = 0.0


@dataclass
class Place:
    """One store: `open()` gives another process's view of it, `lose` breaks a lease as if its holder were elsewhere."""

    open: Callable[[], Ledger]
    lose: Callable[[str], object]


@pytest.fixture(params=["duckdb", "memory"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    opened: list[Ledger] = []
    times = iter(range(1000, 9999))
    store, path = Store(), tmp_path / "ledger.duckdb"

    def make() -> Ledger:
        def now() -> float:
            return next(times)

        opened.append(DuckdbLedger(path, now=now) if request.param == "duckdb" else MemoryLedger(store, now=now))
        return opened[-1]

    def lose(campaign_id: str) -> None:
        if request.param == "duckdb":
            (tmp_path / f"ledger.duckdb.lease.{campaign_id}").unlink()
        else:
            del store.holders[campaign_id]

    yield Place(make, lose)
    for ledger in opened:
        ledger.close()


@pytest.fixture
def ledger(place: Place) -> Ledger:
    return place.open()


class TestLedger:
    """What steps may rely on."""

    def test_an_event_comes_back_as_it_was_written(self, ledger: Ledger) -> None:
        ledger.claim("a")
        seq = ledger.append("a", "score", "l1", Remark(text='µ → "x"\n\'', number=0.1))
        event = ledger.history("a")[-1]
        assert (event.seq, event.campaign_id, event.n, event.kind, event.key) == (seq, "a", 2, "score", "l1")
        assert event.record == {"text": 'µ → "x"\n\'', "number": 0.1}
        assert event.fence == 1
        assert type(event).model_validate(event.model_dump()) == event

    def test_a_question_sees_the_events_that_it_is_given_through_the_views(self, ledger: Ledger) -> None:
        ledger.claim("a")
        ledger.append("a", "note", "n1", Remark(text="first"))
        ledger.append("a", "note", "n1", Remark(text="corrected"))
        ledger.claim("b")
        ledger.append("b", "note", "n2", Remark(text="another campaign"))
        told = ledger.ask(ledger.history("a"), "SELECT key, record->>'text' AS text FROM notes")
        assert told.data() == {"columns": ["key", "text"], "rows": [["n1", "corrected"]], "cut": False}
        assert ledger.ask([], "SELECT count(*) FROM events").rows == [[0]]

    @pytest.mark.parametrize(
        "sql",
        [
            *("COPY events TO 'x.csv'", "SELECT * FROM read_csv('/etc/passwd')", "ATTACH 'x.db'", "SET threads = 2"),
            *("INSERT INTO events SELECT * FROM events", "DROP TABLE events", "SELECT 1; SELECT 2", "PRAGMA database_list", ""),
            *("SELECT getenv('HOME')", "SELECT nothing FROM events", "INSTALL httpfs", "SELECT error('no')"),
        ],
    )
    def test_a_question_touches_nothing(self, ledger: Ledger, sql: str) -> None:
        ledger.claim("a")
        before = ledger.history("a")
        with pytest.raises(UserError, match=r"^query: [^\n]*$"):
            ledger.ask(before, sql)
        assert ledger.history("a") == before
        assert ledger.verify() == []

    def test_a_long_answer_is_cut_and_a_long_question_ended(self, ledger: Ledger) -> None:
        from attuner.ledgers.duckdb_events import MAX_CELL, MAX_ROWS, ask_events

        told = ledger.ask([], "SELECT repeat('x', 100000) FROM range(1000)")
        assert (len(told.rows), told.cut) == (MAX_ROWS, True)
        assert len(told.rows[0][0]) < MAX_CELL + 50
        with pytest.raises(UserError, match=r"takes longer than 0\.2 s"):
            ask_events([], "SELECT count(*) FROM range(100000000) a, range(1000000) b", limit_s=0.2)

    def test_nan_is_spelled_and_chained(self, ledger: Ledger) -> None:
        ledger.claim("a")
        ledger.append("a", "score", "l1", Remark(number=float("nan")))
        assert ledger.history("a")[-1].record["number"] == "NaN"
        assert ledger.verify() == []

    def test_the_chain_is_what_the_design_says(self, ledger: Ledger) -> None:
        ledger.claim("a")
        for i in range(3):
            ledger.append("a", "score", f"l{i}", Remark(text=str(i)))
        prev = "0" * 64
        for event in ledger.history("a"):
            body = {k: getattr(event, k) for k in ("campaign_id", "n", "kind", "key", "at", "fence", "record")}
            assert event.prev == prev
            assert event.hash == hashlib.sha256((prev + canonical_json(body)).encode()).hexdigest()
            prev = event.hash

    def test_n_counts_per_campaign_and_seq_over_all(self, ledger: Ledger) -> None:
        for name in ("a", "b"):
            ledger.claim(name)
        seqs = [ledger.append(name, "score", "k", Remark()) for name in ("a", "b", "b", "a")]
        assert seqs == [3, 4, 5, 6]
        assert [e.n for e in ledger.history("a")] == [e.n for e in ledger.history("b")] == [1, 2, 3]

    def test_time_comes_from_the_clock_given(self, ledger: Ledger) -> None:
        ledger.claim("a")
        ledger.append("a", "score", "k", Remark())
        first, second = ledger.history("a")
        assert second.at > first.at >= 1000

    def test_nothing_is_written_without_a_lease(self, ledger: Ledger) -> None:
        with pytest.raises(Refused, match="claim the campaign first"):
            ledger.append("a", "campaign", "a", Remark())
        assert ledger.history("a") == []

    def test_a_note_needs_no_lease_but_a_campaign(self, place: Place) -> None:
        runner, person = place.open(), place.open()
        with pytest.raises(UserError, match=r"no ledger|no such campaign"):
            person.append("a", "note", "1", Remark())
        runner.claim("a")
        with pytest.raises(UserError, match="no such campaign"):
            person.append("b", "note", "1", Remark())
        person.append("a", "note", "1", Remark(text="looks busy"))
        runner.append("a", "score", "k", Remark())
        assert [(e.kind, e.fence) for e in runner.history("a")] == [("lease", 1), ("note", 0), ("score", 1)]

    def test_a_live_holder_is_named(self, place: Place) -> None:
        first, second = place.open(), place.open()
        first.claim("a")
        with pytest.raises(Refused, match=f"process {os.getpid()}"):
            second.claim("a")
        assert second.claim("b") == 1

    def test_claiming_again_is_the_same_lease(self, ledger: Ledger) -> None:
        assert ledger.claim("a") == ledger.claim("a") == 1
        assert len(ledger.history("a")) == 1

    def test_each_lease_has_the_next_fence(self, place: Place) -> None:
        first, second = place.open(), place.open()
        assert first.claim("a") == 1
        first.release("a")
        first.release("a")
        assert second.claim("a") == 2
        second.close()
        assert first.claim("a") == 3
        lease = first.history("a")[-1]
        assert (lease.kind, lease.key, lease.record["fence"], lease.record["pid"]) == ("lease", "3", 3, os.getpid())

    def test_a_released_lease_writes_no_more(self, ledger: Ledger) -> None:
        ledger.claim("a")
        ledger.release("a")
        with pytest.raises(Refused, match="claim"):
            ledger.append("a", "score", "k", Remark())

    def test_an_older_lease_is_fenced_off(self, place: Place) -> None:
        old, new = place.open(), place.open()
        old.claim("a")
        place.lose("a")
        assert new.claim("a") == 2
        with pytest.raises(Refused, match="fenced off"):
            old.append("a", "score", "k", Remark())
        new.append("a", "score", "k", Remark())
        assert new.verify() == []

    @pytest.mark.parametrize("bad", ["", "../x", "a/b", ".a", "a b", "x" * 101])
    def test_an_id_that_cannot_be_a_file_name_is_refused(self, ledger: Ledger, bad: str) -> None:
        with pytest.raises(UserError, match="campaign id"):
            ledger.claim(bad)

    def test_campaigns_are_those_born_oldest_first(self, ledger: Ledger) -> None:
        assert ledger.campaigns() == []
        for name in ("b", "a", "never-born"):
            ledger.claim(name)
        for name in ("b", "a", "b"):
            ledger.append(name, "campaign", name, Remark())
        assert ledger.campaigns() == ["b", "a"]

    def test_a_prefix_names_a_campaign(self, ledger: Ledger) -> None:
        for name in ("tune-1", "tune-12", "other"):
            ledger.claim(name)
            ledger.append(name, "campaign", name, Remark())
        assert [ledger.find(t) for t in ("o", "tune-12", "tune-1")] == ["other", "tune-12", "tune-1"]
        with pytest.raises(UserError, match="tune-1, tune-12"):
            ledger.find("tu")
        for text in ("x", ""):
            with pytest.raises(UserError, match="known: tune-1, tune-12, other"):
                ledger.find(text)

    def test_a_batch_nests_and_reads_what_it_wrote(self, ledger: Ledger) -> None:
        ledger.claim("a")
        with ledger.batch():
            ledger.append("a", "score", "1", Remark())
            with ledger.batch():
                ledger.append("a", "score", "2", Remark())
            assert len(ledger.history("a")) == 3
        ledger.append("a", "score", "3", Remark())
        assert [e.n for e in ledger.history("a")] == [1, 2, 3, 4]

    def test_a_refusal_inside_a_batch_loses_nothing(self, ledger: Ledger) -> None:
        ledger.claim("a")

        def step() -> None:
            with ledger.batch():
                ledger.append("a", "score", "1", Remark())
                ledger.append("b", "score", "1", Remark())

        with pytest.raises(Refused):
            step()
        assert [e.kind for e in ledger.history("a")] == ["lease", "score"]
        assert ledger.append("a", "score", "2", Remark()) == 3

    def test_an_unknown_campaign_has_no_history(self, ledger: Ledger) -> None:
        assert ledger.history("nobody") == []

    def test_a_healthy_ledger_verifies(self, ledger: Ledger) -> None:
        assert ledger.verify() == []
        for name in ("a", "b"):
            ledger.claim(name)
            ledger.append(name, "campaign", name, Remark())
        ledger.append("a", "note", "1", Remark())
        assert ledger.verify() == ledger.verify("a") == ledger.verify("b") == []

    def test_verifying_an_unknown_campaign_says_so(self, ledger: Ledger) -> None:
        ledger.claim("a")
        with pytest.raises(UserError, match="no campaign zzz"):
            ledger.verify("zzz")

    def test_records_stay_json(self, ledger: Ledger) -> None:
        ledger.claim("a")
        assert all(json.loads(json.dumps(e.record)) == e.record for e in ledger.history("a"))
