"""The reading verbs: status, board, report, ledger verify and export. They work while a campaign runs."""

from __future__ import annotations

import argparse
import datetime as dt
import json
import math
from pathlib import Path
from typing import Any

from attuner.core.errors import UserError
from attuner.core.events import History
from attuner.policy import budget
from attuner.settings import load_settings


def status(arguments: argparse.Namespace) -> int:
    """Print one line per campaign, or one campaign with its launches."""
    from attuner.wiring import open_ledger

    settings = load_settings(project=arguments.project)
    ledger = open_ledger(settings)
    if arguments.campaign:
        history = History(ledger.history(ledger.find(arguments.campaign)))
        data = one(history)
        print(json.dumps(data, indent=1, ensure_ascii=False) if arguments.json else detail(data, history))
        return 0
    rows = [one(h) for name in ledger.campaigns() if (h := History(ledger.history(name))).all("campaign", _campaign())]
    if arguments.json:
        print(json.dumps(rows, indent=1, ensure_ascii=False))
    elif not rows:
        print(f"no campaign yet in {settings.ledger}; start one with `attuner run FILE`")
    else:
        print("\n".join(line(row) for row in rows))
    return 0


def _campaign() -> Any:
    from attuner.core.campaign import Campaign

    return Campaign


def one(history: History) -> dict[str, Any]:
    """Return a campaign's state as plain data."""
    campaign, shipment, calibration, stop = history.campaign(), history.shipment(), history.calibration(), history.stop()
    running = [x.id for x in history.launches() if history.trial(x.id) is None]
    if shipment:
        stage = "shipped"
    elif stop:
        stage = "remeasure"
    elif calibration:
        stage = "search"
    else:
        stage = "calibrate"
    total = budget.total(history)
    best = history.leader_speed()
    return {
        "campaign": campaign.id,
        "stage": stage,
        "running": running,
        "born": dt.datetime.fromtimestamp(history.events[0].at, tz=dt.UTC).isoformat(timespec="seconds"),
        "last_event": dt.datetime.fromtimestamp(history.events[-1].at, tz=dt.UTC).isoformat(timespec="seconds"),
        "launches": len(history.launches()),
        "failed": sum(1 for x in history.launches() if (t := history.trial(x.id)) and t.status != "ok"),
        "baseline_tokens_per_s_per_gpu": calibration.mean if calibration else None,
        "best_tokens_per_s_per_gpu": best or None,
        "band": calibration.band if calibration else None,
        "shipped_gain": shipment.gain if shipment else None,
        "kept_baseline": shipment.kept_baseline if shipment else None,
        "spent_gpu_hours": budget.spent(history),
        "budget_gpu_hours": total if math.isfinite(total) else None,
        "stop": stop.reason if stop else None,
        "waits_for_review": shipment.open_reviews if shipment else [],
    }


def line(row: dict[str, Any]) -> str:
    """Return one campaign as one line."""
    gain = (
        ""
        if row["shipped_gain"] is None
        else f"  {row['shipped_gain']:+.0%}" + (" (baseline kept)" if row["kept_baseline"] else "")
    )
    whole = f" of {row['budget_gpu_hours']:g}" if row["budget_gpu_hours"] else ""
    review = f"  {len(row['waits_for_review'])} for review" if row["waits_for_review"] else ""
    return (
        f"{row['campaign']:26} {row['stage']:10}{gain:18} {row['launches']:3} launches, {row['failed']} failed, "
        f"{row['spent_gpu_hours']:.3f}{whole} device-hours{review}"
    )


def detail(data: dict[str, Any], history: History) -> str:
    """Return one campaign with its launches, predictions beside outcomes."""
    lines = [line(data), f"  last event {data['last_event']}"]
    for launch in history.launches():
        trial, score = history.trial(launch.id), history.score(launch.id)
        hypothesis = history.hypothesis(launch.hypothesis) if launch.hypothesis else None
        said = hypothesis.title if hypothesis else launch.purpose
        predicted = f"predicted {hypothesis.predicted_gain:+.0%} (±{hypothesis.predicted_error:.0%})" if hypothesis else ""
        outcome: str = trial.status if trial else "running"
        if score and score.valid:
            outcome = f"{score.tokens_per_s_per_gpu:,.0f}" + (f" {score.gain:+.0%}" if hypothesis else "")
        lead = "  new leader" if score and score.new_leader else ""
        lines.append(f"  {launch.id} {launch.kind:10} {said[:48]:48} {predicted:26} {outcome}{lead}")
    if data["stop"]:
        lines.append(f"  stop       {data['stop']}")
    return "\n".join(lines)


def board(arguments: argparse.Namespace) -> int:
    """Print one line per campaign: what came of it, at what cost, and what waits for a person."""
    from attuner.report import board as table
    from attuner.wiring import open_ledger

    ledger = open_ledger(load_settings(project=arguments.project))
    rows = table.rows(ledger.history(name) for name in ledger.campaigns())
    print(json.dumps(rows, indent=1, ensure_ascii=False) if arguments.json else table.text(rows), end="")
    return 0


def report(arguments: argparse.Namespace) -> int:
    """Write report.md and report.html from the ledger, whatever state the campaign is in."""
    from attuner.steps.ship import write_report
    from attuner.wiring import open_ledger

    settings = load_settings(project=arguments.project)
    ledger = open_ledger(settings)
    name = ledger.find(arguments.campaign)
    folder = settings.folder(name)
    folder.mkdir(parents=True, exist_ok=True)
    paths = [str(p) for p in write_report(History(ledger.history(name)), folder)]
    print(json.dumps(paths) if arguments.json else "\n".join(paths))
    return 0


def ledger_verify(arguments: argparse.Namespace) -> int:
    """Find what is wrong with the ledger; exit 6 if anything is."""
    from attuner.wiring import open_ledger

    settings = load_settings(project=arguments.project)
    if not settings.ledger.exists():
        raise UserError(f"{settings.ledger}: no ledger there; set ATTUNER_HOME or run a campaign first")
    ledger = open_ledger(settings)
    problems = ledger.verify(ledger.find(arguments.campaign) if arguments.campaign else None)
    if arguments.json:
        print(json.dumps([p.data() for p in problems], indent=1))
    elif problems:
        print("\n".join(p.line() for p in problems))
    else:
        counts = {name: len(ledger.history(name)) for name in ledger.campaigns()}
        print(
            f"{settings.ledger}: sound; {sum(counts.values())} events in {len(counts)} campaigns, "
            f"every chain whole to its last acknowledged row"
        )
    return 6 if problems else 0


def ledger_export(arguments: argparse.Namespace) -> int:
    """Write a consistent snapshot for plain SQL."""
    from attuner.wiring import open_ledger

    settings = load_settings(project=arguments.project)
    if not settings.ledger.exists():
        raise UserError(f"{settings.ledger}: no ledger there; set ATTUNER_HOME or run a campaign first")
    target = Path(arguments.target)
    open_ledger(settings).export(target)
    print(json.dumps({"written": str(target)}) if arguments.json else f"wrote {target}")
    return 0
