"""The ledger in memory, for tests and replay: the same chain, leases and fences as the file, without the disk.

Several `MemoryLedger` objects on one `Store` stand for several processes on one file.
"""

from __future__ import annotations

import contextlib
import os
import platform
import threading
import time
from collections.abc import Callable, Iterator, Sequence

from attuner.core.base import Record
from attuner.core.errors import Refused
from attuner.ledgers import chain
from attuner.ledgers.chain import Lease, Marks, Problem, Row, Tail
from attuner.ports import Answer, Event


class Store:
    """What several MemoryLedgers share: the rows, what was acknowledged, and who holds which lease."""

    def __init__(self) -> None:
        """Begin empty."""
        self.rows: list[Row] = []
        self.marks = Marks(0, {})
        self.holders: dict[str, MemoryLedger] = {}
        self.thread = threading.RLock()


class MemoryLedger:
    """The truth of many campaigns, gone with the process."""

    def __init__(self, store: Store | None = None, *, now: Callable[[], float] = time.time) -> None:
        """Use `store`, or a new one."""
        self.store = store or Store()
        self._now = now
        self._fences: dict[str, int] = {}

    def append(self, campaign_id: str, kind: str, key: str, record: Record) -> int:
        """Append one record and return its sequence number.

        Raises:
            Refused: the campaign is not claimed (a `note` needs no claim), or a later lease exists.
            Broken: rows were taken from the store.
        """
        with self.store.thread:
            fence = self._fences.get(campaign_id, 0)
            chain.may_append(campaign_id, kind, fence=fence)
            tail = self._tail(campaign_id)
            chain.not_behind(campaign_id, tail, self.store.marks, where="memory ledger")
            chain.may_write(campaign_id, kind, fence=fence, tail=tail)
            row = chain.next_row(tail, campaign_id, kind, key=key, at=self._now(), fence=fence, record=record.data())
            self.store.rows.append(row)
            self.store.marks = chain.moved(self.store.marks, row)
            return row.seq

    def claim(self, campaign_id: str) -> int:
        """Take the campaign's lease and return its fencing number; raises Refused if another ledger object holds it."""
        with self.store.thread:
            if campaign_id in self._fences:
                return self._fences[campaign_id]
            if chain.checked_id(campaign_id) in self.store.holders:
                raise Refused(f"claim {campaign_id}: process {os.getpid()} runs this campaign already; wait for it")
            fence = self._tail(campaign_id).fence + 1
            lease = Lease(fence=fence, pid=os.getpid(), host=platform.node(), at=self._now())
            self.store.holders[campaign_id] = self
            self._fences[campaign_id] = lease.fence
            self.append(campaign_id, "lease", str(lease.fence), lease)
            return lease.fence

    def release(self, campaign_id: str) -> None:
        """Give the lease back; harmless if it is not held."""
        with self.store.thread:
            if self._fences.pop(campaign_id, None) is not None:
                self.store.holders.pop(campaign_id, None)

    def close(self) -> None:
        """Give back every lease."""
        for campaign_id in list(self._fences):
            self.release(campaign_id)

    @contextlib.contextmanager
    def batch(self) -> Iterator[None]:
        """Keep others out over several calls of this thread; nests."""
        with self.store.thread:
            yield

    def history(self, campaign_id: str) -> list[Event]:
        """Return the campaign's events in order; none if it is unknown."""
        with self.store.thread:
            return [row.event() for row in self.store.rows if row.campaign_id == campaign_id]

    def histories(self, campaign_ids: Sequence[str], *, without: chain.Part = chain.NOTHING) -> Iterator[tuple[str, list[Event]]]:
        """Yield each campaign's id and its events, but for what a reading verb can do without; see DuckdbLedger."""
        for name in campaign_ids:
            with self.store.thread:
                rows = [row for row in self.store.rows if row.campaign_id == name]
            left = without.kinds - chain.NEVER_LEFT_OUT
            ends = {rows[0].n, rows[-1].n} if rows else set()
            yield name, [row.event(without.of(row.kind)) for row in rows if row.kind not in left or row.n in ends]

    def counts(self) -> dict[str, int]:
        """Return how many events each campaign that was born has, oldest first."""
        return {name: len(self.history(name)) for name in self.campaigns()}

    def campaigns(self) -> list[str]:
        """Return the ids of all campaigns that were born (have a `campaign` event), oldest first."""
        with self.store.thread:
            return list(dict.fromkeys(row.campaign_id for row in self.store.rows if row.kind == "campaign"))

    def ask(self, events: list[Event], sql: str) -> Answer:
        """Return what one SELECT says of a copy of these events; see ports.Ledger."""
        from attuner.ledgers.duckdb_events import ask_events

        return ask_events(events, sql)

    def find(self, text: str) -> str:
        """Return the campaign that `text` names, in full or by a unique prefix. Raises UserError naming candidates."""
        return chain.resolve(text, self.campaigns())

    def verify(self, campaign_id: str | None = None) -> list[Problem]:
        """Return what is wrong with one campaign, or with all. Raises UserError for an unknown one."""
        with self.store.thread:
            rows = [chain.checked(row) for row in self.store.rows if campaign_id in (None, row.campaign_id)]
            return chain.check_rows(rows, self.store.marks, campaign_id=campaign_id)

    def _tail(self, campaign_id: str) -> Tail:
        mine = [row for row in self.store.rows if row.campaign_id == campaign_id]
        mark = self.store.marks.campaigns.get(campaign_id)
        seq = self.store.rows[-1].seq if self.store.rows else 0
        if not mine:
            return Tail(seq, 0, chain.FIRST_PREV, 0, None)
        at_mark = next((row.hash for row in reversed(mine) if mark and row.n == mark.n), None)
        return Tail(seq, mine[-1].n, mine[-1].hash, max(row.fence for row in mine), at_mark)
