"""What a rerun did again and what it left alone, as rows: read from the records after the `invalidated` event. Pure."""

from __future__ import annotations

from attuner.core.base import Record
from attuner.core.events import INVALIDATED, Event, History
from attuner.core.people import Invalidated
from attuner.core.run import Attempt

STEP_OF = {
    "trial": "launch",
    "breakdown": "profile",
    "score": "score",
    "verdict": "gate",
    "calibration": "calibrate",
    "remeasurement": "remeasure",
    "shipment": "ship",
    "stop": "hypothesize",
    "launch": "decide",
}


class RerunRow(Record):
    """One step: which, and what became of it."""

    step: str
    key: str
    what: str


def rerun_rows(history: History, *, since: int = 0) -> list[RerunRow]:
    """Return what ran again after a person's last rerun, or after event number `since`, and what was kept.

    Rows: a new attempt with its charge, what was computed again, what was decided anew; last what stayed, by step.
    """
    since = since or _last(history)
    if not since:
        return []
    after = [e for e in history.events if e.n > since]
    before = {(e.kind, e.key) for e in history.events if e.n <= since}
    shown_kinds = {*STEP_OF, "attempt", INVALIDATED}
    rows = [_row(history, e, again=(e.kind, e.key) in before) for e in after if e.kind in shown_kinds]
    shown = list({(r.step, r.key): r for r in rows if r is not None}.values())
    redone = {(e.kind, e.key) for e in after}
    kept: dict[str, list[str]] = {}
    for kind, step in STEP_OF.items():
        for key in history.keys(kind):
            if (kind, key) not in redone and kind not in ("launch", "verdict"):
                kept.setdefault(step, []).append(key)
    return [*shown, *(RerunRow(step=s, key=_some(keys), what="kept") for s, keys in kept.items())]


def _last(history: History) -> int:
    reruns = [e for e in history.events if e.kind == INVALIDATED and e.read(Invalidated).by != "attuner"]
    return reruns[-1].n if reruns else 0


def _row(history: History, event: Event, *, again: bool) -> RerunRow | None:
    if event.kind == "attempt":
        attempt = event.read(Attempt)
        charge = history.settled(attempt.launch_id, attempt.number)
        cost = f", {charge.gpu_hours:.5f} device-hours" if charge else ""
        return RerunRow(step="launch", key=attempt.launch_id, what=f"new attempt {attempt.number}{cost}")
    if event.kind == INVALIDATED:
        said = event.read(Invalidated)
        return RerunRow(step=said.step, key=said.key, what=f"made again: {said.why}") if said.by == "attuner" else None
    if event.kind == "trial":
        return None  # its attempt says it
    if event.kind == "launch":
        return RerunRow(step="decide", key=event.key, what="new launch")
    step = "look" if event.kind == "verdict" and "#" in event.key else STEP_OF[event.kind]
    done = "judged" if event.kind == "verdict" else "computed"
    return RerunRow(step=step, key=event.key, what=f"{done} again" if again else done)


def _some(keys: list[str], most: int = 12) -> str:
    return ", ".join(keys[:most]) + (f" and {len(keys) - most} more" if len(keys) > most else "")
