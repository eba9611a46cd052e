"""Reads Shape and Layout from arguments by Megatron's names, recipe or final ones; what is left open gets Megatron's default."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from attuner.core.base import Value
from attuner.core.errors import UserError
from attuner.core.recipe import Workload
from attuner.estimate.shape import Layout, Shape

Arguments = Mapping[str, Value]
TABLE_MODULES = ("attention", "experts", "layernorm", "mlp", "shared_experts")
"""What `selective` recomputes in replay tables, whose arguments don't say: all but attention's core and the experts' exchange."""


def read(arguments: Arguments, *, workload: Workload, stack: str = "") -> tuple[Shape, Layout]:
    """Return the shape and the layout that these arguments ask for, on the workload's devices.

    Args:
        arguments: by Megatron's names (`num_experts` and `num_moe_experts` are one), of stacks megatron, mcore and replay.
        workload: says devices, rows per update, row length and precision where the arguments don't.
        stack: whose arguments they are. A replay table has sequence parallelism wherever tp > 1, the all-to-all dispatcher,
            shorter first and last stages where layers don't divide, and (like the small trainer) an untied output matrix.

    Raises:
        UserError: naming the argument without which nothing can be estimated, or whose value can't be read.
    """
    shape = _shape(arguments, workload, stack)
    layout = _layout(arguments, workload, shape, stack)
    if stack == "replay" and layout.pp > 1 and layout.first_layers is None and layout.last_layers is None:
        first, last = _ends(shape.num_layers, layout.pp)
        layout = replace(layout, first_layers=first, last_layers=last)
    return shape, layout


def _ends(layers: int, pp: int) -> tuple[int | None, int | None]:
    if layers % pp == 0:
        return None, None
    rest = layers - -(-layers // pp) * (pp - 2)
    return (rest - rest // 2, rest // 2) if rest >= 2 else (None, None)


def _number(arguments: Arguments, *names: str, default: int | None = None) -> int:
    for name in names:
        value = arguments.get(name)
        if value is None or isinstance(value, bool):
            continue
        try:
            return int(float(value))  # type: ignore[arg-type]
        except (TypeError, ValueError):
            raise UserError(f"{name}: {value!r} is not a number") from None
    if default is None:
        raise UserError(f"{names[0]}: not stated; the estimate needs it")
    return default


def _yes(arguments: Arguments, *names: str, default: bool = False) -> bool:
    for name in names:
        value = arguments.get(name)
        if isinstance(value, bool):
            return value
        if isinstance(value, str) and value.lower() in ("true", "false"):
            return value.lower() == "true"
    return default


def _text(arguments: Arguments, *names: str) -> str:
    return next((str(v) for n in names if (v := arguments.get(n)) is not None), "")


def _shape(a: Arguments, workload: Workload, stack: str) -> Shape:
    layers, hidden = _number(a, "num_layers"), _number(a, "hidden_size")
    heads = _number(a, "num_attention_heads")
    grouped = _yes(a, "group_query_attention", default=True)
    experts = _number(a, "num_moe_experts", "num_experts", default=0)
    gated = _yes(a, "gated_linear_unit", "swiglu")
    mla = _yes(a, "multi_latent_attention")
    ffn = _number(a, "ffn_hidden_size", default=0) or (int(4 * hidden * 2 / 3) // 64 * 64 if gated else 4 * hidden)
    position = _text(a, "position_embedding_type") or "learned_absolute"
    learned = _number(a, "max_position_embeddings", "max_sequence_length", "seq_length", default=workload.seq_len)
    dropout = max(float(str(a.get(n) if a.get(n) is not None else 0.1)) for n in ("hidden_dropout", "attention_dropout"))
    untied = _yes(a, "untie_embeddings_and_output_weights", default=stack in ("replay", "mcore"))
    return Shape(
        num_layers=layers,
        hidden=hidden,
        heads=heads,
        kv_groups=_number(a, "num_query_groups", default=heads) if grouped else heads,
        head_dim=_number(a, "qk_head_dim", default=128) if mla else _number(a, "kv_channels", default=hidden // heads),
        ffn=ffn,
        vocab=_number(a, "vocab_size", "padded_vocab_size", default=0) or 50304,  # final values have the first alone
        gated=gated,
        tied=_yes(a, "share_embeddings_and_output_weights", default=not untied),
        learned_positions=learned if position == "learned_absolute" and "position_embedding_type" in a else 0,
        num_experts=experts,
        topk=_number(a, "moe_router_topk", default=2) if experts else 0,
        moe_ffn=_number(a, "moe_ffn_hidden_size", default=ffn) if experts else 0,
        shared_ffn=_number(a, "moe_shared_expert_intermediate_size", default=0) if experts else 0,
        moe_layers=moe_layers(a.get("moe_layer_freq"), layers) if experts else (),
        q_lora=_number(a, "q_lora_rank", default=0) if mla else 0,
        kv_lora=_number(a, "kv_lora_rank", default=512) if mla else 0,
        rope_dim=_number(a, "qk_pos_emb_head_dim", default=64) if mla else 0,
        v_dim=_number(a, "v_head_dim", default=128) if mla else 0,
        mtp_layers=_number(a, "mtp_num_layers", default=0),
        dropout=dropout > 0,
    )


def moe_layers(frequency: Value, layers: int) -> tuple[int, ...]:
    """Return 1 for each layer with experts, from `moe_layer_freq`: a number, a list, or its text as in "[0]*3+[1]*89"."""
    if frequency is None or frequency is True:
        return (1,) * layers
    if isinstance(frequency, list):
        pattern = [int(bool(x)) for x in frequency]
    elif isinstance(frequency, str) and not frequency.strip().isdigit():
        pattern = _pattern(frequency)
    else:
        every = int(frequency)
        pattern = [int(i % every == 0) for i in range(layers)]
    if len(pattern) != layers:
        raise UserError(f"moe_layer_freq: {len(pattern)} entries for {layers} layers")
    return tuple(pattern)


def _pattern(text: str) -> list[int]:
    """Read sums and products of lists of 0 and 1."""
    out: list[int] = []
    for term in text.replace(" ", "").strip("()").split("+"):
        found = re.fullmatch(r"\(?\[([01](?:,[01])*,?)\]\)?(?:\*(\d+))?\)?", term)
        if not found:
            raise UserError(f"moe_layer_freq: can't read {text!r}; write it like [0]*3+[1]*89")
        out += [int(x) for x in found[1].split(",") if x] * int(found[2] or 1)
    return out


def _layout(a: Arguments, workload: Workload, shape: Shape, stack: str) -> Layout:
    tp, pp = _number(a, "tensor_model_parallel_size", default=1), _number(a, "pipeline_model_parallel_size", default=1)
    ep = _number(a, "expert_model_parallel_size", default=1)
    etp = _number(a, "expert_tensor_parallel_size", default=tp if shape.num_experts else 1)
    global_batch = _number(a, "global_batch_size", default=workload.global_batch)
    parallel = _yes(a, "sequence_parallel", default=stack == "replay") and tp > 1
    precision = "bf16" if _yes(a, "bf16") else "fp16" if _yes(a, "fp16") else _precision(workload)
    return Layout(
        gpus=workload.gpus,
        global_batch=global_batch,
        seq_len=_number(a, "seq_length", default=workload.seq_len),
        micro_batch=_number(a, "micro_batch_size", default=1),
        tp=tp,
        pp=pp,
        vp=_virtual(a, shape.num_layers, pp),
        cp=_number(a, "context_parallel_size", default=1),
        ep=ep if shape.num_experts else 1,
        etp=etp if shape.num_experts else 1,
        first_layers=_end(a, "first"),
        last_layers=_end(a, "last"),
        counts_embedding=_yes(a, "account_for_embedding_in_pipeline_split"),
        counts_loss=_yes(a, "account_for_loss_in_pipeline_split"),
        sequence_parallel=parallel,
        precision=precision,
        offload=_offload(a),
        attention=_attention(a),
        dispatcher=_text(a, "moe_token_dispatcher_type") or ("alltoall" if stack == "replay" else "allgather"),
        grads_fp32=_yes(a, "grad_reduce_in_fp32", "accumulate_allreduce_grads_in_fp32", default=precision == "bf16"),
        moment_bytes=_moments(a),
        grouped_gemm=_yes(a, "moe_grouped_gemm", default="moe_grouped_gemm" not in a and precision != "fp32"),
        fused_loss=_yes(a, "cross_entropy_loss_fusion", "cross_entropy_fusion"),
        distributed_optimizer=_yes(a, "use_distributed_optimizer"),
        overlap_grad_reduce=_yes(a, "overlap_grad_reduce"),
        overlap_param_gather=_yes(a, "overlap_param_gather"),
        overlap_p2p=_yes(a, "overlap_p2p_comm", default=not _yes(a, "batch_p2p_comm")),
        overlap_tp=_yes(a, "tp_comm_overlap"),
        overlap_ep=_yes(a, "overlap_moe_expert_parallel_comm"),
        overlap_shared_expert=_yes(a, "moe_shared_expert_overlap"),
        **_recompute(a, TABLE_MODULES if stack == "replay" else ("core_attn",)),  # type: ignore[arg-type]
    )


def _precision(workload: Workload) -> str:
    found = next((p for p in ("bf16", "fp16", "fp32") if p in workload.precision.lower()), "")
    if not found:
        raise UserError(f"workload.precision {workload.precision}: the estimate knows fp32, bf16 and fp16")
    return found


def _virtual(a: Arguments, layers: int, pp: int) -> int:
    vp = _number(a, "virtual_pipeline_model_parallel_size", "num_virtual_stages_per_pipeline_rank", default=0)
    each = _number(a, "num_layers_per_virtual_pipeline_stage", default=0)
    if not vp and each and pp > 1:
        return max(1, layers // pp // each)
    return max(1, vp)


def _end(a: Arguments, which: str) -> int | None:
    found = _number(a, f"num_layers_in_{which}_pipeline_stage", f"decoder_{which}_pipeline_num_layers", default=-1)
    return None if found < 0 else found


def _offload(a: Arguments) -> float:
    if not _yes(a, "optimizer_cpu_offload"):
        return 0.0
    share = a.get("optimizer_offload_fraction")
    return 1.0 if share is None else float(str(share))


def _moments(a: Arguments) -> float:
    """Return bytes of both moments of one parameter; other than 8 only with the precision-aware optimizer."""
    if not _yes(a, "use_precision_aware_optimizer"):
        return 8.0
    width = {"bf16": 2.0, "bfloat16": 2.0, "fp16": 2.0, "float16": 2.0, "fp8": 1.0, "uint8": 1.0}
    return sum(width.get(_text(a, name).rsplit(".", 1)[-1], 4.0) for name in ("exp_avg_dtype", "exp_avg_sq_dtype"))


def _attention(a: Arguments) -> str:
    how = _text(a, "attention_implementation", "attention_backend")
    if how.rsplit(".", 1)[-1] in ("local", "unfused"):
        return "unfused"
    return "unfused" if not how and _text(a, "transformer_impl") == "local" else "flash"


def _recompute(a: Arguments, default: tuple[str, ...]) -> dict[str, object]:
    how = _text(a, "recompute_granularity")
    if how in ("", "None", "none"):
        how = "selective" if _yes(a, "recompute_activations") else "none"
    modules = a.get("recompute_modules")
    named = tuple(str(m) for m in modules) if isinstance(modules, list) else default
    if isinstance(modules, str):
        named = tuple(modules.replace(",", " ").split())
    return {
        "recompute": how,
        "recompute_modules": tuple(sorted(named)),
        "recompute_method": _text(a, "recompute_method") or "uniform",
        "recompute_layers": max(1, _number(a, "recompute_num_layers", default=1)),
    }
