"""Where a recipe is from: what its authors published, how far this campaign is from it, and what was adapted to run it here."""

from __future__ import annotations

from attuner.core.campaign import Published
from attuner.report.claims import kept
from attuner.report.facts import ReportFacts
from attuner.report.terminal import pct, rate
from attuner.report.words import clean, number

OURS = Published.model_fields["unit"].default
"""The one unit that this campaign measures in, and may be compared."""


def published(facts: ReportFacts) -> str:
    """Return the published figure with the gap of the baseline and of what is shipped; '' where none is stated."""
    told = facts.campaign.published
    if told is None:
        return ""
    unit = clean(told.unit)
    said = f"{rate(told.value) if unit == OURS else number(told.value)} {unit} ({clean(told.source)}{_note(told)})"
    if unit != OURS:
        return f"{said}; another unit than this campaign's, so the gap is not stated"
    gaps = [f"{name} {pct(speed / told.value - 1.0)}" for name, speed in _speeds(facts) if speed]
    return f"{said}; {', '.join(gaps)} against it" if gaps else said


def _note(told: Published) -> str:
    return f"; {clean(told.note)}" if told.note else ""


def _speeds(facts: ReportFacts) -> list[tuple[str, float | None]]:
    claim = facts.claim
    before = claim.before if claim else facts.calibration.mean if facts.calibration else None
    return [("the baseline here", before), ("the leader", claim.after if claim and not kept(facts) else None)]


def adaptations(facts: ReportFacts) -> tuple[str, ...]:
    """Return what was changed from the public recipe to run here, one line each, with why."""
    return tuple(f"{clean(a.change)}: {clean(a.why)}" for a in facts.campaign.adaptations)
