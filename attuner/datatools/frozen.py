"""A folder of rows as it lies on disk: rows.json (what it is), rows.bin (tokens), used.bin, mask.bin; opened and verified.

rows.bin holds num_rows × (seq_len + 1) tokens of the type that rows.json names (uint8 where it names none), little-endian.
used.bin (int32, one a row; only where rows are padded) counts the tokens of a row that are no padding. mask.bin (uint8,
num_rows × seq_len) weighs each label. Each has its sha256 in rows.json; `attuner/runner/rows.py` reads the same files.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from attuner.core.errors import UserError

ABOUT, ROWS, USED, MASK, SOURCES = "rows.json", "rows.bin", "used.bin", "mask.bin", "sources.sha256"
ROWS_INDEX, STREAM, STREAM_INDEX = "rows.idx", "stream.bin", "stream.idx"
"""For Megatron: a sequence a row; the rows as one stream of which they are the samples."""
TYPES = ("uint8", "uint16", "int32")
Tokens = npt.NDArray[Any]
_PIECE = 1 << 22


def dtype_for(vocab_size: int) -> str:
    """Return the smallest type of a vocabulary's ids."""
    return "uint8" if vocab_size <= 1 << 8 else "uint16" if vocab_size <= 1 << 16 else "int32"


@dataclass(frozen=True)
class Frozen:
    """Rows that agree with their rows.json; the arrays stay on disk."""

    folder: Path
    about: dict[str, Any]
    rows: Tokens
    """(num_rows, seq_len + 1)"""
    used: Tokens | None
    """(num_rows,)"""
    mask: Tokens | None
    """(num_rows, seq_len)"""

    @property
    def seq_len(self) -> int:
        """Tokens of a row that are read; one more is the last one's label."""
        return int(self.about["seq_len"])

    def blocks(self, num_tokens: int) -> Iterator[tuple[Tokens, Tokens | None]]:
        """Yield all rows in blocks of about `num_tokens`, read and not mapped, with `used` of the same rows."""
        step = max(1, num_tokens // (self.seq_len + 1))
        with (self.folder / ROWS).open("rb") as file:
            for at in range(0, len(self.rows), step):
                count = min(step, len(self.rows) - at)
                read = np.fromfile(file, self.rows.dtype, count * (self.seq_len + 1))
                yield read.reshape(count, -1), None if self.used is None else self.used[at : at + step]


def open_rows(folder: Path, *, with_mask: bool = True) -> Frozen:
    """Open and verify a folder of rows.

    Raises:
        UserError: something is missing, cut short, or differs from its sha256.
    """
    try:
        about = json.loads((folder / ABOUT).read_text(encoding="utf-8"))
        num_rows, seq_len = int(about["num_rows"]), int(about["seq_len"])
        dtype = str(about.get("dtype", "uint8"))
        if dtype not in TYPES or num_rows < 1 or seq_len < 1:
            raise ValueError(f"num_rows {num_rows}, seq_len {seq_len}, dtype {dtype}")
        rows = _part(folder / ROWS, about["sha256"], dtype, (num_rows, seq_len + 1))
        used = _part(folder / USED, about["used_sha256"], "int32", (num_rows,)) if "used_sha256" in about else None
        masked = with_mask and "mask_sha256" in about
        mask = _part(folder / MASK, about["mask_sha256"], "uint8", (num_rows, seq_len)) if masked else None
    except OSError as error:
        raise UserError(
            f"{folder}: no folder of rows ({error.strerror or error}: {ABOUT}); make one by `attuner data rows`"
        ) from None
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise UserError(f"{folder / ABOUT}: not readable ({error})") from None
    return Frozen(folder, about, rows, used, mask)


def _part(path: Path, sha256: str, dtype: str, shape: tuple[int, ...]) -> Tokens:
    wanted = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
    size = path.stat().st_size if path.is_file() else -1
    if size != wanted:
        raise UserError(f"{path}: {'missing' if size < 0 else f'{size} bytes'}, rows.json asks for {wanted}; make the rows again")
    if sha256_of(path) != sha256:
        raise UserError(f"{path}: differs from the sha256 in rows.json; make the rows again")
    return np.memmap(path, dtype=np.dtype(dtype).newbyteorder("<"), mode="r", shape=shape)


def sha256_of(path: Path) -> str:
    """Return a file's digest."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(_PIECE):
            digest.update(piece)
    return digest.hexdigest()


def document(value: Any) -> str:
    """Return data as the JSON text that stands in the files: sorted, so that equal data are equal bytes."""
    return json.dumps(value, indent=1, sort_keys=True, allow_nan=False, ensure_ascii=False) + "\n"


def digest_of(sha256s: Iterable[str]) -> str:
    """Return one digest of several files by their own, in their order: the dataset's in a campaign."""
    return hashlib.sha256(b"".join(bytes.fromhex(x) for x in sha256s)).hexdigest()
