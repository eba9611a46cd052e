"""What came of one campaign of a comparison, read from its records."""

from __future__ import annotations

from pydantic import Field

from attuner.core.base import Record
from attuner.core.events import History
from attuner.core.recipe import EffectiveConfig
from attuner.policy import budget
from attuner.tables import Row, Table

NEAR = 0.03
"""Within this of the table's best counts as having found it: the noise band's floor."""
TARGET = 0.20
"""The paper's milestone: device-hours until the first gain of 20%. Source: ATTUNE, table 3."""


class Outcome(Record):
    """One campaign as a row of the comparison."""

    table: str
    arm: str
    seed: int
    gain: float = Field(description="of what was shipped over the baseline; on a table its true value, else re-measured")
    measured_gain: float = Field(description="as the campaign re-measured it; 0 where the baseline was kept")
    best_gain: float | None = Field(description="of the table's best row; None on a real cluster")
    near_best: bool | None = Field(description="shipped a row within 3% of the table's best")
    kept_baseline: bool
    shipped: str = Field(description="what was changed")
    stop: str
    gpu_hours: float = Field(description="charged in all")
    search_gpu_hours: float = Field(description="of search launches and their checks")
    launches: int = Field(description="search launches")
    failed: int = Field(description="of them: out of memory, hang, crash")
    failed_gpu_hours: float
    refused: int = Field(description="hypotheses that launched nothing; free")
    held: int = Field(default=0, description="of them: held back on the estimate's word")
    hours_to_target: float | None = Field(description="device-hours charged until a run first gained 20%; None: never")
    launches_to_best: int | None = Field(default=None, description="search launches up to the one that shipped")
    wall_clock_h: float = Field(description="of the campaign's own clock")
    real_s: float = Field(description="that playing it took here")
    curve: list[tuple[float, float]] = Field(description="device-hours charged, best gain so far over the calibration's mean")


def outcome_of(table: Table | None, history: History, *, arm: str, seed: int, real_s: float, name: str = "") -> Outcome:
    """Return the outcome of a finished campaign; `table` gives the true values, where there is one."""
    shipment, again = history.shipment(), history.remeasurement()
    search = [x for x in history.launches() if x.kind in ("search", "check")]
    tried = [x for x in search if x.kind == "search"]
    trials = {x.id: history.trial(x.id) for x in tried}
    lost = [x for x in tried if (t := trials[x.id]) is not None and t.status not in ("ok", "stopped_early")]
    curve = curve_of(history)
    kept = shipment is None or shipment.kept_baseline
    measured = 0.0 if kept or again is None else again.gain
    gain, best_gain, near = measured, None, None
    effective = history.effective(shipment.recipe) if shipment else None
    if table is not None:
        shipped = _row(table, effective) or table.start()
        start, best = table.speed(table.start()), table.speed(table.best())
        gain, best_gain = table.speed(shipped) / start - 1.0, best / start - 1.0
        near = table.speed(shipped) >= (1.0 - NEAR) * best
    order = [x.id for x in tried]
    refused = [h for h in history.hypotheses() if (v := history.verdict(h.id)) is not None and v.decision == "refuse"]
    held = [h for h in refused if (f := history.forecast(h.id)) is not None and f.held]
    stop = history.stop()
    return Outcome(
        table=name or (table.name if table else ""),
        arm=arm,
        seed=seed,
        gain=gain,
        measured_gain=measured,
        best_gain=best_gain,
        near_best=near,
        kept_baseline=kept,
        shipped=_changes(history, effective),
        stop=stop.reason if stop else "",
        gpu_hours=budget.spent(history),
        search_gpu_hours=sum(history.charge(x.id) for x in search),
        launches=len(tried),
        failed=len(lost),
        failed_gpu_hours=sum(history.charge(x.id) for x in lost),
        refused=len(refused),
        held=len(held),
        hours_to_target=next((hours for hours, best in curve if best >= TARGET), None),
        launches_to_best=order.index(shipment.launch_id) + 1 if shipment and not kept and shipment.launch_id in order else None,
        wall_clock_h=_wall_clock_h(history),
        real_s=real_s,
        curve=curve,
    )


def _row(table: Table, effective: EffectiveConfig | None) -> Row | None:
    return table.find(effective.arguments) if effective else None


def _changes(history: History, effective: EffectiveConfig | None) -> str:
    base = history.effective(history.campaign().baseline.digest())
    if effective is None or base is None:
        return ""
    names = sorted(k for k, v in effective.arguments.items() if base.arguments.get(k) != v)
    return ", ".join(f"{k} {base.arguments.get(k)}→{effective.arguments[k]}" for k in names)


def curve_of(history: History) -> list[tuple[float, float]]:
    """Return best-so-far gain of admitted runs over the calibration's mean, by device-hours charged."""
    calibration = history.calibration()
    if calibration is None:
        return []
    kinds = {x.id: x.kind for x in history.launches()}
    hours, best, points = 0.0, 0.0, []
    for settlement in history.settlements():
        kind = kinds.get(settlement.launch_id)
        if kind == "remeasure":
            continue
        hours += settlement.gpu_hours
        score = history.score(settlement.launch_id)
        if kind == "search" and score is not None and score.valid and score.decision == "admit":
            best = max(best, score.tokens_per_s_per_gpu / calibration.mean - 1.0)
        points.append((hours, best))
    return points


def _wall_clock_h(history: History) -> float:
    """Return the time from the first allocation to the last release, hours."""
    starts = [s.allocated_at for s in history.settlements() if s.allocated_at is not None]
    ends = [s.released_at for s in history.settlements() if s.released_at is not None]
    return (max(ends) - min(starts)) / 3600.0 if starts and ends else 0.0
