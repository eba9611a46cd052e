"""Where the step went, before and after: one bar each, in seconds, so that a faster step is a shorter bar."""

from __future__ import annotations

from dataclasses import dataclass

from attuner.core.run import StepBreakdown
from attuner.report.svg import CHAR_W, drawing, esc, text, tick_text, ticks
from attuner.report.terminal import share_pct
from attuner.report.words import seconds

BAR_H = 30.0
ROW_H = 62.0
HATCH = {
    "p-compute": "",
    "p-comm0": "M-2 2L2 -2M0 8L8 0M6 10L10 6",
    "p-comm1": "M-2 6L2 10M0 0L8 8M6 -2L10 2",
    "p-comm2": "M0 0L8 8M0 8L8 0",
    "p-comm3": "M2 0V8M6 0V8",
    "p-comm4": "M4 0V8M0 4H8",
    "p-copy": "M0 2H8M0 6H8",
    "p-host": "M2 1V3M6 5V7",
    "p-idle": "",
}
"""Lines of an 8 × 8 tile, laid over a part's colour, so that parts are told apart on a printer without colours too."""
MAX_TONES = 5
"""Tones of communication in the style sheet: the largest kinds have their own, the rest share the last."""


@dataclass(frozen=True)
class Part:
    """One part of the step, seconds per step, mean over ranks and profiled steps."""

    name: str
    css: str
    before_s: float
    after_s: float


def mean_parts(breakdown: StepBreakdown | None) -> dict[str, float]:
    """Return mean seconds per step by part: compute, exposed communication by kind, copy, host, idle."""
    if breakdown is None or not breakdown.rank_steps:
        return {}
    count = len(breakdown.rank_steps)
    step_s = sum(r.step_s for r in breakdown.rank_steps) / count
    told = breakdown.comm_shares() or breakdown.group_shares()  # a replayed table tells groups, a trace kinds
    shares = {**breakdown.shares(), **{f"comm:{k}": v for k, v in told.items()}}
    exposed = shares.pop("exposed_comm")
    unexplained = exposed - sum(v for k, v in shares.items() if k.startswith("comm:"))
    if unexplained > 1e-9:
        shares["comm:other"] = shares.get("comm:other", 0.0) + unexplained
    return {name: share * step_s for name, share in shares.items()}


def parts(before: StepBreakdown | None, after: StepBreakdown | None) -> list[Part]:
    """Return the parts of both bars in drawing order; a part that neither has is left out."""
    old, new = mean_parts(before), mean_parts(after)
    kinds = [k for k in {**old, **new} if k.startswith("comm:")]
    kinds.sort(key=lambda k: (-max(old.get(k, 0.0), new.get(k, 0.0)), k))
    out = [Part("compute", "p-compute", old.get("compute", 0.0), new.get("compute", 0.0))]
    for n, kind in enumerate(kinds):
        name = f"exposed {kind.removeprefix('comm:').replace('_', '-')}"
        out.append(Part(name, f"p-comm{min(n, MAX_TONES - 1)}", old.get(kind, 0.0), new.get(kind, 0.0)))
    out += [Part(name, f"p-{name}", old.get(name, 0.0), new.get(name, 0.0)) for name in ("copy", "host", "idle")]
    return [p for p in out if p.before_s > 0 or p.after_s > 0]


def hatches(prefix: str, found: list[Part]) -> str:
    """Return the patterns that `filled` refers to; ids are unique on the page as long as `prefix` is."""
    tiles = "".join(
        f'<pattern id="{prefix}-{css}" width="8" height="8" patternUnits="userSpaceOnUse">'
        f'<path class="{css.replace("p-", "h-")}" d="{HATCH[css]}"/></pattern>'
        for css in dict.fromkeys(p.css for p in found)
        if HATCH[css]
    )
    return f"<defs>{tiles}</defs>" if tiles else ""


def filled(prefix: str, part: Part, box: str) -> str:
    """Return a rectangle in the part's colour with its lines over it; `box` is x, y, width and height as attributes."""
    over = f'<rect fill="url(#{prefix}-{part.css})" {box}/>' if HATCH[part.css] else ""
    return f'<rect class="{part.css}" {box}/>{over}'


def swatch(part: Part) -> str:
    """Return the sample of a part for the table beside the bars."""
    drawn = filled("key", part, 'x="0" y="0" width="16" height="13"')
    return (
        f'<svg class="swatch" width="16" height="13" viewBox="0 0 16 13" aria-hidden="true">{hatches("key", [part])}{drawn}</svg>'
    )


def bars(
    before: StepBreakdown | None,
    after: StepBreakdown | None,
    *,
    width: float = 960,
    css: str = "",
    names: tuple[str, str],
) -> str:
    """Return the drawing as SVG; '' if nothing was profiled. `names` are what the two bars are called."""
    found = parts(before, after)
    rows = [
        (name, [(p, p.before_s if first else p.after_s) for p in found])
        for name, breakdown, first in ((names[0], before, True), (names[1], after, False))
        if breakdown and breakdown.rank_steps
    ]
    if not rows:
        return ""
    longest = max(sum(s for _, s in spans) for _, spans in rows) or 1.0
    scale = (width - 2) / longest
    prefix = css or "bar"
    body: list[str] = [hatches(prefix, found)]
    for n, (name, spans) in enumerate(rows):
        total = sum(s for _, s in spans)
        body.append(text(0, n * ROW_H + 14, f"{name}: {seconds(total)} per step", "bar-name"))
        body += _bar(prefix, spans, scale, n * ROW_H + 21, total)
    return drawing(
        width,
        len(rows) * ROW_H + 46,
        "where the step went, before and after",
        [*filter(None, body), *_axis(width, len(rows) * ROW_H, longest, scale)],
        css=f"bars {css}",
    )


def _bar(prefix: str, spans: list[tuple[Part, float]], scale: float, y: float, total: float) -> list[str]:
    out, x = [], 0.0
    for p, s in spans:
        w = s * scale
        share = share_pct(s / total) if total else ""
        title = f"{p.name}: {seconds(s)} per step, {share}"
        if w > 0.4:
            box = f'x="{x:.1f}" y="{y:.1f}" width="{max(w - 1.5, 0.4):.1f}" height="{BAR_H:.0f}"'
            out.append(f"<g><title>{esc(title)}</title>{filled(prefix, p, box)}</g>")
        # the name where it has room, else the share alone; the table below has both
        label = next((t for t in (f"{p.name} {share}", share) if w > len(t) * CHAR_W + 10), "")
        if label:
            out.append(text(x + w / 2, y + BAR_H / 2 + 4, label, f"in-bar on-{p.css}", anchor="middle"))
        x += w
    return out


def _axis(width: float, y: float, longest: float, scale: float) -> list[str]:
    out = [f'<line class="axis" x1="0" x2="{longest * scale:.1f}" y1="{y:.1f}" y2="{y:.1f}"/>']
    for v in ticks(0, longest, 8 if width > 600 else 4):
        anchor = "start" if v == 0 else "middle" if v * scale < width - 16 else "end"
        out.append(f'<line class="axis" x1="{v * scale:.1f}" x2="{v * scale:.1f}" y1="{y:.1f}" y2="{y + 4:.1f}"/>')
        out.append(text(v * scale, y + 18, tick_text(v), "tick", anchor=anchor))
    out.append(text(width, y + 40, "seconds per profiled step, mean over ranks", "axis-title", anchor="end"))
    return out
