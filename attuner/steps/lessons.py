"""lessons: what a campaign is given to read before its first move: lessons in scope, and summaries of earlier campaigns.

Put on record once. So a resume reads the same, whatever was written or finished meanwhile, and the record shows what a
proposer could know.
"""

from __future__ import annotations

from pathlib import Path

from attuner.config import load_lessons
from attuner.core.campaign import Campaign
from attuner.core.events import History
from attuner.core.lesson import CampaignSummary, Lesson, Taught
from attuner.lessonfiles import load_audits
from attuner.policy import lessons as policy
from attuner.ports import Kit
from attuner.steps.common import past, put

RECENT = 50
"""Campaigns of the ledger, from the newest back, that are looked through for kin."""


def taught(kit: Kit, campaign_id: str) -> Taught:
    """Return what the campaign was given to read, putting it on record with the first question.

    Raises:
        UserError: a lesson file is malformed.
    """
    history = past(kit, campaign_id)
    known = history.find("taught", "start", Taught)
    if known is not None:
        return known
    if kit.lessons_dir is None:
        return Taught()
    campaign = history.campaign()
    found = Taught(
        lessons=_standing(kit.lessons_dir, campaign),
        summaries=_earlier(kit, campaign),
    )
    put(kit, campaign_id, "taught", "start", found)
    return found


def _standing(folder: Path, campaign: Campaign) -> list[Lesson]:
    """Return the lessons in scope that stand after their last audit; who reviewed them is nobody's business here."""
    read = policy.select(load_lessons(folder, campaign.stack.name), campaign)
    return [x.model_copy(update={"reviews": []}) for x in policy.standing(read, load_audits(folder))]


def _earlier(kit: Kit, campaign: Campaign) -> list[CampaignSummary]:
    """Return the summaries of the nearest earlier campaigns of this ledger."""
    found = []
    for name in [x for x in kit.ledger.campaigns() if x != campaign.id][-RECENT:]:
        history = History(kit.ledger.history(name))
        try:
            if history.shipment() is None or history.campaign().stack.name != campaign.stack.name:
                continue
            summary = policy.summary(history)
        except (ValueError, KeyError, IndexError):
            continue  # written by another version of attuner: its records read differently, and nothing depends on them
        if summary is not None:
            found.append(summary)
    return policy.nearest(found, campaign)
