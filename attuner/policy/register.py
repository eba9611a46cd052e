"""The register: rules read from YAML, their closed condition language, and how a change is looked up in it.

A rule names what it `covers` (final arguments, `env:NAME`, `fact:NAME`), optionally `when` it speaks, and what it
decides. Conditions are data: `{arg|env|fact: NAME, OP: VALUE}` with OP one of changed, eq, ne, one_of, ge, le,
same_product, joined by `all` and `any`; `side: before` reads the baseline's value instead of the candidate's. There is
no ordering between rules: refuse beats review beats admit, and a change that no rule covers is `review`.
"""

from __future__ import annotations

import datetime as dt
from typing import Any, Literal

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version
from pydantic import Field, field_validator

from attuner.core.base import Record, Value, digest_of
from attuner.core.errors import UserError
from attuner.core.judgement import Decision
from attuner.core.recipe import EffectiveConfig, same_value

OPERATORS = ("changed", "eq", "ne", "one_of", "ge", "le", "same_product")
Kind = Literal["objective", "defect", "placement", "same-math", "bookkeeping"]


class Example(Record):
    """A case that `attuner rules check` evaluates: final values before and after, and what the rule must answer."""

    before: dict[str, Value] = Field(default_factory=dict)
    after: dict[str, Value] = Field(default_factory=dict)
    expect: Literal["admit", "review", "refuse", "silent"]


class Rule(Record):
    """One entry of the register."""

    id: str = Field(pattern=r"^[A-Z]{3}-[A-Z]{3}-[0-9]{3}$")
    kind: Kind
    decision: Decision
    covers: list[str]
    when: dict[str, Any] | None = None
    reason: str = Field(min_length=20)
    scope: dict[str, str] = Field(default_factory=dict)
    component: str = Field(default="", description="same-math: the component test that must be on record")
    source: list[str] = Field(min_length=1)
    added: dt.date
    review_by: dt.date | None = None
    examples: list[Example] = Field(min_length=2)

    @field_validator("scope")
    @classmethod
    def _versions(cls, scope: dict[str, str]) -> dict[str, str]:
        for wanted in scope.values():
            SpecifierSet(wanted)  # its error is a ValueError that names the specifier
        return scope

    @field_validator("when")
    @classmethod
    def _closed(cls, when: dict[str, Any] | None) -> dict[str, Any] | None:
        if when is not None:
            check_condition(when)
        return when


class Register(Record):
    """All rules of one stack, and the digest that a campaign stores at birth."""

    stack: str
    rules: list[Rule]

    def lock(self) -> str:
        """Return the digest of all rules, whatever file or order they stand in."""
        return digest_of(sorted((r.data() for r in self.rules), key=lambda r: str(r["id"])))

    def covering(self, key: str) -> list[Rule]:
        """Return the rules that cover a final value."""
        return [r for r in self.rules if covers(r, key)]


def covers(rule: Rule, key: str) -> bool:
    """Tell whether a rule covers a key; a trailing `*` in `covers` is a prefix."""
    return any(key == c or (c.endswith("*") and key.startswith(c[:-1])) for c in rule.covers)


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


def holds(condition: dict[str, Any] | None, before: dict[str, Value], after: dict[str, Value]) -> bool:
    """Evaluate a condition on the flat final values of baseline and candidate."""
    if condition is None:
        return True
    if "all" in condition:
        return all(holds(c, before, after) for c in condition["all"])
    if "any" in condition:
        return any(holds(c, before, after) for c in condition["any"])
    prefix, name = next((p, condition[w]) for w, p in (("arg", ""), ("env", "env:"), ("fact", "fact:")) if w in condition)
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


def _product(names: list[str], prefix: str, values: dict[str, Value]) -> float:
    product = 1.0
    for name in names:
        value = values.get(prefix + name)
        product *= value if isinstance(value, int | float) and not isinstance(value, bool) else 1
    return product


def decide(rule: Rule, before: dict[str, Value], after: dict[str, Value]) -> Decision | None:
    """Return what a rule says of a pair of flat final values, or None if it is silent.

    A defect speaks when the candidate enters it, leaves it, or changes a covered value inside it: each of the three
    trains something else than the baseline. Every other rule speaks when a covered value changed and `when` holds.
    """
    changed = any(not same_value(before.get(k), after.get(k)) for k in before.keys() | after.keys() if covers(rule, k))
    if rule.kind == "defect":
        was, now = holds(rule.when, after, before), holds(rule.when, before, after)
        return rule.decision if was != now or (was and now and changed) else None
    return rule.decision if changed and holds(rule.when, before, after) else None


def in_scope(rule: Rule, versions: dict[str, str]) -> bool:
    """Tell whether a rule holds for these framework versions; a version that nobody reports leaves it in force."""
    found = {name.replace("-", "_"): version for name, version in versions.items()}
    for name, wanted in rule.scope.items():
        version = found.get(name.replace("-", "_"))
        try:
            known = Version(version) if version is not None else None
        except InvalidVersion:  # a version that can't be read leaves the rule in force
            continue
        if known is not None and not SpecifierSet(wanted).contains(known, prereleases=True):
            return False
    return True


def check_rule(rule: Rule) -> list[str]:
    """Return what is wrong with a rule: examples that don't come out, or none that fires, or none that is silent."""
    problems = []
    outcomes = set()
    for i, example in enumerate(rule.examples):
        got = decide(rule, example.before, {**example.before, **example.after}) or "silent"
        outcomes.add("silent" if got == "silent" else "fires")
        if got != example.expect:
            problems.append(f"{rule.id}: example {i + 1} expects {example.expect}, the rule says {got}")
    if outcomes != {"silent", "fires"}:
        problems.append(f"{rule.id}: needs one example that fires and one that does not")
    if rule.kind == "objective" and rule.decision == "admit":
        problems.append(f"{rule.id}: an objective rule can't admit")
    if rule.kind == "same-math" and rule.decision == "admit" and not rule.component:
        problems.append(f"{rule.id}: a same-math rule admits only with a component test")
    if rule.kind == "defect" and rule.when is None:
        problems.append(f"{rule.id}: a defect needs `when`")
    return problems


def carried_defects(register: Register, baseline: EffectiveConfig) -> list[Rule]:
    """Return the known defects that the baseline itself is in: every candidate is compared with a run that has them."""
    values = baseline.flat()
    return [r for r in register.rules if r.kind == "defect" and in_scope(r, baseline.versions) and holds(r.when, values, values)]


def build_register(stack: str, entries: list[tuple[str, dict[str, Any]]]) -> Register:
    """Build a register from (file, entry) pairs.

    Raises:
        UserError: an entry is malformed or two share an id; the line names file, rule and key.
    """
    rules: dict[str, Rule] = {}
    for file, entry in entries:
        name = entry.get("id", "?") if isinstance(entry, dict) else "?"
        try:
            rule = Rule.model_validate(entry)
        except ValueError as error:
            first = str(error).splitlines()
            detail = " ".join(x.strip() for x in first[1:3]) or first[0]
            raise UserError(f"{file}: rule {name}: {detail}") from None
        if rule.id in rules:
            raise UserError(f"{file}: rule {rule.id} stands twice; give one another id")
        rules[rule.id] = rule
    return Register(stack=stack, rules=sorted(rules.values(), key=lambda r: r.id))
