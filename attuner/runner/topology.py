"""A short probe of the nodes before a run: how fast each multiplies matrices, and how fast neighbours exchange and all reduce.

`python -m torch.distributed.run ... -m attuner_runner.topology RUN_DIR`, one rank a device; rank 0 leaves files.TOPOLOGY with a
row a node. NCCL on GPUs, gloo on CPUs; a few seconds. A figure is the best of several rounds: what a sick node can't reach in
any of them. Neighbours are paired in a ring of nodes, so that a slow port shows in both of its node's pairs.
"""

import datetime
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from . import drills, files
from .rank import die_with_parent, leave

ROUNDS, PRODUCT_ROUNDS = 5, 25
SIZES = {"cuda": (8192, 20, 256 << 20), "cpu": (384, 8, 4 << 20)}
"""Side of the square matrices, products a round, bytes that are exchanged."""


def main(run_dir: Path) -> None:
    """Measure, and let rank 0 write what every node told."""
    die_with_parent()
    import torch
    import torch.distributed as dist

    job = files.read_json(run_dir / files.JOB)
    kind = job.get("device", {}).get("kind", "cpu")
    kind = "cuda" if kind == "cuda" and torch.cuda.is_available() else "cpu"
    local, node = int(os.environ["LOCAL_RANK"]), int(os.environ["GROUP_RANK"])
    device = torch.device("cuda", local) if kind == "cuda" else torch.device("cpu")
    if kind == "cuda":
        torch.cuda.set_device(device)
    torch.set_num_threads(1)
    dist.init_process_group("nccl" if kind == "cuda" else "gloo", timeout=datetime.timedelta(seconds=60))
    slowness = drills.slowness(job, node, os.environ.get("ATTUNER_NODE_ID", ""))
    mine: dict[str, Any] = {"node": node, "local": local, "matmul_ms": _matmul(torch, device, kind, slowness)}
    bytes_ = SIZES[kind][2]
    mine |= {"exchange_gb_s": _exchange(torch, dist, device, kind, bytes_)}
    mine |= {"allreduce_gb_s": _allreduce(torch, dist, device, kind, bytes_)}
    told: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(told, mine)
    if dist.get_rank() == 0:
        files.write_json(run_dir / files.TOPOLOGY, {"backend": "nccl" if kind == "cuda" else "gloo", "ranks": told})
    dist.barrier()
    dist.destroy_process_group()
    leave(0)


def _matmul(torch: Any, device: Any, kind: str, slowness: float) -> float:
    """Return milliseconds of one product; a drill's `slowness` has more of them done in its time."""
    side, products, _ = SIZES[kind]
    a = torch.randn(side, side, device=device, dtype=torch.bfloat16 if kind == "cuda" else torch.float32)

    def once() -> None:
        for _ in range(round(products * slowness)):
            torch.mm(a, a)

    once()
    return round(_best(torch, kind, once, rounds=PRODUCT_ROUNDS) / products * 1000, 4)


def _allreduce(torch: Any, dist: Any, device: Any, kind: str, bytes_: int) -> float:
    """Return GB/s of an all-reduce over all ranks, as bus bandwidth: 2(n−1)/n bytes a rank."""
    world = dist.get_world_size()
    buffer = torch.ones(bytes_ // 4, device=device)
    seconds = _best(torch, kind, lambda: dist.all_reduce(buffer.fill_(1.0)), first=dist.barrier)
    return round(2 * (world - 1) / world * bytes_ / seconds / 1e9, 3)


def _exchange(torch: Any, dist: Any, device: Any, kind: str, bytes_: int) -> float | None:
    """Return GB/s that this rank sends while its node exchanges with a neighbour, the better of two; None for a lone node."""
    nodes, node, local = (int(os.environ[name]) for name in ("GROUP_WORLD_SIZE", "GROUP_RANK", "LOCAL_RANK"))
    rank, world = dist.get_rank(), dist.get_world_size()
    full = (
        int(os.environ["LOCAL_WORLD_SIZE"]) if node < nodes - 1 or not node else (rank - local) // node
    )  # the last may be partly used
    out, back = torch.ones(bytes_ // 4, device=device), torch.empty(bytes_ // 4, device=device)
    best = 0.0
    for pairs in pairings(nodes):
        peer = next((b if a == node else a for a, b in pairs if node in (a, b)), None)
        other = peer * full + local if peer is not None else world
        dist.barrier()
        if other >= world:
            continue

        def once(other: int = other) -> None:
            both = [dist.P2POp(dist.isend, out, other), dist.P2POp(dist.irecv, back, other)]
            for work in dist.batch_isend_irecv(both):
                work.wait()

        once()
        best = max(best, bytes_ / _best(torch, kind, once) / 1e9)
    return round(best, 3) if best else None


def pairings(nodes: int) -> list[list[tuple[int, int]]]:
    """Return rounds of disjoint pairs that together are a ring of the nodes."""
    ring = [(i, (i + 1) % nodes) for i in range(nodes)] if nodes > 2 else [(0, 1)] if nodes == 2 else []
    rounds: list[list[tuple[int, int]]] = []
    for pair in ring:
        free = next((r for r in rounds if not any(set(pair) & set(p) for p in r)), None)
        if free is None:
            rounds.append([pair])
        else:
            free.append(pair)
    return rounds


def _best(
    torch: Any, kind: str, once: Callable[[], object], *, first: Callable[[], object] | None = None, rounds: int = ROUNDS
) -> float:
    """Return the seconds of the fastest of some rounds."""
    best = float("inf")
    for _ in range(rounds):
        if first is not None:
            first()
        if kind == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
        once()
        if kind == "cuda":
            torch.cuda.synchronize()
        best = min(best, time.perf_counter() - start)
    return best


if __name__ == "__main__":
    main(Path(sys.argv[1]))
