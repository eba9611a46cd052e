"""Reads the signatures of failures: `rules/failures.yaml` for every stack and `rules/<stack>/failures.yaml`.

They judge nothing and are no part of a campaign's lock: a new signature never stops a campaign.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from attuner.config import FAILURES, load_inherits, load_levers
from attuner.core.errors import UserError
from attuner.logs.signatures import Book, FailureRule, Phase
from attuner.logs.triage import triage
from attuner.yamlfile import parse, read_yaml


def load_failures(rules_dir: Path, stack: str = "") -> Book:
    """Return the rules for a stack, those of the stack that it inherits from included; '' for no known stack: the rules of all.

    A stack's own rules come first, and so do its phases.

    Raises:
        UserError: a file is malformed, or two rules share an id; the line names file, rule and key.
    """
    stacks = sorted(p.name for p in rules_dir.iterdir() if p.is_dir())
    if stack and stack not in stacks:
        raise UserError(f"stack {stack}: unknown; known: {', '.join(stacks)}")
    if stack:
        inherits = load_inherits(rules_dir, stack)
        stacks = [stack, *([inherits.stack] if inherits else [])]
    files = [f for f in (*(rules_dir / s / FAILURES for s in stacks), rules_dir / FAILURES) if f.is_file()]
    if not files:
        raise UserError(f"{rules_dir / FAILURES}: no such file; without it no failure is known")
    rules: dict[str, FailureRule] = {}
    phases: list[Phase] = []
    for file in files:
        data = read_yaml(file)
        if not isinstance(data, dict) or set(data) - {"phases", "rules"}:
            raise UserError(f"{file}: expected the keys `phases` and `rules`")
        for entry in data.get("rules") or []:
            rule = parse(FailureRule, entry, f"{file}: {_name(entry)}")
            if rule.id in rules:
                raise UserError(f"{file}: {rule.id} stands twice; give one another id")
            rules[rule.id] = rule
        phases += [parse(Phase, x, f"{file}: phase {_name(x)}") for x in data.get("phases") or []]
    return Book(rules=list(rules.values()), phases=phases)


def lever_ids(rules_dir: Path, stack: str) -> set[str]:
    """Return the ids of a stack's lever groups; '' for no known stack: of all."""
    stacks = [stack] if stack else sorted(p.name for p in rules_dir.iterdir() if p.is_dir())
    return {lever["id"] for name in stacks for lever in load_levers(rules_dir, name)}


def _name(entry: Any) -> str:
    return str(entry.get("id", "?")) if isinstance(entry, dict) else "?"


def check_failures(book: Book, levers: set[str]) -> list[str]:
    """Return what is wrong with a book: examples that don't come out, levers that no stack has, phases that no list has.

    Each example is read with its rule alone.
    """
    phases = {p.id for p in book.phases}
    problems = []
    for rule in book.rules:
        alone = Book(rules=[rule], phases=book.phases)
        for i, example in enumerate(rule.examples, 1):
            found = triage([("example", example.log.encode())], alone)
            where = f"{rule.id}: example {i}"
            if (found.rule == rule.id) != example.fires:
                problems.append(
                    f"{where}: {'does not fire' if example.fires else 'fires'}, but must{'' if example.fires else ' not'}"
                )
                continue
            told = {"kind": found.kind, "phase": found.phase, "rank": found.rank}
            wanted = {k: v for k in told if (v := getattr(example, k)) not in ("", None)}
            problems += [f"{where}: {k} is {told[k]}, not {v}" for k, v in wanted.items() if told[k] != v]
        named = {*rule.levers, *(x for v in rule.variants for x in v.levers or [])}
        problems += [f"{rule.id}: lever {x}: no stack has it" for x in sorted(named - levers)]
        problems += [f"{rule.id}: phase {x}: is not in the list" for v in rule.variants for x in v.phases if x not in phases]
    return problems
