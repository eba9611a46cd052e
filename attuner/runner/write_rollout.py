"""Writes slime's debug rollout files from rows: `python -m attuner.runner.write_rollout JOB.json`.

A file is what slime's `--load-debug-rollout-data TEMPLATE` loads for one rollout: a dict with `rollout_id` and `samples`, a
list of Sample.to_dict(). A row of seq_len + 1 tokens becomes a sample whose prompt is its first token and whose response is
the rest, so that the response's loss mask is the row's. The files hold plain lists and numbers: torch.load reads them
with weights_only.

Source: slime 624b824a slime/observability/rollout_data_utils.py:load_debug_rollout_data, slime/utils/types.py:Sample.
"""

import hashlib
import io
import sys
from pathlib import Path
from typing import Any

import torch

from . import files
from .errors import ConfigError
from .rows import Rows

NAME = "rollout_{rollout_id}.pt"
WRITTEN = "written.json"
"""Name → sha256 of each file, and counts; written last."""


def write(job: dict[str, Any]) -> dict[str, Any]:
    """Write one file a step into job["out"] and return their digests.

    Raises: ConfigError when the rows don't suffice or can't be read, OSError when the disk is full.
    """
    rows = Rows(job["rows"], job["seq_length"], job["vocab_size"], torch.device("cpu"))
    group = int(job["samples_per_prompt"])
    count = int(job["rollout_batch_size"]) * group
    rows.need(job["first_row"], int(job["steps"]) * count)
    digests, silent, loss_tokens = {}, 0, []
    for step in range(int(job["steps"])):
        [batch] = rows.update(job["first_row"] + step * count, count, count, 1, 0)
        samples = [
            sample(batch, n, index=step * count + n, group=group, rewards=job["rewards"], trim=job["trim"]) for n in range(count)
        ]
        loss_tokens += [sum(s["loss_mask"]) for s in samples]
        silent += sum(not any(s["loss_mask"]) for s in samples)
        number = int(job["first_rollout"]) + step
        name = NAME.format(rollout_id=number)
        # not by path: torch.save would write the path's name into the file, and say RuntimeError for a full disk
        whole = io.BytesIO()
        torch.save({"rollout_id": number, "samples": samples}, whole)
        (Path(job["out"]) / name).write_bytes(whole.getbuffer())
        digests[name] = hashlib.sha256(whole.getbuffer()).hexdigest()
    return {"files": digests, "samples": len(loss_tokens), "samples_without_loss": silent, "loss_tokens": sum(loss_tokens)}


def sample(batch: dict[str, Any], row: int, *, index: int, group: int, rewards: str, trim: bool) -> dict[str, Any]:
    """Return one row as slime's Sample.to_dict(); what is left out has the class's default.

    `rewards`: `alternate` gives 1 and 0 in turn within a prompt's samples, so that group-normalised advantages aren't all
    zero; `zero` gives 0. `trim` leaves out the tokens behind the last loss token.
    """
    tokens = [*batch["tokens"][row].tolist(), int(batch["labels"][row, -1])]
    mask = [int(value) for value in batch["loss_mask"][row].tolist()]
    if trim:
        last = max((at for at, value in enumerate(mask) if value), default=0)
        tokens, mask = tokens[: last + 2], mask[: last + 1]
    return {
        "group_index": index // group,
        "index": index,
        "prompt": "",
        "tokens": tokens,
        "response": "",
        "response_length": len(mask),
        "label": None,
        "reward": float(index % group % 2 == 0) if rewards == "alternate" else 0.0,
        "loss_mask": mask,
        "status": "completed",
        "metadata": {},
    }


def main(path: str) -> int:
    """Do the job that a JSON file describes; what is wrong is one line on stderr, exit code 2."""
    job = files.read_json(path)
    try:
        written = write(job)
        files.write_json(Path(job["out"]) / WRITTEN, written)
    except ConfigError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    except OSError as error:
        sys.stderr.write(f"can't be written ({error.strerror or error})\n")
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
