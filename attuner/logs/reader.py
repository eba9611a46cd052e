"""The streaming log reader: bytes in pieces of any size, training steps out, whatever stack printed them, whoever wrote between.

    reader = LogReader(seq_length=4096, world_size=64)
    for piece in pieces:
        for record in reader.feed(piece): ...
    records = reader.close()

Only lines with a marker are looked at, so that chatter passes at the speed of a byte search. Memory is flat: one unfinished line,
one unfinished record, the last memory report of each rank.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from attuner.logs import bars, others
from attuner.logs.blocks import Block, Blocks
from attuner.logs.facts import Facts
from attuner.logs.lines import Line, opened, plain
from attuner.logs.record import LogFacts, LogRecord

MARKERS = (
    *(b"iteration", b"step:", b"'train/", b"'perf/", b"| epoch ", b"| Iteration ", b"CurrSamplesPerSec=", b"iter time (s)"),
    *(
        b"loss=",
        b"Step Time :",
        b" memory (",
        b"Memory-Usage",
        b"number of parameters on",
        b"using world size:",
        b"seq_length ...",
    ),
)
JOIN_WITHIN = 8
"""Lines after a broken one in which its rest is looked for."""
_INTRUDER = re.compile(
    r"\[rank\d{1,6}\]:|\[default\d{1,4}\]:|\(\w{1,64} pid=\d|[\w.-]{1,64}:\d{1,10}:\d{1,10} \[\d{1,3}\] NCCL"
    r"|\[[WEIF]\d{3,4} \d\d:|\d{4}-\d\d-\d\d[T ]\d\d:|WARNING[: ]|WARN[: ]|Traceback \(|Error\b|/[\w./-]{1,200}\.py:\d"
)
_STEP_TIME = re.compile(r"Step Time : (\d{1,9}\.\d{1,4})s GPU utilization: (\d{1,9}(?:\.\d{1,4})?)MODEL_TFLOP/s/GPU")
_PER_RANK = ("torchtitan", "automodel", "progress bar")
"""Grammars whose line every rank may print."""


class _Broken:
    """A step line whose rest may stand in one of the next lines."""

    __slots__ = ("clear", "head", "iteration", "left", "line", "record", "total")

    def __init__(self, line: Line, head: str, record: LogRecord, *, total: int, clear: bool) -> None:
        self.line, self.head, self.record = line, head, record
        self.iteration, self.total, self.left = record.iteration, total, JOIN_WITHIN
        self.clear = clear
        """The break is where it seems to be: what follows it begins with a bracket, or with nothing."""

    def joined(self, rest: str) -> LogRecord | None:
        """Return the step that head and rest tell together; None if they don't make a whole line.

        Of a host name behind a number nobody knows where it begins (`0.5node-1`), so the field at such a break is left out.
        """
        before, bar, after = self.head, "", rest
        if not self.clear:
            before, bar, _ = self.head.rpartition("|")
            after = rest.partition("|")[2]
        record = bars.megatron(self.iteration, self.total, before + bar + after)
        if record is None or not record.whole:
            return None
        if not self.clear:
            record.whole = False
            if "lm loss" not in before + after:
                record.lm_loss = None
        return record


class LogReader:
    """Reads one log, or one rank's part of it. Not for several threads at once."""

    def __init__(self, *, seq_length: int | None = None, world_size: int | None = None) -> None:
        """Begin. Args: what is known of the run beside its log; the log's own words count where they are not given."""
        self._blocks = Blocks()
        self._facts = Facts(LogFacts(seq_length=seq_length, world_size=world_size))
        self._out: list[LogRecord] = []
        self._broken: _Broken | None = None
        self._last: LogRecord | None = None
        self._time_line: tuple[float, float] | None = None
        self._bridge = False
        self._waiting: LogRecord | None = None
        self.rollouts: dict[int, LogRecord] = {}
        """slime's `perf` lines by rollout; the last MAX_ROLLOUTS."""

    @property
    def facts(self) -> LogFacts:
        """Return what the log tells beside its steps."""
        self._facts.found.lines = self._blocks.lines
        return self._facts.found

    def feed(self, piece: bytes) -> list[LogRecord]:
        """Take some bytes and return the steps that became whole."""
        block = self._blocks.feed(piece)
        return self._read(block) if block is not None else []

    def flush(self) -> list[LogRecord]:
        """Return the steps of the whole lines fed so far, without waiting for more: for a log that is still being written."""
        block = self._blocks.flush()
        return self._read(block) if block is not None else []

    def close(self) -> list[LogRecord]:
        """Return what is left at the log's end."""
        block = self._blocks.close()
        if block is not None:
            self._read_block(block)
        self._give_up()
        self._let_go()
        return self._taken()

    def _read(self, block: Block) -> list[LogRecord]:
        self._read_block(block)
        return self._taken()

    def _taken(self) -> list[LogRecord]:
        out, self._out = self._out, []
        return out

    # ---- lines
    def _read_block(self, block: Block) -> None:
        at = 0
        if self._broken is not None:
            at = self._look_on(block, 0)
        for start in block.marked(MARKERS):
            if start < at:
                continue
            end = block.end_of(start)
            last = end >= len(block.data) and self._blocks.open_end
            self._line(opened(block.text(start, end), block.number(start)), cut=last)
            following = block.next_line(end)
            if self._broken is not None and following is not None:
                at = self._look_on(block, following)

    def _look_on(self, block: Block, start: int) -> int:
        """Look for the rest of a broken line in the next lines; return where reading goes on."""
        at: int | None = start
        while at is not None and self._broken is not None:
            end = block.end_of(at)
            text = plain(block.text(at, end))
            if bars.starts(text) or self._broken.left <= 0:
                self._give_up()
                return at
            self._broken.left -= 1
            following = block.next_line(end)
            if self._join(text):
                return following if following is not None else len(block.data)
            at = following
        return len(block.data) if at is None else at

    def _join(self, text: str) -> bool:
        broken = self._broken
        if broken is None or "|" not in text:
            return False
        record = broken.joined(text)
        if record is None:
            return False
        record.rejoined = True
        self._broken = None
        self._emit(record, broken.line)
        return True

    def _give_up(self) -> None:
        if self._broken is not None:
            broken, self._broken = self._broken, None
            self._emit(broken.record, broken.line)

    def _line(self, line: Line, *, cut: bool) -> None:
        text = line.text
        starts = bars.starts(text)
        if starts:
            for i, start in enumerate(starts):
                end = starts[i + 1].start() if i + 1 < len(starts) else len(text)
                self._megatron(line, start, text[start.end() : end], cut=cut)
            text = text[starts[-1].end() :] if "memory (" in text else ""
        if text:
            self._other(Line(line.number, text, line.rank, line.writer), cut=cut)

    def _megatron(self, line: Line, start: re.Match[str], rest: str, *, cut: bool) -> None:
        self._give_up()
        iteration, total = int(start[1]), int(start[2])
        record = bars.megatron(iteration, total, rest)
        if record is not None and record.whole:
            self._emit(record, line)
            return
        self.facts.broken += 1
        intruder = _INTRUDER.search(rest)
        head = rest[: intruder.start()] if intruder else rest
        # the last field before the break may be half of one; Fields leaves it out
        part = bars.megatron(iteration, total, head)
        part = part if part is not None else LogRecord(iteration, "megatron", total_iterations=total)
        part.whole = False
        if record is not None and record.oddities and not intruder and bars.END in rest:
            self._emit(record, line)  # it has its end: a field can't be read, no rest will come
            return
        clear = intruder is None or intruder[0][0] in "[("
        self._broken = _Broken(line, head, part, total=total, clear=clear)
        if cut:
            self._give_up()

    def _other(self, line: Line, *, cut: bool) -> None:
        text = line.text
        if "[val]" in text or "validation loss" in text:
            return
        if "Step Time :" in text and (match := _STEP_TIME.search(text)) is not None:
            self._step_time(float(match[1]), float(match[2]))
            return
        if self._facts.take(line):
            return
        record = _other_record(text, cut=cut)
        if record is not None:
            self._emit(record, line)
        elif (perf := others.slime_perf(text)) is not None:
            self._facts.keep_rollout(self.rollouts, perf)

    # ---- records
    def _step_time(self, seconds: float, tflops: float) -> None:
        """Keep Bridge's separate line for the record of the same time, which another rank prints, before or after it."""
        self._bridge = True
        waiting = self._waiting
        if waiting is not None and waiting.elapsed_ms is not None and abs(waiting.elapsed_ms / 1000.0 - seconds) <= 0.0051:
            waiting.tflops_per_gpu = tflops
            self._let_go()
        else:
            self._time_line = (seconds, tflops)

    def _let_go(self) -> None:
        if self._waiting is not None:
            self._out.append(self._waiting)
            self._waiting = None

    def _emit(self, record: LogRecord, line: Line) -> None:
        if record.rank is None:
            record.rank = line.rank
        record.writer, record.line = line.writer, line.number
        if self._repeats(record):
            self.facts.dropped += 1
            return
        self._last = record
        self._let_go()
        if record.tflops_per_gpu is None and record.grammar == "megatron" and record.elapsed_ms is not None and self._bridge:
            if self._time_line is not None and abs(self._time_line[0] - record.elapsed_ms / 1000.0) <= 0.0051:
                record.tflops_per_gpu, self._time_line = self._time_line[1], None
            else:
                self._facts.complete(record)
                self._waiting = record
                return
        self._facts.complete(record)
        self._out.append(record)

    def _repeats(self, record: LogRecord) -> bool:
        """Tell whether another rank, or the same line in a merged log, said this step already."""
        last = self._last
        if last is None or last.iteration != record.iteration or last.grammar != record.grammar:
            return False
        if record.grammar in _PER_RANK:
            # a rank that says a step again began again; without ranks only a step back shows that
            return record.rank is None or record.rank != last.rank or record.grammar == "progress bar"
        same = replace(last, line=record.line, rank=record.rank, writer=record.writer)
        return repr(self._facts.complete(replace(record))) == repr(same)


def _other_record(text: str, *, cut: bool) -> LogRecord | None:
    """Return the step that a line of any other grammar tells."""
    if "iteration" in text:
        if match := bars.NEMO.search(text):
            return bars.nemo(int(match[1]), int(match[2]), text[match.end() :], cut=cut)
        if match := bars.NANOTRON.search(text):
            return bars.nanotron(int(match[1]), int(match[2]), text[match.end() :], cut=cut)
    if "| epoch " in text and (match := bars.AUTOMODEL.search(text)):
        return bars.automodel(int(match[1]), text[match.end() - 1 :], cut=cut)
    if "| Iteration " in text and (match := bars.AUTOMODEL_BENCHMARK.search(text)):
        return bars.automodel_benchmark(int(match[2]), int(match[1]), text[match.start() :])
    for mark, read in _BY_MARK:
        if mark in text and (record := read(text)) is not None:
            return record
    return None


_BY_MARK = (
    ("'train/", others.slime),
    ("CurrSamplesPerSec=", others.deepspeed_timer),
    ("iter time (s)", others.deepspeed_pipe),
    ("loss=", others.progress_bar),
    ("step:", others.torchtitan),
    ("step:", others.verl),
)


def read(lines: Iterable[str], *, seq_length: int | None = None, world_size: int | None = None) -> list[LogRecord]:
    """Return the steps that lines of text tell."""
    reader, out = LogReader(seq_length=seq_length, world_size=world_size), []
    for line in lines:
        out += reader.feed(f"{line}\n".encode("utf-8", "replace"))
    return out + reader.close()
