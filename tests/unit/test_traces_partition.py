"""Law: the parts of a step are a partition of it to the nanosecond, and equal painting every nanosecond of it, on any trace."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from attuner.traces.profile import profile
from attuner.traces.records import PARTS, StepParts

BASE_US, SPAN = 4_000_000_000_000, 3000
"""Clock of the trace, and length of a step in ns."""
COLLECTIVES = ("ncclDevKernel_AllReduce_Sum_bf16", "ncclDevKernel_AllGather_RING", "ncclKernel_SendRecv")
Json = dict[str, Any]


def event(name: str, start: int, end: int, cat: str, pid: int, tid: int, **args: Any) -> Json:
    """One complete event; times in ns of the trace."""
    times = {"ts": BASE_US + start / 1000, "dur": (end - start) / 1000}
    return {"ph": "X", "name": name, "cat": cat, "pid": pid, "tid": tid, "args": args, **times}


def gpu_trace(seed: int) -> tuple[list[Json], list[tuple[int, int, str]], list[tuple[int, int]], list[tuple[int, int]]]:
    """Return a random trace of one step, its device records, their launches (start, end), and the synchronize calls."""
    rng = np.random.default_rng(seed)
    events = [event("ProfilerStep#1", 0, SPAN, "user_annotation", 1, 100)]
    records, launches, syncs = [], [], []
    used: set[int] = set()
    for k in range(int(rng.integers(1, 40))):
        start = int(rng.integers(-300, SPAN))
        if start in used:
            continue
        used.add(start)
        end = start + int(rng.integers(1, 300))
        cat = str(rng.choice(["kernel", "kernel", "comm", "gpu_memcpy"]))
        name = str(rng.choice(COLLECTIVES)) if cat == "comm" else f"k{k}"
        called = start - int(rng.integers(0, 400))
        returned = called + int(rng.integers(1, 200))
        events.append(event("cudaLaunchKernel", called, returned, "cuda_runtime", 1, 100, correlation=k + 1))
        stream = int(rng.integers(7, 10))
        events.append(event(name, start, end, "kernel" if cat == "comm" else cat, 0, stream, correlation=k + 1, stream=stream))
        records.append((start, end, cat))
        launches.append((called, returned))
    for _ in range(int(rng.integers(0, 4))):
        at = int(rng.integers(0, SPAN))
        syncs.append((at, at + int(rng.integers(1, 300))))
        events.append(event("cudaDeviceSynchronize", *syncs[-1], "cuda_runtime", 1, 100))
    return events, records, launches, syncs


def painted(records: list[tuple[int, int, str]], launches: list[tuple[int, int]], syncs: list[tuple[int, int]]) -> dict[str, int]:
    """Return the parts by looking at every nanosecond by itself."""
    out = dict.fromkeys((*PARTS, "hidden"), 0)
    order = sorted(range(len(records)), key=lambda k: records[k][0])
    for t in range(SPAN):
        running = {cat for a, b, cat in records if a <= t < b}
        if "kernel" in running:
            out["compute"] += 1
            out["hidden"] += "comm" in running
        elif "comm" in running:
            out["exposed"] += 1
        elif running:
            out["copy"] += 1
        else:
            following = next((k for k in order if records[k][0] > t), None)
            lags = following is not None and t < launches[following][1]
            out["host" if lags and not any(a <= t < b for a, b in syncs) else "idle"] += 1
    return out


def adds_up(step: StepParts) -> None:
    assert sum(getattr(step, p) for p in PARTS) == step.span
    assert all(getattr(step, p) >= 0 for p in PARTS)
    assert sum(step.exposed_by_kind.values()) == sum(step.exposed_by_group.values()) == step.exposed
    assert sum(step.hidden_by_group.values()) == step.hidden


@pytest.mark.parametrize("seed", range(60))
def test_the_parts_of_a_gpu_step_equal_painting_it(seed: int) -> None:
    events, records, launches, syncs = gpu_trace(seed)
    # one more record well after the step, so that every idle stretch has something that ends it
    events.append(event("cudaLaunchKernel", SPAN + 5000, SPAN + 5001, "cuda_runtime", 1, 100, correlation=999))
    events.append(event("after", SPAN + 6000, SPAN + 6001, "kernel", 0, 7, correlation=999, stream=7))
    (step,) = profile({"traceEvents": events}).steps
    adds_up(step)
    expected = painted([*records, (SPAN + 6000, SPAN + 6001, "kernel")], [*launches, (SPAN + 5000, SPAN + 5001)], syncs)
    assert any(a < SPAN and b > 0 for a, b, _ in records)  # every seed has something to paint
    assert {p: getattr(step, p) for p in expected} == expected


@pytest.mark.parametrize("seed", range(30))
def test_the_parts_of_a_cpu_step_equal_painting_it(seed: int) -> None:
    rng = np.random.default_rng(seed)
    gap, span = 1_000_000, 12_000_000
    events = [event("ProfilerStep#1", 0, span, "user_annotation", 1, 100)]
    lanes: dict[str, list[tuple[int, int]]] = {"aten": [], "comm": [], "host": []}
    for _ in range(int(rng.integers(1, 12))):
        what = str(rng.choice(["aten", "comm", "host"]))
        a = int(rng.integers(0, span - 10))
        b = a + int(rng.integers(1, 1_200_000))
        name, cat, tid = {
            "aten": ("aten::mm", "cpu_op", 100),
            "comm": ("gloo:all_reduce", "user_annotation", 102),
            "host": ("TorchDispatch", "cpu_op", 100),
        }[what]
        lanes[what].append((a, b))
        events.append(event(name, a, b, cat, 1, tid))
    (step,) = profile({"traceEvents": events}).steps
    adds_up(step)
    # painted at the edges of intervals only: between two of them nothing changes
    marks = sorted(m for lane in lanes.values() for m in lane)
    closed = [*marks]
    reach = None
    for a, b in marks:
        if reach is not None and reach < a <= reach + gap:
            closed.append((reach, a))
        reach = b if reach is None else max(reach, b)
    edges = sorted({0, span, *(x for m in closed for x in m if 0 <= x <= span)})
    expected = dict.fromkeys(PARTS, 0)
    for a, b in pairwise(edges):
        here = {name: any(x <= a < y for x, y in lane) for name, lane in {**lanes, "closed": closed}.items()}
        part = "compute" if here["aten"] else "exposed" if here["comm"] else "host" if here["closed"] else "idle"
        expected[part] += b - a
    assert {p: getattr(step, p) for p in PARTS} == expected
