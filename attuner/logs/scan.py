"""One pass over one log for triage: which rules' lines are in it, who wrote them, and what stood around them.

Memory is bounded: of each writer the last lines that matter, of each rule its first hits and the set of ranks that had one.
"""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass, field

from attuner.logs.blocks import Block, Blocks
from attuner.logs.lines import Line, opened
from attuner.logs.reader import LogReader
from attuner.logs.record import LogRecord
from attuner.logs.signatures import SEEDS, Book, FailureRule, Pattern

MAX_CONTEXT = 40
"""Lines kept of each writer."""
RECENT = 14
"""Lines kept of all writers together."""
MAX_WRITERS = 4096
MAX_HITS = 16
"""Hits kept of one rule in one log; further ranks are only counted."""
MAX_RANKS = 1 << 16
AFTER, MAX_AFTER = 8, 512
MAX_FAILED = 8
FRAME = SEEDS.index('File "')
MAX_TEXT = 400
_NODE = re.compile(r"(?P<node>[A-Za-z0-9][\w.-]{0,127}):\d{1,10}:\d{1,10} \[\d{1,3}\] ")
_TIME = re.compile(r"(?:\d{4}-\d\d-\d\d[T ]|\[[EWIF]\d{3,4} )?(?P<h>\d\d):(?P<m>\d\d):(?P<s>\d\d)(?:[.,](?P<f>\d{1,9}))?")


@dataclass(slots=True)
class Hit:
    """A line that a rule's pattern fits."""

    rule: FailureRule
    file: str
    line: int
    text: str
    rank: int | None
    writer: str
    node: str
    time_s: float | None
    context: list[tuple[int, str]] = field(default_factory=list)
    """Lines of the same writer before it that matter, oldest first."""
    recent: list[tuple[int, str]] = field(default_factory=list)
    """Lines of any writer before it that matter."""
    after: list[tuple[int, str]] = field(default_factory=list)
    """Lines of any writer behind it that matter."""


@dataclass
class Progress:
    """What a log's training steps say."""

    num_steps: int = 0
    last: LogRecord | None = None
    bad: LogRecord | None = None
    """The first step whose loss or gradient norm was no number."""
    skipped: int = 0
    """Steps at the log's beginning that made no update."""
    twice: tuple[LogRecord, LogRecord] | None = None
    """One iteration of the same samples with another loss and another speed: two runs."""
    _first: dict[int, LogRecord] = field(default_factory=dict)

    def add(self, record: LogRecord) -> None:
        """Take one step."""
        if record.stepped is False and self.num_steps == self.skipped:
            self.skipped += 1
        self.num_steps += 1
        self.last = record
        numbers = [x for x in (record.lm_loss, record.grad_norm) if x is not None]
        if self.bad is None and any(x != x or abs(x) == float("inf") for x in numbers):
            self.bad = record
        if len(self._first) < 256:
            before = self._first.setdefault(record.iteration, record)
            if before is not record and self.twice is None and _differ(before, record):
                self.twice = (before, record)


def _differ(a: LogRecord, b: LogRecord) -> bool:
    if not (a.elapsed_ms and b.elapsed_ms and a.lm_loss and b.lm_loss) or a.consumed_samples != b.consumed_samples:
        return False
    slower = max(a.elapsed_ms, b.elapsed_ms) / min(a.elapsed_ms, b.elapsed_ms)
    return slower > 1.2 and abs(a.lm_loss - b.lm_loss) > 1e-4 * abs(a.lm_loss)


class LogScan:
    """Reads one log; bytes in, hits and facts out."""

    def __init__(self, book: Book, name: str, *, rank: int | None = None) -> None:
        """Begin. Args: name: as evidence names the file; rank: whose log it is, where its name tells."""
        self.name = name
        self.hits: list[Hit] = []
        self.ranks: dict[str, set[int]] = {}
        self.met: set[int] = set()
        """Identities of the patterns of `all` and `unless` that a line fits."""
        self.progress = Progress()
        self.failed: list[tuple[Line, str]] = []
        """The first lines that look like an uncaught error, for logs that no rule knows."""
        self.tail: deque[tuple[int, str]] = deque(maxlen=3)
        self._rank = rank
        self._markers = _markers_of(book)
        self._blocks, self._reader = Blocks(), LogReader()
        self._context: dict[tuple[int | None, str], deque[tuple[int, str]]] = {}
        self._kept: dict[str, dict[int | None, int]] = {}
        self._open: list[Hit] = []
        self._recent: deque[tuple[int, str]] = deque(maxlen=RECENT)

    @property
    def lines(self) -> int:
        """Return how many lines were read."""
        return self._blocks.lines

    def feed(self, piece: bytes) -> None:
        """Take some bytes."""
        for record in self._reader.feed(piece):
            self.progress.add(record)
        block = self._blocks.feed(piece)
        if block is not None:
            self._read(block)

    def skip(self, lines: int) -> None:
        """Pass over so many lines that are not read: what follows is numbered as if they were."""
        for record in self._reader.flush():
            self.progress.add(record)
        block = self._blocks.flush()
        if block is not None:
            self._read(block)
        self._blocks.lines += lines

    def close(self) -> None:
        """The log is over."""
        for record in self._reader.close():
            self.progress.add(record)
        block = self._blocks.close()
        if block is not None:
            self._read(block)

    # ---- lines
    def _read(self, block: Block) -> None:
        done = -1
        marked = block.marked(self._markers.words)
        for start, found in marked.items():
            if start <= done:
                continue
            end = block.end_of(start)
            self._line(block.text(start, end), block.number(start), found)
            if FRAME in found and (following := block.next_line(end)) is not None:  # its code stands in the next line
                done = following
                code = block.text(following, block.end_of(following))
                self._line(code, block.number(following), marked.get(following, []))
        self._keep_tail(block)

    def _keep_tail(self, block: Block) -> None:
        data = block.data.rstrip(b"\r\n ")
        start = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
        if len(data) > start:
            self.tail.append((block.number(start), block.text(start, len(data))[:MAX_TEXT]))

    def _line(self, raw: str, number: int, marks: list[int]) -> None:
        line = opened(raw, number)
        text, short = line.text[: MAX_TEXT * 5], line.text[:MAX_TEXT]
        rank = line.rank if line.rank is not None else self._rank
        match = _NODE.match(text) if "[" in text else None
        node = match["node"] if match else ""
        before = self._writer((rank, line.writer or node))
        if self._open:
            for hit in self._open:
                hit.after.append((number, short))
            self._open = [h for h in self._open if len(h.after) < (MAX_AFTER if h.rule.slowest else AFTER)]
        done: set[str] = set()
        for mark in marks:
            for pattern in self._markers.watched[mark]:
                if id(pattern) not in self.met and pattern.match(text):
                    self.met.add(id(pattern))
            for pattern, rule in self._markers.rules[mark]:
                if rule.id not in done and (found := pattern.match(text)):
                    done.add(rule.id)
                    told = found.groupdict() if isinstance(found, re.Match) else {}
                    whose = int(told["rank"]) if told.get("rank") else rank
                    if self._counted(rule, whose):
                        hit = Hit(rule, self.name, number, short, whose, line.writer, told.get("node") or node, _time(raw))
                        hit.context, hit.recent = list(before), list(self._recent)
                        self.hits.append(hit)
                        self._open.append(hit)
        if len(self.failed) < MAX_FAILED and _uncaught(text):
            self.failed.append((line, short))
        before.append((number, short))
        self._recent.append((number, short))

    def _writer(self, who: tuple[int | None, str]) -> deque[tuple[int, str]]:
        """Return the last lines of a writer, and forget the oldest writer of too many."""
        before = self._context.get(who)
        if before is None:
            if len(self._context) >= MAX_WRITERS:
                del self._context[next(iter(self._context))]
            before = self._context[who] = deque(maxlen=MAX_CONTEXT)
        return before

    def _counted(self, rule: FailureRule, rank: int | None) -> bool:
        """Count a hit; tell whether it is one of the few that are kept."""
        ranks = self.ranks.setdefault(rule.id, set())
        if rank is not None and len(ranks) < MAX_RANKS:
            ranks.add(rank)
        kept = self._kept.setdefault(rule.id, {})
        if kept.get(rank, 0) >= 2 or len(kept) >= MAX_HITS:
            return False
        kept[rank] = kept.get(rank, 0) + 1
        return True


@dataclass(frozen=True)
class _Markers:
    """What is searched for in a log, and for each marker the patterns that a line with it may fit."""

    words: tuple[bytes, ...]
    rules: tuple[list[tuple[Pattern, FailureRule]], ...]
    watched: tuple[list[Pattern], ...]


def _markers_of(book: Book) -> _Markers:
    words = book.markers()
    marks = {id(p): _mark(p, words) for r in book.rules for p in (*r.any, *r.all, *r.unless)}
    return _Markers(
        words=tuple(w.encode() for w in words),
        rules=tuple([(p, r) for r in book.rules for p in r.any if marks[id(p)] == i] for i in range(len(words))),
        watched=tuple([p for r in book.rules for p in (*r.all, *r.unless) if marks[id(p)] == i] for i in range(len(words))),
    )


def _mark(pattern: Pattern, words: tuple[str, ...]) -> int:
    """Return a marker that every line that the pattern fits holds."""
    return next(i for i, w in enumerate(words) if any(w in has for has in pattern.has))


_ERROR = re.compile(r"^(?:E  )? {0,2}(?:[a-z_][\w.]{0,80}\.)?[A-Z]\w{0,60}(?:Error|Exception|Interrupt|Exit|Timeout)\b(?::|$)")


def _uncaught(text: str) -> bool:
    return _ERROR.match(text) is not None


def _time(text: str) -> float | None:
    """Return the time of day that a line tells, in seconds."""
    match = _TIME.search(text[:120])
    if match is None:
        return None
    fraction = float(f"0.{match['f']}") if match["f"] else 0.0
    return int(match["h"]) * 3600 + int(match["m"]) * 60 + int(match["s"]) + fraction
