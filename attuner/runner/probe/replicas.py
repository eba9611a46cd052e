"""Brings a step's numbers together inside the groups of ranks that hold the same parameters, so that one rank of each group
speaks for all: sums over the shards of a distributed optimizer, and whether replicas agree bit for bit. A few all_reduce
calls on packed tensors, whatever the number of parameters; all other ranks' shares are then nothing but their agreement."""

import dataclasses
from typing import Any

import torch
import torch.distributed as dist

from .columns import FLOATS, WHOLE
from .measure import Numbers
from .numbers import key_of
from .piece import Piece


@dataclasses.dataclass
class Group:
    """Ranks that hold the same pieces: dense parameters', or experts'."""

    pieces: list[Piece]
    whole: Any
    """Process group of all replicas."""
    shards: Any | None
    """Process group over which the distributed optimizer shards; None where every rank has all."""

    @property
    def speaks(self) -> bool:
        """Say whether this rank speaks for its group."""
        return dist.get_rank(self.whole) == 0

    @property
    def copies(self) -> int:
        """Return how many ranks have the same reduced gradient."""
        return dist.get_world_size(self.whole) // (1 if self.shards is None else dist.get_world_size(self.shards))


def groups_of(chunk: Any, pieces: list[Piece], has_experts: bool) -> list[Group]:
    """Return the groups of a model's pieces: the same list on every rank, though a group can be empty of pieces.

    chunk: one of the model's chunks in megatron's DistributedDataParallel, which reduces marked experts among themselves.
    """
    sharded = chunk.ddp_config.use_distributed_optimizer
    apart = [not getattr(piece.parameter, "allreduce", True) for piece in pieces]
    dense = [piece for piece, alone in zip(pieces, apart, strict=True) if not alone]
    found = [Group(dense, chunk.dp_cp_group, chunk.intra_dp_cp_group if sharded else None)]
    if has_experts:
        experts = [piece for piece, alone in zip(pieces, apart, strict=True) if alone]
        found.append(Group(experts, chunk.expt_dp_group, chunk.intra_expt_dp_group if sharded else None))
    return found


def agree(group: Group, device: Any) -> str:
    """Return why the group's ranks can't be brought together, or nothing. A collective of fixed size."""
    names = "\n".join(f"{piece.key} {tuple(piece.parameter.shape)}" for piece in group.pieces)
    key = key_of(names)
    both = torch.tensor([key, ~key], dtype=torch.int64, device=device)
    dist.all_reduce(both, op=dist.ReduceOp.MAX, group=group.whole)
    return "" if int(both[0]) == ~int(both[1]) else "replicas hold different parameters"


def reduce(group: Group, numbers: Numbers) -> dict[str, Any]:
    """Bring one step's numbers together. A collective over the group; its speaker's answer is the whole group's.

    Returns: floats (pieces, FLOATS), hashes (pieces, 2), codes (pieces, CODES) as nested lists, and grad_differs and
    weight_differs, one flag a piece.
    """
    floats, hashes = numbers.floats, numbers.hashes
    if not group.pieces:
        return {name: [] for name in ("floats", "hashes", "codes", "grad_differs", "weight_differs")}
    if group.shards is not None:
        if dist.get_rank(group.shards):
            floats[:, [FLOATS.index(name) for name in WHOLE]] = 0.0
        dist.all_reduce(floats, group=group.shards)
        gradient = hashes[:, 0].contiguous()
        dist.all_reduce(gradient, group=group.shards)
        hashes[:, 0] = gradient
    both = torch.cat([hashes, ~hashes, numbers.codes], 1)
    dist.all_reduce(both, op=dist.ReduceOp.MAX, group=group.whole)
    differs = (both[:, :2] != ~both[:, 2:4]).tolist()
    return {
        "floats": floats.tolist(),
        "hashes": hashes.tolist(),
        "codes": both[:, 4:].tolist(),
        "grad_differs": [flags[0] for flags in differs],
        "weight_differs": [flags[1] for flags in differs],
    }
