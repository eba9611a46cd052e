"""Where device-hours and dollars went: one charge per closed attempt, whatever launcher ran it, summed by campaign, purpose,
outcome, launcher or hardware. A charge is what the ledger settled: from allocation to release, failures, checks, lost
allocations and repeated measurements included."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from typing import Any

from pydantic import Field

from attuner.core.base import Record
from attuner.core.campaign import Campaign
from attuner.core.events import History
from attuner.core.run import Settlement
from attuner.policy import budget, dollars

GROUPS = ("campaign", "purpose", "outcome", "launcher", "hardware")
PURPOSES = {
    "prepare": "checkpoint",
    "calibrate": "calibration",
    "search": "search",
    "check": "checks",
    "remeasure": "re-measurement",
}


class DevicePrice(Record):
    """What an hour of one device costs, as the user states it."""

    usd_per_hour: float = Field(ge=0, allow_inf_nan=False)
    source: str
    read: str = Field(default="", description="day on which the source said so")


class Charge(Record):
    """One closed attempt, and what it cost."""

    campaign: str
    launch: str
    attempt: int
    purpose: str
    outcome: str
    launcher: str
    hardware: str
    gpus: int
    gpu_hours: float
    usd: float | None = Field(description="None: nobody states a price for this hardware")
    how: str


def charges(history: History, prices: dict[str, DevicePrice]) -> list[Charge]:
    """Return every charge of a campaign, in the order in which they were settled.

    prices: US dollars per device-hour, by cluster name or by a word of the workload's hardware.
    """
    campaign = history.campaign()
    price = price_of(campaign, prices)
    found = []
    for charge in history.settlements():
        launch = history.launch(charge.launch_id)
        found.append(
            Charge(
                campaign=campaign.id,
                launch=charge.launch_id,
                attempt=charge.attempt,
                purpose=PURPOSES.get(launch.kind, launch.kind) if launch else "unknown",
                outcome=outcome(history, charge),
                launcher=campaign.launcher.name,
                hardware=campaign.workload.hardware,
                gpus=charge.gpus,
                gpu_hours=charge.gpu_hours,
                usd=None if price is None else charge.gpu_hours * price.usd_per_hour,
                how=charge.how,
            )
        )
    return found


def outcome(history: History, charge: Settlement) -> str:
    """Return in a word or two what came of an attempt."""
    if charge.how == "never_allocated":
        return "never allocated"
    if charge.interrupted:
        return "interrupted"
    if charge.lost:
        return "allocation lost"
    trial = history.trial(charge.launch_id)
    if trial is None:
        return "no trial yet"
    if trial.attempt != charge.attempt:
        return "measured again"
    return trial.status.replace("_", " ")


def price_of(campaign: Campaign, prices: dict[str, DevicePrice]) -> DevicePrice | None:
    """Return the price that holds for a campaign: its cluster's, else its hardware's by product (`8xH100` is `h100`)."""
    cluster = campaign.launcher.cluster.name.lower()
    words = re.split(r"[^a-z0-9]+", re.sub(r"([0-9])x", r"\1 ", campaign.workload.hardware.lower()))
    return next((prices[name] for name in (cluster, *words) if name in prices), None)


def summed(found: Iterable[Charge], by: str) -> list[dict[str, Any]]:
    """Return sums by one of GROUPS: device-hours, dollars (None where a price is missing), attempts; the dearest first."""
    groups: dict[str, list[Charge]] = {}
    for charge in found:
        groups.setdefault(str(getattr(charge, by)), []).append(charge)
    rows = [{by: name, **total(members)} for name, members in groups.items()]
    return sorted(rows, key=lambda row: (-row["gpu_hours"], row[by]))


def total(found: Sequence[Charge]) -> dict[str, Any]:
    """Return device-hours, dollars and number of attempts of some charges."""
    usd = [c.usd for c in found]
    return {
        "gpu_hours": sum(c.gpu_hours for c in found),
        "usd": None if None in usd or not usd else sum(x for x in usd if x is not None),
        "attempts": len(found),
    }


def budget_of(history: History) -> float | None:
    """Return what the campaign may spend, device-hours, a person's last word included; None while `auto` waits for a measure."""
    limit = budget.total(history)
    return limit if math.isfinite(limit) else None


def whole(history: History, prices: dict[str, DevicePrice]) -> dict[str, Any]:
    """Return one campaign's account: its total, its budget, what is held, what the language model cost, each grouping."""
    found = charges(history, prices)
    return {
        "campaign": history.campaign().id,
        **total(found),
        "budget_gpu_hours": budget_of(history),
        "reserved_gpu_hours": budget.reserved(history),
        "model_usd": dollars.spent_usd(history),
        **{f"by_{name}": summed(found, name) for name in ("purpose", "outcome")},
        "charges": [c.data() for c in found],
    }
