"""Memory of one device in GiB: torch's allocator statistics on CUDA; on a CPU the resident size which a rank gained
since its device was ready (imports done, process groups up), with a limit that is enforced, so that a recipe which
would run out of a device's memory really does."""

import ctypes
import gc
import os
import sys
import threading
import warnings
from collections.abc import Callable
from pathlib import Path

import torch

GIB = 2**30
OOM_EXIT = 77
"""Exit status of a rank whose memory guard ended it."""

_STATUS = Path("/proc/self/status")
_CLEAR = Path("/proc/self/clear_refs")
_PERIOD_S = 0.02


def _resident(field: str) -> int:
    """Read VmHWM (peak) or VmRSS (now) of this process, in bytes."""
    with _STATUS.open("rb") as file:
        for line in file:
            if line.startswith(field.encode()):
                return int(line.split()[1]) * 1024
    raise OSError(f"no {field} in {_STATUS}")


def settle_allocator() -> None:
    """Make glibc hand larger freed tensors back to the kernel, so that peaks of equal steps stay alike.

    Blocks of 1 MiB and more get a mapping of their own; glibc would otherwise raise that threshold as it goes, and
    peaks crept up step by step (0.25 to 0.28 GiB over five steps; with this they stay within 4%). A threshold of
    128 KiB gives peaks within 2% and a fifth lower, but steps take about 60% longer. Does nothing without glibc.
    """
    if not sys.platform.startswith("linux"):
        return
    try:
        libc = ctypes.CDLL("libc.so.6")
    except OSError:
        return
    trim_threshold, mmap_threshold = -1, -3  # M_TRIM_THRESHOLD and M_MMAP_THRESHOLD of malloc.h
    libc.mallopt(mmap_threshold, 1 << 20)
    libc.mallopt(trim_threshold, 1 << 20)


class MemoryGuard:
    """Peak memory of this rank's device, and its limit.

    On CUDA the limit is given to torch's allocator, which raises torch.OutOfMemoryError. On a CPU a daemon thread
    watches the kernel's peak, and calls `on_oom` with a message before ending the process with status 77.
    Where the kernel shows no peak (not Linux), a warning says that the limit isn't enforced and peaks are unknown.
    """

    def __init__(self, limit_gib: float | None, on_oom: Callable[[str], None], kind: str = "cpu") -> None:
        self.limit_gib = limit_gib
        self._on_oom = on_oom
        self._cuda = kind == "cuda"
        self._base = 0
        self._works = self._cuda or os.access(_CLEAR, os.W_OK)
        if not self._works:
            warnings.warn("no /proc/self/clear_refs here: device memory is neither measured nor limited", stacklevel=2)

    def start(self, where: Callable[[], str]) -> None:
        """Take the resident size of now as an empty device and begin to enforce the limit.

        where: says the phase of the run, for the message ("forward, step 0").
        """
        if not self._works:
            return
        if self._cuda:
            total = torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory
            if self.limit_gib is not None:
                torch.cuda.set_per_process_memory_fraction(min(1.0, self.limit_gib * GIB / total))
            return
        gc.collect()
        self._base = _resident("VmRSS")
        self.reset()
        if self.limit_gib is not None:
            threading.Thread(target=self._watch, args=(where,), name="memory-guard", daemon=True).start()

    def reset(self) -> None:
        """Begin a new peak at what is in use now."""
        if self._cuda:
            torch.cuda.reset_peak_memory_stats()
        elif self._works:
            _CLEAR.write_text("5")

    def peak_gib(self) -> float | None:
        """Return the largest use since the last reset in GiB, None where it isn't known."""
        if self._cuda:
            return torch.cuda.max_memory_allocated() / GIB
        return max(0, _resident("VmHWM") - self._base) / GIB if self._works else None

    def _watch(self, where: Callable[[], str]) -> None:
        pause = threading.Event()
        assert self.limit_gib is not None
        while not pause.wait(_PERIOD_S):
            peak = self.peak_gib()
            if peak is not None and peak > self.limit_gib:
                message = f"device memory limit {self.limit_gib:.2f} GiB exceeded: {peak:.2f} GiB in {where()}"
                self._on_oom(message)
                os._exit(OOM_EXIT)
