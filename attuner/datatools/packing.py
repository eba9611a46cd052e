"""Documents to rows of one width: end to end with nothing between but the end token, or one document a row with padding."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import sliding_window_view

Tokens = npt.NDArray[Any]
_BLOCK_TOKENS = 1 << 18


@dataclass
class Packed:
    """What became of the tokens, end tokens included."""

    num_rows: int = 0
    tokens: int = 0
    """All that came in."""
    unfinished: int = 0
    """Of the last row, which was not full."""
    cut: int = 0
    """Left out of documents longer than a row."""
    long_documents: int = 0
    """Longer than a row: cut, dropped, or split over several."""
    padding: int = 0


@dataclass(frozen=True)
class Block:
    """Some finished rows, (rows, width), and how many tokens of each are no padding (None: all)."""

    rows: Tokens
    used: Tokens | None = None


class Packer(Protocol):
    """Takes the pieces of documents in order, gives rows."""

    packed: Packed

    def add(self, tokens: Tokens, *, last: bool) -> Iterator[Block]:
        """Take a piece of a document; `last` ends the document. Blocks are valid until the next call."""

    def end(self) -> Iterator[Block]:
        """Give what is left."""


def _room(rows: int, limit: int | None, made: int) -> int:
    """Return how many rows the next block takes: never more than are still wanted."""
    return rows if limit is None else min(rows, limit - made)


class EndToEnd:
    """Rows are cut from one stream of all documents; a last row that isn't full is dropped, and counted.

    With `overlap` each row begins with the last token of the one before, as Megatron's GPTDataset cuts its samples.
    """

    def __init__(self, width: int, dtype: str, *, limit: int | None = None, overlap: bool = False) -> None:
        self.packed = Packed()
        self._width, self._limit, self._shared = width, limit, int(overlap)
        self._step = width - self._shared
        self._rows = max(1, _BLOCK_TOKENS // width)
        self._block = np.empty(self._rows * self._step + self._shared, dtype)
        self._at, self._full = 0, self._wanted()

    def _wanted(self) -> int:
        """Return how many tokens the next block takes: none if no row is wanted any more."""
        rows = _room(self._rows, self._limit, self.packed.num_rows)
        return rows * self._step + self._shared if rows else 0

    def add(self, tokens: Tokens, *, last: bool) -> Iterator[Block]:
        """See Packer."""
        self.packed.tokens += len(tokens)
        while len(tokens) and self._full:
            taken = tokens[: self._full - self._at]
            self._block[self._at : self._at + len(taken)] = taken
            self._at += len(taken)
            tokens = tokens[len(taken) :]
            if self._at == self._full:
                yield from self._give()

    def end(self) -> Iterator[Block]:
        """See Packer."""
        yield from self._give()
        self.packed.unfinished = self._at - (self._shared if self.packed.num_rows else 0)

    def _give(self) -> Iterator[Block]:
        rows = max(0, self._at - self._shared) // self._step
        used = rows * self._step
        if rows:
            self.packed.num_rows += rows
            flat = self._block[: used + self._shared]
            yield Block(sliding_window_view(flat, self._width)[:: self._step])
        left = self._at - used
        self._block[:left] = self._block[used : self._at].copy()
        self._at, self._full = left, self._wanted()


class OneByOne:
    """One document a row, padded. A longer one is cut (its rest is counted), split over more rows, or dropped whole."""

    def __init__(self, width: int, dtype: str, *, pad: int, long: str, limit: int | None = None) -> None:
        self.packed = Packed()
        self._width, self._pad, self._long, self._limit = width, pad, long, limit
        self._block = np.full((max(1, _BLOCK_TOKENS // width), width), pad, dtype)
        self._used = np.zeros(len(self._block), np.int32)
        self._row, self._at, self._over, self._split = 0, 0, 0, False
        self._full = _room(len(self._block), limit, 0)

    def add(self, tokens: Tokens, *, last: bool) -> Iterator[Block]:
        """See Packer."""
        self.packed.tokens += len(tokens)
        while len(tokens):
            if self._at == self._width and self._long == "split":
                self._split = True
                yield from self._next()
            taken = tokens[: self._width - self._at]
            self._block[self._row, self._at : self._at + len(taken)] = taken
            self._at += len(taken)
            tokens = tokens[len(taken) :]
            if self._long != "split" and self._at == self._width:
                self._over += len(tokens)
                break
        if last:
            yield from self._finish()

    def _finish(self) -> Iterator[Block]:
        self.packed.long_documents += bool(self._over or self._split)
        if self._over:
            self.packed.cut += self._over
            if self._long == "drop":
                self.packed.cut += self._at
                self._block[self._row, : self._at] = self._pad
                self._at = 0
        if self._at:
            yield from self._next()
        self._over, self._split = 0, False

    def _next(self) -> Iterator[Block]:
        self._used[self._row] = self._at
        self.packed.padding += self._width - self._at
        self._row, self._at = self._row + 1, 0
        if self._row == self._full:
            yield from self._give()

    def end(self) -> Iterator[Block]:
        """See Packer."""
        yield from self._give()

    def _give(self) -> Iterator[Block]:
        rows, self._row = self._row, 0
        self.packed.num_rows += rows
        self._full = _room(len(self._block), self._limit, self.packed.num_rows)
        if rows:
            yield Block(self._block[:rows], self._used[:rows])
            self._block[:rows] = self._pad
