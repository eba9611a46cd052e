"""The way from the ranks to one file: every rank that speaks for its replicas writes its share into the run directory, the
ranks tell each other who did, and rank 0 merges the shares and removes them. Costs two small collectives, whatever the number
of ranks."""

import contextlib
import math
import shutil
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from .. import files
from .merge import merge
from .replicas import Group


def keys(group: Group) -> dict[str, Any]:
    """Return what a share says of a group once, before its numbers."""
    return {
        "ranks": dist.get_world_size(group.whole),
        "copies": group.copies,
        "sharded": group.shards is not None,
        "keys": [[*piece.key, piece.family, piece.parameter.numel(), piece.twin] for piece in group.pieces],
    }


def word(value: float | None) -> float | str | None:
    """Return a number for strict JSON; one that isn't finite becomes a word."""
    number = None if value is None else float(value)
    return number if number is None or math.isfinite(number) else str(number)


def strict(part: dict[str, Any]) -> dict[str, Any]:
    """Return a group's numbers for strict JSON: floats that aren't finite become None."""
    floats = [[value if math.isfinite(value) else None for value in row] for row in part["floats"]]
    return {**part, "floats": floats}


def settle(run_dir: Path, share: dict[str, Any] | None, header: dict[str, Any], device: Any, *, keep: bool) -> str:
    """Write this rank's share, wait for all, and on rank 0 leave the fingerprint. A collective over all ranks.

    share: None on ranks that speak for nobody. keep: leave the shares beside the fingerprint.
    Returns: why it didn't work, or nothing.
    """
    why, rank = "", dist.get_rank()
    path = run_dir / files.share(rank)
    flags = torch.zeros(dist.get_world_size(), dtype=torch.int64, device=device)
    if share is not None:
        flags[rank] = 1
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            files.write_json(path, share)
        except (OSError, ValueError) as error:
            flags[rank], why = 2, f"{type(error).__name__}: {error}"
    dist.all_reduce(flags)  # who wrote; and nobody passes before all have written
    if rank == 0:
        try:
            _gather(run_dir, flags.tolist(), header, keep=keep)
        except Exception as error:  # noqa: BLE001 - the run goes on, its fingerprint says why it is empty
            why = f"{type(error).__name__}: {error}"[:200]
            with contextlib.suppress(OSError, ValueError):
                lone = {"groups": [], "steps": [], "missing": {"probe": why}, "not_finite": []}
                files.write_json(run_dir / files.FINGERPRINT, merge(header, [lone], []))
    dist.barrier()  # so that rank 0's work falls into no later step
    return why


def _gather(run_dir: Path, flags: list[int], header: dict[str, Any], *, keep: bool) -> None:
    shares, absent = [], [rank for rank, flag in enumerate(flags) if flag == 2]
    for rank in (rank for rank, flag in enumerate(flags) if flag == 1):
        try:
            shares.append(files.read_json(run_dir / files.share(rank)))
        except (OSError, ValueError):
            absent.append(rank)
    files.write_json(run_dir / files.FINGERPRINT, merge(header, shares, absent))
    if not keep:
        with contextlib.suppress(OSError):
            shutil.rmtree(run_dir / files.SHARES)
