"""One rank of a launch with a fault planted in it:
`python -m torch.distributed.run --nproc-per-node 2 -m tests.faults.rank RUN_DIR FAULT`. The study uses `farm` instead."""

import sys
from pathlib import Path

from attuner.runner import files, train_mcore


def main(run_dir: str, fault: str) -> None:
    """Plant the fault in this process, then be an ordinary rank of the trainer."""
    job = files.read_json(Path(run_dir) / files.JOB)
    train_mcore.import_megatron(job["device"])
    from . import faults

    faults.plant(fault, job)
    train_mcore.main(run_dir)


if __name__ == "__main__":
    main(str(Path(sys.argv[1]).resolve()), sys.argv[2] if len(sys.argv) > 2 else "")
