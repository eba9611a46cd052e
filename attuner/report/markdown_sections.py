"""The sections of report.md beyond the claim, shortly: what it is worth, what bounded the step, predictions, verdicts, people."""

from __future__ import annotations

from attuner.report import queries, said
from attuner.report.facts import ReportFacts
from attuner.report.markdown_parts import DECISION, block, bullets, code, esc, fenced, table
from attuner.report.people import shortly
from attuner.report.setting import ranges
from attuner.report.terminal import DASH, pct, share_pct
from attuner.report.verdicts import Look
from attuner.report.words import when

SHOWN = 4
"""Bottlenecks that are named."""


def worth(facts: ReportFacts) -> list[str]:
    """Return speed, MFU and dollars before and after, with what they mean and when the tuning is paid back."""
    found = said.worth(facts)
    if not found:
        return []
    has_published = any(w.published for w in found)
    head = ["Figure", *([">Published"] if has_published else []), ">Baseline", f">{said.after(facts)}"]
    rows = [
        [esc(w.name), *([esc(w.published) or DASH] if has_published else []), esc(w.before) or DASH, esc(w.after) or DASH]
        for w in found
    ]
    notes = [*said.worth_notes(facts), *said.payback_lines(facts)]
    return ["## What it is worth", table(head, rows), bullets(notes), fenced(queries.worth(facts), "sql")]


def diagnosis(facts: ReportFacts) -> list[str]:
    """Return the largest bounds of the baseline's step, and of what leads now."""
    blocks: list[str] = []
    for name, d in facts.details.diagnoses:
        title = f"{esc(said.diagnosed(facts, name, d.launch_id))}:"
        rows = [
            [esc(said.part_name(b.name)), share_pct(b.share), pct(b.max_gain), esc(", ".join(b.levers[:SHOWN])) or DASH]
            for b in d.bottlenecks[:SHOWN]
        ]
        blocks += [title, table(("Part of the step", ">Share", ">At most", "Levers that ease it"), rows)]
        blocks += [bullets(said.diagnosis_notes(d))]
    return ["## What bounded the step", esc(said.BOUND_MEANS), *blocks] if blocks else []


def verdicts(facts: ReportFacts) -> list[str]:
    """Return a row per candidate with each look's decision and the measurement behind it."""
    found = facts.details.verdicts
    if not found:
        return []
    head = ("Candidate", "What", "1 · final values", "2 · forward", "3 · gradients and update")
    rows = [
        [
            esc(r.id),
            esc(r.what) + (f" (**{esc(r.answered)}**)" if r.answered else ""),
            *(_look(x) for x in (r.config, r.forward, r.update)),
        ]
        for r in found
    ]
    lead = f"{said.verdict_counts(facts)}. {said.VERDICTS_MEAN}"
    return ["## The verdict on every candidate", block(lead), table(head, rows), fenced(queries.verdicts(), "sql")]


def _look(look: Look) -> str:
    return f"{DECISION[look.decision]}: {esc(look.said)}" if look.decision else esc(look.said)


def predictions(facts: ReportFacts) -> list[str]:
    """Return how far off proposer and estimate were."""
    found = facts.details.accuracy
    if not found:
        return []
    rows = [[esc(f"{a.by}: {a.what}"), *map(esc, said.errors(a)), f"{a.num_inside} of {a.num}"] for a in found]
    head = ("Prediction", ">Mean error", ">Bias", ">Within its ±")
    held = block(said.held(facts))
    return ["## Predicted against measured", table(head, rows), esc(said.ERRORS_MEAN), held, fenced(queries.predictions(), "sql")]


def people(facts: ReportFacts) -> list[str]:
    """Return who said what, and what was done again."""
    d = facts.details
    blocks: list[str] = []
    if d.words:
        rows = [[esc(x) for x in (when(w.at), w.by, w.said, w.why, w.followed)] for w in d.words]
        blocks.append(table(("When", "Who", "What", "Why", "Followed by"), rows))
    if d.reruns:
        rows = [
            [
                *(esc(x) for x in (when(r.at), r.by, f"{r.step} {r.key}".strip(), r.why, shortly(r.set_aside))),
                esc(shortly(r.again)) or "nothing yet",
            ]
            for r in d.reruns
        ]
        blocks += [esc(said.RERUNS_MEAN), table(("When", "Who", "Done again", "Why", "Set aside", "Made again"), rows)]
    return ["## Who said what", *blocks, fenced(queries.people(), "sql")] if blocks else []


def versions(facts: ReportFacts) -> list[str]:
    """Return on what the launches ran; what differs between launches names them."""
    found = facts.details.reported
    if not found:
        return []

    def told(values: tuple[tuple[str, tuple[str, ...]], ...]) -> str:
        many = len(values) > 1
        return "; ".join(code(v) + (f" ({esc(ranges(ids))})" if many else "") for v, ids in values)

    rows = [[esc(r.name), told(r.values), "**differs**" if r.differs else ""] for r in found]
    return [
        "As the launches reported it:",
        table(("Versions and hardware", "Reported", ""), rows),
        fenced(queries.versions(), "sql"),
    ]
