"""What makes a benchmark of slime's training alone: saved rollouts are replayed (--debug-train-only), so many of them and out,
nothing saved, evaluated or reported. slime has no exit interval: num_rollout is cut, and the lengths that it would have given to
the schedules are written out."""

from __future__ import annotations

import math
from typing import Any

from attuner.core.base import Value
from attuner.core.errors import UserError
from attuner.core.recipe import EffectiveConfig

HOOK = "attuner_runner.slime_actor.attach"
"""Called by slime at the end of Megatron's initialization, in every training process (--custom-megatron-init-path)."""
DROPPED = (
    *("save", "save_interval", "save_hf", "async_save", "eval_interval", "eval_config", "eval_prompt_data", "num_epoch"),
    *("use_wandb", "use_tensorboard", "tensorboard_dir", "dump_details", "save_debug_rollout_data", "save_debug_train_data"),
    *("load_debug_rollout_data_subsample", "load_forge_rollout_data", "start_rollout_id", "release_train"),
    *("use_pytorch_profiler", "profile_step_start", "profile_step_end", "record_memory_history", "ci_test", "ci_load_grad_norm"),
    *("ci_save_grad_norm", "check_weight_update_equal", "rampup_batch_size"),
)
LOADED: dict[str, Value] = {"finetune": True, "no_load_optim": True, "no_load_rng": True}
WRAPPED = (
    *DROPPED,
    *LOADED,
    *("debug_train_only", "load_debug_rollout_data", "num_rollout", "lr_decay_iters", "train_iters", "load", "ref_load"),
    *("custom_megatron_init_path", "no_save_optim", "no_save_rng", "ckpt_step", "lr_wsd_decay_iters"),
)
"""Arguments whose final value a launch can't tell of its recipe."""


def steps_per_rollout(arguments: dict[str, Value]) -> int:
    """Return updates per rollout. Source: slime/utils/arguments.py:slime_validate_args."""
    given = _number(arguments, "num_steps_per_rollout")
    if given:
        return given
    rows, batch = _number(arguments, "global_batch_size"), _number(arguments, "rollout_batch_size")
    per_prompt = _number(arguments, "n_samples_per_prompt") or 1
    return max(1, batch * per_prompt // rows) if rows and batch else 1


def wrapping(judged: EffectiveConfig, inputs: dict[str, Any], *, rollouts: str, profile_steps: int) -> dict[str, Value]:
    """Return the arguments that stand in place of the recipe's own.

    rollouts: path of the saved rollouts, `{rollout_id}` in it where there is a file for each.

    Raises:
        UserError: a schedule can't be kept in a shortened run, or the recipe has the hook that attuner needs.
    """
    arguments = judged.arguments
    if arguments.get("custom_megatron_init_path"):
        raise UserError("recipe: custom_megatron_init_path: attuner's probe is attached there; move what it does elsewhere")
    start, end = (arguments.get(f"{x}_weight_decay") for x in ("start", "end"))
    if start != end:
        raise UserError(f"recipe: weight decay grows from {start} to {end} over num_rollout, which a benchmark cuts short")
    if arguments.get("num_rollout") is None:
        raise UserError("recipe: num_rollout: is missing; state it, so that the schedule's length is known")
    total = int(inputs["steps"]) + profile_steps
    found: dict[str, Value] = {
        "debug_train_only": True,
        "load_debug_rollout_data": rollouts,
        "num_rollout": math.ceil(total / steps_per_rollout(arguments)),
        "lr_decay_iters": arguments.get("lr_decay_iters") or judged.facts.get("train_steps"),
        "custom_megatron_init_path": HOOK,
    }
    if inputs.get("load"):
        found |= {"load": str(inputs["load"]), **LOADED}
    return found


def _number(arguments: dict[str, Value], name: str) -> int:
    value = arguments.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) else 0
