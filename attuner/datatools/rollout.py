"""`attuner data rollout`: slime's debug rollout files from rows, so that slime trains on them without an inference engine.

torch lives in the runner, so the files are written by a child, `python -m attuner.runner.write_rollout`.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from attuner import __version__
from attuner.core.errors import UserError
from attuner.datatools import frozen
from attuner.datatools.output import new_folder

MARK = "rollout.json"
TEMPLATE = "rollout_{rollout_id}.pt"
REWARDS = ("alternate", "zero")


@dataclass(frozen=True)
class Rollout:
    """How rows become rollouts."""

    steps: int
    """Rollouts: one a training step."""
    rollout_batch_size: int
    """Prompts of a rollout."""
    samples_per_prompt: int = 1
    first_row: int = 0
    first_rollout: int = 0
    """Number of the first file: slime counts on from the checkpoint that it loads."""
    rewards: str = "alternate"
    trim: bool = False
    """Leave out the tokens behind a row's last loss token."""


def make_rollout(folder: Path, out: Path, wish: Rollout, *, force: bool = False) -> dict[str, Any]:
    """Write the folder `out` with one file a step, and return what its rollout.json says.

    Raises:
        UserError: too few rows, they can't be read, torch is missing, or the disk is full.
        Refused: another process writes `out`.
    """
    for name in ("steps", "rollout_batch_size", "samples_per_prompt"):
        if getattr(wish, name) < 1:
            raise UserError(f"--{name.replace('_', '-')} {getattr(wish, name)}: at least 1")
    if wish.first_row < 0 or wish.first_rollout < 0:
        raise UserError("--first-row, --first-rollout: at least 0")
    rows = frozen.open_rows(folder)
    count = wish.rollout_batch_size * wish.samples_per_prompt
    left = len(rows.rows) - wish.first_row
    if left < wish.steps * count:
        raise UserError(
            f"{folder}: {wish.steps} steps of {count} samples want {wish.steps * count} rows, there are {max(left, 0)}"
        )
    with new_folder(out, mark=MARK, force=force) as part:
        about = rows.about
        job = {"rows": str(folder.resolve()), "out": str(part.resolve()), "seq_length": rows.seq_len, **asdict(wish)}
        written = _child(part, {**job, "vocab_size": about["vocab_size"]}, out)
        told = {
            "made_by": f"attuner {__version__} data rollout",
            "rows": {k: about[k] for k in ("sha256", "mask_sha256", "seq_len", "num_rows", "vocab_size") if k in about},
            "wish": asdict(wish),
            "template": TEMPLATE,
            # as stacks freeze the files that a pattern finds, in the order of their names
            "sha256": frozen.digest_of(written["files"][name] for name in sorted(written["files"])),
            **written,
        }
        (part / MARK).write_text(frozen.document(told), encoding="utf-8")
    return told


def _child(part: Path, job: dict[str, Any], out: Path) -> dict[str, Any]:
    """Run the writer and return what it wrote."""
    order, written = part / "job.json", part / "written.json"
    order.write_text(json.dumps(job), encoding="utf-8")
    done = subprocess.run([sys.executable, "-m", "attuner.runner.write_rollout", str(order)], capture_output=True, text=True)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no word"])[-1]
        raise UserError(f"{out}: {last}; nothing was kept")
    found: dict[str, Any] = json.loads(written.read_text(encoding="utf-8"))
    order.unlink()
    written.unlink()
    return found
