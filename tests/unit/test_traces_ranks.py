"""Law: ranks are compared only within one job, and by lengths only: their clocks are their own."""

from __future__ import annotations

from typing import Any

import pytest

from attuner.core.errors import UserError
from attuner.traces.profile import profile
from attuner.traces.ranks import compare, together
from attuner.traces.records import RankProfile

Json = dict[str, Any]
REDUCE = "ncclDevKernel_AllReduce_Sum_bf16(x)"


def event(name: str, start: float, end: float, cat: str, **args: Any) -> Json:
    where = {"pid": 0, "tid": args.get("stream", 1)}
    return {"ph": "X", "name": name, "cat": cat, **where, "ts": start, "dur": end - start, "args": args}


def rank(number: int | None, work: list[float], *, clock: float, world: int = 4, gpu: str = "H100") -> RankProfile:
    """A rank whose steps are computation for `work` µs and then an all-reduce that all leave at 90."""
    events = []
    for n, busy in enumerate(work):
        at = clock + 100 * n
        events += [
            event(f"ProfilerStep#{n}", at, at + 100, "user_annotation"),
            event("gemm", at, at + busy, "kernel", stream=7),
            event(REDUCE, at + busy, at + 90, "kernel", stream=9),
        ]
    distributed = {"backend": "nccl", "world_size": world, **({} if number is None else {"rank": number})}
    document = {"traceEvents": events, "distributedInfo": distributed, "deviceProperties": [{"name": gpu}]}
    return profile(document, name=f"trace{number}.json")


def test_the_rank_that_others_wait_for_is_found_among_many() -> None:
    work = {0: [40.0, 42.0], 1: [41.0, 41.0], 2: [70.0, 60.0], 3: [39.0, 40.0]}
    # clocks of different hosts are hours apart
    result = compare(together([rank(n, w, clock=1e9 * (n + 1)) for n, w in work.items()]))
    worst = result.stragglers[0]
    assert (worst.rank, worst.last, result.matched, result.steps) == (2, 2, 2, [0, 1])
    # the others were there 30, 29, 31 µs earlier in step 0 and 18, 19, 20 in step 1
    assert worst.caused == pytest.approx((30 + 18 + 19 + 20 + 29 + 31) / 3 / 2 * 1e3)
    assert worst.own == 65_000
    assert worst.behind == pytest.approx(65 / ((41 + 41 + 65 + 39.5) / 4) - 1)
    assert sum(s.last for s in result.stragglers[1:]) == 0


def test_collectives_that_do_not_line_up_are_not_matched_and_said() -> None:
    odd = rank(1, [40.0, 40.0], clock=5e6)
    odd.steps[1].collectives.append(("all_gather", 5))
    result = compare(together([rank(0, [30.0, 30.0], clock=1e6), odd]))
    assert (result.matched, result.unmatched) == (1, 1)


def test_one_rank_has_nobody_to_wait_for() -> None:
    result = compare(together([rank(0, [30.0], clock=1e6)]))
    assert (result.stragglers, result.steps) == ([], [])


@pytest.mark.parametrize(
    ("other", "says"),
    [
        (dict(gpu="V100"), "hardware H100 in trace0.json, V100 in trace1.json"),
        (dict(world=2), "world size 4 in trace0.json, 2 in trace1.json"),
    ],
)
def test_traces_of_different_jobs_are_refused(other: Json, says: str) -> None:
    with pytest.raises(UserError, match=says):
        together([rank(0, [30.0], clock=1e6), rank(1, [30.0], clock=1e6, **other)])


def test_one_rank_twice_is_refused() -> None:
    with pytest.raises(UserError, match="two traces of rank 1"):
        together([rank(1, [30.0], clock=1e6), rank(1, [31.0], clock=1e6)])


def test_traces_that_do_not_say_their_rank_are_numbered_in_the_order_given() -> None:
    found = together([rank(None, [30.0], clock=1e6), rank(0, [30.0], clock=1e6), rank(None, [31.0], clock=1e6)])
    assert [(p.rank, p.rank_from) for p in found] == [(0, "trace"), (1, "order"), (2, "order")]
