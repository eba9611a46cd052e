"""What launches on this machine would run with, asked of their Python in a process of its own; no device is held, no Ray started.

The runner's `versions` answers, as it does inside a job, in the environment that a job gets.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

from attuner.core.errors import UserError

LIMIT_S = 90.0
RUN = "import runpy, sys; runpy.run_path(sys.argv[1], run_name='__main__')"


def look(python: str, runner: Path, env: Mapping[str, str]) -> dict[str, str]:
    """Return name → version, as a run would report them of itself.

    Args:
        python: interpreter that launches run with.
        runner: folder of the runner's sources.
        env: what the cluster's file adds to a job's environment.

    Raises:
        UserError: the interpreter can't be run, or doesn't answer.
    """
    where = f"ATTUNER_RAY_PYTHON: {python}"
    try:
        with tempfile.TemporaryDirectory(prefix="attuner-look-") as empty:  # nothing of the working directory is importable
            done = subprocess.run(
                [python, "-c", RUN, str(runner / "versions.py")],
                env={**os.environ, **env},
                cwd=empty,
                capture_output=True,
                text=True,
                timeout=LIMIT_S,
                check=False,
            )
        found = json.loads(done.stdout.splitlines()[-1])
    except OSError as error:
        raise UserError(f"{where}: can't be run: {error.strerror}") from None
    except (subprocess.TimeoutExpired, IndexError, ValueError):
        raise UserError(f"{where}: did not say its versions; try `{python} {runner / 'versions.py'}`") from None
    return {str(name): str(version) for name, version in found.items()}
