"""Three zones: how far a measured value may be from the baseline's. Within the limit it is admitted; beyond it but within
the outer limit a check launch in higher precision decides, else a person; beyond the outer limit it is refused.

Limits are data (`rules/<stack>/tolerances.yaml`, `rules/tolerances.yaml` for every stack), each with its source. The more
exact entry holds: the stack's own before the general one, then one that names families, then one that names a precision.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from pydantic import Field, field_validator, model_validator

from attuner.core.base import Record, Value
from attuner.core.errors import UserError
from attuner.core.judgement import Decision, Finding

Measure = Literal[
    "loss_step0",
    "loss_step1",
    "aux",
    "curve",
    "curve_trend",
    "grad_norm",
    "grad_projection",
    "grad_norm_step1",
    "grad_projection_step1",
    "zeros",
    "update_norm",
    "update_projection",
    "update_norm_step1",
    "update_projection_step1",
    "clip",
    "clip_change",
    "lr_fit",
    "wd_fit",
    "unexplained",
]
MEASURES: tuple[str, ...] = get_args(Measure)
NORM_FAMILIES = frozenset({"final_norm", "qk_norm", "layer_norm"})
"""Families of one-dimensional weights near 1: their updates are small beside them, so fits of the update are coarser."""
UNCHECKED = frozenset({"curve", "curve_trend"})
"""A check launch sees the first steps only, so it can't decide these."""
MAX_SCALE = 100.0
"""A fit whose limit rounding widens further than this says nothing. Source: third look, 'at 1e-6 they drown in rounding'."""
Outcome = Literal["admit", "between", "refuse"]


class ZoneExample(Record):
    """A case that `attuner rules check` evaluates."""

    deviation: float = Field(ge=0)
    expect: Outcome


class Tolerance(Record):
    """One entry: what is measured, for which families and precision, and its two limits."""

    id: str = Field(pattern=r"^[A-Z]{3}-TOL-[0-9]{3}$")
    measure: Measure
    families: Literal["all", "large", "norms"] | list[str] = "all"
    precision: Literal["any", "fp32", "bf16", "fp16", "other"] = "any"
    limit: float = Field(ge=0, allow_inf_nan=False)
    outer: float = Field(ge=0, allow_inf_nan=False)
    judged: bool = Field(default=True, description="false: says nothing in this precision, and is not held against a run")
    at_lr: float | None = Field(default=None, gt=0, description="learning rate of the measurement: rounding grows with 1/lr")
    reason: str = Field(min_length=20)
    source: list[str] = Field(min_length=1)
    added: dt.date
    examples: list[ZoneExample] = Field(default_factory=list)

    @field_validator("families")
    @classmethod
    def _named(cls, families: str | list[str]) -> str | list[str]:
        if isinstance(families, list) and not families:
            raise ValueError("name at least one family, or say all")
        return families

    @model_validator(mode="after")
    def _ordered(self) -> Tolerance:
        if self.outer < self.limit:
            raise ValueError(f"outer {self.outer:g} is below limit {self.limit:g}")
        return self

    def applies(self, family: str) -> bool:
        """Tell whether the entry speaks about a family ('' for a measure of the whole model)."""
        if isinstance(self.families, list):
            return family in self.families
        return self.families == "all" or (self.families == "norms") == (family in NORM_FAMILIES)

    def rank(self) -> tuple[int, int]:
        """Return how exact the entry is; the larger one holds."""
        families = 2 if isinstance(self.families, list) else int(self.families != "all")
        return families, int(self.precision != "any")


class Limits(Record):
    """All tolerances that concern one stack: its own, then the general ones."""

    stack: str
    own: list[Tolerance] = Field(default_factory=list)
    general: list[Tolerance]
    caps: dict[str, float] = Field(default_factory=dict, description="measure → outer limit that a campaign has tightened")

    def find(self, measure: Measure, precision: str, family: str = "") -> Tolerance:
        """Return the entry that holds for a measure, a precision ('' if nobody knows it) and a family."""
        for entries in (self.own, self.general):
            fitting = [t for t in entries if t.measure == measure and t.precision in ("any", precision) and t.applies(family)]
            if fitting:
                return self._capped(max(fitting, key=Tolerance.rank))
        raise UserError(
            f"tolerances of {self.stack}: none for {measure} {family} in {precision or 'an unknown precision'}; add one"
        )

    def _capped(self, found: Tolerance) -> Tolerance:
        cap = self.caps.get(found.measure)
        if cap is None:
            return found
        return found.model_copy(update={"limit": min(found.limit, cap), "outer": min(found.outer, cap)})

    def capped(self, **caps: float) -> Limits:
        """Return the limits with outer limits that a campaign has tightened, by measure."""
        return self.model_copy(update={"caps": {**self.caps, **caps}})


@dataclass(frozen=True)
class Measured:
    """One measured value beside the baseline's. `deviation` is in the unit of its tolerance, whatever that is."""

    before: Value
    after: Value
    deviation: float
    family: str = ""


def outcome(deviation: float, tolerance: Tolerance, *, scale: float = 1.0, rounding: float = 0.0) -> Outcome:
    """Return the zone of a deviation; one that isn't finite is refused.

    Args:
        deviation: in the tolerance's unit, not negative.
        tolerance: the entry that holds.
        scale: widens both limits, for fits that rounding blurs.
        rounding: widens both limits by what printing with few digits hides.
    """
    limit, outer = _limits(tolerance, scale, rounding)
    return "admit" if deviation <= limit else "between" if deviation <= outer else "refuse"


def _limits(tolerance: Tolerance, scale: float, rounding: float) -> tuple[float, float]:
    return tolerance.limit * scale + rounding, tolerance.outer * scale + rounding


def judge(
    key: str,
    found: Measured,
    *,
    limits: Limits,
    measure: Measure,
    precision: str,
    scale: float = 1.0,
    rounding: float = 0.0,
) -> Finding | None:
    """Return what a measured value means; None if its tolerance says that it isn't judged in this precision."""
    tolerance = limits.find(measure, precision, found.family)
    if not tolerance.judged:
        return None
    zone = outcome(found.deviation, tolerance, scale=scale, rounding=rounding)
    limit, outer = _limits(tolerance, scale, rounding)
    decision: Decision = "review" if zone == "between" else zone
    where = f" in {precision}" if precision else ""
    size = f"{found.deviation:.2g}" if math.isfinite(found.deviation) else "not finite"
    bound = {
        "admit": f"limit {limit:.2g}{where}",
        "between": f"beyond the limit {limit:.2g}{where}, within the outer limit {outer:.2g}",
        "refuse": f"beyond the outer limit {outer:.2g}",
    }[zone]
    return Finding(
        rule=tolerance.id,
        decision=decision,
        key=f"{key} {found.family}".strip(),
        before=found.before,
        after=found.after,
        reason=f"deviation {size}, {bound}",
        source=tolerance.source,
        deviation=found.deviation if math.isfinite(found.deviation) else None,
        tolerance=limit,
        outer=outer,
        check=zone == "between" and precision not in ("", "fp32") and measure not in UNCHECKED,
    )


def judge_families(
    key: str,
    found: Sequence[Measured],
    *,
    limits: Limits,
    measure: Measure,
    precision: str,
    scale: float = 1.0,
) -> list[Finding]:
    """Return one finding per family that isn't admitted, and one for all that are: its worst family speaks for them."""
    spoken = [
        f for m in found if (f := judge(key, m, limits=limits, measure=measure, precision=precision, scale=scale)) is not None
    ]
    out = [f for f in spoken if f.decision != "admit"]
    good = [f for f in spoken if f.decision == "admit"]
    if good:
        worst = max(good, key=margin)
        rest = "the only family" if len(good) == 1 else f"the worst of {len(good)} families"
        out.append(worst.model_copy(update={"reason": f"{worst.reason}; {rest}"}))
    return out


def margin(finding: Finding) -> float:
    """Return how much of its limit a finding's deviation uses: 1 is at the limit, more is beyond it."""
    if finding.deviation is None:
        return math.inf if finding.tolerance is not None else 0.0
    return finding.deviation / finding.tolerance if finding.tolerance else math.inf if finding.deviation else 0.0


def relative(after: float, before: float) -> float:
    """Return |after - before| as a fraction of |before|; infinite if only `before` is zero."""
    if after == before:
        return 0.0
    return abs(after - before) / abs(before) if before else math.inf


def check_tolerance(tolerance: Tolerance) -> list[str]:
    """Return what is wrong with an entry: examples that don't come out."""
    return [
        f"{tolerance.id}: example {i + 1} expects {e.expect}, the limits say {got}"
        for i, e in enumerate(tolerance.examples)
        if (got := outcome(e.deviation, tolerance)) != e.expect
    ]


def build_limits(stack: str, own: Iterable[Tolerance], general: Iterable[Tolerance]) -> Limits:
    """Return the limits of a stack.

    Raises:
        UserError: two entries share an id or speak of the same thing, or a measure has no general entry to fall back on.
    """
    limits = Limits(stack=stack, own=list(own), general=list(general))
    seen: dict[str, str] = {}
    for level, entries in (("own", limits.own), ("general", limits.general)):
        for t in entries:
            families = t.families if isinstance(t.families, list) else [t.families]
            for name in (t.id, *(f"{level} {t.measure} {family} {t.precision}" for family in families)):
                if name in seen:
                    raise UserError(f"tolerances of {stack}: {t.id} says again what {seen[name]} says; keep one")
                seen[name] = t.id
    covered = {t.measure for t in limits.general if t.families == "all" and t.precision == "any"}
    missing = [m for m in MEASURES if m not in covered]
    if missing:
        raise UserError(f"tolerances of {stack}: rules/tolerances.yaml has no general entry for {', '.join(missing)}; add it")
    return limits
