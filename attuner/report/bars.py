"""Where the step went, before and after: one bar each, in seconds, so that a faster step is a shorter bar."""

from __future__ import annotations

from dataclasses import dataclass

from attuner.core.run import StepBreakdown
from attuner.report.svg import CHAR_W, drawing, esc, text, tick_text, ticks
from attuner.report.terminal import share_pct
from attuner.report.words import seconds

BAR_H = 30.0
ROW_H = 62.0
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
    shares = {**breakdown.shares(), **{f"comm:{k}": v for k, v in breakdown.comm_shares().items()}}
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
    body: list[str] = []
    for n, (name, spans) in enumerate(rows):
        total = sum(s for _, s in spans)
        body.append(text(0, n * ROW_H + 14, f"{name}: {seconds(total)} per step", "bar-name"))
        body += _bar(spans, scale, n * ROW_H + 21, total)
    return drawing(
        width,
        len(rows) * ROW_H + 46,
        "where the step went, before and after",
        [*body, *_axis(width, len(rows) * ROW_H, longest, scale)],
        css=f"bars {css}",
    )


def _bar(spans: list[tuple[Part, float]], scale: float, y: float, total: float) -> list[str]:
    out, x = [], 0.0
    for p, s in spans:
        w = s * scale
        share = share_pct(s / total) if total else ""
        title = f"{p.name}: {seconds(s)} per step, {share}"
        if w > 0.4:
            out.append(
                f'<g><title>{esc(title)}</title><rect class="{p.css}" x="{x:.1f}" y="{y:.1f}" '
                f'width="{max(w - 1.5, 0.4):.1f}" height="{BAR_H:.0f}"/></g>'
            )
        if w > len(share) * CHAR_W + 10:
            out.append(text(x + w / 2, y + BAR_H / 2 + 4, share, f"in-bar on-{p.css}", anchor="middle"))
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
