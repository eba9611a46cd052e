"""The Megatron register covers every argument, and says the right thing of one change at a time, area by area.

The baseline is a GLM-4.5-like mixture of experts in bf16; each row changes one final value of it. A wrong admit is the worst
fault, a wrong refuse the second worst; both become a row here for ever. Sources are looked up in a checkout of Megatron-LM
when `ATTUNER_MEGATRON_SRC` names one.
"""

from __future__ import annotations

import collections
import os
import re
import time
from pathlib import Path
from typing import Any

import pytest
from lab import ROOT

from attuner.config import load_arguments, load_register
from attuner.core.judgement import Verdict
from attuner.core.recipe import EffectiveConfig
from attuner.policy.gate import config_look
from attuner.policy.register import Register, check_rule, uncovered

RULES = ROOT / "rules"
NUM_ARGUMENTS = 864
MOST_ARGUMENTS_PER_REASON = 20
SOURCE = re.compile(r"Megatron-LM (core_v0\.16\.1|d98e8a64) (megatron/\S+|\w+\.py\S*)$")
BASE: dict[str, Any] = {
    **{"num_layers": 92, "hidden_size": 5120, "num_experts": 160, "moe_router_topk": 8, "moe_router_score_function": "sigmoid"},
    **{"moe_router_load_balancing_type": "seq_aux_loss", "moe_aux_loss_coeff": 0.0, "moe_token_dispatcher_type": "alltoall"},
    **{"bf16": True, "fp16": False, "fp8": None, "fp4": None, "accumulate_allreduce_grads_in_fp32": True},
    **{"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1, "cuda_graph_impl": "none"},
    **{"dataloader_type": "single", "data_sharding": True, "hidden_dropout": 0.0, "attention_dropout": 0.0},
    **{"optimizer": "adam", "lr": 1e-06, "clip_grad": 1.0, "calculate_per_token_loss": False, "perform_rl_step": False},
    **{"global_batch_size": 1024, "seq_length": 8192, "attention_backend": "flash", "deterministic_mode": False},
    **{"fact:device_kind": "cuda", "fact:initial_weights": "checkpoint", "fact:rows_per_update": 1024, "fact:loss_masks": "even"},
}
REFUSED = {
    "a layer less": ({}, {"num_layers": 91}),
    "grouped-query attention dropped": ({"group_query_attention": True}, {"group_query_attention": False}),
    "the norm's epsilon": ({"layernorm_epsilon": 1e-05}, {"layernorm_epsilon": 1e-06}),
    "swiglu dropped": ({"swiglu": True}, {"swiglu": False}),
    "the rotary base": ({"rotary_base": 1000000}, {"rotary_base": 10000}),
    "positions of the framework's default": (
        {"position_embedding_type": "rope"},
        {"position_embedding_type": "learned_absolute"},
    ),
    "a window": ({"window_size": None}, {"window_size": [4096, 0]}),
    "dropout at the framework's default": ({}, {"hidden_dropout": 0.1}),
    "the softmax scale of the config object": ({"transformer.softmax_scale": None}, {"transformer.softmax_scale": 0.1}),
    "MTP's weight": ({"mtp_loss_scaling_factor": 0.1}, {"mtp_loss_scaling_factor": 0.3}),
    "other layer code": ({"spec": None}, {"spec": ["m", "f"]}),
    "top-k": ({}, {"moe_router_topk": 4}),
    "router precision": ({"moe_router_dtype": None}, {"moe_router_dtype": "fp32"}),
    "capacity": ({"moe_expert_capacity_factor": None}, {"moe_expert_capacity_factor": 1.25}),
    "the balancing loss's weight": ({}, {"moe_aux_loss_coeff": 0.001}),
    "the balancing loss's kind": ({}, {"moe_router_load_balancing_type": "global_aux_loss"}),
    "forced balance": ({"moe_router_force_load_balancing": False}, {"moe_router_force_load_balancing": True}),
    "the expert bias left to its default rate": ({"moe_router_bias_update_rate": 0.0}, {"moe_router_bias_update_rate": 0.001}),
    "chunks of the sequence before the router": ({"mlp_chunks_for_training": 1}, {"mlp_chunks_for_training": 4}),
    "the global batch": ({}, {"global_batch_size": 512}),
    "the ramp of the batch": ({"rampup_batch_size": [32, 32, 1000000]}, {"rampup_batch_size": None}),
    "per-token loss": ({}, {"calculate_per_token_loss": True}),
    "the row length": ({}, {"seq_length": 4096}),
    "the mix": ({"data_path": ["1", "/a", "1", "/b"]}, {"data_path": ["2", "/a", "1", "/b"]}),
    "the split": ({"split": "969, 30, 1"}, {"split": "100, 0, 0"}),
    "the loader": ({}, {"dataloader_type": "cyclic"}),
    "the mask at the end of documents": ({"eod_mask_loss": False}, {"eod_mask_loss": True}),
    "masks become uneven": ({}, {"fact:loss_masks": "uneven"}),
    "the tokenizer": ({"tokenizer_model": "/a"}, {"tokenizer_model": "/b"}),
    "skipped iterations": ({"iterations_to_skip": []}, {"iterations_to_skip": [7]}),
    "another optimizer": ({}, {"optimizer": "muon"}),
    "Adam's epsilon": ({"adam_eps": 1e-08}, {"adam_eps": 1e-05}),
    "clip off": ({}, {"clip_grad": 0.0}),
    "norms decayed": ({"apply_wd_to_qk_layernorm": False}, {"apply_wd_to_qk_layernorm": True}),
    "skipped updates": ({"optimizer.grad_norm_skip_threshold": 1e9}, {"optimizer.grad_norm_skip_threshold": 1.0}),
    "the learning rate": ({}, {"lr": 1e-05}),
    "the decay by samples": ({"lr_decay_samples": 1000}, {"lr_decay_samples": 100}),
    "the decay as derived": ({"fact:lr_decay_steps": 1000}, {"fact:lr_decay_steps": 50}),
    "fp16": ({}, {"bf16": False, "fp16": True}),
    "gradients reduced in bf16": ({"grad_reduce_in_bf16": False}, {"grad_reduce_in_bf16": True}),
    "gradients accumulated in bf16 in the end": ({"ddp.grad_reduce_in_fp32": True}, {"ddp.grad_reduce_in_fp32": False}),
    "moments in bf16": ({"exp_avg_dtype": "float32"}, {"exp_avg_dtype": "bfloat16"}),
    "fp8": ({}, {"fp8": "hybrid"}),
    "the scale of the loss under fp16": ({"bf16": False, "fp16": True, "loss_scale": None}, {"loss_scale": 1024}),
    "the seed": ({"seed": 1234}, {"seed": 1}),
    "another checkpoint": ({"load": "/a"}, {"load": "/b"}),
    "moments not loaded": ({"no_load_optim": None}, {"no_load_optim": True}),
    "arguments from the checkpoint": ({"use_checkpoint_args": False}, {"use_checkpoint_args": True}),
    "weaker loading": ({"dist_ckpt_strictness": "raise_all"}, {"dist_ckpt_strictness": "log_all"}),
    "random weights": ({}, {"fact:initial_weights": "random"}),
    "another validator": ({"fact:validator": "args"}, {"fact:validator": "yaml"}),
    "the divergence term of GRPO": ({"grpo_kl_beta": 0.001}, {"grpo_kl_beta": 0.0}),
    "fused residual of the inference engine": ({}, {"env:MEGATRON_USE_SGLANG_FUSED_RESIDUAL_RMS": "1"}),
    "scales of fp8 blocks": ({}, {"env:NVTE_FP8_BLOCK_SCALING_FP32_SCALES": "1"}),
    "buffers reused under virtual stages": (
        {"virtual_pipeline_model_parallel_size": 2},
        {"env:TORCH_NCCL_AVOID_RECORD_STREAMS": "1"},
    ),
}
ADMITTED = {
    "full recompute off": ({}, {"recompute_granularity": None, "recompute_method": None, "recompute_num_layers": None}),
    "other modules recomputed": (
        {"recompute_granularity": "selective", "recompute_method": None, "recompute_num_layers": None},
        {"recompute_modules": ["core_attn", "moe_act"]},
    ),
    "pipeline sends overlapped": (
        {"overlap_p2p_comm": False, "batch_p2p_comm": True},
        {"overlap_p2p_comm": True, "batch_p2p_comm": False},
    ),
    "the bucket size": ({"ddp_bucket_size": None}, {"ddp_bucket_size": 134217728}),
    "padded buckets": (
        {"ddp_pad_buckets_for_high_nccl_busbw": False, "ddp.pad_buckets_for_high_nccl_busbw": False},
        {"ddp_pad_buckets_for_high_nccl_busbw": True, "ddp.pad_buckets_for_high_nccl_busbw": True},
    ),
    "stages that gather by themselves": ({"align_param_gather": True}, {"align_param_gather": False}),
    "fewer multiprocessors for the dispatcher": ({"moe_deepep_num_sms": 20}, {"moe_deepep_num_sms": 32}),
    "copies of the host optimizer overlapped": (
        {"overlap_cpu_optimizer_d2h_h2d": False},
        {"overlap_cpu_optimizer_d2h_h2d": True},
    ),
    "garbage collected together": ({"manual_gc": False, "manual_gc_interval": 0}, {"manual_gc": True, "manual_gc_interval": 10}),
    "deterministic kernels": ({}, {"deterministic_mode": True, "env:NVTE_ALLOW_NONDETERMINISTIC_ALGO": "0"}),
    "reading ahead": ({"num_workers": 2}, {"num_workers": 8}),
    "the index cache": ({"data_cache_path": None}, {"data_cache_path": "/cache"}),
    "a shorter trial": ({"exit_interval": None}, {"exit_interval": 50}),
    "the printed interval": ({"log_interval": 1}, {"log_interval": 100}),
    "TensorBoard": ({"tensorboard_dir": None}, {"tensorboard_dir": "/tb"}),
    "a profile": ({"profile": False, "use_pytorch_profiler": False}, {"profile": True, "use_pytorch_profiler": True}),
    "finer timers": ({"timing_log_level": 0}, {"timing_log_level": 2}),
    "the re-run checks": ({"rerun_mode": "validate_results"}, {"rerun_mode": "disabled"}),
    "where checkpoints go": ({"save": None, "save_interval": None}, {"save": "/out", "save_interval": 500}),
    "checkpoints beside the step": ({"async_save": False}, {"async_save": True}),
    "evaluation": ({"eval_iters": 100, "eval_interval": 100}, {"eval_iters": 0, "eval_interval": 1000}),
    "time-outs": ({"distributed_timeout_minutes": 10}, {"distributed_timeout_minutes": 60}),
    "a generation server's port": ({"inference_coordinator_port": 1}, {"inference_coordinator_port": 2}),
    "the scale of the loss under bf16": ({"initial_loss_scale": 4294967296}, {"initial_loss_scale": 65536}),
    "sharding of a loader that does not shard": ({}, {"data_sharding": False}),
    "an argument said twice": ({"fact:duplicated_arguments": []}, {"fact:duplicated_arguments": ["--lr"]}),
    "connections of a device": ({"env:CUDA_DEVICE_MAX_CONNECTIONS": "1"}, {"env:CUDA_DEVICE_MAX_CONNECTIONS": "32"}),
    "threads of the host beside a GPU": ({"env:OMP_NUM_THREADS": "1"}, {"env:OMP_NUM_THREADS": "8"}),
}
REVIEWED = {
    "Megatron-FSDP": ({"use_megatron_fsdp": False}, {"use_megatron_fsdp": True}),
    "a transport few people use": (
        {"pipeline_model_parallel_comm_backend": None},
        {"pipeline_model_parallel_comm_backend": "ucc"},
    ),
    "batch-invariant kernels": ({"batch_invariant_mode": False}, {"batch_invariant_mode": True}),
    "one parameter for all experts": ({"moe_single_grouped_weight": False}, {"moe_single_grouped_weight": True}),
    "sums inside the switch": ({"nccl_ub": False}, {"nccl_ub": True}),
    "attention that reports its logits": ({"log_max_attention_logit": False}, {"log_max_attention_logit": True}),
    "leftovers that would be loaded": ({"non_persistent_ckpt_type": None}, {"non_persistent_ckpt_type": "global"}),
    "recompute under fp8": ({"fp8": "hybrid"}, {"recompute_granularity": None, "recompute_method": None}),
    "evaluation under fp8": ({"fp8": "hybrid", "eval_interval": 100}, {"eval_interval": 1000}),
    "chunks of a dense layer": ({"num_experts": None, "mlp_chunks_for_training": 1}, {"mlp_chunks_for_training": 4}),
    "workers of a stream": ({"dataloader_type": "external", "num_workers": 2}, {"num_workers": 8}),
    "rollouts written by another engine": ({"perform_rl_step": True, "flash_decode": False}, {"flash_decode": True}),
    "a mistyped flag": ({"fact:unparsed_arguments": []}, {"fact:unparsed_arguments": ["--overlap-grad-reduc"]}),
    "an attention kernel by the back door": ({"env:NVTE_FLASH_ATTN": "1"}, {"env:NVTE_FLASH_ATTN": "0"}),
    "an unknown variable": ({}, {"env:SOME_VARIABLE": "1"}),
    "an unknown argument": ({"brand_new_flag": False}, {"brand_new_flag": True}),
}
ROWS = [
    pytest.param(before, after, decision, id=f"{decision}: {name}")
    for decision, rows in (("refuse", REFUSED), ("admit", ADMITTED), ("review", REVIEWED))
    for name, (before, after) in rows.items()
]


@pytest.fixture(scope="module")
def register() -> Register:
    return load_register(RULES, "megatron")


@pytest.fixture(scope="module")
def arguments() -> list[str]:
    return list(load_arguments(RULES, "megatron"))


def look(register: Register, before: dict[str, Any], after: dict[str, Any]) -> Verdict:
    old, new = effective({**BASE, **before}), effective({**BASE, **before, **after})
    return config_look(register, old, new, subject="h01", recipe="r", tests=[], scope="s")


def effective(flat: dict[str, Any]) -> EffectiveConfig:
    env = {k.removeprefix("env:"): v for k, v in flat.items() if k.startswith("env:")}
    facts = {k.removeprefix("fact:"): v for k, v in flat.items() if k.startswith("fact:")}
    plain = {k: v for k, v in flat.items() if not k.startswith(("env:", "fact:"))}
    return EffectiveConfig(arguments=plain, env=env, facts=facts, versions={"megatron_core": "0.16.1"})


@pytest.mark.parametrize(("before", "after", "decision"), ROWS)
def test_one_change_is_judged_as_its_area_demands(
    register: Register, before: dict[str, Any], after: dict[str, Any], decision: str
) -> None:
    verdict = look(register, before, after)
    assert verdict.decision == decision, "\n".join(f.line() for f in verdict.findings)


def test_every_argument_is_covered(register: Register, arguments: list[str]) -> None:
    assert len(arguments) == NUM_ARGUMENTS
    assert uncovered(register, arguments) == []


def test_a_reason_speaks_of_few_arguments(register: Register, arguments: list[str]) -> None:
    told: dict[str, set[str]] = collections.defaultdict(set)
    for name in arguments:
        for rule in register.covering(name):
            told[rule.reason].add(name)
    assert {reason: len(names) for reason, names in told.items() if len(names) > MOST_ARGUMENTS_PER_REASON} == {}


def test_every_rule_has_a_source_and_examples_that_come_out_and_all_are_read_in_time(register: Register) -> None:
    start = time.process_time()
    again = load_register(RULES, "megatron")
    problems = [problem for rule in again.rules for problem in check_rule(rule)]
    spent = time.process_time() - start
    assert problems == []
    assert all(text.strip() for rule in register.rules for text in rule.source)
    assert spent < 3, f"reading and checking took {spent:.1f} s of CPU"


def test_no_argument_is_admitted_and_refused_at_once(register: Register, arguments: list[str]) -> None:
    plain = [rule for rule in register.rules if rule.when is None and not rule.scope and rule.kind != "defect"]
    said = {name: {rule.decision for rule in register.covering(name) if rule in plain} for name in arguments}
    assert {name: words for name, words in said.items() if len(words) > 1} == {}


def test_sources_stand_in_the_checkout(register: Register) -> None:
    if not (folder := os.environ.get("ATTUNER_MEGATRON_SRC")):
        pytest.skip("ATTUNER_MEGATRON_SRC names no checkout of Megatron-LM")
    checkout = Path(folder)
    minor = re.search(r"^MINOR = (\d+)", (checkout / "megatron/core/package_info.py").read_text(), re.M)
    label = "core_v0.16.1" if minor and minor[1] == "16" else "d98e8a64"
    sources = {s for rule in register.rules for s in rule.source if (found := SOURCE.match(s)) and found[1] == label}
    missing = [s for s in sorted(sources) if not stands(checkout, s.rpartition(" ")[2])]
    assert sources
    assert missing == []


def stands(checkout: Path, place: str) -> bool:
    """Tell whether `path` or `path:Symbol` is in a checkout."""
    path, _, symbol = place.partition(":")
    file = checkout / path
    return file.is_file() and (not symbol or bool(re.search(rf"\b(class|def) {re.escape(symbol)}\b", file.read_text())))
