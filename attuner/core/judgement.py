"""What fixed code decides: Finding, Verdict, Score, Calibration, Remeasurement, Shipment."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from attuner.core.base import Record, Value

Decision = Literal["admit", "review", "refuse"]
SEVERITY: dict[str, int] = {"admit": 0, "review": 1, "refuse": 2}


class Finding(Record):
    """One rule (or one look) that spoke about one final value or measurement."""

    rule: str
    decision: Decision
    key: str = ""
    before: Value = None
    after: Value = None
    reason: str
    source: list[str] = Field(default_factory=list)
    waived: bool = False
    deviation: float | None = Field(default=None, description="of a measurement, in the unit of its tolerance")
    tolerance: float | None = Field(default=None, description="up to here the deviation is admitted")
    outer: float | None = Field(default=None, description="beyond it the deviation refuses")
    cause: str = Field(default="", description="the most likely cause")
    todo: str = Field(default="", description="what a person can do about it")
    check: bool = Field(default=False, description="a check launch in a higher precision can decide it")

    def compared(self) -> str:
        """Return before and after as a person reads them, or '' for a finding that compares nothing."""
        if self.before is None and self.after is None:
            return ""
        for digits in (7, 9, 12, 17):  # as many as it takes to tell them apart
            before, after = _shown(self.before, digits), _shown(self.after, digits)
            if before != after or self.before == self.after:
                break
        return f"{before} → {after}"

    def line(self) -> str:
        """Return the finding as one line for a person."""
        what = f"{self.key} {self.compared()}".rstrip() if self.key else ""
        likely = f"likely: {self.cause}" if self.cause else ""
        return "  ".join(x for x in (self.decision, self.rule, what, self.reason, likely, self.todo) if x)


def _shown(value: Value, digits: int) -> str:
    return f"{value:.{digits}g}" if isinstance(value, float) else str(value)


def worst(decisions: list[Decision]) -> Decision:
    """Return the strictest of the decisions; no decision at all is `admit`."""
    return max(decisions, key=lambda d: SEVERITY[d], default="admit")


class Verdict(Record):
    """The outcome of one look at one candidate."""

    look: Literal["config", "forward", "update"]
    subject: str = Field(description="hypothesis id (config), or launch#attempt (forward, update)")
    recipe: str = Field(description="digest of the candidate recipe")
    decision: Decision
    findings: list[Finding]

    def refusals(self) -> list[Finding]:
        """Return the findings that refuse."""
        return [f for f in self.findings if f.decision == "refuse"]

    def reviews(self) -> list[Finding]:
        """Return the findings that a person must look at."""
        return [f for f in self.findings if f.decision == "review"]


def verdict_of(look: Literal["config", "forward", "update"], subject: str, recipe: str, findings: list[Finding]) -> Verdict:
    """Return the verdict of findings: the strictest decides and stands first."""
    ordered = sorted(findings, key=lambda f: -SEVERITY[f.decision])
    return Verdict(look=look, subject=subject, recipe=recipe, decision=worst([f.decision for f in findings]), findings=ordered)


class Calibration(Record):
    """The baseline's speed and its noise, from repeated launches of it."""

    round: int
    launches: list[str]
    mean: float = Field(description="tokens/s per device")
    sigma: float = Field(description="relative standard deviation, n-1")
    band: float = Field(description="fraction: max(floor, sigmas × sigma)")
    busy: bool = Field(description="sigma above busy_sigma: too busy to measure well")
    launch_gpu_hours: float = Field(description="mean charge of one of these launches, device-hours")
    step0_loss: float


class Score(Record):
    """What one launch measured, whether it counts, and whether it leads."""

    launch_id: str
    attempt: int
    valid: bool
    why_invalid: str = ""
    decision: Decision = "refuse"
    tokens_per_s_per_gpu: float = 0.0
    step_s: float = 0.0
    gain: float = Field(default=0.0, description="over the leader at that time, fraction")
    gain_over_baseline: float = 0.0
    new_leader: bool = False
    leader_before: str = ""


class Remeasurement(Record):
    """Leader and original baseline measured again, interleaved, fresh launches."""

    baseline_launches: list[str]
    leader_launches: list[str]
    leader: str
    baseline_mean: float
    leader_mean: float
    gain: float
    band: float
    decision: Decision
    kept_baseline: bool
    reason: str


class Shipment(Record):
    """What was shipped, and where it lies."""

    launch_id: str
    recipe: str
    gain: float
    kept_baseline: bool
    reason: str
    folder: str
    open_reviews: list[str] = Field(default_factory=list)
    on_paper: str = Field(default="", description="why it may not be shipped: found on a replay table, nothing was trained")


class Note(Record):
    """A remark on record: what was skipped, what a default was taken for, what a person said."""

    text: str


class ComponentTest(Record):
    """One same-math swap measured against a float64 reference."""

    component: str
    argument: str
    old: Value
    new: Value
    scope: str = Field(description="digest of the shapes, precision and hardware it was run at")
    passed: bool
    dtype: str
    forward_error_old: float
    forward_error_new: float
    backward_error_old: float
    backward_error_new: float
    tolerance_forward: float
    tolerance_backward: float
    why: str
    launch_id: str
