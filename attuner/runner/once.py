"""The entrypoint of a job that something else may start again: it lets a driver begin once per run directory.

`python -m attuner_runner.once RUN_DIR JOB`. KubeRay submits a job anew when the head pod was replaced and the new head knows
nothing of it; without this, one attempt would train twice and overwrite its own evidence. JOB is the job document.
"""

import os
import sys
from pathlib import Path

BEGUN = "begun"
"""Made by the first driver; whoever finds it does not begin."""
BEGUN_BEFORE = 82
"""Exit code of a job that was started a second time."""


def begin(run_dir: Path) -> bool:
    """Claim the run directory; tell whether this caller is the first."""
    run_dir.mkdir(parents=True, exist_ok=True)
    try:
        mark = os.open(run_dir / BEGUN, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
    except FileExistsError:
        return False
    os.close(mark)
    return True


def main(run_dir: str, job: str) -> int:
    """Become the driver, or say why not."""
    if begin(Path(run_dir)):
        os.execv(sys.executable, [sys.executable, "-m", f"{__package__}.driver", run_dir, job])
    sys.stderr.write(f"{run_dir}: a driver began here before; the Ray head that ran it was replaced\n")
    return BEGUN_BEFORE


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
