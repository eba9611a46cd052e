"""The stack `replay`: recipes of a replay table. It resolves them by the framework's own arithmetic and the table's rows.

Arguments carry Megatron's names. What the framework would refuse, and what is not in the table, is refused here, before
anything is launched or charged. No training takes place: losses, batches and gradients don't exist.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attuner.core.base import Value
from attuner.core.campaign import Campaign
from attuner.core.errors import Refused, UserError
from attuner.core.recipe import EffectiveConfig, Recipe
from attuner.core.run import RankStep, StepRecord
from attuner.ports import JobSpec, RunFiles, RunResult
from attuner.runner import files as run_files
from attuner.tables import BREAKDOWN, Table, load_table

VERSION = "1"
UNSEEN = "not available (replay)"
FAILED = {"oom": "oom", "hang": "hang"}
OBJECTIVE = frozenset(
    {
        *("seed", "lr", "min_lr", "lr_decay_style", "lr_warmup_steps", "weight_decay", "adam_beta1", "adam_beta2", "adam_eps"),
        *("clip_grad", "optimizer", "bf16", "fp16", "fp8", "params_dtype", "grad_reduce_in_fp32", "calculate_per_token_loss"),
        *("moe_aux_loss_coeff", "moe_router_load_balancing_type", "moe_expert_capacity_factor", "hidden_dropout"),
        "attention_dropout",
    }
)
"""Arguments that a table has no column for and that still resolve: the first look must say what it thinks of them."""
LAYOUT = (
    *("tensor_model_parallel_size", "pipeline_model_parallel_size", "virtual_pipeline_model_parallel_size"),
    *("expert_model_parallel_size", "expert_tensor_parallel_size", "micro_batch_size"),
)
DERIVED = (
    *("sequence_parallel", "recompute_granularity", "recompute_method", "recompute_num_layers"),
    *("decoder_first_pipeline_num_layers", "decoder_last_pipeline_num_layers"),
)


class ReplayStack:
    """Implements ports.Stack over a replay table.

    Args:
        table: given by who has it at hand (a bench, with a perturbed one); else the campaign's `launcher.table` is read.
    """

    name = "replay"
    components: frozenset[str] = frozenset()

    def __init__(self, table: Table | None = None) -> None:
        self._table = table

    def table(self, campaign: Campaign) -> Table:
        """Return the campaign's table. Raises UserError if there is none to read."""
        if self._table is None:
            if not campaign.launcher.table:
                raise UserError(f"{campaign.source_file}: launcher.table: is missing; stack replay plays a table")
            self._table = load_table(Path(campaign.launcher.table))
        return self._table

    def freeze(self, campaign: Campaign, folder: Path) -> str:
        """Return the table as the data that every launch reads; see ports.Stack."""
        return f"{campaign.workload.dataset}@sha256:{self.table(campaign).digest}"

    def resolve(self, recipe: Recipe, campaign: Campaign) -> EffectiveConfig:
        """Return final values; see ports.Stack. Raises Refused with the formula, or with what the table says of it."""
        table = self.table(campaign)
        work, about = campaign.workload, table.about
        for name, ours, theirs in (("gpus", work.gpus, about.gpus), ("steps", work.steps, about.steps)):
            if ours != theirs:
                raise UserError(f"{campaign.source_file}: workload.{name}: {ours}, but {table.path.name} was made for {theirs}")
        known = {*table.fixed, *table.axes, *OBJECTIVE, *(() if about.kind == "recorded" else DERIVED)}
        foreign = sorted(recipe.arguments.keys() - known)
        if foreign:
            raise Refused(f"{foreign[0]}: the table {table.name} has no column for it; what it would do is not on paper")
        final: dict[str, Value] = {**table.fixed, **recipe.arguments}
        if about.kind != "recorded":
            final = derived(final, about.splits)
        facts = _facts(final, gpus=work.gpus)
        row = table.find(final)
        if row is None:
            raise Refused(f"not in the table {table.name}: {_said(table, final)}")
        if not row.launchable():
            raise Refused(f"invalid in the table {table.name}: {row.note or 'refused by the framework'} ({_said(table, final)})")
        facts |= {"device_kind": about.device_kind, "table": about.kind}
        return EffectiveConfig(arguments=final, env=dict(recipe.env), facts=facts, versions={"replay": VERSION})

    def in_fp32(self, recipe: Recipe) -> Recipe | None:
        """Return None: nothing is trained, so there is nothing to check in fp32."""
        return None

    def command(self, recipe: Recipe, campaign: Campaign, *, kind: str, profile_steps: int, inputs: dict[str, Any]) -> JobSpec:
        """Return what to play for one launch; see ports.Stack."""
        if kind not in ("calibrate", "search", "remeasure"):
            raise UserError(f"{campaign.source_file}: a replayed table has no {kind} launches: nothing is trained")
        cluster, work = campaign.launcher.cluster, campaign.workload
        job = {
            "stack": self.name,
            "arguments": self.resolve(recipe, campaign).data()["arguments"],
            "steps": work.steps,
            "warmup_steps": work.warmup_steps,
            "profile_steps": profile_steps,
        }
        return JobSpec(
            module="replay",
            job=job,
            env={},
            gpus=work.gpus,
            gpus_per_node=cluster.devices_per_node,
            resource=cluster.resource,
            time_limit_s=campaign.launch.max_s,
            hang_s=campaign.launch.hang_s,
        )

    def progress(self, files: RunFiles) -> int:
        """Return how many steps have appeared."""
        return len(run_files.read_jsonl(Path(files.folder) / run_files.STEPS))

    def read(self, files: RunFiles) -> RunResult:
        """Return steps and outcome."""
        folder, stamp = Path(files.folder), files.stamp
        try:
            steps = [StepRecord.model_validate(x) for x in run_files.read_jsonl(folder / run_files.STEPS)]
            config = run_files.read_json(folder / run_files.CONFIG) if (folder / run_files.CONFIG).exists() else {}
        except (ValueError, OSError) as error:
            cause = f"the run's files can't be read: {' '.join(str(error).split())[:200]}"
            return RunResult(steps=[], status="crash", cause=cause, phase="reading")
        if stamp.outcome == "ok":
            return RunResult(steps=steps, status="ok", arguments=config.get("arguments", {}), unseen=UNSEEN)
        return RunResult(steps=steps, status=FAILED.get(stamp.outcome, "crash"), cause=stamp.detail, unseen=UNSEEN)

    def component(self, files: RunFiles) -> dict[str, Any]:
        """Raise UserError: a table has no component tests."""
        raise UserError("component test: not available (replay)")

    def trace(self, files: RunFiles) -> list[RankStep]:
        """Return the breakdown that the table gives for the profiled steps."""
        path = Path(files.folder) / BREAKDOWN
        return [RankStep.model_validate(x) for x in run_files.read_json(path)] if path.exists() else []

    def close(self) -> None:
        """Nothing was started."""


def derived(given: Mapping[str, Value], splits: Mapping[int, list[int]]) -> dict[str, Value]:
    """Return final values with what the framework makes of them.

    Raises:
        Refused: it refuses them; the line names the arguments.
    """
    final = dict(given)
    for name, default in (("tensor_model_parallel_size", 1), ("pipeline_model_parallel_size", 1), ("micro_batch_size", 1)):
        final.setdefault(name, default)
    final.setdefault("expert_model_parallel_size", 1)
    if final.get("expert_tensor_parallel_size") is None:
        final["expert_tensor_parallel_size"] = final["tensor_model_parallel_size"] if "num_experts" in final else 1
    if final.get("virtual_pipeline_model_parallel_size") in (1, None):
        final["virtual_pipeline_model_parallel_size"] = None
    tensor = _count(final, "tensor_model_parallel_size")
    if final.get("sequence_parallel") is False and tensor > 1:
        raise Refused("sequence_parallel false with tensor parallelism: not in the table, which has it on wherever tp > 1")
    final["sequence_parallel"] = tensor > 1
    granularity = final["recompute_granularity"] = final.get("recompute_granularity")
    method = final.get("recompute_method")
    if granularity == "selective" and method is not None:
        raise Refused(f"recompute_method {method} with recompute_granularity selective: the method is for full recompute")
    if granularity == "full" and (method not in (None, "uniform") or final.get("recompute_num_layers") not in (None, 1)):
        raise Refused("full recompute: the table has recompute_method uniform with recompute_num_layers 1 only")
    final["recompute_method"] = "uniform" if granularity == "full" else None
    final["recompute_num_layers"] = 1 if granularity == "full" else None
    first, last = splits.get(_count(final, "pipeline_model_parallel_size"), [None, None])
    for name, layers in (("decoder_first_pipeline_num_layers", first), ("decoder_last_pipeline_num_layers", last)):
        if final.get(name, layers) not in (layers, None):
            raise Refused(f"{name} {final[name]}: the table has {layers} at this pipeline size")
        final[name] = layers
    return final


def _count(values: Mapping[str, Value], name: str) -> int:
    value = values.get(name)
    if value is None:
        return 1
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise Refused(f"{name}: {value!r} is not a number of devices, stages or rows")
    return value


def _facts(final: Mapping[str, Value], *, gpus: int) -> dict[str, Value]:
    """Return what follows from the layout. Raises Refused with the formula for what can't be built."""
    tp, pp, vp, ep, etp, rows = (_count(final, name) for name in LAYOUT)
    if gpus % (tp * pp):
        raise Refused(f"{gpus} devices don't divide by tp·pp = {tp}·{pp}")
    if gpus % (pp * ep * etp):
        raise Refused(f"{gpus} devices don't divide by pp·ep·etp = {pp}·{ep}·{etp}")
    dp = gpus // tp // pp
    batch = _count(final, "global_batch_size")
    if batch % (dp * rows):
        raise Refused(f"global batch {batch} doesn't divide by dp·micro batch = {dp}·{rows}")
    num = batch // dp // rows
    if vp > 1 and (pp == 1 or num % pp):
        raise Refused(f"virtual stages {vp} need pipeline stages, and micro-batches ({num}) that divide by them ({pp})")
    facts: dict[str, Value] = {"data_parallel_size": dp, "num_microbatches": num, "rows_per_update": batch}
    return {**facts, "expert_data_parallel_size": gpus // pp // ep // etp}


def _said(table: Table, final: Mapping[str, Value]) -> str:
    return ", ".join(f"{name} {final.get(name)}" for name in table.axes)
