"""What people say during a campaign, on record with their names: a Directive (queue, ban, pause, budget, cancel), a ReviewAnswer
to what waits for a person, and Invalidated, a rerun: which records no longer hold, who said so, and why."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator

from attuner.core.base import Record
from attuner.core.search import Hypothesis

Act = Literal["queue", "ban", "unban", "pause", "go_on", "budget", "finish", "cancel"]
"""finish: end the search, re-measure and ship what leads; cancel: end the campaign, keep the baseline."""
RerunStep = Literal["hypothesize", "gate", "launch", "profile", "score", "calibrate", "remeasure", "ship"]
HIDEABLE = frozenset(
    {"trial", "score", "verdict", "breakdown", "calibration", "remeasurement", "shipment", "stop", "note", "forecast"}
)
"""Kinds whose records a rerun may set aside. Never what was decided, submitted or charged: every attempt stays on record."""


class Directive(Record):
    """A person's word to a campaign that runs; steps act on it when they come to it."""

    act: Act
    by: str = Field(min_length=1, description="who says so")
    why: str = ""
    hypothesis: Hypothesis | None = Field(default=None, description="queue: the move; its id is given when it is taken up")
    lever: str = Field(default="", description="ban, unban: lever group, `open` or `point`")
    gpu_hours: float | None = Field(default=None, ge=0, description="budget: the campaign's new total, device-hours")


class ReviewItem(Record):
    """One finding that waited for a person."""

    look: Literal["config", "forward", "update"]
    rule: str
    key: str = ""
    line: str = Field(default="", description="as the person read it")
    deviation: float | None = Field(default=None, description="of a measurement, in the unit of its tolerance")


class ReviewAnswer(Record):
    """A person's answer to the open items of one launch; it holds for its recipe."""

    launch_id: str
    recipe: str = Field(description="digest of the recipe that was judged")
    decision: Literal["admit", "refuse", "unanswered"] = Field(description="unanswered: nobody answered in time: not admitted")
    by: str = ""
    why: str = ""
    items: list[ReviewItem] = Field(default_factory=list)


class Invalidated(Record):
    """A rerun: the records it names don't hold any more, and the steps that made them are done again."""

    step: RerunStep
    key: str = Field(description="launch or hypothesis id, round of a calibration; '' where there is only one")
    by: str = Field(min_length=1)
    why: str = Field(min_length=1)
    request: str = Field(default="", description="id of the request: the same request twice is one rerun")
    hides: list[str] = Field(description="`kind key` of each record set aside")
    after: int = Field(default=0, ge=0, description="of a launch: its new attempt has a number above this one")
    new_round: bool = Field(default=False, description="the re-measurement is made again with fresh launches")

    @field_validator("hides")
    @classmethod
    def _only_judgements(cls, hides: list[str]) -> list[str]:
        foreign = [x for x in hides if x.partition(" ")[0] not in HIDEABLE]
        if foreign:
            raise ValueError(f"hides: {foreign[0]}: what was decided, submitted or charged stays on record")
        return hides
