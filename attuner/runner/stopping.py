"""A job that is asked to stop: the signal raises Stopped where the main thread is, and is remembered.

Remembered, because an exception of a signal's handler can get lost: raised while native code calls back into Python it is
only printed, and Ray turns one that interrupts a wait of its own into KeyboardInterrupt. Whoever waits in a loop calls `check`.
"""

import signal


class Stopped(BaseException):
    """The job was asked to stop. No Exception: nothing that catches errors may catch it."""


class _Asked:
    yes = False


def listen() -> None:
    """Raise Stopped at SIGTERM, once: the way out must not be cut short."""
    check()
    signal.signal(signal.SIGTERM, _asked)


def _asked(_signum: int, _frame: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    _Asked.yes = True
    raise Stopped


def check() -> None:
    """Raise Stopped if the job was asked to stop."""
    if _Asked.yes:
        raise Stopped


def asked() -> bool:
    """Tell whether the job was asked to stop."""
    return _Asked.yes
