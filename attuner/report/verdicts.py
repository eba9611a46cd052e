"""One row per candidate of what each look found: of the first how the rules decided, of the others the measurement that comes
nearest to its limit, or the one that refuses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from attuner.core.events import History
from attuner.core.judgement import Decision, Finding, Verdict, worst
from attuner.policy import people
from attuner.policy.zones import margin
from attuner.report.rows import LaunchRow


@dataclass(frozen=True)
class Look:
    """What one look decided, and the words for it; untrusted text."""

    decision: Decision | None
    said: str


@dataclass(frozen=True)
class VerdictRow:
    """One candidate and the three looks at it; a look that was not taken has no decision."""

    id: str
    what: str
    config: Look
    forward: Look
    update: Look
    decision: Decision
    """The strictest look's, after a person's answer to what it left open."""
    answered: str
    """Who answered, and what; '' where nobody did."""


NOT_TAKEN = Look(None, "not taken")


def verdict_rows(rows: Sequence[LaunchRow], history: History) -> tuple[VerdictRow, ...]:
    """Return a row for each candidate of the search that any look judged, in order."""
    found = []
    for r in rows:
        if r.kind != "search":
            continue
        config = history.verdict(r.hypothesis) if r.hypothesis else None
        trial = history.trial(r.id)
        later: dict[str, Verdict] = {v.look: v for v in history.looks(r.id, trial.attempt)} if trial else {}
        if config is None and not later:
            continue
        first, second, third = _config(config), *(_measured(later.get(name)) for name in ("forward", "update"))
        strictest = worst([x.decision for x in (first, second, third) if x.decision])
        found.append(VerdictRow(r.id, r.what, first, second, third, r.verdict or strictest, _answer(history, r.recipe)))
    return tuple(found)


def _answer(history: History, recipe: str) -> str:
    answer = people.answer_to(history, recipe)
    if answer is None:
        return ""
    if answer.decision == "unanswered":
        return "nobody answered in time"
    return f"{'admitted' if answer.decision == 'admit' else 'refused'} by {answer.by}"


def _config(verdict: Verdict | None) -> Look:
    if verdict is None:
        return NOT_TAKEN
    counts = [(d, sum(f.decision == d for f in verdict.findings)) for d in ("admit", "review", "refuse")]
    words = {"admit": "admitted", "review": "to review", "refuse": "refused"}
    said = ", ".join(f"{n} {words[d]}" for d, n in counts if n) or "no final value differs"
    worst = (verdict.refusals() or verdict.reviews())[:1]
    return Look(verdict.decision, f"{said}; {_named(worst[0])}" if worst else said)


def _named(f: Finding) -> str:
    changed = f.compared()
    return " ".join(x for x in (f.rule, f.key, changed) if x)


def _measured(verdict: Verdict | None) -> Look:
    if verdict is None:
        return NOT_TAKEN
    grave = (verdict.refusals() or verdict.reviews())[:1]
    limited = [f for f in verdict.findings if f.tolerance is not None]
    tightest = grave or ([max(limited, key=margin)] if limited else verdict.findings[:1])
    if not tightest:
        return Look(verdict.decision, "nothing was compared")
    f = tightest[0]
    if f.deviation is None or f.tolerance is None:
        return Look(verdict.decision, " ".join(x for x in (f.key, f.reason) if x))
    outer = f", outer limit {f.outer:.2g}" if f.outer is not None and f.outer != f.tolerance else ""
    compared = f" ({f.compared()})" if f.compared() else ""
    count = "" if len(limited) < 2 or grave else f"; {len(limited)} measurements, this one nearest to its limit"
    return Look(verdict.decision, f"{f.key or f.rule}{compared}: off by {f.deviation:.2g}, limit {f.tolerance:.2g}{outer}{count}")
