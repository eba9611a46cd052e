"""The breakdown that a campaign records: `RankStep`s, in seconds, of one rank's trace. Only whole traces count here.

How each nanosecond is told apart is written in `gpu` and `cpu`; `profile` has the same figures exactly, with everything
that is odd about a trace.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from attuner.core.errors import UserError
from attuner.core.run import RankStep
from attuner.traces.profile import profile
from attuner.traces.records import StepParts

_NS = 1e-9


def breakdown(data: bytes | Iterable[bytes] | dict[str, Any], *, rank: int) -> list[RankStep]:
    """Return where each profiled step of a rank went, in seconds, in the order of the steps.

    `data` is a chrome trace: plain JSON or gzip, whole or in pieces, or already parsed. The parts of a step add up to
    `step_s`; `comm_by_kind` and `comm_by_group` add up to `exposed_comm_s`, which includes waiting for the peer. Steps
    in doubt are left out: without a single record of the device (the profiler's own last step), short of records.

    Raises:
        UserError: the trace can't be read, ends early, has no profiled step, or is a GPU run without a GPU record.
    """
    found = profile(data, rank=rank, whole=False)
    cut = next((q.text for q in found.quirks if q.code == "truncated"), "")
    if cut:
        raise UserError(f"trace: {cut}; profile again")
    return [rank_step(s, rank) for s in found.steps if not s.doubt]


def rank_step(parts: StepParts, rank: int) -> RankStep:
    """Return a step's parts as a record, in seconds."""
    return RankStep(
        rank=rank,
        step=parts.number,
        step_s=parts.span * _NS,
        compute_s=parts.compute * _NS,
        exposed_comm_s=parts.exposed * _NS,
        copy_s=parts.copy * _NS,
        host_s=parts.host * _NS,
        idle_s=parts.idle * _NS,
        overlapped_comm_s=parts.hidden * _NS,
        comm_by_kind={k: v * _NS for k, v in parts.exposed_by_kind.items()},
        comm_by_group={k: v * _NS for k, v in parts.exposed_by_group.items()},
        hidden_by_group={k: v * _NS for k, v in parts.hidden_by_group.items()},
        detail={k: v * _NS for k, v in parts.detail.items()},
    )
