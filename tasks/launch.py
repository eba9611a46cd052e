"""Task: run one decided launch to its end. A failed run completes too, in a state named TrialFailed: it is data."""

from __future__ import annotations

from prefect.client.schemas.objects import State
from prefect.states import Completed

from attuner.steps import launch as step
from attuner.wiring import open_kit
from tasks._shell import step_task


# a job runs on while contact is lost, so a launch waits longer than other steps: 2, 4, … 256 s, eight and a half minutes
@step_task(name="launch {launch_id}", retries=8, timeout_s=6 * 3600)
def launch(campaign_id: str, launch_id: str, again: bool = False) -> str | State[str]:
    """Return the trial's status: ok, oom, hang, crash, infrastructure or stopped_early."""
    with open_kit(campaign_id) as kit:
        trial = step.launch(kit, campaign_id, launch_id, again=again)
        if trial.status == "ok":
            return trial.status
        name = "TrialStoppedEarly" if trial.status == "stopped_early" else "TrialFailed"
        return Completed(name=name, message=f"{trial.status}: {trial.cause}", data=trial.status)
