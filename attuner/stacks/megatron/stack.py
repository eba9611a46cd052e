"""The stack `megatron`: Megatron-LM's own training loop, started by its pretrain_gpt.py or by slime. Recipes carry the
arguments of its parser. They are resolved by the code of a source checkout (`resolver.py`), or as a small CPU job inside the
training image where there is no checkout here. A launch runs the checkout's own script under `runner/train_megatron.py`.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from attuner import benchmarking, runs
from attuner.core.campaign import Campaign
from attuner.core.errors import Refused, UserError
from attuner.core.recipe import EffectiveConfig, Recipe
from attuner.ports import JobSpec, RunFiles
from attuner.runner import files as run_files
from attuner.stacks.megatron import benchmark, data
from attuner.stacks.megatron.arguments import ASSUMED, PRETRAIN, SLIME, capability, entry_of, final_config, question
from attuner.stacks.megatron.resolver import Resolver

RESOLVE_LIMIT_S = 600.0
log = logging.getLogger(__name__)


class MegatronStack(runs.RunFolders):
    """Implements ports.Stack for Megatron-LM."""

    name = "megatron"
    wrapped = benchmark.ALWAYS_TOLD

    def __init__(self) -> None:
        self._resolvers: dict[tuple[str, str], Resolver] = {}
        self._said: set[str] = set()

    def resolve(self, recipe: Recipe, campaign: Campaign) -> EffectiveConfig:
        """Return final values; see ports.Stack.

        Raises:
            Refused: Megatron would refuse the recipe, or its build would fail; with the formula.
            UserError: there is no checkout, or not of the commit that the campaign states.
        """
        self._say_assumed(campaign)
        resolver = self._resolver(recipe, campaign)
        answer = resolver.ask(question(recipe, campaign))
        return final_config(answer, campaign, resolver.versions)

    def known_arguments(self, campaign: Campaign) -> list[dict[str, Any]]:
        """Return every argument of the checkout: name, options, default, and whether it takes values."""
        resolver = self._resolver(campaign.baseline, campaign)
        resolver.start()
        return resolver.catalogue

    def _resolver(self, recipe: Recipe, campaign: Campaign) -> Resolver:
        stack, where = campaign.stack, campaign.source_file
        slime = stack.slime_source if entry_of(stack, recipe) == SLIME else ""
        if not stack.source:
            raise UserError(
                f"{where}: stack.source: names no Megatron-LM checkout of the job's commit; state it, or set ATTUNER_MEGATRON_SRC"
            )
        if entry_of(stack, recipe) == SLIME and not slime:
            raise UserError(f"{where}: stack.slime_source: names no slime checkout; state it, or set ATTUNER_SLIME_SRC")
        return self._resolvers.setdefault((stack.source, slime), Resolver(stack.source, slime))

    def _say_assumed(self, campaign: Campaign) -> None:
        """Say once what nobody states and is assumed."""
        stack, hardware = campaign.stack, campaign.workload.hardware
        if campaign.launcher.cluster.device.kind == "cpu":
            return  # neither is there, and nothing of them is used
        assumed = ".".join(map(str, ASSUMED))
        for missing, text in (
            (not stack.transformer_engine, "stack.transformer_engine is not stated: assumed to be new enough for the recipe"),
            (not stack.torch, "stack.torch is not stated: the resolver's own stands for it"),
            (
                capability(hardware) is None,
                f"hardware {hardware} is not known: capability {assumed} assumed",
            ),
        ):
            if missing and text not in self._said:
                self._said.add(text)
                log.warning("%s: %s", campaign.source_file, text)

    # ------------------------------------------------------------------ inside the training image

    def resolve_job(self, recipes: list[Recipe], campaign: Campaign, *, source: str, slime_source: str = "") -> JobSpec:
        """Return the job that resolves recipes where the framework is: one CPU of the cluster, no device.

        source, slime_source: folders inside the image.
        """
        return JobSpec(
            module="resolve_megatron",
            job={
                "source": source,
                "slime_source": slime_source,
                "requests": [{"id": i, **question(recipe, campaign)} for i, recipe in enumerate(recipes)],
            },
            env={},
            gpus=1,
            gpus_per_node=1,
            resource="CPU",
            time_limit_s=RESOLVE_LIMIT_S,
            hang_s=RESOLVE_LIMIT_S,
            torchrun=False,
        )

    def resolved(self, files: RunFiles, campaign: Campaign) -> list[EffectiveConfig | Refused]:
        """Return what such a job left, one entry a recipe: final values, or why Megatron refuses.

        Raises:
            UserError: the job failed; with its cause.
        """
        path = Path(files.folder) / run_files.RESOLVED
        if not path.exists():
            raise UserError(f"resolving in the image failed: {files.stamp.detail or 'the job left no word'}")
        document = run_files.read_json(path)
        found: list[EffectiveConfig | Refused] = []
        for answer in document["answers"]:
            try:
                found.append(final_config(answer, campaign, document["versions"]))
            except Refused as error:
                found.append(error)
        return found

    # ------------------------------------------------------------------ launching

    def freeze(self, campaign: Campaign, folder: Path) -> str:
        """Return the dataset with the digest of what the baseline reads; see ports.Stack."""
        baseline = self.resolve(campaign.baseline, campaign)
        benchmarking.check_weights(campaign, baseline.arguments, ("load", "pretrained_checkpoint"))
        return data.freeze(campaign, baseline)

    def command(self, recipe: Recipe, campaign: Campaign, *, kind: str, profile_steps: int, inputs: dict[str, Any]) -> JobSpec:
        """Return what to run for one launch; see ports.Stack. Raises UserError for a component test: there is none."""
        if inputs.get("component"):
            raise UserError(f"component {inputs['component'][0]}: stack megatron has no component tests")
        if entry_of(campaign.stack, recipe) == SLIME:
            raise UserError(f"{campaign.source_file}: stack.entry: slime: its runs are launched by stack slime")
        cluster, work, stack = campaign.launcher.cluster, campaign.workload, campaign.stack
        steps = int(inputs["steps"])
        job = {
            "stack": self.name,
            "source": stack.job_source or stack.source,
            "script": stack.script or PRETRAIN,
            "script_arguments": stack.script_arguments,
            "arguments": recipe.data()["arguments"],
            "drop": list(benchmark.DROPPED),
            "set": benchmark.wrapping(inputs, profile_steps=profile_steps),
            "judged": self.resolve(recipe, campaign).data()["arguments"],
            "world_size": work.gpus,
            "steps": steps,
            "warmup_steps": min(work.warmup_steps, steps - 1),
            "profile_steps": profile_steps,
            "device": cluster.device.data(),
            **{k: inputs[k] for k in ("save", "placement_offset") if inputs.get(k) is not None},
        }
        threads = {"OMP_NUM_THREADS": str(cluster.device.threads)} if cluster.device.kind == "cpu" else {}
        return JobSpec(
            module="train_megatron",
            job=job,
            env={**threads, **cluster.env, **recipe.env},
            gpus=work.gpus,
            gpus_per_node=cluster.devices_per_node,
            resource=cluster.resource,
            time_limit_s=campaign.launch.max_s,
            hang_s=campaign.launch.hang_s,
        )

    def in_fp32(self, recipe: Recipe) -> Recipe | None:
        """Return the same training in fp32; see ports.Stack.

        None where the recipe is in fp32 already, or where Transformer Engine attends: its kernels have no fp32.
        """
        arguments = recipe.arguments
        low = [name for name in ("bf16", "fp16") if arguments.get(name)]
        if not low or arguments.get("transformer_impl") != "local":
            return None
        kept = {k: v for k, v in arguments.items() if k not in low}
        return Recipe(stack=recipe.stack, arguments=kept, env=recipe.env)

    def close(self) -> None:
        """End the resolvers."""
        while self._resolvers:
            _, resolver = self._resolvers.popitem()
            resolver.close()
