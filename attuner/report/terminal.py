"""Small pieces of the terminal's live block and of every table: bars, gains, device time. Text in, text out."""

from __future__ import annotations

import math

BLOCK = "▇"
MINUS = "−"
DASH = "–"


def bar(share: float, width: int) -> str:
    """Return a bar of `share` (fraction, clamped to 0…1) of `width` characters; above zero shows at least one."""
    if not share > 0 or width < 1:
        return ""
    return BLOCK * max(1, round(min(share, 1.0) * width))


def pct(x: float) -> str:
    """Return a fraction as a signed gain: 0.66 → '+66%', -0.031 → '−3.1%'. One decimal below 10%."""
    if not math.isfinite(x):
        return "not finite"
    text = share_pct(abs(x))
    if not any(c in "123456789" for c in text):
        return text
    return (MINUS if x < 0 else "+") + text


def share_pct(x: float) -> str:
    """Return a fraction as a part of a whole, unsigned: 0.487 → '49%', 0.036 → '3.6%', 0.05 → '5%'."""
    if not math.isfinite(x):
        return "not finite"
    text = f"{x * 100:.1f}" if abs(x) < 0.0995 else f"{x * 100:,.0f}"
    return text.removesuffix(".0").replace("-", MINUS) + "%"


def device_minutes(gpu_hours: float, *, device: str = "device") -> str:
    """Return device-hours as device-minutes: 0.005 → '0.3 device-min'."""
    minutes = gpu_hours * 60.0
    return f"{minutes:,.0f} {device}-min" if minutes >= 99.5 else f"{minutes:.2g} {device}-min"


def rate(tokens_per_s: float) -> str:
    """Return a speed with the digits that a person compares: 1158.2 → '1,158', 4.31 → '4.31'."""
    if not math.isfinite(tokens_per_s):
        return "not finite"
    return f"{tokens_per_s:,.0f}" if abs(tokens_per_s) >= 100 else f"{tokens_per_s:.3g}"
