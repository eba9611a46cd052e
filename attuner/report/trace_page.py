"""One page that shows where the steps of profiler traces went: bars per rank and step, a timeline, tables, every note.

Self-contained: no network, no script. All names come from a trace, which anyone may have written, and pass `esc`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from attuner.report.style import css
from attuner.report.svg import CHAR_W, drawing, esc, text, tick_text, ticks
from attuner.report.trace_text import WORDS, duration, launch_words, max_gain, summed
from attuner.traces.ranks import Comparison
from attuner.traces.records import PARTS, RankProfile, StepParts

_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
_WIDTH = 960.0
_LABEL_W = 150.0
_BAR_H, _ROW_H = 22.0, 32.0
_LANE_H, _LANE_ROW = 18.0, 28.0
_MAX_BARS = 48
_MAX_TIMELINES = 4
_TONES = 5
_EXTRA = """
.bars rect{shape-rendering:crispEdges}
svg .row-name{font-size:12px}svg .row-soft{font-size:11.5px;fill:var(--soft)}
svg .doubt{opacity:.45}
.lane{fill:var(--faint)}
td.kernel{max-width:44ch}
"""


@dataclass(frozen=True)
class _Part:
    name: str
    css: str
    ns: int


def page(result: Comparison, refused: list[tuple[str, str]]) -> str:
    """Return the whole page."""
    tones = _tones(result.ranks)
    body = [
        _head(result),
        _figure("Where each step went", _bars(result.ranks, tones), _legend(result.ranks, tones)),
        *(_timeline(p, tones) for p in result.ranks[:_MAX_TIMELINES]),
        _stragglers(result),
        *(_rank(p) for p in result.ranks[:_MAX_BARS]),
        _refused(refused),
    ]
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>Where the steps went</title>\n<style>{css()}{_EXTRA}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(x for x in body if x)
        + "\n</main>\n</body>\n</html>\n"
    )


def parts_of(step: StepParts, tones: dict[str, str]) -> list[_Part]:
    """Return the parts of a step in drawing order; they add up to it. Empty ones are left out."""
    out = [_Part(WORDS["compute"], "p-compute", step.compute)]
    out += [_Part(f"exposed {g}", css_class, step.exposed_by_group.get(g, 0)) for g, css_class in tones.items()]
    out += [_Part(WORDS[x], f"p-{x}", getattr(step, x)) for x in ("copy", "host", "idle")]
    return [p for p in out if p.ns > 0]


def _tones(ranks: list[RankProfile]) -> dict[str, str]:
    """Return the colour class of each group of communication, the largest first."""
    steps = [s for p in ranks for s in p.steps]
    groups = {**summed(steps, "exposed_by_group"), **{g: 0 for g in summed(steps, "hidden_by_group")}}
    order = sorted(groups, key=lambda g: (-summed(steps, "exposed_by_group").get(g, 0), g))
    return {g: f"p-comm{min(n, _TONES - 1)}" for n, g in enumerate(order)}


def _head(result: Comparison) -> str:
    first = result.ranks[0]
    where = [first.device, first.hardware, first.backend, f"world of {first.world_size}" if first.world_size else ""]
    steps = sum(len(p.counted()) for p in result.ranks)
    mean = sum(p.mean("span") for p in result.ranks) / len(result.ranks)
    count = len(result.ranks)
    of = f"{count} rank{'' if count == 1 else 's'}, {steps} step{'' if steps == 1 else 's'} that count"
    return (
        f'<p class="eyebrow">profiler traces: {esc(", ".join(x for x in where if x))}</p>\n'
        f"<h1>{esc(duration(mean))} a step</h1>\n<p>{esc(of)}. Every nanosecond of a step belongs to exactly one part; "
        "times of communication include waiting for the peer.</p>"
    )


def _figure(title: str, svg: str, legend: str = "", note: str = "") -> str:
    soft = f'<p class="soft">{esc(note)}</p>' if note else ""
    return f"<section>\n<h2>{esc(title)}</h2>\n{soft}<figure>{svg}</figure>\n{legend}</section>"


def _bars(ranks: list[RankProfile], tones: dict[str, str]) -> str:
    rows = [(p, s) for p in ranks for s in p.steps]
    shown = rows[:_MAX_BARS]
    longest = max((s.span for _, s in shown), default=1) or 1
    scale = (_WIDTH - _LABEL_W - 2) / longest
    body: list[str] = []
    for n, (p, step) in enumerate(shown):
        y = n * _ROW_H + 4
        name = "whole trace" if p.whole else f"step {step.number}"
        body.append(text(0, y + 15, f"rank {p.rank}, {name}", "row-name"))
        body += _bar(parts_of(step, tones), scale, y, step)
    height = len(shown) * _ROW_H
    body += _axis(height + 6, longest, scale)
    if len(rows) > len(shown):
        body.append(text(_WIDTH, height + 44, f"{len(rows) - len(shown)} more steps aren't drawn", "row-soft", anchor="end"))
    return drawing(_WIDTH, height + 50, "where each step went, by rank", body, css="bars")


def _bar(parts: list[_Part], scale: float, y: float, step: StepParts) -> list[str]:
    out, at = [], 0
    css_class = ' class="doubt"' if step.doubt else ""
    for p in parts:
        x, w = _LABEL_W + at * scale, p.ns * scale
        share = f"{p.ns / step.span:.1%}"
        title = f"{p.name}: {duration(p.ns)}, {share}" + (f" ({step.doubt})" if step.doubt else "")
        out.append(
            f'<g{css_class}><title>{esc(title)}</title><rect class="{p.css}" x="{x:.2f}" y="{y:.1f}" width="{w:.2f}" '
            f'height="{_BAR_H:.0f}"/></g>'
        )
        if w > len(share) * CHAR_W + 8:
            out.append(text(x + w / 2, y + _BAR_H / 2 + 4, share, f"in-bar on-{p.css}", anchor="middle"))
        at += p.ns
    return out


def _axis(y: float, longest: int, scale: float) -> list[str]:
    """Return a time axis; its unit fits the longest step."""
    unit, size = next((u, s) for u, s in (("s", 1e9), ("ms", 1e6), ("µs", 1e3), ("ns", 1.0)) if longest >= s)
    end = _LABEL_W + longest * scale
    out = [f'<line class="axis" x1="{_LABEL_W:.0f}" x2="{end:.1f}" y1="{y:.1f}" y2="{y:.1f}"/>']
    for v in ticks(0, longest / size, 8):
        x = _LABEL_W + v * size * scale
        anchor = "start" if v == 0 else "middle" if x < _WIDTH - 20 else "end"
        out.append(f'<line class="axis" x1="{x:.1f}" x2="{x:.1f}" y1="{y:.1f}" y2="{y + 4:.1f}"/>')
        out.append(text(x, y + 18, f"{tick_text(v)} {unit}", "tick", anchor=anchor))
    return out


def _legend(ranks: list[RankProfile], tones: dict[str, str]) -> str:
    used = {part.name: part.css for p in ranks for s in p.steps for part in parts_of(s, tones)}
    items = "".join(f'<li><span class="swatch {c}"></span>{esc(name)}</li>' for name, c in used.items())
    return f'<ul class="legend">{items}</ul>\n'


def _timeline(p: RankProfile, tones: dict[str, str]) -> str:
    step = next((s for s in p.steps if s.number == p.timeline_step), None)
    if step is None or not p.timeline:
        return ""
    scale = (_WIDTH - _LABEL_W - 2) / step.span
    body: list[str] = []
    for n, lane in enumerate(p.timeline):
        y = n * _LANE_ROW + 4
        group = lane.name.removesuffix(" communication") if lane.name != "communication" else "unknown"
        css_class = tones.get(group, "p-comm0") if lane.css == "comm0" else f"p-{lane.css}"
        whole = sum(b - a for a, b in lane.stretches)
        body.append(text(0, y + 13, lane.name, "row-name"))
        body.append(f'<rect class="lane" x="{_LABEL_W:.0f}" y="{y:.1f}" width="{step.span * scale:.1f}" height="{_LANE_H:.0f}"/>')
        boxes = ((_LABEL_W + a * scale, max((b - a) * scale, 0.05)) for a, b in lane.stretches)
        path = "".join(f"M{x:.2f} {y:.1f}h{w:.2f}v{_LANE_H:.0f}h-{w:.2f}z" for x, w in boxes)
        title = f"{lane.name}: {duration(whole)} in {len(lane.stretches):,} stretches as drawn"
        body.append(f'<g><title>{esc(title)}</title><path class="{css_class}" d="{path}"/></g>')
    body += _axis(len(p.timeline) * _LANE_ROW + 6, step.span, scale)
    name = "whole trace" if p.whole else f"step {step.number}"
    svg = drawing(_WIDTH, len(p.timeline) * _LANE_ROW + 36, f"timeline of {name} of rank {p.rank}", body, css="bars")
    note = "The step of median length. Lanes may overlap: communication under compute is hidden."
    return _figure(f"Rank {p.rank}: timeline of {name}", svg, note=note)


def _stragglers(result: Comparison) -> str:
    if len(result.ranks) < 2 or not result.stragglers:
        return ""
    rows = [(f"rank {s.rank}", duration(s.own), f"{s.behind:+.1%}", f"{s.last:,}", duration(s.caused)) for s in result.stragglers]
    head = ("rank", "own work a step", "to the mean", "came last to", "others waited a step")
    note = f"Collectives that all ranks have: {result.matched:,}; common steps: {len(result.steps)}."
    if result.unmatched:
        note += f" Steps in which the ranks' collectives differ, not matched: {result.unmatched}."
    return f'<section>\n<h2>Who the others wait for</h2>\n<p class="soft">{esc(note)}</p>\n{_table(head, rows)}\n</section>'


def _rank(p: RankProfile) -> str:
    steps = p.counted()
    whole = sum(s.span for s in steps)
    if not whole:
        return ""
    rows = [(WORDS[x], sum(getattr(s, x) for s in steps)) for x in PARTS if x != "exposed"]
    rows += [(f"exposed {g}", n) for g, n in summed(steps, "exposed_by_group").items()]
    rows += [(f"inside compute: {k}", n) for k, n in summed(steps, "detail").items()]
    rows += [(f"hidden {g}", n) for g, n in summed(steps, "hidden_by_group").items()]
    cells = [
        (
            name,
            duration(ns / len(steps)),
            f"{ns / whole:.2%}",
            "" if name.startswith(("hidden", "inside")) else max_gain(ns / whole),
        )
        for name, ns in rows
        if ns
    ]
    out = [f"<section>\n<h2>Rank {p.rank}</h2>\n<p class='soft'>{esc(p.source)}; {p.events:,} events</p>"]
    out.append(_table(("part", "mean a step", "share", "at most faster"), cells))
    if p.launches is not None:
        out.append(f"<p>{esc('Launches: ' + launch_words(p.launches))}.</p>")
    if p.quirks:
        out.append("<h3>What to know of this trace</h3>\n<ul>" + "".join(f"<li>{esc(q.text)}</li>" for q in p.quirks) + "</ul>")
    kernels = [(u.name, duration(u.total), f"{u.total / whole:.2%}", f"{u.count:,}") for u in p.kernels[:20]]
    title = "Longest kernels" if p.launches is not None else "Longest operators"
    out.append(f"<details><summary>{title}</summary>{_table(('name', 'in all', 'share', 'runs'), kernels)}</details>")
    return "\n".join(out) + "\n</section>"


def _refused(refused: list[tuple[str, str]]) -> str:
    if not refused:
        return ""
    items = "".join(f"<li>{esc(path)}: {esc(why)}</li>" for path, why in refused)
    return f"<section>\n<h2>Not read</h2>\n<ul>{items}</ul>\n</section>"


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    first, *others = head
    top = f"<th>{esc(first)}</th>" + "".join(f'<th class="num">{esc(h)}</th>' for h in others)
    body = ""
    for name, *cells in rows:
        body += f'<tr><td class="kernel">{esc(name)}</td>' + "".join(f'<td class="num">{esc(c)}</td>' for c in cells) + "</tr>\n"
    return f"<table><thead><tr>{top}</tr></thead><tbody>\n{body}</tbody></table>"
