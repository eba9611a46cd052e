"""Replay tables: what each launch of a grid would have done, read from a CSV file and a description beside it.

A description (`NAME.yaml`) says what the rows don't: devices, rows per update, baseline, start-up, noise, where the figures
come from. In the rows file every column before `outcome` is an argument: a short name of `SHORT`, or the framework's own name.
Nothing here launches anything.
"""

from __future__ import annotations

import csv
import dataclasses
import functools
import hashlib
import io
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from attuner.core.base import Record, Scalar, Value
from attuner.core.errors import UserError
from attuner.core.recipe import Recipe, Workload
from attuner.yamlfile import parse, read_yaml

SHORT = {
    "tp": "tensor_model_parallel_size",
    "pp": "pipeline_model_parallel_size",
    "vp": "virtual_pipeline_model_parallel_size",
    "ep": "expert_model_parallel_size",
    "etp": "expert_tensor_parallel_size",
    "mbs": "micro_batch_size",
    "recompute": "recompute_granularity",
}
"""Column → argument. In these columns `none` is no recompute, and 1 virtual stage is none."""
DERIVED = ("dp", "num_microbatches")
BREAKDOWN = "breakdown.json"
"""Where the profiled steps of a replayed launch went: the launcher writes it instead of a trace, the stack reads it."""
OUTCOMES = ("ok", "oom", "hang", "crash", "invalid")
PARTS = (
    *("fwd_compute_s", "bwd_compute_s", "recompute_s", "optimizer_s"),
    *("tp_ep_comm_exposed_s", "pp_comm_exposed_s", "dp_comm_exposed_s", "bubble_s", "straggler_s"),
)
MODEL = {
    "layer_num": "num_layers",
    "hidden_size": "hidden_size",
    "head_num": "num_attention_heads",
    "kv_head_num": "num_query_groups",
    "head_size": "kv_channels",
    "intermediate_size": "ffn_hidden_size",
    "use_swiglu": "gated_linear_unit",
    "expert_num": "num_experts",
    "topk": "moe_router_topk",
    "moe_ffn_hidden_size": "moe_ffn_hidden_size",
    "moe_shared_expert_intermediate_size": "moe_shared_expert_intermediate_size",
    "vocab_size": "vocab_size",
}
"""Key of `NAME.model.json` → argument."""


class About(Record):
    """What a table's rows don't say: `NAME.yaml`."""

    rows: str = Field(default="", description="the rows file, relative to the description; default: NAME.csv beside it")
    model_file: str = Field(default="", description="the model's shape; default: NAME.model.json beside the rows, if it is there")
    source: str = Field(description="where the figures come from; said wherever one of them is shown")
    kind: Literal["simulated", "formula", "recorded"]
    model: str
    hardware: str
    cluster: str = Field(default="", description="cluster file with the figures that the estimate starts from")
    device_kind: Literal["cpu", "cuda"] = "cuda"
    device_mem_gib: float | None = None
    gpus: int = Field(gt=0)
    gpus_per_node: int = Field(default=8, gt=0)
    global_batch: int = Field(gt=0)
    seq_len: int = Field(gt=0)
    precision: str = "bf16"
    seed: int = 1234
    steps: int = Field(default=20, gt=2)
    warmup_steps: int = Field(default=2, ge=1)
    startup_s: float = Field(gt=0, description="from allocation to the first step; charged for every launch")
    oom_s: float = Field(default=60.0, ge=0, description="from start-up to running out of memory; charged")
    noise: float = Field(default=0.007, ge=0, description="σ of a launch's throughput, relative")
    step_noise: float = Field(default=0.0, ge=0, description="spread of the steps inside a launch, relative; their mean stays")
    baseline: dict[str, Value]
    splits: dict[int, list[int]] = Field(
        default_factory=dict, description="pipeline size → layers of the first and of the last stage, where they are uneven"
    )


@dataclass(frozen=True)
class Row:
    """What a launch with these arguments does."""

    arguments: dict[str, Value]
    outcome: str
    note: str = ""
    step_s: float = 0.0
    peak_mem_gib: float | None = None
    parts: dict[str, float] = dataclasses.field(default_factory=dict)
    """Seconds on the critical path, by column of PARTS; what they leave of the step is nobody's."""
    rank_step: dict[str, Any] | None = None
    """A recorded breakdown, where the table has one instead of parts."""
    duration_s: float | None = None
    """Recorded time from allocation to release; None: start-up and steps say it."""

    def launchable(self) -> bool:
        """Tell whether the framework lets it start."""
        return self.outcome != "invalid"


@dataclass(frozen=True)
class Table:
    """A grid of outcomes with what is the same for all of them."""

    name: str
    digest: str
    path: Path
    about: About
    axes: tuple[str, ...]
    fixed: dict[str, Value]
    rows: dict[tuple[str, ...], Row]

    def key(self, arguments: Mapping[str, Value]) -> tuple[str, ...]:
        """Return where in the grid these arguments lie."""
        return tuple(_spelled(arguments.get(axis)) for axis in self.axes)

    def find(self, arguments: Mapping[str, Value]) -> Row | None:
        """Return the row of these arguments, or None for a layout that is not in the table."""
        return self.rows.get(self.key(arguments))

    def baseline(self) -> Recipe:
        """Return the recipe that a campaign on this table starts from."""
        return Recipe(stack="replay", arguments=self.about.baseline)

    def space(self) -> dict[str, list[Value]]:
        """Return the values of each argument in rows that can be launched: numbers in order, words as they come."""
        found: dict[str, dict[str, Value]] = {axis: {} for axis in self.axes}
        for row in self.rows.values():
            if row.launchable():
                for axis in self.axes:
                    found[axis].setdefault(_spelled(row.arguments[axis]), row.arguments[axis])
        return {axis: sorted(values.values(), key=_order) for axis, values in found.items()}

    def speed(self, row: Row) -> float:
        """Return true tokens/s per device of a row: without noise."""
        return self.about.global_batch * self.about.seq_len / row.step_s / self.about.gpus

    def best(self) -> Row:
        """Return the fastest row."""
        return min((r for r in self.rows.values() if r.outcome == "ok"), key=lambda r: r.step_s)

    def start(self) -> Row:
        """Return the baseline's row. Raises UserError if it is not one that ends well."""
        row = self.find(self.about.baseline)
        if row is None or row.outcome != "ok":
            raise UserError(f"{self.path}: baseline: it is not a row that ends well; mend the description")
        return row

    def duration_s(self, row: Row, step_s: float | None = None) -> float:
        """Return how long a launch holds its devices, seconds: what is charged. Profiled steps are free.

        Source: ../shared/replay/README.md: start-up + 20 steps, or start-up + 60 s for an out-of-memory.
        """
        if row.outcome != "ok":
            return row.duration_s if row.duration_s is not None else self.about.startup_s + self.about.oom_s
        return self.about.startup_s + self.about.steps * (row.step_s if step_s is None else step_s)

    def gpu_hours(self, row: Row) -> float:
        """Return the charge of a launch without noise, device-hours."""
        return self.about.gpus * self.duration_s(row) / 3600.0

    def workload(self) -> Workload:
        """Return what every launch of the table trains."""
        about = self.about
        return Workload(
            model=about.model,
            dataset=f"table-{self.name}",
            seq_len=about.seq_len,
            global_batch=about.global_batch,
            precision=about.precision,
            seed=about.seed,
            steps=about.steps,
            warmup_steps=about.warmup_steps,
            gpus=about.gpus,
            hardware=about.hardware,
        )


def _spelled(value: Value) -> str:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return json.dumps(value)


def _order(value: Value) -> tuple[int, float, str]:
    if value is None:
        return (0, 0.0, "")
    return (1, float(value), "") if isinstance(value, int | float) else (2, 0.0, "")


# ------------------------------------------------------------------------------------------------- reading


@functools.lru_cache(maxsize=16)
def _loaded(path: Path, _stamps: tuple[int, ...]) -> Table:
    about = parse(About, read_yaml(path), path)
    rows_file = _rows_file(path, about)
    text = _text(rows_file)
    axes, rows = _rows(text, rows_file)
    model_file = path.parent / about.model_file if about.model_file else rows_file.with_suffix(".model.json")
    fixed: dict[str, Value] = {
        "seq_length": about.seq_len,
        "global_batch_size": about.global_batch,
        **(model_arguments(_json(model_file)) if model_file.is_file() else {}),
    }
    if about.kind == "recorded":
        fixed = {**about.baseline, **fixed}
    elif about.precision == "bf16":
        fixed |= {"bf16": True, "use_distributed_optimizer": True}
    digest = hashlib.sha256(text.encode() + path.read_bytes()).hexdigest()
    return Table(path.stem, digest, path, about, axes, {k: v for k, v in fixed.items() if k not in axes}, rows)


def load_table(path: Path) -> Table:
    """Read a table from its description, or from its rows with the description beside them.

    Raises:
        UserError: one line: file, column or key, what is wrong.
    """
    file = (path.with_suffix(".yaml") if path.suffix == ".csv" else path).resolve()
    if not file.is_file():
        raise UserError(f"{path}: no description {file.name} beside it; configs/replay/ shows what one says")
    rows = _rows_file(file, parse(About, read_yaml(file), file))
    return _loaded(file, tuple(p.stat().st_mtime_ns if p.exists() else 0 for p in (file, rows)))


def _rows_file(path: Path, about: About) -> Path:
    return (path.parent / about.rows).resolve() if about.rows else path.with_suffix(".csv")


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UserError(f"{path}: no such file; the description beside it says that the rows are there") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: can't be read: {error}") from None


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(_text(path))
    except ValueError as error:
        raise UserError(f"{path}: not JSON: {error}") from None
    if not isinstance(found, dict):
        raise UserError(f"{path}: expected keys and values")
    return found


def model_arguments(shape: Mapping[str, Any]) -> dict[str, Value]:
    """Return a model's shape in the framework's own names.

    Raises:
        UserError: a key that says something of the model is unknown.
    """
    said = {k: v for k, v in shape.items() if k not in ("model_type", "model_name", "dense_layers")}
    unknown = sorted(said.keys() - MODEL.keys())
    if unknown:
        raise UserError(f"model: {unknown[0]}: unknown key; known: {', '.join(MODEL)}")
    found: dict[str, Value] = {MODEL[k]: v for k, v in said.items()}
    if "num_experts" in found:
        dense = int(shape.get("dense_layers", 0))
        layers = int(shape["layer_num"])
        per_layer: list[Scalar] = [*[0] * dense, *[1] * (layers - dense)]
        found["moe_layer_freq"] = per_layer if dense else 1
        found.setdefault("moe_ffn_hidden_size", found["ffn_hidden_size"])
    return found


def _rows(text: str, path: Path) -> tuple[tuple[str, ...], dict[tuple[str, ...], Row]]:
    reader = csv.DictReader(io.StringIO(text))
    columns = list(reader.fieldnames or [])
    if "outcome" not in columns:
        raise UserError(f"{path}: no column `outcome`; the columns before it are arguments")
    axes = [c for c in columns[: columns.index("outcome")] if c not in DERIVED]
    named = tuple(SHORT.get(c, c) for c in axes)
    found: dict[tuple[str, ...], Row] = {}
    for number, line in enumerate(reader, start=2):
        try:
            arguments = {SHORT.get(c, c): _value(c, line[c] or "") for c in axes}
            row = _row(arguments, line)
        except (ValueError, TypeError) as error:
            raise UserError(f"{path}:{number}: {error}") from None
        key = tuple(_spelled(arguments[a]) for a in named)
        if key in found:
            raise UserError(f"{path}:{number}: these arguments stand in an earlier row already")
        found[key] = row
    return named, found


def _value(column: str, text: str) -> Value:
    if column in SHORT:
        if text == "none" or (column == "vp" and text == "1") or not text:
            return None
        return int(text) if text.isdigit() else text
    try:
        value: Value = json.loads(text) if text else None
    except ValueError:
        return text
    return value


def _row(arguments: dict[str, Value], line: Mapping[str, str]) -> Row:
    outcome = line["outcome"]
    if outcome not in OUTCOMES:
        raise ValueError(f"outcome {outcome!r} is none of {', '.join(OUTCOMES)}")
    step_s = float(line["step_time_s"] or 0.0) if outcome == "ok" else 0.0
    if outcome == "ok" and not step_s > 0.0:
        raise ValueError("an ok row needs a step_time_s above 0")
    parts = {name: float(line[name]) for name in PARTS if line.get(name)} if outcome == "ok" else {}
    recorded = line.get("rank_step") or ""
    return Row(
        arguments=arguments,
        outcome=outcome,
        note=line.get("note") or "",
        step_s=step_s,
        peak_mem_gib=float(line["peak_mem_gib"]) if line.get("peak_mem_gib") else None,
        parts=parts,
        rank_step=json.loads(recorded) if recorded else None,
        duration_s=float(line["duration_s"]) if line.get("duration_s") else None,
    )
