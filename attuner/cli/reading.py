"""What the reading verbs share: a year's campaigns read at once, without what a verb never shows, and what can't be read said."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import msgspec

from attuner.core.errors import Broken
from attuner.core.events import Event, History
from attuner.ledgers.chain import Part
from attuner.ledgers.halves import both, may_fork
from attuner.report.words import clean

if TYPE_CHECKING:
    from attuner.ledgers.duckdb_file import DuckdbLedger

T = TypeVar("T")

_LONG = frozenset({"fingerprint"})
_LONG_KINDS = frozenset({"effective", "message", "reply", "breakdown", "recipe", "forecast", "component"})
SITE = Part(fields={"trial": _LONG})
"""What no report shows: what the probe saw of the first steps. The looks' verdicts say what came of it."""
STATUS = Part(_LONG_KINDS | {"verdict", "hypothesis", "attempt"}, {"trial": _LONG | {"steps"}})
"""What a campaign's line in `attuner status` doesn't need."""
SPEND = Part((_LONG_KINDS - {"message", "reply"}) | {"verdict", "hypothesis", "score"}, {"trial": _LONG | {"steps"}})
"""What the account of charges doesn't need."""
BOARD = Part(_LONG_KINDS, {"trial": _LONG | {"steps"}})
"""What a campaign's line on the board doesn't need."""
BOARD_SHIPPED = Part(BOARD.kinds | {"verdict"}, BOARD.fields)
"""Once a campaign has shipped, its shipment says what waits for a person, and no verdict is asked."""
_VERDICTS = Part(
    (BOARD_SHIPPED.kinds - {"verdict"})
    | {
        "attempt",
        "calibration",
        "directive",
        "hypothesis",
        "launch",
        "remeasurement",
        "review",
        "score",
        "settled",
        "taught",
        "trial",
    }
)
"""What is left out when the verdicts alone are read."""


LONG_BYTES = 2**24
"""Of a ledger file of this size the board takes about a second: worth a second process."""


class Unreadable(NamedTuple):
    """A campaign that can't be told of: a record of it does not have the shape of its kind, as after a change of version."""

    campaign: str
    problem: str
    updated_at: float

    def row(self, state: str) -> dict[str, Any]:
        """Return it as plain data, with the name of the key that says how a campaign is."""
        return {"campaign": self.campaign, state: "unreadable", "problem": self.problem}

    def line(self) -> str:
        """Return it as one line for a person."""
        return (
            f"{self.campaign:26} can't be read: {self.problem}; was it written by another version of attuner? "
            "`attuner ledger verify` tells whether the ledger is sound"
        )


@contextlib.contextmanager
def no_collection() -> Iterator[None]:
    """Look for no cycles meanwhile: a year's events hold none, and looking takes half of the time."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def told(name: str, events: Sequence[Event], tell: Callable[[list[Event]], T]) -> T | Unreadable:
    """Return what `tell` makes of a campaign, or why it can't."""
    try:
        return tell(list(events))
    except (Broken, ValueError, KeyError, IndexError) as error:  # pydantic's own error is a ValueError
        return Unreadable(name, _first(error), events[-1].at if events else 0.0)


def _first(error: Exception) -> str:
    """Return an error in one line: of many things that are wrong with a record, the first."""
    errors = getattr(error, "errors", None)
    if errors is None:
        cause = error.__cause__
        return _first(cause) if isinstance(cause, ValueError) else clean(error, limit=160)
    found = errors()[0]
    where = ".".join(str(x) for x in found["loc"])
    return clean(f"{getattr(error, 'title', 'record')} {where}: {found['msg']}", limit=160)


def board_events(ledger: DuckdbLedger, names: Sequence[str]) -> Iterator[tuple[str, list[Event]]]:
    """Yield every campaign's events as far as the board's lines need them: verdicts only of those that have not shipped."""
    waiting = {}
    for name, events in ledger.histories(names, without=BOARD_SHIPPED):
        if History(events).keys("shipment"):
            yield name, events
        else:
            waiting[name] = events
    for name, more in ledger.histories(list(waiting), without=_VERDICTS):
        events = waiting.pop(name)
        last = events[-1].n if events else 0  # what was written since is left for the next time
        verdicts = [e for e in more if e.kind == "verdict" and e.n <= last]
        have = {e.n for e in events}
        yield name, sorted([*events, *(v for v in verdicts if v.n not in have)], key=lambda e: e.n)


def board_rows(opened: Callable[[], DuckdbLedger], *, long: int = LONG_BYTES) -> list[dict[str, Any] | Unreadable]:
    """Return the row of every campaign, or why it has none; of a ledger of `long` bytes two processes read half each.

    opened: opens the ledger; called again in the other process.
    """
    ledger = opened()
    names = ledger.campaigns()
    if len(names) < 2 or ledger.path.stat().st_size < long or not may_fork():
        return _board_rows(ledger, names)
    half = len(names) // 2  # campaigns that ran at once lie between each other: those of one time are read by one
    rows, answer = both(
        lambda: _board_rows(ledger, names[half:]), lambda: msgspec.msgpack.encode(_board_rows(opened(), names[:half]))
    )
    if answer is None:
        return rows + _board_rows(ledger, names[:half])
    return rows + [r if isinstance(r, dict) else Unreadable(*r) for r in msgspec.msgpack.decode(answer)]


def _board_rows(ledger: DuckdbLedger, names: Sequence[str]) -> list[dict[str, Any] | Unreadable]:
    from attuner.report.board import brief, row

    return [told(name, past, lambda events: row(brief(events))) for name, past in board_events(ledger, names)]
