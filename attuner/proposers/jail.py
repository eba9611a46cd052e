"""What a proposer's process can't do, held by the kernel: write, create or remove any file, read beyond code and system
libraries, open a TCP connection, or signal another process. Linux Landlock (5.13; network 6.7, signals 6.12), without privileges
and for good: there is no call that lifts it. Source: docs.kernel.org/userspace-api/landlock.html."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable
from pathlib import Path

_CREATE, _ADD, _RESTRICT = 444, 445, 446
_VERSION, _BENEATH, _NO_NEW_PRIVS = 1, 1, 38
_EXECUTE, _WRITE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_FIRST_ABI = (1 << 13) - 1
"""Every right of the first version: execute, write, read, list, and all kinds of making and removing."""
_LATER = {2: 1 << 13, 3: 1 << 14, 5: 1 << 15}
"""Rights that later versions added: rename between folders, truncate, ioctl on devices."""
_TCP, _SCOPES = 0b11, 0b11
"""Bind and connect (version 4); abstract sockets and signals (version 6)."""
SYSTEM = ("/usr", "/lib", "/lib64", "/etc", "/proc/self", "/dev/null", "/dev/urandom", "/sys/devices/system/cpu")


class _Ruleset(ctypes.Structure):
    _fields_ = [("fs", ctypes.c_uint64), ("net", ctypes.c_uint64), ("scoped", ctypes.c_uint64)]


class _Beneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = [("allowed", ctypes.c_uint64), ("parent", ctypes.c_int32)]


def version() -> int:
    """Return the kernel's Landlock version; 0 where there is none."""
    try:
        return max(int(ctypes.CDLL(None).syscall(_CREATE, None, ctypes.c_size_t(0), ctypes.c_uint32(_VERSION))), 0)
    except (OSError, AttributeError):
        return 0


def enter(readable: Iterable[Path | str], *, network: bool = False) -> bool:
    """Lock this process in; what it may still do is read beneath `readable` and SYSTEM, and use what it has open.

    Args:
        readable: files and folders; those that don't exist are left out.
        network: leave TCP alone, for a proposer that talks to a model.

    Returns: whether it is locked in; False on a kernel without Landlock.

    Raises:
        OSError: the kernel has Landlock and refused.
    """
    abi = version()
    if abi < 1:
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    rights = _FIRST_ABI | sum(right for since, right in _LATER.items() if abi >= since)
    ruleset = _Ruleset(rights, _TCP if abi >= 4 and not network else 0, _SCOPES if abi >= 6 else 0)
    size = ctypes.sizeof(ruleset) if abi >= 6 else 16 if abi >= 4 else 8
    rules = _checked(libc, libc.syscall(_CREATE, ctypes.byref(ruleset), ctypes.c_size_t(size), ctypes.c_uint32(0)))
    try:
        for path in {str(p) for p in (*SYSTEM, *readable)}:
            _allow(libc, rules, path)
        _checked(libc, libc.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0))
        _checked(libc, libc.syscall(_RESTRICT, rules, ctypes.c_uint32(0)))
    finally:
        os.close(rules)
    return True


def _allow(libc: ctypes.CDLL, rules: int, path: str) -> None:
    """Let what lies beneath a path be read and run."""
    try:
        handle = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    try:
        folder = Path(path).is_dir()
        beneath = _Beneath(_READ_FILE | _EXECUTE | (_READ_DIR if folder else 0), handle)
        if path == "/dev/null":
            beneath.allowed |= _WRITE
        _checked(libc, libc.syscall(_ADD, rules, _BENEATH, ctypes.byref(beneath), ctypes.c_uint32(0)))
    finally:
        os.close(handle)


def _checked(libc: ctypes.CDLL, result: int) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"landlock: {os.strerror(code)}")
    return result
