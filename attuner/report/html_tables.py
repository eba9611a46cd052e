"""The tables of report.html. On a phone every row becomes a card: each cell carries its column's name."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from attuner.core.judgement import SEVERITY, Decision, Finding
from attuner.report import claims
from attuner.report.bars import parts, swatch
from attuner.report.facts import CONFIG_LOOK, ChangedValue, LookRow, ReportFacts
from attuner.report.rows import OUTCOME_WORDS, LaunchRow
from attuner.report.spend import PURPOSES
from attuner.report.svg import esc
from attuner.report.terminal import DASH, pct, rate, share_pct
from attuner.report.words import seconds, usd, value

_DECISION = {"admit": "✓ admitted", "review": "◆ to review", "refuse": "✕ refused"}


@dataclass(frozen=True)
class Cell:
    """One cell: HTML that is safe already, and how it is set."""

    html: str
    css: str = ""


def table(
    head: Sequence[tuple[str, str]],
    rows: Iterable[tuple[str, Sequence[Cell]]],
    *,
    foot: Sequence[Cell] = (),
    cards: bool = True,
) -> str:
    """Return a table: `head` is (name, class) per column, a row is (class, cells). Narrow ones need no cards."""
    top = "".join(f'<th scope="col" class="{css}">{esc(name)}</th>' for name, css in head)
    body = "\n".join(_row(head, css, cells) for css, cells in rows)
    end = f"<tfoot>{_row(head, '', foot)}</tfoot>" if foot else ""
    css = ' class="cards"' if cards else ""
    made = f"<table{css}><thead><tr>{top}</tr></thead>\n<tbody>\n{body}\n</tbody>{end}</table>"
    if cards:
        return made
    # what is too wide for a phone scrolls in a box of its own, which a keyboard must reach
    return f'<div class="scroll" role="group" aria-label="{esc(head[0][0])}, table" tabindex="0">{made}</div>'


def _row(head: Sequence[tuple[str, str]], css: str, cells: Sequence[Cell]) -> str:
    out = "".join(
        f'<td class="{" ".join(x for x in (column, c.css) if x)}" data-label="{esc(name)}">{_wrapped(c.html)}</td>'
        for (name, column), c in zip(head, cells, strict=True)
    )
    return f'<tr class="{css}">{out}</tr>' if css else f"<tr>{out}</tr>"


def _wrapped(html: str) -> str:
    # one child per cell: on a phone a cell is a grid of label and content
    return f"<div>{html}</div>" if html else ""


def tag(decision: Decision | None) -> str:
    """Return a decision as a coloured word with a sign."""
    return f'<span class="tag {decision}">{_DECISION[decision]}</span>' if decision else DASH


def _sub(text: str) -> str:
    return f'<span class="sub">{esc(text)}</span>' if text else ""


def changes_table(facts: ReportFacts) -> str:
    """Return the final values that differ, each with every rule that spoke about it."""
    if not facts.changes:
        return "<p>No final value differs.</p>"
    head = (("Final value", "head"), ("Before", ""), ("After", ""), ("Decision", ""), ("Rule and reason", ""))
    return table(head, [("", _change(c)) for c in facts.changes])


def _change(changed: ChangedValue) -> list[Cell]:
    c = changed.change
    derived = c.key.startswith("fact:")
    # a long argument name may break after an underscore, nowhere else
    name = f"<code>{esc(c.key.removeprefix('fact:').removeprefix('env:')).replace('_', '_<wbr>')}</code>"
    kind = "fact that follows" if derived else "environment variable" if c.key.startswith("env:") else ""
    worst = max((f.decision for f in changed.findings), key=["admit", "review", "refuse"].index, default=None)
    why = "".join(_finding(f) for f in changed.findings) or f"<span class='soft'>{DASH} no rule spoke about it</span>"
    before, after = (_value(value(v)) for v in (c.before, c.after))
    return [Cell(name + _sub(kind), "name"), before, after, Cell(tag(worst)), Cell(why)]


def _value(text: str) -> Cell:
    return Cell(f"<code>{esc(text)}</code>", "nowrap" if len(text) <= 14 else "")


def _finding(f: Finding) -> str:
    waived = " (waived in the campaign file)" if f.waived else ""
    source = f"source: {' · '.join(f.source)}" if f.source else ""
    return f'<div><span class="mono">{esc(f.rule)}</span>{waived} {esc(f.reason)}{_sub(source)}</div>'


def looks_table(facts: ReportFacts) -> str:
    """Return what the looks at the leader's recipe decided, a row each; every measurement stands folded away below.

    What a look did not admit stands in the open, however many measurements there are.
    """
    if not facts.looks:
        return "<p>No look is on record for this recipe.</p>"
    names = ("Look", "Measured", "Nearest to its limit, or what decided", "Decision")
    head = tuple((n, "head" if n == "Look" else "") for n in names)
    looks = looks_by_name(facts.looks)
    measured = [r for r in facts.looks if r.look != CONFIG_LOOK]  # final values stand in a table of their own
    open_ = [r for r in measured if r.decision != "admit"]
    gate = f"<h3>Not admitted</h3>{_measurements(open_)}" if open_ else ""
    every = "".join(f"<h3>{esc(name)}</h3>{_measurements(found)}" for name, found in looks_by_name(measured).items())
    count = len(measured)
    fold = f"<details><summary>Every measurement ({count}), with its tolerance</summary>{every}</details>" if measured else ""
    return table(head, [("", _look(name, found)) for name, found in looks.items()]) + gate + fold


def looks_by_name(rows: Iterable[LookRow]) -> dict[str, list[LookRow]]:
    """Return the rows of each look, in order."""
    found: dict[str, list[LookRow]] = {}
    for r in rows:
        found.setdefault(r.look, []).append(r)
    return found


def decisive(found: Sequence[LookRow]) -> LookRow:
    """Return the row that decided a look: the strictest, and of several the one that uses most of its limit."""
    return max(found, key=lambda r: (SEVERITY[r.decision], r.share))


def _look(name: str, found: Sequence[LookRow]) -> list[Cell]:
    runs = ", ".join(dict.fromkeys(s for r in found for s in r.subject.split(", ")))
    worst = decisive(found)
    values = f"{worst.baseline} → {worst.candidate}" if worst.baseline or worst.candidate else ""
    limit = f"tolerance {worst.tolerance}" if worst.tolerance else ""
    said = "; ".join(x for x in (values, worst.measured, limit) if x)
    count = "" if name == CONFIG_LOOK else f"{len(found)} comparison{'' if len(found) == 1 else 's'}"
    return [Cell(esc(name) + _sub(runs)), Cell(esc(count)), Cell(f"{esc(worst.what)}{_sub(said)}"), Cell(tag(worst.decision))]


def _measurements(rows: Sequence[LookRow]) -> str:
    names = ("Compared", "Baseline", "Candidate", "Measured", "Tolerance", "Decision")
    head = tuple((n, "head" if n == "Compared" else "") for n in names)
    return table(head, [("", _measurement(r)) for r in rows])


def _measurement(r: LookRow) -> list[Cell]:
    return [
        Cell(esc(r.what) + _sub(r.subject)),
        *(Cell(esc(x), "nowrap" if len(x) <= 12 else "") for x in (r.baseline, r.candidate)),
        *(Cell(esc(x)) for x in (r.measured, r.tolerance)),
        Cell(tag(r.decision)),
    ]


def components_table(facts: ReportFacts) -> str:
    """Return the component tests: errors before and after the swap, against the tolerance."""
    if not facts.components:
        return ""
    names = ("Component", "Swap", "Forward error", "Backward error", "Tolerance", "Result")
    head = tuple((n, "head" if n == "Component" else "") for n in names)
    rows = []
    for t in facts.components:
        swap = f"<code>{esc(t.argument)}</code> {esc(value(t.old))} → {esc(value(t.new))}"
        result = f'<span class="tag {"admit" if t.passed else "refuse"}">{"✓ passed" if t.passed else "✕ failed"}</span>'
        errors = [
            f"{a:.1e} → {b:.1e}"
            for a, b in ((t.forward_error_old, t.forward_error_new), (t.backward_error_old, t.backward_error_new))
        ]
        where = Cell(esc(t.component) + _sub(f"{t.dtype}, {t.launch_id}"))
        limits = Cell(f"{t.tolerance_forward:.1e}, {t.tolerance_backward:.1e}")
        rows.append(("", [where, Cell(swap), *map(Cell, errors), limits, Cell(result + _sub(t.why))]))
    return table(head, rows)


def parts_table(facts: ReportFacts) -> str:
    """Return the parts of the step as figures; its colour samples are the legend of the bars."""
    found = parts(facts.before, facts.after)
    totals = sum(p.before_s for p in found), sum(p.after_s for p in found)
    shown = [n for n, b in (("Before", facts.before), ("After", facts.after)) if b]
    head = (("Part", "head"), *((n, "num") for n in shown))

    def cells(values: tuple[float, float]) -> list[Cell]:
        both = [
            Cell(f"{seconds(s)} <span class='share'>{share_pct(s / total)}</span>" if s else DASH)
            for s, total in zip(values, totals, strict=True)
        ]
        return [c for c, there in zip(both, (facts.before, facts.after), strict=True) if there]

    rows = [("", [Cell(f"{swatch(p)}{esc(p.name)}"), *cells((p.before_s, p.after_s))]) for p in found]
    return table(head, rows, foot=[Cell("step"), *cells(totals)], cards=False)


def launches_table(facts: ReportFacts) -> str:
    """Return every launch, and every hypothesis that never launched, in order."""
    head = (
        ("Launch", "nowrap head"),
        ("Kind", "nowrap"),
        ("What changed", "what"),
        ("Predicted gain", "num"),
        (f"Outcome, {facts.units.speed}", "num"),
        ("Gain", "num"),
        ("Verdict", ""),
        (facts.units.time, "num"),
    )
    return table(head, [("lead" if r.new_leader else "", _launch(r, facts)) for r in facts.rows])


def _launch(r: LaunchRow, facts: ReportFacts) -> list[Cell]:
    predicted = "" if r.predicted_gain is None else f"{pct(r.predicted_gain)} ±{share_pct(r.predicted_error or 0.0)}"
    if r.tokens_per_s:
        outcome = rate(r.tokens_per_s)
    else:
        css = "tag bad" if r.failed else "soft"
        outcome = f'<span class="{css}">{OUTCOME_WORDS[r.outcome].replace(", ", "<br>")}</span>'
    gain = "" if r.gain is None else pct(r.gain) + ("<span class='sub'>new leader</span>" if r.new_leader else "")
    again = _sub(f"{r.num_attempts} attempts") if r.num_attempts > 1 else ""
    what = f"{esc(r.what)}{_sub(f'asked for by {r.by}' if r.by else '')}{_sub(r.reason)}"
    return [
        Cell(f'<span class="mono">{esc(r.id)}</span>'),
        Cell(esc(r.kind)),
        Cell(what),
        Cell(predicted),
        Cell(outcome),
        Cell(gain),
        Cell(tag(r.verdict) if r.verdict else ""),
        Cell(facts.units.amount(r.gpu_hours) + again),
    ]


def spend_table(facts: ReportFacts) -> str:
    """Return the charge by kind of launch; the last line is the sum of those above it."""
    price = facts.details.economy.price
    hourly = None if price is None else price.usd_per_hour
    names = ("Launches", "Attempts", facts.units.time, *(["US dollars"] if price else []), "Share")
    head = (("Purpose", "head"), *((n, "num") for n in names))
    total = facts.total_gpu_hours
    amounts = facts.units.amounts([s.gpu_hours for s in facts.spend])

    def line(name: str, launches: int, attempts: int, amount: str, hours: float) -> list[Cell]:
        dollars = [Cell(usd(hours * hourly))] if hourly is not None else []
        share = Cell(share_pct(hours / total) if total else DASH)
        return [Cell(esc(name)), Cell(f"{launches}"), Cell(f"{attempts}"), Cell(amount), *dollars, share]

    rows = [
        ("", line(PURPOSES.get(s.kind, s.kind), s.num_launches, s.num_attempts, amount, s.gpu_hours))
        for s, amount in zip(facts.spend, amounts, strict=True)
    ]
    launches, attempts = sum(s.num_launches for s in facts.spend), sum(s.num_attempts for s in facts.spend)
    foot = line("total", launches, attempts, facts.units.amount(total), total)
    return table(head, rows, foot=foot)


def pinned_table(facts: ReportFacts) -> str:
    """Return what must be equal for the campaign to run again."""
    rows = [("", [Cell(esc(k)), Cell(f'<span class="mono">{esc(v)}</span>')]) for k, v in claims.pinned(facts)]
    return table((("What", ""), ("Value", "")), rows, cards=False)
