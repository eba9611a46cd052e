"""Writes configs/replay/formula-moe-16xgpu.csv: a small grid of layouts from a formula of our own, for tests and docs.

    python bench/formula_table.py [OUT.csv]

The machine is imaginary: two nodes of eight devices. The formula is kept apart from attuner's estimate on purpose (other terms,
other constants), so that a search on this table is not a search in the estimate's own mirror. Every figure is a choice of ours.

Step time of a layout, seconds, with m micro-batches on each of dp replicas:
    matrix products   2 · parameters · tokens / (devices · peak · efficiency) forward, twice that backward;
                      efficiency = 0.62 · width/(width + 900), width = hidden · mbs / tp
    recompute         full: a third of forward and backward; selective: 4% of it
    tensor, experts   bytes over the link inside a node, or between nodes where ep · etp > 8
    pipeline          two messages a micro-batch and stage; bubble (pp - 1)/m/vp of the work
    data parallel     gradients once a step, 70% hidden
Memory, GiB: weights, gradients and optimizer states of a stage, activations of min(pp, m) micro-batches, logits, 4 for the rest.
"""

from __future__ import annotations

import csv
import itertools
import json
import sys
from pathlib import Path

GPUS, NODE, BATCH, SEQ = 16, 8, 256, 4096
PEAK, INSIDE, BETWEEN, MEMORY_GIB = 400e12, 300e9, 40e9, 80.0
MODEL = {
    "model_type": "moe",
    "model_name": "formula_moe",
    "layer_num": 32,
    "hidden_size": 3072,
    "head_num": 24,
    "kv_head_num": 8,
    "head_size": 128,
    "intermediate_size": 8192,
    "expert_num": 16,
    "topk": 2,
    "vocab_size": 64000,
    "use_swiglu": True,
    "moe_ffn_hidden_size": 4096,
    "dense_layers": 0,
}
AXES = {
    "tp": (1, 2, 4, 8),
    "pp": (1, 2, 4),
    "vp": (1, 2),
    "ep": (1, 2, 4, 8, 16),
    "etp": (1, 2),
    "mbs": (1, 2, 4),
    "recompute": ("none", "selective", "full"),
}
GIB = 2**30


def parameters() -> tuple[float, float, float]:
    """Return parameters outside the experts, in all experts, and those that one token passes, per layer."""
    h, kv = MODEL["hidden_size"], MODEL["kv_head_num"] * MODEL["head_size"]
    attention = 2 * h * h + 2 * h * kv
    expert = 3 * h * MODEL["moe_ffn_hidden_size"]
    return attention, MODEL["expert_num"] * expert, attention + MODEL["topk"] * expert


def invalid(tp: int, pp: int, vp: int, ep: int, etp: int, mbs: int) -> bool:
    """Tell whether a framework would refuse the layout; it is no row then."""
    if GPUS % (tp * pp) or GPUS % (pp * ep * etp) or etp > tp or BATCH % (GPUS // tp // pp * mbs):
        return True
    microbatches = BATCH // (GPUS // tp // pp) // mbs
    return vp > 1 and (pp == 1 or bool(MODEL["layer_num"] % (pp * vp)) or bool(microbatches % pp))


def memory_gib(tp: int, pp: int, vp: int, ep: int, etp: int, mbs: int, recompute: str) -> float:
    """Return the peak of the first stage."""
    dense, experts, _ = parameters()
    dp, layers = GPUS // tp // pp, MODEL["layer_num"] / pp
    edp = GPUS // pp // ep // etp
    embedding = MODEL["vocab_size"] * MODEL["hidden_size"]
    own = layers * dense / tp + embedding / tp
    own_experts = layers * experts / ep / etp
    states = own * (6 + 12 / dp) + own_experts * (6 + 12 / edp)
    row = SEQ * MODEL["hidden_size"] * mbs / tp
    kept = {"none": 34.0, "selective": 26.0, "full": 2.0}[recompute] * row + 4.0 * row * MODEL["topk"] * (recompute != "full")
    in_flight = min(pp, BATCH // dp // mbs) * (1 + (vp > 1) * (pp - 1) / pp / vp)
    logits = SEQ * mbs * MODEL["vocab_size"] / tp * 6 * (pp == 1)
    return (states + kept * layers * in_flight + logits) / GIB + 4.0


def parts(tp: int, pp: int, vp: int, ep: int, etp: int, mbs: int, recompute: str) -> dict[str, float]:
    """Return the seconds of a step by the columns of a replay table."""
    dense, experts, active = parameters()
    dp, layers, tokens = GPUS // tp // pp, MODEL["layer_num"], BATCH * SEQ
    m = BATCH // dp // mbs
    width = MODEL["hidden_size"] * mbs / tp
    rate = GPUS * PEAK * 0.62 * width / (width + 900)
    forward = 2 * (layers * active + MODEL["vocab_size"] * MODEL["hidden_size"]) * tokens / rate
    again = {"none": 0.0, "selective": 0.04, "full": 1.0 / 3.0}[recompute] * 3 * forward
    hidden_bytes = 2 * SEQ * MODEL["hidden_size"] * mbs
    per_layer = 8 * hidden_bytes * (tp - 1) / tp / INSIDE * (tp > 1)
    exchanged = 4 * MODEL["topk"] * hidden_bytes / tp * (ep * etp - 1) / (ep * etp)
    per_layer += exchanged / (BETWEEN if ep * etp > NODE else INSIDE)
    width_comm = per_layer * layers / pp * m * (1 + (recompute == "full") / 3)
    stage_comm = 2 * hidden_bytes / tp / (BETWEEN if GPUS // pp >= NODE else INSIDE) * m * vp * (pp > 1)
    edp = GPUS // pp // ep // etp
    gradients = 4 * layers / pp * (dense / tp * (dp > 1) + experts / ep / etp * (edp > 1))
    data = 0.3 * 2 * gradients / (BETWEEN if GPUS // pp > NODE else INSIDE)
    optimizer = layers / pp * (dense / tp / dp + experts / ep / etp / edp) * 16 / 2e12
    work = 3 * forward + again + width_comm
    return {
        "fwd_compute_s": forward,
        "bwd_compute_s": 2 * forward,
        "recompute_s": again,
        "optimizer_s": optimizer,
        "tp_ep_comm_exposed_s": width_comm,
        "pp_comm_exposed_s": stage_comm,
        "dp_comm_exposed_s": data,
        "bubble_s": work * (pp - 1) / m / vp,
        "straggler_s": 0.01 * (3 * forward + again) * (GPUS > NODE),
    }


def rows() -> list[dict[str, object]]:
    """Return every layout of the grid that can be built."""
    found = []
    for values in itertools.product(*AXES.values()):
        layout = dict(zip(AXES, values, strict=True))
        tp, pp, vp, ep, etp, mbs, _ = values
        if invalid(tp, pp, vp, ep, etp, mbs):
            continue
        dp = GPUS // tp // pp
        memory = memory_gib(*values)
        row: dict[str, object] = {**layout, "dp": dp, "num_microbatches": BATCH // dp // mbs, "outcome": "oom"}
        row["peak_mem_gib"] = round(memory, 2)
        if memory <= MEMORY_GIB:
            split = {k: round(v, 5) for k, v in parts(*values).items()}
            step = round(sum(split.values()), 5)
            row |= {"outcome": "ok", "step_time_s": step, "tokens_per_s_per_gpu": round(BATCH * SEQ / step / GPUS, 2), **split}
        found.append(row)
    return found


def main(argv: list[str]) -> None:
    """Write the table and the model's shape beside it."""
    target = Path(argv[0] if argv else "configs/replay/formula-moe-16xgpu.csv")
    timed = list(parts(1, 1, 1, 16, 1, 1, "full"))
    columns = [*AXES, "dp", "num_microbatches", "outcome", "step_time_s", "tokens_per_s_per_gpu", "peak_mem_gib", *timed]
    with target.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, columns, lineterminator="\n", restval="")
        writer.writeheader()
        writer.writerows(rows())
    target.with_suffix(".model.json").write_text(json.dumps(MODEL) + "\n", encoding="utf-8")
    print(f"wrote {target}")


if __name__ == "__main__":
    main(sys.argv[1:])
