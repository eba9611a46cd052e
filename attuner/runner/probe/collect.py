"""Finds the pieces of a model on this rank: which parameters, which shards of them, and which range of each this rank's
optimizer reduces and updates."""

import re
from typing import Any

import torch
from megatron.core import parallel_state

from .piece import EXPERT, TIED, Piece, global_name, unwrapped


def collect(chunks: list[Any], config: Any) -> tuple[list[Piece], dict[str, str]]:
    """Return this rank's pieces in the same order on all its replicas, and what isn't among them and why.

    chunks: the model's chunks in megatron's DistributedDataParallel.
    """
    if not all(isinstance(getattr(chunk, "expert_parallel_buffers", None), list) for chunk in chunks):
        return [], {"families": f"{type(chunks[0]).__name__} isn't megatron's DistributedDataParallel with gradient buffers"}
    experts, missing = config.num_moe_experts or 0, {}
    first_expert = 0
    if experts:
        ranks = parallel_state.get_expert_model_parallel_world_size()
        first_expert = parallel_state.get_expert_model_parallel_rank() * (experts // ranks)
    pieces, frozen = [], 0
    for chunk in chunks:
        core, ranges = unwrapped(chunk), _ranges(chunk)
        for local, parameter in core.named_parameters():
            name = global_name(core, local, first_expert)
            if not parameter.requires_grad:
                frozen += 1
            elif parameter not in ranges:
                missing[f"parameter {name}"] = "it is in no gradient buffer"
            elif re.search(r"experts\.weight[12]$", name):
                missing[f"parameter {name}"] = "all experts in one tensor (legacy GroupedMLP)"
            else:
                pieces.append(_piece(core, name, parameter, ranges[parameter], config))
    if frozen:
        missing["frozen parameters"] = f"{frozen} on rank {torch.distributed.get_rank()} take no gradient"
    return pieces, missing


def _piece(core: Any, name: str, parameter: Any, owned: tuple[int, int], config: Any) -> Piece:
    expert, shard, axis = EXPERT.search(name) is not None, (0, 1), 0
    if expert and re.search(r"linear_fc1\.|linear_fc2\.weight", name):
        # by name: Transformer Engine's experts carry no marks when megatron does their communication
        shard = (parallel_state.get_expert_tensor_parallel_rank(), parallel_state.get_expert_tensor_parallel_world_size())
        axis = 0 if "linear_fc1" in name else 1
    elif getattr(parameter, "tensor_model_parallel", False):
        shard = (parallel_state.get_tensor_model_parallel_rank(), parallel_state.get_tensor_model_parallel_world_size())
        axis = int(parameter.partition_dim)
    gated = bool(config.gated_linear_unit) and "linear_fc1" in name
    blocks = max(2 if gated else 1, int(getattr(parameter, "partition_stride", 1) or 1))
    tied = name == "output_layer.weight" and bool(getattr(core, "share_embeddings_and_output_weights", False))
    twin = bool(getattr(parameter, "shared", False))
    return Piece(TIED if tied else name, parameter, shard, (axis, blocks), expert, *owned, twin)


def _ranges(chunk: Any) -> dict[Any, tuple[int, int]]:
    """Return the flat range of every parameter whose reduced gradient this rank has: all of it, or its shard."""
    sharded = chunk.ddp_config.use_distributed_optimizer
    ranges = {}
    for buffer in [*chunk.buffers, *chunk.expert_parallel_buffers]:
        group = buffer.data_parallel_group
        for parameter, (start, end, bucket_id) in buffer.param_index_map.items():
            lo, hi = start, end
            if sharded:
                bucket = buffer.buckets[bucket_id]
                width = bucket.grad_data.numel() // group.size()
                first = bucket.offset + group.rank() * width
                lo, hi = max(start, first), min(end, first + width)
            ranges[parameter] = (lo - start, max(hi, lo) - start)
    return ranges
