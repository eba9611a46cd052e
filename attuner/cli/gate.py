"""`attuner gate BASE CANDIDATE`: the gate's first look alone, on two files; with `--runs` all looks, on two finished runs."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from attuner.config import load_campaign, load_recipe, load_register
from attuner.core.campaign import Campaign, Cluster, Device, LauncherSpec, Prepare, ProposerSpec, StackSpec
from attuner.core.errors import Refused, UserError
from attuner.core.events import History
from attuner.core.judgement import ComponentTest, Finding, Verdict
from attuner.core.recipe import EffectiveConfig, Recipe, Workload
from attuner.policy.gate import config_look
from attuner.settings import Settings, load_settings
from attuner.steps.common import SHARED_TESTS, scope_of
from attuner.yamlfile import read_yaml

EXIT = {"admit": 0, "review": 3, "refuse": 4}


def gate(arguments: argparse.Namespace) -> int:
    """Judge a candidate file against a baseline file; the exit code tells the decision."""
    if arguments.runs:
        from attuner.cli.gate_runs import gate_runs

        return gate_runs(arguments)
    settings = load_settings(project=arguments.project)
    campaign = frame(Path(arguments.base), settings, gpus=arguments.gpus, device=arguments.device)
    campaign = campaign.model_copy(update={"stack": settings.sourced(campaign.stack, source=arguments.source)})
    candidate = load_recipe(Path(arguments.candidate))
    if candidate.stack != campaign.stack.name:
        raise UserError(f"{arguments.candidate}: stack: {candidate.stack}, the baseline's is {campaign.stack.name}")
    verdict = judge(campaign, candidate, settings)
    if arguments.json:
        print(json.dumps(verdict.data(), indent=1, ensure_ascii=False))
    else:
        print_verdict(verdict)
    return EXIT[verdict.decision]


def judge(campaign: Campaign, candidate: Recipe, settings: Settings) -> Verdict:
    """Resolve both sides and return the first look; a candidate that can't be built is refused with the formula."""
    from attuner.wiring import stack_of

    stack = stack_of(campaign)
    register = load_register(settings.rules_dir(), campaign.stack.name)
    try:
        try:
            baseline = stack.resolve(campaign.baseline, campaign)
        except Refused as error:
            raise UserError(f"{campaign.source_file}: baseline: {error}") from None
        try:
            final: EffectiveConfig = stack.resolve(candidate, campaign)
        except Refused as error:
            finding = Finding(rule="layout", decision="refuse", reason=str(error))
            return Verdict(look="config", subject="candidate", recipe=candidate.digest(), decision="refuse", findings=[finding])
    finally:
        stack.close()
    return config_look(
        register,
        baseline,
        final,
        subject="candidate",
        recipe=candidate.digest(),
        tests=tests_on_record(settings),
        scope=scope_of(baseline, campaign),
    )


def tests_on_record(settings: Settings) -> list[ComponentTest]:
    """Return the component tests that were made outside campaigns, if this machine has a ledger."""
    if not settings.ledger.exists():
        return []
    from attuner.wiring import open_ledger

    ledger = open_ledger(settings)
    try:
        return History(ledger.history(SHARED_TESTS)).component_tests()
    finally:
        ledger.close()


def frame(base: Path, settings: Settings, *, gpus: int, device: str) -> Campaign:
    """Return the campaign that frames the two recipes: the given one, or a bare one around a recipe file."""
    data = read_yaml(base)
    if isinstance(data, dict) and "workload" in data:
        return load_campaign(base, configs=settings.configs_dir())
    return framed(load_recipe(base), str(base), gpus=gpus, device=device)


def framed(recipe: Recipe, where: str, *, gpus: int, device: str) -> Campaign:
    """Return a bare campaign around a recipe, for what is judged outside campaigns; `where` is how messages call it."""
    count = gpus or 1
    arguments = recipe.arguments
    work = Workload(
        model="?",
        dataset="?",
        seq_len=_positive(arguments.get("seq_length")),
        global_batch=_positive(arguments.get("global_batch_size")),
        precision="?",
        seed=0,
        steps=2,
        warmup_steps=1,
        gpus=count,
        hardware=device or "cpu",
    )
    kind = "cuda" if device == "cuda" else "cpu"
    cluster = Cluster(name="?", devices=count, devices_per_node=count, device=Device(kind=kind))
    return Campaign(
        name="gate",
        workload=work,
        baseline=recipe,
        stack=StackSpec(name=recipe.stack, version="?"),
        launcher=LauncherSpec(name="ray_jobs", cluster=cluster),
        proposer=ProposerSpec(name="scripted"),
        prepare=Prepare(checkpoint="the same one"),  # two recipes alone are compared as if both start from one checkpoint
        source_file=where,
    )


def _positive(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 1


def print_verdict(verdict: Verdict) -> None:
    """Print decision and findings, strictest first: what changed finally, why it matters, where that is known from."""
    changed = sum(1 for f in verdict.findings if f.key)
    unbuilt = "the candidate can't be built" if verdict.findings else "no final value differs"
    print(f"{verdict.decision:7} {f'{changed} final values differ' if changed else unbuilt}")
    for finding in verdict.findings:
        print_finding(finding)
    if verdict.decision == "refuse":
        print("        nothing was launched, nothing was charged")


def print_finding(finding: Finding, *, short: bool = False) -> None:
    """Print one finding: rule or measurement, before and after, why, the likely cause, what to do; `short` on one line."""
    what = f"{finding.key} {finding.compared()}".rstrip() if finding.key else ""
    if short:
        print(f"{finding.decision:7} {finding.rule}  {what}: {finding.reason}")
        return
    print(f"{finding.decision:7} {finding.rule}  {what}".rstrip())
    print(f"        {finding.reason}")
    for word, text in (("likely", finding.cause), ("do", finding.todo), ("source", "; ".join(finding.source))):
        if text:
            print(f"        {word}: {text}")
