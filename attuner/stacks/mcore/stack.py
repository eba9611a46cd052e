"""The stack `mcore`: our small trainer on megatron-core, on CPUs or GPUs. Here it is only described; it lives in runner/.

Arguments carry megatron-core's own field names. Final values are those of megatron-core's config objects after their
derivations, resolved in a process of its own (`resolver.py`) by the very code that the ranks use.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from attuner import runs
from attuner.core.campaign import Campaign
from attuner.core.errors import Refused, UserError
from attuner.core.recipe import EffectiveConfig, Recipe
from attuner.core.run import RankStep
from attuner.ports import JobSpec, RunFiles, RunResult
from attuner.runner import files as run_files
from attuner.stacks.mcore import dataset
from attuner.stacks.mcore.resolver import Resolver

FAMILIES = {"attention": "component_mcore", "dispatcher": "component_mcore", "cross_entropy": "component_mcore"}


class McoreStack:
    """Implements ports.Stack for the small trainer on megatron-core."""

    name = "mcore"
    components = frozenset(FAMILIES)

    def __init__(self) -> None:
        self._resolver = Resolver()

    def freeze(self, campaign: Campaign, folder: Path) -> str:
        """Make the rows once and return `name@sha256:…`; see ports.Stack."""
        work = campaign.workload
        steps = campaign.prepare.steps + work.steps + campaign.launch.profile_steps
        return dataset.freeze(work.dataset, folder / "rows", seq_len=work.seq_len, num_rows=steps * work.global_batch)

    def resolve(self, recipe: Recipe, campaign: Campaign) -> EffectiveConfig:
        """Return final values; see ports.Stack. Raises Refused with the formula for what can't be built."""
        device = campaign.launcher.cluster.device
        answer = self._resolver.ask(
            {
                "arguments": recipe.arguments,
                "world_size": campaign.workload.gpus,
                "device_kind": device.kind,
                "steps": campaign.workload.steps,
            }
        )
        if not answer["ok"]:
            raise Refused(str(answer["error"]))
        facts = dict(answer["facts"])
        del facts["expert_tensor_parallel_size"]  # a final argument of that name says the same
        facts["device_kind"] = device.kind
        prepared = bool(campaign.prepare.checkpoint or campaign.prepare.steps)
        facts["initial_weights"] = "checkpoint" if prepared else "random"
        try:
            return EffectiveConfig(
                arguments=answer["arguments"], env=self._env(recipe, campaign), facts=facts, versions=self._resolver.versions
            )
        except ValueError as error:
            raise Refused(f"a final value has no plain form: {' '.join(str(error).split())[:200]}") from None

    def _env(self, recipe: Recipe, campaign: Campaign) -> dict[str, str]:
        cluster = campaign.launcher.cluster
        own = {"OMP_NUM_THREADS": str(cluster.device.threads)}
        if cluster.device.kind == "cuda":
            own["CUDA_DEVICE_MAX_CONNECTIONS"] = "1"
        return {**own, **cluster.env, **recipe.env}

    def command(self, recipe: Recipe, campaign: Campaign, *, kind: str, profile_steps: int, inputs: dict[str, Any]) -> JobSpec:
        """Return what to run for one launch; see ports.Stack."""
        cluster, work = campaign.launcher.cluster, campaign.workload
        job = {
            "stack": self.name,
            "arguments": recipe.arguments,
            "world_size": work.gpus,
            "warmup_steps": min(work.warmup_steps, int(inputs["steps"]) - 1),
            "profile_steps": profile_steps,
            "device": cluster.device.data(),
            **{k: v for k, v in inputs.items() if k != "component"},
        }
        module = "train_mcore"
        if kind == "check" and inputs["component"]:
            component, argument, old, new = inputs["component"]
            module = FAMILIES.get(component, "")
            if not module:
                raise UserError(f"component {component}: the mcore stack has no test for it; known: {', '.join(FAMILIES)}")
            job |= {"component": component, "argument": argument, "old": old, "new": new}
        return JobSpec(
            module=module,
            job=job,
            env=self._env(recipe, campaign),
            gpus=work.gpus,
            gpus_per_node=cluster.devices_per_node,
            resource=cluster.resource,
            time_limit_s=campaign.launch.max_s,
            hang_s=campaign.launch.hang_s,
        )

    def progress(self, files: RunFiles) -> int:
        """Return how many steps are written."""
        return runs.num_steps(files)

    def read(self, files: RunFiles) -> RunResult:
        """Return steps and outcome; see ports.Stack."""
        return runs.read_result(files)

    def in_fp32(self, recipe: Recipe) -> Recipe | None:
        """Return the same training in fp32; see ports.Stack. Dtypes that a recipe names fall back to fp32 with it."""
        arguments = recipe.arguments
        if not arguments.get("bf16") and arguments.get("params_dtype", "fp32") == "fp32":
            return None
        if arguments.get("optimizer_cpu_offload") and arguments.get("use_distributed_optimizer"):
            return None  # fails at run time in fp32 (docs/mcore.md); without either it would be another optimizer path
        low = [k for k, v in arguments.items() if v == "bf16" and k.endswith("dtype")]
        kept = {k: v for k, v in arguments.items() if k not in low and k != "bf16"}
        return Recipe(stack=recipe.stack, arguments=kept, env=recipe.env)

    def component(self, files: RunFiles) -> dict[str, Any]:
        """Return what a component test measured."""
        data = run_files.read_json(Path(files.folder) / run_files.COMPONENT)
        limits = {f"tolerance_{k}": data["tolerance"][k] for k in ("forward", "backward")}
        wanted = ("passed", "dtype", "why", "forward_error_old", "forward_error_new", "backward_error_old", "backward_error_new")
        return {**{k: data[k] for k in wanted}, **limits}

    def trace(self, files: RunFiles) -> list[RankStep]:
        """Return the breakdown of every rank's profiled steps."""
        return runs.rank_steps(files)

    def close(self) -> None:
        """End the resolver."""
        self._resolver.close()
