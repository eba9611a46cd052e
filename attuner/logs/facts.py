"""What a log tells beside its steps: memory reports, numbers of parameters, sequence length and number of devices.

Source: Megatron-LM training/utils.py:report_memory (its MB are 2**20 bytes); Megatron-Bridge train_utils.py:report_memory (its
GB are 10**9 bytes); slime utils/memory_utils.py (its GB are 2**30 bytes).
"""

from __future__ import annotations

import re

from attuner.logs import numbers, others
from attuner.logs.lines import Line
from attuner.logs.record import LogFacts, LogRecord, MemoryReport

MAX_RANKS = 1 << 17
MAX_ROLLOUTS = 1 << 16
_MEMORY = re.compile(r"(?:\[Rank (\d{1,7})\] )?\(after (\d{1,12}) iterations\) memory \((MB|GB)\)((?: ?\|[^|]{1,80}){1,24})")
_USAGE = re.compile(r"\[Rank (\d{1,7})\] Memory-Usage [^{]{0,200}\{")
_PARAMETERS = re.compile(
    r"number of parameters on \([a-z_, ]{1,80}\) {0,3}(?:model parallel )?rank \((\d{1,6}(?:, ?\d{1,6}){1,4})\): (\d{1,18})"
)
_WORLD = re.compile(r"using world size: (\d{1,7})\b")
_SEQ = re.compile(r"^ {0,4}seq_length \.{1,60} (\d{1,9})\s*$")
_UNIT = {"MB": 2**20 / 2**30, "GB": 1e9 / 2**30}
_KEYS = {
    "allocated": "allocated_gib",
    "max allocated": "max_allocated_gib",
    "reserved": "reserved_gib",
    "max reserved": "max_reserved_gib",
    "total device memory used": "used_gib",
    "mem-allocated-gigabytes": "allocated_gib",
    "mem-max-allocated-gigabytes": "max_allocated_gib",
    "mem-reserved-gigabytes": "reserved_gib",
    "mem-max-reserved-gigabytes": "max_reserved_gib",
    "current_allocated_mem": "allocated_gib",
    "peak_allocated_mem": "max_allocated_gib",
    "current_reserved_mem": "reserved_gib",
    "peak_reserved_mem": "max_reserved_gib",
}
_SLIME_KEYS = {"allocated_GB": "allocated_gib", "reserved_GB": "reserved_gib", "used_GB": "used_gib", "total_GB": "total_gib"}


class Facts:
    """Collects facts, and completes records with them."""

    def __init__(self, found: LogFacts) -> None:
        self.found = found
        self._seq_given, self._world_given = found.seq_length is not None, found.world_size is not None

    def take(self, line: Line) -> bool:
        """Take what a line tells; False if it is of another kind."""
        text = line.text
        if " memory (" in text and (match := _MEMORY.search(text)):
            rank = int(match[1]) if match[1] else line.rank or 0
            self._keep(_of(match, rank))
            return True
        if "Memory-Usage" in text and (match := _USAGE.search(text)):
            told = others.items(text, match.end())
            report = MemoryReport(int(match[1]))
            for theirs in _SLIME_KEYS.keys() & told.keys():
                setattr(report, _SLIME_KEYS[theirs], told[theirs])
            self._keep(report)
            return True
        if "number of parameters on" in text and (match := _PARAMETERS.search(text)):
            if len(self.found.parameters) < MAX_RANKS:
                self.found.parameters[tuple(int(x) for x in match[1].split(","))] = int(match[2])
            return True
        if "using world size:" in text and (match := _WORLD.search(text)):
            if not self._world_given:
                self.found.world_size = int(match[1])
            return True
        if "seq_length ." in text and (match := _SEQ.match(text)):
            if not self._seq_given:
                self.found.seq_length = int(match[1])
            return True
        return False

    def _keep(self, report: MemoryReport) -> None:
        if report.rank in self.found.memory or len(self.found.memory) < MAX_RANKS:
            self.found.memory[report.rank] = report

    def keep_rollout(self, rollouts: dict[int, LogRecord], record: LogRecord) -> None:
        """Keep one of slime's `perf` lines, and forget the oldest of too many."""
        rollouts[record.iteration] = record
        if len(rollouts) > MAX_ROLLOUTS:
            del rollouts[next(iter(rollouts))]

    def complete(self, record: LogRecord) -> LogRecord:
        """Work out tokens per second where the line gives only its factors."""
        world, seconds = self.found.world_size, (record.elapsed_ms or 0.0) / 1000.0
        if record.tokens_per_s is None and record.whole:
            seq = record.seq_length or self.found.seq_length
            if record.grammar in ("verl",) and record.tokens_per_s_per_gpu is not None and world:
                record.tokens_per_s = record.tokens_per_s_per_gpu * world
            elif seq and record.global_batch_size and seconds > 0:
                record.tokens_per_s = record.global_batch_size * seq / seconds
            elif seq and record.samples_per_s is not None:
                record.tokens_per_s = record.samples_per_s * seq
            elif record.tokens_per_s_per_gpu is not None and world:
                record.tokens_per_s = record.tokens_per_s_per_gpu * world
        return record


def _of(match: re.Match[str], rank: int) -> MemoryReport:
    report, unit = MemoryReport(rank, int(match[2])), _UNIT[match[3]]
    for part in match[4].split("|"):
        name, _, value = part.partition(":")
        ours, number = _KEYS.get(name.strip()), numbers.plain(value.strip().split(" ")[0])
        if ours is not None and number is not None:
            setattr(report, ours, number * unit)
    return report
