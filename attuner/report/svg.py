"""Pieces of hand-made SVG: escaped text, round axis ticks, and labels that never lie on one another.

Colours and fonts live in the page's style sheet (classes), so one drawing serves light, dark and print.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from html import escape

from attuner.report.words import clean

CHAR_W = 7.0
"""Width of a character at the drawings' text size (12 px), on the wide side: fonts differ between machines."""
LINE_H = 14.0


def esc(text: object, *, limit: int = 600) -> str:
    """Return foreign text safe inside HTML and SVG, in text and in quoted attributes."""
    return escape(clean(text, limit=limit), quote=True)


def ticks(low: float, high: float, count: int) -> list[float]:
    """Return about `count` round numbers (1, 2, 2.5 or 5 × 10ⁿ apart) that lie in [low, high]."""
    if not (math.isfinite(low) and math.isfinite(high)) or high <= low or count < 1:
        return []
    rough = (high - low) / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(m * power for m in (1.0, 2.0, 2.5, 5.0, 10.0) if m * power >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [k * step for k in range(first, math.floor(high / step + 1e-9) + 1)]


def tick_text(x: float) -> str:
    """Return a tick's number without needless digits: 2,000, 0.25, 3."""
    return f"{x:,.0f}" if abs(x) >= 1000 else f"{x:.6g}"


def text(x: float, y: float, words: str, css: str = "", *, anchor: str = "start") -> str:
    """Return one line of text; `words` is escaped here."""
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{css}" text-anchor="{anchor}">{esc(words)}</text>'


def drawing(width: float, height: float, title: str, body: Iterable[str], *, css: str) -> str:
    """Return a whole SVG element with its accessible title."""
    parts = "\n".join(body)
    return (
        f'<svg class="{css}" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" height="{height:.0f}" '
        f'role="img" aria-label="{esc(title)}">\n{parts}\n</svg>'
    )


@dataclass(frozen=True)
class Box:
    """A rectangle that a mark or a label covers."""

    x0: float
    y0: float
    x1: float
    y1: float

    def hits(self, other: Box) -> bool:
        """Tell whether the two rectangles share any area."""
        return self.x0 < other.x1 and other.x0 < self.x1 and self.y0 < other.y1 and other.y0 < self.y1


@dataclass
class Canvas:
    """Remembers what is covered, and sets a label only where nothing else is."""

    frame: Box
    taken: list[Box] = field(default_factory=list)

    def mark(self, x: float, y: float, radius: float) -> None:
        """Reserve the place of a mark."""
        self.taken.append(Box(x - radius, y - radius, x + radius, y + radius))

    def label(self, places: Iterable[tuple[float, float, str]], words: str, css: str) -> str:
        """Return the text at the first of `places` (x, baseline y, anchor) that is free; '' if none is."""
        width = len(words) * CHAR_W
        for x, y, anchor in places:
            left = x - {"start": 0.0, "middle": width / 2, "end": width}[anchor]
            box = Box(left - 2, y - LINE_H + 2, left + width + 2, y + 3)
            inside = box.x0 >= self.frame.x0 and box.x1 <= self.frame.x1
            inside = inside and box.y0 >= self.frame.y0 and box.y1 <= self.frame.y1
            if inside and not any(box.hits(t) for t in self.taken):
                self.taken.append(box)
                return text(x, y, words, css, anchor=anchor)
        return ""
