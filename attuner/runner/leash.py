"""Run a command that dies with its parent: ask the kernel for SIGKILL at the parent's death, then become the command.

`python -S -m attuner_runner.leash PARENT_PID COMMAND...`. A driver that is killed outright can't clean up; this way its
torchrun, and through it every rank, goes with it, and no device stays taken. Outside Linux the command just runs.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main(argv: list[str]) -> None:
    """Become `argv[1:]`, tied to the life of process `argv[0]`."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != int(argv[0]):  # the parent died before the request was in place
            sys.exit(1)
    os.execvp(argv[1], argv[1:])


if __name__ == "__main__":
    main(sys.argv[1:])
