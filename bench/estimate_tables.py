"""The estimate on replay tables, learning only from a campaign's own trials: memory verdicts, ranking, and a plain greedy search.

Imported by bench/estimate.py and by the tests. The tables come from a simulator; nothing of the estimate was fitted to them.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import yaml
from estimate_points import spearman

from attuner.core.campaign import Cluster
from attuner.core.recipe import Workload
from attuner.estimate.hardware import Hardware
from attuner.estimate.learning import Learnt, Observation, learn
from attuner.estimate.memory_learning import surely_above
from attuner.estimate.model import Estimate, Model, model_of
from attuner.estimate.reading import read
from attuner.estimate.shape import Layout, Shape
from attuner.tables import Row, Table, load_table, perturbed

ROOT = Path(__file__).resolve().parent.parent
PERTURBED: dict[str, dict[str, float]] = {
    "": {},
    "inter-node ×2": {"inter_node_comm": 2.0},
    "compute −15%": {"compute": 0.85},
    "compute +15%": {"compute": 1.15},
}
PARTS = {
    **{"forward": "fwd_compute_s", "backward": "bwd_compute_s", "recompute": "recompute_s", "optimizer": "optimizer_s"},
    **{"comm:tensor_expert": "tp_ep_comm_exposed_s", "comm:pipeline": "pp_comm_exposed_s", "comm:data": "dp_comm_exposed_s"},
    **{"bubble": "bubble_s", "straggler": "straggler_s"},
}
NOISE_BAND = 0.03


@dataclass(frozen=True)
class Field:
    """A table made ready: its rows as layouts, and where a campaign starts."""

    name: str
    shape: Shape
    machine: Hardware
    rows: list[tuple[Layout, Row]]
    baseline: Layout

    def model(self) -> Model:
        """Return the model of the table's shape on its machine."""
        return model_of(self.shape, self.machine)

    def row(self, layout: Layout) -> Row:
        """Return the row of a layout."""
        return next(r for la, r in self.rows if la == layout)

    def best_s(self) -> float:
        """Return the fastest step."""
        return min(r.step_s for _, r in self.rows if r.outcome == "ok")


def open_field(description: Path, factors: dict[str, float] | None = None) -> Field:
    """Return a table of configs/replay, perhaps perturbed, with the public figures of its cluster."""
    table = perturbed(load_table(description), **(factors or {}))
    cluster = Cluster.model_validate(yaml.safe_load((ROOT / "configs" / table.about.cluster).read_text(encoding="utf-8")))
    limit = table.about.device_mem_gib or 0.0
    cluster = cluster.model_copy(update={"device": cluster.device.model_copy(update={"mem_gib": limit})})
    work = workload_of(table)
    shape, baseline = read({**table.fixed, **table.about.baseline}, workload=work, stack="replay")
    rows = [(read({**table.fixed, **r.arguments}, workload=work, stack="replay")[1], r) for r in table.rows.values()]
    return Field(table.name, shape, Hardware.of(cluster), [(la, r) for la, r in rows if r.outcome in ("ok", "oom")], baseline)


def workload_of(table: Table) -> Workload:
    """Return the workload that a table was made for."""
    about = table.about
    return Workload(
        **{"model": about.model, "dataset": "paper", "seq_len": about.seq_len, "global_batch": about.global_batch},  # type: ignore[arg-type]
        **{"precision": about.precision, "seed": 1, "steps": about.steps, "warmup_steps": 1, "gpus": about.gpus},  # type: ignore[arg-type]
        hardware=about.hardware,
    )


def observe(layout: Layout, row: Row) -> Observation:
    """Return what a campaign would see of a launch of this row."""
    if row.outcome == "oom":
        return Observation(layout=layout, outcome="oom")
    parts = {name: row.parts.get(column, 0.0) for name, column in PARTS.items()} | {"host": 0.0}
    return Observation(layout=layout, step_s=row.step_s, parts=parts, peak_mem_gib=row.peak_mem_gib, stage=0)


@dataclass(frozen=True)
class Report:
    """How well a table is told after some observations."""

    num_learnt: int
    oom_told: float
    ok_held: float
    better_held: float
    """Of the layouts that beat the baseline by more than the noise band, the share that would be held back for its gain."""
    mem_covered: float
    mem_width: float
    spearman: float
    regret: float
    mape: float
    step_covered: float
    step_width: float


def judge(field: Field, learnt: Learnt, num_learnt: int) -> Report:
    """Return the report of a correction over all layouts of a table."""
    model, limit = field.model(), field.machine.mem_gib or 0.0
    said = [(learnt.estimate(model, la), row) for la, row in field.rows]
    ok = [(e, r) for e, r in said if r.outcome == "ok"]
    oom = [e for e, r in said if r.outcome == "oom"]
    peaks = [(e, r.peak_mem_gib) for e, r in said if r.peak_mem_gib]
    fit = [(e, r) for e, r in ok if not _surely_oom(e, limit)]
    pick = min(fit, key=lambda x: x[0].step_s)
    return Report(
        num_learnt=num_learnt,
        oom_told=sum(_surely_oom(e, limit) for e in oom) / max(1, len(oom)),
        ok_held=sum(_surely_oom(e, limit) for e, _ in ok) / len(ok),
        better_held=_better_held(field, learnt),
        mem_covered=sum(e.mem_low_gib <= p <= e.mem_high_gib for e, p in peaks) / len(peaks),
        mem_width=sum(e.mem_high_gib / e.peak_mem_gib - 1 for e, _ in peaks) / len(peaks),
        spearman=spearman([e.step_s for e, _ in ok], [r.step_s for _, r in ok]),
        regret=pick[1].step_s / field.best_s() - 1,
        mape=sum(abs(e.step_s / r.step_s - 1) for e, r in ok) / len(ok),
        step_covered=sum(e.step_low_s <= r.step_s <= e.step_high_s for e, r in ok) / len(ok),
        step_width=sum(e.step_high_s / e.step_s - 1 for e, _ in ok) / len(ok),
    )


def _better_held(field: Field, learnt: Learnt) -> float:
    model, base = field.model(), field.row(field.baseline).step_s
    better = [la for la, r in field.rows if r.outcome == "ok" and base / r.step_s > 1 + NOISE_BAND]
    held = [la for la in better if sum(learnt.gain(model, la, field.baseline)) < NOISE_BAND]
    return len(held) / max(1, len(better))


def _surely_oom(estimate: Estimate, limit: float) -> bool:
    return surely_above(estimate.peak_mem_gib, estimate.mem_low_gib, limit)


@dataclass(frozen=True)
class Search:
    """A search that always launches what the estimate likes best, and learns from it."""

    launches: int
    failed: int
    regret: float
    path: list[Observation]


def greedy(field: Field, *, most: int = 10) -> Search:
    """Launch what is predicted to gain most and likely fits, learn, repeat until nothing can gain the noise band."""
    model, limit = field.model(), field.machine.mem_gib or 0.0
    path = [observe(field.baseline, field.row(field.baseline))]
    leader, failed = field.baseline, 0
    while len(path) <= most:
        learnt = learn(field.shape, field.machine, path)
        tried = {o.layout for o in path}
        open_ = [la for la, _ in field.rows if la not in tried and likely_fits(learnt.estimate(model, la), limit)]
        gains = [(*learnt.gain(model, la, leader), i) for i, la in enumerate(open_)]
        if not gains:
            break
        gain, error, at = max(gains)
        if gain + error < NOISE_BAND:
            break
        row = field.row(open_[at])
        path.append(observe(open_[at], row))
        failed += row.outcome == "oom"
        if row.outcome == "ok" and field.row(leader).step_s / row.step_s > 1 + NOISE_BAND:
            leader = open_[at]
    return Search(len(path) - 1, failed, field.row(leader).step_s / field.best_s() - 1, path)


def likely_fits(estimate: Estimate, limit: float) -> bool:
    """Tell whether three quarters of the upper half of the memory band lie within the device."""
    return estimate.peak_mem_gib + 0.75 * (estimate.mem_high_gib - estimate.peak_mem_gib) <= limit
