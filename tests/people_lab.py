"""A campaign in the laboratory that people speak to: its table, and a ledger in another process's hands."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lab import Lab

from attuner.launchers.replay import Row
from attuner.ledgers.memory import MemoryLedger

FASTER = Row(match={"micro_batch_size": 4}, step_s=0.5)
LAYOUT_ROW = Row(match={"tensor_model_parallel_size": 1}, step_s=0.8)
BUCKET = Row(match={"bucket_size": 1000}, step_s=0.4)
REST = Row(step_s=1.0, jitter=0.005)
BY = {"by": "Ada", "why": "as agreed on Monday"}


def lab(tmp_path: Path, *rows: Row, **more: Any) -> Lab:
    return Lab(tmp_path, [*rows, REST], **more)


def words(made: Lab) -> MemoryLedger:
    """A ledger without the lease: another process, while the campaign runs."""
    return MemoryLedger(made.store, now=made.clock.now)
