"""Where a recipe is from: what its authors published, how far this campaign is from it, and what was adapted to run it here."""

from __future__ import annotations

from attuner.report.facts import ReportFacts
from attuner.report.terminal import pct, rate
from attuner.report.words import clean, number


def published(facts: ReportFacts) -> str:
    """Return the published figure with the gap of the baseline and of what is shipped; '' where none is stated.

    A unit that is ours by another name or by arithmetic is compared (`economy.UNITS`), any other is not.
    """
    gap = facts.details.economy.gap
    if gap is None:
        return ""
    told = gap.published
    note = f"; {clean(told.note)}" if told.note else ""
    value = rate(told.value) if gap.unit in ("tokens", "total") else number(told.value)
    said = f"{value} {clean(told.unit)} ({clean(told.source)}{note})"
    sides = (("the baseline here", gap.gap_before), ("the leader", gap.gap_after))
    gaps = ", ".join(f"{name} {pct(x)}" for name, x in sides if x is not None)
    against = f"{gaps} against it" if gaps else ""
    return "; ".join(x for x in (said, against, gap.note) if x)


def adaptations(facts: ReportFacts) -> tuple[str, ...]:
    """Return what was changed from the public recipe to run here, one line each, with why."""
    return tuple(f"{clean(a.change)}: {clean(a.why)}" for a in facts.campaign.adaptations)
