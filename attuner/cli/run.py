"""`attuner run FILE` and `attuner resume CAMPAIGN`: the whole campaign as a Prefect flow, with progress in the terminal."""

from __future__ import annotations

import argparse
import importlib
import os
import signal
import sys
from pathlib import Path
from typing import Any

from attuner.cli.leftovers import end_leftovers, mark
from attuner.core.errors import AttunerError, UserError
from attuner.core.events import History
from attuner.policy import budget
from attuner.settings import Settings, load_settings

QUIET_PREFECT = {
    # no telemetry, and the console is ours: Prefect's own log lines still go to its server
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "DO_NOT_TRACK": "1",
    "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "CRITICAL",
    "PREFECT_LOGGING_INTERNAL_LEVEL": "ERROR",
    "PREFECT_CLI_PROMPT": "false",
    # a server on SQLite answers 503 while ten campaigns write; five tries were not enough for two of them
    "PREFECT_CLIENT_MAX_RETRIES": "20",
}


def run(arguments: argparse.Namespace) -> int:
    """Run a campaign from its file."""
    settings = load_settings(project=arguments.project)
    settings.flows_file()
    from attuner.wiring import build_kit, read_campaign

    # what can be refused at once is refused before a server is started
    campaign = read_campaign(arguments.file, settings)
    budget.check_at_birth(campaign, source=arguments.file)
    build_kit(campaign, settings)
    return _flow(settings, quiet=arguments.quiet, file=str(Path(arguments.file).resolve()))


def resume(arguments: argparse.Namespace) -> int:
    """Go on with a campaign that was cut off; what is on record is not done again."""
    settings = load_settings(project=arguments.project)
    settings.flows_file()
    from attuner.wiring import open_ledger

    ledger = open_ledger(settings)
    name = ledger.find(arguments.campaign)
    ledger.claim(name)  # a second process is refused here, before a server is started
    ledger.release(name)
    ledger.close()
    return go_on_with(settings, name, quiet=arguments.quiet)


def go_on_with(settings: Settings, campaign_id: str, *, quiet: bool) -> int:
    """Run the flow on a campaign that is on record; return the exit code."""
    return _flow(settings, quiet=quiet, campaign_id=campaign_id)


def _flow(settings: Settings, *, quiet: bool, **parameters: str) -> int:
    for key, value in QUIET_PREFECT.items():
        os.environ.setdefault(key, value)
    end_leftovers(settings.home)
    mark(settings.home)
    os.environ["ATTUNER_PROJECT"] = str(settings.project)
    os.environ["ATTUNER_HOME"] = str(settings.home)
    from rich.console import Console

    from attuner.cli.live import LiveWatch
    from attuner.wiring import open_ledger, watch_with

    console = Console(highlight=False)
    watch = LiveWatch(console, quiet=quiet)
    if "campaign_id" in parameters:
        watch.load(open_ledger(settings).history(parameters["campaign_id"]))
    token = watch_with.set(watch)
    signal.signal(signal.SIGTERM, _terminated)
    try:
        with watch:
            folder = _load(settings)(**parameters)
    except KeyboardInterrupt:
        _interrupted(watch, settings)
        return 130
    except AttunerError:
        _interrupted(watch, settings)
        raise
    finally:
        watch_with.reset(token)
    _last_lines(console, settings, Path(folder))
    return 0


def _terminated(_signum: int, _frame: object) -> None:
    """End as with Ctrl-C: the job is stopped, its charge settled, and the last line says how to resume."""
    raise KeyboardInterrupt


def _load(settings: Settings) -> Any:
    """Return the flow of the project; its folder goes on the path as it does for Prefect's own commands."""
    root = str(settings.project)
    if root not in sys.path:
        sys.path.insert(0, root)
    # imported, not read from its source: Prefect's loader hides an import error behind a half-loaded flow
    return importlib.import_module("flows.campaign").campaign


def _interrupted(watch: Any, settings: Settings) -> None:
    name = watch.campaign_id()
    if name:
        print(f"attuner: {name} can go on: attuner resume {name}   (files: {settings.folder(name)})", file=sys.stderr)


def _last_lines(console: Any, settings: Settings, folder: Path) -> None:
    from attuner.report import claims
    from attuner.report.facts import gather
    from attuner.steps.ship import recipe_name
    from attuner.wiring import open_ledger

    history = History(open_ledger(settings).history(folder.name))
    shipment, again = history.shipment(), history.remeasurement()
    if shipment is None:
        raise UserError(f"{folder.name}: ended without a shipment; `attuner status {folder.name}`")
    spent, total = budget.spent(history), budget.total(history)
    kept = (
        f"baseline kept: {shipment.reason}" if shipment.kept_baseline else f"{shipment.gain:+.0%} over the re-measured baseline"
    )
    band = f" (band {again.band:.1%})" if again else ""
    head = claims.headline(gather(history.events)).removeprefix("Re-tuning: ") if history.campaign().retunes else ""
    ui = os.environ.get("PREFECT_API_URL", "")
    see = ui.removesuffix("/api") if ui else "prefect server start, then http://127.0.0.1:4200"
    for label, text in (
        ("not shippable" if shipment.on_paper else "shipped", f"{folder / recipe_name(shipment)}"),
        ("gain", kept + band),
        *([("re-tuning", head)] if head else []),
        ("spent", f"{spent * 60:.1f} of {total * 60:.1f} device-minutes, {len(history.launches())} launches"),
        ("report", f"{folder / 'report.html'}"),
        ("Prefect UI", see),
    ):
        console.print(f"  {label:16}{text}", soft_wrap=True, markup=False)
