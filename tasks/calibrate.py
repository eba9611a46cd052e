"""Tasks of the calibration: plan its launches, and take mean, σ and band from them."""

from __future__ import annotations

from attuner.steps import calibrate as step
from attuner.wiring import open_kit
from tasks import _artifacts
from tasks._shell import step_task


@step_task(name="plan-prepare {campaign_id}")
def plan_prepare(campaign_id: str) -> str:
    """Return the launch that makes the common checkpoint, or ''."""
    with open_kit(campaign_id) as kit:
        return step.plan_prepare(kit, campaign_id)


@step_task(name="plan-calibration round {number}")
def plan_calibration(campaign_id: str, number: int) -> list[str]:
    """Return the launch ids of one round of baseline runs."""
    with open_kit(campaign_id) as kit:
        return step.plan_calibration(kit, campaign_id, number=number)


@step_task(name="calibrate round {number}")
def calibrate(campaign_id: str, number: int) -> str:
    """Return `quiet`, `busy` if σ is too large to measure well, or `cancelled`."""
    with open_kit(campaign_id) as kit:
        calibration = step.calibrate(kit, campaign_id, number=number)
        if calibration is None:
            return "cancelled"
        _artifacts.calibration(campaign_id, calibration)
        return "busy" if calibration.busy else "quiet"
