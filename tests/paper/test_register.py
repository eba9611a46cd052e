"""The register on real final values: what megatron-core resolves for baseline and candidate, and what the gate says.

A gate fault becomes a row here for ever. One resolver process serves the whole session.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from lab import ROOT, campaign, workload

from attuner.config import load_levers, load_register
from attuner.core.campaign import Campaign
from attuner.core.errors import Refused
from attuner.core.judgement import ComponentTest, Verdict
from attuner.core.recipe import Recipe
from attuner.policy.conditions import holds
from attuner.policy.gate import config_look
from attuner.stacks.mcore.stack import McoreStack
from attuner.steps.common import scope_of

BASE: dict[str, Any] = {
    **{"num_layers": 4, "hidden_size": 192, "num_attention_heads": 4, "ffn_hidden_size": 384},
    **{"num_moe_experts": 8, "moe_router_topk": 2, "moe_ffn_hidden_size": 384, "moe_router_load_balancing_type": "none"},
    **{"normalization": "RMSNorm", "gated_linear_unit": True, "activation_func": "silu", "add_bias_linear": False},
    **{"hidden_dropout": 0, "attention_dropout": 0, "vocab_size": 256, "seq_length": 128},
    **{"global_batch_size": 8, "lr": 0.001, "weight_decay": 0.1, "adam_beta2": 0.95, "clip_grad": 1, "seed": 1234},
    **{"grad_reduce_in_fp32": True, "tensor_model_parallel_size": 2, "sequence_parallel": True, "micro_batch_size": 1},
    **{"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1},
    **{"optimizer_cpu_offload": True, "optimizer_offload_fraction": 1, "moe_token_dispatcher_type": "alltoall"},
    **{"attention_implementation": "local", "expert_tensor_parallel_size": 2},
}
TP1 = {"tensor_model_parallel_size": 1, "sequence_parallel": False, "expert_tensor_parallel_size": 1}
EP = {**TP1, "expert_model_parallel_size": 2}
PP2 = {**TP1, "pipeline_model_parallel_size": 2}
ETP2 = {"expert_tensor_parallel_size": 2}
AUX = {"moe_router_load_balancing_type": "aux_loss", "moe_aux_loss_coeff": 0.01}
LIST_AUX = {"moe_router_load_balancing_type": ["aux_loss"], "moe_aux_loss_coeff": [0.01]}
TWO_AUX = {"moe_router_load_balancing_type": ["aux_loss", "seq_aux_loss"], "moe_aux_loss_coeff": [0.01, 0.01]}
SINKHORN = {"moe_router_load_balancing_type": "sinkhorn", "moe_router_topk": 1}
ON_DEVICE = {"optimizer_cpu_offload": False, "optimizer_offload_fraction": 0}
PLAIN = {"recompute_granularity": None, "recompute_method": None, "recompute_num_layers": None}

Judge = Callable[..., Verdict]


@pytest.fixture(scope="module")
def stack() -> Iterator[McoreStack]:
    made = McoreStack()
    yield made
    made.close()


def frame(*, gpus: int = 2, kind: str = "cpu", prepared: bool = True) -> Campaign:
    cluster = {"name": "lab", "devices": gpus, "devices_per_node": gpus, "device": {"kind": kind}}
    work = workload(gpus=gpus, seq_len=128, seed=1234, hardware=kind).data()
    prepare = {"steps": 4 if prepared else 0}
    return campaign(workload=work, launcher={"name": "ray_jobs", "cluster": cluster}, prepare=prepare)


@pytest.fixture(scope="module")
def judge(stack: McoreStack) -> Judge:
    register = load_register(ROOT / "rules", "mcore")

    def look(
        base: dict[str, Any],
        change: dict[str, Any],
        *,
        env: dict[str, str] | None = None,
        base_env: dict[str, str] | None = None,
        tests: tuple[dict[str, Any], ...] = (),
        **more: Any,
    ) -> Verdict:
        made = frame(**more)
        baseline = Recipe(stack="mcore", arguments={**BASE, **base}, env=base_env or {})
        before, after = stack.resolve(baseline, made), stack.resolve(baseline.changed(change, env), made)
        scope = scope_of(before, made)
        figures = {k: 1e-6 for k, f in ComponentTest.model_fields.items() if f.annotation is float}
        said = {"passed": True, "dtype": "fp32", "why": "close", "launch_id": "l07", "scope": scope, **figures}
        known = [ComponentTest.model_validate({**said, **t}) for t in tests]
        return config_look(register, before, after, subject="h01", recipe="r", tests=known, scope=scope)

    return look


def say(verdict: Verdict) -> str:
    return "\n".join(f.line() for f in verdict.findings)


REFUSED = {
    "global batch ×2": ({}, {"global_batch_size": 16}),
    "global batch hidden behind the micro batch": ({}, {"global_batch_size": 16, "micro_batch_size": 2}),
    "learning rate ×10": ({}, {"lr": 0.01}),
    "learning rate schedule": ({}, {"lr_decay_style": "linear", "lr_decay_steps": 100}),
    "learning rate warm-up": ({}, {"lr_warmup_steps": 1}),
    "sequence length": ({}, {"seq_length": 64}),
    "sequence halved, batch doubled: the same tokens": ({}, {"seq_length": 64, "global_batch_size": 16}),
    "capacity factor": ({}, {"moe_expert_capacity_factor": 1.0}),
    "capacity factor lifted": ({"moe_expert_capacity_factor": 1.0}, {"moe_expert_capacity_factor": None}),
    "aux-loss coefficient": (AUX, {"moe_aux_loss_coeff": 0.001}),
    "aux loss off": (AUX, {"moe_router_load_balancing_type": "none"}),
    "z loss": ({}, {"moe_z_loss_coeff": 0.001}),
    "micro batch under aux loss": (AUX, {"micro_batch_size": 2}),
    "micro batch under aux loss in a list": (LIST_AUX, {"micro_batch_size": 2}),
    "micro batch under sinkhorn": (SINKHORN, {"micro_batch_size": 2}),
    "micro batch under a capacity factor": ({"moe_expert_capacity_factor": 1.0}, {"micro_batch_size": 2}),
    "bf16 gradient reduction": ({"bf16": True, **ON_DEVICE}, {"grad_reduce_in_fp32": False}),
    "bf16": ({}, {"bf16": True}),
    "bf16 weights alone": ({}, {"params_dtype": "bf16"}),
    "per-token loss": ({}, {"calculate_per_token_loss": True}),
    "clip off": ({}, {"clip_grad": 0}),
    "weight decay": ({}, {"weight_decay": 0}),
    "Adam's β2": ({}, {"adam_beta2": 0.999}),
    "Adam's ε": ({}, {"adam_eps": 1e-6}),
    "another optimizer": ({}, {"optimizer": "sgd"}),
    "top-k": ({}, {"moe_router_topk": 3}),
    "router precision": ({}, {"moe_router_dtype": "fp64"}),
    "RoPE base": ({}, {"rotary_base": 500000}),
    "dropout (where a device can)": ({}, {"hidden_dropout": 0.1}, {"kind": "cuda"}),
    "attention dropout (where a device can)": ({}, {"attention_dropout": 0.1}, {"kind": "cuda"}),
    "layout under dropout": ({"hidden_dropout": 0.1}, TP1, {"kind": "cuda"}),
    "seed": ({}, {"seed": 1}),
    "initial standard deviation": ({}, {"init_method_std": 0.01}),
    "fewer layers": ({}, {"num_layers": 2}),
    "fewer experts": ({}, {"num_moe_experts": 4}),
    "a dense layer": ({}, {"moe_layer_freq": [0, 1, 1, 1]}),
    "QK norm": ({}, {"qk_layernorm": True}),
    "softmax scale": ({}, {"softmax_scale": 0.1}),
    "padded vocabulary by tensor parallelism": (
        {"vocab_size": 255, **TP1},
        {"tensor_model_parallel_size": 2, "sequence_parallel": True},
    ),
    "padded vocabulary by its divisor": ({}, {"make_vocab_size_divisible_by": 129}),
    "window attention": ({}, {"window_size": [8, 0]}),
    "tied embeddings": ({}, {"untie_embeddings_and_output_weights": False}),
    "expert tensor parallel 4 without expert parallel": (
        {"tensor_model_parallel_size": 4, "expert_model_parallel_size": 4, "expert_tensor_parallel_size": 1},
        {"expert_model_parallel_size": 1, "expert_tensor_parallel_size": 4},
        {"gpus": 4},
    ),
    "per-token loss with an aux loss, tp moved": ({**AUX, "calculate_per_token_loss": True}, TP1),
    "grouped experts under clip, ep × tp": (
        {"moe_grouped_gemm": True, "bf16": True, **ON_DEVICE},
        {"expert_model_parallel_size": 2},
        {"gpus": 4, "kind": "cuda"},
    ),
    "a change of layout from random weights": ({}, TP1, {"prepared": False}),
    # megatron-core 0.16.1 transformer/moe/router.py decides among the tokens of one rank (sinkhorn, capacity: `num_tokens` is
    # what sequence parallelism left to it), or draws random numbers per rank
    "capacity factor, tp moved": ({"moe_expert_capacity_factor": 1.0}, TP1),
    "sinkhorn, tp moved": (SINKHORN, TP1),
    "router jitter, tp moved": ({"moe_input_jitter_eps": 0.01}, TP1),
    "router jitter, micro batch": ({"moe_input_jitter_eps": 0.01}, {"micro_batch_size": 2}),
    "forced balancing, tp moved": ({"moe_router_force_load_balancing": True}, TP1),
    "per-token loss with an aux loss in a list, tp moved": ({**LIST_AUX, "calculate_per_token_loss": True}, TP1),
    "per-token loss with two aux losses, tp moved": ({**TWO_AUX, "calculate_per_token_loss": True}, TP1),
    "micro batch under two aux losses": (TWO_AUX, {"micro_batch_size": 2}),
}
ADMITTED = {
    "capacity factor, tp moved": ({"moe_expert_capacity_factor": 1.0}, TP1, "placement.yaml:MCO-PLC-001 has no word on capacity"),
    "sinkhorn, tp moved": (SINKHORN, TP1, "placement.yaml:MCO-PLC-001 has no word on sinkhorn"),
    "router jitter, tp moved": ({"moe_input_jitter_eps": 0.01}, TP1, "objective.yaml:MCO-OBJ-021 knows dropout only"),
    "router jitter, micro batch": (
        {"moe_input_jitter_eps": 0.01},
        {"micro_batch_size": 2},
        "objective.yaml:MCO-OBJ-021 knows dropout only",
    ),
    "forced balancing, tp moved": (
        {"moe_router_force_load_balancing": True},
        TP1,
        "objective.yaml:MCO-OBJ-021 knows dropout only",
    ),
    "per-token loss with an aux loss in a list, tp moved": (
        {**LIST_AUX, "calculate_per_token_loss": True},
        TP1,
        "register.py:124: `ge` is false on a list of one, which `eq` takes as its element; MCO-DEF-004 stays silent",
    ),
    "per-token loss with two aux losses, tp moved": (
        {**TWO_AUX, "calculate_per_token_loss": True},
        TP1,
        "register.py:124: `ge` is false on a list; MCO-DEF-004 stays silent",
    ),
    "micro batch under two aux losses": (
        TWO_AUX,
        {"micro_batch_size": 2},
        "MCO-OBJ-019 compares the list with `eq: aux_loss`: only review",
    ),
}
ADMITTED = {
    "nothing": ({}, {}),
    "tp→ep": ({}, EP),
    "tp→dp": ({}, TP1),
    "tp→pp": ({}, PP2),
    "ep→dp": (EP, {"expert_model_parallel_size": 1}),
    "uneven stages": (PP2, {"num_layers_in_first_pipeline_stage": 1}),
    "virtual stages": (PP2, {"virtual_pipeline_model_parallel_size": 2}),
    # wrong on gloo until cpu_shim sent a copy (it was MCO-DEF-003)
    "virtual stages with overlap and deallocation": (
        PP2,
        {"virtual_pipeline_model_parallel_size": 2, "overlap_p2p_comm": True, "deallocate_pipeline_outputs": True},
    ),
    "micro batch without an aux loss": ({}, {"micro_batch_size": 4}),
    "micro batch with a coefficient of 0": ({**AUX, "moe_aux_loss_coeff": 0}, {"micro_batch_size": 4}),
    "micro batch under a per-sequence aux loss": (
        {**AUX, "moe_router_load_balancing_type": "seq_aux_loss"},
        {"micro_batch_size": 2},
    ),
    "tp→ep under an aux loss": (AUX, EP),
    "recompute full→none": ({}, PLAIN),
    "recompute full→selective": ({}, {**PLAIN, "recompute_granularity": "selective", "recompute_modules": ["core_attn", "moe"]}),
    "recompute uniform→block": ({}, {"recompute_method": "block", "recompute_num_layers": 2}),
    "distributed optimizer": ({**TP1, **ON_DEVICE}, {"use_distributed_optimizer": True}),
    "distributed optimizer, overlapped": (
        {**TP1, **ON_DEVICE},
        {"use_distributed_optimizer": True, "overlap_param_gather": True, "overlap_grad_reduce": True},
    ),
    "bucket size": (TP1, {"bucket_size": 100000}),
    "overlapped gradient reduction": (TP1, {"overlap_grad_reduce": True}),
    "offload off": ({}, ON_DEVICE),
    "log": ({}, {"log_num_zeros_in_grad": True}),
}
REVIEW = {
    "another attention kernel without its test": ({}, {"attention_implementation": "sdpa"}),
    "another dispatcher without its test": ({}, {"moe_token_dispatcher_type": "allgather"}),
    "micro batch under the global aux loss": (
        {**AUX, "moe_router_load_balancing_type": "global_aux_loss"},
        {"micro_batch_size": 2},
    ),
    "fused cross entropy": ({}, {"cross_entropy_loss_fusion": True}),
    "what no rule covers": ({}, {"deterministic_mode": True}),
    "the order of gradient division": (TP1, {"gradient_reduce_div_fusion": False}),
    "average in the collective": (TP1, {"average_in_collective": True}),
}


@pytest.mark.parametrize("row", REFUSED.values(), ids=REFUSED)
def test_what_trains_another_model_is_refused(judge: Judge, row: Any) -> None:
    base, change, more = (*row, {}) if len(row) == 2 else row
    verdict = judge(base, change, **more)
    assert verdict.decision == "refuse", say(verdict)


@pytest.mark.parametrize("row", ADMITTED.values(), ids=ADMITTED)
def test_what_trains_the_same_model_is_admitted(judge: Judge, row: Any) -> None:
    verdict = judge(*row)
    assert verdict.decision == "admit", say(verdict)


@pytest.mark.parametrize("row", REVIEW.values(), ids=REVIEW)
def test_what_cannot_be_decided_alone_is_review(judge: Judge, row: Any) -> None:
    verdict = judge(*row)
    assert verdict.decision == "review", say(verdict)


@pytest.mark.parametrize(
    "change", [{**EP, "expert_tensor_parallel_size": 1}, {**TP1, "expert_tensor_parallel_size": 1}], ids=["ep", "dp"]
)
def test_a_layout_that_moves_the_experts_tensor_parallelism_is_admitted(judge: Judge, change: dict[str, Any]) -> None:
    verdict = judge(ETP2, change)
    assert verdict.decision == "admit", say(verdict)


def test_same_math_with_its_passed_test_is_admitted_and_with_its_failed_one_refused(judge: Judge) -> None:
    swap = {"attention_implementation": "sdpa"}
    test = {"component": "attention", "argument": "attention_implementation", "old": "local", "new": "sdpa"}
    assert judge({}, swap, tests=(test,)).decision == "admit"
    assert judge({}, swap, tests=({**test, "passed": False},)).decision == "refuse"
    assert judge({}, swap, tests=({**test, "scope": "elsewhere"},)).decision == "review"
    assert judge({}, {**swap, "lr": 0.01}, tests=(test,)).decision == "refuse"


@pytest.mark.parametrize(
    ("base", "env", "decision"),
    [
        ({}, {"NCCL_DEBUG": "INFO"}, "admit"),
        ({}, {"NCCL_IB_TIMEOUT": "22"}, "admit"),
        ({}, {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}, "admit"),
        ({}, {"NCCL_ALGO": "Tree"}, "review"),
        ({}, {"OMP_NUM_THREADS": "2"}, "review"),
        ({}, {"SOME_VARIABLE": "1"}, "review"),
        ({}, {"NVIDIA_TF32_OVERRIDE": "1"}, "refuse"),
        ({"NVIDIA_TF32_OVERRIDE": "0"}, {"NVIDIA_TF32_OVERRIDE": "1"}, "refuse"),
        ({}, {"LD_PRELOAD": "/tmp/x.so"}, "refuse"),
        ({}, {"PYTHONPATH": ""}, "refuse"),
        ({}, {"NCCL_DEBUG": "INFO", "LD_PRELOAD": "/tmp/x.so"}, "refuse"),
    ],
)
def test_the_environment_is_judged_like_any_final_value(judge: Judge, base: Any, env: dict[str, str], decision: str) -> None:
    verdict = judge({}, {}, base_env=base, env=env)
    assert verdict.decision == decision, say(verdict)


@pytest.mark.parametrize(
    "name",
    ["LD_AUDIT", "PATH", "PYTHONUSERBASE", "PYTHONWARNINGS", "PYTHONPLATLIBDIR", "RANK", "WORLD_SIZE", "TORCHINDUCTOR_CACHE_DIR"],
)
def test_a_variable_that_decides_which_code_runs_is_refused(judge: Judge, name: str) -> None:
    verdict = judge({}, {}, env={name: "/tmp/x"})
    assert verdict.decision == "refuse", say(verdict)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"tensor_model_parallel_size": 4}, "tp·pp·cp = 4·1·1 = 4"),
        ({"micro_batch_size": 3}, "micro_batch_size·dp = 3·1 = 3"),
        ({**PP2, "num_layers": 3}, "num_layers 3 does not divide by pp·vpp = 2·1"),
        ({"pipeline_model_parallel_size": 3, **TP1}, "world size 2 does not divide by tp·pp·cp = 1·3·1 = 3"),
        ({**EP, "num_moe_experts": 7}, "num_moe_experts 7"),
        ({"sequence_parallel": False}, "needs sequence_parallel"),
        ({"moe_router_topk": 9}, "moe_router_topk"),
        ({"learning_rate": 1}, "unknown argument learning_rate: did you mean"),
        ({"lr": "0.001"}, "lr = '0.001' isn't float"),
        ({"micro_batch_size": True}, "micro_batch_size = True isn't int"),
        ({"hidden_dropout": 0.1}, "hidden_dropout = 0.1 can't run on a CPU"),
        ({"finalize_model_grads_func": "os.system"}, "isn't data"),
        ({"_cpu_offloading_context": 1}, "_cpu_offloading_context"),
    ],
)
def test_what_cannot_be_built_is_refused_in_one_line_with_its_formula(
    stack: McoreStack, change: dict[str, Any], words: str
) -> None:
    with pytest.raises(Refused) as error:
        stack.resolve(Recipe(stack="mcore", arguments={**BASE, **change}), frame())
    assert words in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("change", [{**PP2, "pipeline_model_parallel_layout": "Et|tttL"}])
def test_every_recipe_that_megatron_takes_can_be_judged(judge: Judge, change: dict[str, Any]) -> None:
    assert judge({}, change).decision in ("admit", "review", "refuse")


def test_every_option_of_the_catalog_is_judged_and_none_is_refused(judge: Judge, stack: McoreStack) -> None:
    for lever in load_levers(ROOT / "rules", "mcore"):
        for option in lever["options"]:
            change = {k: 2 if isinstance(v, dict) else v for k, v in option["set"].items()}
            if not all(holds(c, BASE, BASE) for c in option.get("when", [])):
                continue  # never proposed from this baseline
            made = Recipe(stack="mcore", arguments={**BASE, **PLAIN, **change})
            try:
                stack.resolve(made, frame())
            except Refused:
                continue
            verdict = judge({}, change)
            assert verdict.decision != "refuse", f"{lever['id']}: {option['title']}\n{say(verdict)}"


def test_the_gate_is_symmetric_between_admitted_pairs(judge: Judge) -> None:
    for name, (base, change) in ADMITTED.items():
        back = {k: {**BASE, **base}.get(k) for k in change}
        if any(v is None and k not in PLAIN for k, v in back.items()):
            continue
        assert judge({**base, **change}, back).decision == "admit", name
