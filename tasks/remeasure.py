"""Tasks of the final re-measurement: plan its launches, and compare leader with baseline."""

from __future__ import annotations

from attuner.steps import remeasure as step
from attuner.wiring import open_kit
from tasks._shell import step_task
from tasks.tell import tell


@step_task(name="plan-remeasure {campaign_id}")
def plan_remeasure(campaign_id: str) -> list[str]:
    """Return the launch ids of the interleaved pairs; empty if nothing beat the baseline."""
    with open_kit(campaign_id) as kit:
        return step.plan_remeasure(kit, campaign_id)


@step_task(name="remeasure {campaign_id}")
def remeasure(campaign_id: str) -> str:
    """Return `none`, `kept` (the baseline is kept) or `confirmed`."""
    with open_kit(campaign_id) as kit:
        result = step.remeasure(kit, campaign_id)
        tell(campaign_id)
        return "none" if result is None else ("kept" if result.kept_baseline else "confirmed")
