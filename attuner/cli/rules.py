"""`attuner rules check|list|explain|lock`: the register, read by people and checked by its own examples."""

from __future__ import annotations

import argparse
import difflib
import json
from pathlib import Path

from attuner.config import file_digests, load_arguments, load_levers, load_register, load_tolerances, read_lock, write_lock
from attuner.core.errors import UserError
from attuner.failures import check_failures, lever_ids, load_failures
from attuner.policy.register import Register, Rule, check_rule, examples_of, uncovered
from attuner.policy.zones import check_tolerance
from attuner.settings import load_settings


def _registers(arguments: argparse.Namespace) -> tuple[Path, list[Register]]:
    rules_dir = load_settings(project=arguments.project).rules_dir()
    names = [arguments.stack] if arguments.stack else sorted(p.name for p in rules_dir.iterdir() if p.is_dir())
    return rules_dir, [load_register(rules_dir, name) for name in names]


def check_rules(arguments: argparse.Namespace) -> int:
    """Evaluate every rule's examples, count covered arguments, read the levers, compare the lock; exit 1 on any problem."""
    rules_dir, registers = _registers(arguments)
    problems = [p for register in registers for rule in register.rules for p in check_rule(rule)]
    levers = {register.stack: len(load_levers(rules_dir, register.stack)) for register in registers}
    coverage = {}
    for register in registers:
        known = load_arguments(rules_dir, register.stack)
        missing = uncovered(register, list(known))
        problems += [f"{register.stack}: {name}: no rule covers this argument" for name in missing]
        if known:
            coverage[register.stack] = {"arguments": len(known), "covered": len(known) - len(missing)}
    limits = [load_tolerances(rules_dir, register.stack) for register in registers]
    problems += sorted({p for x in limits for t in [*x.own, *x.general] for p in check_tolerance(t)})
    signatures = load_failures(rules_dir, arguments.stack)
    problems += check_failures(signatures, lever_ids(rules_dir, ""))
    locked, now = read_lock(rules_dir), file_digests(rules_dir)
    moved = sorted(k for k in locked.keys() | now.keys() if locked.get(k) != now.get(k))
    problems += [f"rules/LOCK: {name} is not as locked; run `attuner rules lock` and say why in the commit" for name in moved]
    counts = {r.stack: len(r.rules) for r in registers}
    if arguments.json:
        told = {"rules": counts, "levers": levers, "coverage": coverage, "failures": len(signatures.rules), "problems": problems}
        print(json.dumps(told, indent=1))
    else:
        for register in registers:
            name, examples = register.stack, sum(len(examples_of(x)) for x in register.rules)
            print(f"{name}: {counts[name]} rules, {examples} examples, {levers[name]} lever groups")
            if name in coverage:
                print(f"{name}: {coverage[name]['covered']} of {coverage[name]['arguments']} arguments covered")
        print(f"failures: {len(signatures.rules)} signatures, {sum(len(x.examples) for x in signatures.rules)} examples")
        print("\n".join(problems) if problems else "every example comes out as expected; the lock holds")
    return 1 if problems else 0


def list_rules(arguments: argparse.Namespace) -> int:
    """List the rules of one stack or of all."""
    _, registers = _registers(arguments)
    if arguments.json:
        print(json.dumps({r.stack: [x.data() for x in r.rules] for r in registers}, indent=1, ensure_ascii=False))
        return 0
    for register in registers:
        for rule in register.rules:
            print(
                f"{register.stack:8} {rule.id:12} {rule.kind:11} {rule.decision:7} {', '.join(rule.covers[:4])}"
                + (" …" if rule.covers[4:] else "")
            )
    return 0


def explain(arguments: argparse.Namespace) -> int:
    """Say what the register thinks of one argument, given by name, by flag or as `env:NAME`; what is uncovered is review."""
    rules_dir, registers = _registers(arguments)
    asked, found, near = arguments.argument, {}, set()
    for register in registers:
        known = load_arguments(rules_dir, register.stack)
        name = _destination(asked, known)
        found[register.stack] = (name, register.covering(name))
        if found[register.stack][1] and name != asked and not arguments.json:
            print(f"{register.stack}: {asked} is {name}")
        near.update(_nearest(name, known, register))
    if arguments.json:
        print(json.dumps({k: [x.data() for x in v] for k, (_, v) in found.items()}, indent=1, ensure_ascii=False))
        return 0
    if not any(rules for _, rules in found.values()):
        close = difflib.get_close_matches(_destination(asked, {}), sorted(near), n=3)
        hint = f"; nearest: {', '.join(close)}" if close else ""
        print(f"{asked}: no rule covers it: `review` (a change launches, must pass the later looks, and a person looks){hint}")
    rules = {rule.id: rule for _, own in found.values() for rule in own}
    for rule in rules.values():  # a rule of rules/common.yaml is every stack's, and said once
        _say(", ".join(stack for stack, (_, own) in found.items() if rule in own), rule)
    return 0


def _say(stack: str, rule: Rule) -> None:
    when = f" when {json.dumps(rule.when, ensure_ascii=False)}" if rule.when else ""
    scope = f" in {json.dumps(rule.scope, ensure_ascii=False)}" if rule.scope else ""
    print(f"{stack}: {rule.id}  {rule.kind}  {rule.decision}{when}{scope}")
    print(f"   {rule.reason}")
    print(f"   source: {'; '.join(rule.source)}")


def _destination(asked: str, known: dict[str, list[str]]) -> str:
    """Return the final argument that a person means by a flag."""
    if not asked.startswith("--"):
        return asked
    return next((name for name, flags in known.items() if asked in flags), asked.removeprefix("--").replace("-", "_"))


def _nearest(name: str, known: dict[str, list[str]], register: Register) -> list[str]:
    names = {c for rule in register.rules for c in rule.covers if not c.endswith("*")}
    return difflib.get_close_matches(name, sorted(names.union(known)), n=3)


def lock(arguments: argparse.Namespace) -> int:
    """Write rules/LOCK."""
    settings = load_settings(project=arguments.project)
    if settings.project is None:
        raise UserError("rules lock: only in a checkout; pass --project DIR")
    print(f"wrote {write_lock(settings.rules_dir())}")
    return 0
