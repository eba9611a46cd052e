"""One question in SQL over a copy of a campaign's events, with the views that a person has: for those who may ask the ledger
but never hold it. The copy lives in memory and sees no file, no network and no other campaign; time, memory and answer are
bounded."""

from __future__ import annotations

import datetime
import decimal
import threading
from collections.abc import Iterable
from contextlib import closing
from typing import Any

import duckdb

from attuner.core.base import canonical_json
from attuner.core.errors import UserError
from attuner.ledgers import schema
from attuner.ledgers.duckdb_session import one_line
from attuner.ports import Answer, Event

LIMIT_S = 5.0
MAX_ROWS = 200
MAX_CELL = 2_000
MEMORY = "512MB"
_INSERT = "INSERT INTO events SELECT * FROM (SELECT unnest(?), ?, unnest(?), unnest(?), unnest(?), unnest(?), unnest(?), "
_COLUMNS = "unnest(?), unnest(?), unnest(?))"


def ask_events(events: Iterable[Event], sql: str, *, limit_s: float = LIMIT_S) -> Answer:
    """Run one SELECT over events of one campaign.

    Raises:
        UserError: it is no single SELECT, it is wrong, or it takes too long.
    """
    with closing(duckdb.connect(":memory:", config={"threads": 1, "memory_limit": MEMORY, "temp_directory": ""})) as db:
        for statement in schema.statements(new=True):
            db.execute(statement)
        _fill(db, list(events))
        db.execute("SET enable_external_access = false")
        db.execute("SET lock_configuration = true")
        late = threading.Event()
        timer = threading.Timer(limit_s, _stop, [db, late])
        timer.daemon = True
        timer.start()
        try:
            if [s.type for s in duckdb.extract_statements(sql)] != [duckdb.StatementType.SELECT]:
                raise UserError("query: one SELECT, and nothing else; the tables are listed by SELECT * FROM duckdb_views()")
            found = db.execute(sql)
            rows = found.fetchmany(MAX_ROWS + 1)
            columns = [d[0] for d in found.description or []]
        except duckdb.Error as error:
            if late.is_set():
                raise UserError(f"query: takes longer than {limit_s:g} s; ask for less") from None
            raise UserError(f"query: {one_line(error)}") from None
        finally:
            timer.cancel()
            timer.join()
    return Answer(columns=columns, rows=[[_plain(x) for x in row] for row in rows[:MAX_ROWS]], cut=len(rows) > MAX_ROWS)


def _stop(db: Any, late: threading.Event) -> None:
    late.set()
    db.interrupt()


def _fill(db: Any, events: list[Event]) -> None:
    if not events:
        return
    fields = ("seq", "n", "kind", "key", "at", "fence", "record", "prev", "hash")
    columns = {name: [getattr(e, name) for e in events] for name in fields}
    columns["record"] = [canonical_json(x) for x in columns["record"]]
    given = list(columns.values())
    db.execute(_INSERT + _COLUMNS, [given[0], events[0].campaign_id, *given[1:]])


def _plain(value: Any) -> Any:
    if isinstance(value, bool | int | float) or value is None:
        return value
    if isinstance(value, decimal.Decimal):
        return float(value)
    if isinstance(value, datetime.date | datetime.time | datetime.timedelta):
        return str(value)
    text = value if isinstance(value, str) else str(value)
    return text if len(text) <= MAX_CELL else f"{text[:MAX_CELL]}… ({len(text)} characters)"
