"""report.html: one page that a person can read, doubt, check and sign. Self-contained: no network, no script.

Every text that a run, a recipe or a proposer wrote passes `esc`; a content policy in the page forbids everything that
isn't on the page itself, should anything slip through.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from attuner.report import claims, html_sections, origin, queries, said
from attuner.report.bars import bars
from attuner.report.curve import curve, mark_class, shape
from attuner.report.facts import ReportFacts
from attuner.report.html_parts import both, items, lines, p, section, sql
from attuner.report.html_tables import (
    changes_table,
    components_table,
    launches_table,
    looks_table,
    parts_table,
    pinned_table,
    spend_table,
)
from attuner.report.recipe_yaml import recipe_yaml
from attuner.report.style import css
from attuner.report.svg import esc

_POLICY = "default-src 'none'; style-src 'unsafe-inline'"

_HEADING = re.compile(r'<section id="([a-z]+)">\n<h2>([^<]*)</h2>')

_MARK_WORDS = {
    "leader": "new leader",
    "tried": "measured, not faster than the band",
    "refused": "refused after its first step",
    "failed": "failed",
    "calibrate": "baseline calibration",
    "remeasure": "re-measurement",
    "other": "preparation or check",
}


def render(facts: ReportFacts) -> str:
    """Return the whole page. Times are UTC; figures carry their units."""
    sections = (
        _changes(facts),
        _looks(facts),
        _search(facts),
        html_sections.diagnosis(facts),
        _step(facts),
        html_sections.worth(facts),
        _launches(facts),
        html_sections.predictions(facts),
        html_sections.verdicts(facts),
        _spend(facts),
        _reviews(facts),
        html_sections.people(facts),
        _recipe(facts),
        _again(facts),
    )
    body = "\n".join(s for s in (_claim(facts), _nav(sections), *sections) if s)
    title = esc(f"{facts.campaign.name}: {claims.headline(facts)}")
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n<meta name="referrer" content="no-referrer">\n'
        f"<title>{title}</title>\n<style>{css()}</style>\n</head>\n<body>\n<main>\n{body}\n</main>\n</body>\n</html>\n"
    )


def _nav(sections: Iterable[str]) -> str:
    """Return links to the sections that the page has."""
    found = [m for s in sections if (m := _HEADING.match(s))]
    links = "".join(f'<li><a href="#{m[1]}">{m[2]}</a></li>' for m in found)
    return f'<nav aria-label="On this page"><ul>{links}</ul></nav>' if links else ""


def _claim(facts: ReportFacts) -> str:
    stats = (
        ("Workload", claims.subject(facts)),
        ("Status", claims.status(facts)),
        ("Baseline, calibrated", claims.noise(facts)),
        ("Published", origin.published(facts)),
        ("Charged", claims.cost(facts)),
        ("Paid back after", claims.payback(facts)),
        ("MFU", said.efficiency(facts)),
        ("US dollars per million tokens", said.dollars(facts)),
    )
    cells = "".join(f"<div><dt>{esc(k)}</dt><dd>{esc(v)}</dd></div>" for k, v in stats if v)
    return (
        "<header>\n"
        f'<p class="eyebrow">{esc(facts.campaign.name)} · campaign {esc(facts.campaign_id)}</p>\n'
        f"<h1>{esc(claims.headline(facts))}</h1>\n"
        f"{p(claims.from_to(facts), 'from-to')}\n{p(claims.evidence(facts))}\n"
        f"{_notice(facts)}\n"
        f'<dl class="stats">{cells}</dl>\n{sql(queries.claim(facts)) if facts.claim else ""}\n</header>'
    )


def _notice(facts: ReportFacts) -> str:
    if not facts.reviews:
        return ""
    count = len(facts.reviews)
    words = "One finding waits" if count == 1 else f"{count} findings wait"
    return f'<div class="notice"><p>{words} for a person: <a href="#review">see the review section</a>.</p></div>'


def _changes(facts: ReportFacts) -> str:
    if facts.leader is None:
        return ""
    kept = facts.state == "baseline kept"
    title = "What the best candidate changed" if kept else "What changed, and why each change is allowed"
    return section("changes", title, (p(claims.changed(facts), "soft"), changes_table(facts), sql(queries.changes(facts))))


def _looks(facts: ReportFacts) -> str:
    if not facts.looks and facts.leader is None:
        return ""
    tests = components_table(facts)
    parts = (
        looks_table(facts),
        f"<h3>Component tests against a float64 reference</h3>{tests}" if tests else "",
        sql(queries.looks(facts)),
        "<h3>What no look can see</h3>",
        items(claims.blind_spots(facts)),
    )
    return section("looks", "Is it the same training?", parts)


def _search(facts: ReportFacts) -> str:
    drawn = both(curve(facts, css="wide"), curve(facts, width=358, css="narrow"), _legend(facts))
    if not drawn:
        return ""
    ended = claims.stop_line(facts)
    return section("search", "The search", (p(f"It ended because: {ended}" if ended else "", "soft"), drawn))


def _legend(facts: ReportFacts) -> str:
    seen = {mark_class(r) for r in facts.rows if r.spent_after > 0}
    marks = [
        f'<li><svg width="16" height="16" viewBox="0 0 16 16" aria-hidden="true">{shape(kind, 8, 8)}</svg>{words}</li>'
        for kind, words in _MARK_WORDS.items()
        if kind in seen
    ]
    if facts.calibration:
        line = '<svg width="26" height="16" viewBox="0 0 26 16" aria-hidden="true">{}</svg>'
        best = line.format('<path class="best" d="M1 12H13V4H25"/>')
        band = line.format('<rect class="band" y="3" width="26" height="10"/><line class="base" x1="0" x2="26" y1="8" y2="8"/>')
        marks += [f"<li>{best}best so far</li>", f"<li>{band}baseline and its noise band</li>"]
    return f'<ul class="legend">{"".join(marks)}</ul>'


def _step(facts: ReportFacts) -> str:
    names = ("Before", "After")
    if facts.before:
        names = (f"Before (baseline, {facts.before.launch_id})", names[1])
    if facts.after:
        names = (names[0], f"After ({facts.after.launch_id})")
    wide = bars(facts.before, facts.after, css="wide", names=names)
    narrow = bars(facts.before, facts.after, width=358, css="narrow", names=names)
    if not wide:
        return ""
    note = (
        "Communication includes waiting for the peer; exposed means that nothing computed meanwhile. "
        "Profiled steps run slower than scored ones."
    )
    parts = (
        both(wide, narrow),
        parts_table(facts),
        p(note, "soft"),
        sql(f"{queries.breakdown(facts)}\n\n{queries.exposed(facts)}"),
    )
    return section("step", "Where the step went", parts)


def _launches(facts: ReportFacts) -> str:
    if not facts.rows:
        return ""
    parts = (p(claims.predictions(facts), "soft"), launches_table(facts), sql(queries.launches(facts)))
    return section("launches", "Every launch, predictions beside outcomes", parts)


def _spend(facts: ReportFacts) -> str:
    if not facts.spend:
        return ""
    lead = "From allocation to release, failures and checks included."
    return section("cost", "What it cost", (p(lead, "soft"), spend_table(facts), sql(queries.spend(facts))))


def _reviews(facts: ReportFacts) -> str:
    if not facts.reviews and not facts.other_reviews:
        return section("review", "Waiting for a person", (p("Nothing.", "soft"),)) if facts.leader else ""
    parts = [p(claims.REVIEW_MEANS, "soft")]
    parts.append(items(claims.review_lines(facts)) if facts.reviews else p("Nothing for the leader's recipe.", "soft"))
    if facts.other_reviews:
        parts += ["<h3>Other candidates that wait</h3>", items(facts.other_reviews)]
    return section("review", "Waiting for a person", (*parts, sql(queries.reviews())))


def _recipe(facts: ReportFacts) -> str:
    what = "The baseline's recipe" if facts.recipe_digest == facts.baseline_digest else "The recipe"
    yaml = lines(recipe_yaml(facts.recipe).rstrip("\n"))
    adapted = ("<h3>Adapted from the public recipe</h3>", items(origin.adaptations(facts))) if facts.campaign.adaptations else ()
    return section("recipe", what, (*adapted, f"<pre>{yaml}</pre>", sql(queries.recipe(facts))))


def _again(facts: ReportFacts) -> str:
    rows = "".join(f"<li><code>{esc(c)}</code><br><span class='soft'>{esc(why)}</span></li>" for c, why in claims.commands(facts))
    notes = ("<h3>Said along the way</h3>", items(facts.notes)) if facts.notes else ()
    first = "<h3>Before any query on this page</h3>" + f"<pre>{lines(queries.view(facts))}</pre>"
    return section(
        "again",
        "Check it, do it again",
        (f"<ul>{rows}</ul>", first, html_sections.versions(facts), "<h3>Pinned</h3>", pinned_table(facts), *notes),
    )
