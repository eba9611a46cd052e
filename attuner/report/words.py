"""How the report says things: device or GPU, device time in a readable unit, UTC times, values, and safe text.

Everything a run or a recipe wrote is untrusted. `clean` takes out what a reader can't see (control characters, marks
that turn the direction of writing); escaping for HTML or Markdown is done where the text is set.
"""

from __future__ import annotations

import json
import math
import unicodedata
from dataclasses import dataclass
from datetime import UTC, datetime

from attuner.core.base import Value

MAX_TEXT = 600
"""Longest piece of foreign text that a report shows; a log line can be a megabyte."""


@dataclass(frozen=True)
class Units:
    """The words and the scale of one report: what a device is called, and in what its time is counted."""

    device: str
    """`device` on CPU hardware, `GPU` on CUDA."""
    per_hour: float
    """How many of the report's time units make one device-hour: 1 or 60."""

    @property
    def time(self) -> str:
        """The unit of device time, as a column or an axis names it: `device-hours`, `GPU-minutes`."""
        return f"{self.device}-{'hours' if self.per_hour == 1 else 'minutes'}"

    @property
    def speed(self) -> str:
        """The unit of speed: `tokens/s/device`."""
        return f"tokens/s/{self.device}"

    def amount(self, gpu_hours: float) -> str:
        """Return device time as a number in the report's unit, without it; fixed decimals, so that columns add up."""
        x = gpu_hours * self.per_hour
        return number(x) if 0 < abs(x) < 0.01 else f"{x:,.2f}"

    def amounts(self, gpu_hours: list[float]) -> list[str]:
        """Return amounts of device time that add up to their total as `amount` prints it.

        Each is rounded down to a hundredth; the hundredths that are missing go where most was cut off.
        """
        exact = [h * self.per_hour * 100 for h in gpu_hours]
        hundredths = [math.floor(x) for x in exact]
        missing = round(sum(exact)) - sum(hundredths)
        by_loss = sorted(range(len(exact)), key=lambda k: hundredths[k] - exact[k])
        for k in by_loss[:missing]:
            hundredths[k] += 1
        return [f"{x / 100:,.2f}" for x in hundredths]

    def spent(self, gpu_hours: float) -> str:
        """Return device time with its unit."""
        return f"{self.amount(gpu_hours)} {self.time}"

    def devices(self, count: int) -> str:
        """Return a count of devices: '1 device', '128 GPUs'."""
        return f"{count:,} {self.device}{'' if count == 1 else 's'}"


def units_for(kind: str, total_gpu_hours: float) -> Units:
    """Return the words for a cluster's device kind; small campaigns count minutes, so that figures stay readable."""
    return Units(device="GPU" if kind == "cuda" else "device", per_hour=60.0 if total_gpu_hours < 2 else 1.0)


def number(x: float) -> str:
    """Return a plain number with three significant digits, never in exponent form for everyday sizes."""
    if not math.isfinite(x):
        return "not finite"
    if x == 0:
        return "0"
    if abs(x) >= 100:
        return f"{x:,.0f}"
    if abs(x) >= 1e-3:
        # fixed notation with three significant digits; trailing zeros are kept so that columns line up
        return f"{x:.{max(0, 2 - math.floor(math.log10(abs(x))))}f}"
    return f"{x:.2e}"


def seconds(x: float) -> str:
    """Return a duration: '1.01 s', '283 ms'."""
    return f"{number(x)} s" if abs(x) >= 1 else f"{number(x * 1e3)} ms"


def usd(x: float) -> str:
    """Return US dollars without the sign: whole ones from a thousand on, cents below, three digits below a cent."""
    return f"{x:,.0f}" if abs(x) >= 1000 else f"{x:,.2f}" if abs(x) >= 0.01 or x == 0 else number(x)


def when(unix_s: float | None) -> str:
    """Return a time in UTC, to the minute, with its zone."""
    if unix_s is None or not math.isfinite(unix_s):
        return "unknown"
    try:
        return datetime.fromtimestamp(unix_s, tz=UTC).strftime("%Y-%m-%d %H:%M UTC")
    except (OverflowError, OSError, ValueError):
        return "unknown"


def span(start: float, end: float) -> str:
    """Return a span of time in UTC; a day that both ends share is named once."""
    a, b = when(start), when(end)
    same_day = a[:10] == b[:10] and "unknown" not in (a, b)
    return f"{a.removesuffix(' UTC')}–{b[11:]}" if same_day else f"{a} to {b}"


def value(x: Value) -> str:
    """Return a final value as a recipe spells it: true, null, 0.1, plain text."""
    text = x if isinstance(x, str) else json.dumps(x, ensure_ascii=False)
    return clean(text) or '""'


def clean(text: object, *, limit: int = MAX_TEXT) -> str:
    """Return foreign text as one visible line: no control or direction characters, white space joined, bounded."""
    flat = " ".join(str(text).split())
    # Cc control, Cf format (direction marks), Cs surrogates, Co private, Cn unassigned: nothing a person can read.
    # text that is printable throughout has none of them, and is most text
    seen = flat if flat.isprintable() else "".join(_seen(c) for c in flat)
    return seen if len(seen) <= limit else seen[: limit - 1] + "…"


def _seen(char: str) -> str:
    return "\ufffd" if unicodedata.category(char) in ("Cc", "Cf", "Cs", "Co", "Cn") else char
