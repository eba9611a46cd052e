"""What the gate study trains: model variants, layouts, levers, rows with uneven loss masks, and the trained checkpoints that
every run starts from (from random weights a wrong loss looks right)."""

import hashlib
import json
import random
from collections.abc import Container
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from attuner.stacks.mcore import dataset

from .farm import Farm

SEQ, GBS, STEPS = 128, 8, 6
PREPARE_STEPS = 80
BATCHES = 4
NUM_ROWS = GBS * (PREPARE_STEPS + (BATCHES + 1) * STEPS + 2)

MODEL: dict[str, Any] = {
    "num_layers": 4,
    "hidden_size": 128,
    "num_attention_heads": 4,
    "num_query_groups": 2,
    "ffn_hidden_size": 256,
    "gated_linear_unit": True,
    "activation_func": "silu",
    "add_bias_linear": False,
    "normalization": "RMSNorm",
    "qk_layernorm": True,
    "num_moe_experts": 4,
    "moe_layer_freq": [0, 1, 1, 1],
    "moe_router_topk": 2,
    "moe_ffn_hidden_size": 128,
    "moe_shared_expert_intermediate_size": 64,
    "moe_router_load_balancing_type": "aux_loss",
    "moe_aux_loss_coeff": 0.01,
    "moe_token_dispatcher_type": "alltoall",
    "moe_router_dtype": "fp32",
    "hidden_dropout": 0.0,
    "attention_dropout": 0.0,
    "micro_batch_size": 1,
    "global_batch_size": GBS,
    "seq_length": SEQ,
    "vocab_size": 256,
    "lr": 1e-4,
    "weight_decay": 0.1,
    "adam_beta2": 0.95,
    "clip_grad": 0.2,
    "grad_reduce_in_fp32": True,
}
NO_AUX = {"moe_router_load_balancing_type": "none", "moe_aux_loss_coeff": 0.0}


@dataclass(frozen=True)
class Variant:
    """A model with its objective. `weights` names the checkpoint that it can load."""

    arguments: dict[str, Any] = field(default_factory=dict)
    weights: str = "moe"
    masks: str = "uneven"


VARIANTS = {
    "moe": Variant(),
    "token": Variant({"calculate_per_token_loss": True}),
    "free": Variant({"calculate_per_token_loss": True, **NO_AUX}),
    "even": Variant(NO_AUX, masks="even"),
    "rowwise": Variant({"moe_router_load_balancing_type": "seq_aux_loss"}, masks="even"),
    "tied": Variant({"untie_embeddings_and_output_weights": False}, weights="tied"),
    "sinks": Variant({"softmax_type": "learnable"}, weights="sinks"),
    "absolute": Variant({"position_embedding_type": "learned_absolute"}, weights="absolute"),
}
PRECISIONS: dict[str, dict[str, Any]] = {"fp32": {}, "bf16": {"bf16": True}}

_TP2 = {"tensor_model_parallel_size": 2, "sequence_parallel": True}
_PP2 = {"pipeline_model_parallel_size": 2}
_EP2 = {"expert_model_parallel_size": 2}
_VPP2 = {**_PP2, "virtual_pipeline_model_parallel_size": 2}
_ETP1 = {"expert_tensor_parallel_size": 1}
LAYOUTS: dict[str, tuple[int, dict[str, Any]]] = {
    "dp2": (2, {}),
    "ep2": (2, _EP2),
    "ep2-allgather": (2, {**_EP2, "moe_token_dispatcher_type": "allgather"}),
    "tp2": (2, _TP2),
    "tp2-ep2-etp1": (2, {**_TP2, **_EP2, **_ETP1}),
    "pp2": (2, _PP2),
    "pp2-vpp2": (2, _VPP2),
    "pp2-first3": (2, {**_PP2, "num_layers_in_first_pipeline_stage": 3}),
    "pp2-last3": (2, {**_PP2, "num_layers_in_last_pipeline_stage": 3}),
    "dp4": (4, {}),
    "ep4": (4, {"expert_model_parallel_size": 4}),
    "ep2-dp2": (4, _EP2),
    "tp2-dp2": (4, _TP2),
    "tp2-ep2-etp2": (4, {**_TP2, **_EP2, "expert_tensor_parallel_size": 2}),
    "tp2-ep4-etp1": (4, {**_TP2, "expert_model_parallel_size": 4, **_ETP1}),
    "tp2-pp2": (4, {**_TP2, **_PP2}),
    "pp2-ep2": (4, {**_PP2, **_EP2}),
    "pp2-vpp2-ep2": (4, {**_VPP2, **_EP2}),
    "pp4": (4, {"pipeline_model_parallel_size": 4}),
}

_OVERLAP = {"overlap_grad_reduce": True, "bucket_size": 100_000}
_SHARDED = {"use_distributed_optimizer": True}
LEVERS: dict[str, dict[str, Any]] = {
    "": {},
    "buckets": {"bucket_size": 40_000, "overlap_grad_reduce": True},
    "overlap": _OVERLAP,
    "sharded": _SHARDED,
    "sharded-overlap": {**_SHARDED, **_OVERLAP},
    "sharded-gather": {**_SHARDED, **_OVERLAP, "overlap_param_gather": True},
    "recompute-full": {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1},
    "recompute-block": {"recompute_granularity": "full", "recompute_method": "block", "recompute_num_layers": 1},
    "recompute-attention": {"recompute_granularity": "selective", "recompute_modules": ["core_attn"]},
    "recompute-experts": {"recompute_granularity": "selective", "recompute_modules": ["moe"]},
    "offload": {"optimizer_cpu_offload": True, "optimizer_offload_fraction": 1.0},
    "sharded-offload": {**_SHARDED, "optimizer_cpu_offload": True, "optimizer_offload_fraction": 1.0},
    "sdpa": {"attention_implementation": "sdpa"},
    "micro2": {"micro_batch_size": 2},
    "micro4": {"micro_batch_size": 4},
    "allgather": {"moe_token_dispatcher_type": "allgather"},
}


def arguments(variant: str, layout: str, lever: str, precision: str) -> dict[str, Any]:
    """Return a recipe's arguments."""
    return {**MODEL, **VARIANTS[variant].arguments, **LAYOUTS[layout][1], **LEVERS[lever], **PRECISIONS[precision]}


def first_row(batch: int) -> int:
    """Return where a batch begins; no checkpoint has seen these rows."""
    return GBS * (PREPARE_STEPS + batch * STEPS)


def checkpoint(variant: str, batch: int) -> str:
    """Name the checkpoint; the main model has two, so that the batches don't all see the same weights."""
    weights = VARIANTS[variant].weights
    return f"{weights}-b" if weights == "moe" and batch % 2 else weights


def job(work: Path, variant: str, arguments: dict[str, Any], world: int, batch: int, **keys: Any) -> dict[str, Any]:
    """Return a job.json."""
    return {
        "launch_id": "study",
        "attempt": 1,
        "stack": "mcore",
        "arguments": arguments,
        "env": {},
        "world_size": world,
        "rows": str(work / f"rows-{VARIANTS[variant].masks}"),
        "first_row": first_row(batch),
        "load": str(work / "weights" / checkpoint(variant, batch)),
        "save": None,
        "steps": STEPS,
        "warmup_steps": 2,
        "profile_steps": 0,
        "device": {"kind": "cpu", "mem_gib": None, "threads": 1},
        **keys,
    }


# ------------------------------------------------------------------------------------------------ preparation


def prepare(work: Path, farm: Farm, *, weights: Container[str] = (), steps: int = PREPARE_STEPS) -> None:
    """Write rows and train the checkpoints, whatever of them is missing. `weights`: only these; () is all."""
    for masks in ("even", "uneven"):
        folder = work / f"rows-{masks}"
        if not (folder / "rows.json").exists():
            dataset.freeze(dataset.NAME, folder, seq_len=SEQ, num_rows=NUM_ROWS)
            if masks == "uneven":
                _add_masks(folder)
    owners = {checkpoint(name, batch): name for name in reversed(VARIANTS) for batch in (0, 1)}
    for seed, (name, variant) in enumerate(sorted(owners.items())):
        target = work / "weights" / name
        if (target / "metadata.json").exists() or (weights and name not in weights):
            continue
        run = work / "prepare" / name
        run.mkdir(parents=True, exist_ok=True)
        wanted = arguments(variant, "dp2", "", "fp32") | {"lr": 1e-3, "clip_grad": 1.0, "seed": 1000 + seed}
        keys = {"first_row": 0, "steps": steps, "load": None, "save": str(target), "probe": False}
        (run / "job.json").write_text(json.dumps(job(work, variant, wanted, 2, 0, **keys)))
        answer = farm.run(run, limit_s=600)
        if any(answer["status"]):
            raise SystemExit(f"checkpoint {name} failed: {run / 'log.txt'}")


def _add_masks(folder: Path) -> None:
    """Give every row turns of uneven length, of which every second counts, as a conversation's answers do."""
    draw, masks = random.Random(3), bytearray()
    for _ in range(NUM_ROWS):
        row: list[int] = []
        counts = draw.random() < 0.5
        while len(row) < SEQ:
            row += [int(counts)] * draw.randrange(6, 40)
            counts = not counts
        masks += bytes(row[:SEQ])
    (folder / "mask.bin").write_bytes(masks)
    about = json.loads((folder / "rows.json").read_text())
    about["mask_sha256"] = hashlib.sha256(masks).hexdigest()
    (folder / "rows.json").write_text(json.dumps(about, indent=1, sort_keys=True) + "\n")
