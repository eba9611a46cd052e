"""Task: where the profiled steps of a launch went."""

from __future__ import annotations

from attuner.steps import profile as step
from attuner.wiring import open_kit
from tasks._shell import step_task


@step_task(name="profile {launch_id}")
def profile(campaign_id: str, launch_id: str, again: bool = False) -> str:
    """Return `profiled`, or `none` for a launch without a trace; `again` only tells the second attempt's result apart."""
    with open_kit(campaign_id) as kit:
        return "profiled" if step.profile(kit, campaign_id, launch_id) else "none"
