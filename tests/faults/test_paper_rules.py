"""The paper's faults that are configurations, at its own sizes: they can't be run here, so the register must know them."""

from __future__ import annotations

from typing import Any

import pytest

from attuner.config import load_register
from attuner.core.recipe import EffectiveConfig
from attuner.policy.gate import config_look

from .farm import ROOT

COMMON: dict[str, Any] = {
    "global_batch_size": 1024,
    "lr": 1e-5,
    "accumulate_allreduce_grads_in_fp32": True,
    "grad_reduce_in_bf16": False,
    "calculate_per_token_loss": True,
    "moe_aux_loss_coeff": 0.001,
    "moe_router_load_balancing_type": "aux_loss",
    "moe_expert_capacity_factor": None,
    "num_experts": 128,
    "tensor_model_parallel_size": 8,
    "pipeline_model_parallel_size": 8,
    "expert_model_parallel_size": 8,
    "expert_tensor_parallel_size": 1,
    "decoder_first_pipeline_num_layers": None,
    "decoder_last_pipeline_num_layers": None,
}
HYBRID = {"is_hybrid_model": True, "hybrid_override_pattern": "MEMEM*E", "pipeline_model_parallel_size": 2}
CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "capacity factor 1": ("Qwen3.5-122B-A10B", {}, {"moe_expert_capacity_factor": 1.0}),
    "learning rate × 10": ("Qwen3.5-122B-A10B", {}, {"lr": 1e-4}),
    "global batch changed": ("Qwen3.5-122B-A10B", {}, {"global_batch_size": 512}),
    "BF16 gradient reduction": (
        "Qwen3.5-122B-A10B",
        {},
        {"accumulate_allreduce_grads_in_fp32": False, "grad_reduce_in_bf16": True},
    ),
    "per-token loss off": ("Qwen3.5-122B-A10B", {}, {"calculate_per_token_loss": False}),
    "auxiliary-loss coefficient": ("Qwen3.5-122B-A10B", {}, {"moe_aux_loss_coeff": 0.01}),
    "EP 1, ETP 4, GLM-4.5": ("GLM-4.5", {}, {"expert_model_parallel_size": 1, "expert_tensor_parallel_size": 4}),
    "EP 1, ETP 8, Mixtral-8x22B": ("Mixtral-8x22B", {}, {"expert_model_parallel_size": 1, "expert_tensor_parallel_size": 8}),
    "EP 1, ETP 8, MiniMax-M2": ("MiniMax-M2", {}, {"expert_model_parallel_size": 1, "expert_tensor_parallel_size": 8}),
    "PP 32, GLM-4.5": ("GLM-4.5", {}, {"pipeline_model_parallel_size": 32}),
    "uneven split, Nemotron-3-Nano": ("Nemotron-3-Nano-30B-A3B", HYBRID, {"decoder_first_pipeline_num_layers": 20}),
}


@pytest.mark.parametrize("name", CASES)
def test_the_papers_configuration_is_refused_before_launch(name: str) -> None:
    model, base, change = CASES[name]
    versions = {"model": model, "hardware": "B200", "megatron_core": "0.16.0rc0", "megatron_lm_commit": "1dcf0da"}
    before = EffectiveConfig(arguments={**COMMON, **base}, env={}, facts={}, versions=versions)
    after = EffectiveConfig(arguments={**COMMON, **base, **change}, env={}, facts={}, versions=versions)
    register = load_register(ROOT / "rules", "megatron")
    verdict = config_look(register, before, after, subject=name, recipe="", tests=[], scope="")
    assert verdict.decision == "refuse"
    assert all(finding.source for finding in verdict.refusals())
