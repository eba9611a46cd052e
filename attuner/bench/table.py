"""A comparison as figures: one line per table and arm, as text and as CSV."""

from __future__ import annotations

import csv
import io
import json
import statistics
from collections.abc import Iterable, Sequence

from pydantic import Field

from attuner.bench.outcome import Outcome
from attuner.core.base import Record


class Line(Record):
    """One arm on one table: means over its campaigns, medians where said."""

    table: str
    arm: str
    campaigns: int
    gain: float = Field(description="mean")
    gain_low: float
    gain_high: float
    best_gain: float | None
    near_best: int | None = Field(description="campaigns that shipped within 3% of the table's best")
    kept_baseline: int
    gpu_hours: float = Field(description="mean, charged in all")
    search_gpu_hours: float = Field(description="mean")
    launches: float = Field(description="median of search launches")
    failed_share: float = Field(description="of all search launches")
    failed_gpu_hours: float = Field(description="mean")
    hours_to_target: float | None = Field(description="median over the campaigns that got there")
    reached_target: int
    refused: float = Field(description="mean")
    held: float = Field(description="mean")
    wall_clock_h: float = Field(description="mean, of the campaign's own clock")
    real_s: float = Field(description="mean")


def lines(outcomes: Iterable[Outcome]) -> list[Line]:
    """Return one line per table and arm, in the order in which they first appear."""
    groups: dict[tuple[str, str], list[Outcome]] = {}
    for outcome in outcomes:
        groups.setdefault((outcome.table, outcome.arm), []).append(outcome)
    return [_line(table, arm, group) for (table, arm), group in sorted(groups.items(), key=lambda x: x[0][0])]


def _line(table: str, arm: str, group: Sequence[Outcome]) -> Line:
    gains = [o.gain for o in group]
    reached = [o.hours_to_target for o in group if o.hours_to_target is not None]
    launches = sum(o.launches for o in group)
    on_table = group[0].near_best is not None
    return Line(
        table=table,
        arm=arm,
        campaigns=len(group),
        gain=statistics.fmean(gains),
        gain_low=min(gains),
        gain_high=max(gains),
        best_gain=group[0].best_gain,
        near_best=sum(bool(o.near_best) for o in group) if on_table else None,
        kept_baseline=sum(o.kept_baseline for o in group),
        gpu_hours=statistics.fmean(o.gpu_hours for o in group),
        search_gpu_hours=statistics.fmean(o.search_gpu_hours for o in group),
        launches=statistics.median(o.launches for o in group),
        failed_share=sum(o.failed for o in group) / launches if launches else 0.0,
        failed_gpu_hours=statistics.fmean(o.failed_gpu_hours for o in group),
        hours_to_target=statistics.median(reached) if reached else None,
        reached_target=len(reached),
        refused=statistics.fmean(o.refused for o in group),
        held=statistics.fmean(o.held for o in group),
        wall_clock_h=statistics.fmean(o.wall_clock_h for o in group),
        real_s=statistics.fmean(o.real_s for o in group),
    )


HEAD = (
    *("table", "arm", "gain (range)", "best", "within 3%", "kept", "launches", "failed", "GPU-h failed", "GPU-h search"),
    *("GPU-h all", "GPU-h to +20%", "wall-clock h"),
)


def cells(line: Line) -> list[str]:
    """Return a line as a person reads it; the columns are those of HEAD."""
    to = f"{line.hours_to_target:,.0f}" if line.hours_to_target is not None else "–"
    hours = ",.0f" if line.gpu_hours >= 10 else ".3f"
    return [
        line.table,
        line.arm,
        f"{line.gain:+.1%} ({line.gain_low:+.1%} – {line.gain_high:+.1%})",
        f"{line.best_gain:+.1%}" if line.best_gain is not None else "–",
        f"{line.near_best}/{line.campaigns}" if line.near_best is not None else "–",
        f"{line.kept_baseline}/{line.campaigns}",
        f"{line.launches:g}",
        f"{line.failed_share:.0%}",
        format(line.failed_gpu_hours, hours),
        format(line.search_gpu_hours, hours),
        format(line.gpu_hours, hours),
        f"{to} ({line.reached_target}/{line.campaigns})",
        f"{line.wall_clock_h:.1f}",
    ]


def text(rows: Sequence[Line]) -> str:
    """Return the comparison as aligned columns."""
    table = [list(HEAD), *(cells(r) for r in rows)]
    widths = [max(len(row[i]) for row in table) for i in range(len(HEAD))]
    aligned = [
        "  ".join(c.ljust(w) if i < 2 else c.rjust(w) for i, (c, w) in enumerate(zip(r, widths, strict=True))) for r in table
    ]
    return "\n".join(line.rstrip() for line in aligned)


def as_csv(records: Sequence[Record]) -> str:
    """Return records of one kind as CSV; a list inside one is JSON."""
    out = io.StringIO()
    if records:
        writer = csv.DictWriter(out, list(type(records[0]).model_fields), lineterminator="\n")
        writer.writeheader()
        for record in records:
            writer.writerow({k: json.dumps(v) if isinstance(v, list | dict) else v for k, v in record.data().items()})
    return out.getvalue()


def read_csv(text: str) -> list[Outcome]:
    """Return the outcomes that `as_csv` wrote, so that a comparison can be shown and tested again without playing it."""
    empty = {name for name, f in Outcome.model_fields.items() if f.annotation is not str}
    found = []
    for row in csv.DictReader(io.StringIO(text)):
        data = {k: (None if v == "" and k in empty else v) for k, v in row.items()}
        found.append(Outcome.model_validate({**data, "curve": json.loads(row["curve"])}))
    return found
