"""What a report knows beside the ledger: the price table and the stack's lever catalog, read from the project's files."""

from __future__ import annotations

from pathlib import Path

from attuner.config import load_levers
from attuner.core.campaign import Campaign
from attuner.core.errors import UserError
from attuner.core.events import History
from attuner.report.details import Context
from attuner.report.spend import DevicePrice
from attuner.yamlfile import parse, read_yaml

PRICES = "device_prices.yaml"
"""Name of the price table in configs/."""


def read_price_table(file: Path) -> dict[str, DevicePrice]:
    """Return US dollars per device-hour, by cluster or hardware name in lower case.

    Raises:
        UserError: the file is missing, or an entry is malformed.
    """
    data = read_yaml(file) or {}
    if not isinstance(data, dict):
        raise UserError(f"{file}: expected a price by hardware; see configs/{PRICES}")
    return {str(name).lower(): parse(DevicePrice, entry, f"{file}: {name}") for name, entry in data.items()}


def context_of(history: History, rules_dir: Path, prices_file: Path | None) -> Context:
    """Return the context of a campaign's report. What can't be read is left out: a report is written whatever files say."""
    if not history.all("campaign", Campaign):
        return Context()
    prices: dict[str, DevicePrice] = {}
    why = ""
    if prices_file is not None and prices_file.is_file():
        try:
            prices = read_price_table(prices_file)
        except UserError as error:
            why = f"the price table can't be read ({error})"
    try:
        levers = load_levers(rules_dir, history.campaign().stack.name)
    except UserError:
        levers = []  # only the names of what eases a bottleneck are missing then
    return Context(prices=prices, no_prices=why, levers=tuple(levers))
