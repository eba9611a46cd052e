"""The estimate against published points: step times of vTrain's A100 cluster (no fitting on the model judged), and memory.

Imported by bench/estimate.py and by the tests. Rows come from a CSV of published configurations (`throughput_points.csv`).
"""

from __future__ import annotations

import csv
import dataclasses
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from attuner.estimate.constants import DEFAULT, Constants
from attuner.estimate.hardware import Hardware
from attuner.estimate.model import Model
from attuner.estimate.shape import Layout, Shape

MODELS = ("GPT-175B", "GPT-18.4B", "GPT-3.6B", "GPT-39.1B")
FITTED = {
    **{"gemm_ceiling": 0.06, "gemm_k": 0.5, "mem_efficiency": 0.15, "near_efficiency": 0.15, "far_efficiency": 0.2},
    **{"tensor_hidden": 0.4, "straggler": 1.0},
}
"""Constants that are fitted on the other models, with the width (of the logarithm) that holds them near their default."""
Row = dict[str, str]


@dataclass(frozen=True)
class Judged:
    """How well one model's points were told."""

    model: str
    num_points: int
    mape: float
    spearman: float
    regret: float


def read_points(path: Path) -> list[Row]:
    """Return the rows of the CSV."""
    with path.open(encoding="utf-8", newline="") as lines:
        return list(csv.DictReader(lines))


def number(row: Row, name: str, default: int = 1) -> int:
    """Return an integer cell; empty and `off` are the default."""
    return int(row[name]) if row[name] not in ("", "off") else default


def vtrain_machine(constants: Constants = DEFAULT) -> Hardware:
    """Return vTrain's cluster: eight A100 a node with four 200 Gb/s ports for all of them."""
    return Hardware(
        name="vtrain",
        gpus_per_node=8,
        peak_flops=312e12,
        peak_fp32_flops=19.5e12,
        mem_bytes_s=2039e9,
        intra_bytes_s=300e9,
        inter_bytes_s=12.5e9,
        num_units=108,
        num_links=4,
        mem_gib=79.1,
        constants=constants,
    )


def vtrain_point(row: Row) -> tuple[Shape, Layout]:
    """Return shape and layout of one of vTrain's rows: Megatron-DeepSpeed, FP16, full recompute, no sequence parallelism."""
    shape = Shape(
        num_layers=number(row, "layers"),
        hidden=number(row, "hidden"),
        heads=number(row, "heads"),
        ffn=4 * number(row, "hidden"),
        vocab=51200,
        learned_positions=2048,
        tied=True,
        dropout=True,
    )
    layout = Layout(
        gpus=number(row, "n_gpus"),
        global_batch=number(row, "gbs"),
        seq_len=number(row, "seq"),
        micro_batch=number(row, "mbs"),
        tp=number(row, "tp"),
        pp=number(row, "pp"),
        recompute="full",
        sequence_parallel=False,
        distributed_optimizer=False,
        attention="unfused",
        precision="fp16",
        grads_fp32=False,
    )
    return shape, layout


def vtrain_rows(rows: list[Row], *, across_nodes: bool = False) -> dict[str, list[tuple[Shape, Layout, float]]]:
    """Return vTrain's points by model; those whose tensor group crosses nodes only if asked for (other peers can't do them)."""
    found: dict[str, list[tuple[Shape, Layout, float]]] = {m: [] for m in MODELS}
    for row in rows:
        if "vTrain" in row["source"] and (across_nodes or number(row, "tp") <= 8):
            found[row["model"]].append((*vtrain_point(row), float(row["iter_time_s"])))
    return found


def predicted(points: list[tuple[Shape, Layout, float]], constants: Constants) -> list[float]:
    """Return predicted seconds, without any correction."""
    model = Model(points[0][0], vtrain_machine(constants))
    return [model.step(layout).seconds for _, layout, _ in points]


def fit(points: dict[str, list[tuple[Shape, Layout, float]]], models: list[str]) -> Constants:
    """Return the constants that tell these models best: mean absolute error, errors above 15% counted as 15%."""

    def loss(values: dict[str, float]) -> float:
        constants = dataclasses.replace(DEFAULT, **values)
        total = 0.0
        for name in models:
            pairs = zip(predicted(points[name], constants), points[name], strict=True)
            total += sum(min(abs(math.log(p / t)), 0.15) for p, (_, _, t) in pairs) / len(points[name]) / len(models)
        drift = (math.log(v / getattr(DEFAULT, k)) / FITTED[k] for k, v in values.items())
        return total + 0.004 * sum(d * d for d in drift)

    values = {k: float(getattr(DEFAULT, k)) for k in FITTED}
    best = loss(values)
    for step in (0.5, 0.25, 0.125):
        moved = True
        while moved:
            moved = False
            for name, width in FITTED.items():
                for sign in (1, -1):
                    trial = {**values, name: values[name] * math.exp(sign * step * width)}
                    score = loss(trial)
                    if score < best - 1e-6:
                        values, best, moved = trial, score, True
    return dataclasses.replace(DEFAULT, **values)


def judge(name: str, points: list[tuple[Shape, Layout, float]], guesses: list[float]) -> Judged:
    """Return error, rank correlation and the regret of the top pick."""
    times = [t for _, _, t in points]
    pick = min(range(len(guesses)), key=lambda i: guesses[i])
    error = sum(abs(g / t - 1) for g, t in zip(guesses, times, strict=True)) / len(times)
    return Judged(name, len(times), error, spearman(guesses, times), times[pick] / min(times) - 1)


def leave_one_out(rows: list[Row], *, across_nodes: bool = False) -> list[Judged]:
    """Return how each model is told by constants fitted on the other three."""
    points = vtrain_rows(rows, across_nodes=across_nodes)
    out = []
    for name in MODELS:
        constants = fit(points, [m for m in MODELS if m != name])
        out.append(judge(name, points[name], predicted(points[name], constants)))
    return out


def constant_and_bubble(rows: list[Row], *, across_nodes: bool = False) -> list[Judged]:
    """Return the plain baseline: one efficiency for everything (fitted on the other models) and the pipeline's bubble."""
    points = vtrain_rows(rows, across_nodes=across_nodes)
    plain = {m: [_plain(s, la) for s, la, _ in points[m]] for m in MODELS}
    out = []
    for name in MODELS:
        others = [t / g for m in MODELS if m != name for g, (_, _, t) in zip(plain[m], points[m], strict=True)]
        scale = sorted(others)[len(others) // 2]
        out.append(judge(name, points[name], [g * scale for g in plain[name]]))
    return out


def _plain(shape: Shape, layout: Layout) -> float:
    flops = shape.flops_per_token(layout.seq_len) * layout.global_batch * layout.seq_len * 4 / 3
    return flops / layout.gpus / 312e12 * (1 + (layout.pp - 1) / layout.num_microbatches)


def ranks(values: list[float]) -> list[float]:
    """Return ranks; equal values share the mean of theirs."""
    order = sorted(range(len(values)), key=lambda i: values[i])
    out, i = [0.0] * len(values), 0
    while i < len(order):
        j = i
        while j + 1 < len(order) and values[order[j + 1]] == values[order[i]]:
            j += 1
        for k in order[i : j + 1]:
            out[k] = (i + j) / 2
        i = j + 1
    return out


def spearman(a: list[float], b: list[float]) -> float:
    """Return the rank correlation."""
    ra, rb, mean = ranks(a), ranks(b), (len(a) - 1) / 2
    over = sum((x - mean) * (y - mean) for x, y in zip(ra, rb, strict=True))
    under = sum((x - mean) ** 2 for x in ra) * sum((y - mean) ** 2 for y in rb)
    return over / math.sqrt(under) if under else 0.0


def models_of(rows: list[Row]) -> Iterator[str]:
    """Yield the models that occur, once each."""
    yield from dict.fromkeys(row["model"] for row in rows)
