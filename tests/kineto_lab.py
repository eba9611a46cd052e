"""Traces written event by event, for tests of the trace reader."""

from __future__ import annotations

import json
from typing import Any

from attuner.traces.records import PARTS, RankProfile, StepParts

T0 = 5_140_572_207_000_000
"""ns; a real trace's clock."""
HOST, DEVICE, STREAM, COMM_STREAM = (1, 100), 0, 7, 20
Json = dict[str, Any]


def event(name: str, start: int, end: int, *, cat: str, pid: int = 1, tid: int = 100, **args: Any) -> Json:
    """One complete event; times in µs of the step."""
    return {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": T0 / 1e3 + start, "dur": end - start, "args": args}


def step(number: int, start: int, end: int) -> Json:
    return event(f"ProfilerStep#{number}", start, end, cat="user_annotation")


def launch(at: int, correlation: int, *, name: str = "cudaLaunchKernel", took: int = 2, tid: int = 100) -> Json:
    return event(name, at, at + took, cat="cuda_runtime", tid=tid, correlation=correlation)


def kernel(name: str, start: int, end: int, correlation: int | None = None, *, stream: int = STREAM, **args: Any) -> Json:
    given = {} if correlation is None else {"correlation": correlation}
    return event(name, start, end, cat="kernel", pid=0, tid=stream, stream=stream, **given, **args)


def document(*events: Json, **meta: Any) -> Json:
    return {"schemaVersion": 1, **meta, "traceEvents": list(events)}


def text(*events: Json, **meta: Any) -> str:
    """As Kineto lays it out: an event a line."""
    head = ",\n".join(f"  {json.dumps(k)}: {json.dumps(v)}" for k, v in {"schemaVersion": 1, **meta}.items())
    body = ",\n  ".join(json.dumps(e) for e in events)
    return "{\n" + head + ',\n  "traceEvents": [\n  ' + body + '\n  ],\n  "displayTimeUnit": "ms"\n}\n'


def said(found: RankProfile) -> dict[str, int]:
    return {q.code: q.count for q in found.quirks}


def us(parts: StepParts) -> dict[str, float]:
    return {p: getattr(parts, p) / 1e3 for p in PARTS}


def busy_step(number: int = 1, at: int = 0, kernels: int = 3) -> list[Json]:
    """100 µs with kernels of 10 µs, launched 8 µs before they begin."""
    out = [step(number, at, at + 100)]
    for k in range(kernels):
        out += [
            launch(at + 2 + 20 * k, 1000 * number + k),
            kernel(f"gemm{k}", at + 10 + 20 * k, at + 20 + 20 * k, 1000 * number + k),
        ]
    return out
