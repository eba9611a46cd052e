"""`attuner check FILE`: will it run, what will it cost, which known defects is the baseline in; spends nothing."""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path

from attuner.cli.estimate import fit_of
from attuner.config import load_campaign, load_register, read_lock
from attuner.core.campaign import Campaign
from attuner.policy import budget
from attuner.policy.register import carried_defects
from attuner.settings import load_settings
from attuner.yamlfile import read_yaml


def check(arguments: argparse.Namespace) -> int:
    """Validate and resolve the baseline, name known defects it is in; print cost and budget."""
    from attuner.steps.birth import resolve_baseline
    from attuner.wiring import check_names, stack_of

    settings = load_settings(project=arguments.project)
    data = read_yaml(Path(arguments.file))
    if isinstance(data, dict) and "arguments" in data and "workload" not in data:
        from attuner.cli.check_recipe import check_recipe

        return check_recipe(arguments)
    campaign = load_campaign(Path(arguments.file), configs=settings.configs_dir())
    campaign = campaign.model_copy(update={"stack": settings.sourced(campaign.stack)})
    budget.check_at_birth(campaign, source=arguments.file)
    check_names(campaign)
    stack = stack_of(campaign)
    try:
        effective = resolve_baseline(stack, campaign)
    finally:
        stack.close()
    carried = carried_defects(load_register(settings.rules_dir(), campaign.stack.name), effective)
    cost = costs(campaign)
    fit, fit_data = fit_of(campaign, effective.arguments)
    if arguments.json:
        defects = [{"rule": r.id, "reason": r.reason} for r in carried]
        body = {"campaign": campaign.data(), "cost": cost, "effective": effective.data(), "carried_defects": defects}
        body["estimate"] = fit_data
        print(json.dumps(body, indent=1, ensure_ascii=False))
        return 0
    work, cluster = campaign.workload, campaign.launcher.cluster
    print(f"{arguments.file}: valid")
    print(
        f"  workload    {work.model}, {work.dataset}, {work.seq_len} tokens × {work.global_batch} rows, "
        f"{work.steps} steps a launch"
    )
    print(f"  cluster     {cluster.name}: {work.gpus} of {cluster.devices} devices ({cluster.device.kind})")
    print(f"  baseline    {', '.join(f'{k} {v}' for k, v in sorted(campaign.baseline.arguments.items()))}")
    for rule in carried:
        print(f"  register    the baseline itself is in a known defect: {rule.id}: {rule.reason}")
    print(f"  launch      about {cost['launch_gpu_hours']:.4f} device-hours each ({cost['from']})")
    print(f"  budget      {cost['budget']}; calibration and re-measurement take {cost['fixed_gpu_hours']:.4f} device-hours")
    for line in fit:
        print(f"  {line}")
    if not read_lock(settings.rules_dir()):
        print("  register    rules/LOCK is missing; run `attuner rules lock`")
    return 0


def costs(campaign: Campaign) -> dict[str, float | str]:
    """Return what the campaign is expected to cost, device-hours."""
    launch = budget.declared_cost(campaign)
    fixed = budget.fixed_launches(campaign) * launch
    stated = campaign.budget.gpu_hours
    total = math.ceil(30 * launch / 10) * 10 if stated == "auto" else stated
    return {
        "launch_gpu_hours": launch,
        "from": "launch.expected_s"
        if campaign.launch.expected_s
        else "launch.max_s: state launch.expected_s for a better figure",
        "fixed_gpu_hours": fixed,
        "budget": f"{total:g} device-hours" + (" (auto, by this estimate)" if stated == "auto" else ""),
    }
