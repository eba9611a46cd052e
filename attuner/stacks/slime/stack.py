"""The stack `slime`: the training half of slime, on rollouts that were saved before. Recipes carry slime's and Megatron's own
arguments; they are resolved by the parsers of both checkouts. A launch runs slime's own train.py once on the cluster
(`runner/run_slime.py`); slime makes the Ray actors that hold the devices itself.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

from attuner import benchmarking, runs
from attuner.core.campaign import Campaign
from attuner.core.errors import UserError
from attuner.core.recipe import EffectiveConfig, Recipe
from attuner.ports import JobSpec, RunFiles
from attuner.stacks.slime import benchmark

STEP = r"\bstep \d+: \{.*train/"
"""slime's log line of a finished update. Source: slime/backends/megatron_utils/model.py:train."""


class Judge(Protocol):
    """What resolves arguments by the code of the checkouts: stack `megatron` with entry slime (stacks/composed.py)."""

    def resolve(self, recipe: Recipe, campaign: Campaign) -> EffectiveConfig:
        """Return the final values."""
        ...

    def known_arguments(self, campaign: Campaign) -> list[dict[str, Any]]:
        """Return every argument."""
        ...

    def resolve_job(self, recipes: list[Recipe], campaign: Campaign, *, source: str, slime_source: str = "") -> JobSpec:
        """Return the job that resolves in the image."""
        ...

    def resolved(self, files: RunFiles, campaign: Campaign) -> list[Any]:
        """Return what such a job left."""
        ...

    def close(self) -> None:
        """End what resolving started."""
        ...


class SlimeStack(runs.RunFolders):
    """Implements ports.Stack for slime."""

    name = "slime"
    wrapped = benchmark.WRAPPED

    def __init__(self, judge: Judge) -> None:
        self._judge = judge

    def resolve(self, recipe: Recipe, campaign: Campaign) -> EffectiveConfig:
        """Return final values; see ports.Stack.

        Raises:
            Refused: slime or Megatron would refuse the recipe, with the formula.
            UserError: a checkout is missing, or not of the commit that the campaign states.
        """
        return self._judge.resolve(recipe, as_slime(campaign))

    def known_arguments(self, campaign: Campaign) -> list[dict[str, Any]]:
        """Return every argument of both checkouts."""
        return self._judge.known_arguments(as_slime(campaign))

    def resolve_job(self, recipes: list[Recipe], campaign: Campaign, *, source: str, slime_source: str = "") -> JobSpec:
        """Return the job that resolves recipes inside the training image; folders are the image's."""
        return self._judge.resolve_job(recipes, as_slime(campaign), source=source, slime_source=slime_source)

    def resolved(self, files: RunFiles, campaign: Campaign) -> list[Any]:
        """Return what such a job left, one entry a recipe."""
        return self._judge.resolved(files, as_slime(campaign))

    def freeze(self, campaign: Campaign, folder: Path) -> str:
        """Return the saved rollouts with their digest; see ports.Stack."""
        if campaign.prepare.steps and not campaign.prepare.checkpoint:
            raise UserError(
                f"{campaign.source_file}: prepare.steps: slime's launches start from a checkpoint of yours; name it in "
                "prepare.checkpoint"
            )
        pattern = rollouts_of(campaign).replace("{rollout_id}", "*")
        return benchmarking.freeze(campaign, [pattern], {}, made=False)

    def command(self, recipe: Recipe, campaign: Campaign, *, kind: str, profile_steps: int, inputs: dict[str, Any]) -> JobSpec:
        """Return what to run for one launch; see ports.Stack.

        Raises:
            UserError: a component test is asked for, or the recipe can't be run as a benchmark; with the reason.
        """
        if inputs.get("component"):
            raise UserError(f"component {inputs['component'][0]}: stack slime has no component tests")
        cluster, work, stack = campaign.launcher.cluster, campaign.workload, campaign.stack
        judged, steps = self.resolve(recipe, campaign), int(inputs["steps"])
        wrapping = benchmark.wrapping(judged, inputs, rollouts=rollouts_of(campaign), profile_steps=profile_steps)
        job = {
            "stack": self.name,
            "source": stack.job_source or stack.source,
            "slime_source": stack.slime_source,
            "script": stack.script or "train.py",
            "arguments": recipe.data()["arguments"],
            "drop": list(benchmark.DROPPED),
            "set": wrapping,
            "judged": judged.data()["arguments"],
            "world_size": work.gpus,
            "steps": steps,
            "warmup_steps": min(work.warmup_steps, steps - 1),
            "profile_steps": profile_steps,
            "tokens_per_update": work.tokens_per_step(),
            "device": cluster.device.data(),
            **({"placement_offset": inputs["placement_offset"]} if inputs.get("placement_offset") is not None else {}),
        }
        return JobSpec(
            module="run_slime",
            job=job,
            env={**cluster.env, **recipe.env},
            gpus=work.gpus,
            gpus_per_node=cluster.devices_per_node,
            resource=cluster.resource,
            time_limit_s=campaign.launch.max_s,
            hang_s=campaign.launch.hang_s,
            torchrun=False,
            devices_by="job",
            step_pattern=STEP,
        )

    def in_fp32(self, recipe: Recipe) -> Recipe | None:
        """Return None: slime's own defaults set bf16, and its packed rows need Transformer Engine, which attends in 16 bits."""
        return None

    def close(self) -> None:
        """End the resolvers."""
        self._judge.close()


def as_slime(campaign: Campaign) -> Campaign:
    """Return the campaign with slime's command line as the entry."""
    return campaign.model_copy(update={"stack": campaign.stack.model_copy(update={"entry": "slime"})})


def rollouts_of(campaign: Campaign) -> str:
    """Return the path of the saved rollouts: the workload's dataset, without its digest."""
    return campaign.workload.dataset.partition("@")[0]
