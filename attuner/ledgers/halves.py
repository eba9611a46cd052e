"""Half of a long read is left to a second process: verifying a year's ledger, or telling its campaigns, takes half of the time.

The second is a fork, which needs no start of its own (importing takes 0.3 s). A DuckDB instance doesn't survive a fork, so the
second has to make one. It answers in bytes or not at all, and then its half is done here as well: it can fail, not lie, and not
keep anybody waiting.
"""

from __future__ import annotations

import gc
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
PATIENCE_S = 10.0


def may_fork() -> bool:
    """Tell whether a fork is safe (another thread's locks would stay locked in it) and has a core of its own."""
    return sys.platform == "linux" and threading.active_count() == 1 and len(os.sched_getaffinity(0)) > 1


def both(here: Callable[[], T], there: Callable[[], bytes], *, patience_s: float = PATIENCE_S) -> tuple[T, bytes | None]:
    """Return what `here` returns and, from a fork that ran meanwhile, what `there` does; None if it came to no good end.

    Args:
        patience_s: how much longer than `here` took it may take.
    """
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
    began, told = time.monotonic(), None
    try:
        mine = here()
        told = _heard(answer, patience_s=patience_s + time.monotonic() - began)
    finally:
        if told is None:
            os.kill(child, signal.SIGKILL)
        os.close(answer)
        _, state = os.waitpid(child, 0)
    return mine, told if state == 0 else None


def _heard(pipe: int, *, patience_s: float) -> bytes | None:
    """Return all that comes through a pipe until its other end closes; None if that takes too long."""
    parts: list[bytes] = []
    deadline = time.monotonic() + patience_s
    while select.select([pipe], [], [], max(deadline - time.monotonic(), 0.0))[0]:
        part = os.read(pipe, 1 << 20)
        if not part:
            return b"".join(parts)
        parts.append(part)
    return None


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
