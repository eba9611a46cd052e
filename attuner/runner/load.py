"""How many cores other processes took while a run was measured: a CPU measurement is only as good as the quiet around it.

Reads /proc; where there is none every figure is None.
"""

import os
import time
from pathlib import Path

TICKS_PER_S = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100


def _machine_busy_s() -> float:
    """Seconds of CPU that the whole machine has spent (stolen time included), all cores added up."""
    fields = [int(x) for x in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    user, nice, system, _idle, _iowait, irq, softirq, steal = fields
    return (user + nice + system + irq + softirq + steal) / TICKS_PER_S


def _session_busy_s(sessions: set[int], seen: dict[int, float]) -> float:
    """Seconds of CPU spent by the processes of these sessions, those that have ended included through `seen`."""
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit():
            continue
        try:
            text = Path(entry.path, "stat").read_text()
        except OSError:  # ended meanwhile
            continue
        fields = text.rsplit(")", 1)[1].split()
        if int(fields[3]) in sessions:
            seen[int(entry.name)] = (int(fields[11]) + int(fields[12])) / TICKS_PER_S
    return sum(seen.values())


class OtherLoad:
    """Mean cores taken by others between `start` and the last `sample`."""

    def __init__(self) -> None:
        self._seen: dict[int, float] = {}
        self._start: tuple[float, float, float] | None = None
        self._last: tuple[float, float, float] | None = None

    def sample(self, sessions: set[int]) -> None:
        """Read the counters; `sessions` are the process sessions of the run itself."""
        if not Path("/proc/stat").exists():
            return
        now = (time.monotonic(), _machine_busy_s(), _session_busy_s(sessions, self._seen))
        self._start = self._start or now
        self._last = now

    def cores(self) -> float | None:
        """Return the mean number of cores that others took, or None if nothing was sampled."""
        if self._start is None or self._last is None or self._last[0] <= self._start[0]:
            return None
        wall, busy, own = (b - a for a, b in zip(self._start, self._last, strict=True))
        return round(max(0.0, busy - own) / wall, 3)
