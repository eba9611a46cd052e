"""Task: the first look at a hypothesis, before anything is launched."""

from __future__ import annotations

from attuner.steps import gate as step
from attuner.steps.common import past
from attuner.wiring import open_kit
from tasks._shell import step_task


@step_task(name="gate {hypothesis_id}", timeout_s=6 * 3600)
def gate(campaign_id: str, hypothesis_id: str) -> str:
    """Return the launch id that the hypothesis became, or '' if it was refused."""
    with open_kit(campaign_id) as kit:
        step.gate(kit, campaign_id, hypothesis_id)
        return step.launch_of(past(kit, campaign_id), hypothesis_id)
