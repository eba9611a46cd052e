"""Megatron's token files: NAME.bin holds tokens back to back, NAME.idx says where sequences begin and documents end.

Two index formats are in use. `MMIDIDX` (today's): magic (9 bytes), version (u64, 1), type code (u8), number of sequences
(u64), number of document ends (u64); then lengths in tokens (i32 each), offsets in bytes (i64 each), document ends as
sequence numbers (i64 each, beginning with 0), perhaps a mode per sequence (i8), which is not read. `TNTIDX` (the older
lazy one): magic (8 bytes), version, type code, bytes per token, number of sequences, number of sizes, number of document
ends (u64 each); then sequences + 1 dimension offsets, sequences + 1 data offsets in tokens, sizes, document ends (i64 each).

Source: Megatron-LM core_v0.16.1 megatron/core/datasets/indexed_dataset.py; for TNTIDX Megatron-LM v2.x
megatron/data/indexed_dataset.py, from fairseq.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from attuner.core.errors import UserError

MAGIC = b"MMIDIDX\x00\x00"
OLD_MAGIC = b"TNTIDX\x00\x00"
CODES: dict[int, str] = {1: "uint8", 2: "int8", 3: "int16", 4: "int32", 5: "int64", 8: "uint16"}
"""Type codes of whole numbers; 6 and 7 are floats, which no token has."""
_BLOCK = 1 << 20
Tokens = npt.NDArray[Any]


@dataclass(frozen=True)
class Index:
    """An index that was checked against its .bin; the arrays stay on disk."""

    prefix: Path
    dtype: str
    lengths: Tokens
    """In tokens, one a sequence."""
    offsets: Tokens
    """In bytes, one a sequence."""
    ends: Tokens
    """Sequence numbers at which documents end; the first is 0."""

    @property
    def num_documents(self) -> int:
        """Number of documents."""
        return len(self.ends) - 1

    def documents(self, *, limit: int) -> Iterator[tuple[int, Tokens | None]]:
        """Yield (bytes read, tokens) of each document; None for one of more than `limit` bytes."""
        dtype = np.dtype(self.dtype).newbyteorder("<")
        with self.prefix.with_name(self.prefix.name + ".bin").open("rb", buffering=0) as file:
            for first in range(0, self.num_documents, _BLOCK):
                ends = self.ends[first : first + _BLOCK + 1].tolist()
                for begin, end in pairwise(ends):
                    sizes = [n * dtype.itemsize for n in self.lengths[begin:end].tolist()]
                    num_bytes = sum(sizes)
                    if num_bytes > limit:
                        yield num_bytes, None
                        continue
                    offsets = self.offsets[begin:end].tolist()
                    raw = b"".join(os.pread(file.fileno(), n, at) for n, at in zip(sizes, offsets, strict=True))
                    if len(raw) != num_bytes:
                        raise UserError(f"{file.name}: grew shorter while it was read")
                    yield num_bytes, np.frombuffer(raw, dtype)


def read_index(prefix: Path) -> Index:
    """Open `prefix`.idx and check it against `prefix`.bin.

    Raises:
        UserError: another format, cut short, or it points outside the .bin.
    """
    idx, data = (prefix.with_name(prefix.name + end) for end in (".idx", ".bin"))
    try:
        num_bytes = data.stat().st_size
        with idx.open("rb") as file:
            magic = file.read(len(MAGIC))
        if magic == MAGIC:
            index = _new(prefix, idx)
        elif magic[: len(OLD_MAGIC)] == OLD_MAGIC:
            index = _old(prefix, idx)
        else:
            raise UserError(f"{idx}: no Megatron index: it begins with {magic[:8]!r}, not MMIDIDX or TNTIDX")
    except OSError as error:
        raise UserError(f"{prefix}: {error.strerror or error}") from None
    _check(index, idx, num_bytes)
    return index


def _new(prefix: Path, idx: Path) -> Index:
    version, code, num_sequences, num_ends = struct.unpack("<QBQQ", _head(idx, len(MAGIC), 25))
    dtype = _dtype(idx, version, code)
    at = len(MAGIC) + 25
    sizes = (num_sequences * 4, num_sequences * 8, num_ends * 8)
    _long_enough(idx, at + sum(sizes))
    lengths = _array(idx, "<i4", at, num_sequences)
    offsets = _array(idx, "<i8", at + sizes[0], num_sequences)
    return Index(prefix, dtype, lengths, offsets, _array(idx, "<i8", at + sizes[0] + sizes[1], num_ends))


def _old(prefix: Path, idx: Path) -> Index:
    head = _head(idx, len(OLD_MAGIC), 48)
    version, code, item, num_sequences, num_sizes, num_ends = struct.unpack("<6Q", head)
    dtype = _dtype(idx, version, code)
    if item != np.dtype(dtype).itemsize or num_sizes != num_sequences:
        raise UserError(f"{idx}: {item} bytes a {dtype} token and {num_sizes} sizes of {num_sequences} sequences can't be")
    at = len(OLD_MAGIC) + 48
    points = (num_sequences + 1) * 8
    _long_enough(idx, at + 2 * points + num_sizes * 8 + num_ends * 8)
    offsets = _array(idx, "<i8", at + points, num_sequences)
    if ((offsets < 0) | (offsets > 1 << 50)).any():
        raise UserError(f"{idx}: offsets that no file has")
    # offsets are counted in tokens here; a copy in bytes is made so that both formats read alike
    offsets = np.asarray(offsets) * item
    lengths = _array(idx, "<i8", at + 2 * points, num_sizes)
    return Index(prefix, dtype, lengths, offsets, _array(idx, "<i8", at + 2 * points + num_sizes * 8, num_ends))


def _head(idx: Path, at: int, size: int) -> bytes:
    with idx.open("rb") as file:
        file.seek(at)
        head = file.read(size)
    if len(head) < size:
        raise UserError(f"{idx}: cut short in its head")
    return head


def _dtype(idx: Path, version: int, code: int) -> str:
    if version != 1:
        raise UserError(f"{idx}: index version {version}; 1 is known")
    if code not in CODES:
        raise UserError(f"{idx}: type code {code} is no whole number; known: {CODES}")
    return CODES[code]


def _long_enough(idx: Path, wanted: int) -> None:
    size = idx.stat().st_size
    if size < wanted:
        raise UserError(f"{idx}: cut short: {size} bytes, its head asks for {wanted}")


def _array(path: Path, dtype: str, at: int, count: int) -> Tokens:
    if count == 0:
        return np.zeros(0, dtype)
    return np.memmap(path, dtype=dtype, mode="r", offset=at, shape=(count,))


def _check(index: Index, idx: Path, num_bytes: int) -> None:
    """Hold every number of the index against the rest, block by block."""
    size = np.dtype(index.dtype).itemsize
    for at in range(0, len(index.lengths), _BLOCK):
        lengths = index.lengths[at : at + _BLOCK].astype(np.int64)
        offsets = index.offsets[at : at + _BLOCK]
        # a huge offset is looked for before anything is added to it: the sum could wrap around
        bad = (lengths < 0) | (offsets < 0) | (offsets > num_bytes) | (lengths > num_bytes) | (offsets % size != 0)
        bad |= offsets + lengths * size > num_bytes
        if bad.any():
            n = int(np.argmax(bad))
            raise UserError(
                f"{idx}: sequence {at + n} ({int(lengths[n])} tokens at byte {int(offsets[n])}) lies outside the .bin "
                f"of {num_bytes} bytes; one of the two is cut short or not of this pair"
            )
    ends = index.ends
    if len(ends) == 0 or int(ends[0]) != 0 or int(ends[-1]) != len(index.lengths):
        raise UserError(f"{idx}: its document ends don't span its {len(index.lengths)} sequences")
    for at in range(0, len(ends), _BLOCK):
        if (np.diff(ends[at : at + _BLOCK + 1]) < 0).any():
            raise UserError(f"{idx}: its document ends don't rise")


def write_index(file: IO[bytes], dtype: str, *, num_rows: int, width: int) -> None:
    """Write the index of `num_rows` sequences of `width` tokens back to back, each a document of its own.

    Raises:
        UserError: a sequence is longer than the format's lengths can say.
    """
    if width >= 1 << 31:
        raise UserError(
            f"a sequence of {width} tokens: Megatron's index takes fewer than {1 << 31}; ask for fewer rows (--num-rows)"
        )
    code = {name: code for code, name in CODES.items()}[dtype]
    file.write(MAGIC + struct.pack("<QBQQ", 1, code, num_rows, num_rows + 1))
    size = width * np.dtype(dtype).itemsize
    for make, count in (
        (lambda n: np.full(len(n), width, "<i4"), num_rows),
        (lambda n: (n * size).astype("<i8"), num_rows),
        (lambda n: n.astype("<i8"), num_rows + 1),
    ):
        for at in range(0, count, _BLOCK):
            file.write(make(np.arange(at, min(at + _BLOCK, count), dtype=np.int64)).tobytes())
