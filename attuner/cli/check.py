"""`attuner check FILE`: will it run, what will it cost, which known defects is the baseline in; spends nothing."""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import Any

from attuner.cli.estimate import fit_of
from attuner.config import load_campaign, load_register, read_lock
from attuner.core.base import Record
from attuner.core.campaign import Campaign
from attuner.core.recipe import EffectiveConfig
from attuner.policy import budget
from attuner.policy.register import carried_defects
from attuner.settings import Settings, load_settings
from attuner.yamlfile import read_yaml


def check(arguments: argparse.Namespace) -> int:
    """Validate and resolve the baseline, name known defects it is in; print cost and budget."""
    settings = load_settings(project=arguments.project)
    data = read_yaml(Path(arguments.file))
    if isinstance(data, dict) and "arguments" in data and "workload" not in data:
        from attuner.cli.check_recipe import check_recipe

        return check_recipe(arguments)
    campaign = load_campaign(Path(arguments.file), configs=settings.configs_dir())
    found = examine(campaign, settings)
    if arguments.json:
        print(json.dumps(found.data(), indent=1, ensure_ascii=False))
        return 0
    print(f"{arguments.file}: valid")
    for label, text in found.rows():
        print(f"  {label:12}{text}".rstrip() if label else f"  {text}")
    return 0


class Examined(Record):
    """What is known of a campaign before anything is spent."""

    campaign: Campaign
    effective: EffectiveConfig
    carried: tuple[tuple[str, str], ...]
    cost: dict[str, float | str]
    fit: tuple[str, ...]
    estimate: Any
    locked: bool

    def data(self) -> dict[str, Any]:
        """Return it as `attuner check --json` prints it."""
        defects = [{"rule": rule, "reason": reason} for rule, reason in self.carried]
        body = {"campaign": self.campaign.data(), "cost": self.cost, "effective": self.effective.data()}
        return {**body, "carried_defects": defects, "estimate": self.estimate}

    def rows(self) -> list[tuple[str, str]]:
        """Return it for people: label and text; the estimate's lines carry their own label."""
        work, cluster, cost = self.campaign.workload, self.campaign.launcher.cluster, self.cost
        batch = f"{work.seq_len} tokens × {work.global_batch} rows"
        return [
            ("workload", f"{work.model}, {work.dataset}, {batch}, {work.steps} steps a launch"),
            ("cluster", f"{cluster.name}: {work.gpus} of {cluster.devices} devices ({cluster.device.kind})"),
            ("baseline", ", ".join(f"{k} {v}" for k, v in sorted(self.campaign.baseline.arguments.items()))),
            *(("changed", str(x)) for x in self.campaign.changed),
            *(("register", f"the baseline itself is in a known defect: {rule}: {why}") for rule, why in self.carried),
            ("launch", f"about {cost['launch_gpu_hours']:.4f} device-hours each ({cost['from']})"),
            (
                "budget",
                f"{cost['budget']}; calibration and re-measurement take {cost['fixed_gpu_hours']:.4f} device-hours",
            ),
            *(("", line) for line in self.fit),
            *(() if self.locked else (("register", "rules/LOCK is missing; run `attuner rules lock`"),)),
        ]


def examine(campaign: Campaign, settings: Settings) -> Examined:
    """Resolve the baseline and say what the campaign would cost; nothing is launched or recorded.

    Raises:
        UserError: it would be refused at birth.
    """
    from attuner.steps.birth import resolve_baseline
    from attuner.wiring import check_names, stack_of

    campaign = campaign.model_copy(update={"stack": settings.sourced(campaign.stack)})
    budget.check_at_birth(campaign, source=campaign.source_file)
    check_names(campaign)
    stack = stack_of(campaign)
    try:
        effective = resolve_baseline(stack, campaign)
    finally:
        stack.close()
    carried = carried_defects(load_register(settings.rules_dir(), campaign.stack.name), effective)
    fit, estimate = fit_of(campaign, effective.arguments)
    return Examined(
        campaign=campaign,
        effective=effective,
        carried=tuple((r.id, r.reason) for r in carried),
        cost=costs(campaign),
        fit=tuple(fit),
        estimate=estimate,
        locked=bool(read_lock(settings.rules_dir())),
    )


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
