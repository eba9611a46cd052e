"""Laws of a campaign's rows on stack mcore: what is trained on has the digest that was stated, and every label counts."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attuner.cli.main import main
from attuner.core.errors import UserError
from attuner.stacks.mcore import dataset


@pytest.fixture
def made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    (tmp_path / "text.txt").write_text("a sentence that is long enough to cut rows from. " * 40)
    assert main(["data", "rows", str(tmp_path / "text.txt"), "--seq-len", "16", "-o", str(tmp_path / "rows")]) == 0
    capsys.readouterr()
    return tmp_path / "rows"


def frozen(named: Path | str, folder: Path, **more: Any) -> str:
    return dataset.freeze(str(named), folder, **{"seq_len": 16, "num_rows": 20, **more})


def test_own_rows_are_copied_with_the_digest_of_their_bytes(made: Path, tmp_path: Path) -> None:
    found = frozen(made, tmp_path / "inputs")
    digest = hashlib.sha256((made / "rows.bin").read_bytes()).hexdigest()
    assert found == f"{made}@sha256:{digest}"
    assert (tmp_path / "inputs" / "rows.bin").read_bytes() == (made / "rows.bin").read_bytes()
    assert frozen(found, tmp_path / "again") == found


def test_a_stated_digest_that_differs_is_refused(made: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="the file says sha256:000"):
        frozen(f"{made}@sha256:{'0' * 64}", tmp_path / "inputs")


def test_rows_that_were_edited_are_refused(made: Path, tmp_path: Path) -> None:
    data = bytearray((made / "rows.bin").read_bytes())
    data[0] ^= 1
    (made / "rows.bin").write_bytes(data)
    with pytest.raises(UserError):
        frozen(made, tmp_path / "inputs")
    assert not (tmp_path / "inputs").exists()


@pytest.mark.parametrize(("change", "words"), [({"seq_len": 8}, "needs 20 of 8"), ({"num_rows": 10**6}, "needs 1000000 of 16")])
def test_rows_of_another_shape_or_too_few_are_refused(made: Path, tmp_path: Path, change: dict[str, int], words: str) -> None:
    with pytest.raises(UserError, match=words):
        frozen(made, tmp_path / "inputs", **change)


def test_rows_with_a_mask_are_refused(made: Path, tmp_path: Path) -> None:
    about = json.loads((made / "rows.json").read_text())
    mask = np.ones((about["num_rows"], 16), dtype=np.uint8).tobytes()
    (made / "mask.bin").write_bytes(mask)
    (made / "rows.json").write_text(json.dumps({**about, "mask_sha256": hashlib.sha256(mask).hexdigest()}))
    with pytest.raises(UserError, match="every label counts"):
        frozen(made, tmp_path / "inputs")


def test_a_name_that_is_no_dataset_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="attuner data rows SOURCE"):
        frozen("fineweb", tmp_path / "inputs")
