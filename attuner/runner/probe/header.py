"""What a fingerprint says of its run before any step: precision, layout, and what the run's own configuration declares of its
optimizer."""

from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state

from .measure import Rule
from .piece import unwrapped

FORMAT = 1


def header(chunks: list[Any], optimizer: Any, config: Any, declared: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a fingerprint that don't change.

    declared: overrides, by the names of the fingerprint's `declared`.
    """
    sharded = bool(chunks[0].ddp_config.use_distributed_optimizer)
    return {
        "format": FORMAT,
        "precision": _precision(config),
        "world_size": dist.get_world_size(),
        "layout": {
            "tp": parallel_state.get_tensor_model_parallel_world_size(),
            "pp": parallel_state.get_pipeline_model_parallel_world_size(),
            "vpp": len(chunks),
            "cp": parallel_state.get_context_parallel_world_size(),
            "ep": parallel_state.get_expert_model_parallel_world_size(),
            "etp": parallel_state.get_expert_tensor_parallel_world_size(),
            "dp": parallel_state.get_data_parallel_world_size(),
            "edp": parallel_state.get_expert_data_parallel_world_size(),
        },
        "vocab_size": int(getattr(unwrapped(chunks[0]), "vocab_size", 0)),
        "data_parallel_gradients": "sharded" if sharded else "replicated",
        "declared": {**_declared(optimizer), **declared},
    }


def rule_of(declared: dict[str, Any], optimizer: Any) -> Rule:
    """Return the optimizer whose direction explains the update, by what is declared."""
    decoupled = bool(getattr(optimizer.config, "decoupled_weight_decay", True))
    first, second = declared["betas"] or (0.0, 0.0)
    return Rule(declared["optimizer"], (first, second), declared["eps"] or 0.0, decoupled)


def _precision(config: Any) -> str:
    if getattr(config, "fp8", None) or getattr(config, "fp4", None):
        return "other"
    if config.bf16 or config.fp16:
        return "bf16" if config.bf16 else "fp16"
    return "fp32" if config.params_dtype == torch.float32 else "other"


def _declared(optimizer: Any) -> dict[str, Any]:
    config = optimizer.config
    adam = config.optimizer == "adam"
    return {
        "optimizer": config.optimizer,
        "lr": config.lr,
        "betas": [config.adam_beta1, config.adam_beta2] if adam else [],
        "eps": config.adam_eps if adam else None,
        "weight_decay": config.weight_decay,
        "clip_grad": config.clip_grad,
    }
