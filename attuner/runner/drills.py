"""Rehearses failures: job key "inject" {"kind", "step"} makes a run fail on purpose before that step, so that a team
sees its alarms go off. 'hang' stops the last rank, 'crash' raises on it, 'oom' really asks for more memory than the
device has, 'nan' spoils a weight on every rank. {"kind": "slow_node", "node": 1, "factor": 3} lets the
probe of the nodes find one that is slow; the run itself goes on untouched."""

import time
from typing import Any

from .errors import ConfigError

_KINDS = ("hang", "crash", "oom", "nan", "slow_node")


def slowness(job: dict[str, Any], *names: int | str) -> float:
    """Return how many times slower the node of one of these names (its index, its id) pretends to be."""
    inject = job.get("inject") or {}
    return float(inject["factor"]) if inject.get("kind") == "slow_node" and inject.get("node") in names else 1.0


def rehearse(inject: dict[str, Any] | None, step: int, last_rank: bool, chunks: list[Any], limit: float | None) -> None:
    """Fail as the job asks, if this is its step.

    limit: GiB of the device, None when it isn't limited.
    Raises: RuntimeError for 'crash'; torch's out-of-memory error for 'oom'; ConfigError for an unknown kind.
    """
    if not inject:
        return
    kind = inject["kind"]
    if kind not in _KINDS:
        raise ConfigError(f"inject kind must be one of {', '.join(_KINDS)}, not {kind}")
    if kind == "slow_node" or step != inject["step"]:
        return
    import torch

    if kind == "nan":
        with torch.no_grad():
            next(chunks[0].parameters()).fill_(float("nan"))
    elif not last_rank:
        return
    elif kind == "hang":
        while True:
            time.sleep(3600)
    elif kind == "crash":
        raise RuntimeError(f"rehearsed crash before step {step}")
    else:
        _exhaust(next(chunks[0].parameters()).device, limit)


def _exhaust(device: Any, limit: float | None) -> None:
    """Fill the device a little beyond its limit, or ask for what no machine has."""
    import torch

    if limit is None:
        torch.empty(1 << 55, dtype=torch.uint8, device=device)
    pieces = []
    while True:
        # Touched, so that it's resident; paused, so that the guard's thread sees it before the machine feels it.
        pieces.append(torch.ones(1 << 24, dtype=torch.uint8, device=device))
        time.sleep(0.002)
