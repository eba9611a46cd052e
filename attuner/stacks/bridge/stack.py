"""The stack `bridge`: Megatron-Bridge's recipes. A recipe names one of Bridge's recipe functions and the dotted overrides of its
ConfigContainer. Final values come from Bridge's own code, where it is installed or checked out (or, as a small job, in the
training image); from a dumped configuration a recipe can be judged, not launched.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from attuner import benchmarking, runs
from attuner.core.base import Value
from attuner.core.campaign import Campaign
from attuner.core.errors import Refused, UserError
from attuner.core.recipe import EffectiveConfig, Recipe
from attuner.ports import JobSpec, RunFiles
from attuner.runner import files as run_files
from attuner.stacks.bridge import dump
from attuner.stacks.bridge.resolver import Resolver

DUMPS = (".yaml", ".yml")
RESOLVE_LIMIT_S = 600.0
BENCHMARK: dict[str, Value] = {
    **{"logger.log_interval": 1, "validation.eval_iters": 0, "checkpoint.save": None, "logger.tensorboard_dir": None},
    **{"logger.wandb_project": None, "logger.mlflow_experiment": None, "logger.comet_project": None},
    **{"profiling.use_pytorch_profiler": False, "profiling.use_nsys_profiler": False, "profiling.record_memory_history": False},
}
"""Overrides of every launch: each step logged, nothing evaluated, saved, reported or profiled by Bridge itself."""
LOADED: dict[str, Value] = {"checkpoint.finetune": True, "checkpoint.load_optim": False, "checkpoint.load_rng": False}
SAVED: dict[str, Value] = {"checkpoint.save_optim": False, "checkpoint.save_rng": False, "checkpoint.async_save": False}
WRAPPED = (*BENCHMARK, *LOADED, *SAVED, "train.exit_interval", "checkpoint.load", "checkpoint.save_interval", "train.eval_iters")
"""Names whose final value a launch can't tell of its recipe."""


class BridgeStack(runs.RunFolders):
    """Implements ports.Stack for Megatron-Bridge."""

    name = "bridge"
    wrapped = WRAPPED

    def __init__(self) -> None:
        self._resolvers: dict[str, Resolver] = {}
        self._dumps: dict[str, dict[str, Value]] = {}

    def resolve(self, recipe: Recipe, campaign: Campaign) -> EffectiveConfig:
        """Return final values; see ports.Stack.

        Raises:
            Refused: Bridge would refuse the recipe; with the formula where it is the layout.
            UserError: neither Bridge nor a dump of its configuration is there; with what is missing.
        """
        source, question = campaign.stack.source, self._question(recipe, campaign)
        if source.endswith(DUMPS):
            return self._from_dump(recipe, campaign)
        resolver = self._resolvers.setdefault(source, Resolver(source))
        try:
            answer = resolver.ask(question)
        except UserError as error:
            raise UserError(
                f"{campaign.source_file}: stack.source: {error}; name a checkout that can be imported, or the YAML that "
                "`logger.save_config_filepath` wrote (docs/stacks.md)"
            ) from None
        return self._final(answer, campaign, resolver.versions)

    def _question(self, recipe: Recipe, campaign: Campaign) -> dict[str, Any]:
        return {
            "arguments": recipe.data()["arguments"],
            "env": {**campaign.launcher.cluster.env, **recipe.env},
            "world_size": campaign.workload.gpus,
        }

    def _from_dump(self, recipe: Recipe, campaign: Campaign) -> EffectiveConfig:
        source = campaign.stack.source
        if source not in self._dumps:
            self._dumps[source] = dump.read_dump(source)
        arguments, env, unresolved = dump.overridden(self._dumps[source], dict(recipe.arguments))
        facts = dump.facts_of(arguments, campaign.workload.gpus)
        answer = {"ok": True, "arguments": arguments, "env": {**env, **campaign.launcher.cluster.env, **recipe.env}}
        return self._final({**answer, "facts": {**facts, "unresolved": unresolved}}, campaign, {})

    def _final(self, answer: dict[str, Any], campaign: Campaign, found: dict[str, str]) -> EffectiveConfig:
        if not answer["ok"]:
            raise Refused(str(answer["error"]))
        facts, stack, work = dict(answer["facts"]), campaign.stack, campaign.workload
        if campaign.prepare.checkpoint or campaign.prepare.steps:
            facts["initial_weights"] = "checkpoint"
        facts["device_kind"] = campaign.launcher.cluster.device.kind
        known = {
            **found,
            "megatron_lm_commit": stack.commit,
            "torch": stack.torch or found.get("torch", ""),
            "transformer_engine": stack.transformer_engine,
            "model": work.model,
            "hardware": work.hardware,
        }
        try:
            return EffectiveConfig(
                arguments=answer["arguments"],
                env=answer["env"],
                facts=facts,
                versions={name: value for name, value in known.items() if value not in ("", "?")},
            )
        except ValueError as error:
            raise Refused(f"a final value has no plain form: {' '.join(str(error).split())[:200]}") from None

    # ------------------------------------------------------------------ inside the training image

    def resolve_job(self, recipes: list[Recipe], campaign: Campaign, *, source: str = "") -> JobSpec:
        """Return the job that resolves recipes where Bridge is: one CPU of the cluster. source: folder inside the image."""
        requests = [{"id": i, **self._question(recipe, campaign)} for i, recipe in enumerate(recipes)]
        return JobSpec(
            module="resolve_bridge",
            job={"source": source, "requests": requests},
            env={},
            gpus=1,
            gpus_per_node=1,
            resource="CPU",
            time_limit_s=RESOLVE_LIMIT_S,
            hang_s=RESOLVE_LIMIT_S,
            torchrun=False,
        )

    def resolved(self, files: RunFiles, campaign: Campaign) -> list[EffectiveConfig | Refused]:
        """Return what such a job left, one entry a recipe. Raises UserError when the job failed; with its cause."""
        path = Path(files.folder) / run_files.RESOLVED
        if not path.exists():
            raise UserError(f"resolving in the image failed: {files.stamp.detail or 'the job left no word'}")
        document = run_files.read_json(path)
        found: list[EffectiveConfig | Refused] = []
        for answer in document["answers"]:
            try:
                found.append(self._final(answer, campaign, document["versions"]))
            except Refused as error:
                found.append(error)
        return found

    # ------------------------------------------------------------------ launching

    def freeze(self, campaign: Campaign, folder: Path) -> str:
        """Return the dataset with its digest; see ports.Stack."""
        arguments = self.resolve(campaign.baseline, campaign).arguments
        data = {k: v for k, v in arguments.items() if k.startswith("dataset.")}
        words = [
            w for k, v in data.items() if k in ("dataset.data_path", "dataset.blend") for w in (v if isinstance(v, list) else [v])
        ]
        prefixes = [str(w) for w in words if isinstance(w, str) and w.startswith("/")]
        made = "Mock" in str(data.get("dataset._target_", "")) or bool(data.get("dataset.mock")) or not words
        return benchmarking.freeze(campaign, [f"{p}{end}" for p in prefixes for end in (".bin", ".idx")], data, made=made)

    def command(self, recipe: Recipe, campaign: Campaign, *, kind: str, profile_steps: int, inputs: dict[str, Any]) -> JobSpec:
        """Return what to run for one launch; see ports.Stack.

        Raises:
            UserError: a component test is asked for, or the recipe was resolved from a dump, which can't say what would run.
        """
        if inputs.get("component"):
            raise UserError(f"component {inputs['component'][0]}: stack bridge has no component tests")
        cluster, work, stack = campaign.launcher.cluster, campaign.workload, campaign.stack
        if stack.source.endswith(DUMPS):
            raise UserError(
                f"{campaign.source_file}: stack.source: a dumped configuration can be judged, not launched: what Bridge derives "
                "from it isn't known; name a checkout"
            )
        steps = int(inputs["steps"])
        job = {
            "stack": self.name,
            "source": stack.job_source or stack.source,
            "arguments": recipe.data()["arguments"],
            "set": wrapping(inputs, profile_steps=profile_steps),
            "judged": self.resolve(recipe, campaign).data()["arguments"],
            "world_size": work.gpus,
            "steps": steps,
            "warmup_steps": min(work.warmup_steps, steps - 1),
            "profile_steps": profile_steps,
            "device": cluster.device.data(),
            **{k: inputs[k] for k in ("save", "placement_offset") if inputs.get(k) is not None},
        }
        return JobSpec(
            module="run_bridge",
            job=job,
            env={**cluster.env, **recipe.env},
            gpus=work.gpus,
            gpus_per_node=cluster.devices_per_node,
            resource=cluster.resource,
            time_limit_s=campaign.launch.max_s,
            hang_s=campaign.launch.hang_s,
        )

    def in_fp32(self, recipe: Recipe) -> Recipe | None:
        """Return None: Bridge's layers attend with Transformer Engine, which has no fp32."""
        return None

    def close(self) -> None:
        """End the resolvers."""
        while self._resolvers:
            _, resolver = self._resolvers.popitem()
            resolver.close()


def wrapping(inputs: dict[str, Any], *, profile_steps: int) -> dict[str, Value]:
    """Return the overrides that make a benchmark of a recipe: so many steps and out by exit_interval, the schedule left alone."""
    total = int(inputs["steps"]) + profile_steps
    found: dict[str, Value] = {**BENCHMARK, "train.exit_interval": total}
    if inputs.get("load"):
        found |= {"checkpoint.load": str(inputs["load"]), **LOADED}
    if inputs.get("save"):
        found |= {"checkpoint.save": str(inputs["save"]), "checkpoint.save_interval": total, **SAVED}
    return found
