"""What one setting does to others: the side effects that were tried on Megatron-LM, on whatever checkout is given.

A row names the fact (S1, S18, … are side effects), the change, and the final values that must differ with it. `only` means
that nothing else may. Without a checkout (ATTUNER_MEGATRON_SRC) every test here skips.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from megatron_bench import ROOT, Bench, needs_checkout
from packaging.specifiers import SpecifierSet

from attuner.config import load_register
from attuner.core.base import Value
from attuner.core.judgement import Verdict
from attuner.policy.gate import config_look

pytestmark = needs_checkout
LLAMA, GLM = "llama3-8b", "glm4.5-355b"
OLD, NEW = "<0.17", ">=0.18"
LAYERS = [0] * 3 + [1] * 89


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    made = Bench.made()
    yield made
    made.stack.close()


@dataclass(frozen=True)
class Row:
    """One change and what must come of it."""

    fact: str
    base: str
    change: dict[str, Value]
    wants: dict[str, Value] = field(default_factory=dict)
    only: bool = False
    core: str = ""
    more: dict[str, Any] = field(default_factory=dict)


def row(fact: str, base: str, change: dict[str, Value], wants: dict[str, Value], **more: Any) -> Row:
    own = {k: more.pop(k) for k in ("only", "core") if k in more}
    return Row(fact=fact, base=base, change=change, wants=wants, more=more, **own)


def alone(fact: str, base: str, change: dict[str, Value], wants: dict[str, Value], **more: Any) -> Row:
    return row(fact, base, change, wants, only=True, **more)


SPREAD = {"tensor_model_parallel_size": 4, "fact:data_parallel_size": 16, "fact:num_microbatches": 64}
VPP = {
    "num_virtual_stages_per_pipeline_rank": 2,
    "virtual_pipeline_model_parallel_size": 2,
    "overlap_p2p_comm": True,
    "transformer.batch_p2p_comm": False,
    "align_param_gather": True,
    "fact:layers_per_stage": [8, 8, 8, 8],
}
REDUCED = {
    "accumulate_allreduce_grads_in_fp32": False,
    "ddp.grad_reduce_in_fp32": False,
    "fact:gradient_accumulation_dtype": "bfloat16",
}
FSDP = {"use_megatron_fsdp": True, "pipeline_model_parallel_size": 1, "ckpt_format": "fsdp_dtensor"} | {
    "overlap_param_gather": None,
    "use_distributed_optimizer": None,
}
MUON: dict[str, Value] = {"overlap_grad_reduce": None, "overlap_param_gather": None, "use_distributed_optimizer": None}

EFFECTS = [
    # ---- layout
    alone("S1-tp", GLM, {"tensor_model_parallel_size": 4}, SPREAD, core=OLD),
    alone("S1-tp", GLM, {"tensor_model_parallel_size": 4}, {**SPREAD, "tensor_parallel_num_weight_shards": 4}, core=NEW),
    row("S1-pp", LLAMA, {"pipeline_model_parallel_size": 4}, {"fact:data_parallel_size": 4, "fact:num_microbatches": 256}),
    row("S1-cp", LLAMA, {"context_parallel_size": 2}, {"fact:data_parallel_size": 4, "fact:num_microbatches": 256}),
    row("S1-no-batch", GLM, {"global_batch_size": None}, {"global_batch_size": 8, "fact:num_microbatches": 1}),
    row("S2", GLM, {"expert_tensor_parallel_size": None, "expert_model_parallel_size": 8}, {"expert_tensor_parallel_size": 8}),
    row("S3", LLAMA, {"tensor_model_parallel_size": 1}, {"sequence_parallel": False, "fact:data_parallel_size": 32}),
    row("S4", LLAMA, {"tensor_model_parallel_size": 1}, {"fact:padded_vocab_size": 128256}, core=OLD),
    row("S5", LLAMA, {"pipeline_model_parallel_size": 4}, {"microbatch_group_size_per_vp_stage": 4}),
    alone("S6", LLAMA, {"num_virtual_stages_per_pipeline_rank": 2}, VPP),
    alone("S7", LLAMA, {"num_virtual_stages_per_pipeline_rank": 1}, {}),
    alone("S7-layers", LLAMA, {"num_layers_per_virtual_pipeline_stage": 16}, {}),
    # ---- precision and reduction
    alone("S17-spelled", LLAMA, {"accumulate_allreduce_grads_in_fp32": True}, {}),
    alone("S18", LLAMA, {"grad_reduce_in_bf16": True}, {"grad_reduce_in_bf16": True, **REDUCED}),
    alone(
        "S18-even-if-passed",
        LLAMA,
        {"grad_reduce_in_bf16": True, "accumulate_allreduce_grads_in_fp32": True},
        {"grad_reduce_in_bf16": True, **REDUCED},
    ),
    row("S19", LLAMA, {"use_precision_aware_optimizer": True, "main_grads_dtype": "bf16"}, {**REDUCED}),
    alone("S20", LLAMA, {"ddp_reduce_scatter_with_fp32_accumulation": True}, {}, core=NEW),
    row(
        "S20-old",
        LLAMA,
        {"ddp_reduce_scatter_with_fp32_accumulation": True},
        {"ddp.reduce_scatter_with_fp32_accumulation": True},
        core=OLD,
    ),
    row("S21", LLAMA, {"bf16": None, "fp16": True}, {"check_for_nan_in_loss_and_grad": False}),
    row("S22", LLAMA, {"apply_query_key_layer_scaling": True}, {"attention_softmax_in_fp32": True}),
    row("S23", LLAMA, {"fp32_residual_connection": True}, {"transformer.pipeline_dtype": "float32"}, core=NEW),
    alone("S23-old", LLAMA, {"fp32_residual_connection": True}, {"fp32_residual_connection": True}, core=OLD),
    row(
        "S26",
        LLAMA,
        {"use_precision_aware_optimizer": True},
        {"optimizer.use_precision_aware_optimizer_no_fp8_or_ds_fp8": True},
    ),
    row("S28-new", LLAMA, FSDP, {"use_megatron_fsdp": True}, core=NEW, env={"CUDA_DEVICE_MAX_CONNECTIONS": "8"}),
    row("S28-old", LLAMA, FSDP, {"use_distributed_optimizer": False}, core=OLD, env={"CUDA_DEVICE_MAX_CONNECTIONS": "8"}),
    row(
        "S29",
        LLAMA,
        {"optimizer": "muon"},
        {"use_distributed_optimizer": False, "use_layer_wise_distributed_optimizer": True},
        core=NEW,
    ),
    row("S29-renamed", LLAMA, {"optimizer": "dist_muon", **MUON}, {"optimizer": "muon"}, core=NEW),
    row("S29-old", LLAMA, {"optimizer": "dist_muon", **MUON}, {"optimizer": "dist_muon"}, core="==0.16.1"),
    row("S30", LLAMA, {"freeze_all_layers": True}, {"use_distributed_optimizer": False, "overlap_param_gather": False}, core=NEW),
    row("S31", LLAMA, {"add_bias_linear": None}, {"add_bias_linear": True, "add_qkv_bias": True}),
    # ---- loss, schedule, batch
    row("S33", LLAMA, {"global_batch_size": 512}, {"fact:lr_decay_steps": 512000, "fact:wd_incr_steps": 512000}),
    row("S34", LLAMA, {"train_iters": 500, "lr_decay_iters": None}, {"lr_decay_iters": 500, "fact:lr_decay_steps": 512000}),
    alone("S34-stated", LLAMA, {"train_iters": 500}, {"train_iters": 500, "fact:train_steps": 500, "fact:wd_incr_steps": 512000}),
    alone("S36-new", LLAMA, {"rampup_batch_size": [256, 256, 100000]}, {"rampup_batch_size": [256, 256, 100000]}, core=NEW),
    alone("S38", LLAMA, {"dataloader_type": "single"}, {}),
    row("S39", LLAMA, {"mock_data": None, "data_path": ["x"]}, {"split": "969, 30, 1"}),
    row("S43", LLAMA, {"ffn_hidden_size": None}, {"ffn_hidden_size": 10880}),
    row("S43-groups", LLAMA, {"group_query_attention": None}, {"num_query_groups": 32}),
    alone("S44", GLM, {"moe_expert_capacity_factor": -1}, {}),
    alone("S45", GLM, {"moe_router_load_balancing_type": ["seq_aux_loss"], "moe_aux_loss_coeff": [0]}, {}),
    # ---- memory, kernels, graphs, environment
    alone("S49", LLAMA, {"recompute_activations": True}, {"recompute_granularity": "selective"}),
    alone(
        "S49-modules",
        LLAMA,
        {"recompute_granularity": "selective", "recompute_modules": ["core_attn"]},
        {"recompute_granularity": "selective"},
    ),
    alone(
        "S51",
        LLAMA,
        {"cuda_graph_impl": "transformer_engine"},
        {"cuda_graph_impl": "transformer_engine"} | {"te_rng_tracker": True},
    ),
    alone("S52", LLAMA, {"external_cuda_graph": True}, {"cuda_graph_impl": "transformer_engine", "te_rng_tracker": True}),
    row("S52-local", LLAMA, {"enable_cuda_graph": True}, {"cuda_graph_impl": "local", "te_rng_tracker": True}),
    row("S53", LLAMA, {"attention_backend": "auto"}, {"env:NVTE_FUSED_ATTN": "1", "env:NVTE_UNFUSED_ATTN": "1"}),
    alone(
        "S54",
        LLAMA,
        {"deterministic_mode": True},
        {
            "deterministic_mode": True,
            "env:NCCL_ALGO": "Ring",
            "env:NVTE_ALLOW_NONDETERMINISTIC_ALGO": "0",
            "env:CUBLAS_WORKSPACE_CONFIG": ":4096:8",
        },
        core=NEW,
    ),
    row("S54-old", LLAMA, {"deterministic_mode": True}, {"deterministic_mode": True}, core=OLD, env={"NCCL_ALGO": "Tree"}),
    row("S56", LLAMA, {"nccl_ub": True}, {"env:NCCL_NVLS_ENABLE": "1", "env:TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK": "0"}),
    row("S57", LLAMA, {"position_embedding_type": "learned_absolute"}, {"apply_rope_fusion": False}),
    alone("S57-spelled", LLAMA, {"position_embedding_type": None, "use_rotary_position_embeddings": True}, {}),
    row("S58", LLAMA, {"overlap_grad_reduce": None, "overlap_param_gather": None}, {"fact:ddp_bucket_size": None}),
    alone("S60", LLAMA, {"ckpt_format": "torch"}, {"ckpt_format": "torch"}),
    row("S61", LLAMA, {"fake_process_group": True}, {"check_for_nan_in_loss_and_grad": False}),
    # ---- section 5
    alone(
        "flex-deepep",
        GLM,
        {"moe_token_dispatcher_type": "flex", "moe_enable_deepep": True},
        {"moe_token_dispatcher_type": "flex"},
    ),
    row(
        "te-cross-entropy-old",
        LLAMA,
        {"cross_entropy_loss_fusion": True, "cross_entropy_fusion_impl": "te"},
        {"cross_entropy_fusion_impl": "te"},
        core=OLD,
    ),
    row(
        "uneven-stages",
        GLM,
        {"decoder_first_pipeline_num_layers": 22, "decoder_last_pipeline_num_layers": 22},
        {"fact:layers_per_stage": [22, 24, 24, 22]},
    ),
    row("layout", GLM, {"pipeline_model_parallel_layout": "Et*22|t*24|t*24|t*22L"}, {"fact:layers_per_stage": [22, 24, 24, 22]}),
]


@pytest.mark.parametrize("case", EFFECTS, ids=lambda r: f"{r.fact}{r.core}")
def test_one_setting_changes_others_as_the_facts_say(bench: Bench, case: Row) -> None:
    if case.core and not SpecifierSet(case.core, prereleases=True).contains(bench.version):
        pytest.skip(f"holds for megatron-core {case.core}, this is {bench.version}")
    found = bench.changes(case.base, case.change, **case.more)
    after = {key: value for key, (_, value) in found.items()}
    assert {k: after.get(k, "unchanged") for k in case.wants} == case.wants
    if case.only:
        assert set(found) == set(case.wants)


REFUSALS: list[tuple[str, str, dict[str, Value], str, str, dict[str, Any]]] = [
    ("S29-muon", LLAMA, {"optimizer": "muon"}, "Muon optimizer does not support overlap grad reduce", OLD, {}),
    ("S28-ckpt", LLAMA, {**FSDP, "ckpt_format": None}, "fsdp_dtensor", "", {"env": {"CUDA_DEVICE_MAX_CONNECTIONS": "8"}}),
    ("S36-old", LLAMA, {"rampup_batch_size": [256, 256, 100000]}, "expected no batch-size rampup", OLD, {}),
    ("S53-env", LLAMA, {}, "NVTE_FLASH_ATTN set to 0, but expected 1", "", {"env": {"NVTE_FLASH_ATTN": "0"}}),
    ("S54-unset", LLAMA, {"deterministic_mode": True}, "NCCL_ALGO must be one of", OLD, {}),
    ("S54-tree", LLAMA, {"deterministic_mode": True}, "NCCL_ALGO='Tree'", NEW, {"env": {"NCCL_ALGO": "Tree"}}),
    (
        "S54-overlap",
        LLAMA,
        {"deterministic_mode": True, "tp_comm_overlap": True},
        "--deterministic-mode requires: tp_comm_overlap=False",
        NEW,
        {},
    ),
    ("S55", LLAMA, {}, "CUDA_DEVICE_MAX_CONNECTIONS to 1", "", {"without": "CUDA_DEVICE_MAX_CONNECTIONS"}),
    ("S66", LLAMA, {"yaml_cfg": "x.yaml"}, "yaml_cfg: another validator", "", {}),
    ("S67", LLAMA, {"use_checkpoint_args": True}, "use_checkpoint_args: the checkpoint's arguments", "", {}),
    (
        "te-cross-entropy",
        LLAMA,
        {"cross_entropy_loss_fusion": True, "cross_entropy_fusion_impl": "te"},
        "cross entropy loss fusion is disabled",
        NEW,
        {},
    ),
    ("L-PP", GLM, {"num_virtual_stages_per_pipeline_rank": 2}, r"num_layers 92 does not divide by pp·vpp = 4·2 = 8", "", {}),
    ("L-PP-pp1", LLAMA, {"pipeline_model_parallel_size": 1, "decoder_first_pipeline_num_layers": 8}, "middle", "", {}),
    ("L-DP", LLAMA, {"global_batch_size": 1001}, r"1001 does not divide by micro_batch_size·dp = 1·8 = 8", OLD, {}),
    ("L-DP-new", LLAMA, {"global_batch_size": 1001}, r"eval_global_batch_size \(1001\) must be divisible", NEW, {}),
    ("L-EP", GLM, {"expert_model_parallel_size": 80}, r"world size 256 does not divide by etp·ep·pp = 1·80·4 = 320", "", {}),
    ("world", LLAMA, {}, r"world size \(60\) is not divisible", "", {"gpus": 60}),
    ("no-steps", LLAMA, {"train_iters": None}, "neither train_iters nor train_samples", "", {}),
    ("unknown-word", LLAMA, {"argv": ["--overlap-grad-reduc"]}, "unrecognized arguments: --overlap-grad-reduc", "", {}),
    ("unknown-name", LLAMA, {"overlap_grad_reduc": True}, "did you mean overlap_grad_reduce", "", {}),
    ("choice", LLAMA, {"attention_backend": "flas"}, "must be one of flash, fused", "", {}),
    ("pattern", GLM, {"moe_layer_freq": "[0]*3+[1]*88"}, "moe_layer_freq names 91 layers, num_layers is 92", "", {}),
    (
        "interleaving",
        LLAMA,
        {"num_virtual_stages_per_pipeline_rank": 2, "global_batch_size": 8},
        "must lie between pp = 2 and the 1 micro-batches",
        "",
        {},
    ),
    (
        "interleaving-rest",
        LLAMA,
        {"num_virtual_stages_per_pipeline_rank": 2, "global_batch_size": 24},
        "3 micro-batches leave 1 over groups of 2",
        "",
        {},
    ),
    ("experts-sp", GLM, {"sequence_parallel": None}, "mixture of experts with tp = 8 needs sequence_parallel", "", {}),
]


@pytest.mark.parametrize("case", REFUSALS, ids=lambda r: f"{r[0]}{r[4]}")
def test_what_the_build_would_refuse_is_refused_with_the_formula(
    bench: Bench, case: tuple[str, str, dict[str, Value], str, str, dict[str, Any]]
) -> None:
    _, base, change, wanted, core, more = case
    if core and not SpecifierSet(core, prereleases=True).contains(bench.version):
        pytest.skip(f"holds for megatron-core {core}, this is {bench.version}")
    refusal = bench.refusal(base, change, **more)
    assert re.search(wanted, refusal), refusal
    assert "\n" not in refusal


SPELLINGS: list[tuple[str, dict[str, Value]]] = [
    (LLAMA, {"norm_epsilon": None, "layernorm_epsilon": 1e-5}),
    (LLAMA, {"norm_epsilon": None, "--norm-epsilon": 1e-5}),
    (LLAMA, {"add_bias_linear": None, "disable_bias_linear": True}),
    (LLAMA, {"add_bias_linear": None, "argv": ["--disable-bias-linear"]}),
    (LLAMA, {"attention_backend": None, "argv": ["--attention-backend", "flash"]}),
    (LLAMA, {"cp_comm_type": ["p2p"]}),
    (LLAMA, {"swiglu": None, "argv": ["--swiglu"]}),
    (LLAMA, {"apply_rope_fusion": True}),
    (LLAMA, {"eod_mask_loss": False}),
    (GLM, {"moe_layer_freq": LAYERS}),
    (GLM, {"moe_layer_freq": "([0]*3+[1]*89)"}),
    (GLM, {"rotary_base": 1000000.0}),
]


@pytest.mark.parametrize("case", SPELLINGS, ids=lambda c: "+".join(c[1]))
def test_another_spelling_is_no_difference(bench: Bench, case: tuple[str, dict[str, Value]]) -> None:
    assert bench.changes(*case) == {}


def test_a_layout_is_the_same_however_it_is_written(bench: Bench) -> None:
    written = ["Et*22|t*24|t*24|t*22L", f"E{'t' * 22}|{'t' * 24}|{'t' * 24}|{'t' * 22}L", "E(t)*22|(tt)*12|t*24|(t)*22L"]
    first, *others = [bench.resolve(GLM, {"pipeline_model_parallel_layout": layout}) for layout in written]
    assert [other.arguments == first.arguments for other in others] == [True, True]


def test_the_example_lists_resolve(bench: Bench) -> None:
    llama, glm = bench.base(LLAMA), bench.base(GLM)
    assert (llama.facts["data_parallel_size"], llama.facts["num_microbatches"]) == (8, 128)
    assert llama.facts["layers_per_stage"] == [16, 16]
    assert llama.facts["padded_vocab_size"] == 128512
    assert llama.facts["tokens_per_update"] == 1024 * 8192
    assert (glm.facts["data_parallel_size"], glm.facts["expert_data_parallel_size"]) == (8, 4)
    assert glm.facts["layers_per_stage"] == [23, 23, 23, 23]
    assert glm.facts["padded_vocab_size"] == 151552
    assert glm.facts["initial_weights"] == "checkpoint"
    assert glm.arguments["moe_layer_freq"] == LAYERS


DEFAULTS = [
    ("muon_tp_mode", "blockwise", "duplicated"),
    ("data_parallel_sharding_strategy", "no_shard", "optim_grads_params"),
    ("profile_ranks", 0, []),
    ("enable_msc", True, False),
]


@pytest.mark.parametrize(("name", "old", "new"), DEFAULTS)
def test_defaults_are_those_of_the_very_version(bench: Bench, name: str, old: Value, new: Value) -> None:
    assert bench.base(LLAMA).arguments[name] == (old if bench.version.release < (0, 17) else new)


@pytest.mark.parametrize(("ranks", "padded"), [(2, 128256), (4, 128512), (8, 129024)])
def test_the_vocabulary_is_padded_by_megatrons_own_function(bench: Bench, ranks: int, padded: int) -> None:
    listed = {"tokenizer_type": "HuggingFaceTokenizer", "tokenizer_model": "x", "vocab_size": 128256}
    found = bench.resolve(LLAMA, {**listed, "tensor_model_parallel_size": ranks})
    assert found.facts["padded_vocab_size"] == padded


def test_a_vocabulary_that_only_the_tokenizer_knows_is_said_in_words(bench: Bench) -> None:
    listed = {"tokenizer_type": "HuggingFaceTokenizer", "tokenizer_model": "x", "vocab_size": None}
    assert bench.resolve(LLAMA, dict(listed)).facts["padded_vocab_size"] == "the tokenizer's, up to a multiple of 512"


def test_a_word_given_twice_is_a_fact_and_the_last_one_holds(bench: Bench) -> None:
    found = bench.changes(LLAMA, {"argv": ["--lr", "1e-4", "--lr", "2e-4", "--min-lr", "3e-5"]})
    assert found == {"lr": (3e-4, 2e-4), "fact:duplicated_arguments": ([], ["lr", "min_lr"])}


def test_another_capability_lifts_what_only_older_devices_need(bench: Bench) -> None:
    free = bench.resolve(LLAMA, without="CUDA_DEVICE_MAX_CONNECTIONS", hardware="GB200")
    assert free.versions["capability"] == "10.0"


def test_a_crash_of_one_candidate_leaves_the_next_one_alone(bench: Bench) -> None:
    assert "Megatron would end here" in bench.refusal(LLAMA, {"checkpoint_activations": True})
    assert bench.changes(LLAMA, {}) == {}


def test_no_value_of_a_final_configuration_is_none_or_nested(bench: Bench) -> None:
    values = bench.base(GLM).arguments
    assert [k for k, v in values.items() if v is None] == []
    assert "rank" not in values
    assert not any(name.startswith("_") for name in values)


def verdict(bench: Bench, change: dict[str, Value]) -> Verdict:
    """Judge a change of the Llama list with the register as it stands."""
    base, candidate = bench.base(LLAMA), bench.resolve(LLAMA, change)
    register = load_register(ROOT / "rules", "megatron")
    return config_look(register, base, candidate, subject="candidate", recipe="r", tests=[], scope="")


def test_gradients_reduced_in_bf16_are_refused_because_accumulation_changed(bench: Bench) -> None:
    found = verdict(bench, {"grad_reduce_in_bf16": True})
    refused = {f.key for f in found.findings if f.decision == "refuse"}
    assert found.decision == "refuse"
    assert {"accumulate_allreduce_grads_in_fp32", "ddp.grad_reduce_in_fp32"} & refused


def test_accumulation_in_fp32_said_or_left_to_bf16s_default_is_no_difference(bench: Bench) -> None:
    found = verdict(bench, {"accumulate_allreduce_grads_in_fp32": True})
    assert (found.decision, found.findings) == ("admit", [])
