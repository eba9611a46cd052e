"""Which runs the gate study makes: baselines with a replicate each, honest candidates, and planted faults. A candidate is
always judged against the baseline of the same variant, precision, batch and number of ranks: plain data parallelism."""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from . import workload
from .faults import FAULTS

Kind = Literal["baseline", "healthy", "fault"]
FAULT_BATCHES = (0, 1)
SOURCES = ("faults.py", "plants_batch.py", "plants_model.py", "plants_update.py", "workload.py")
_ROOT = Path(__file__).parent


@dataclass(frozen=True)
class Case:
    """One run."""

    kind: Kind
    variant: str
    layout: str
    precision: str
    batch: int
    lever: str = ""
    fault: str = ""
    replicate: int = 0

    @property
    def ranks(self) -> int:
        """Return how many ranks the layout needs."""
        return workload.LAYOUTS[self.layout][0]

    @property
    def name(self) -> str:
        """Return the run's name, also its folder's."""
        where = f"{self.layout}+{self.lever}" if self.lever else self.layout
        parts = [self.fault or self.kind, self.variant, where, self.precision, f"b{self.batch}"]
        return ".".join([*parts, f"r{self.replicate}"] if self.kind == "baseline" else parts)

    def arguments(self) -> dict[str, Any]:
        """Return the recipe's arguments; a fault that is a change of the recipe is in them."""
        change = FAULTS[self.fault].change if self.fault else {}
        return {**workload.arguments(self.variant, self.layout, self.lever, self.precision), **change}

    def baseline(self, replicate: int = 0) -> "Case":
        """Return what this run is compared with."""
        return Case("baseline", self.variant, f"dp{self.ranks}", self.precision, self.batch, replicate=replicate)

    def job(self, work: Path) -> dict[str, Any]:
        """Return its job.json."""
        return workload.job(work, self.variant, self.arguments(), self.ranks, self.batch)

    def digest(self, work: Path) -> str:
        """Return what the run depends on: its job, and the fault as it is planted."""
        fault = FAULTS[self.fault].plant if self.fault else ""
        text = json.dumps([asdict(self), self.job(work), fault], sort_keys=True).replace(str(work), "")
        return hashlib.sha256(text.encode()).hexdigest()


def split(where: str) -> tuple[str, str, str]:
    """Return variant, layout and lever of variant/layout+lever."""
    variant, _, rest = where.partition("/")
    layout, _, lever = rest.partition("+")
    return variant, layout, lever


_MIXED = (
    *("ep2+sharded-gather", "tp2+sharded-gather", "pp2+recompute-full", "pp2-vpp2+overlap", "ep2+sdpa", "ep2+buckets"),
    *("tp2-ep2-etp1+recompute-full", "pp2-ep2+sharded", "dp4+sharded-gather", "pp2+sharded-overlap"),
)
_LEVERS = (
    *("buckets", "overlap", "sharded", "sharded-overlap", "sharded-gather", "sdpa"),
    *("recompute-full", "recompute-block", "recompute-attention", "recompute-experts"),
)
_OTHERS = {
    "token": ("ep2", "pp2", "pp2-vpp2", "ep2-allgather", "pp2-ep2"),
    "free": ("dp2+micro2", "dp2+micro4", "tp2+micro2", "ep2+micro4", "pp2+micro2"),
    "even": ("dp2+micro2", "dp2+micro4", "ep2+micro2", "tp2"),
    "rowwise": ("dp2+micro2", "dp2+micro4", "ep2+micro2"),
    "tied": ("pp2", "tp2", "pp4", "ep2", "pp2-vpp2"),
    "sinks": ("ep2", "pp2"),
    "absolute": ("pp2", "tp2"),
}


def healthy() -> Iterator[Case]:
    """Yield every honest candidate: layouts on all batches, levers and other models on two."""
    for batch in range(workload.BATCHES):
        for precision in workload.PRECISIONS:
            for layout in workload.LAYOUTS:
                if layout not in ("dp2", "dp4"):
                    yield Case("healthy", "moe", layout, precision, batch)
            if batch >= 2:
                continue
            offload = "sharded-offload" if precision == "bf16" else "offload"
            wheres = [f"moe/dp2+{lever}" for lever in (*_LEVERS, offload)] + [f"moe/{where}" for where in _MIXED]
            wheres += [f"{variant}/{where}" for variant, several in _OTHERS.items() for where in several]
            for where in wheres:
                variant, layout, lever = split(where)
                yield Case("healthy", variant, layout, precision, batch, lever)


def faulty() -> Iterator[Case]:
    """Yield every planted fault in every layout and precision that it means something in, on two batches in the first one."""
    for fault in FAULTS.values():
        if not fault.runs:
            continue
        for place, where in enumerate(fault.where):
            variant, layout, lever = split(where)
            for precision in fault.precisions:
                for batch in FAULT_BATCHES if place == 0 else FAULT_BATCHES[:1]:
                    yield Case("fault", variant, layout, precision, batch, lever, fault.name)


def whole(only: str = "") -> list[Case]:
    """Return all runs, batch by batch, each with its baselines first; `only` is 'healthy' or 'faults'."""
    chosen = [*(faulty() if only != "healthy" else []), *(healthy() if only != "faults" else [])]
    baselines = dict.fromkeys(case.baseline(replicate) for case in chosen for replicate in (0, 1))
    return sorted([*baselines, *chosen], key=lambda case: (case.batch, case.kind))  # 'baseline' sorts before the others
