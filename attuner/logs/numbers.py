"""Numbers as logs print them: plain, with K/M/G suffixes, with thousands commas, with the decimal comma of a locale."""

from __future__ import annotations

import re

_PLAIN = re.compile(r"[-+]?(?:\d+\.?\d*(?:[eE][-+]?\d+)?|\.\d+(?:[eE][-+]?\d+)?|nan|inf|NaN|Infinity)")
_FIRST = re.compile(rf"(?P<first>{_PLAIN.pattern})(?= ?(?:\(|/)|$)")
_SUFFIXED = re.compile(r"(?P<number>[-+]?\d+(?:\.\d+)?)(?P<suffix>[KMGBT])")
_COMMA = re.compile(r"[-+]?(?:\d{1,3}(?:\.\d{3})+|\d+),\d+(?:[eE][-+]?\d+)?")
_DOTTED = re.compile(r"[-+]?\d{1,3}(?:\.\d{3})+")
_THOUSANDS = re.compile(r"[-+]?\d{1,3}(?:,\d{3})+(?:\.\d+)?")
SCALE = {"K": 1e3, "M": 1e6, "G": 1e9, "B": 1e9, "T": 1e12}
MAX_DIGITS = 64


def plain(text: str) -> float | None:
    """Return the number that a text is; None if it is anything else."""
    try:
        value = float(text)
    except ValueError:
        return None
    # Python's own spellings: 1_000, digits of other scripts, blanks around
    return value if len(text) <= MAX_DIGITS and "_" not in text and text.isascii() and text == text.strip() else None


def first(text: str) -> float | None:
    """Return the first number of a field that holds several: `601.3 (avg 598.7)`, `10707.5/10655.1`."""
    match = _FIRST.match(text[: MAX_DIGITS * 4])
    return float(match["first"]) if match else None


def suffixed(text: str) -> float | None:
    """Return a number with a decimal suffix: `11.5K`."""
    match = _SUFFIXED.fullmatch(text[: MAX_DIGITS + 1])
    return float(match["number"]) * SCALE[match["suffix"]] if match else None


def grouped(text: str) -> float | None:
    """Return a number with thousands commas: `10,050`."""
    if len(text) > MAX_DIGITS:
        return None
    return float(text.replace(",", "")) if _THOUSANDS.fullmatch(text) else plain(text)


def has_comma(text: str) -> bool:
    """Tell whether a text is a number with a decimal comma, where no thousands are ever printed."""
    return len(text) <= MAX_DIGITS and _COMMA.fullmatch(text) is not None


def german(text: str) -> float | None:
    """Return a number of a line with decimal commas; None where dots may be either (`1.843`)."""
    if has_comma(text):
        return float(text.replace(".", "").replace(",", "."))
    return None if _DOTTED.fullmatch(text[: MAX_DIGITS + 1]) else plain(text)


def whole(value: float | None) -> int | None:
    """Return a count; None for what is none."""
    return int(value) if value is not None and value == value and abs(value) < 1e18 else None
