"""`attuner check RECIPE --gpus N`: a recipe file alone. Does it resolve, which known defects is it in, does it fit, what of it
differs from the framework's defaults; spends nothing."""

from __future__ import annotations

import argparse
import json
import textwrap
from pathlib import Path
from typing import Any

from attuner.cli.estimate import fit_of
from attuner.cli.gate import framed
from attuner.cli.import_fit import resolvable
from attuner.config import load_cluster, load_recipe, load_register
from attuner.core.base import Value
from attuner.core.campaign import Campaign
from attuner.core.errors import Refused, UserError
from attuner.core.recipe import EffectiveConfig, Recipe
from attuner.importing.defaults import same_as_text
from attuner.policy.register import carried_defects
from attuner.settings import Settings, load_settings

LONG = 8
"""Values of a list that is shown in full."""
NO_MACHINE = "no estimate: a recipe alone names no machine; add --cluster clusters/b200.yaml"


def check_recipe(arguments: argparse.Namespace) -> int:
    """Resolve a recipe, judge it against the known defects, estimate its fit; print what differs from defaults."""
    settings, path = load_settings(project=arguments.project), Path(arguments.file)
    recipe = load_recipe(path)
    if not resolvable(recipe.stack):
        raise UserError(f"{path}: stack: {recipe.stack}: nothing here resolves its recipes")
    campaign = _frame(recipe, path, arguments, settings)
    final, defaults = _resolved(recipe, campaign, path)
    carried = carried_defects(load_register(settings.rules_dir(), campaign.stack.name), final)
    given, derived = differing(recipe, final, defaults)
    fit, data = fit_of(campaign, final.arguments) if arguments.cluster else ([NO_MACHINE], {})
    if arguments.json:
        defects = [{"rule": r.id, "reason": r.reason} for r in carried]
        body = {"given": given, "derived": derived, "carried_defects": defects, "effective": final.data(), "estimate": data}
        print(json.dumps(body, indent=1, ensure_ascii=False))
        return 0
    print(f"{path}: resolves on {campaign.workload.gpus} devices ({', '.join(f'{k} {v}' for k, v in final.versions.items())})")
    facts = ("data_parallel_size", "num_microbatches", "padded_vocab_size", "layers_per_stage")
    print(f"  {'facts':11} {', '.join(f'{k} {final.facts[k]}' for k in facts if k in final.facts)}")
    for rule in carried:
        print(f"  {'register':11} in a known defect: {rule.id}: {rule.reason}")
    if not carried:
        print(f"  {'register':11} in no known defect")
    print(f"  {'given':11} {_listed(given) or 'nothing that differs from a default'}")
    print(f"  {'derived':11} {_listed(derived) or 'nothing'}")
    for name, value in sorted(recipe.env.items()):
        print(f"  {'environment':11} {name}={value}")
    for line in fit:
        print(f"  {line}")
    return 0


def _frame(recipe: Recipe, path: Path, arguments: argparse.Namespace, settings: Settings) -> Campaign:
    nodes, each = recipe.arguments.get("actor_num_nodes"), recipe.arguments.get("actor_num_gpus_per_node")
    counted = nodes * each if isinstance(nodes, int) and isinstance(each, int) else 0
    gpus = arguments.gpus or counted
    if not gpus:
        raise UserError(f"{path}: a recipe alone names no number of devices; add --gpus N")
    frame = framed(recipe, str(path), gpus=gpus, device="cuda")
    cluster, work = frame.launcher.cluster, frame.workload
    if arguments.cluster:
        file = Path(arguments.cluster)
        inside = settings.configs_dir() / file
        cluster = load_cluster(file if file.exists() or not inside.exists() else inside)
        if cluster.devices < gpus:
            cluster = cluster.model_copy(update={"devices": gpus})
    stated = next((p for p in ("bf16", "fp16") if recipe.arguments.get(p) is True), "")
    precision = stated or ("bf16" if counted else "fp32")  # slime trains in bf16 unless told otherwise
    hardware = cluster.name if arguments.cluster else "?"
    work = work.model_copy(update={"precision": precision, "hardware": hardware, "model": path.stem})
    stack = settings.sourced(frame.stack, source=arguments.source)
    launcher = frame.launcher.model_copy(update={"cluster": cluster})
    return frame.model_copy(update={"stack": stack, "launcher": launcher, "workload": work})


def _resolved(recipe: Recipe, campaign: Campaign, path: Path) -> tuple[EffectiveConfig, dict[str, str]]:
    """Return final values and the framework's defaults, as text; no defaults where a stack doesn't list them."""
    from attuner.wiring import stack_of

    stack = stack_of(campaign)
    try:
        try:
            final = stack.resolve(recipe, campaign)
        except Refused as error:
            raise Refused(f"{path}: on {campaign.workload.gpus} devices: {error}") from None
        listed: Any = getattr(stack, "known_arguments", None)
        defaults = {e["name"]: str(e["default"]) for e in listed(campaign)} if callable(listed) else {}
    finally:
        stack.close()
    return final, defaults


def differing(recipe: Recipe, final: EffectiveConfig, defaults: dict[str, str]) -> tuple[dict[str, Value], dict[str, Value]]:
    """Return the final arguments that differ from the framework's defaults: those that the recipe gives, those that follow."""
    given: dict[str, Value] = {}
    derived: dict[str, Value] = {}
    for name, value in final.arguments.items():
        if name not in defaults or same_as_text(value, defaults[name]):
            continue
        if name in recipe.arguments:
            given[name] = recipe.arguments[name] if isinstance(value, list) and len(value) > LONG else value
        else:
            derived[name] = f"({len(value)} values)" if isinstance(value, list) and len(value) > LONG else value
    if not defaults:
        given = {n: v for n, v in final.arguments.items() if n in recipe.arguments}
    return given, derived


def _listed(values: dict[str, Value]) -> str:
    text = ", ".join(f"{k} {v}" for k, v in sorted(values.items()))
    return "\n".join(textwrap.wrap(text, 110, subsequent_indent=" " * 14, break_long_words=False, break_on_hyphens=False))
