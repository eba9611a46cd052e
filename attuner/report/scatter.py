"""Predicted against measured gain as a drawing. The axes are logarithmic in speed: twice as fast and half as fast lie equally far
from no change, so one huge gain doesn't flatten the rest."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from attuner.report.predictions import ESTIMATE, Prediction
from attuner.report.svg import Box, Canvas, drawing, esc, text
from attuner.report.terminal import pct, share_pct

_NICE = (
    -0.95,
    -0.9,
    -0.8,
    -0.7,
    -0.5,
    -0.3,
    -0.2,
    -0.1,
    -0.05,
    0.0,
    0.05,
    0.1,
    0.2,
    0.3,
    0.5,
    1.0,
    2.0,
    4.0,
    9.0,
    19.0,
    49.0,
    99.0,
)
_SLOWEST = -0.98
"""A prediction of standing still has no logarithm: it is drawn here."""
RADIUS = 4.5


@dataclass(frozen=True)
class _Frame:
    left: float
    right: float
    top: float
    bottom: float
    low: float
    high: float

    def _at(self, gain: float) -> float:
        share = (_log(gain) - self.low) / (self.high - self.low)
        return min(max(share, 0.0), 1.0)

    def x(self, gain: float) -> float:
        return self.left + (self.right - self.left) * self._at(gain)

    def y(self, gain: float) -> float:
        return self.bottom - (self.bottom - self.top) * self._at(gain)


def _log(gain: float) -> float:
    return math.log2(1.0 + max(gain, _SLOWEST))


def scatter(found: Sequence[Prediction], *, width: float = 620, css: str = "") -> str:
    """Return the drawing as SVG; '' without a pair. A mark on the line was predicted exactly; whiskers are the predicted ±."""
    found = [p for p in found if math.isfinite(p.predicted) and math.isfinite(p.measured)]
    if not found:
        return ""
    values = [_log(x) for p in found for x in (p.predicted, p.measured)] + [0.0]
    pad = 0.08 * (max(values) - min(values)) or 0.1
    height = min(width * 0.8, 430.0)
    f = _Frame(58 if width > 500 else 52, width - 12, 26, height - 44, min(values) - pad, max(values) + pad)
    canvas = Canvas(Box(f.left, f.top - 14, width, f.bottom))
    for p in found:
        canvas.mark(f.x(p.predicted), f.y(p.measured), RADIUS + 1)
    body = [*_axes(f, width, height)]
    for p in sorted(found, key=lambda p: p.by != ESTIMATE):
        body.append(_mark(f, p))
    named: set[str] = set()
    for p in sorted(found, key=lambda p: -abs(p.miss)):
        if p.launch_id not in named:
            x, y = f.x(p.predicted), f.y(p.measured)
            spots = [(x, y - 9, "middle"), (x, y + 19, "middle"), (x + 9, y - 7, "start"), (x - 9, y - 7, "end")]
            body.append(canvas.label(spots, p.launch_id, "m-note"))
            named.add(p.launch_id)
    return drawing(width, height, "predicted against measured gain, one mark a launch", [b for b in body if b], css=css)


def _axes(f: _Frame, width: float, height: float) -> list[str]:
    out = [text(0, 12, "measured gain over the leader", "axis-title")]
    spread = (f.right - f.left) / (f.high - f.low)
    out.append(f'<line class="base" x1="{f.left:.1f}" y1="{f.bottom:.1f}" x2="{f.right:.1f}" y2="{f.top:.1f}"/>')
    last = -math.inf
    # no change is the one value that must be there; the others stand where they have room
    for v in sorted(_NICE, key=lambda v: v != 0.0):
        at = _log(v)
        if not f.low <= at <= f.high:
            continue
        x, y = f.x(v), f.y(v)
        if v == 0.0:
            zero = x
        elif min(abs(x - zero), abs(x - last) if last > -math.inf else math.inf) < 46 or spread <= 0:
            continue
        else:
            last = x
        grid = "axis" if v == 0.0 else "grid"
        out.append(f'<line class="{grid}" x1="{f.left:.1f}" x2="{f.right:.1f}" y1="{y:.1f}" y2="{y:.1f}"/>')
        out.append(f'<line class="{grid}" x1="{x:.1f}" x2="{x:.1f}" y1="{f.top:.1f}" y2="{f.bottom:.1f}"/>')
        out.append(text(f.left - 8, y + 4, pct(v), "tick", anchor="end"))
        out.append(text(x, f.bottom + 17, pct(v), "tick", anchor="middle"))
    out.append(text(width - 12, height - 4, "predicted gain over the leader", "axis-title", anchor="end"))
    return out


def _mark(f: _Frame, p: Prediction) -> str:
    x, y = f.x(p.predicted), f.y(p.measured)
    low, high = f.x(p.predicted - p.error), f.x(p.predicted + p.error)
    said = f"{p.launch_id}, {p.by}: predicted {pct(p.predicted)} ±{share_pct(p.error)}, measured {pct(p.measured)}"
    drawn = mark(p.by, x, y)
    whisker = f'<line class="whisker" x1="{low:.1f}" x2="{high:.1f}" y1="{y:.1f}" y2="{y:.1f}"/>'
    return f"<g><title>{esc(said)}</title>{whisker}{drawn}</g>"


def mark(by: str, x: float, y: float) -> str:
    """Return the shape that stands for whose prediction it is, centred at (x, y): a square for the estimate, else a dot."""
    r = RADIUS
    if by == ESTIMATE:
        return f'<path class="m-tried" d="M{x - r:.1f} {y - r:.1f}h{2 * r:.1f}v{2 * r:.1f}h{-2 * r:.1f}z"/>'
    return f'<circle class="m-leader" cx="{x:.1f}" cy="{y:.1f}" r="{r - 1:.1f}"/>'
