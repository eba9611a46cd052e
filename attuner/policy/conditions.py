"""Conditions of rules and levers: a closed language over the flat final values of baseline and candidate.

Conditions are data: `{arg|env|fact: NAME, OP: VALUE}` with OP one of changed, eq, ne, one_of, ge, le, same_product, joined
by `all` and `any`; `side: before` reads the baseline's value instead of the candidate's. No code, nothing to import.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from attuner.core.base import Value
from attuner.core.recipe import same_value

OPERATORS = ("changed", "eq", "ne", "one_of", "ge", "le", "same_product")


def check_condition(condition: Any) -> None:
    """Raise ValueError unless the condition is in the closed language."""
    if not isinstance(condition, dict):
        raise ValueError(f"a condition is a mapping, not {condition!r}")
    for word in ("all", "any"):
        if word in condition:
            if len(condition) != 1 or not isinstance(condition[word], list) or not condition[word]:
                raise ValueError(f"`{word}` stands alone and holds a list of conditions: {condition!r}")
            for part in condition[word]:
                check_condition(part)
            return
    subjects = [k for k in ("arg", "env", "fact") if k in condition]
    operators = [k for k in OPERATORS if k in condition]
    if len(subjects) != 1 or len(operators) != 1:
        raise ValueError(f"a condition has one of arg, env, fact and one of {', '.join(OPERATORS)}: {condition!r}")
    if set(condition) - {subjects[0], operators[0], "side"}:
        raise ValueError(f"unknown word in condition {condition!r}")
    if condition.get("side", "after") not in ("before", "after"):
        raise ValueError(f"side is before or after: {condition!r}")
    if not isinstance(condition[subjects[0]], str):
        raise ValueError(f"`{subjects[0]}` can't take {condition[subjects[0]]!r}: it names a value")
    _check_operand(operators[0], condition)


def _check_operand(operator: str, condition: dict[str, Any]) -> None:
    """Raise ValueError for an operand that could never mean what its author thinks."""
    operand = condition[operator]
    number = isinstance(operand, int | float) and not isinstance(operand, bool)
    wrong = (
        (operator in ("ge", "le") and not number)
        or (operator == "changed" and not isinstance(operand, bool))
        or (operator in ("one_of", "same_product") and not (isinstance(operand, list) and operand))
        or (operator in ("eq", "ne") and isinstance(operand, dict))
        or (operator == "one_of" and any(isinstance(x, dict | list) for x in operand))
        or (operator == "same_product" and any(not isinstance(x, str) for x in operand))
    )
    if wrong:
        raise ValueError(f"`{operator}` can't take {operand!r}")


def holds(condition: dict[str, Any] | None, before: Mapping[str, Value], after: Mapping[str, Value]) -> bool:
    """Evaluate a condition on the flat final values of baseline and candidate."""
    if condition is None:
        return True
    if "all" in condition:
        return all(holds(c, before, after) for c in condition["all"])
    if "any" in condition:
        return any(holds(c, before, after) for c in condition["any"])
    prefix, name = subject(condition)
    if "same_product" in condition:
        names = [name, *condition["same_product"]]
        return (_product(names, prefix, before) == _product(names, prefix, after)) and all(prefix + n in after for n in names)
    old, new = before.get(prefix + name), after.get(prefix + name)
    if "changed" in condition:
        return (not same_value(old, new)) == bool(condition["changed"])
    value = old if condition.get("side") == "before" else new
    return _compare(condition, value)


def _compare(condition: dict[str, Any], value: Value) -> bool:
    """Compare one final value. Of a list, one element that fits is enough: `[aux_loss, seq_aux_loss]` is `aux_loss` too."""
    if isinstance(value, list) and not isinstance(condition.get("eq", condition.get("ne")), list):
        return any(_compare(condition, element) for element in value)
    if "eq" in condition:
        return same_value(value, condition["eq"])
    if "ne" in condition:
        return not same_value(value, condition["ne"])
    if "one_of" in condition:
        return any(same_value(value, v) for v in condition["one_of"])
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    return bool(value >= condition["ge"]) if "ge" in condition else bool(value <= condition["le"])


def _product(names: list[str], prefix: str, values: Mapping[str, Value]) -> float:
    product = 1.0
    for name in names:
        value = values.get(prefix + name)
        product *= value if isinstance(value, int | float) and not isinstance(value, bool) else 1
    return product


def atoms(condition: dict[str, Any] | None) -> Iterator[dict[str, Any]]:
    """Yield the single comparisons of a condition."""
    if condition is not None:
        parts = condition.get("all") or condition.get("any")
        if parts is None:
            yield condition
        for part in parts or ():
            yield from atoms(part)


def names_in(atom: dict[str, Any]) -> list[str]:
    """Return the final values that one comparison reads."""
    prefix, name = subject(atom)
    return [prefix + n for n in (name, *atom.get("same_product", ()))]


def subject(atom: dict[str, Any]) -> tuple[str, str]:
    """Return the prefix and the name of the value that a comparison is about."""
    return next((p, atom[w]) for w, p in (("arg", ""), ("env", "env:"), ("fact", "fact:")) if w in atom)
