"""Finished campaigns for the laws of lessons: played by real steps on a replayed cluster, each under an id of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lab import ID, LAYOUT, MICRO, Lab, campaign, play, workload

from attuner.core.base import Record
from attuner.core.events import Event, History
from attuner.core.lesson import Lesson
from attuner.launchers.replay import Row
from attuner.ledgers.duckdb_file import DuckdbLedger

NO_RECOMPUTE = {"group": "recompute", "arguments": {"recompute_granularity": None}}
FULL = [
    Row(match={"micro_batch_size": 4}, step_s=0.5),
    Row(match={"tensor_model_parallel_size": 1}, outcome="oom", detail="no room"),
    Row(step_s=1.0),
]
"""Micro batch 4 is twice as fast, TP 1 runs out of memory."""
FREE = [
    Row(match={"recompute_granularity": None, "micro_batch_size": 4}, step_s=0.9),
    Row(match={"recompute_granularity": None}, step_s=0.5),
    Row(step_s=1.0),
]
"""No recompute is twice as fast, and micro batch 4 slower from there."""


def played(folder: Path, name: str, table: list[Row], *moves: dict[str, Any], model: str = "lab") -> History:
    """Play a campaign through all its steps and return its past under its own id."""
    found = Lab(folder / name, table)
    play(found.kit(), campaign(*moves, workload=workload(model=model).data()))
    return renamed(found.history(), name)


def renamed(history: History, name: str) -> History:
    """Return a past as that of a campaign of another id."""

    def moved(event: Event) -> Event:
        record = {**event.record, "id": name} if event.kind == "campaign" else event.record
        key = name if event.key == ID else event.key
        return Event.model_validate({**event.model_dump(), "campaign_id": name, "key": key, "record": record})

    return History([moved(e) for e in history.events])


def three(folder: Path) -> list[History]:
    """Two models at which micro batch 4 helps under full recompute, and a third campaign without it, at which it hurts."""
    return [
        played(folder, "a-1", FULL, LAYOUT, MICRO),
        played(folder, "b-1", FULL, MICRO, model="other"),
        played(folder, "c-1", FREE, NO_RECOMPUTE, MICRO),
    ]


def lesson(**changes: Any) -> Lesson:
    """A hand-written lesson: micro batch 4 helps."""
    given = {"id": "planted", "text": "Micro batch 4 is faster.", "levers": ["micro-batch"], "effect": "helps"}
    where = {"scope": {"stack": "mcore"}, "when": {"micro_batch_size": 4}, "source": ["tests"], "status": "confirmed"}
    return Lesson.model_validate({**given, **where, **changes})


class Raw(Record):
    """A record as it stands in a ledger."""

    content: dict[str, Any]

    def data(self) -> dict[str, Any]:
        return self.content


def write_ledger(home: Path, histories: list[History]) -> None:
    """Write pasts into the ledger of an ATTUNER_HOME."""
    home.mkdir(parents=True, exist_ok=True)
    with DuckdbLedger(home / "attuner.duckdb") as ledger:
        for history in histories:
            name = history.campaign().id
            ledger.claim(name)
            with ledger.batch():
                for event in history.events:
                    if event.kind != "lease":
                        ledger.append(name, event.kind, event.key, Raw(content=event.record))
