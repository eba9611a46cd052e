"""The complete events of a trace as columns: times in whole nanoseconds, names and threads as small numbers.

What can't be right is dropped here and counted, so that nothing later has to check again: negative durations, clocks at
zero (kineto 109), times that aren't numbers, events without a name.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import numpy as np
import numpy.typing as npt

from attuner.traces.document import BLOCK_BYTES, COMPLETE, Args, Block, Slice, Told, blocks
from attuner.traces.intervals import NONE, Bools, Ints
from attuner.traces.names import CODES, Cat
from attuner.traces.tolerant import from_dict

_FLOAT_EXACT_US = float(1 << 43)
"""Below this (101 days in µs) a float's fraction still tells one nanosecond from the next."""
_MAX_US = 9_000_000_000_000_000
_NS_CLOCK = 10**17
"""A whole-numbered clock above this counts nanoseconds: in microseconds it would be the year 5138."""


class _Ids(dict[Any, int]):
    """Numbers things in the order in which they are first seen."""

    def __missing__(self, key: Any) -> int:
        self[key] = number = len(self)
        return number


@dataclass
class Dropped:
    """Complete events that were left out, by reason."""

    negative: int = 0
    zero_clock: int = 0
    malformed: int = 0


@dataclass(frozen=True, eq=False)
class Events:
    """All complete events; one row each in all columns, in file order."""

    start: Ints
    end: Ints
    name: npt.NDArray[np.int32]
    cat: npt.NDArray[np.uint8]
    """Codes of `names.Cat`."""
    thread: npt.NDArray[np.int32]
    correlation: Ints
    """-1 where none was recorded; 0 is what ROCm writes for communication kernels, and means none too."""
    names: list[str]
    threads: list[tuple[Any, Any]]
    collectives: dict[int, Args]
    """By row: what an event says of its collective."""
    no_stream: int
    """Device records that name no stream."""
    told: Told
    dropped: Dropped
    in_ns: bool = False

    def __len__(self) -> int:
        return len(self.start)

    def on(self, threads: Ints) -> Bools:
        """Tell for each row whether it ran on one of the threads."""
        chosen = np.zeros(len(self.threads) + 1, dtype=np.bool_)
        chosen[threads] = True
        return np.asarray(chosen[self.thread], dtype=np.bool_)

    def threads_of(self, rows: Ints | Bools) -> Ints:
        """Return the threads of some rows, each once, in order. (`np.unique` would do, and costs 8 ms to load.)"""
        return np.flatnonzero(np.bincount(self.thread[rows]))


@dataclass
class _Builder:
    told: Told
    dropped: Dropped = field(default_factory=Dropped)
    names: _Ids = field(default_factory=_Ids)
    cats: _Ids = field(default_factory=_Ids)
    threads: _Ids = field(default_factory=_Ids)
    parts: list[tuple[Ints, ...]] = field(default_factory=list)
    collectives: dict[int, Args] = field(default_factory=dict)
    no_stream: int = 0
    rows: int = 0
    in_ns: bool | None = None

    def add(self, block: Block) -> None:
        """Append the events of a block."""
        found = _slices(block.events)
        if not found:
            return
        if self.in_ns is None:
            self.in_ns = _counts_ns(found)
        times = _quick_times(found, in_ns=self.in_ns)
        if times is None:
            found = _slices(block.exact())
        try:
            codes = self._codes(found)
        except (TypeError, OverflowError):
            sound = [e for e in found if _sound(e)]
            self.dropped.malformed += len(found) - len(sound)
            found, codes = sound, self._codes(sound)
            times = _quick_times(found, in_ns=self.in_ns) if times is not None else None
        if times is None:
            self._add_slow(found, codes)
        else:
            self._add(found, codes, *times)

    def _codes(self, found: list[Slice]) -> tuple[Ints, ...]:
        """Return names, categories, threads and correlations as numbers. Raises TypeError for what can't be one."""
        names, cats, threads = self.names, self.cats, self.threads
        ids = [e.args.correlation for e in found]
        try:
            correlation = np.array(ids)
        except ValueError:  # lists among them
            correlation = np.array(None)
        if correlation.dtype.kind != "i":
            correlation = np.array([_whole(x) for x in ids], dtype=np.int64)
        return (
            _numbered(names, [e.name for e in found]),
            _numbered(cats, [e.cat for e in found]),
            _numbered(threads, [(e.pid, e.tid) for e in found]),
            correlation.astype(np.int64),
        )

    def _add_slow(self, found: list[Slice], codes: tuple[Ints, ...]) -> None:
        unit = 1 if self.in_ns else 1000
        pairs = [(_exact(e.ts, unit), _exact(e.dur, unit)) for e in found]
        good = np.array([a is not None and b is not None for a, b in pairs], dtype=np.bool_)
        self.dropped.malformed += int((~good).sum())
        ns = np.array([p for p, ok in zip(pairs, good, strict=True) if ok], dtype=np.int64).reshape(-1, 2)
        kept = [e for e, ok in zip(found, good, strict=True) if ok]
        self._add(kept, tuple(c[good] for c in codes), ns[:, 0], ns[:, 1])

    def _add(self, found: list[Slice], codes: tuple[Ints, ...], start: Ints, span: Ints) -> None:
        negative, zero = span < 0, start <= 0
        self.dropped.negative += int(negative.sum())
        self.dropped.zero_clock += int((zero & ~negative).sum())
        name, cat, thread, correlation = codes
        nameless = np.array([not isinstance(n, str) for n in self.names], dtype=np.bool_)[name]
        self.dropped.malformed += int((nameless & ~negative & ~zero).sum())
        good = ~(negative | zero | nameless)
        self._notice(found, name, cat, good)
        self.parts.append((start[good], (start + span)[good], *(c[good] for c in (name, cat, thread, correlation))))
        self.rows += int(good.sum())

    def _notice(self, found: list[Slice], name: Ints, cat: Ints, good: npt.NDArray[np.bool_]) -> None:
        """Keep what collectives say of themselves; count device records without a stream."""
        code = _codes_of(self.cats)[cat]
        device = np.flatnonzero(good & (code <= Cat.MEMSET))
        self.no_stream += sum(found[k].args.stream is None for k in device.tolist())
        row = np.cumsum(good) - 1 + self.rows
        comms = self.names.get("record_param_comms", -1)
        for k in [*np.flatnonzero(good & (code == Cat.KERNEL)).tolist(), *np.flatnonzero(good & (name == comms)).tolist()]:
            args = found[k].args
            if args.collective is not None or args.group is not None or args.group_name is not None:
                self.collectives[int(row[k])] = args

    def events(self) -> Events:
        """Return what was added."""
        columns = [np.concatenate(c) for c in zip(*self.parts, strict=True)] if self.parts else [NONE] * 6
        start, end, name, cat, thread, correlation = columns
        return Events(
            start=start,
            end=end,
            name=name.astype(np.int32),
            cat=_codes_of(self.cats)[cat] if len(cat) else cat.astype(np.uint8),
            thread=thread.astype(np.int32),
            correlation=correlation,
            names=[str(n) for n in self.names],
            threads=list(self.threads),
            collectives=self.collectives,
            no_stream=self.no_stream,
            told=self.told,
            dropped=self.dropped,
            in_ns=bool(self.in_ns),
        )


def read_events(source: bytes | Iterable[bytes] | dict[str, Any], *, block_bytes: int = BLOCK_BYTES) -> Events:
    """Return the complete events (`ph` X) of a chrome trace: plain JSON or gzip, whole or in pieces, or parsed already.

    `block_bytes` of text are decoded at once.

    Raises:
        UserError: the bytes aren't gzip or JSON, or hold no list of trace events.
    """
    told = Told()
    builder = _Builder(told)
    if isinstance(source, dict):
        listed = source.get("traceEvents")
        builder.add(Block([x for e in listed if (x := from_dict(e)) is not None] if isinstance(listed, list) else []))
        told.meta.update({k: v for k, v in source.items() if k != "traceEvents"})
    else:
        for block in blocks(source, told, block_bytes=block_bytes):
            builder.add(block)
    return builder.events()


def _numbered(ids: _Ids, things: list[Any]) -> Ints:
    return np.fromiter(list(map(ids.__getitem__, things)), dtype=np.int64, count=len(things))


def _slices(events: list[Any]) -> list[Slice]:
    return [e for e in events if e.__class__ in COMPLETE]


def _counts_ns(found: list[Slice]) -> bool:
    """Tell whether the clock counts nanoseconds; Kineto's counts microseconds, whatever `displayTimeUnit` says."""
    clocks = sorted(e.ts for e in found[:999] if isinstance(e.ts, int))
    return bool(clocks) and clocks[len(clocks) // 2] > _NS_CLOCK


def _quick_times(found: list[Slice], *, in_ns: bool) -> tuple[Ints, Ints] | None:
    """Return start and length in ns; None if a value is none or a float isn't exact enough."""
    try:
        start = _quick_ns(np.array([e.ts for e in found]), in_ns=in_ns)
        span = _quick_ns(np.array([e.dur for e in found]), in_ns=in_ns)
    except (ValueError, OverflowError):
        return None
    return None if start is None or span is None else (start, span)


def _quick_ns(x: npt.NDArray[Any], *, in_ns: bool) -> Ints | None:
    if x.dtype.kind == "i":
        if in_ns:
            return x.astype(np.int64)
        return x * 1000 if len(x) and abs(x).max() < _MAX_US else None
    if in_ns or x.dtype.kind != "f" or not (abs(x) < _FLOAT_EXACT_US).all():
        return None
    whole = np.floor(x)
    return np.asarray(whole.astype(np.int64) * 1000 + np.rint((x - whole) * 1000).astype(np.int64), dtype=np.int64)


def _exact(x: Any, unit: int) -> int | None:
    """Return a time in ns, exactly; `unit` is the file's in ns. None if it isn't a time."""
    if isinstance(x, bool) or not isinstance(x, int | float | Decimal) or not abs(float(x)) < 1e19:  # NaN fails it too
        return None
    ns = round(x * unit if isinstance(x, int) else Decimal(x if isinstance(x, Decimal) else repr(x)) * unit)
    return ns if abs(ns) < 1 << 62 else None


def _sound(e: Slice) -> bool:
    """Tell whether name, category and thread are plain values."""
    scalar = int | float | str
    return isinstance(e.name, str) and isinstance(e.cat, str | None) and isinstance(e.pid, scalar) and isinstance(e.tid, scalar)


def _whole(x: Any) -> int:
    """Return a correlation id; -1 for what is none. Some recorders write it as text."""
    if isinstance(x, str) and x.isascii() and x.isdigit() and len(x) < 19:
        return int(x)
    return x if isinstance(x, int) and not isinstance(x, bool) and 0 <= x < 1 << 62 else -1


def _codes_of(cats: _Ids) -> npt.NDArray[np.uint8]:
    codes = (CODES.get(c.lower(), Cat.OTHER) if isinstance(c, str) else Cat.OTHER for c in cats)
    return np.array(list(codes), dtype=np.uint8)
