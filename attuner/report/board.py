"""The board: one line per campaign, what came of it and what waits for a person. As data, and as a table of text."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from attuner.core.campaign import Campaign
from attuner.core.errors import Broken, UserError
from attuner.core.events import Event, History
from attuner.core.judgement import Calibration, Remeasurement
from attuner.report import facts as page
from attuner.report.facts import Claim, ReportFacts
from attuner.report.retuned import Retuned, retuned
from attuner.report.rows import LaunchRow, launch_rows
from attuner.report.spend import budget_of
from attuner.report.terminal import DASH, pct, rate, share_pct
from attuner.report.words import Units, clean, units_for, when

MAX_CELL = 40


@dataclass(frozen=True)
class Brief:
    """What a campaign's line shows of it: the page's facts without the rest of the page, which costs far more to gather."""

    campaign: Campaign
    campaign_id: str
    units: Units
    state: page.State
    claim: Claim | None
    retuned: Retuned | None
    calibration: Calibration | None
    remeasurement: Remeasurement | None
    rows: tuple[LaunchRow, ...]
    total_gpu_hours: float
    budget_gpu_hours: float | None
    reviews: tuple[str, ...]
    last_at: float


def brief(events: Sequence[Event]) -> Brief:
    """Return what a line needs of a campaign, each as the page says it; raises what `gather` raises."""
    history = History(list(events))
    if not history.keys("campaign"):
        raise UserError("board: these events hold no campaign; `attuner status` lists the campaigns of the ledger")
    try:
        return _brief(history)
    except ValueError as error:  # pydantic's own error is one
        raise Broken(f"board: a record of {events[0].campaign_id} can't be read ({clean(error, limit=200)})") from error


def _brief(history: History) -> Brief:
    events, campaign = history.events, history.campaign()
    total = sum(s.gpu_hours for s in history.settlements())
    launches = launch_rows(history)
    leader = page._leader(history, launches)
    claim, calibration = page._claim(history, leader), history.calibration()
    before = claim.before if claim else calibration.mean if calibration else None
    after = claim.after if claim and not page._kept(history) else None
    return Brief(
        campaign=campaign,
        campaign_id=events[0].campaign_id,
        units=units_for(campaign.launcher.cluster.device.kind, total),
        state=page._state(history, leader),
        claim=claim,
        retuned=retuned(campaign, launches, baseline=before, after=after, recipe=leader.recipe if leader else ""),
        calibration=calibration,
        remeasurement=history.remeasurement(),
        rows=launches,
        total_gpu_hours=total,
        budget_gpu_hours=budget_of(history),
        reviews=page.open_reviews(history, leader),
        last_at=max(e.at for e in events),
    )


def row(facts: ReportFacts | Brief) -> dict[str, Any]:
    """Return one campaign as plain data: gains and errors are fractions, charges device-hours, times unix seconds."""
    claim, work, again = facts.claim, facts.campaign.workload, facts.remeasurement
    launched = [r for r in facts.rows if r.num_attempts > 0]
    misses = [abs(miss) for r in facts.rows if (miss := r.miss()) is not None]
    kept = facts.state == "baseline kept" or (again is not None and again.kept_baseline)
    return {
        "campaign": facts.campaign_id,
        "model": work.model,
        "hardware": work.hardware,
        "device": facts.units.device,
        "gpus": work.gpus,
        "state": facts.state,
        "before_tokens_per_s_per_gpu": claim.before if claim else facts.calibration.mean if facts.calibration else None,
        "after_tokens_per_s_per_gpu": claim.after if claim and not kept else None,
        "gain": claim.gain if claim and not kept else None,
        "band": claim.band if claim else facts.calibration.band if facts.calibration else None,
        "remeasured": bool(claim and claim.remeasured),
        "retunes": facts.retuned.of if facts.retuned else None,
        "gain_over_retuned": facts.retuned.gain if facts.retuned else None,
        "num_launches": len(launched),
        "num_failed": sum(r.failed for r in launched),
        "gpu_hours": facts.total_gpu_hours,
        "budget_gpu_hours": facts.budget_gpu_hours,
        "prediction_miss": sum(misses) / len(misses) if misses else None,
        "num_reviews": len(facts.reviews),
        "updated_at": facts.last_at,
    }


def rows(campaigns: Iterable[Sequence[Event]]) -> list[dict[str, Any]]:
    """Return the board's rows, the campaign that moved last first. Raises what `gather` raises."""
    return ordered(brief(events) for events in campaigns)


def ordered(found: Iterable[Brief]) -> list[dict[str, Any]]:
    """Return the board's rows, the campaign that moved last first."""
    return in_order(row(b) for b in found)


def in_order(found: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return rows in the board's order, the campaign that moved last first."""
    return sorted(found, key=lambda r: (-r["updated_at"], r["campaign"]))


def text(found: Sequence[dict[str, Any]]) -> str:
    """Return the rows as an aligned table for a terminal; one line says so when there are none."""
    if not found:
        return "no campaign in this ledger yet\n"
    head = ("campaign", "model", "state", "tokens/s/device", "gain", "launches", "charged", "miss", "review", "updated")
    lines = [head, *(_line(r) for r in found)]
    widths = [max(_width(line[k]) for line in lines) for k in range(len(head))]
    right = {3, 4, 5, 6, 7, 8}
    out = []
    for line in lines:
        cells = [_pad(cell, widths[k], left=k not in right) for k, cell in enumerate(line)]
        out.append("  ".join(cells).rstrip())
    if any(r["gain"] is not None and r["retunes"] is not None for r in found):
        out.append("re-tuned: over what ran before, measured again; the gain beside it is over the baseline")
    if any(r["gain"] is not None and not r["remeasured"] for r in found):
        out.append("? one launch against the calibrated baseline: not remeasured yet")
    return "\n".join(out) + "\n"


def _line(r: dict[str, Any]) -> tuple[str, ...]:
    before, after = r["before_tokens_per_s_per_gpu"], r["after_tokens_per_s_per_gpu"]
    speed = DASH if before is None else rate(before) if after is None else f"{rate(before)} → {rate(after)}"
    gain = DASH if r["gain"] is None else pct(r["gain"]) + ("" if r["remeasured"] else "?")
    if r["gain"] is not None and r["retunes"] is not None:
        gain += f" ({DASH if r['gain_over_retuned'] is None else pct(r['gain_over_retuned'])} re-tuned)"
    launches = f"{r['num_launches']}" + (f" ({r['num_failed']} failed)" if r["num_failed"] else "")
    unit = "h" if r["gpu_hours"] >= 2 else "min"
    scale = 1 if unit == "h" else 60
    budget = r["budget_gpu_hours"]
    charged = f"{r['gpu_hours'] * scale:.1f}" + (f"/{budget * scale:.1f}" if budget else "") + f" {r['device']}-{unit}"
    miss = DASH if r["prediction_miss"] is None else share_pct(r["prediction_miss"])
    review = f"{r['num_reviews']}" if r["num_reviews"] else DASH
    name, model = (clean(r[k], limit=MAX_CELL) for k in ("campaign", "model"))
    return (name, model, r["state"], speed, gain, launches, charged, miss, review, when(r["updated_at"]))


def _width(cell: str) -> int:
    """Return the columns that a terminal needs: East Asian wide characters take two."""
    return sum(2 if unicodedata.east_asian_width(c) in "WF" else 0 if unicodedata.combining(c) else 1 for c in cell)


def _pad(cell: str, width: int, *, left: bool) -> str:
    gap = " " * (width - _width(cell))
    return cell + gap if left else gap + cell
