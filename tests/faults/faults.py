"""The table of planted faults: what each plants, where that is known from, in which runs it is planted. A fault with a
`plant` is hidden from the run's configuration, so that only the later looks can see it; one with a `change` is a change of
the recipe, which the first look should refuse, and is run all the same. The mechanisms are in `plants_batch`, `plants_model`
and `plants_update`; this module itself imports neither torch nor megatron."""

import importlib
from dataclasses import dataclass, field
from typing import Any

PAPER = "ATTUNE paper, table 4 and B2"
LOOK = "measured faults, docs/gate.md"
CORE = "megatron-core 0.16.1"


@dataclass(frozen=True)
class Fault:
    """One fault. `where` names runs as variant/layout+lever (see `workload`)."""

    name: str
    says: str
    source: str
    where: tuple[str, ...]
    plant: str = ""
    change: dict[str, Any] = field(default_factory=dict)
    precisions: tuple[str, ...] = ("fp32", "bf16")
    real: bool = False
    """Nothing is planted: the layout itself is a known defect of the framework."""
    limit: str = ""
    """Why no look can see it; such a row shows what the gate cannot do."""
    runs: bool = True
    """False: the trainer refuses to build it, so only the first look is asked."""


def plant(name: str, job: dict[str, Any]) -> None:
    """Change megatron, torch or the trainer in this process so that the run has the fault; '' plants nothing."""
    if not name or not FAULTS[name].plant:
        return
    module, _, function = FAULTS[name].plant.partition(".")
    getattr(importlib.import_module(f".plants_{module}", __package__), function)(job)


_DP = ("moe/dp2",)
_TP = ("moe/tp2",)
_ANY = ("moe/dp2", "moe/pp2")
_SHARDED = "moe/dp2+sharded-gather"
_FP32, _BF16 = ("fp32",), ("bf16",)

_TABLE = [
    # ---- the paper's: objective-changing arguments, as an argument and hidden
    Fault(
        "capacity-argument",
        "experts take no more tokens than an even share",
        PAPER,
        _DP,
        change={"moe_expert_capacity_factor": 1.0},
    ),
    Fault("capacity", "the same inside the model", PAPER, _ANY, "model.capacity_1"),
    Fault("lr-argument", "learning rate × 10", PAPER, _DP, change={"lr": 1e-3}),
    Fault("lr", "the schedule gives ten times the rate", PAPER, ("moe/dp2", _SHARDED), "update.lr_times_10"),
    Fault("lr-unseen", "Adam steps at ten times the rate that its groups show", PAPER, _ANY, "update.lr_times_10_unseen"),
    Fault("batch-argument", "global batch doubled", PAPER, _DP, change={"global_batch_size": 16}),
    Fault("batch", "half of an update's micro-batches are run", PAPER, _ANY, "batch.half_batch"),
    Fault(
        "bf16-reduction-argument",
        "gradients reduced in bf16",
        PAPER,
        _DP,
        change={"grad_reduce_in_fp32": False},
        precisions=_BF16,
    ),
    Fault(
        "bf16-accumulation",
        "gradients accumulated and reduced in bf16",
        PAPER,
        _ANY,
        "update.accumulation_bf16",
        precisions=_BF16,
    ),
    Fault("bf16-reduction", "fp32 gradients travel rounded to bf16", PAPER, _DP, "update.reduction_rounded", precisions=_FP32),
    Fault(
        "per-token-argument",
        "loss averaged per micro-batch instead of per token",
        PAPER,
        ("token/dp2",),
        change={"calculate_per_token_loss": False},
    ),
    Fault("per-token", "the same inside the model", PAPER, ("token/dp2",), "model.per_token_off"),
    Fault("aux-argument", "load-balancing coefficient × 10", PAPER, _DP, change={"moe_aux_loss_coeff": 0.1}),
    Fault("aux-x10", "coefficient × 10 inside the model", PAPER, _ANY, "model.aux_times_10"),
    Fault("aux-tenth", "coefficient ÷ 10 inside the model", PAPER, _DP, "model.aux_tenth"),
    # ---- the paper's: configuration defects of the stack
    Fault(
        "ep1-etp4",
        "EP 1 with ETP 4: expert gradients are reduced over the wrong ranks",
        f"{PAPER}; Megatron-LM #1628, PR #5916",
        ("moe/dp4",),
        change={"expert_tensor_parallel_size": 4},
        real=True,
    ),
    Fault(
        "ep1-etp2",
        "the same defect at ETP 2 without tensor parallelism",
        "Megatron-LM #1628, PR #5916",
        ("moe/dp2",),
        change={"expert_tensor_parallel_size": 2},
        real=True,
    ),
    Fault(
        "pipeline-halves-aux",
        "the load-balancing loss is halved by the pipeline, as at PP 32",
        PAPER,
        ("moe/pp2", "moe/pp4"),
        "model.aux_halved_by_pipeline",
    ),
    # ---- the paper's: faults in code
    Fault("labels-shifted", "labels offset by one token", PAPER, ("moe/dp2", "tied/pp2"), "batch.labels_shifted"),
    Fault("sinks-ignored", "attention sinks ignored", PAPER, ("sinks/dp2",), "model.sinks_ignored"),
    Fault(
        "bucket-skipped",
        "one gradient bucket is never reduced",
        PAPER,
        ("moe/dp2+buckets", "moe/ep2+buckets", "moe/dp2+sharded-overlap", "moe/dp4+buckets"),
        "update.bucket_skipped",
    ),
    Fault("aux-zero", "load-balancing loss zero, in the log too", PAPER, _ANY, "model.aux_zero"),
    Fault(
        "aux-gradient-zero", "load-balancing gradient zero, log intact", PAPER, ("moe/dp2", "moe/tp2"), "model.aux_gradient_zero"
    ),
    Fault("mask-shifted", "loss mask shifted by one token", PAPER, _ANY, "batch.mask_shifted"),
    Fault(
        "qk-norm-summed", "QK-norm gradients summed over tensor ranks once too often", PAPER, _TP, "update.qk_norm_summed_again"
    ),
    Fault(
        "uneven-split",
        "an uneven pipeline split loads another split's layers",
        f"{PAPER} (Nemotron-3-Nano)",
        ("moe/pp2-first3",),
        "model.uneven_split_loads_even",
    ),
    # ---- third look: measured before
    Fault("mask-rolled", "loss mask rolled by one token, count unchanged", LOOK, _DP, "batch.mask_rolled"),
    Fault(
        "expert-bucket-skipped",
        "the experts' gradients are never reduced",
        LOOK,
        ("moe/ep2-dp2",),
        "update.expert_bucket_skipped",
    ),
    Fault("aux-gradient-x10", "load-balancing gradient × 10, log intact", LOOK, _ANY, "model.aux_gradient_times_10"),
    Fault("qk-norm-averaged", "QK-norm gradients averaged over tensor ranks", LOOK, _TP, "update.qk_norm_averaged"),
    Fault("qk-norm-not-reduced", "QK-norm gradients not reduced over tensor ranks", LOOK, _TP, "update.qk_norm_not_reduced"),
    Fault("clip-off", "gradients are not clipped", LOOK, ("moe/dp2", "moe/pp2", _SHARDED), "update.clip_off"),
    Fault("clip-argument", "clipping off", LOOK, _DP, change={"clip_grad": 0.0}),
    Fault(
        "decay-on-norms",
        "norm weights decay: the schedule never applies wd_mult",
        LOOK,
        ("moe/dp2", _SHARDED),
        "update.decay_on_norms",
    ),
    Fault("decay-on-norms-unseen", "the same inside Adam's step", LOOK, _DP, "update.decay_on_norms_unseen"),
    Fault("decay-off", "no weight decay", LOOK, ("moe/dp2", _SHARDED), "update.decay_off"),
    Fault("decay-argument", "weight decay 0", LOOK, _DP, change={"weight_decay": 0.0}),
    Fault("epsilon", "Adam's epsilon 1e-5", LOOK, _ANY, "update.epsilon"),
    Fault("epsilon-argument", "Adam's epsilon 1e-5", LOOK, _DP, change={"adam_eps": 1e-5}),
    Fault("beta2", "Adam's second beta 0.999", LOOK, _ANY, "update.beta2"),
    Fault("beta1", "Adam's first beta 0.5", LOOK, _DP, "update.beta1"),
    Fault(
        "divided-by-dp-twice",
        "gradients divided by DP twice",
        LOOK,
        ("moe/dp2", "moe/dp4", _SHARDED),
        "update.divided_by_dp_twice",
    ),
    Fault(
        "tied-not-reduced",
        "tied embedding's gradient not summed over stages",
        LOOK,
        ("tied/pp2", "tied/pp4"),
        "update.tied_not_reduced",
    ),
    Fault("dropout", "dropout 0.1 left on", LOOK, _ANY, "model.dropout"),
    Fault("dropout-argument", "dropout 0.1", LOOK, _DP, change={"hidden_dropout": 0.1}, runs=False),
    Fault("rope-base", "RoPE base 500,000", LOOK, _ANY, "model.rope_base"),
    Fault("rope-argument", "RoPE base 500,000", LOOK, _DP, change={"rotary_base": 500_000}),
    Fault("softmax-scale", "softmax scale × 1.2", LOOK, _ANY, "model.softmax_scale"),
    Fault("top-1", "one expert a token instead of two", LOOK, _ANY, "model.topk_1"),
    Fault(
        "top-1-argument",
        "one expert a token instead of two",
        LOOK,
        _DP,
        change={"moe_router_topk": 1, "moe_router_pre_softmax": True},
    ),
    Fault("wrong-experts", "each rank loads the other rank's experts", LOOK, ("moe/ep2", "moe/ep4"), "model.wrong_experts"),
    Fault(
        "wrong-experts-beside-masters",
        "the forward's experts are another rank's, the optimizer's are right",
        LOOK,
        ("moe/ep2",),
        "model.wrong_experts_beside_masters",
        precisions=_BF16,
    ),
    Fault("wrong-layers", "the second stage's layers in another order", LOOK, ("moe/pp2",), "model.wrong_layers"),
    Fault("data-shifted", "data order shifted by a batch", LOOK, _ANY, "batch.data_shifted"),
    Fault("gradient-lost", "one micro-batch's gradient is lost, its loss reported", LOOK, _ANY, "batch.gradient_lost"),
    Fault("gradient-twice", "one micro-batch's gradient accumulated twice", LOOK, _ANY, "batch.gradient_twice"),
    Fault("microbatch-dropped", "one micro-batch dropped", LOOK, _ANY, "batch.microbatch_dropped"),
    Fault("stale-gather", "one bucket's parameters not gathered after the update", LOOK, (_SHARDED,), "update.gather_skipped"),
    Fault("router-bf16", "router computed in bf16", LOOK, _DP, "model.router_low_precision", precisions=_BF16),
    Fault("router-argument", "router computed in bf16", LOOK, _DP, change={"moe_router_dtype": None}, precisions=_BF16),
    Fault(
        "mean-of-microbatches",
        "every micro-batch weighs the same under per-token loss",
        LOOK,
        ("token/dp2",),
        "batch.mean_of_microbatches",
    ),
    # ---- ours
    Fault("mask-ignored", "every token of the batch counts", CORE, _DP, "batch.mask_ignored"),
    Fault(
        "mask-ignored-by-loss",
        "the mask is delivered and reported, the gradient ignores it",
        CORE,
        _ANY,
        "batch.mask_ignored_by_loss",
    ),
    Fault("positions-off", "learned positions off by one", CORE, ("absolute/dp2",), "batch.positions_off"),
    Fault("rope-interpolated", "rotary positions halved", CORE, _DP, "model.rope_interpolated"),
    Fault("rows-truncated", "the last 16 tokens of every row are padding", CORE, _DP, "batch.rows_truncated"),
    Fault(
        "rows-not-sharded", "every data-parallel rank reads the same rows", CORE, ("moe/dp2", "moe/dp4"), "batch.rows_not_sharded"
    ),
    Fault(
        "loss-not-averaged",
        "the loss is four times what it should be against the auxiliary loss",
        CORE,
        _ANY,
        "batch.loss_not_averaged",
    ),
    Fault("future-seen", "attention is not causal", CORE, _DP, "model.future_seen"),
    Fault(
        "log-tp", "the split softmax counts its denominator TP times", "Megatron-LM #7452", _TP, "model.vocabulary_counted_twice"
    ),
    Fault("logits-rounded", "logits rounded to bf16 in an fp32 run", CORE, _ANY, "model.logits_rounded", precisions=_FP32),
    Fault("shared-expert-dropped", "the shared expert adds nothing", CORE, _DP, "model.shared_expert_dropped"),
    Fault("norm-epsilon", "norms' epsilon 1e-3", CORE, _ANY, "model.norm_epsilon"),
    Fault("z-loss", "a router z-loss that nothing logs", CORE, _ANY, "model.z_loss"),
    Fault("other-checkpoint", "weights of another training run", CORE, _DP, "model.other_checkpoint"),
    Fault("router-not-loaded", "routers start from random weights", CORE, _ANY, "model.router_not_loaded"),
    Fault("router-frozen", "routers are not trained", CORE, _DP, "model.router_frozen"),
    Fault(
        "norms-not-reduced",
        "layer norms unmarked under sequence parallelism",
        CORE,
        ("moe/tp2", "moe/tp2-dp2"),
        "update.norms_not_reduced",
    ),
    Fault("router-not-reduced", "router unmarked under sequence parallelism", CORE, _TP, "update.router_not_reduced"),
    Fault(
        "experts-scaled",
        "expert gradients × EP",
        "verl #6836 and the like",
        ("moe/ep2", "moe/ep2-dp2"),
        "update.experts_scaled_by_ep",
    ),
    Fault("not-zeroed", "gradients of the first update stay in the second", CORE, ("moe/dp2", "moe/ep2"), "update.not_zeroed"),
    Fault(
        "stage-gradient-halved",
        "half the gradient crosses the stages",
        CORE,
        ("moe/pp2", "moe/pp4"),
        "update.stage_gradient_halved",
    ),
    Fault("clip-local", "each stage clips by its own norm", CORE, ("moe/pp2", "moe/tp2"), "update.clip_by_local_norm"),
    Fault(
        "clip-without-experts",
        "the clip norm leaves experts out",
        "Megatron-LM PR #5916, #6470",
        ("moe/dp2", "moe/ep2"),
        "update.clip_without_experts",
    ),
    Fault("decay-in-gradient", "L2 in the gradient instead of decoupled decay", CORE, _DP, "update.decay_in_gradient"),
    Fault("bias-correction-off", "Adam without bias correction", CORE, _DP, "update.bias_correction_off"),
    Fault("moments-forgotten", "Adam forgets its moments after every update", CORE, _DP, "update.moments_forgotten"),
    Fault("rank-not-updated", "one rank misses updates, replicas drift", CORE, _DP, "update.rank_not_updated"),
    Fault("embedding-not-updated", "the embedding is never updated", CORE, _DP, "update.embedding_not_updated"),
    Fault(
        "masters-rounded",
        "fp32 masters hold bf16 values",
        CORE,
        ("moe/dp2", _SHARDED),
        "update.masters_rounded",
        precisions=_BF16,
    ),
    # ---- what no look can see
    Fault(
        "late-lr",
        "learning rate × 3 from the fourth update on",
        "limits, docs/gate.md",
        _DP,
        "update.late_lr",
        limit="only steps 0 and 1 are fingerprinted; a short curve hardly bends",
    ),
    Fault(
        "bf16-reduction-in-bf16",
        "fp32 gradients of a bf16 model travel rounded to bf16",
        "limits, docs/gate.md",
        _DP,
        "update.reduction_rounded",
        precisions=_BF16,
        limit="the buffers are fp32, and the rounding is no larger than what another layout does to bf16 gradients",
    ),
]
FAULTS = {fault.name: fault for fault in _TABLE}
