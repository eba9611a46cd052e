"""The estimate's memory against published rows: measured peaks, out-of-memory rows and rows that fitted.

A row is judged if its model's shape is public and its memory-relevant settings are stated on its page or in the recipe that the
page names. `EXCLUDED` says why others are not. Imported by bench/estimate.py and by the tests.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from estimate_points import Row, number, vtrain_machine, vtrain_point

from attuner.core.errors import Refused
from attuner.estimate.hardware import Hardware
from attuner.estimate.learning import NEUTRAL
from attuner.estimate.model import estimate
from attuner.estimate.shape import Layout, Shape

GB = 1e9 / (1 << 30)
LLAMA = {"gated": True, "head_dim": 128, "kv_groups": 8, "vocab": 128256}
MLA = {"head_dim": 128, "rope_dim": 64, "v_dim": 128, "kv_lora": 512, "gated": True}
SHAPES = {
    "Llama3-70B (12 layers)": Shape(num_layers=12, hidden=8192, heads=64, ffn=28672, **LLAMA),  # type: ignore[arg-type]
    "Llama3-405B (4 layers)": Shape(num_layers=4, hidden=16384, heads=128, ffn=53248, **LLAMA),  # type: ignore[arg-type]
    "DeepSeek-V2 (4 layers)": Shape(
        **{"num_layers": 4, "hidden": 5120, "heads": 128, "ffn": 12288, "vocab": 102400, "q_lora": 1536, **MLA},  # type: ignore[arg-type]
        **{"num_experts": 160, "topk": 6, "moe_ffn": 1536, "shared_ffn": 3072, "moe_layers": (0, 1, 1, 1)},  # type: ignore[arg-type]
    ),
    "DeepSeek-V3 (4 layers)": Shape(
        **{"num_layers": 4, "hidden": 7168, "heads": 128, "ffn": 18432, "vocab": 129280, "q_lora": 1536, **MLA},  # type: ignore[arg-type]
        **{"num_experts": 256, "topk": 8, "moe_ffn": 2048, "shared_ffn": 2048, "moe_layers": (0, 1, 1, 1)},  # type: ignore[arg-type]
    ),
    "Moonlight-16B-A3B": Shape(
        **{"num_layers": 27, "hidden": 2048, "heads": 16, "ffn": 11264, "vocab": 163840, **MLA},  # type: ignore[arg-type]
        **{"num_experts": 64, "topk": 6, "moe_ffn": 1408, "shared_ffn": 2816, "moe_layers": (0, *(1,) * 26)},  # type: ignore[arg-type]
    ),
    "GLM-4.5": Shape(
        **{"num_layers": 92, "hidden": 5120, "heads": 96, "kv_groups": 8, "head_dim": 128, "ffn": 12288, "vocab": 151552},  # type: ignore[arg-type]
        **{"num_experts": 160, "topk": 8, "moe_ffn": 1536, "shared_ffn": 1536, "gated": True},  # type: ignore[arg-type]
        moe_layers=(0, 0, 0, *(1,) * 89),
    ),
    "MiniMax-M2": Shape(
        **{"num_layers": 62, "hidden": 3072, "heads": 48, "kv_groups": 8, "head_dim": 128, "ffn": 1536, "vocab": 200064},  # type: ignore[arg-type]
        **{"num_experts": 256, "topk": 8, "moe_ffn": 1536, "gated": True},  # type: ignore[arg-type]
    ),
}
"""Public configurations (config.json of each model; the short ones as the measured runs cut them)."""
MODULES = {
    "selective: none": "",
    "selective: mla_up_proj+mlp": "mla_up_proj mlp",
    "selective: layernorm+moe_act": "layernorm moe_act",
}
ENDS = {8: (10, 10), 16: (4, 4)}
STAGES = {"P0551": (15, 15), "P0552": (7, 7), "P0553": (8, 6)}
EXCLUDED = {
    "torchtitan": "FSDP, and no Megatron layout",
    "Automodel": "FSDP, and no Megatron layout",
    "docs/performance-summary.md": "recompute is not stated on the page; many rows in FP8 or MXFP8",
    "Primus": "recompute is not stated; AMD devices",
    "Nemotron": "Mamba hybrid with CUDA graphs: no shape of ours",
    "Qwen3-30B-A3B": "recompute is not stated, CUDA graph pools",
    "PR #3107": "FP8 fine-tuning of packed rows, marked historical",
    "cases_april2021": "micro batch is not stated",
    "model_table": "micro batch and recompute are not stated",
    "2104.04473": "ZeRO-3, or a micro batch with a schedule that is not stated",
    "D1": "no layout on the page",
    "approx": "stopped early, no outcome",
    "405B": "slime rows of Llama-3.1-405B: no layout on the page",
    "Mixtral-8x22B": "slime rows: no layout on the page",
    "garden": "sequence length and batch are not stated",
    "OptiCo": "recompute is not stated",
    "MiniMax recompute": "slime rows of MiniMax-M2 without stated recompute",
}


@dataclass(frozen=True)
class Told:
    """One row, and what the estimate says of it."""

    id: str
    model: str
    fits: bool
    low_gib: float
    peak_gib: float
    high_gib: float
    reserve_gib: float
    limit_gib: float
    measured_gib: float | None

    def right_side(self) -> bool:
        """Tell whether allocation, reserve and the driver's share are on the measured side of the device's memory."""
        return (self.peak_gib + self.reserve_gib <= self.limit_gib) == self.fits

    def covered(self) -> bool:
        """Tell whether the measured peak lies in the band."""
        return self.measured_gib is not None and self.low_gib <= self.measured_gib <= self.high_gib


def told_rows(rows: list[Row]) -> list[Told]:
    """Return every row that can be judged, with what the estimate says."""
    return [t for row in rows if (t := _told(row)) is not None]


def _machine(name: str) -> Hardware:
    b200, a100 = name == "B200", name.startswith("A100")
    return replace(
        vtrain_machine(),
        name=name,
        num_links=0,
        mem_gib=178.4 if b200 else 79.1,
        num_units=148 if b200 else 108 if a100 else 132,
    )


def _told(row: Row) -> Told | None:
    asked = _asked(row)
    if asked is None:
        return None
    shape, layout, gpu = asked
    machine = _machine(gpu)
    try:
        said = estimate(shape, layout, machine, NEUTRAL)
    except Refused:
        return None
    reserve = max(s["reserve"] for s in said.stages) + machine.context_gib
    measured = float(row["mem_gib"]) if row["mem_gib"] else None
    if measured and "GB as printed" in row["notes"]:
        measured *= GB
    limit = machine.mem_gib or 0.0
    band = (said.mem_low_gib, said.peak_mem_gib, said.mem_high_gib)
    return Told(row["id"], row["model"], row["outcome"] == "ok", *band, reserve, limit, measured)


def _asked(row: Row) -> tuple[Shape, Layout, str] | None:
    """Return shape, layout and device of a row that can be judged."""
    if "vTrain" in row["source"]:
        # DeepSpeed's FP16 optimizer keeps its states whole on every rank; the file doesn't say otherwise
        return (*vtrain_point(row), "A100")
    if "SimuMax" in row["source"]:
        layout = replace(_plain(row), fused_loss=True)
        return SHAPES[row["model"]], layout, "B200"
    if "Table 5" in row["source"]:
        return _selene(row)
    if row["model"] == "Moonlight-16B-A3B":
        modules = tuple(MODULES.get(row["recompute"], row["recompute"].removeprefix("selective: ")).split())
        # its recipe: precision-aware optimizer, gradients and moments in bf16
        layout = replace(_plain(row), recompute="selective", recompute_modules=modules, grads_fp32=False, moment_bytes=4.0)
        return SHAPES[row["model"]], layout, "H100"
    if "slime" in row["stack"] and row["model"] in SHAPES and row["pp"] and row["outcome"] in ("ok", "oom"):
        return _slime(row)
    return None


def _plain(row: Row) -> Layout:
    tp = number(row, "tp")
    return Layout(
        gpus=number(row, "n_gpus"),
        global_batch=number(row, "gbs"),
        seq_len=number(row, "seq"),
        micro_batch=number(row, "mbs"),
        tp=tp,
        pp=number(row, "pp"),
        vp=number(row, "vp"),
        cp=number(row, "cp"),
        ep=number(row, "ep"),
        sequence_parallel=tp > 1,
    )


def _selene(row: Row) -> tuple[Shape, Layout, str]:
    hidden = number(row, "hidden")
    shape = Shape(
        **{"num_layers": number(row, "layers"), "hidden": hidden, "heads": number(row, "heads"), "ffn": 4 * hidden},  # type: ignore[arg-type]
        **{"vocab": 51200, "learned_positions": 2048, "tied": True, "dropout": True},  # type: ignore[arg-type]
    )
    full = row["recompute"] == "full"
    layout = replace(
        _plain(row),
        **{"recompute": "full" if full else "selective", "sequence_parallel": not full},  # type: ignore[arg-type]
        **{"distributed_optimizer": False, "attention": "unfused", "precision": "fp16"},  # type: ignore[arg-type]
    )
    return shape, layout, "A100"


def _slime(row: Row) -> tuple[Shape, Layout, str] | None:
    if row["recompute"] not in ("selective", "full", "block, 2 layers"):
        return None
    first, last = STAGES.get(row["id"], ENDS.get(number(row, "pp"), (None, None)))
    rows = {"GLM-4.5": 1024, "MiniMax-M2": 128}[row["model"]]
    block = row["recompute"].startswith("block")
    layout = replace(
        _plain({**row, "gbs": str(rows)}),
        **{"first_layers": first, "last_layers": last, "recompute": "full" if block else row["recompute"]},  # type: ignore[arg-type]
        **({"recompute_method": "block", "recompute_layers": 2} if block else {}),  # type: ignore[arg-type]
    )
    return SHAPES[row["model"]], layout, "B200"
