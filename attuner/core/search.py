"""What the search says: a Hypothesis or a Stop; and what fixed code says of a move before it costs anything: a Forecast."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from attuner.core.base import Record, Value
from attuner.core.private import mask


class Citation(Record):
    """A place in the framework's pinned source that a hypothesis rests on; fixed code looks whether it is there."""

    file: str = Field(description="path inside the pinned source")
    line: int = Field(ge=1)
    mentions: str = Field(description="the argument or variable that stands within a few lines of it")


class Abort(Record):
    """When a running trial of a hypothesis is ended: after `after_step` steps, a median beyond the bound."""

    metric: Literal["step_s", "peak_mem_gib", "lm_loss"]
    above: float
    after_step: int = Field(default=2, ge=1, description="scored steps that must have been seen")


class Hypothesis(Record):
    """One lever group changed against a parent, written down before its launch."""

    id: str
    parent: str = Field(description="launch id of the trial it starts from; the leader's or an earlier one's")
    group: str = Field(description="a lever group of levers.yaml, `open`, or (black-box proposers only) `point`")
    arguments: dict[str, Value] = Field(default_factory=dict)
    env: dict[str, str] = Field(default_factory=dict)
    title: str = Field(description="short: 'micro batch 1→4'")
    bottleneck: str
    mechanism: str
    predicted_gain: float = Field(description="fraction over the leader, 0.2 = +20%")
    predicted_error: float = Field(ge=0, description="half width of the prediction, as a fraction")
    abort: Abort | None = None
    citations: list[Citation] = Field(default_factory=list)
    assumptions: list[str] = Field(
        default_factory=list, description="what a person was not there to answer, and the default taken"
    )
    lessons: list[str] = Field(default_factory=list, description="ids of the lessons it rests on")
    by: str = Field(default="", description="the person who asked for it; '' for the proposer's own")
    asked: str = Field(default="", description="key of the directive that queued it")

    def without_secrets(self) -> Hypothesis:
        """Return it with whatever in its words looks like a secret masked; what it changes stays as it is."""
        words = {name: mask(getattr(self, name)) for name in ("title", "bottleneck", "mechanism")}
        return self.model_copy(update={**words, "assumptions": [mask(x) for x in self.assumptions]})


class Stop(Record):
    """The proposer's reason to end the search, with what it rests on."""

    reason: str
    evidence: list[str] = Field(default_factory=list)


class Forecast(Record):
    """What the estimate said of a hypothesis before its launch, on record so that it can be held against the outcome."""

    hypothesis: str
    recipe: str = Field(description="digest of the recipe")
    step_s: float
    step_low_s: float
    step_high_s: float
    peak_mem_gib: float
    mem_low_gib: float
    mem_high_gib: float
    gain: float = Field(description="over the leader, a fraction")
    gain_error: float = Field(ge=0, description="half width, a fraction")
    device_mem_gib: float | None = None
    held: bool = Field(default=False, description="not launched: it surely runs out of memory or can't pay for itself")
    why: str = Field(default="", description="of a held launch: what speaks against it, in figures")
    num_learnt: int = Field(default=0, ge=0, description="trials of this campaign that the estimate had learnt from")
