"""`attuner component-test FILE CHANGE...`: does a same-math swap compute the same? Old and new side by side, as a small job."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from attuner.cli.gate import frame
from attuner.config import load_register
from attuner.core.base import Value
from attuner.core.campaign import Campaign
from attuner.core.errors import Refused, UserError
from attuner.core.judgement import ComponentTest
from attuner.core.recipe import Recipe
from attuner.policy.gate import config_look, missing_tests
from attuner.ports import Kit
from attuner.settings import load_settings
from attuner.steps.common import SHARED_TESTS, scope_of
from attuner.yamlfile import documents

Swap = tuple[str, str, Value, Value]


def component_test(arguments: argparse.Namespace) -> int:
    """Run the component tests that a change needs; exit 0 if all passed, 4 if one failed."""
    from attuner.wiring import build_kit

    settings = load_settings(project=arguments.project)
    campaign = frame(Path(arguments.file), settings, gpus=arguments.gpus, device=arguments.device)
    campaign = campaign.model_copy(update={"id": SHARED_TESTS})
    candidate = campaign.baseline.changed(changes(arguments.change))
    kit = build_kit(campaign, settings)
    kit.folder.mkdir(parents=True, exist_ok=True)
    try:
        kit.ledger.claim(SHARED_TESTS)
        tests = _run(kit, campaign, candidate, arguments)
    finally:
        kit.stack.close()
        kit.launcher.close()
        kit.ledger.close()
    if arguments.json:
        print(json.dumps([t.data() for t in tests], indent=1, ensure_ascii=False))
    else:
        for test in tests:
            print_test(test)
    return 0 if all(t.passed for t in tests) else 4


def changes(pairs: list[str]) -> dict[str, Value]:
    """Return KEY=VALUE pairs as arguments; values are read as YAML scalars or lists.

    Raises:
        UserError: a pair has no `=`, or its value is no YAML.
    """
    found: dict[str, Value] = {}
    for pair in pairs:
        key, sign, value = pair.partition("=")
        if not sign or not key:
            raise UserError(f"{pair}: a change is KEY=VALUE, e.g. attention_implementation=sdpa")
        found[key] = next(iter(documents(value, pair)), None)
    return found


def _run(kit: Kit, campaign: Campaign, candidate: Recipe, arguments: argparse.Namespace) -> list[ComponentTest]:
    from attuner.steps.component import component_alone

    try:
        before, after = kit.stack.resolve(campaign.baseline, campaign), kit.stack.resolve(candidate, campaign)
    except Refused as error:
        raise UserError(f"{arguments.file}: can't be built: {error}") from None
    register = load_register(kit.rules_dir, campaign.stack.name)
    scope = scope_of(after, campaign)
    verdict = config_look(register, before, after, subject="swap", recipe=candidate.digest(), tests=[], scope=scope)
    swaps: list[Swap] = missing_tests(register, verdict)
    if not swaps:
        lines = "; ".join(f.line() for f in verdict.findings) or "no final value differs"
        raise UserError(f"{' '.join(arguments.change)}: no same-math rule asks for a component test here: {lines[:300]}")
    unknown = sorted({s[0] for s in swaps} - kit.stack.components)
    if unknown:
        known = ", ".join(sorted(kit.stack.components)) or "none"
        raise UserError(f"component {', '.join(unknown)}: stack {campaign.stack.name} has no test for it; known: {known}")
    if not arguments.json:
        for component, argument, old, new in swaps:
            print(f"{component}: {argument} {old} → {new}, as a job on {campaign.workload.gpus} devices …", flush=True)
    return [component_alone(kit, campaign, candidate, after, swap=swap) for swap in swaps]


def print_test(test: ComponentTest) -> None:
    """Print one test: errors of old and new against the float64 reference, limits, outcome."""
    print(f"{'passed' if test.passed else 'FAILED':7} {test.component}: {test.argument} {test.old} → {test.new} ({test.dtype})")
    for side in ("forward", "backward"):
        old, new, limit = (getattr(test, name.format(side)) for name in ("{}_error_old", "{}_error_new", "tolerance_{}"))
        print(f"        {side:8} error: old {old:.3g}, new {new:.3g}, limit {limit:.3g} (relative to a float64 reference)")
    print(f"        on record as {test.launch_id}; it counts at scope {test.scope[:12]} (shapes, precision, hardware, versions)")
