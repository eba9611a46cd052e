"""Lesson: what a campaign or a person learnt, with its scope and the evidence it rests on. It advises; it judges nothing."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from attuner.core.base import Record, Value


class LessonScope(Record):
    """Where a lesson holds; what is left empty holds everywhere."""

    stack: str = ""
    versions: str = Field(default="", description="a version specifier of the stack, e.g. <0.17")
    models: list[str] = Field(default_factory=list, description="model names, or `dense`, `moe`")
    hardware: list[str] = Field(default_factory=list)
    gpus: str = Field(default="", description="a specifier of the device count, e.g. >=16")


class Lesson(Record):
    """One thing worth knowing before the next launch."""

    id: str
    text: str
    scope: LessonScope = LessonScope()
    levers: list[str] = Field(default_factory=list, description="lever groups it speaks of")
    effect: Literal["helps", "hurts", "fails", "condition"] = "condition"
    when: dict[str, Value] = Field(default_factory=dict, description="final arguments it holds for, where it is that narrow")
    evidence: list[str] = Field(
        default_factory=list, description="launch ids `campaign/launch`, or sources of a hand-written one"
    )
    status: Literal["confirmed", "tentative", "contradicted", "retired"] = "tentative"
    source: list[str] = Field(default_factory=list)


class CampaignSummary(Record):
    """One campaign in a few lines, for later campaigns to read: what was tried, what came of it, what it cost."""

    campaign_id: str
    model: str
    hardware: str
    gpus: int
    stack: str
    version: str
    baseline_tokens_per_s_per_gpu: float
    gain: float
    spent_gpu_hours: float
    moves: list[str] = Field(default_factory=list, description="one line per launch: group, title, predicted, outcome")
    leader: dict[str, Value] = Field(default_factory=dict, description="the leader's arguments that differ from the baseline's")


class Taught(Record):
    """What a campaign was given to read before its first move; recorded once, so that a resume reads the same."""

    lessons: list[Lesson] = Field(default_factory=list)
    summaries: list[CampaignSummary] = Field(default_factory=list)
