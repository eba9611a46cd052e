"""What the campaign page says beyond the claim: efficiency and price, diagnosis, predictions, verdicts, versions, people. And
`Context`: the two things that a page may know beside the ledger, the price table and the lever catalog."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from attuner.core.diagnosis import Diagnosis
from attuner.core.events import History
from attuner.core.recipe import EffectiveConfig
from attuner.report.economy import Economy, economy
from attuner.report.people import Rerun, Word, reruns, words
from attuner.report.predictions import Accuracy, Prediction, accuracy, held_back, predictions
from attuner.report.rows import LaunchRow
from attuner.report.setting import Reported, reported
from attuner.report.spend import DevicePrice, budget_of, price_of
from attuner.report.verdicts import VerdictRow, verdict_rows
from attuner.report.words import Units
from attuner.traces.diagnosis import diagnose_launch, profiled_ancestor


@dataclass(frozen=True)
class Context:
    """What a page knows beside the ledger; empty where nobody read it."""

    prices: Mapping[str, DevicePrice] = field(default_factory=dict)
    """US dollars per device-hour, by cluster name or by a word of the workload's hardware."""
    no_prices: str = ""
    """Why there is no price table, in a few words."""
    levers: Sequence[Mapping[str, Any]] = ()
    """The stack's lever catalog, for what eases a bottleneck."""


@dataclass(frozen=True)
class Details:
    """The page's figures beyond the claim."""

    economy: Economy
    diagnoses: tuple[tuple[str, Diagnosis], ...]
    """Of the baseline, and of what is shipped or leads; only of what was profiled, by itself or by an ancestor."""
    predictions: tuple[Prediction, ...]
    accuracy: tuple[Accuracy, ...]
    num_held: int
    verdicts: tuple[VerdictRow, ...]
    reported: tuple[Reported, ...]
    words: tuple[Word, ...]
    reruns: tuple[Rerun, ...]
    budget_gpu_hours: float | None
    """What the campaign may spend, a person's last word included; None: `auto`, and nothing measured yet."""


def details(
    history: History,
    context: Context,
    *,
    rows: Sequence[LaunchRow],
    leader: LaunchRow | None,
    final: EffectiveConfig | None,
    speeds: tuple[float | None, float | None],
    units: Units,
) -> Details:
    """Return the details of a campaign.

    final: resolved values of what is shipped or leads. speeds: tokens/s per device of the baseline and of that.
    """
    campaign = history.campaign()
    pairs = predictions(rows, history)
    shape = final or history.effective(campaign.baseline.digest())
    worth = economy(
        campaign,
        shape,
        before=speeds[0],
        after=speeds[1],
        price=price_of(campaign, dict(context.prices)),
        no_price=context.no_prices,
    )
    return Details(
        economy=worth,
        diagnoses=_diagnoses(history, leader, context.levers),
        predictions=pairs,
        accuracy=accuracy(pairs, rows, history),
        num_held=held_back(history),
        verdicts=verdict_rows(rows, history),
        reported=reported(history, tuple(sorted(final.versions.items())) if final else ()),
        words=words(history, units),
        reruns=reruns(history),
        budget_gpu_hours=budget_of(history),
    )


def _diagnoses(
    history: History, leader: LaunchRow | None, levers: Sequence[Mapping[str, Any]]
) -> tuple[tuple[str, Diagnosis], ...]:
    """Return what bounds the baseline and what bounds the leader now."""
    calibration = history.calibration()
    base = calibration.launches[0] if calibration and calibration.launches else ""
    profiled = profiled_ancestor(history, base) if base else ""
    found = [("baseline", diagnose_launch(history, profiled, levers))] if profiled else []
    if leader is not None and profiled_ancestor(history, leader.id):
        found.append((leader.id, diagnose_launch(history, leader.id, levers)))
    return tuple((name, d) for name, d in found if d.bottlenecks)
