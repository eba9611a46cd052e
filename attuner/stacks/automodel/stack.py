"""The stack `automodel`: NeMo AutoModel's own recipes (PyTorch FSDP2 and tensor plans on Hugging Face models). Recipes carry the
dotted names of its YAML tree. It isn't Megatron: the probe can't see its gradients, so the third look is `not available
(automodel)`, and what beats the baseline waits for a person.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from attuner import benchmarking, runs
from attuner.core.base import Value
from attuner.core.campaign import Campaign
from attuner.core.errors import UserError
from attuner.core.recipe import EffectiveConfig, Recipe
from attuner.ports import JobSpec, RunFiles, RunResult
from attuner.stacks.automodel.defaults import COMMIT, fields_of
from attuner.stacks.automodel.final import facts_of, final_arguments

TRAINING = "TrainFinetuneRecipeForNextTokenPrediction"
UNSEEN = "not available (automodel): the probe reads megatron-core's optimizer and gradient buffers, and AutoModel has neither"
DROPPED = (
    *("validation_dataset*", "validation_dataloader*", "wandb*", "mlflow*", "comet*", "tool_call_eval*", "moe_metrics*", "ci.*"),
    *("slurm*", "skypilot*", "nemo_run*", "benchmark.*", "step_scheduler.val_every_steps"),
)
"""Names that are taken out of the tree for a launch."""
WRAPPED = (
    *DROPPED,
    *("checkpoint.enabled", "checkpoint.checkpoint_dir", "checkpoint.restore_from", "checkpoint.is_async"),
    *("step_scheduler.ckpt_every_steps", "step_scheduler.save_checkpoint_every_epoch", "step_scheduler.log_remote_every_steps"),
)
"""Names whose final value a launch can't tell of its recipe."""
NEVER = 2**31 - 1
log = logging.getLogger(__name__)


class AutomodelStack(runs.RunFolders):
    """Implements ports.Stack for NeMo AutoModel."""

    name = "automodel"
    wrapped = WRAPPED

    def __init__(self) -> None:
        self._fields: dict[str, dict[str, dict[str, Value]]] = {}

    def resolve(self, recipe: Recipe, campaign: Campaign) -> EffectiveConfig:
        """Return final values; see ports.Stack.

        Raises:
            Refused: AutoModel would refuse the recipe; with the formula.
            UserError: the checkout that the campaign names isn't one.
        """
        stack, cluster = campaign.stack, campaign.launcher.cluster
        arguments = final_arguments(dict(recipe.arguments), self._declared(stack.source, campaign.source_file))
        facts = facts_of(arguments, campaign.workload.gpus)
        facts["declared_defaults"] = "checkout" if stack.source else COMMIT
        facts["device_kind"] = cluster.device.kind
        if campaign.prepare.checkpoint or campaign.prepare.steps:
            facts["initial_weights"] = "checkpoint"
        known = {"automodel_commit": stack.commit or ("" if stack.source else COMMIT), "torch": stack.torch}
        known |= {"model": campaign.workload.model, "hardware": campaign.workload.hardware}
        return EffectiveConfig(
            arguments=arguments,
            env={**cluster.env, **recipe.env},
            facts=facts,
            versions={name: value for name, value in known.items() if value not in ("", "?")},
        )

    def _declared(self, source: str, where: str) -> dict[str, dict[str, Value]]:
        if source not in self._fields:
            if not source:
                log.warning("%s: stack.source: names no AutoModel checkout: the defaults of commit %s stand", where, COMMIT)
            self._fields[source] = fields_of(source)
        return self._fields[source]

    def freeze(self, campaign: Campaign, folder: Path) -> str:
        """Return the dataset with its digest; see ports.Stack."""
        if campaign.prepare.steps and not campaign.prepare.checkpoint:
            raise UserError(
                f"{campaign.source_file}: prepare.steps: AutoModel's launches start from a checkpoint of yours or from "
                "from_pretrained weights; name it in prepare.checkpoint"
            )
        benchmarking.check_weights(campaign, campaign.baseline.arguments, ("checkpoint.restore_from",))
        data = {k: v for k, v in campaign.baseline.arguments.items() if k.startswith(("dataset.", "packed_sequence."))}
        paths = [v for k, v in data.items() if k in ("dataset.paths", "dataset.file_pattern", "dataset.path_or_dataset_id")]
        patterns = [str(p) for value in paths for p in (value if isinstance(value, list) else [value])]
        made = "mock" in str(data.get("dataset._target_", "")).lower()
        return benchmarking.freeze(campaign, patterns, data, made=made)

    def command(self, recipe: Recipe, campaign: Campaign, *, kind: str, profile_steps: int, inputs: dict[str, Any]) -> JobSpec:
        """Return what to run for one launch; see ports.Stack.

        Raises:
            UserError: a component test is asked for, or the recipe's loop isn't the training loop.
        """
        if inputs.get("component"):
            raise UserError(f"component {inputs['component'][0]}: stack automodel has no component tests")
        loop = str(recipe.arguments.get("recipe") or recipe.arguments.get("recipe._target_") or TRAINING)
        if loop.rpartition(".")[2] != TRAINING:
            raise UserError(f"{campaign.source_file}: recipe: {loop}: only {TRAINING} trains as a run does; write that")
        cluster, work, steps = campaign.launcher.cluster, campaign.workload, int(inputs["steps"])
        job = {
            "stack": self.name,
            "source": campaign.stack.job_source or campaign.stack.source,
            "recipe": loop,
            "tree": benchmarking.nested(wrapped(dict(recipe.arguments), load=inputs.get("load"))),
            "judged": self.resolve(recipe, campaign).data()["arguments"],
            "world_size": work.gpus,
            "steps": steps,
            "warmup_steps": min(work.warmup_steps, steps - 1),
            "profile_steps": profile_steps,
            "tokens_per_update": work.tokens_per_step(),
            "device": cluster.device.data(),
            **({"placement_offset": inputs["placement_offset"]} if inputs.get("placement_offset") is not None else {}),
        }
        threads = {"OMP_NUM_THREADS": str(cluster.device.threads)} if cluster.device.kind == "cpu" else {}
        return JobSpec(
            module="run_automodel",
            job=job,
            env={**threads, **cluster.env, **recipe.env},
            gpus=work.gpus,
            gpus_per_node=cluster.devices_per_node,
            resource=cluster.resource,
            time_limit_s=campaign.launch.max_s,
            hang_s=campaign.launch.hang_s,
        )

    def read(self, files: RunFiles) -> RunResult:
        """Return steps and outcome; see ports.Stack. There is never a fingerprint, and the reason says so."""
        return super().read(files).model_copy(update={"fingerprint": None, "unseen": UNSEEN})

    def in_fp32(self, recipe: Recipe) -> Recipe | None:
        """Return None: which of a recipe's dtypes a model's own code follows can't be told from its tree."""
        return None

    def close(self) -> None:
        """Do nothing: nothing was started."""


def wrapped(arguments: dict[str, Value], *, load: Any) -> dict[str, Value]:
    """Return a recipe's names as a launch runs them: nothing saved, evaluated or reported, the common checkpoint loaded.

    max_steps stays: AutoModel takes the length of its schedules from it, so the runner ends the loop itself.
    """
    ends = tuple(name.removesuffix("*") for name in DROPPED)
    kept = {name: value for name, value in arguments.items() if not name.startswith(ends) and name != "recipe"}
    return {
        **{name: value for name, value in kept.items() if not name.startswith("recipe.")},
        "checkpoint.enabled": bool(load),
        "checkpoint.restore_from": str(load) if load else None,
        "checkpoint.is_async": False,
        "step_scheduler.ckpt_every_steps": NEVER,
        "step_scheduler.save_checkpoint_every_epoch": False,
        "step_scheduler.log_remote_every_steps": NEVER,
    }
