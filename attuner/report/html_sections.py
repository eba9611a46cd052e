"""Sections of report.html beyond the claim: what it is worth, what bounded the step, predictions, verdicts, people, versions."""

from __future__ import annotations

from collections.abc import Sequence

from attuner.core.diagnosis import Bottleneck, Diagnosis
from attuner.report import queries, said
from attuner.report.facts import ReportFacts
from attuner.report.html_parts import both, items, p, section, sql
from attuner.report.html_tables import Cell, table, tag
from attuner.report.people import Rerun, shortly
from attuner.report.predictions import ESTIMATE, PROPOSER
from attuner.report.scatter import mark, scatter
from attuner.report.setting import ranges
from attuner.report.svg import esc
from attuner.report.terminal import pct, share_pct
from attuner.report.verdicts import Look, VerdictRow
from attuner.report.words import when

SHOWN = 6
"""Bottlenecks that a page names."""
FOLDED = 12
"""More candidates than this are folded away: on a phone each is a card."""


def worth(facts: ReportFacts) -> str:
    """Return speed, MFU and dollars per million tokens, before, after and published, with what each means."""
    found = said.worth(facts)
    if not found:
        return ""
    has_published = any(w.published for w in found)
    head = [
        ("Figure", "head"),
        *([("Published", "num")] if has_published else []),
        ("Baseline", "num"),
        (said.after(facts), "num"),
    ]
    rows = []
    for w in found:
        cells = [Cell(esc(w.name)), *([Cell(esc(w.published))] if has_published else []), Cell(esc(w.before)), Cell(esc(w.after))]
        rows.append(("", cells))
    notes = (*said.worth_notes(facts), *said.payback_lines(facts))
    return section("worth", "What it is worth", (table(head, rows, cards=False), items(notes), sql(queries.worth(facts))))


def diagnosis(facts: ReportFacts) -> str:
    """Return what bounded the baseline's step, and what bounds what leads now: shares, bounds, levers."""
    parts: list[str] = []
    for name, d in facts.details.diagnoses:
        title = said.diagnosed(facts, name, d.launch_id)
        parts += [f"<h3>{esc(title)}</h3>", _bottlenecks(d), items(said.diagnosis_notes(d)) if said.diagnosis_notes(d) else ""]
    if not parts:
        return ""
    return section("diagnosis", "What bounded the step", (p(said.BOUND_MEANS, "soft"), *parts))


def _bottlenecks(d: Diagnosis) -> str:
    head = (("Part of the step", "head"), ("Share", "num"), ("At most", "num"))
    return table(head, [("", _bottleneck(b)) for b in d.bottlenecks[:SHOWN]], cards=False)


def _bottleneck(b: Bottleneck) -> list[Cell]:
    told = [f"eased by {', '.join(b.levers[:SHOWN])}" if b.levers else "", b.why if b.why != "measured" else ""]
    below = "".join(f'<span class="sub">{esc(x)}</span>' for x in told if x)
    return [Cell(f"{esc(said.part_name(b.name))}{below}"), Cell(share_pct(b.share)), Cell(pct(b.max_gain))]


def verdicts(facts: ReportFacts) -> str:
    """Return a row per candidate: what each look decided, and the measurement that decides it or comes nearest to its limit."""
    found = facts.details.verdicts
    if not found:
        return ""
    head = (("Candidate", "head"), ("1 · final values", ""), ("2 · forward", ""), ("3 · gradients and update", ""))
    rows = [
        (
            "",
            [
                Cell(f'<span class="mono">{esc(r.id)}</span><span class="sub">{esc(r.what)}</span>{_answered(r)}'),
                *map(_look, looks),
            ],
        )
        for r in found
        for looks in [(r.config, r.forward, r.update)]
    ]
    body = table(head, rows)
    if len(found) > FOLDED:
        body = f"<details><summary>A row for each</summary>{body}</details>"
    lead = (p(f"{said.verdict_counts(facts)}."), p(said.VERDICTS_MEAN, "soft"))
    return section("verdicts", "The verdict on every candidate", (*lead, body, sql(queries.verdicts())))


def _answered(r: VerdictRow) -> str:
    return f'{tag(r.decision)}<span class="sub">{esc(r.answered)}</span>' if r.answered else ""


def _look(look: Look) -> Cell:
    if look.decision is None:
        return Cell(f'<span class="soft">{esc(look.said)}</span>')
    return Cell(f'{tag(look.decision)}<span class="sub">{esc(look.said)}</span>')


def predictions(facts: ReportFacts) -> str:
    """Return predicted against measured: the drawing, and how far off proposer and estimate were."""
    d = facts.details
    if not d.accuracy:
        return ""
    kinds = {x.by for x in d.predictions}
    words = {PROPOSER: "the proposer's prediction", ESTIMATE: "the estimate's forecast"}
    legend = [
        f'<li><svg width="16" height="16" viewBox="0 0 16 16" aria-hidden="true">{mark(by, 8, 8)}</svg>{words[by]}</li>'
        for by in (PROPOSER, ESTIMATE)
        if by in kinds
    ]
    line = (
        '<svg width="26" height="16" viewBox="0 0 26 16" aria-hidden="true"><line class="{}" x1="1" x2="25" y1="8" y2="8"/></svg>'
    )
    legend += [f"<li>{line.format('base')}predicted exactly</li>", f"<li>{line.format('whisker')}predicted ±</li>"]
    drawn = both(
        scatter(d.predictions, css="wide"),
        scatter(d.predictions, width=358, css="narrow"),
        f'<ul class="legend">{"".join(legend)}</ul>',
    )
    head = (("Prediction", "head"), ("Mean error", "num"), ("Bias", "num"), ("Within its ±", "num"))
    rows = [
        ("", [Cell(esc(f"{a.by}: {a.what}")), *map(Cell, said.errors(a)), Cell(f"{a.num_inside} of {a.num}")]) for a in d.accuracy
    ]
    notes = (p(said.ERRORS_MEAN, "soft"), p(said.held(facts), "soft"))
    parts = (drawn, table(head, rows, cards=False), *notes, sql(queries.predictions()))
    return section("predictions", "Predicted against measured", parts)


def people(facts: ReportFacts) -> str:
    """Return who answered what and when, and what was done again at whose word; '' where nobody said anything."""
    d = facts.details
    parts: list[str] = []
    if d.words:
        names = ("When", "Who", "What", "Why", "Followed by")
        rows = [("", [Cell(esc(x)) for x in (when(w.at), w.by, w.said, w.why, w.followed)]) for w in d.words]
        parts.append(table(_heads(names), rows))
    if d.reruns:
        names_again = ("When", "Who", "Done again", "Why", "Set aside", "Made again")
        rows = [("", _rerun(r)) for r in d.reruns]
        parts += ["<h3>Done again at a person's word</h3>", p(said.RERUNS_MEAN, "soft"), table(_heads(names_again), rows)]
    return section("people", "Who said what", (*parts, sql(queries.people()))) if parts else ""


def _heads(names: Sequence[str]) -> list[tuple[str, str]]:
    return [(name, "head" if n == 0 else "") for n, name in enumerate(names)]


def _rerun(r: Rerun) -> list[Cell]:
    what = f'{esc(r.step)} <span class="mono">{esc(r.key)}</span>'
    again = esc(shortly(r.again)) or "nothing yet"
    return [Cell(x) for x in (esc(when(r.at)), esc(r.by), what, esc(r.why), esc(shortly(r.set_aside)), again)]


def versions(facts: ReportFacts) -> str:
    """Return on what the launches ran, as the jobs reported it; what differs between launches is marked."""
    found = facts.details.reported
    if not found:
        return ""
    rows = []
    for r in found:
        many = r.differs
        told = "".join(
            f'<div><span class="mono">{esc(v)}</span>{f" ({esc(ranges(ids))})" if many else ""}</div>' for v, ids in r.values
        )
        mark_ = '<span class="tag review">◆ differs</span>' if many else "yes"
        rows.append(("", [Cell(esc(r.name)), Cell(told), Cell(mark_)]))
    head = (("What", "head"), ("As reported", ""), ("Same for all", ""))
    return (
        "<h3>Versions and hardware, as the launches reported them</h3>" + table(head, rows, cards=False) + sql(queries.versions())
    )
