"""A recipe as YAML that every reader reads back as the same values: JSON spelling where plain text could be misread."""

from __future__ import annotations

import json
import re

from attuner.core.base import Value
from attuner.core.recipe import Recipe

_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_./-]*")
# YAML 1.1 reads these words as something other than text
_NOT_TEXT = frozenset({"y", "yes", "n", "no", "true", "false", "on", "off", "null", "nan", "inf"})


def recipe_yaml(recipe: Recipe) -> str:
    """Return the recipe as a YAML document with the keys stack, arguments, env; ends in a newline."""
    lines = [f"stack: {_scalar(recipe.stack)}", *_mapping("arguments", dict(recipe.arguments))]
    if recipe.env:
        lines += _mapping("env", {k: v for k, v in recipe.env.items()})
    return "\n".join(lines) + "\n"


def _mapping(name: str, values: dict[str, Value]) -> list[str]:
    if not values:
        return [f"{name}: {{}}"]
    return [f"{name}:", *(f"  {_scalar(k)}: {_value(v)}" for k, v in sorted(values.items()))]


def _value(value: Value) -> str:
    if isinstance(value, list):
        return "[" + ", ".join(_scalar(v) for v in value) + "]"
    return _scalar(value)


def _scalar(value: bool | int | float | str | None) -> str:
    if isinstance(value, str):
        if _PLAIN.fullmatch(value) and value.lower() not in _NOT_TEXT:
            return value
        # a YAML double-quoted string takes JSON's escapes; what can't be printed has to be one
        quoted = json.dumps(value, ensure_ascii=False)
        return "".join(c if c.isprintable() else f"\\U{ord(c):08X}" for c in quoted)
    if isinstance(value, float):
        text = repr(value)
        if value != value or value in (float("inf"), float("-inf")):
            return {"nan": ".nan", "inf": ".inf", "-inf": "-.inf"}[text]
        # YAML 1.1 takes 1e-05 for text: a number with an exponent needs a point
        mantissa, mark, exponent = text.partition("e")
        return text if not mark or "." in mantissa else f"{mantissa}.0e{exponent}"
    return json.dumps(value)
