"""The laws of a ledger, without any storage: how a row is hashed onto the one before it, who may write it, what a
healthy chain looks like, and which campaign a person means by a prefix. Both adapters, file and memory, obey it.

A row's hash covers everything but its `seq`; `prev` is the hash of the campaign's row before it. The anchor remembers
what was acknowledged, so that rows that vanish from the end are noticed. Rows beyond the anchor are healthy: their
writer died between commit and anchor, and nobody was told that they are there.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import pairwise
from json.encoder import encode_basestring as quoted
from typing import Any, NamedTuple

from attuner.core.base import Record, canonical_json
from attuner.core.errors import Broken, Refused, UserError
from attuner.ledgers.text import canonical, parsed, parsed_without
from attuner.ports import Event

FIRST_PREV = "0" * 64
"""What stands before the first row of a campaign."""

UNLEASED_KINDS = frozenset({"note", "directive", "review"})
"""What may be appended without a lease, while another process runs the campaign: people's remarks, wishes and answers."""

_CAMPAIGN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


class Lease(Record):
    """Who took a campaign's lease; the record of a `lease` event, and the text of the lease file."""

    fence: int
    pid: int
    host: str
    at: float


class Problem(Record):
    """One thing that is wrong with a ledger, as one line; `campaign_id` is empty where the whole file is meant."""

    campaign_id: str
    n: int
    what: str

    def line(self) -> str:
        """Return the problem as one line for a person."""
        where = f"{self.campaign_id} row {self.n}: " if self.campaign_id else ""
        return where + self.what


class Mark(NamedTuple):
    """The last acknowledged row of one campaign."""

    n: int
    hash: str


class Marks(NamedTuple):
    """What was acknowledged: the last `seq` of all, and the last row of each campaign."""

    seq: int
    campaigns: dict[str, Mark]


class Tail(NamedTuple):
    """Where a campaign's chain ends now; `at_mark` is the hash of the row that the anchor names (None: it is gone)."""

    seq: int
    n: int
    hash: str
    fence: int
    at_mark: str | None


class Row(NamedTuple):
    """One stored row, its record still as text."""

    seq: int
    campaign_id: str
    n: int
    kind: str
    key: str
    at: float
    fence: int
    record: str
    prev: str
    hash: str

    def event(self, left_out: Collection[str] = ()) -> Event:
        """Return the row as the event that steps read; not validated again, SQL typed it (a third of the time).

        left_out: fields of its record that nobody will ask for; never for a step.
        """
        values = dict(zip(_FIELDS, self, strict=True))
        values["record"] = parsed_without(self.record, left_out) if left_out else parsed(self.record)
        # what model_construct does, in half the time: a year's board makes 100,000 of them
        made = Event.__new__(Event)
        for name, value in (("__dict__", values), ("__pydantic_fields_set__", _NAMES), *_NO_MORE):
            object.__setattr__(made, name, value)
        return made


_FIELDS = Row._fields
_NAMES = set(_FIELDS)
_NO_MORE = (("__pydantic_extra__", None), ("__pydantic_private__", None))


class Part(NamedTuple):
    """What a reading verb can do without: whole kinds, and fields of the records of a kind. Never what a step acts upon."""

    kinds: frozenset[str] = frozenset()
    fields: Mapping[str, frozenset[str]] = {}

    def of(self, kind: str) -> Collection[str]:
        """Return the fields that are left out of a record of this kind."""
        return self.fields.get(kind, ())


NOTHING = Part()
NEVER_LEFT_OUT = frozenset({"campaign", "invalidated"})
"""Kinds that decide what holds of all the others."""


def row_hash(prev: str, *, campaign_id: str, n: int, kind: str, key: str, at: float, fence: int, record: Any) -> str:
    """Return the hash (sha256, hex) that chains this row onto `prev`."""
    body = {"campaign_id": campaign_id, "n": n, "kind": kind, "key": key, "at": at, "fence": fence, "record": record}
    return hashlib.sha256((prev + canonical_json(body)).encode()).hexdigest()


def next_row(tail: Tail, campaign_id: str, kind: str, *, key: str, at: float, fence: int, record: dict[str, Any]) -> Row:
    """Return the row that follows `tail`."""
    n, at = tail.n + 1, float(at)
    digest = row_hash(tail.hash, campaign_id=campaign_id, n=n, kind=kind, key=key, at=at, fence=fence, record=record)
    return Row(tail.seq + 1, campaign_id, n, kind, key, at, fence, canonical_json(record), tail.hash, digest)


def checked_id(campaign_id: str) -> str:
    """Return the id if it can be part of a file name (the lease file bears it); raises UserError."""
    if not _CAMPAIGN_ID.fullmatch(campaign_id):
        raise UserError(f"campaign id {campaign_id!r}: use letters, digits, dot, dash and underscore, at most 100")
    return campaign_id


def may_append(campaign_id: str, kind: str, *, fence: int) -> None:
    """Check, before any file is opened, that this fence (0: no lease) may append this kind; raises Refused."""
    if fence == 0 and kind not in UNLEASED_KINDS:
        raise Refused(f"append {kind} to {campaign_id}: no lease is held; claim the campaign first")


def may_write(campaign_id: str, kind: str, *, fence: int, tail: Tail) -> None:
    """Check that a writer with this fence (0: no lease) may append after `tail`.

    Raises:
        Refused: a later lease exists.
        UserError: a remark on a campaign that does not exist.
    """
    if fence == 0 and tail.n == 0:
        raise UserError(f"{kind} on {campaign_id}: there is no such campaign in this ledger; see `attuner board`")
    if fence and tail.fence > fence:
        raise Refused(
            f"append {kind} to {campaign_id}: fenced off, lease {tail.fence} was taken after ours ({fence}); "
            "another process runs this campaign now, end this one"
        )


def not_behind(campaign_id: str, tail: Tail, marks: Marks, *, where: str) -> None:
    """Check that no acknowledged row is missing at the end; raises Broken, so that nobody writes over the gap."""
    mark = marks.campaigns.get(campaign_id)
    mend = "run `attuner ledger verify`, then put back a copy that holds them"
    if mark and tail.n < mark.n:
        raise Broken(f"{where}: {campaign_id} ends at row {tail.n} but row {mark.n} was acknowledged; {mend}")
    if mark and tail.at_mark != mark.hash:
        raise Broken(f"{where}: {campaign_id} row {mark.n} is not the row that was acknowledged; {mend}")
    if tail.seq < marks.seq:
        raise Broken(f"{where}: ends at seq {tail.seq} but seq {marks.seq} was acknowledged; {mend}")


def goes_on(known: Sequence[Event], rows: Sequence[Row], tail: Tail) -> bool:
    """Tell whether these rows, read after what is known of a campaign, lead from it to the end of its chain as it is now.

    They don't if the file was replaced meanwhile: the hash of the last row that is known stands for all before it.
    """
    if not known:
        return False
    last = known[-1]
    if not rows:
        return (tail.n, tail.hash) == (last.n, last.hash)
    return rows[0].prev == last.hash and rows[0].n == last.n + 1 and (tail.n, tail.hash) == (rows[-1].n, rows[-1].hash)


def moved(marks: Marks, row: Row) -> Marks:
    """Return the marks once `row` is acknowledged."""
    return Marks(row.seq, {**marks.campaigns, row.campaign_id: Mark(row.n, row.hash)})


def resolve(text: str, campaigns: Sequence[str]) -> str:
    """Return the one campaign that `text` names, in full or by a prefix; raises UserError naming the candidates."""
    if text in campaigns:
        return text
    found = [c for c in campaigns if text and c.startswith(text)]
    if len(found) == 1:
        return found[0]
    if found:
        raise UserError(f"campaign {text!r} is ambiguous: {_some(found)}; give more letters")
    raise UserError(f"campaign {text!r}: none begins so; known: {_some(list(campaigns)) or 'none yet'}")


class Checked(NamedTuple):
    """A row whose text was compared with its hash, and then let go: a year's records don't fit into memory together."""

    seq: int
    campaign_id: str
    n: int
    kind: str
    key: str
    fence: int
    prev: str
    hash: str
    intact: bool


def checked(row: Row) -> Checked:
    """Return the row without its record; `intact` if the record is canonical and the row has the hash that it should."""
    return Checked(row.seq, row.campaign_id, row.n, row.kind, row.key, row.fence, row.prev, row.hash, _intact(row))


def check_rows(rows: Iterable[Checked], marks: Marks | None, *, campaign_id: str | None = None) -> list[Problem]:
    """Return what hashes and anchor say is wrong with these rows, of one campaign or of all; empty is healthy.

    Raises:
        UserError: no such campaign.
    """
    chains: dict[str, list[Checked]] = {}
    for row in rows:
        chains.setdefault(row.campaign_id, []).append(row)
    named = marks.campaigns if marks else {}
    ids = [campaign_id] if campaign_id else sorted(chains.keys() | named.keys())
    if campaign_id and campaign_id not in chains and campaign_id not in named:
        raise UserError(f"verify: no campaign {campaign_id} in this ledger; see `attuner board`")
    problems: list[Problem] = []
    for one in ids:
        chain = sorted(chains.get(one, []), key=lambda r: (r.n, r.seq))
        problems += _check_chain(one, chain)
        if one in named:
            problems += _check_mark(one, chain, named[one])
    if not problems and not campaign_id:
        have = {row.seq for chain in chains.values() for row in chain}
        last = max([marks.seq if marks else 0, *have], default=0)
        lost = [s for s in range(1, last + 1) if s not in have]
        if lost:
            problems.append(Problem(campaign_id="", n=0, what=f"missing row: seq {_some(lost)} of {last}"))
    return problems


def _check_chain(campaign_id: str, chain: list[Checked]) -> list[Problem]:
    problems: list[Problem] = []
    last_n, last_hash, fence = 0, FIRST_PREV, 0

    def say(n: int, what: str) -> None:
        problems.append(Problem(campaign_id=campaign_id, n=n, what=what))

    for row in chain:
        if row.n > last_n + 1:
            gone = str(last_n + 1) if row.n == last_n + 2 else f"{last_n + 1} to {row.n - 1}"
            say(last_n + 1, f"missing row: {gone} before row {row.n}")
        elif row.n <= last_n:
            say(row.n, "reordered: this row number is there twice")
        elif row.prev != last_hash:
            say(row.n, "reordered or replaced: it does not follow the row before it")
        if not row.intact:
            say(row.n, f"edited: {row.kind} {row.key} does not match its hash")
        if row.fence and row.fence < fence:
            say(row.n, f"written past the fence: lease {row.fence} after lease {fence}")
        last_n, last_hash, fence = row.n, row.hash, max(fence, row.fence)
    for before, after in pairwise(chain):
        if after.seq <= before.seq:
            say(after.n, f"reordered: seq {after.seq} follows seq {before.seq}")
    return problems


def _check_mark(campaign_id: str, chain: list[Checked], mark: Mark) -> list[Problem]:
    last = chain[-1].n if chain else 0
    if last < mark.n:
        what = f"lost tail: rows {last + 1} to {mark.n} were acknowledged and are gone"
        return [Problem(campaign_id=campaign_id, n=last + 1, what=what)]
    if all(row.hash != mark.hash for row in chain if row.n == mark.n):
        what = "rewritten: it is not the row that was acknowledged (see the anchor file)"
        return [Problem(campaign_id=campaign_id, n=mark.n, what=what)]
    return []


def _intact(row: Row) -> bool:
    try:
        # A hash is made of canonical text, so the stored text stands for itself if it is canonical. Text that is not could say
        # one thing to Python and another to SQL (a key given twice).
        text = f"{row.prev}{row_text(row)}"
        return math.isfinite(row.at) and hashlib.sha256(text.encode()).hexdigest() == row.hash and canonical(row.record)
    except (TypeError, ValueError, RecursionError):
        return False


def row_text(row: Row) -> str:
    """Return what a hash covers besides `prev`, as `canonical_json` spells it, in a quarter of its time."""
    head = f'{{"at":{row.at!r},"campaign_id":{quoted(row.campaign_id)},"fence":{row.fence},"key":{quoted(row.key)}'
    return f'{head},"kind":{quoted(row.kind)},"n":{row.n},"record":{row.record}}}'


def _some(things: Sequence[object], most: int = 8) -> str:
    shown = ", ".join(str(t) for t in things[:most])
    return shown + (f" and {len(things) - most} more" if len(things) > most else "")
