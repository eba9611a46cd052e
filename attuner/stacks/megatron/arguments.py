"""What the resolver is asked about a recipe of this stack, and what its answer means: pure, from records to records."""

from __future__ import annotations

import re
from typing import Any

from attuner.core.campaign import Campaign, StackSpec
from attuner.core.errors import Refused, UserError
from attuner.core.recipe import EffectiveConfig, Recipe

PRETRAIN, SLIME = "pretrain_gpt.py", "slime"
CAPABILITIES = {
    **dict.fromkeys(("GB300", "B300"), (10, 3)),
    **dict.fromkeys(("GB200", "B200"), (10, 0)),
    **dict.fromkeys(("GH200", "H200", "H100", "H800", "H20"), (9, 0)),
    **dict.fromkeys(("L40S", "L40", "L4", "RTX4090"), (8, 9)),
    **dict.fromkeys(("A100", "A800", "A30"), (8, 0)),
    **dict.fromkeys(("A10", "A40"), (8, 6)),
}
"""CUDA compute capability by product. Source: developer.nvidia.com/cuda-gpus."""
ASSUMED = (9, 0)


def capability(hardware: str) -> tuple[int, int] | None:
    """Return the compute capability of the first product in a description of the hardware (`8xH100`), None if there is none."""
    words = re.split(r"[^A-Z0-9]+", re.sub(r"([0-9])X", r"\1 ", hardware.upper()))
    return next((CAPABILITIES[word] for word in words if word in CAPABILITIES), None)


def question(recipe: Recipe, campaign: Campaign) -> dict[str, Any]:
    """Return what the resolver is asked: the job as the launcher would start it, on the cluster's devices and versions."""
    stack, cluster = campaign.stack, campaign.launcher.cluster
    return {
        "arguments": recipe.data()["arguments"],
        "env": {**cluster.env, **recipe.env},
        "world_size": campaign.workload.gpus,
        "entry": entry_of(stack, recipe),
        "capability": list(capability(campaign.workload.hardware) or ASSUMED),
        "torch": stack.torch,
        "transformer_engine": stack.transformer_engine,
    }


def entry_of(stack: StackSpec, recipe: Recipe) -> str:
    """Return whose command line a recipe is: what the stack states, else slime's where it counts the nodes of an actor."""
    words = {str(word) for word in _list(recipe.arguments.get("argv"))}
    named = {name.lstrip("-").replace("-", "_") for name in [*recipe.arguments, *(word.partition("=")[0] for word in words)]}
    return stack.entry or (SLIME if "actor_num_nodes" in named else PRETRAIN)


def _list(value: object) -> list[object]:
    return list(value) if isinstance(value, list) else []


def final_config(answer: dict[str, Any], campaign: Campaign, versions: dict[str, str]) -> EffectiveConfig:
    """Return an answer as final values.

    versions: of the resolver: megatron_core, python, commit ('' if unknown), transformer_engine where it is installed.
    Raises: Refused with what Megatron would refuse.
    """
    if not answer["ok"]:
        raise Refused(str(answer["error"]))
    facts = dict(answer["facts"])
    prepared = bool(campaign.prepare.checkpoint or campaign.prepare.steps)
    facts["initial_weights"] = "checkpoint" if prepared else facts["initial_weights"]
    facts["device_kind"] = campaign.launcher.cluster.device.kind
    try:
        return EffectiveConfig(
            arguments=answer["arguments"], env=answer["env"], facts=facts, versions=versions_of(campaign, versions)
        )
    except ValueError as error:
        raise Refused(f"a final value has no plain form: {' '.join(str(error).split())[:200]}") from None


def versions_of(campaign: Campaign, found: dict[str, str]) -> dict[str, str]:
    """Return the versions that rules may speak of; one that nobody knows is left out, which leaves every rule in force.

    Raises: UserError when the checkout isn't at the commit that the campaign states.
    """
    stack, work, at = campaign.stack, campaign.workload, found.get("commit", "")
    if stack.commit and at and not at.startswith(stack.commit):
        raise UserError(
            f"{campaign.source_file}: stack.commit: {stack.commit}, but {stack.source} is at {at[:12]}; make the two agree"
        )
    commit = at or stack.commit
    if commit and stack.patches:
        commit = f"{commit.partition('+')[0]}+{'+'.join(stack.patches)}"
    known = {
        "megatron_core": found.get("megatron_core", ""),
        "megatron_lm_commit": commit,
        "torch": stack.torch,
        "transformer_engine": stack.transformer_engine or found.get("transformer_engine", ""),
        "python": found.get("python", ""),
        "model": work.model,
        "hardware": work.hardware,
        "capability": ".".join(map(str, capability(work.hardware) or ASSUMED)),
    }
    return {name: value for name, value in known.items() if value not in ("", "?")}
