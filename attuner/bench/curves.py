"""The paper's Figure 2 for any comparison: best gain so far against device-hours charged, mean and range of each arm."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from attuner.bench.outcome import Outcome
from attuner.report.svg import Box, Canvas, drawing, text, tick_text, ticks

POINTS = 400
"""Places on the axis at which mean and range are drawn; a campaign's own curve is a staircase between them."""


@dataclass(frozen=True)
class Band:
    """One arm's curve: at each place of the axis the mean, lowest and highest best-so-far gain of its campaigns."""

    arm: str
    hours: list[float]
    mean: list[float]
    low: list[float]
    high: list[float]
    ends: list[float]
    """Where each campaign's search ended."""


def bands(outcomes: Sequence[Outcome]) -> list[Band]:
    """Return one band per arm, in the order in which the arms appear; all outcomes are of one table."""
    right = max((o.curve[-1][0] for o in outcomes if o.curve), default=0.0)
    hours = [right * i / (POINTS - 1) for i in range(POINTS)]
    found = []
    for arm in dict.fromkeys(o.arm for o in outcomes):
        curves = [o.curve for o in outcomes if o.arm == arm and o.curve]
        if not curves:
            continue
        columns = [[best_at(c, h) for c in curves] for h in hours]
        means = [sum(c) / len(c) for c in columns]
        found.append(Band(arm, hours, means, [min(c) for c in columns], [max(c) for c in columns], [c[-1][0] for c in curves]))
    return found


def best_at(curve: Sequence[tuple[float, float]], hours: float) -> float:
    """Return the best gain of a campaign when so many device-hours were charged; flat after its end."""
    return max((gain for at, gain in curve if at <= hours + 1e-9), default=0.0)


@dataclass(frozen=True)
class _Frame:
    left: float
    right: float
    top: float
    bottom: float
    max_x: float
    max_y: float

    def x(self, hours: float) -> float:
        return self.left + (self.right - self.left) * hours / self.max_x

    def y(self, gain: float) -> float:
        return self.bottom - (self.bottom - self.top) * gain / self.max_y


def picture(outcomes: Sequence[Outcome], *, width: float = 960, height: float = 380) -> str:
    """Return the curves of one table as SVG; '' where nothing was gained by anyone. Class `arm-N` colours the Nth arm."""
    found = bands(outcomes)
    best = next((o.best_gain for o in outcomes if o.best_gain is not None), None)
    top = max([*(h for b in found for h in b.high), best or 0.0], default=0.0)
    if not found or top <= 0.0 or found[0].hours[-1] <= 0.0:
        return ""
    f = _Frame(58, width - 170, 30, height - 44, found[0].hours[-1], top * 1.08)
    body = [*_axes(f, width, height), *_best(f, best)]
    for number, band in enumerate(found):
        body += [_shade(f, band, number), _line(f, band, number), *_ends(f, band, number)]
    body += _names(f, found, width)
    title = "best gain so far against device-hours charged: mean (line), range (shading), ends of the searches (ticks)"
    return drawing(width, height, title, [b for b in body if b], css="bench-curves")


def _axes(f: _Frame, width: float, height: float) -> list[str]:
    out = [text(0, 14, "best gain so far over the calibration's mean", "axis-title")]
    for v in ticks(0.0, f.max_y, 5):
        y = f.y(v)
        out.append(f'<line class="grid" x1="{f.left:.1f}" x2="{f.right:.1f}" y1="{y:.1f}" y2="{y:.1f}"/>')
        out.append(text(f.left - 8, y + 4, f"{v:+.0%}" if v else "0", "tick", anchor="end"))
    out.append(f'<line class="axis" x1="{f.left:.1f}" x2="{f.right:.1f}" y1="{f.bottom:.1f}" y2="{f.bottom:.1f}"/>')
    for v in ticks(0.0, f.max_x, 8):
        x = f.x(v)
        out.append(f'<line class="axis" x1="{x:.1f}" x2="{x:.1f}" y1="{f.bottom:.1f}" y2="{f.bottom + 4:.1f}"/>')
        out.append(text(x, f.bottom + 18, tick_text(v), "tick", anchor="middle"))
    out.append(text(f.right, height - 6, "device-hours charged, calibration included", "axis-title", anchor="end"))
    return out


def _best(f: _Frame, best: float | None) -> list[str]:
    if not best:
        return []
    y = f.y(best)
    return [
        f'<line class="base" x1="{f.left:.1f}" x2="{f.right:.1f}" y1="{y:.1f}" y2="{y:.1f}"/>',
        text(f.left + 6, y - 5, f"best row of the table {best:+.1%}", "m-note"),
    ]


def _stairs(f: _Frame, hours: Sequence[float], values: Sequence[float]) -> list[str]:
    """Return the corners of a staircase: a best so far holds until the next one is settled."""
    out = [f"{f.x(hours[0]):.1f},{f.y(values[0]):.1f}"]
    for i in range(1, len(hours)):
        if values[i] != values[i - 1] or i == len(hours) - 1:
            out += [f"{f.x(hours[i]):.1f},{f.y(values[i - 1]):.1f}", f"{f.x(hours[i]):.1f},{f.y(values[i]):.1f}"]
    return out


def _shade(f: _Frame, band: Band, number: int) -> str:
    points = [*_stairs(f, band.hours, band.high), *reversed(_stairs(f, band.hours, band.low))]
    return f'<polygon class="arm-{number} shade" points="{" ".join(points)}"/>'


def _line(f: _Frame, band: Band, number: int) -> str:
    return f'<polyline class="arm-{number} line" points="{" ".join(_stairs(f, band.hours, band.mean))}"/>'


def _ends(f: _Frame, band: Band, number: int) -> list[str]:
    y = f.y(band.mean[-1])
    return [f'<path class="arm-{number} line" d="M{f.x(h):.1f} {y - 5:.1f}v10"/>' for h in band.ends]


def _names(f: _Frame, found: Sequence[Band], width: float) -> list[str]:
    canvas = Canvas(Box(f.right, 0, width + 200, f.bottom + 40))
    out = []
    for number, band in sorted(enumerate(found), key=lambda x: -x[1].mean[-1]):
        y = f.y(band.mean[-1]) + 4
        spots = [(f.right + 8, y + d * side, "start") for d in range(0, 220, 14) for side in (1, -1)]
        out.append(canvas.label(spots, f"{band.arm} {band.mean[-1]:+.0%}", f"arm-{number} name"))
    return out
