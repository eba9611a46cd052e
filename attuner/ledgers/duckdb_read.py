"""The SQL that reads a ledger file: where a campaign's chain ends, its rows, those of several campaigns at once, in lots."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from operator import attrgetter
from typing import NamedTuple

from attuner.ledgers import chain, schema
from attuner.ledgers.chain import Marks, Part, Row, Tail
from attuner.ledgers.duckdb_session import Connection

COLUMNS = 'seq, campaign_id, n, kind, key, "at", fence, record, prev, hash'
LOT_ROWS = 20_000
"""Rows that are read under one lock: a tenth of a second, and as text some 60 MB where trials hold what a probe saw."""
Lot = tuple[int | None, int | None]
"""Rows above one `seq` and up to another (None: no bound)."""
LOT_LEAN = 4
"""So many times that where kinds are left out: campaigns that ran at once lie between each other, each lot reads past them."""


_ORDER = attrgetter("n", "seq")


class End(NamedTuple):
    """The last row of a campaign: its place, and its chain as `not_behind` looks at it."""

    seq: int
    tail: Tail


def has_events(db: Connection) -> bool:
    """Tell whether the file has a ledger's table."""
    sql = "SELECT count(*) FROM duckdb_tables() WHERE database_name = 'ledger' AND table_name = 'events'"
    return bool(db.execute(sql).fetchall()[0][0])


def last_seq(db: Connection) -> int:
    """Return the last `seq` of all."""
    return int(db.execute("SELECT coalesce(max(seq), 0) FROM events").fetchall()[0][0])


def tail_of(db: Connection, campaign_id: str, marks: Marks) -> Tail:
    """Return where a campaign's chain ends."""
    mark = marks.campaigns.get(campaign_id)
    sql = """SELECT coalesce(max(n), 0), arg_max(hash, n), coalesce(max(fence), 0), any_value(hash) FILTER (n = ?)
             FROM events WHERE campaign_id = ?"""
    n, digest, fence, at_mark = db.execute(sql, [mark.n if mark else 0, campaign_id]).fetchall()[0]
    return Tail(last_seq(db), n, digest or chain.FIRST_PREV, fence, at_mark)


def ends_of(db: Connection, campaign_ids: Sequence[str], marks: Marks) -> dict[str, End]:
    """Return where several campaigns' chains end, in one pass; `Tail(…, 0, …)` of one that has no row."""
    known = [marks.campaigns.get(name) for name in campaign_ids]
    sql = """SELECT m.name, coalesce(max(e.n), 0), arg_max(e.hash, e.n), coalesce(max(e.fence), 0),
                    any_value(e.hash) FILTER (e.n = m.n), coalesce(max(e.seq), 0)
             FROM (SELECT unnest(?::VARCHAR[]) AS name, unnest(?::BIGINT[]) AS n) m LEFT JOIN events e ON e.campaign_id = m.name
             GROUP BY m.name"""
    found = db.execute(sql, [list(campaign_ids), [mark.n if mark else 0 for mark in known]]).fetchall()
    last = last_seq(db)
    return {
        name: End(seq, Tail(last, n, digest or chain.FIRST_PREV, fence, at_mark))
        for name, n, digest, fence, at_mark, seq in found
    }


def rows_of(db: Connection, campaign_id: str, *, after_seq: int = 0) -> list[Row]:
    """Return a campaign's rows in order; with `after_seq` those that were written later."""
    sql = f"SELECT {COLUMNS} FROM events WHERE campaign_id = ? AND seq > ? ORDER BY n, seq"
    return [Row(*r) for r in db.execute(sql, [campaign_id, after_seq]).fetchall()]


def rows_of_many(db: Connection, ends: dict[str, End], without: Part) -> dict[str, list[Row]]:
    """Return the rows of several campaigns, each in order: without some kinds, but always its first and its last row."""
    left = sorted(without.kinds - chain.NEVER_LEFT_OUT)
    last = [end.seq for end in ends.values()]
    where = f"campaign_id IN ({_places(ends)})"
    values: list[object] = list(ends)
    if left:
        where += f" AND (kind NOT IN ({_places(left)}) OR n = 1 OR seq IN ({_places(last)}))"
        values += [*left, *last]
    found: dict[str, list[Row]] = {name: [] for name in ends}
    for r in db.execute(f"SELECT {COLUMNS} FROM events WHERE {where}", values).fetchall():
        row = Row(*r)
        found[row.campaign_id].append(row)
    for rows in found.values():
        rows.sort(key=_ORDER)  # they lie in order already; DuckDB would copy all their text once more
    return found


def lots(campaign_ids: Sequence[str], marks: Marks | None, without: Part) -> list[list[str]]:
    """Return the campaigns in lots of about LOT_ROWS rows, by what was acknowledged of each."""
    found: list[list[str]] = []
    room = 0
    for name in dict.fromkeys(campaign_ids):
        mark = marks.campaigns.get(name) if marks else None
        num = mark.n if mark else 1
        if num > room or not found:
            found.append([])
            room = LOT_ROWS * (LOT_LEAN if without.kinds else 1)
        found[-1].append(name)
        room -= num
    return found


def seq_lots(last: int) -> list[Lot]:
    """Return lots that hold every row, those above the `last` too."""
    size = LOT_ROWS // 2  # two processes may hold one each
    return list(pairwise([None, *range(size, last, size), None]))


def rows_between(db: Connection, above: int | None, upto: int | None, campaign_id: str | None) -> list[Row]:
    """Return rows by `seq`, above one and up to another (None: no bound): of one campaign or of all."""
    where, values = ["true"], []
    for clause, value in (("seq > ?", above), ("seq <= ?", upto), ("campaign_id = ?", campaign_id)):
        if value is not None:
            where.append(clause)
            values.append(value)
    return [Row(*r) for r in db.execute(f"SELECT {COLUMNS} FROM events WHERE {' AND '.join(where)}", values).fetchall()]


def missing_triggers(db: Connection) -> list[str]:
    """Return the triggers that keep rows from being edited and are gone."""
    sql = "SELECT trigger_name FROM duckdb_triggers() WHERE database_name = 'ledger' AND table_name = 'events'"
    there = {r[0] for r in db.execute(sql).fetchall()}
    return [t for t in schema.TRIGGERS if t not in there]


def check_ends(ends: dict[str, End], marks: Marks, *, where: str) -> None:
    """Check that no acknowledged row is missing at the end of any; raises Broken."""
    for name, end in ends.items():
        chain.not_behind(name, end.tail, marks, where=where)


def _places(values: Sequence[object] | dict[str, End]) -> str:
    return ", ".join("?" for _ in values)
