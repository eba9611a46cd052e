"""From bytes in pieces of any size to the few lines that a reader may want: searching is left to `bytes.find`, so that
chatter costs little.

A carriage return ends a line (progress bars). What is kept between pieces is one unfinished line of at most MAX_LINE bytes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from attuner.logs.lines import MAX_LINE

_ENDS = re.compile(rb"[\r\n]")
MIN_BLOCK = 1 << 16
"""Pieces are collected until there is so much, for a search over a few bytes costs as much as one over many."""


class Block:
    """Whole lines, with the number of the first one."""

    __slots__ = ("_at", "_number", "data", "first_line")

    def __init__(self, data: bytes, first_line: int) -> None:
        self.data = data
        self.first_line = first_line
        self._at, self._number = 0, first_line

    def number(self, start: int) -> int:
        """Return the number of the line that starts at an offset; offsets are asked for in rising order."""
        if start < self._at:
            self._at, self._number = 0, self.first_line
        self._number += self.data.count(b"\n", self._at, start)
        self._at = start
        return self._number

    def text(self, start: int, end: int) -> str:
        """Return a line's text, cut at MAX_LINE bytes."""
        return self.data[start : min(end, start + MAX_LINE)].decode("utf-8", "replace")

    def end_of(self, start: int) -> int:
        """Return the offset of the line's end."""
        found = _ENDS.search(self.data, start)
        return found.start() if found else len(self.data)

    def next_line(self, end: int) -> int | None:
        """Return where the line after an end starts; None if the block is over."""
        data = self.data
        start = end + (2 if data[end : end + 2] == b"\r\n" else 1)
        return start if start < len(data) else None

    def marked(self, markers: Sequence[bytes]) -> dict[int, list[int]]:
        """Return the start of every line that holds a marker, in order, with the numbers of the markers that it holds."""
        data = self.data
        starts: dict[int, list[int]] = {}
        returns = b"\r" in data
        for number, marker in enumerate(markers):
            at = data.find(marker)
            while at >= 0:
                start = data.rfind(b"\n", 0, at) + 1
                if returns:
                    start = data.rfind(b"\r", start, at) + 1 or start
                starts.setdefault(start, []).append(number)
                at = data.find(marker, self.end_of(at))
        return dict(sorted(starts.items()))


class Blocks:
    """Cuts a stream into blocks of whole lines. Bounded memory, whatever comes."""

    def __init__(self) -> None:
        self._held: list[bytes] = []
        self._size = 0
        self._cut = False
        self.lines = 0
        self.open_end = False
        """The last block's last line has no end: the log is cut there."""

    def feed(self, piece: bytes) -> Block | None:
        """Take a piece; return a block once enough whole lines are there."""
        if b"\0" in piece:
            piece = piece.replace(b"\0", b"")  # torn pages of a network file system, and UTF-16 of plain text
        self._held.append(piece)
        self._size += len(piece)
        return self._block() if self._size >= MIN_BLOCK else None

    def flush(self) -> Block | None:
        """Return the whole lines that are there, however few; what is unfinished stays."""
        return self._block() if self._size else None

    def close(self) -> Block | None:
        """Return what is left, unfinished or not."""
        data = b"".join(self._held)
        self._held, self._size = [], 0
        if self._cut:
            data = self._rest_of_long(data)
        self.open_end = not data.endswith((b"\n", b"\r"))
        return self._counted(data) if data else None

    def _block(self) -> Block | None:
        data = b"".join(self._held)
        if self._cut:
            data = self._rest_of_long(data)
        end = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
        rest = data[end:]
        if len(rest) > MAX_LINE:
            # a line without end: its beginning is a line of its own, its rest is dropped
            data, end, rest, self._cut = data[: end + MAX_LINE] + b"\n", end + MAX_LINE + 1, b"", True
            self.lines -= 1
        self._held, self._size = [rest], len(rest)
        return self._counted(data[:end]) if end else None

    def _rest_of_long(self, data: bytes) -> bytes:
        found = _ENDS.search(data)
        if found is None:
            return b""
        self._cut = False
        self.lines += data[found.start()] == 10
        return data[found.end() :]

    def _counted(self, data: bytes) -> Block:
        block = Block(data, self.lines + 1)
        self.lines += data.count(b"\n")
        return block
