"""`attuner data lengths`: how long documents are in tokens, and what rows of several sequence lengths would make of them.

The figures are those that `attuner data rows` comes to: documents are counted with their end token, a row takes
seq_len + 1 tokens. One pass; held are the counts of each length only.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from attuner.core.errors import UserError
from attuner.datatools.stream import Stream

QUANTILES = (0.0, 0.05, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 1.0)
_BATCH = 1 << 14
_FINE = 1 << 16
"""Documents up to so many tokens are counted length by length; longer ones in steps of 1/1024 of their length."""


@dataclass(frozen=True)
class Fit:
    """What one sequence length makes of the documents."""

    seq_len: int
    rows_end_to_end: int
    """End to end: full rows."""
    unfinished: int
    """End to end: tokens of the last row, which is not full and is dropped."""
    documents_cut: int
    """End to end: documents that a row's end runs through."""
    rows_one_by_one: int
    """One document a row: as many as documents."""
    padding: int
    """One document a row: tokens of padding."""
    truncated: int
    """One document a row: tokens of longer documents that are cut off."""
    documents_truncated: int

    @property
    def padding_share(self) -> float:
        """One document a row: padding of all tokens in rows, a fraction."""
        return self.padding / (self.rows_one_by_one * (self.seq_len + 1))

    @property
    def efficiency(self) -> float:
        """One document a row: tokens that are no padding of all tokens in rows, a fraction."""
        return 1.0 - self.padding_share


@dataclass(frozen=True)
class Lengths:
    """Lengths of documents in tokens, end token included."""

    documents: int
    tokens: int
    counts: dict[int, int]
    """Length → documents. Exact up to 65,536 tokens; above, lengths are rounded down by less than a thousandth."""
    longest: int
    fits: list[Fit]

    def quantile(self, share: float) -> int:
        """Return the length that a share of the documents does not exceed (the shortest for 0)."""
        wanted = max(1, int(np.ceil(share * self.documents)))
        if wanted == self.documents:
            return self.longest
        seen = 0
        for length in sorted(self.counts):
            seen += self.counts[length]
            if seen >= wanted:
                return length
        return self.longest

    def data(self) -> dict[str, Any]:
        """Return all figures as plain data."""
        return {
            "documents": self.documents,
            "tokens": self.tokens,
            "mean": self.tokens / self.documents,
            "quantiles": {f"p{q * 100:g}": self.quantile(q) for q in QUANTILES},
            "seq_lens": [
                {
                    **vars(f),
                    "efficiency": f.efficiency,
                    "padding_share": f.padding_share,
                    "truncated_share": f.truncated / self.tokens,
                }
                for f in self.fits
            ],
        }


class _Counting:
    """Sums under way for one sequence length."""

    def __init__(self, seq_len: int) -> None:
        self.seq_len, self.width = seq_len, seq_len + 1
        self.at = self.cut = self.padding = self.truncated = self.long = 0

    def add(self, lengths: npt.NDArray[np.int64]) -> None:
        ends = self.at + np.cumsum(lengths)
        begins = ends - lengths
        self.cut += int(((ends - 1) // self.width > begins // self.width).sum())
        self.at = int(ends[-1])
        over = lengths - self.width
        self.truncated += int(over[over > 0].sum())
        self.long += int((over > 0).sum())
        self.padding -= int(over[over < 0].sum())

    def fit(self, documents: int) -> Fit:
        return Fit(
            seq_len=self.seq_len,
            rows_end_to_end=self.at // self.width,
            unfinished=self.at % self.width,
            documents_cut=self.cut,
            rows_one_by_one=documents,
            padding=self.padding,
            truncated=self.truncated,
            documents_truncated=self.long,
        )


def measure(stream: Stream, seq_lens: list[int]) -> Lengths:
    """Read the stream to its end and return the lengths.

    Raises:
        UserError: no document has a token, or a sequence length can't be.
    """
    if not seq_lens or not all(1 <= s <= 1 << 24 for s in seq_lens):
        raise UserError(f"--seq-len {','.join(map(str, seq_lens))}: 1 to {1 << 24}, separated by commas")
    counting = [_Counting(s) for s in sorted(set(seq_lens))]
    counts: Counter[int] = Counter()
    waiting: list[int] = []
    documents = tokens = longest = length = 0

    def settle() -> None:
        lengths = np.array(waiting, np.int64)
        counts.update(_rounded(n) for n in waiting)
        for each in counting:
            each.add(lengths)
        waiting.clear()

    for piece, last in stream.pieces():
        length += len(piece)
        if last:
            documents, tokens, longest = documents + 1, tokens + length, max(longest, length)
            waiting.append(length)
            length = 0
            if len(waiting) == _BATCH:
                settle()
    if waiting:
        settle()
    if not documents:
        raise UserError("no document with a token in it" + stream.tally.why())
    return Lengths(documents, tokens, dict(sorted(counts.items())), longest, [each.fit(documents) for each in counting])


def _rounded(length: int) -> int:
    """Return a length as it is counted: so the counts stay few however many documents there are."""
    if length <= _FINE:
        return length
    step = 1 << (length.bit_length() - 11)
    return length // step * step


def bins(found: Lengths, count: int) -> list[tuple[int, int, int, int]]:
    """Return up to `count` bins of equal ratio over all lengths: (from, below, documents, tokens), tokens to the rounding."""
    low, high = min(found.counts), found.longest
    edges = sorted({round(low * ((high + 1) / low) ** (k / count)) for k in range(count + 1)} | {low, high + 1})
    place = np.searchsorted(edges, np.array(list(found.counts)), side="right") - 1
    out = [[a, b, 0, 0] for a, b in pairwise(edges)]
    for at, (length, documents) in zip(place.tolist(), found.counts.items(), strict=True):
        out[at][2] += documents
        out[at][3] += documents * length
    return [(a, b, n, t) for a, b, n, t in out]
