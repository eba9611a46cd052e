"""What one device of each pipeline stage holds: weights, gradients, optimizer, activations, logits, buffers, reserve."""

from __future__ import annotations

from dataclasses import replace

from attuner.estimate.shape import BYTES, Layout, Shape, padded_vocab

GIB = float(1 << 30)
FRAGMENTATION = 0.03
"""Share of what torch allocates that lies idle between blocks. Source: public memory reports (reserved over allocated)."""
COMM_GIB = 0.7
"""What NCCL's communicators and cuBLAS workspaces hold on a GPU beside torch's allocator."""
MEMORY_PARTS = ("weights", "gradients", "optimizer", "activations", "moe", "logits", "working", "reserve")


def stage_params(shape: Shape, layout: Layout, stage: int, layers: range) -> tuple[float, float]:
    """Return parameters of one rank of the stage: (dense part, experts' part)."""
    h, tp = shape.hidden, layout.tp
    dense = expert = 0.0
    norms = 2 * h
    attention = shape.attention_params()
    if shape.kv_groups < tp and not shape.kv_lora:
        attention += shape.hidden * 2 * shape.head_dim * (tp - shape.kv_groups)
    for i in layers:
        dense += attention / tp + norms
        if shape.moe_layers[i]:
            dense += shape.num_experts * h + shape.mlp_params(shape.shared_ffn) / tp
            expert += shape.num_experts / layout.ep * shape.mlp_params(shape.moe_ffn) / layout.etp
        else:
            dense += shape.mlp_params(shape.ffn) / tp
    table = padded_vocab(shape.vocab, tp) / tp * h
    if stage == 0:
        dense += table + shape.learned_positions * h
    if stage == layout.pp - 1:
        dense += h + (table if not shape.tied or layout.pp > 1 else 0.0)
        moe = shape.moe_layers[-1] if shape.moe_layers else 0
        for _ in range(shape.mtp_layers):
            dense += attention / tp + 2 * h * h / tp
            dense += shape.mlp_params(shape.shared_ffn if moe else shape.ffn) / tp
            expert += shape.num_experts / layout.ep * shape.mlp_params(shape.moe_ffn) / layout.etp if moe else 0.0
    return dense, expert


def layer_bytes(shape: Shape, layout: Layout, *, moe: bool) -> tuple[float, float, float]:
    """Return what one layer keeps of one micro-batch: (attention and dense part, experts' part, its input alone)."""
    e, h, tp = BYTES[layout.precision], shape.hidden, layout.tp
    tokens = layout.micro_batch * layout.seq_len / layout.cp
    near = tokens / (tp if layout.sequence_parallel else 1)
    chosen = layout.recompute_modules if layout.recompute == "selective" else ()
    entry = near * h * e
    norms = 2 * entry * (1 if "layernorm" in chosen else 2)
    kept = 2.0 * near * h  # masks of the two dropouts; PyTorch keeps them at rate 0 too
    q, v = shape.heads * shape.query_dim / tp, shape.heads * shape.value_dim / tp
    kv = max(1.0, shape.kv_groups / tp) * (shape.query_dim + shape.value_dim) if not shape.kv_lora else q + v
    kept += tokens * (q + kv + v) * e
    if shape.kv_lora:
        kept += near * (shape.q_lora * 2 + (shape.kv_lora * 2 + shape.rope_dim)) * e
        if "mla_up_proj" in chosen:
            kept -= tokens * (q + kv) * e
    if layout.attention == "flash":
        kept += tokens * shape.heads / tp * 4
    elif "core_attn" not in chosen:
        scores = layout.micro_batch * shape.heads / tp * layout.seq_len * layout.seq_len / layout.cp
        kept += scores * (2 * e + (1 if shape.dropout else 0))
    kept = norms + (tokens * v * e if "attention" in chosen else kept)
    up = 2 if shape.gated else 1
    if not moe:
        kept += 0.0 if "mlp" in chosen else tokens * shape.ffn / tp * (up + 1) * e
        return kept, 0.0, entry
    rows = near * shape.topk * layout.etp
    experts = near * shape.num_experts * 8
    if "moe" not in chosen:
        act, inner = 0.0 if "moe_act" in chosen else 1.0, 0.0 if "experts" in chosen else 1.0
        experts += rows * h * e + inner * rows * shape.moe_ffn / layout.etp * (up + act) * e
        experts += near * shape.topk * h * e if layout.ep * layout.etp > 1 or "experts" in chosen else 0.0
        if "shared_experts" not in chosen:
            experts += tokens * shape.shared_ffn / tp * (up + act) * e
    return kept, experts, entry


def in_flight(layout: Layout, stage: int) -> float:
    """Return how many micro-batches' activations a stage holds at most, in units of the whole stage's layers."""
    m, pp, vp = layout.num_microbatches, layout.pp, layout.vp
    if pp == 1:
        return 1.0
    if vp == 1:
        return float(min(m, pp - stage))
    return min(m * vp, (pp - stage - 1) * 2 + (vp - 1) * pp + 1) / vp


def static_bytes(layout: Layout, dense: float, expert: float) -> dict[str, float]:
    """Return weights, gradients and optimizer states of one rank."""
    e = BYTES[layout.precision]
    master = 0 if layout.precision == "fp32" else 4
    shard, expert_shard = (layout.dp * layout.cp, layout.edp) if layout.distributed_optimizer else (1, 1)
    state = (layout.moment_bytes + master) * (dense / shard + expert / expert_shard) * (1 - layout.offload)
    return {
        "weights": e * (dense + expert),
        "gradients": (4 if layout.grads_fp32 else e) * (dense + expert),
        "optimizer": state,
    }


def working_bytes(shape: Shape, layout: Layout, *, moe: bool) -> float:
    """Return what is alive only while one layer is computed: backward's gradients, and a recomputed layer's own activations."""
    plain = replace(layout, recompute="none") if layout.recompute != "none" else layout
    kept, experts, entry = layer_bytes(shape, plain, moe=moe)
    held, held_experts, _ = layer_bytes(shape, layout, moe=moe)
    if layout.recompute == "full":
        return (kept + experts - entry) * max(1, layout.recompute_layers) + 2 * entry
    return max(0.0, kept + experts - held - held_experts) + 0.25 * (kept + experts)


def stage_memory(shape: Shape, layout: Layout, stage: int, layers: range, *, cpu: bool = False) -> dict[str, float]:
    """Return GiB of one rank of a stage, by part."""
    dense, expert = stage_params(shape, layout, stage, layers)
    parts = static_bytes(layout, dense, expert)
    moe = sum(shape.moe_layers[i] for i in layers)
    plain = len(layers) - moe
    kept = experts = 0.0
    for count, kind in ((plain, False), (moe, True)):
        if not count:
            continue
        held, extra, entry = layer_bytes(shape, layout, moe=kind)
        if layout.recompute == "full":
            whole = count if layout.recompute_method == "uniform" else min(count, layout.recompute_layers * layout.vp)
            kept += (count - whole) * held + whole * entry / (
                layout.recompute_layers if layout.recompute_method == "uniform" else 1
            )
            experts += (count - whole) * extra
        else:
            kept += count * held
            experts += count * extra
    flight = in_flight(layout, stage)
    parts["activations"], parts["moe"] = kept * flight, experts * flight
    parts["logits"] = _logits(shape, layout) if stage == layout.pp - 1 else 0.0
    if stage == 0:
        e, tp = BYTES[layout.precision], layout.tp if layout.sequence_parallel else 1
        parts["activations"] += layout.micro_batch * layout.seq_len / layout.cp / tp * shape.hidden * e * flight
    parts["working"] = working_bytes(shape, layout, moe=moe > 0) + _weight_gradient(shape, layout, moe=moe == len(layers))
    allocated = sum(parts.values())
    parts["reserve"] = 0.0 if cpu else FRAGMENTATION * allocated + COMM_GIB * GIB
    return {name: parts[name] / GIB for name in MEMORY_PARTS}


def _weight_gradient(shape: Shape, layout: Layout, *, moe: bool) -> float:
    """Return the largest matrix's gradient in fp32, which is whole before it is added to the buffer."""
    up = 2 if shape.gated else 1
    width = max(shape.shared_ffn / layout.tp, shape.moe_ffn / layout.etp) if moe else shape.ffn / layout.tp
    return 4.0 * up * width * shape.hidden


def _logits(shape: Shape, layout: Layout) -> float:
    e = BYTES[layout.precision]
    tokens = layout.micro_batch * layout.seq_len / layout.cp
    width = padded_vocab(shape.vocab, layout.tp) / layout.tp
    copies = (e + e) if layout.fused_loss else (e + 4 + 4)
    return tokens * width * copies + tokens * shape.hidden / layout.tp * e
