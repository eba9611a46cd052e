"""What makes a benchmark of a Megatron-LM training run: so many steps and out, every step logged, the common checkpoint loaded,
nothing saved or evaluated. The learning-rate schedule, the data and their order stay the recipe's own: the run leaves by
exit_interval, train_iters is left alone. The same for every launch of a campaign, so none of it is judged or shipped."""

from __future__ import annotations

from typing import Any

from attuner.core.base import Value

DROPPED = (
    *("save", "load", "pretrained_checkpoint", "ckpt_step", "auto_detect_ckpt_format", "exit_duration_in_mins"),
    *("tensorboard_dir", "wandb_project", "wandb_exp_name", "wandb_save_dir", "wandb_entity"),
    *("async_save", "non_persistent_save_interval", "non_persistent_global_ckpt_dir", "non_persistent_local_ckpt_dir"),
    *("profile", "use_pytorch_profiler", "record_memory_history", "phase_transition_iterations"),
)
"""Arguments that are taken out of the recipe for a launch."""
LOGGED: dict[str, Value] = {"log_interval": 1, "eval_iters": 0}
LOADED: dict[str, Value] = {
    **{"finetune": True, "no_load_optim": True, "no_load_rng": True, "exit_on_missing_checkpoint": True},
    **{"ckpt_format": "torch_dist"},
}
SAVED: dict[str, Value] = {"no_save_optim": True, "no_save_rng": True, "ckpt_format": "torch_dist"}
ALWAYS_TOLD = ("exit_interval", *LOGGED, *LOADED, *SAVED, *DROPPED)
"""Arguments whose final value a launch can't tell of its recipe."""


def wrapping(inputs: dict[str, Any], *, profile_steps: int) -> dict[str, Value]:
    """Return the arguments that stand in place of the recipe's own; destinations of Megatron's namespace.

    inputs: of one launch: steps, load, save (steps/launch.py).
    """
    total = int(inputs["steps"]) + profile_steps
    found: dict[str, Value] = {"exit_interval": total, **LOGGED}
    if inputs.get("load"):
        found |= {"load": str(inputs["load"]), **LOADED}
    if inputs.get("save"):
        found |= {"save": str(inputs["save"]), **SAVED, "save_interval": total}
    return found
