"""Reads the options that Python source adds to its parsers, without running it: slime reads some of them in parsers of their own,
which no list of the main parser has."""

from __future__ import annotations

import ast
from typing import Any

_FLAGS = {"store_true": "False", "store_false": "True", "store_const": "None"}


def options_in(text: str) -> list[dict[str, Any]]:
    """Return the options of every `add_argument` call whose names are written out: name, options, default, takes.

    Source that can't be parsed has none.
    """
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return []
    found = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or node.func.attr != "add_argument":
            continue
        names = [a.value for a in node.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
        options = [n for n in names if n.startswith("--")]
        if options:
            found.append(_entry(options, {k.arg: k.value for k in node.keywords if k.arg}))
    return found


def _entry(options: list[str], keywords: dict[str, ast.expr]) -> dict[str, Any]:
    action, name = _constant(keywords.get("action")), _constant(keywords.get("dest"))
    takes = "flag" if action in _FLAGS else "values" if "nargs" in keywords else "value"
    return {
        "name": name or options[0].lstrip("-").replace("-", "_"),
        "options": options,
        "default": _FLAGS.get(action, "None"),
        "takes": takes,
    }


def _constant(node: ast.expr | None) -> str:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""
