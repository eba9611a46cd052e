"""`attuner spend`: where device-hours and dollars went, over all campaigns or in one."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from attuner.cli.reading import SPEND, no_collection
from attuner.core.errors import UserError
from attuner.core.events import History
from attuner.report import spend as account
from attuner.settings import Settings, load_settings
from attuner.steps.context import PRICES, read_price_table


def spend(arguments: argparse.Namespace) -> int:
    """Print the account, from the ledger alone."""
    from attuner.core.campaign import Campaign
    from attuner.wiring import open_ledger

    settings = load_settings(project=arguments.project)
    prices = read_prices(arguments.prices, settings)
    ledger = open_ledger(settings)
    names = [ledger.find(arguments.campaign)] if arguments.campaign else ledger.campaigns()
    with no_collection():
        read = (History(past) for _, past in ledger.histories(names, without=SPEND))
        histories = [h for h in read if h.all("campaign", Campaign)]
    if not histories:
        raise UserError(f"no campaign yet in {settings.ledger}; start one with `attuner run FILE`")
    if arguments.campaign and not arguments.by:
        data: dict[str, Any] = account.whole(histories[0], prices)
        print(json.dumps(data, indent=1) if arguments.json else _one(data))
        return 0
    by = arguments.by or "campaign"
    with no_collection():
        found = [charge for history in histories for charge in account.charges(history, prices)]
    data = {"by": by, "rows": account.summed(found, by), "total": account.total(found)}
    if arguments.json:
        print(json.dumps(data, indent=1))
    else:
        print("\n".join(_table(by, [*data["rows"], {by: "total", **data["total"]}])))
    return 0


def read_prices(given: str, settings: Settings) -> dict[str, account.DevicePrice]:
    """Read the price table. Raises UserError when a named one is missing or an entry is malformed."""
    file = Path(given) if given else settings.configs_dir() / PRICES
    return read_price_table(file) if given or file.is_file() else {}


def _one(data: dict[str, Any]) -> str:
    limit = "" if data["budget_gpu_hours"] is None else f" of {data['budget_gpu_hours']:g}"
    held = f", {data['reserved_gpu_hours']:.3f} more are reserved by what runs" if data["reserved_gpu_hours"] else ""
    model = f" · language model {data['model_usd']:.2f} US dollars" if data["model_usd"] else ""
    head = (
        f"{data['campaign']}: {data['gpu_hours']:.3f}{limit} device-hours{_usd(data)} in {data['attempts']} attempts{held}{model}"
    )
    return "\n".join([head, *_table("purpose", data["by_purpose"]), *_table("outcome", data["by_outcome"])])


def _usd(row: dict[str, Any]) -> str:
    return "" if row["usd"] is None else f" · {row['usd']:,.2f} US dollars"


def _table(by: str, rows: list[dict[str, Any]]) -> list[str]:
    width = max(len(by), *(len(str(row[by])) for row in rows)) if rows else len(by)
    lines = [f"  {by:{width}}  device-hours   US dollars  attempts"]
    for row in rows:
        usd = "–" if row["usd"] is None else f"{row['usd']:,.2f}"
        lines.append(f"  {row[by]:{width}}  {row['gpu_hours']:12.3f}  {usd:>11}  {row['attempts']:8}")
    return lines
