"""Lesson: what a campaign or a person learnt, with its scope and the evidence it rests on. It advises; it judges nothing."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer

from attuner.core.base import Record, Value

Outcome = Literal["helps", "hurts", "ties", "fails", "refused"]
"""What came of a move: beyond the band either way, within it, a failed run, or a run that the looks refused."""


class LessonScope(Record):
    """Where a lesson holds; what is left empty holds everywhere."""

    stack: str = ""
    versions: str = Field(default="", description="a version specifier of the stack, e.g. <0.17")
    models: list[str] = Field(default_factory=list, description="model names, or `dense`, `moe`")
    hardware: list[str] = Field(default_factory=list)
    gpus: str = Field(default="", description="a specifier of the device count, e.g. >=16")


class Claim(Record):
    """What a lesson says of one move, in words that fixed code can hold against records. Scope and `when` bound it."""

    outcome: Outcome
    sets: dict[str, Value] = Field(description="what the move sets, and nothing else: argument or env:NAME; a list means any of")
    before: dict[str, Value] = Field(default_factory=dict, description="what they were before, where that matters")
    gain_low: float | None = Field(default=None, description="over the parent, a fraction")
    gain_high: float | None = Field(default=None, description="over the parent, a fraction")
    failure: str = Field(default="", description="class of the failure, or the start of it: oom, oom.optimizer_step")


class LessonReview(Record):
    """A person's word on a lesson."""

    by: str
    at: str = Field(description="date, UTC")
    decision: Literal["accepted", "rejected"]
    why: str = ""


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
    status: Literal["confirmed", "tentative", "contradicted", "retired", "draft", "rejected"] = "tentative"
    source: list[str] = Field(default_factory=list)
    drafted: Literal["", "records", "model"] = Field(
        default="", description="who drafted it; what a person didn't write is read only once a person accepted it"
    )
    claim: Claim | None = Field(default=None, description="what an audit checks; None: read off effect, levers and when")
    reviews: list[LessonReview] = Field(default_factory=list, description="oldest first; the last one holds")

    @model_serializer(mode="wrap")
    def _stated(self, whole: SerializerFunctionWrapHandler) -> dict[str, Any]:
        late = ("drafted", "claim", "reviews")
        return {name: value for name, value in whole(self).items() if value or name not in late}


AuditResult = Literal["correct", "too broad", "wrong", "unsupported", "one campaign", "not checkable"]


class LessonAudit(Record):
    """What all campaigns' records say of one lesson."""

    id: str
    claimed: str = Field(description="digest of what it claims; a lesson that claims something else by now was not audited")
    result: AuditResult
    why: str
    supports: list[str] = Field(default_factory=list, description="trials that bear it out, campaign:launch#attempt")
    contradicts: list[str] = Field(default_factory=list, description="trials that speak against it")
    at: str = Field(default="", description="date, UTC")


class Belief(Record):
    """What a model expects of a lesson's move, asked without the lesson."""

    outcome: Outcome | Literal["unknown"]
    gain_low: float | None = Field(default=None, allow_inf_nan=False, description="over the run before the change, a fraction")
    gain_high: float | None = Field(default=None, allow_inf_nan=False, description="over the run before the change, a fraction")
    failure: str = Field(default="", description="of a run that fails: the class of the failure")

    def said(self) -> str:
        """Return it in a few words."""
        low, high = self.gain_low, self.gain_high
        figures = [f"{x:+.0%}" for x in dict.fromkeys((low, high)) if x is not None]
        return " ".join([self.outcome, *([self.failure] if self.failure else []), *([" to ".join(figures)] if figures else [])])


KnownResult = Literal["known", "partly known", "contradicted", "not known", "no answer"]


class LessonKnown(Record):
    """What one model, asked without the lesson, knew of what it claims. Advice to whoever curates; nothing is left out by it."""

    id: str
    model: str
    claimed: str = Field(description="digest of what the lesson claims; one that claims something else by now was not asked")
    result: KnownResult
    why: str
    answers: list[str] = Field(default_factory=list)
    at: str = Field(default="", description="date, UTC")


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


class Drafted(Record):
    """What was drafted from a campaign after it ended; on record, so that the same trials are drafted from once."""

    lessons: list[Lesson] = Field(default_factory=list)
    shown: list[str] = Field(
        default_factory=list, description="the campaign's trials that show something, campaign:launch#attempt"
    )
    files: list[str] = Field(default_factory=list, description="below ATTUNER_HOME")
    known: int = Field(default=0, description="drafts left out: they are lessons, drafts or rejected already")
    said: str = Field(default="", description="why nothing was drafted, or why the model worded nothing")


class Taught(Record):
    """What a campaign was given to read before its first move; recorded once, so that a resume reads the same."""

    lessons: list[Lesson] = Field(default_factory=list)
    summaries: list[CampaignSummary] = Field(default_factory=list)
