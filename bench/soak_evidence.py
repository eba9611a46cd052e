"""Gathers what the judge needs: the ledger's records, the stamps in every run folder, the soak's own record."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from soak_judge import Found, Left, judge
from soak_record import Known, Record

from attuner.core.errors import AttunerError
from attuner.core.events import History
from attuner.launchers.run_folder import read_stamps
from attuner.ledgers.duckdb_file import DuckdbLedger
from attuner.policy import budget


@dataclass
class Judged:
    """One campaign of the soak, with what it broke."""

    part: str
    i: int
    known: Known
    campaign_id: str = ""
    outcome: str = ""
    reason: str = ""
    spent: float = 0.0
    total: float = 0.0
    launches: int = 0
    attempts: int = 0
    wrong: list[str] = field(default_factory=list)


def left_by(folder: Path) -> list[Left]:
    """Return what each run folder of a campaign says."""
    found = []
    for run in sorted((folder / "runs").glob("*-a*")):
        launch_id, _, number = run.name.rpartition("-a")
        stamp = read_stamps(run).stamp()
        found.append(Left(launch_id, int(number), stamp.allocated_at, stamp.released_at, stamp.last_heartbeat))
    return found


def judged(folder: Path) -> tuple[list[Judged], list[str]]:
    """Return every campaign of a soak folder with what it broke, and what is wrong with the soak as a whole."""
    record, home = Record(folder / "soak.jsonl"), folder / "home"
    wrong = [f"left running after the end: {x['pid']} {x['command'][:150]}" for x in record.lines() if x["what"] == "left"]
    wrong += [f"a flow run that never ended: {run}" for x in record.lines() if x["what"] == "unfinished" for run in x["runs"]]
    out = []
    with DuckdbLedger(home / "attuner.duckdb") as ledger:
        wrong += [f"ledger: {p.line()}" for p in ledger.verify(None)]
        born: dict[str, list[str]] = {}
        for name in ledger.campaigns():
            born.setdefault(name.rpartition("-")[0], []).append(name)
        for part in ("replay", "real"):
            for i, known in sorted(record.known(part).items()):
                name = str((known.begun or {}).get("name", ""))
                found = Judged(part, i, known)
                try:
                    _one(ledger, home, found, sorted(born.pop(name, [])))
                except AttunerError as error:
                    found.wrong.append(f"can't be read: {error}")
                out.append(found)
        wrong += [f"a campaign that the soak did not begin: {x}" for names in born.values() for x in names]
    return out, wrong


def _one(ledger: DuckdbLedger, home: Path, found: Judged, ids: list[str]) -> None:
    end: dict[str, Any] = found.known.end or {"how": "under way", "message": ""}
    found.outcome, found.reason = end["how"], end["message"]
    said = end["message"] if end["how"] == "stopped" else ""
    if " Broken: " in said or end["how"] == "not ended":
        found.wrong.append(f"{end['how']}: {end['message']}")
    if not ids:
        found.wrong += [] if said else ["never born, and no reason"]
        return
    histories = {name: History(ledger.history(name)) for name in ids}
    found.campaign_id = max(ids, key=lambda x: len(histories[x].events))
    for name in ids:
        if name != found.campaign_id:
            paid = f", {budget.spent(histories[name]):.4f} device-hours spent" if histories[name].launches() else ""
            found.wrong.append(f"born twice: {name} was given up{paid}")
    history = histories[found.campaign_id]
    folder = home / found.campaign_id
    files = [p.name for p in folder.iterdir()] if folder.is_dir() else []
    real = found.part == "real"
    found.wrong += judge(Found(found.campaign_id, history.events, left_by(folder), files, said=said, real=real))
    found.spent, found.total = budget.spent(history), budget.total(history)
    found.launches = len(history.launches())
    found.attempts = sum(len(history.attempts(x.id)) for x in history.launches())
    shipment = history.shipment()
    if shipment is not None:
        kind = "kept the baseline" if shipment.kept_baseline else "found on paper" if shipment.on_paper else "shipped"
        found.outcome, found.reason = f"completed: {kind}", shipment.reason
