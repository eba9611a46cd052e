"""Task: ship the recipe that won, with its report."""

from __future__ import annotations

from attuner.steps import ship as step
from attuner.steps.common import past
from attuner.steps.context import context_of
from attuner.wiring import open_kit
from tasks import _artifacts
from tasks._shell import step_task
from tasks.tell import tell


@step_task(name="ship {campaign_id}")
def ship(campaign_id: str) -> str:
    """Return the folder of the shipped recipe and its report."""
    with open_kit(campaign_id) as kit:
        shipment = step.ship(kit, campaign_id)
        history = past(kit, campaign_id)
        _artifacts.report(campaign_id, history, context_of(history, kit.rules_dir, kit.prices_file))
        tell(campaign_id)
        return shipment.folder
