"""Task: validity, second look and score of a launch."""

from __future__ import annotations

from attuner.steps import score as step
from attuner.steps.common import past
from attuner.wiring import open_kit
from tasks import _artifacts
from tasks._shell import step_task
from tasks.tell import tell


@step_task(name="score {launch_id}")
def score(campaign_id: str, launch_id: str, again: bool = False) -> str:
    """Return `failed`, `invalid`, `refuse`, `scored` or `leader`.

    Args:
        campaign_id: the campaign.
        launch_id: the launch.
        again: part of the key only: the score of the launch's second attempt is another result.
    """
    with open_kit(campaign_id) as kit:
        result = step.score(kit, campaign_id, launch_id)
        _artifacts.search(campaign_id, past(kit, campaign_id))
        tell(campaign_id)
        if result is None:
            return "failed"
        if not result.valid:
            return "invalid"
        if result.decision == "refuse":
            return "refuse"
        return "leader" if result.new_leader else "scored"
