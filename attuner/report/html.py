"""report.html: one page that a person can read, doubt, check and sign. Self-contained: no network, no script.

Every text that a run, a recipe or a proposer wrote passes `esc`; a content policy in the page forbids everything that
isn't on the page itself, should anything slip through.
"""

from __future__ import annotations

from collections.abc import Iterable

from attuner.report import claims, origin, queries
from attuner.report.bars import bars
from attuner.report.curve import curve, mark_class, shape
from attuner.report.facts import ReportFacts
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
        _step(facts),
        _launches(facts),
        _spend(facts),
        _reviews(facts),
        _recipe(facts),
        _again(facts),
    )
    body = "\n".join(s for s in (_claim(facts), *sections) if s)
    title = esc(f"{facts.campaign.name}: {claims.headline(facts)}")
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n<meta name="referrer" content="no-referrer">\n'
        f"<title>{title}</title>\n<style>{css()}</style>\n</head>\n<body>\n<main>\n{body}\n</main>\n</body>\n</html>\n"
    )


def _section(name: str, title: str, parts: Iterable[str]) -> str:
    return f'<section id="{name}">\n<h2>{esc(title)}</h2>\n' + "\n".join(p for p in parts if p) + "\n</section>"


def _p(text: str, css_class: str = "") -> str:
    mark = f' class="{css_class}"' if css_class else ""
    return f"<p{mark}>{esc(text)}</p>" if text else ""


def _sql(query: str) -> str:
    return f"<details><summary>SQL that checks this</summary><pre>{_lines(query)}</pre></details>"


def _list(items: Iterable[str]) -> str:
    return "<ul>" + "".join(f"<li>{esc(i)}</li>" for i in items) + "</ul>"


def _claim(facts: ReportFacts) -> str:
    stats = (
        ("Workload", claims.subject(facts)),
        ("Status", claims.status(facts)),
        ("Baseline, calibrated", claims.noise(facts)),
        ("Published", origin.published(facts)),
        ("Charged", claims.cost(facts)),
        ("Paid back after", claims.payback(facts)),
    )
    cells = "".join(f"<div><dt>{esc(k)}</dt><dd>{esc(v)}</dd></div>" for k, v in stats if v)
    return (
        "<header>\n"
        f'<p class="eyebrow">{esc(facts.campaign.name)} · campaign {esc(facts.campaign_id)}</p>\n'
        f"<h1>{esc(claims.headline(facts))}</h1>\n"
        f"{_p(claims.from_to(facts), 'from-to')}\n{_p(claims.evidence(facts))}\n"
        f"{_notice(facts)}\n"
        f'<dl class="stats">{cells}</dl>\n{_sql(queries.claim(facts)) if facts.claim else ""}\n</header>'
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
    return _section("changes", title, (_p(claims.changed(facts), "soft"), changes_table(facts), _sql(queries.changes(facts))))


def _looks(facts: ReportFacts) -> str:
    if not facts.looks and facts.leader is None:
        return ""
    tests = components_table(facts)
    parts = (
        looks_table(facts),
        f"<h3>Component tests against a float64 reference</h3>{tests}" if tests else "",
        _sql(queries.looks(facts)),
        "<h3>What no look can see</h3>",
        _list(claims.blind_spots(facts)),
    )
    return _section("looks", "Is it the same training?", parts)


def _both(wide: str, narrow: str, caption: str = "") -> str:
    return f"<figure>{wide}\n{narrow}{caption}</figure>" if wide else ""


def _search(facts: ReportFacts) -> str:
    drawn = _both(curve(facts, css="wide"), curve(facts, width=358, css="narrow"), _legend(facts))
    if not drawn:
        return ""
    ended = claims.stop_line(facts)
    return _section("search", "The search", (_p(f"It ended because: {ended}" if ended else "", "soft"), drawn))


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
    parts = (_both(wide, narrow), parts_table(facts), _p(note, "soft"), _sql(queries.breakdown(facts)))
    return _section("step", "Where the step went", parts)


def _launches(facts: ReportFacts) -> str:
    if not facts.rows:
        return ""
    parts = (_p(claims.predictions(facts), "soft"), launches_table(facts), _sql(queries.launches(facts)))
    return _section("launches", "Every launch, predictions beside outcomes", parts)


def _spend(facts: ReportFacts) -> str:
    if not facts.spend:
        return ""
    lead = "From allocation to release, failures and checks included."
    return _section("cost", "What it cost", (_p(lead, "soft"), spend_table(facts), _sql(queries.spend(facts))))


def _reviews(facts: ReportFacts) -> str:
    if not facts.reviews and not facts.other_reviews:
        return _section("review", "Waiting for a person", (_p("Nothing.", "soft"),)) if facts.leader else ""
    parts = [_p(claims.REVIEW_MEANS, "soft")]
    parts.append(_list(claims.review_lines(facts)) if facts.reviews else _p("Nothing for the leader's recipe.", "soft"))
    if facts.other_reviews:
        parts += ["<h3>Other candidates that wait</h3>", _list(facts.other_reviews)]
    return _section("review", "Waiting for a person", (*parts, _sql(queries.reviews())))


def _recipe(facts: ReportFacts) -> str:
    what = "The baseline's recipe" if facts.recipe_digest == facts.baseline_digest else "The recipe"
    yaml = _lines(recipe_yaml(facts.recipe).rstrip("\n"))
    adapted = ("<h3>Adapted from the public recipe</h3>", _list(origin.adaptations(facts))) if facts.campaign.adaptations else ()
    return _section("recipe", what, (*adapted, f"<pre>{yaml}</pre>", _sql(queries.recipe(facts))))


def _again(facts: ReportFacts) -> str:
    rows = "".join(f"<li><code>{esc(c)}</code><br><span class='soft'>{esc(why)}</span></li>" for c, why in claims.commands(facts))
    notes = ("<h3>Said along the way</h3>", _list(facts.notes)) if facts.notes else ()
    first = "<h3>Before any query on this page</h3>" + f"<pre>{_lines(queries.view(facts))}</pre>"
    return _section("again", "Check it, do it again", (f"<ul>{rows}</ul>", first, "<h3>Pinned</h3>", pinned_table(facts), *notes))


def _lines(text: str) -> str:
    return "\n".join(_line(line) for line in text.split("\n"))


def _line(line: str) -> str:
    bare = line.lstrip(" ")  # `esc` joins white space; the indent of code has to stay
    return " " * (len(line) - len(bare)) + esc(bare, limit=4000)
