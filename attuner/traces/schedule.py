"""What a step loses by its schedule, told from final values alone: pipeline bubble, uneven stages, layers computed twice.

Work is counted in multiply-adds of a forward pass for one token; times follow it only roughly, so these are first answers,
and a profiled step that tells the same parts goes before them. Names are those of megatron-core and of Megatron-LM.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from attuner.core.base import Value

_PATTERN = re.compile(r"\[(\d+)\](?:\*(\d+))?")


def bubble(*, stages: int, chunks: int, microbatches: int) -> float:
    """Return the share of a step that a pipeline stage waits for the first and after the last micro-batch.

    (p-1) / (m·v + p-1) with p stages, m micro-batches and v chunks on each stage. Source: Narayanan et al. (2021),
    section 2.2, as a share of the whole step instead of the ideal one.
    """
    lost = stages - 1
    return lost / (microbatches * chunks + lost) if lost > 0 else 0.0


def bubble_of(arguments: Mapping[str, Value], facts: Mapping[str, Value]) -> float | None:
    """Return the bubble of final values; None if the number of micro-batches can't be told."""
    stages = number(arguments, "pipeline_model_parallel_size") or 1
    if stages == 1:
        return 0.0
    microbatches = num_microbatches(arguments, facts)
    return bubble(stages=stages, chunks=chunks_of(arguments), microbatches=microbatches) if microbatches else None


def num_microbatches(arguments: Mapping[str, Value], facts: Mapping[str, Value]) -> int | None:
    """Return the micro-batches of an update on one replica, from the facts or from batch sizes; None if they don't tell."""
    told = facts.get("num_microbatches")
    if isinstance(told, int):
        return told
    rows, micro = number(arguments, "global_batch_size"), number(arguments, "micro_batch_size")
    replicas = number(facts, "data_parallel_size")
    return rows // (micro * replicas) if rows and micro and replicas else None


def chunks_of(arguments: Mapping[str, Value]) -> int:
    """Return the virtual stages on each pipeline rank; 1 without interleaving."""
    return number(arguments, "virtual_pipeline_model_parallel_size", "num_virtual_stages_per_pipeline_rank") or 1


def stage_imbalance(arguments: Mapping[str, Value], facts: Mapping[str, Value]) -> float | None:
    """Return how much longer the slowest stage computes than the mean one, as a fraction; None if shapes or layers are missing.

    The output layer counts on the last stage. The embedding is a table look-up and counts nothing.
    """
    stages = number(arguments, "pipeline_model_parallel_size") or 1
    if stages == 1:
        return 0.0
    work, layers = layer_work(arguments), _stage_layers(arguments, facts, stages)
    if work is None or layers is None:
        return None
    words = number(facts, "padded_vocab_size") or number(arguments, "padded_vocab_size", "vocab_size") or 0
    loads = [sum(work[i] for i in held if i < len(work)) for held in layers]
    loads[-1] += (number(arguments, "hidden_size") or 0) * words
    mean = sum(loads) / len(loads)
    return max(loads) / mean - 1.0 if mean else None


def _stage_layers(arguments: Mapping[str, Value], facts: Mapping[str, Value], stages: int) -> list[list[int]] | None:
    """Return the layers that each pipeline rank holds, by their place in the model."""
    chunks, told = chunks_of(arguments), facts.get("layers_per_stage")
    by_rank = "decoder_first_pipeline_num_layers" in arguments  # the megatron stack lists rank by rank, mcore chunk by chunk
    counts = [n for n in told if isinstance(n, int)] if isinstance(told, list) else []
    if len(counts) != stages * chunks:
        counts, chunks = _even(arguments, stages), 1
    if not counts:
        return None
    order = [(c, r) for c in range(chunks) for r in range(stages)]
    held: list[list[int]] = [[] for _ in range(stages)]
    at = 0
    for chunk, rank in order:
        count = counts[rank * chunks + chunk] if by_rank else counts[chunk * stages + rank]
        held[rank] += range(at, at + count)
        at += count
    return held


def _even(arguments: Mapping[str, Value], stages: int) -> list[int]:
    """Return the layers of each stage by the counts of the first and the last one, the rest shared alike; or nothing."""
    layers = number(arguments, "num_layers")
    first = number(arguments, "num_layers_in_first_pipeline_stage", "decoder_first_pipeline_num_layers")
    last = number(arguments, "num_layers_in_last_pipeline_stage", "decoder_last_pipeline_num_layers")
    middle = stages - (first is not None) - (last is not None)
    rest = (layers or 0) - (first or 0) - (last or 0)
    if layers is None or rest < 0 or (rest and (middle <= 0 or rest % middle)):
        return []
    between = [rest // middle] * middle if middle > 0 else []
    return [*([first] if first is not None else []), *between, *([last] if last is not None else [])]


def layer_work(arguments: Mapping[str, Value]) -> list[float] | None:
    """Return multiply-adds of every layer for one token, forward; None if a shape is missing.

    Attention scores are causal: half of the row, for queries times keys and for weights times values.
    """
    layers, hidden, heads = (number(arguments, name) for name in ("num_layers", "hidden_size", "num_attention_heads"))
    row = number(arguments, "seq_length")
    if not layers or not hidden or not heads or not row:
        return None
    width = number(arguments, "kv_channels") or hidden // heads
    groups = number(arguments, "num_query_groups") if arguments.get("group_query_attention", True) else heads
    query, key = heads * width, (groups or heads) * width
    attention = hidden * (2 * query + 2 * key) + row * query
    factor = 3 if arguments.get("gated_linear_unit") or arguments.get("swiglu") else 2
    ffn = number(arguments, "ffn_hidden_size") or 4 * hidden
    dense = float(attention + factor * hidden * ffn)
    experts = number(arguments, "num_experts", "num_moe_experts")
    if not experts or experts < 2:
        return [dense] * layers
    expert = number(arguments, "moe_ffn_hidden_size") or ffn
    shared = number(arguments, "moe_shared_expert_intermediate_size") or 0
    routed = (number(arguments, "moe_router_topk") or 2) * expert + shared
    sparse = float(attention + factor * hidden * routed + hidden * experts)
    return [sparse if has else dense for has in _moe_layers(arguments.get("moe_layer_freq"), layers)]


def _moe_layers(pattern: Value, layers: int) -> list[bool]:
    """Return which layers have experts: every n-th from the first on, or as a list or Megatron's `[0]*3+[1]*89` says."""
    if isinstance(pattern, str):
        pattern = [int(value) for value, times in _PATTERN.findall(pattern) for _ in range(int(times or 1))]
    if isinstance(pattern, list) and len(pattern) == layers:
        return [bool(x) for x in pattern]
    every = pattern if isinstance(pattern, int) and pattern > 0 else 1
    return [i % every == 0 for i in range(layers)]


def recomputed_share(arguments: Mapping[str, Value], facts: Mapping[str, Value]) -> float | None:
    """Return the share of compute that goes into layers computed twice; None where it takes more than a layout to tell.

    Full recompute of every layer is one more forward pass beside one forward and a backward of two: a quarter.
    """
    granularity = arguments.get("recompute_granularity")
    if granularity is None:
        return 0.0
    if granularity != "full":
        return None
    whole = 1.0
    layers, held = number(arguments, "num_layers"), number(arguments, "recompute_num_layers")
    if arguments.get("recompute_method") == "block" and layers and held:
        stages = (number(arguments, "pipeline_model_parallel_size") or 1) * chunks_of(arguments)
        whole = min(1.0, held * stages / layers)
    return whole / (3.0 + whole)


def number(values: Mapping[str, Value], *names: str) -> int | None:
    """Return the first of these values that is a whole number, not a boolean."""
    found: Sequence[Value] = [values.get(name) for name in names]
    return next((x for x in found if isinstance(x, int) and not isinstance(x, bool)), None)
