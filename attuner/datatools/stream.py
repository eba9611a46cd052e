"""From sources to a stream of token pieces, document by document, with the end token set, every id checked, all counted."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from attuner.core.errors import UserError
from attuner.datatools import sources as src
from attuner.datatools import tally as why
from attuner.datatools.megatron_index import read_index
from attuner.datatools.tally import Tally, shown
from attuner.datatools.tokenizers import BYTES, Tokenizer, load

Tokens = npt.NDArray[Any]
Progress = Callable[[int, int], None]
"""Told now and then: bytes read, bytes in all."""
_BATCH_BYTES, _BATCH_TEXTS = 1 << 20, 1024
_ID_LIMIT = 1 << 31
AUTO, NONE = "auto", "none"


@dataclass(frozen=True)
class Reading:
    """How sources become tokens."""

    tokenizer: str = BYTES
    allow_download: bool = False
    key: str = "text"
    kind: str = ""
    eos: str = AUTO
    """`auto` (the tokenizer's own; none after tokens of Megatron files), `none`, an id, or a token as the vocabulary has it."""
    vocab_size: int | None = None
    max_document_bytes: int = 64 << 20
    strict: bool = False


@dataclass
class Coding:
    """The vocabulary of a stream, settled before the first token."""

    tokenizer: Tokenizer | None
    """None: the sources hold tokens."""
    vocab_size: int
    """Every id is below it."""
    declared: bool
    """Whether a tokenizer or the user named the vocabulary; else it is the largest id seen, plus one."""
    eos: int | None

    def special(self, told: str, own: int | None, flag: str) -> int | None:
        """Return the id that `told` means for end token or padding.

        Raises:
            UserError: it isn't in the vocabulary.
        """
        if told in (AUTO, NONE):
            return own if told == AUTO else None
        if told.isdecimal():
            found: int | None = int(told)
        else:
            found = self.tokenizer.id_of(told) if self.tokenizer else None
        if found is None or found >= self.vocab_size:
            raise UserError(f"{flag} {told}: not in the vocabulary of {self.vocab_size} tokens")
        return found


@dataclass
class Stream:
    """One pass over sources. After it: what was counted, and each file's digest in the order of reading."""

    sources: list[src.Source]
    reading: Reading
    coding: Coding
    tally: Tally
    progress: Progress | None = None
    digests: list[tuple[str, Path]] = field(default_factory=list)
    max_id: int = -1
    num_bytes: int = 0

    def __post_init__(self) -> None:
        """Take the sizes of all files, for progress."""
        self._total = sum(src.size_of(p) for s in self.sources for p in s.files)
        self._end = None if self.coding.eos is None else np.array([self.coding.eos], np.int64)

    def pieces(self) -> Generator[tuple[Tokens, bool]]:
        """Yield (tokens, whether the document ends here).

        Raises:
            UserError: a source can't be read, a token is outside the vocabulary, or something is left out and `strict` is set.
        """
        for source in self.sources:
            yield from self._megatron(source) if self.coding.tokenizer is None else self._texts(source, self.coding.tokenizer)

    def _texts(self, source: src.Source, tokenizer: Tokenizer) -> Iterator[tuple[Tokens, bool]]:
        file = src.opened(source.path)
        before = self.num_bytes
        limit = self.reading.max_document_bytes
        found = src.texts(source, file, self.tally, key=self.reading.key, limit=limit, pieces=tokenizer.pieces)
        try:
            size = 0  # of the document so far, in tokens
            for batch in _batches(found):
                for text, tokens in zip(batch, tokenizer.encode([t.data for t in batch]), strict=True):
                    if tokens is None:
                        self.tally.drop(why.NOT_UTF8, text.where)
                        continue
                    yield from self._document(tokens, text.where, before=size, last=text.last)
                    size = 0 if text.last else size + len(tokens)
                self._said(before + file.num_bytes)
            self.digests.append((file.close(), source.path))
            self._said(before + file.num_bytes)
        except GeneratorExit:  # enough rows: the rest is read for the digest only
            self.digests.append((file.close(), source.path))
            raise
        finally:
            file.drop()

    def _document(self, tokens: Tokens, where: str, *, before: int, last: bool) -> Iterator[tuple[Tokens, bool]]:
        """Yield a piece and, at a document's end, the end token."""
        if last and not before and not len(tokens):
            self.tally.drop(why.EMPTY, where)
            return
        self._check(tokens, where)
        self.tally.num_documents += last
        if not last or self._end is None:
            yield tokens, last
        else:
            yield tokens, False
            self.max_id = max(self.max_id, int(self._end[0]))
            yield self._end, True

    def _check(self, tokens: Tokens, where: str) -> None:
        if not len(tokens) or (tokens.dtype == np.uint8 and self.coding.declared and self.coding.vocab_size >= 256):
            return
        high, low = int(tokens.max()), 0 if tokens.dtype.kind == "u" else int(tokens.min())
        if high >= self.coding.vocab_size or low < 0:
            bad = low if low < 0 else high
            raise UserError(
                f"{shown(where)}: token {bad} is outside the vocabulary of {self.coding.vocab_size}; see --vocab-size"
            )
        self.max_id = max(self.max_id, high)

    def _megatron(self, source: src.Source) -> Iterator[tuple[Tokens, bool]]:
        index = read_index(source.path)
        self.digests += [(src.opened(path).close(), path) for path in source.files]
        for number, (size, tokens) in enumerate(index.documents(limit=self.reading.max_document_bytes)):
            where = f"{source.path}: document {number}"
            if tokens is None:
                self.tally.drop(why.TOO_LONG, where)
            else:
                yield from self._document(tokens, where, before=0, last=True)
            self.num_bytes += size
            if number % _BATCH_TEXTS == 0:
                self._said(self.num_bytes)

    def _said(self, num_bytes: int) -> None:
        self.num_bytes = self.tally.num_bytes = num_bytes
        if self.progress:
            self.progress(num_bytes, self._total)


def open_stream(
    named: list[str], reading: Reading, *, progress: Progress | None = None, specials: tuple[str, ...] = ()
) -> Stream:
    """Find the sources, load the tokenizer, settle the vocabulary.

    `specials` are settings like `reading.eos` of which any that is in use keeps the byte tokenizer's ids above 255.

    Raises:
        UserError: a source or the tokenizer can't be used, or they don't go together.
    """
    tally = Tally(strict=reading.strict)
    sources = src.find(named, tally, kind=reading.kind)
    size = reading.vocab_size
    if size is not None and not 1 <= size <= _ID_LIMIT:
        raise UserError(f"--vocab-size {size}: 1 to {_ID_LIMIT}")
    if sources[0].kind == src.MEGATRON:
        coding = Coding(None, size or _largest(sources), declared=size is not None, eos=None)
    else:
        tokenizer = load(reading.tokenizer, allow_download=reading.allow_download)
        own = tokenizer.vocab_size
        if reading.tokenizer == BYTES and all(s == NONE or (s.isdecimal() and int(s) < 256) for s in (reading.eos, *specials)):
            own = 256
        coding = Coding(tokenizer, size or own, declared=True, eos=None)
        if reading.eos == AUTO and tokenizer.eos is None:
            raise UserError(f"--tokenizer {reading.tokenizer}: it names no end token; give --eos TOKEN, an id, or none")
    own_eos = coding.tokenizer.eos if coding.tokenizer else None
    coding.eos = coding.special(reading.eos, own_eos, "--eos")
    if coding.eos is not None and coding.eos >= coding.vocab_size:
        raise UserError(f"--vocab-size {coding.vocab_size}: the end token {coding.eos} is not below it; take another --eos")
    return Stream(sources, reading, coding, tally, progress)


def _largest(sources: list[src.Source]) -> int:
    """Return the number of ids that the sources' types can hold."""
    small = {"uint8": 1 << 8, "uint16": 1 << 16}
    return max(small.get(read_index(s.path).dtype, _ID_LIMIT) for s in sources)


def _batches(found: Generator[src.Text]) -> Iterator[list[src.Text]]:
    with closing(found):
        batch: list[src.Text] = []
        size = 0
        for text in found:
            batch.append(text)
            size += len(text.data)
            if size >= _BATCH_BYTES or len(batch) >= _BATCH_TEXTS:
                yield batch
                batch, size = [], 0
        if batch:
            yield batch
