"""Reads the training rows: a folder with rows.bin (num_rows × (seq_len + 1) tokens of the `dtype` in rows.json, uint8 where
it names none) and rows.json. Where rows.json names a mask_sha256, mask.bin (uint8, num_rows × seq_len) weighs each label with
0 or 1. The rows of an update, and their order, are the same in every parallel layout."""

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from . import files
from .errors import ConfigError

_CHUNK = 1 << 22
_DTYPES = {"uint8": torch.uint8, "uint16": torch.uint16, "int32": torch.int32}


class Rows:
    """The rows of one folder, verified against its rows.json when opened.

    Raises: ConfigError when sizes or the checksum disagree.
    """

    def __init__(self, folder: str, seq_length: int, vocab_size: int, device: torch.device) -> None:
        path, about = Path(folder) / "rows.bin", files.read_json(Path(folder) / "rows.json")
        self.num_rows, width = int(about["num_rows"]), int(about["seq_len"]) + 1
        if about["seq_len"] != seq_length:
            raise ConfigError(f"rows have {about['seq_len']} tokens, seq_length is {seq_length}")
        if about["vocab_size"] > vocab_size:
            raise ConfigError(f"rows need a vocabulary of {about['vocab_size']}, vocab_size is {vocab_size}")
        dtype = _DTYPES.get(about.get("dtype", "uint8"))
        if dtype is None:
            raise ConfigError(f"rows.json: dtype {about['dtype']}; known: {', '.join(_DTYPES)}")
        if path.stat().st_size != self.num_rows * width * dtype.itemsize:
            raise ConfigError(f"rows.bin has {path.stat().st_size} bytes, not {self.num_rows} · {width} · {dtype.itemsize}")
        if _sha256(path) != about["sha256"]:
            raise ConfigError("rows.bin differs from the sha256 in rows.json")
        self._tokens = _map(path, width, dtype)
        self._mask = _mask(Path(folder) / "mask.bin", self.num_rows, seq_length, about.get("mask_sha256"))
        self._device = device

    def need(self, first_row: int, count: int) -> None:
        """Raise ConfigError unless rows first_row … first_row + count - 1 exist."""
        if first_row < 0 or first_row + count > self.num_rows:
            raise ConfigError(f"rows {first_row} to {first_row + count - 1} are wanted, there are {self.num_rows}")

    def update(self, first: int, global_batch: int, micro_batch: int, dp: int, dp_rank: int) -> list[dict[str, Any]]:
        """Return one data-parallel rank's micro-batches of one update.

        Micro-batch m of rank r holds rows first + (m · dp + r) · micro_batch and following. Each micro-batch has
        tokens, labels and position_ids (micro_batch, seq_length) int64 and loss_mask (float32; ones without mask.bin).
        """
        return [
            self._microbatch(first + (index * dp + dp_rank) * micro_batch, micro_batch)
            for index in range(global_batch // (micro_batch * dp))
        ]

    def _microbatch(self, first: int, count: int) -> dict[str, Any]:
        rows = self._tokens[first : first + count].to(torch.int64).to(self._device)
        tokens = rows[:, :-1].contiguous()
        positions = torch.arange(tokens.size(1), device=self._device).expand(count, -1).contiguous()
        if self._mask is None:
            mask = torch.ones(tokens.shape, dtype=torch.float32, device=self._device)
        else:
            mask = self._mask[first : first + count].to(torch.float32).to(self._device)
        return {"tokens": tokens, "labels": rows[:, 1:].contiguous(), "position_ids": positions, "loss_mask": mask}


def _map(path: Path, width: int, dtype: torch.dtype) -> torch.Tensor:
    size = path.stat().st_size // dtype.itemsize
    return torch.from_file(str(path), shared=False, size=size, dtype=dtype).view(-1, width)


def _mask(path: Path, num_rows: int, width: int, wanted: str | None) -> torch.Tensor | None:
    """Open the loss mask that rows.json promises, or return None where it promises none."""
    if wanted is None:
        return None
    if not path.is_file() or path.stat().st_size != num_rows * width or _sha256(path) != wanted:
        raise ConfigError("mask.bin differs from the mask_sha256 in rows.json")
    return _map(path, width, torch.uint8)


def iterators(batches: list[dict[str, Any]], chunks: int) -> Any:
    """Return what megatron's schedules read: one iterator, or one for each of several chunks."""
    if chunks == 1:
        return iter(batches)
    several: list[Iterator[dict[str, Any]]] = [iter(batches) for _ in range(chunks)]
    return several


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()
