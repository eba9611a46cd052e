"""Reads the iteration lines of Megatron-LM's own log, as far as the looks can use them: loss, auxiliary losses, gradient norm.

The grammar is `attuner.logs`'s. The looks are stricter than a reader: a line that another writer broke, or that a spreadsheet
rewrote, is dropped and counted even where its values could be told, for half a number is worse than none. A loss that isn't
finite is not printed at all, so its absence with an update made is read as NaN. Learning rates are the next step's, so they
are not read.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from attuner.core.run import StepRecord
from attuner.logs.reader import LogReader
from attuner.logs.record import LogRecord

_PIECE = 1 << 20


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
    rows: dict[int, LogRecord] = {}
    broken = 0
    for record in _records(text):
        if record.grammar != "megatron":
            continue
        if not record.whole or record.rejoined or record.locale:
            broken += 1
        else:
            rows[record.iteration] = record
    if not rows:
        return LoggedRun(broken=broken)
    first = min(rows)
    steps, skipped, batches = [], [], {}
    for iteration, record in sorted(rows.items()):
        step = iteration - first
        if record.global_batch_size is not None:
            batches[step] = record.global_batch_size
        if record.lm_loss is None:
            skipped.append(step)
            continue
        steps.append(_step(step, record.lm_loss, record))
    gaps = [b - a for a, b in zip(sorted(rows), sorted(rows)[1:], strict=False)]
    # the first iteration is printed in any case, whatever the interval
    interval = max(gaps, default=1)
    return LoggedRun(steps, first, batches, broken, interval, skipped)


def _records(text: str) -> list[LogRecord]:
    reader, out = LogReader(), []
    for at in range(0, len(text), _PIECE):
        out += reader.feed(text[at : at + _PIECE].encode("utf-8", "replace"))
    return out + reader.close()


def _step(step: int, loss: float, record: LogRecord) -> StepRecord:
    return StepRecord(
        step=step,
        kind="scored",
        t=0.0,
        step_s=(record.elapsed_ms or 0.0) / 1000.0,
        lm_loss=loss,
        aux=record.aux_losses,
        grad_norm=record.grad_norm,
        loss_tokens=None,
        tokens=0,
    )
