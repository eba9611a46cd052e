"""Tasks of the final re-measurement: plan its launches, and compare leader with baseline."""

from __future__ import annotations

from attuner.steps import remeasure as step
from attuner.steps.common import past
from attuner.wiring import open_kit
from tasks._shell import step_task
from tasks.tell import tell


@step_task(name="plan-remeasure {campaign_id}")
def plan_remeasure(campaign_id: str, turn: int = 1) -> list[str]:
    """Return the launch ids of the interleaved pairs; empty if nothing beat the baseline.

    Args:
        campaign_id: whose.
        turn: above 1 where a person's word changed the leader meanwhile: a kept result of an earlier turn is none of this one.
    """
    with open_kit(campaign_id) as kit:
        return step.plan_remeasure(kit, campaign_id)


@step_task(name="remeasure {campaign_id}")
def remeasure(campaign_id: str, turn: int = 1) -> str:
    """Return `none`, `kept` (the baseline is kept), `confirmed`, or `again`: the leader changed, its launches must run first."""
    with open_kit(campaign_id) as kit:
        result = step.remeasure(kit, campaign_id)
        tell(campaign_id)
        if result is None and step.missing(past(kit, campaign_id)):
            return "again"
        return "none" if result is None else ("kept" if result.kept_baseline else "confirmed")
