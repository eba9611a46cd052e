"""Half of a long read is left to a second process: verifying a year's ledger, or telling its campaigns, takes half of the time.

The second is a fork, which needs no start of its own (importing takes 0.3 s). A DuckDB instance doesn't survive a fork, so the
second has to make one. It answers in bytes or not at all, and then its half is done here as well: it can fail, not lie.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def may_fork() -> bool:
    """Tell whether a fork is safe (another thread's locks would stay locked in it) and has a core of its own."""
    return sys.platform == "linux" and threading.active_count() == 1 and len(os.sched_getaffinity(0)) > 1


def both(here: Callable[[], T], there: Callable[[], bytes]) -> tuple[T, bytes | None]:
    """Return what `here` returns and, from a fork that ran meanwhile, what `there` does; None if it came to no good end."""
    answer, ask = os.pipe()
    try:
        child = os.fork()
    except OSError:  # no process or no memory to be had
        os.close(answer)
        os.close(ask)
        return here(), None
    if child == 0:
        _answer(there, ask)
    os.close(ask)
    try:
        with os.fdopen(answer, "rb") as pipe:
            mine = here()
            told = pipe.read()
    except BaseException:
        os.kill(child, signal.SIGKILL)
        raise
    finally:
        _, state = os.waitpid(child, 0)
    return mine, told if state == 0 else None


def _answer(there: Callable[[], bytes], ask: int) -> None:
    """Write the answer, and end this process without what would end the one that it is a copy of."""
    code = 1
    try:
        gc.disable()  # it would write to every page that the two still share
        told = there()
        with os.fdopen(ask, "wb") as pipe:
            pipe.write(told)
        code = 0
    finally:
        os._exit(code)
