"""Numbers that describe a tensor without keeping it: fixed random signs for projections and 64-bit hashes of bits, both by
integer hashing of an element's place in the whole model, so that they need no random tensors and no layout. int64 arithmetic
wraps on every device; sums of hashes therefore don't depend on their order.

Shapes: R rows, C columns of one parameter as this rank holds it; S sequence, B rows of a micro-batch."""

import hashlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

_ODD_1 = 0x9E3779B97F4A7C15 - (1 << 64)
_ODD_2 = 0xBF58476D1CE4E5B9 - (1 << 64)
_ODD_3 = 0x94D049BB133111EB - (1 << 64)
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_CHUNK_CPU, _CHUNK_DEVICE = 1 << 16, 1 << 21


def key_of(text: str) -> int:
    """Return a signed 64-bit key of a name, the same in every process."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little", signed=True)


def scramble(values: Any) -> Any:
    """Mix int64 values elementwise, in place, one to one (splitmix64's finisher).

    The shifts are made logical by a mask: an arithmetic shift would lose the top bit.
    """
    for shift, factor in ((30, _ODD_2), (27, _ODD_3)):
        values ^= (values >> shift) & ((1 << (64 - shift)) - 1)
        values *= factor
    values ^= (values >> 31) & ((1 << 33) - 1)
    return values


def axis_keys(key: int, places: Any) -> Any:
    """Return an odd random-looking int64 for every place of one axis."""
    return scramble(places.to(torch.int64) * _ODD_1 + key) | 1


def mixed(*columns: Any) -> Any:
    """Hash int64 tensors of one shape elementwise; the order of the columns matters."""
    state = torch.zeros_like(columns[0], dtype=torch.int64)
    for column in columns:
        state = scramble(state * _ODD_1 + column.to(torch.int64) + _ODD_3)
    return state


class Places(NamedTuple):
    """The element keys of a parameter (shard): the key at (r, c) is rows[r] · columns[c], which wraps.

    Its top bit is the element's sign. Unlike products of signs, two rows or two columns (so two experts, two layers) don't
    have the same signs or opposite ones, so that exchanging them is seen.
    """

    rows_R: Any
    columns_C: Any

    def keys(self, lo: int, hi: int) -> Any:
        """Return the keys of the flat range [lo, hi), int64."""
        width = len(self.columns_C)
        first, last = lo // width, -(-hi // width)
        block = self.rows_R[first:last, None] * self.columns_C[None, :]
        return block.view(-1)[lo - first * width : hi - first * width]


def chunks(places: Places, lo: int, hi: int) -> Iterator[tuple[int, int, Any]]:
    """Cut the flat range [lo, hi) into pieces of bounded size; yields (start, end, keys)."""
    size = _CHUNK_CPU if places.rows_R.device.type == "cpu" else _CHUNK_DEVICE
    width = len(places.columns_C)
    size = max(width, size // width * width)
    while lo < hi:
        end = min(hi, (lo // size + 1) * size)
        yield lo, end, places.keys(lo, end)
        lo = end


def projection(values: Any, keys: Any) -> Any:
    """Return the sum of float64 values under the signs of their keys; a tensor without dimensions."""
    return torch.where(keys < 0, -values, values).sum()


def bits_hash(values: Any, keys: Any) -> Any:
    """Return a hash of the values' bits at their places; a tensor without dimensions, int64.

    Hashes of disjoint ranges add up to the hash of their union.
    """
    bits = values.view(_BITS[values.element_size()]).to(torch.int64)
    return scramble((bits + _ODD_3) * _ODD_2 ^ keys).sum()


def hexadecimal(value: int) -> str:
    """Write a 64-bit value, signed or not, as 16 hex digits."""
    return f"{value & ((1 << 64) - 1):016x}"
