"""Task: ask the proposer for the next move."""

from __future__ import annotations

from attuner.core.search import Stop
from attuner.steps import hypothesize as step
from attuner.wiring import open_kit
from tasks._shell import step_task


@step_task(name="hypothesize {hypothesis_id}")
def hypothesize(campaign_id: str, hypothesis_id: str) -> str:
    """Return `go`, or `stop` when the search ends; the reason is on record."""
    with open_kit(campaign_id) as kit:
        return "stop" if isinstance(step.hypothesize(kit, campaign_id, hypothesis_id), Stop) else "go"
