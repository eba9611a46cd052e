"""The reading verbs: status, board, report, ledger verify and export. They work while a campaign runs."""

from __future__ import annotations

import argparse
import datetime as dt
import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attuner.cli.reading import STATUS, Unreadable, board_rows, no_collection, told
from attuner.core.errors import UserError
from attuner.core.events import History
from attuner.policy import budget
from attuner.settings import load_settings

if TYPE_CHECKING:
    from attuner.core.diagnosis import Diagnosis
    from attuner.ledgers.duckdb_file import DuckdbLedger


def status(arguments: argparse.Namespace) -> int:
    """Print one line per campaign, or one campaign with its launches."""
    from attuner.wiring import open_ledger

    settings = load_settings(project=arguments.project)
    ledger = open_ledger(settings)
    if arguments.campaign:
        history = History(ledger.history(ledger.find(arguments.campaign)))
        diagnosis = diagnosed(history, settings.rules_dir())
        data = {**one(history), "diagnosis": diagnosis.data() if diagnosis else None}
        if arguments.json:
            print(json.dumps(data, indent=1, ensure_ascii=False))
        else:
            print("\n".join([detail(data, history), *(bottleneck_lines(diagnosis) if diagnosis else [])]))
        return 0
    with no_collection():
        found = [
            told(name, past, lambda e: one(History(e))) for name, past in ledger.histories(ledger.campaigns(), without=STATUS)
        ]
    if arguments.json:
        print(json.dumps([r.row("stage") if isinstance(r, Unreadable) else r for r in found], indent=1, ensure_ascii=False))
    elif not found:
        print(f"no campaign yet in {settings.ledger}; start one with `attuner run FILE`")
    else:
        print("\n".join(r.line() if isinstance(r, Unreadable) else line(r) for r in found))
    return 0


def _campaign() -> Any:
    from attuner.core.campaign import Campaign

    return Campaign


def one(history: History) -> dict[str, Any]:
    """Return a campaign's state as plain data."""
    campaign, shipment, calibration, stop = history.campaign(), history.shipment(), history.calibration(), history.stop()
    running = [x.id for x in history.launches() if history.trial(x.id) is None]
    if shipment:
        stage = "on paper" if shipment.on_paper else "shipped"
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
        "failed": sum(1 for x in history.launches() if (t := history.trial(x.id)) and t.status not in ("ok", "stopped_early")),
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


SHOWN = 4
"""Bottlenecks that `status` names."""


def diagnosed(history: History, rules_dir: Path) -> Diagnosis | None:
    """Return what holds the leader's step up, with the levers that ease it; None before the calibration."""
    if not history.all("campaign", _campaign()) or not history.leader():
        return None
    from attuner.config import load_levers
    from attuner.traces.diagnosis import diagnose_launch

    return diagnose_launch(history, history.leader(), load_levers(rules_dir, history.campaign().stack.name))


def bottleneck_lines(diagnosis: Diagnosis) -> list[str]:
    """Return the largest bottlenecks, each with the most that easing it can give and the levers that ease it."""
    lines = [f"  where the step of {diagnosis.launch_id} goes; the most that easing a part can give; levers, strongest first"]
    for b in diagnosis.bottlenecks[:SHOWN]:
        lines.append(f"    {b.name:24} {b.share:6.1%}  at most {b.max_gain:+7.1%}  {', '.join(b.levers[:SHOWN])}".rstrip())
    told = {
        "bubble by the schedule": diagnosis.bubble or None,
        "slowest stage over the mean": diagnosis.stage_imbalance or None,
    }
    lines += [f"    {name}: {share:.1%}" for name, share in told.items() if share is not None]
    if diagnosis.mem_headroom_gib is not None:
        lines.append(f"    memory left on the fullest device: {diagnosis.mem_headroom_gib:.2f} GiB")
    return [*lines, *(f"    {text}" for text in [*diagnosis.stragglers[:SHOWN], *diagnosis.notes])]


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
        outcome = trial.status.replace("_", " ") if trial else "running"
        if score and score.valid:
            outcome = f"{score.tokens_per_s_per_gpu:,.0f}" + (f" {score.gain:+.0%}" if hypothesis else "")
        lead = "  new leader" if score and score.new_leader else ""
        lines.append(f"  {launch.id} {launch.kind:10} {said[:48]:48} {predicted:26} {outcome}{lead}")
        if trial is not None and trial.failure is not None:
            lines.append(f"  {'':{len(launch.id)}} {'':10} {trial.failure.said()}")
    if data["stop"]:
        lines.append(f"  stop       {data['stop']}")
    return "\n".join(lines)


def board(arguments: argparse.Namespace) -> int:
    """Print one line per campaign: what came of it, at what cost, and what waits for a person."""
    from attuner.report import board as table
    from attuner.wiring import open_ledger

    settings = load_settings(project=arguments.project)
    found = board_rows(lambda: open_ledger(settings))
    unread = [f for f in found if isinstance(f, Unreadable)]
    rows = table.in_order(f for f in found if not isinstance(f, Unreadable))
    if arguments.json:
        print(json.dumps([*rows, *(u.row("state") for u in unread)], indent=1, ensure_ascii=False), end="")
        return 0
    print(table.text(rows) if rows or not unread else "", *(u.line() + "\n" for u in unread), sep="", end="")
    return 0


def report(arguments: argparse.Namespace) -> int:
    """Write report.md and report.html from the ledger, whatever state the campaign is in."""
    from attuner.steps.context import PRICES, context_of
    from attuner.steps.ship import write_report
    from attuner.wiring import open_ledger

    settings = load_settings(project=arguments.project)
    ledger = open_ledger(settings)
    name = ledger.find(arguments.campaign)
    folder, history = settings.folder(name), History(ledger.history(name))
    folder.mkdir(parents=True, exist_ok=True)
    context = context_of(history, settings.rules_dir(), settings.configs_dir() / PRICES)
    paths = [str(p) for p in write_report(history, folder, context)]
    print(json.dumps(paths) if arguments.json else "\n".join(paths))
    return 0


def ledger_verify(arguments: argparse.Namespace) -> int:
    """Find what is wrong with the ledger; exit 6 if anything is."""
    from attuner.wiring import open_ledger

    settings = load_settings(project=arguments.project)
    if not settings.ledger.exists():
        raise UserError(f"{settings.ledger}: no ledger there; set ATTUNER_HOME or run a campaign first")
    ledger = open_ledger(settings)
    with no_collection():
        problems = ledger.verify(ledger.find(arguments.campaign) if arguments.campaign else None)
    if arguments.json:
        print(json.dumps([p.data() for p in problems], indent=1))
    elif problems:
        print("\n".join(p.line() for p in problems))
    else:
        counts = ledger.counts()
        print(
            f"{settings.ledger}: sound; {sum(counts.values())} events in {len(counts)} campaigns, "
            f"every chain whole to its last acknowledged row"
        )
    return 6 if problems else 0


def ledger_export(arguments: argparse.Namespace) -> int:
    """Write a consistent snapshot for plain SQL, or with two words one campaign as a replay table."""
    from attuner.wiring import open_ledger

    settings = load_settings(project=arguments.project)
    if not settings.ledger.exists():
        raise UserError(f"{settings.ledger}: no ledger there; set ATTUNER_HOME or run a campaign first")
    if len(arguments.target) > 2:
        raise UserError("ledger export: name a file, or a campaign and a .csv file")
    target = Path(arguments.target[-1])
    if len(arguments.target) == 2:
        return _export_table(arguments, open_ledger(settings), target)
    open_ledger(settings).export(target)
    print(json.dumps({"written": str(target)}) if arguments.json else f"wrote {target}")
    return 0


def _export_table(arguments: argparse.Namespace, ledger: DuckdbLedger, target: Path) -> int:
    """Write TABLE.csv with its description TABLE.yaml beside it."""
    from attuner.tables import recorded

    if target.suffix != ".csv":
        raise UserError(f"export {target}: a replay table is a .csv file")
    description = target.with_suffix(".yaml")
    taken = next((p for p in (target, description) if p.exists()), None)
    if taken is not None:
        raise UserError(f"export {target}: {taken} is there already; name another file")
    if not target.parent.is_dir():
        raise UserError(f"export {target}: no folder {target.parent}; make it first")
    name = ledger.find(arguments.target[0])
    made = recorded(History(ledger.history(name)))
    target.write_text(made.rows, encoding="utf-8")
    description.write_text(f"# Written by `attuner ledger export {name} {target.name}`.\n{made.about}", encoding="utf-8")
    if arguments.json:
        print(json.dumps({"written": [str(target), str(description)], "rows": made.num_rows, "left_out": made.left_out}))
    else:
        print(f"wrote {target}: {made.num_rows} recipes of {name}, and {description.name} beside it")
        print(*(f"left out {line}" for line in made.left_out), sep="\n", end="\n" if made.left_out else "")
    return 0
