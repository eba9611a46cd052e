"""Compares a value with a default as a parser prints it."""

from __future__ import annotations

import re

from attuner.core.base import Value

_ENUM = re.compile(r"^(torch|[A-Z]\w+)\.(?=\w+$)")


def same_as_text(value: Value, default: str) -> bool:
    """Tell whether a final value is the default that a parser prints."""
    text = str(value)
    if text == default or isinstance(value, bool) or default in ("True", "False"):
        return text == default
    if _number(text) and _number(default):
        return float(text) == float(default)
    return _ENUM.sub("", text) == _ENUM.sub("", default)


def _number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
