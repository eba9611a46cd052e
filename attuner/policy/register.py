"""The register: rules read from YAML, and how a change is looked up in them.

A rule names what it `covers` (final arguments, `env:NAME`, `fact:NAME`), optionally `when` it speaks (`conditions`), in
which `scope`, and what it decides. There is no ordering between rules: refuse beats review beats admit, and a change that
no rule covers is `review`. `decide` says what one rule means; `Register.speaking` answers for all of them at once and
reads only those that a change can reach.
"""

from __future__ import annotations

import datetime as dt
import functools
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any, Literal

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version
from pydantic import Field, field_validator, model_validator

from attuner.core.base import Record, Value, digest_of
from attuner.core.errors import UserError
from attuner.core.judgement import Decision
from attuner.core.recipe import EffectiveConfig, same_value
from attuner.policy.conditions import atoms, check_condition, holds, names_in

Kind = Literal["objective", "defect", "placement", "same-math", "bookkeeping"]
CONFIGS = ("transformer", "ddp", "optimizer")
"""Config objects whose fields are final values too, as `transformer.NAME`."""
CONTEXT = ("model", "hardware", "network")
"""Words of `scope` that take patterns; `commit` takes prefixes, every other word is a package and takes a version."""
COMMIT = "megatron_lm_commit"


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
    scope: dict[str, str | list[str]] = Field(default_factory=dict)
    component: str = Field(default="", description="same-math: the component test that must be on record")
    source: list[str] = Field(min_length=1)
    added: dt.date
    review_by: dt.date | None = None
    examples: list[Example] = Field(default_factory=list)

    @field_validator("covers")
    @classmethod
    def _named(cls, names: list[str]) -> list[str]:
        wrong = [n for n in names if not n.rstrip("*") or "*" in n[:-1] or n in ("env:*", "fact:*")]
        if wrong or not names:
            raise ValueError(f"covers: a name, or a name's beginning and one `*`, not {wrong or names}")
        return names

    @field_validator("scope")
    @classmethod
    def _places(cls, scope: dict[str, str | list[str]]) -> dict[str, str | list[str]]:
        for word, wanted in scope.items():
            listed = word in CONTEXT or word == "commit"
            if listed != isinstance(wanted, list) or not wanted:
                raise ValueError(f"scope: `{word}` takes {'a list' if listed else 'a version specifier'}, not {wanted!r}")
            if isinstance(wanted, str):
                SpecifierSet(wanted)  # its error is a ValueError that names the specifier
        return scope

    @model_validator(mode="after")
    def _two_examples(self) -> Rule:
        if len(self.examples) < 2 and (self.examples or self.when is not None or self.kind not in ("placement", "bookkeeping")):
            raise ValueError("examples: two at least; only a placement or bookkeeping rule without `when` may have none")
        return self

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

    @functools.cached_property
    def _index(self) -> _Index:
        return _Index(self.rules)

    def covering(self, key: str) -> list[Rule]:
        """Return the rules that cover a final value."""
        return [self.rules[i] for i in sorted(self._index.covering(key))]

    def speaking(
        self, before: Mapping[str, Value], after: Mapping[str, Value], versions: Mapping[str, str]
    ) -> list[tuple[Rule, Decision]]:
        """Return every rule in scope that speaks of a pair of flat final values, with its decision, in the rules' order.

        The same as `decide` on each rule in scope, but a rule is read only if one of its covered values changed, or, for a
        defect, a value that its condition names.
        """
        index, changed = self._index, changed_keys(before, after)
        touched = {i for key in changed for i in index.covering(key)}
        reached = touched.union(index.unbound, *(index.listeners.get(key, ()) for key in changed))
        found = []
        for i in sorted(reached):
            rule = self.rules[i]
            if in_scope(rule, versions) and _speaks(rule, before, after, moved=i in touched):
                found.append((rule, rule.decision))
        return found


class _Index:
    """Which rules cover a name, and which defects listen to one; positions in the register's list."""

    def __init__(self, rules: list[Rule]) -> None:
        self._exact: dict[str, list[int]] = {}
        self._prefix: dict[int, dict[str, list[int]]] = {}
        self.listeners: dict[str, list[int]] = {}
        self.unbound: list[int] = []
        for i, rule in enumerate(rules):
            for name in rule.covers:
                table = self._prefix.setdefault(len(name) - 1, {}) if name.endswith("*") else self._exact
                table.setdefault(name.removesuffix("*"), []).append(i)
            if rule.kind == "defect":
                parts = list(atoms(rule.when))
                for name in {n for part in parts for n in names_in(part)}:
                    self.listeners.setdefault(name, []).append(i)
                if any("same_product" in part for part in parts):  # `[2]` is the setting `2`, but no factor of a product
                    self.unbound.append(i)

    def covering(self, key: str) -> set[int]:
        """Return the positions of the rules that cover a key."""
        found: set[int] = set()
        for name in spellings(key):
            found.update(self._exact.get(name, ()))
            for length, table in self._prefix.items():
                found.update(table.get(name[:length], ()))
        return found


def spellings(key: str) -> tuple[str, ...]:
    """Return the names under which a rule may cover a key: `transformer.X` goes by `X` too."""
    owner, dot, field = key.partition(".")
    return (key, field) if dot and owner in CONFIGS else (key,)


def covers(rule: Rule, key: str) -> bool:
    """Tell whether a rule covers a key; a trailing `*` in `covers` is a prefix, and `X` stands for `transformer.X` too."""
    return any(name == c or (c.endswith("*") and name.startswith(c[:-1])) for c in rule.covers for name in spellings(key))


def changed_keys(before: Mapping[str, Value], after: Mapping[str, Value]) -> set[str]:
    """Return the keys whose value differs, appears or goes."""
    same = (k for k in before.keys() & after.keys() if same_value(before[k], after[k]))
    return (before.keys() | after.keys()) - set(same)


def decide(rule: Rule, before: Mapping[str, Value], after: Mapping[str, Value]) -> Decision | None:
    """Return what a rule says of a pair of flat final values, or None if it is silent.

    A defect speaks when the candidate enters it, leaves it, or changes a covered value inside it: each of the three
    trains something else than the baseline. Every other rule speaks when a covered value changed and `when` holds. A value
    that appears or goes has changed.
    """
    moved = any(covers(rule, key) for key in changed_keys(before, after))
    return rule.decision if _speaks(rule, before, after, moved=moved) else None


def _speaks(rule: Rule, before: Mapping[str, Value], after: Mapping[str, Value], *, moved: bool) -> bool:
    if rule.kind == "defect":
        was, now = holds(rule.when, after, before), holds(rule.when, before, after)
        return was != now or (was and now and moved)
    return moved and holds(rule.when, before, after)


@functools.lru_cache(maxsize=256)
def _specifiers(wanted: str) -> SpecifierSet:
    return SpecifierSet(wanted)


@functools.lru_cache(maxsize=256)
def _version(text: str) -> Version | None:
    try:
        return Version(text)
    except InvalidVersion:
        return None


def in_scope(rule: Rule, versions: Mapping[str, str]) -> bool:
    """Tell whether a rule holds for these framework versions, commit, model, hardware and network.

    What nobody reports, or what can't be read, leaves the rule in force. A model, hardware or network pattern (fnmatch)
    takes capital and small letters alike.
    """
    if not rule.scope:
        return True
    found = {name.replace("-", "_"): text for name, text in versions.items()}
    for word, wanted in rule.scope.items():
        text = found.get(COMMIT if word == "commit" else word.replace("-", "_"))
        if not text:
            continue
        if isinstance(wanted, str):
            known = _version(text)
            if known is not None and not _specifiers(wanted).contains(known, prereleases=True):
                return False
        elif word == "commit":
            if not any(text.startswith(prefix) or prefix.startswith(text) for prefix in wanted):
                return False
        elif not any(fnmatchcase(text.lower(), pattern.lower()) for pattern in wanted):
            return False
    return True


def examples_of(rule: Rule) -> list[Example]:
    """Return the rule's examples, or those that its class stands for: each covered value changed, and none changed."""
    if rule.examples:
        return rule.examples
    keys = [c.removesuffix("*") + ("x" if c.endswith("*") else "") for c in rule.covers]
    fires = [Example(before={key: 0}, after={key: 1}, expect=rule.decision) for key in keys]
    return [*fires, Example(before=dict.fromkeys(keys, 0), expect="silent")]


def check_rule(rule: Rule) -> list[str]:
    """Return what is wrong with a rule: examples that don't come out, or none that fires, or none that is silent."""
    problems = []
    outcomes = set()
    for i, example in enumerate(examples_of(rule)):
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


def uncovered(register: Register, names: list[str]) -> list[str]:
    """Return the names whose change the register has no word on; a defect alone is silent outside of itself."""
    return [n for n in names if all(rule.kind == "defect" for rule in register.covering(n))]


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
