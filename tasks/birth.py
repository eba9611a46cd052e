"""Task: a campaign file becomes a campaign on record. Its result is kept, so a retry of the flow run finds the same one."""

from __future__ import annotations

from prefect.runtime import flow_run

from attuner.core.base import Value
from attuner.settings import load_settings
from attuner.steps import birth as step
from attuner.wiring import new_kit, read_campaign
from tasks._shell import step_task
from tasks.tell import tell


@step_task(name="birth")
def birth(file: str, changes: dict[str, Value] | None = None) -> str:
    """Return the new campaign's id.

    Args:
        file: the campaign file.
        changes: what holds instead of what the file says, by key (`budget.gpu_hours`).
    """
    # named by its flow run: a retry after a crash in here goes on with the same campaign
    campaign = read_campaign(file, load_settings(), changes=changes, request=flow_run.id or "")
    with new_kit(campaign) as kit:
        campaign_id = step.birth(kit, campaign)
    tell(campaign_id)
    return campaign_id
