"""The same table as another machine would give it: slower links between nodes, faster or slower compute."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping

from attuner.core.base import Value
from attuner.core.errors import UserError
from attuner.tables.table import PARTS, SHORT, About, Row, Table

PERTURBATIONS = ("inter_node_comm", "compute")


def perturbed(table: Table, **factors: float) -> Table:
    """Return the table as another machine would give it. Outcomes and memory stay; step times follow their parts.

    `inter_node_comm` multiplies the exposed communication of groups that cross nodes: pipeline stages and data-parallel groups
    where they span more than a node, tensor and expert communication (one column) where expert × expert-tensor parallel does.
    `compute` divides forward, backward, recompute and optimizer by a relative efficiency. Bubble and straggler time is waiting
    for work of other stages, so both grow as that work does (compute, tensor, expert and pipeline communication). What the
    parts leave unexplained of a step stays as it is.

    Raises:
        UserError: an unknown perturbation, or a table without parts.
    """
    unknown = sorted(factors.keys() - set(PERTURBATIONS))
    if unknown:
        raise UserError(f"perturbation {unknown[0]}: unknown; known: {', '.join(PERTURBATIONS)}")
    if any(f <= 0 for f in factors.values()):
        raise UserError(f"perturbation {min(factors, key=lambda k: factors[k])}: a factor is above 0")
    if not factors or all(f == 1.0 for f in factors.values()):
        return table
    rows = {key: _perturbed(table, row, factors) for key, row in table.rows.items()}
    suffix = "+".join(f"{k}={v:g}" for k, v in sorted(factors.items()))
    digest = hashlib.sha256(f"{table.digest}\n{suffix}".encode()).hexdigest()
    return dataclasses.replace(table, name=f"{table.name}+{suffix}", rows=rows, digest=digest)


def _perturbed(table: Table, row: Row, factors: Mapping[str, float]) -> Row:
    if row.outcome != "ok":
        return row
    if not row.parts:
        raise UserError(f"{table.path}: its rows have no parts, so nothing can be said of another machine")
    old, new = row.parts, dict(row.parts)
    for name in ("fwd_compute_s", "bwd_compute_s", "recompute_s", "optimizer_s"):
        new[name] = old.get(name, 0.0) / factors.get("compute", 1.0)
    for name in crossing(table.about, row.arguments):
        new[name] = old.get(name, 0.0) * factors.get("inter_node_comm", 1.0)
    work = (*PARTS[:3], "tp_ep_comm_exposed_s", "pp_comm_exposed_s")
    before, after = (sum(p.get(name, 0.0) for name in work) for p in (old, new))
    for name in ("bubble_s", "straggler_s"):
        new[name] = old.get(name, 0.0) * (after / before if before else 1.0)
    step_s = row.step_s + sum(new.values()) - sum(old.values())
    return dataclasses.replace(row, parts=new, step_s=step_s)


def crossing(about: About, arguments: Mapping[str, Value]) -> list[str]:
    """Return the columns of communication that leaves a node in this layout (order of ranks: tensor, data, pipeline)."""
    size = {name: _size(arguments.get(full)) for name, full in SHORT.items() if name in ("tp", "pp", "ep", "etp")}
    stage = about.gpus // size["pp"]
    found = ["pp_comm_exposed_s"] if about.gpus > about.gpus_per_node and size["pp"] > 1 else []
    found += ["dp_comm_exposed_s"] if stage > about.gpus_per_node and stage > size["tp"] else []
    wide = max(size["ep"] * size["etp"], size["tp"]) > about.gpus_per_node
    return [*found, *(["tp_ep_comm_exposed_s"] if wide else [])]


def _size(value: Value) -> int:
    return value if isinstance(value, int) else 1
