"""What people are told of a campaign: started, leader found, shipment refused, budget 80% spent, waits for review, finished.

Pure: computed from the records, each piece under a key of its own, so that whoever tells it needs to remember keys only.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from attuner.core.campaign import Campaign
from attuner.core.events import History
from attuner.core.judgement import Remeasurement, Score, Shipment
from attuner.core.news import Alert, News
from attuner.policy import budget, drift, leader

BUDGET_SHARE = 0.8


def news(history: History) -> list[News]:
    """Return everything worth telling so far, in the order of a campaign."""
    if not history.all("campaign", Campaign):
        return []
    found = [_started(history), *_alerts(history), *_leaders(history), *_budget(history), *_reviews(history)]
    return [*found, *_refused(history), *_finished(history)]


def _started(history: History) -> News:
    campaign = history.campaign()
    work, retunes = campaign.workload, campaign.retunes
    text = f"started: {work.model} on {work.gpus} × {work.hardware}, {campaign.stack.name} {campaign.stack.version}"
    if retunes is not None:
        text += f"; re-tunes what {retunes.of} shipped; changed: {drift.said(retunes.changes)}"
    return News(campaign_id=campaign.id, key="started", kind="started", text=text, evidence=[campaign.id])


def _alerts(history: History) -> Iterator[News]:
    yield from (of_alert(history.campaign().id, a) for a in history.all("alert", Alert))


def of_alert(campaign_id: str, alert: Alert) -> News:
    """Return an alert as it is told."""
    text, kind = f"ALERT: {alert.text}", f"alert.{alert.kind}"
    key = f"alert {alert.key}"
    return News(campaign_id=campaign_id, key=key, kind=kind, text=text, evidence=alert.evidence, figures=alert.figures)


def _leaders(history: History) -> Iterator[News]:
    campaign = history.campaign()
    for score in (s for s in history.scores() if s.new_leader):
        launch = history.launch(score.launch_id)
        asked = history.hypothesis(launch.hypothesis) if launch else None
        text = (
            f"leader found: {asked.title if asked else score.launch_id}: {score.tokens_per_s_per_gpu:,.0f} tokens/s per device, "
            f"{score.gain:+.1%} over the leader before, {score.gain_over_baseline:+.1%} over the baseline"
        )
        figures = {"tokens_per_s_per_gpu": score.tokens_per_s_per_gpu, "gain_over_baseline": score.gain_over_baseline}
        yield News(
            campaign_id=campaign.id,
            key=f"leader {score.launch_id}",
            kind="leader",
            text=text,
            evidence=[f"{campaign.id}/{score.launch_id}"],
            figures=figures,
        )


def _budget(history: History) -> Iterator[News]:
    total, spent = budget.total(history), budget.spent(history)
    if math.isfinite(total) and total > 0 and spent >= BUDGET_SHARE * total:
        name = history.campaign().id
        text = f"budget: {spent:.4g} of {total:g} device-hours are spent ({spent / total:.0%})"
        figures = {"spent_gpu_hours": spent, "budget_gpu_hours": total}
        yield News(campaign_id=name, key="budget", kind="budget", text=text, evidence=[name], figures=figures)


def _reviews(history: History) -> Iterator[News]:
    """Yield what waits for a person and is faster than what may ship, once the search is over: before, it may be overtaken."""
    campaign = history.campaign()
    if history.stop() is None or campaign.gate.review != "before_ship":
        return
    best = leader.shippable(history)
    beaten = best.tokens_per_s_per_gpu if best else 0.0
    for score in (s for s in leader.waiting(history) if s.tokens_per_s_per_gpu > beaten):
        items = leader.open_reviews(history, score.launch_id)
        yield News(
            campaign_id=campaign.id,
            key=f"review {score.launch_id}",
            kind="review",
            text=f"waits for review: {score.launch_id}, {score.gain_over_baseline:+.1%} over the baseline, has {len(items)} open "
            f"items: {items[0] if items else ''} (attuner review {campaign.id})",
            evidence=[f"{campaign.id}/{score.launch_id}"],
        )


def _refused(history: History) -> Iterator[News]:
    """Yield that a leader was found and the baseline ships all the same, and why."""
    shipment, again = history.shipment(), history.remeasurement()
    led = [s for s in history.scores() if s.new_leader]
    if shipment is None or not shipment.kept_baseline or not (led or leader.waiting(history)):
        return
    name = history.campaign().id
    yield News(
        campaign_id=name,
        key=_again("refused", history),
        kind="refused",
        text=f"shipment refused, the baseline is kept: {shipment.reason}",
        evidence=_objected(name, led, again),
        figures={"gain": again.gain, "band": again.band} if again else {},
    )


def _objected(name: str, led: list[Score], again: Remeasurement | None) -> list[str]:
    launches = [*again.leader_launches, *again.baseline_launches] if again else [s.launch_id for s in led]
    return [f"{name}/{x}" for x in launches] or [name]


def _finished(history: History) -> Iterator[News]:
    shipment = history.shipment()
    if shipment is None:
        return
    name, spent = history.campaign().id, budget.spent(history)
    yield News(
        campaign_id=name,
        key=_again("finished", history),
        kind="finished",
        text=f"finished: {_outcome(shipment)}; {spent:.4g} device-hours, {len(history.launches())} launches",
        evidence=[f"{name}/{shipment.launch_id}" if shipment.launch_id else name],
        figures={"gain": shipment.gain, "spent_gpu_hours": spent},
    )


def _again(key: str, history: History) -> str:
    """Return the key of news of a shipment; after a rerun shipped anew they are news again."""
    times = sum(e.kind == "shipment" for e in history.events)
    return key if times < 2 else f"{key} {times}"


def _outcome(shipment: Shipment) -> str:
    if shipment.kept_baseline:
        return f"the baseline is kept ({shipment.reason})"
    paper = ", on paper only" if shipment.on_paper else ""
    return f"shipped {shipment.launch_id}, {shipment.gain:+.1%} over the re-measured baseline{paper}"
