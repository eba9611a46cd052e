"""Reads the iteration lines of Megatron-LM's own log, as far as the looks can use them: loss, auxiliary losses, gradient norm.

The grammar is the same from 2021 to 0.20: fields separated by ` |`, each `name: value`, printed by the last rank. Lines of
other ranks, prefixes of launchers and whole foreign lines in between are passed over; a line that another writer broke is
dropped and counted, for half a number is worse than none. A loss that isn't finite is not printed at all, so its absence
with `number of nan iterations` above 0 is read as NaN. Learning rates are the next step's, so they are not read.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field

from attuner.core.run import StepRecord

_START = re.compile(r"\biteration\s+(\d+)\s*/\s*(\d+)\s*\|")
_NUMBER = re.compile(r"[-+]?(\d+\.?\d*([eE][-+]?\d+)?|nan|inf)")
_FIELD = re.compile(r"^(?P<name>[A-Za-z][\w ./()-]*?)\s*:?\s+(?P<value>[-+]?(?:\d|nan|inf)\S*)$")
LOSS = "lm loss"
END = "number of nan iterations"
"""The last field of a whole line, in every version since 2021."""


@dataclass(frozen=True)
class LoggedRun:
    """What a log says of a run. Step 0 is the first printed iteration."""

    steps: list[StepRecord] = field(default_factory=list)
    first_iteration: int = 0
    global_batch: dict[int, int] = field(default_factory=dict)
    """Rows of each printed step's update."""
    broken: int = 0
    """Iteration lines that another writer broke."""
    interval: int = 1
    """Iterations between printed lines; above 1 the losses are means over as many iterations."""
    skipped: list[int] = field(default_factory=list)
    """Steps whose update was skipped (loss scaling), so that they have no loss."""

    def notes(self) -> list[str]:
        """Return what a reader should know about these figures."""
        out = []
        if self.interval > 1:
            out.append(f"one line in {self.interval} iterations: losses after the first are means over as many")
        if self.broken:
            out.append(f"{self.broken} iteration lines are broken by another writer and left out")
        if self.skipped:
            out.append(f"steps {self.skipped[:8]} took no update")
        if self.first_iteration > 1:
            out.append(f"begins at iteration {self.first_iteration}: step 0 is that one")
        return out


def read_log(text: str) -> LoggedRun:
    """Return the run that a log tells of; no iteration line is a run without steps.

    A later line of the same iteration holds (a restart prints some again).
    """
    rows: dict[int, dict[str, float]] = {}
    broken = 0
    for line in text.splitlines():
        start = _START.search(line)
        if start is None:
            continue
        fields = _fields(line[start.end() :])
        if fields is None:
            broken += 1
            continue
        rows[int(start[1])] = fields
    if not rows:
        return LoggedRun(broken=broken)
    first = min(rows)
    steps, skipped, batches = [], [], {}
    for iteration, fields in sorted(rows.items()):
        step = iteration - first
        if "global batch size" in fields:
            batches[step] = int(fields["global batch size"])
        loss = _loss(fields)
        if loss is None:
            skipped.append(step)
            continue
        steps.append(_step(step, loss, fields))
    gaps = [b - a for a, b in zip(sorted(rows), sorted(rows)[1:], strict=False)]
    # the first iteration is printed in any case, whatever the interval
    interval = max(gaps, default=1)
    return LoggedRun(steps, first, batches, broken, interval, skipped)


def _fields(rest: str) -> dict[str, float] | None:
    """Return the numeric fields of one line, or None for a line that isn't whole."""
    parts = [p.strip() for p in rest.split("|")]
    found: dict[str, float] = {}
    for part in parts:
        match = _FIELD.match(part)
        if match is None:
            continue
        value = match["value"]
        if _NUMBER.fullmatch(value) is None:
            # Primus and Megatron-DeepSpeed print several numbers in one field; none of ours is among them
            if match["name"] in (LOSS, "grad norm", "global batch size") or match["name"].endswith("loss"):
                return None
            continue
        found[match["name"]] = float(value)
    whole = END in found or any(p.startswith(END) for p in parts)
    # the log of 2020 ends with its losses and has no counters at all
    old = "number of skipped iterations" not in rest and LOSS in found and rest.rstrip().endswith("|")
    return found if whole or old else None


def _loss(fields: dict[str, float]) -> float | None:
    """Return the loss; NaN where Megatron keeps quiet about one that isn't finite; None for a step without an update."""
    if LOSS in fields:
        return fields[LOSS]
    if fields.get("number of skipped iterations", 0) > 0 and not fields.get(END):
        return None
    return math.nan


def _step(step: int, loss: float, fields: dict[str, float]) -> StepRecord:
    aux = {k: v for k, v in fields.items() if k.endswith(("loss", "_loss")) and k != LOSS}
    return StepRecord(
        step=step,
        kind="scored",
        t=0.0,
        step_s=fields.get("elapsed time per iteration (ms)", 0.0) / 1000.0,
        lm_loss=loss,
        aux=aux,
        grad_norm=fields.get("grad norm"),
        loss_tokens=None,
        tokens=0,
    )
