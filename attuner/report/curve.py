"""The search as a drawing: best tokens/s per device so far against device time charged, every launch as a mark.

A mark stands where the charge stood when its launch was settled. What brought no speed (failures, checks) stands on a
rail below the plot, so that its cost is seen too.
"""

from __future__ import annotations

from dataclasses import dataclass

from attuner.report.facts import ReportFacts
from attuner.report.rows import OUTCOME_WORDS, LaunchRow
from attuner.report.svg import Box, Canvas, drawing, esc, text, tick_text, ticks
from attuner.report.terminal import MINUS, pct, rate, share_pct

RAIL_H = 34.0
RADIUS = 5.0


@dataclass(frozen=True)
class _Frame:
    """The plot's place on the drawing, and what its edges mean."""

    left: float
    right: float
    top: float
    bottom: float
    max_x: float
    min_y: float
    max_y: float
    per_hour: float

    def x(self, gpu_hours: float) -> float:
        return self.left + (self.right - self.left) * gpu_hours * self.per_hour / self.max_x

    def y(self, speed: float) -> float:
        return self.bottom - (self.bottom - self.top) * (speed - self.min_y) / (self.max_y - self.min_y)


def curve(facts: ReportFacts, *, width: float = 960, css: str = "") -> str:
    """Return the drawing as SVG; '' before anything was measured."""
    rows = [r for r in facts.rows if r.spent_after > 0]
    if not rows or not any(r.tokens_per_s for r in rows):
        return ""
    rail = any(r.tokens_per_s is None for r in rows)
    height = 400.0 if width > 600 else 340.0
    f = _frame(facts, rows, width, height - (RAIL_H if rail else 0.0))
    canvas = Canvas(Box(f.left, 0, width, height))
    title = f"best {facts.units.speed} so far against {facts.units.time} charged"
    body = [*_axes(f, facts, height, rail=rail), *_baseline(f, facts), _best(f, facts, rows)]
    for r in rows:
        canvas.mark(f.x(r.spent_after), _mark_y(f, r), RADIUS + 1)
    body += [_mark(f, r, facts) for r in rows]
    body += _labels(f, facts, rows, canvas)
    return drawing(width, height, title, [b for b in body if b], css=f"curve {css}")


def _frame(facts: ReportFacts, rows: list[LaunchRow], width: float, height: float) -> _Frame:
    speeds = [r.tokens_per_s for r in rows if r.tokens_per_s]
    if facts.calibration:
        c = facts.calibration
        speeds += [c.mean * (1 - c.band), c.mean * (1 + c.band)]
    low, high = min(speeds), max(speeds)
    # from zero unless that would flatten a small gain into a line
    floor = 0.0 if low < 0.7 * high else low - 0.35 * (high - low or high)
    total = max(r.spent_after for r in rows) * facts.units.per_hour
    return _Frame(
        left=58 if width > 600 else 46,
        right=width - 14,
        top=34,
        bottom=height - 46,
        max_x=total * 1.02,
        min_y=floor,
        max_y=high + 0.12 * (high - floor),
        per_hour=facts.units.per_hour,
    )


def _axes(f: _Frame, facts: ReportFacts, height: float, *, rail: bool) -> list[str]:
    out = [text(0, 14, facts.units.speed, "axis-title")]
    for v in ticks(f.min_y, f.max_y, 5):
        y = f.y(v)
        out.append(f'<line class="grid" x1="{f.left:.1f}" x2="{f.right:.1f}" y1="{y:.1f}" y2="{y:.1f}"/>')
        out.append(text(f.left - 8, y + 4, tick_text(v), "tick", anchor="end"))
    base = f.bottom + (RAIL_H if rail else 0.0)
    out.append(f'<line class="axis" x1="{f.left:.1f}" x2="{f.right:.1f}" y1="{base:.1f}" y2="{base:.1f}"/>')
    if rail:
        out.append(f'<line class="grid" x1="{f.left:.1f}" x2="{f.right:.1f}" y1="{f.bottom:.1f}" y2="{f.bottom:.1f}"/>')
        out.append(text(f.left - 8, _rail_y(f) + 4, "none", "tick", anchor="end"))
    for v in ticks(0, f.max_x, 8 if f.right > 600 else 4):
        x = f.x(v / f.per_hour)
        out.append(f'<line class="axis" x1="{x:.1f}" x2="{x:.1f}" y1="{base:.1f}" y2="{base + 4:.1f}"/>')
        out.append(text(x, base + 18, tick_text(v), "tick", anchor="middle"))
    out.append(text(f.right, height - 6, f"{facts.units.time} charged", "axis-title", anchor="end"))
    return out


def _baseline(f: _Frame, facts: ReportFacts) -> list[str]:
    c = facts.calibration
    if c is None:
        return []
    top, bottom, mid = (f.y(c.mean * k) for k in (1 + c.band, 1 - c.band, 1.0))
    size = f'width="{f.right - f.left:.1f}" height="{bottom - top:.1f}"'
    return [
        f'<rect class="band" x="{f.left:.1f}" y="{top:.1f}" {size}/>',
        f'<line class="base" x1="{f.left:.1f}" x2="{f.right:.1f}" y1="{mid:.1f}" y2="{mid:.1f}"/>',
    ]


def _best(f: _Frame, facts: ReportFacts, rows: list[LaunchRow]) -> str:
    """Return the staircase: it starts where calibration ended and rises where a launch took the lead."""
    if facts.calibration is None:
        return ""
    begun = max((r.spent_after for r in rows if r.id in facts.calibration.launches), default=0.0)
    path, best = [f"M{f.x(begun):.1f} {f.y(facts.calibration.mean):.1f}"], facts.calibration.mean
    # by what was charged: a launch that a person had run again stands where its last attempt was settled
    for r in sorted(rows, key=lambda r: r.spent_after):
        if r.new_leader and r.tokens_per_s and r.tokens_per_s > best:
            best = r.tokens_per_s
            path.append(f"H{f.x(r.spent_after):.1f}V{f.y(best):.1f}")
    end = max(r.spent_after for r in rows)
    return f'<path class="best" d="{"".join(path)}H{f.x(end):.1f}"/>'


def _rail_y(f: _Frame) -> float:
    return f.bottom + RAIL_H / 2


def _mark_y(f: _Frame, r: LaunchRow) -> float:
    return f.y(r.tokens_per_s) if r.tokens_per_s else _rail_y(f)


def mark_class(r: LaunchRow) -> str:
    """Return what a row is drawn as: leader, tried, refused, failed, calibrate, remeasure, other."""
    if r.failed:
        return "failed"
    if r.kind == "remeasure":
        return "remeasure"
    if r.verdict == "refuse":
        return "refused"
    if r.kind == "search" and r.tokens_per_s:
        return "leader" if r.new_leader else "tried"
    return "calibrate" if r.kind == "calibrate" else "other"


def shape(kind: str, x: float, y: float) -> str:
    """Return the shape of a mark's class, centred at (x, y)."""
    r = RADIUS
    if kind == "failed":
        d = f"M{x - r:.1f} {y - r:.1f}L{x + r:.1f} {y + r:.1f}M{x - r:.1f} {y + r:.1f}L{x + r:.1f} {y - r:.1f}"
        return f'<path class="m-failed" d="{d}"/>'
    if kind == "remeasure":
        d = f"M{x:.1f} {y - r - 1:.1f}l{r + 1:.1f} {r + 1:.1f}l{-r - 1:.1f} {r + 1:.1f}l{-r - 1:.1f} {-r - 1:.1f}z"
        return f'<path class="m-remeasure" d="{d}"/>'
    if kind == "refused":
        d = f"M{x - r:.1f} {y - r:.1f}h{2 * r:.1f}v{2 * r:.1f}h{-2 * r:.1f}z"
        return f'<path class="m-refused" d="{d}"/>'
    if kind == "other":
        return f'<path class="m-other" d="M{x:.1f} {y - r:.1f}V{y + r:.1f}"/>'
    radius = {"leader": r, "tried": r - 0.5}.get(kind, r - 1.5)
    return f'<circle class="m-{kind}" cx="{x:.1f}" cy="{y:.1f}" r="{radius:.1f}"/>'


def _mark(f: _Frame, r: LaunchRow, facts: ReportFacts) -> str:
    words = [f"{r.id} {r.kind}: {r.what}"]
    words.append(f"{rate(r.tokens_per_s)} {facts.units.speed}" if r.tokens_per_s else OUTCOME_WORDS[r.outcome])
    if r.gain is not None:
        words.append(f"{pct(r.gain)} over the leader")
    words.append(f"{facts.units.spent(r.gpu_hours)}")
    if r.reason:
        words.append(r.reason)
    drawn = shape(mark_class(r), f.x(r.spent_after), _mark_y(f, r))
    return f"<g><title>{esc(' · '.join(words))}</title>{drawn}</g>"


def _labels(f: _Frame, facts: ReportFacts, rows: list[LaunchRow], canvas: Canvas) -> list[str]:
    out = []
    for r in rows:
        x, y = f.x(r.spent_after), _mark_y(f, r)
        if r.new_leader and r.tokens_per_s:
            words = f"{r.id} {pct(r.tokens_per_s / facts.calibration.mean - 1)}" if facts.calibration else r.id
            spots = [(x - 9, y - 7, "end"), (x, y - 12, "middle"), (x - 9, y + 16, "end"), (x + 9, y + 18, "start")]
            out.append(canvas.label(spots, words, "m-label"))
        elif r.failed:
            spots = [(x + 9, y + 4, "start"), (x - 9, y + 4, "end")]
            long = f"{r.id} {OUTCOME_WORDS[r.outcome]}"
            out.append(canvas.label(spots[:1], long, "m-note") or canvas.label(spots, r.id, "m-note"))
    if facts.calibration:
        c = facts.calibration
        words = f"baseline {rate(c.mean)} ±{share_pct(c.band)}".replace("-", MINUS)
        above, below = f.y(c.mean * (1 + c.band)) - 10, f.y(c.mean * (1 - c.band)) + 22
        spots = [(x, y, a) for y in (below, above) for x, a in ((f.left + 8, "start"), (f.right - 4, "end"))]
        out.append(canvas.label(spots, words, "m-note"))
    return out
