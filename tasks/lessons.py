"""Task: what a shipped campaign leaves for the next one: its summary, and candidate lessons for a person to review.

It never fails the campaign: the recipe has shipped by then, and `attuner lessons export` drafts the same.
"""

from __future__ import annotations

import logging

from prefect.artifacts import create_markdown_artifact

from attuner.core.errors import AttunerError
from attuner.steps import lessons_write as step
from attuner.wiring import open_kit
from tasks._shell import step_task

_log = logging.getLogger(__name__)


@step_task(name="lessons {campaign_id}", retries=0)
def lessons(campaign_id: str) -> int:
    """Return how many candidate lessons the campaign leaves."""
    try:
        with open_kit(campaign_id) as kit:
            text = step.page(kit, campaign_id)
            num_drafts = len(step.draft(kit, campaign_id).lessons)
    except (AttunerError, OSError, ValueError, LookupError) as error:
        _log.warning("no lessons were drafted from %s: %s", campaign_id, error)
        return 0
    create_markdown_artifact(
        key=f"{campaign_id}-lessons", markdown=text, description="what it leaves: summary, candidate lessons"
    )
    return num_drafts
