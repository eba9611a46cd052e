"""`attuner estimate RECIPE|CAMPAIGN [--cluster FILE --gpus N]`: memory per stage and step time, with a band; spends nothing."""

from __future__ import annotations

import argparse
import dataclasses
import json
from pathlib import Path
from typing import Any

from attuner.config import load_campaign, load_cluster, load_recipe
from attuner.core.base import Value
from attuner.core.campaign import Campaign, Cluster
from attuner.core.errors import UserError
from attuner.core.recipe import Workload
from attuner.estimate.hardware import Hardware
from attuner.estimate.learning import learn
from attuner.estimate.memory import MEMORY_PARTS
from attuner.estimate.model import Estimate, model_of
from attuner.estimate.reading import read
from attuner.estimate.shape import Layout, Shape
from attuner.settings import Settings, load_settings
from attuner.yamlfile import read_yaml

PRECISIONS = ("bf16", "fp16", "fp32")


def estimate(arguments: argparse.Namespace) -> int:
    """Print the estimate of one recipe, from public figures alone. Exit 4 with the formula if it can't be built."""
    settings = load_settings(project=arguments.project)
    path = Path(arguments.file)
    stack, given, workload, cluster = _asked(path, arguments, settings)
    shape, layout = read(given, workload=workload, stack=stack)
    said = told(shape, layout, cluster)
    if arguments.json:
        print(json.dumps(_body(shape, layout, cluster, said), indent=1, ensure_ascii=False))
        return 0
    print(f"{path}: {_count(shape.num_params())} parameters on {layout.gpus} × {cluster.name}")
    for line in lines(shape, layout, cluster, said):
        print(f"  {line}")
    return 0


def told(shape: Shape, layout: Layout, cluster: Cluster) -> Estimate:
    """Return the estimate from the cluster's figures. Raises Refused with the formula, or UserError for a missing figure."""
    layout.check(shape)
    machine = Hardware.of(cluster)
    return learn(shape, machine, []).estimate(model_of(shape, machine), layout)


def fit_of(campaign: Campaign, final: dict[str, Value]) -> tuple[list[str], dict[str, Any]]:
    """Return what `attuner check` says of a campaign's baseline: lines for a person, and data."""
    cluster = campaign.launcher.cluster
    try:
        shape, layout = read(final, workload=campaign.workload, stack=campaign.stack.name)
        said = told(shape, layout, cluster)
    except UserError as error:
        return [f"no estimate: {error}"], {"why_not": str(error)}
    return lines(shape, layout, cluster, said), _body(shape, layout, cluster, said)


def lines(shape: Shape, layout: Layout, cluster: Cluster, said: Estimate) -> list[str]:
    """Return the estimate for a person."""
    virtual = f" vp{layout.vp}" if layout.vp > 1 else ""
    experts = f" ep{layout.ep} etp{layout.etp}" if shape.num_experts else ""
    sizes = f"tp{layout.tp} pp{layout.pp}{virtual} cp{layout.cp}{experts} dp{layout.dp}"
    out = [
        f"layout      {sizes}, micro batch {layout.micro_batch} × {layout.num_microbatches}, recompute {layout.recompute}",
        f"step        {_s(said.step_s)} ({_s(said.step_low_s)} to {_s(said.step_high_s)}), "
        f"{said.tokens_per_s_per_gpu:,.0f} tokens/s/device",
        f"where       {', '.join(f'{n} {x / said.step_s:.0%}' for n, x in _ranked(said) if x >= 0.005 * said.step_s)}",
        f"memory      {said.peak_mem_gib:.3g} GiB ({said.mem_low_gib:.3g} to {said.mem_high_gib:.3g}) on the fullest device"
        f"{_room(said, cluster)}",
    ]
    for index, stage in enumerate(said.stages):
        held = ", ".join(f"{name} {stage[name]:.3g}" for name in MEMORY_PARTS if stage[name] >= 0.005)
        out.append(f"  stage {index:<3} {sum(stage.values()):.3g} GiB: {held}")
    return out


def _ranked(said: Estimate) -> list[tuple[str, float]]:
    return sorted(said.parts.items(), key=lambda x: -x[1])


def _count(number: int) -> str:
    return f"{number / 1e9:.3g} B" if number >= 1e9 else f"{number / 1e6:.3g} M"


def _s(seconds: float) -> str:
    return f"{seconds:.3g} s"


def _room(said: Estimate, cluster: Cluster) -> str:
    limit = Hardware.of(cluster).mem_gib
    if limit is None:
        return ""
    if said.mem_low_gib > limit:
        return f"; it does not fit: a device has {limit:g} GiB"
    return f" of {limit:g} GiB" + ("; it may not fit" if said.mem_high_gib > limit else "")


def _body(shape: Shape, layout: Layout, cluster: Cluster, said: Estimate) -> dict[str, Any]:
    return {
        "cluster": cluster.name,
        "num_params": shape.num_params(),
        "shape": dataclasses.asdict(shape),
        "layout": dataclasses.asdict(layout),
        "device_mem_gib": Hardware.of(cluster).mem_gib,
        **dataclasses.asdict(said),
    }


def _asked(path: Path, flags: argparse.Namespace, settings: Settings) -> tuple[str, dict[str, Value], Workload, Cluster]:
    """Return stack, arguments, workload and cluster of what was asked for."""
    data = read_yaml(path)
    if isinstance(data, dict) and "workload" in data:
        campaign = load_campaign(path, configs=settings.configs_dir())
        campaign = campaign.model_copy(update={"stack": settings.sourced(campaign.stack)})
        work, cluster = campaign.workload, campaign.launcher.cluster
        given, stack = dict(campaign.baseline.arguments), campaign.stack.name
    else:
        recipe = load_recipe(path)
        given, stack, work, cluster = dict(recipe.arguments), recipe.stack, None, None
    if flags.cluster:
        cluster = load_cluster(_found(Path(flags.cluster), settings))
    if cluster is None:
        raise UserError(f"{path}: a recipe alone names no machine; add --cluster clusters/b200.yaml --gpus N")
    for flag, name in ((flags.global_batch, "global_batch_size"), (flags.seq_len, "seq_length")):
        if flag:
            given[name] = flag
    return stack, given, _workload(path, given, work, cluster, flags), cluster


def _workload(
    path: Path, given: dict[str, Value], work: Workload | None, cluster: Cluster, flags: argparse.Namespace
) -> Workload:
    if work is not None:
        return work.model_copy(update={"gpus": flags.gpus or work.gpus})
    sizes: dict[str, int] = {}
    for name, flag in (("global_batch_size", "--global-batch"), ("seq_length", "--seq-len")):
        value = given.get(name)
        if not isinstance(value, int) or isinstance(value, bool):
            raise UserError(f"{path}: {name}: not stated; add {flag} N")
        sizes[name] = value
    precision = flags.precision or next(
        (p for p in PRECISIONS if given.get(p) is True), "fp32" if cluster.device.kind == "cpu" else "bf16"
    )
    return Workload(
        model=path.stem,
        dataset="none",
        seq_len=sizes["seq_length"],
        global_batch=sizes["global_batch_size"],
        precision=precision,
        seed=0,
        steps=2,
        warmup_steps=1,
        gpus=flags.gpus or cluster.devices,
        hardware=cluster.name,
    )


def _found(path: Path, settings: Settings) -> Path:
    inside = settings.configs_dir() / path
    return path if path.exists() or not inside.exists() else inside
