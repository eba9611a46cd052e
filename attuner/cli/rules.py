"""`attuner rules check|list|explain|lock`: the register, read by people and checked by its own examples."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from attuner.config import file_digests, load_levers, load_register, read_lock, write_lock
from attuner.core.errors import UserError
from attuner.policy.register import Register, check_rule
from attuner.settings import load_settings


def _registers(arguments: argparse.Namespace) -> tuple[Path, list[Register]]:
    rules_dir = load_settings(project=arguments.project).rules_dir()
    names = [arguments.stack] if arguments.stack else sorted(p.name for p in rules_dir.iterdir() if p.is_dir())
    return rules_dir, [load_register(rules_dir, name) for name in names]


def check_rules(arguments: argparse.Namespace) -> int:
    """Evaluate every rule's examples, read the lever catalogs, and compare the lock; exit 1 on any problem."""
    rules_dir, registers = _registers(arguments)
    problems = [p for register in registers for rule in register.rules for p in check_rule(rule)]
    levers = {register.stack: len(load_levers(rules_dir, register.stack)) for register in registers}
    locked, now = read_lock(rules_dir), file_digests(rules_dir)
    moved = sorted(k for k in locked.keys() | now.keys() if locked.get(k) != now.get(k))
    problems += [f"rules/LOCK: {name} is not as locked; run `attuner rules lock` and say why in the commit" for name in moved]
    counts = {r.stack: len(r.rules) for r in registers}
    if arguments.json:
        print(json.dumps({"rules": counts, "levers": levers, "problems": problems}, indent=1))
    else:
        for name, count in counts.items():
            examples = sum(len(x.examples) for r in registers if r.stack == name for x in r.rules)
            print(f"{name}: {count} rules, {examples} examples, {levers[name]} lever groups")
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
                f"{register.stack:6} {rule.id:12} {rule.kind:11} {rule.decision:7} {', '.join(rule.covers[:4])}"
                + (" …" if rule.covers[4:] else "")
            )
    return 0


def explain(arguments: argparse.Namespace) -> int:
    """Say what the register thinks of one argument; what is uncovered is review."""
    _, registers = _registers(arguments)
    found = {r.stack: r.covering(arguments.argument) for r in registers}
    if arguments.json:
        print(json.dumps({k: [x.data() for x in v] for k, v in found.items()}, indent=1, ensure_ascii=False))
        return 0
    for stack, rules in found.items():
        if not rules:
            print(f"{stack}: {arguments.argument}: no rule covers it: a change is `review` (launches, later looks, a person)")
        for rule in rules:
            when = f" when {json.dumps(rule.when, ensure_ascii=False)}" if rule.when else ""
            print(f"{stack}: {rule.id}  {rule.kind}  {rule.decision}{when}")
            print(f"   {rule.reason}")
            print(f"   source: {'; '.join(rule.source)}")
    return 0


def lock(arguments: argparse.Namespace) -> int:
    """Write rules/LOCK."""
    settings = load_settings(project=arguments.project)
    if settings.project is None:
        raise UserError("rules lock: only in a checkout; pass --project DIR")
    print(f"wrote {write_lock(settings.rules_dir())}")
    return 0
