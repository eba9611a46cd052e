"""Law: bottlenecks come largest first, and each says the most that removing it can give."""

from __future__ import annotations

import math

import pytest

from attuner.core.run import RankStep, StepBreakdown
from attuner.traces.summary import ranked


def made(*, compute: float, comm: dict[str, float], host: float, idle: float, exposed: float | None = None) -> StepBreakdown:
    total = sum(comm.values()) if exposed is None else exposed
    r = RankStep(
        rank=0,
        step=1,
        step_s=compute + total + host + idle,
        compute_s=compute,
        exposed_comm_s=total,
        host_s=host,
        idle_s=idle,
        comm_by_kind=comm,
    )
    return StepBreakdown(launch_id="l01", rank_steps=[r])


def test_parts_are_ranked_and_communication_is_named_by_kind() -> None:
    found = ranked(made(compute=0.3, comm={"all_reduce": 0.1, "all_to_all": 0.5}, host=0.1, idle=0.0))
    assert [b.name for b in found] == ["exposed_comm:all_to_all", "compute", "exposed_comm:all_reduce", "host"]
    assert found[0].share == pytest.approx(0.5)
    assert found[0].max_gain == pytest.approx(1.0)
    assert sum(b.share for b in found) == pytest.approx(1.0)


def test_exposed_time_that_no_kind_explains_is_not_lost() -> None:
    found = ranked(made(compute=0.5, comm={"other": 0.1}, host=0.0, idle=0.0, exposed=0.5))
    assert {b.name: round(b.share, 6) for b in found} == {"compute": 0.5, "exposed_comm:other": 0.5}


def test_a_step_that_is_one_thing_only_has_no_finite_bound() -> None:
    (only,) = ranked(made(compute=1.0, comm={}, host=0.0, idle=0.0))
    assert math.isinf(only.max_gain)


def test_no_steps_have_no_bottleneck() -> None:
    assert ranked(StepBreakdown(launch_id="l01", rank_steps=[])) == []
