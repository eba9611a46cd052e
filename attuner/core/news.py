"""What people are told: News of a campaign, an Alert that a re-tuning raised, and Told, the record that it was sent."""

from __future__ import annotations

import html
from typing import Any, Literal

from pydantic import Field

from attuner.core.base import Record
from attuner.core.environment import Environment
from attuner.core.judgement import Finding

AlertKind = Literal[
    "slowdown",
    "gate",
    "shipped_fails",
    "unverified",
    "defect_brought",
    "defect_cured",
    "baseline_fails",
    "campaign_failed",
    "look_fails",
    "nodes_differ",
]
ENDS: tuple[AlertKind, ...] = ("baseline_fails", "campaign_failed")
"""Alerts after which a campaign is not taken up again by itself, unless its environment changes."""


class Alert(Record):
    """Something that a person should look at, with what it rests on; on record once, under its key."""

    kind: AlertKind
    key: str
    text: str = Field(description="one line for a person")
    evidence: list[str] = Field(default_factory=list, description="campaign/launch, campaign/hypothesis, rule ids")
    figures: dict[str, float] = Field(default_factory=dict, description="what was measured, before and now")
    finding: Finding | None = Field(default=None, description="of a look that refuses")
    environment: Environment | None = Field(default=None, description="where it was raised, of one without a campaign of its own")


class News(Record):
    """One thing worth telling about a campaign; computed from its records, never stored."""

    campaign_id: str
    key: str = Field(description="told once under this key")
    kind: str = Field(description="started, leader, refused, budget, review, finished, or alert.KIND")
    text: str
    evidence: list[str] = Field(default_factory=list)
    figures: dict[str, float] = Field(default_factory=dict)

    def body(self) -> dict[str, Any]:
        """Return it as it is posted to a webhook: `text` as chat services read it, and the fields beside it."""
        words = html.escape(f"attuner {self.campaign_id}: {self.text}", quote=False)  # Slack reads <!channel>, <address|words>
        return {"text": words, "source": "attuner", **self.data_but_text()}

    def data_but_text(self) -> dict[str, Any]:
        """Return the fields for machines."""
        return {**{k: v for k, v in self.data().items() if k != "text"}, "message": self.text}


class Told(Record):
    """That a piece of news was handed over; appended after it was: a crash in between tells it twice and never loses it."""

    key: str
    channel: str
    undeliverable: str = Field(default="", description="it was not: why this piece is never taken, though a later one was")
