"""Rows and their loss masks: verified when opened, the same in every layout."""

import hashlib
import json
from pathlib import Path

import pytest
import torch

from attuner.runner.errors import ConfigError
from attuner.runner.rows import Rows

from .conftest import write_rows

SEQ, COUNT = 4, 8


def masked(folder: Path) -> Path:
    write_rows(folder, COUNT, SEQ)
    mask = bytes(int((row + column) % 3 > 0) for row in range(COUNT) for column in range(SEQ))
    (folder / "mask.bin").write_bytes(mask)
    about = json.loads((folder / "rows.json").read_text())
    (folder / "rows.json").write_text(json.dumps({**about, "mask_sha256": hashlib.sha256(mask).hexdigest()}))
    return folder


def opened(folder: Path) -> Rows:
    return Rows(str(folder), SEQ, 256, torch.device("cpu"))


def test_without_a_mask_every_label_counts(tmp_path: Path) -> None:
    [batch] = opened(write_rows(tmp_path / "rows", COUNT, SEQ)).update(0, 2, 2, 1, 0)
    assert batch["loss_mask"].tolist() == [[1.0] * SEQ] * 2


def test_a_mask_goes_with_its_row_in_every_layout(tmp_path: Path) -> None:
    rows = opened(masked(tmp_path / "rows"))
    whole = [pair for batch in rows.update(2, 4, 1, 1, 0) for pair in pairs(batch)]
    split = [pair for rank in (0, 1) for batch in rows.update(2, 4, 1, 2, rank) for pair in pairs(batch)]
    assert sorted(whole) == sorted(split)
    assert {value for _, mask in whole for value in mask} == {0.0, 1.0}


def pairs(batch: dict[str, torch.Tensor]) -> list[tuple[list[int], list[float]]]:
    return list(zip(batch["tokens"].tolist(), batch["loss_mask"].tolist(), strict=True))


def test_a_mask_that_changed_is_refused(tmp_path: Path) -> None:
    folder = masked(tmp_path / "rows")
    (folder / "mask.bin").write_bytes(bytes(COUNT * SEQ))
    with pytest.raises(ConfigError, match=r"mask\.bin differs"):
        opened(folder)


def test_a_mask_that_is_promised_must_be_there(tmp_path: Path) -> None:
    folder = masked(tmp_path / "rows")
    (folder / "mask.bin").unlink()
    with pytest.raises(ConfigError, match=r"mask\.bin differs"):
        opened(folder)
