"""Law: slime trains on exactly the rows and masks: file k holds the rows of step k, and slime's own loader reads it."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from attuner.cli.main import main
from attuner.core.errors import UserError
from attuner.datatools.frozen import open_rows
from attuner.datatools.masks import Keep, make_masks
from attuner.datatools.rollout import Rollout, make_rollout
from attuner.datatools.rows import Layout, make_rows
from attuner.datatools.stream import Reading
from attuner.runner import write_rollout

SEQ = 7


def rows_of(folder: Path) -> Path:
    folder.mkdir()
    (folder / "x.txt").write_text("".join(f"{n}:{'ab;' * (n % 5)}" for n in range(40)))
    make_rows([str(folder / "x.txt")], folder / "rows", Reading(eos="none"), Layout(seq_len=SEQ))
    make_masks(folder / "rows", Keep(after=":", until=";"))
    return folder / "rows"


def job(folder: Path, out: Path, **wish: Any) -> dict[str, Any]:
    out.mkdir()
    told = {"steps": 3, "rollout_batch_size": 2, "samples_per_prompt": 2, "first_row": 1, "first_rollout": 5}
    about = {"rows": str(folder), "out": str(out), "seq_length": SEQ, "vocab_size": 256, "rewards": "alternate", "trim": False}
    return {**about, **told, **wish}


def test_each_file_holds_a_steps_rows_with_the_rows_mask(tmp_path: Path) -> None:
    folder = rows_of(tmp_path / "in")
    written = write_rollout.write(job(folder, tmp_path / "out"))
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == [f"rollout_{n}.pt" for n in (5, 6, 7)]
    rows = open_rows(folder)
    assert rows.mask is not None
    samples = []
    for number in (5, 6, 7):
        loaded = torch.load(tmp_path / "out" / f"rollout_{number}.pt", weights_only=True)
        assert loaded["rollout_id"] == number
        samples += loaded["samples"]
    assert [s["tokens"] for s in samples] == rows.rows[1:13].tolist()
    assert [s["loss_mask"] for s in samples] == rows.mask[1:13].tolist()
    assert [s["response_length"] for s in samples] == [SEQ] * 12
    assert [s["index"] for s in samples] == list(range(12))
    assert [s["group_index"] for s in samples] == [n // 2 for n in range(12)]
    assert [s["reward"] for s in samples] == [1.0, 0.0] * 6
    assert written["loss_tokens"] == int(rows.mask[1:13].sum())
    assert written["samples_without_loss"] == int((rows.mask[1:13].sum(axis=1) == 0).sum())


def test_trimming_leaves_out_only_what_no_loss_token_sees(tmp_path: Path) -> None:
    folder = rows_of(tmp_path / "in")
    write_rollout.write(job(folder, tmp_path / "whole"))
    write_rollout.write(job(folder, tmp_path / "trim", trim=True))
    shorter = 0
    for number in (5, 6, 7):
        whole, trim = (torch.load(tmp_path / d / f"rollout_{number}.pt", weights_only=True)["samples"] for d in ("whole", "trim"))
        for a, b in zip(whole, trim, strict=True):
            n = len(b["tokens"])
            assert (b["tokens"], b["loss_mask"]) == (a["tokens"][:n], a["loss_mask"][: n - 1])
            assert b["response_length"] == n - 1 >= 1
            assert not any(a["loss_mask"][n - 1 :])
            assert b["loss_mask"][-1] == 1 or not any(a["loss_mask"])
            shorter += n < len(a["tokens"])
    assert shorter > 0


def test_the_same_rows_give_the_same_files(tmp_path: Path) -> None:
    folder = rows_of(tmp_path / "in")
    first, second = (write_rollout.write(job(folder, tmp_path / name)) for name in ("a", "b"))
    assert first == second
    for name, digest in first["files"].items():
        assert hashlib.sha256((tmp_path / "b" / name).read_bytes()).hexdigest() == digest


def test_too_few_rows_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    folder = rows_of(tmp_path / "in")
    num_rows = len(open_rows(folder).rows)
    steps = (num_rows - 3) // 4 + 1
    with pytest.raises(UserError, match=f"{steps} steps of 4 samples want {steps * 4} rows, there are {num_rows - 3}"):
        make_rollout(folder, tmp_path / "out", Rollout(steps, 2, 2, first_row=3))
    with pytest.raises(UserError, match="--steps 0: at least 1"):
        make_rollout(folder, tmp_path / "out", Rollout(0, 2))
    assert [p.name for p in tmp_path.iterdir()] == ["in"]


def test_the_command_writes_the_files_and_says_how_slime_takes_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, out = rows_of(tmp_path / "in"), tmp_path / "out"
    order = ["data", "rollout", str(folder), "-o", str(out), "--steps", "2", "--rollout-batch-size", "3"]
    assert main(order) == 0
    said = capsys.readouterr().out
    assert f"--load-debug-rollout-data '{out}/rollout_{{rollout_id}}.pt' --num-rollout 2 --rollout-batch-size 3" in said
    assert "--n-samples-per-prompt 1 --global-batch-size 3" in said
    assert sorted(p.name for p in out.iterdir()) == ["rollout.json", "rollout_0.pt", "rollout_1.pt"]
    told = json.loads((out / "rollout.json").read_text())
    assert told["rows"]["mask_sha256"] == open_rows(folder).about["mask_sha256"]
    assert told["files"].keys() == {"rollout_0.pt", "rollout_1.pt"}
    digests = [hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(out.glob("rollout_*.pt"))]
    assert list(told["files"].values()) == digests
    whole = hashlib.sha256(b"".join(bytes.fromhex(x) for x in digests)).hexdigest()
    assert f"{out}/rollout_{{rollout_id}}.pt@sha256:{whole}" in said


FULL = """
import resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (900, 900))
from attuner.runner import write_rollout
sys.exit(write_rollout.main(sys.argv[1]))
"""


def test_a_full_disk_is_one_line(tmp_path: Path) -> None:
    folder = rows_of(tmp_path / "in")
    order = tmp_path / "job.json"
    order.write_text(json.dumps(job(folder, tmp_path / "out")))
    done = subprocess.run([sys.executable, "-c", FULL, str(order)], capture_output=True, text=True)
    assert done.returncode == 3
    assert done.stderr.splitlines() == ["can't be written (File too large)"]


LOADED = """
import json, sys
sys.path.insert(0, sys.argv[1])
from slime.observability.rollout_data_utils import load_debug_rollout_data
samples = load_debug_rollout_data(sys.argv[2], rollout_id=6)
names = ("tokens", "loss_mask", "response_length", "reward", "effective_response_length")
print(json.dumps([[*(getattr(s, name) for name in names), s.status.value] for s in samples]))
"""


@pytest.mark.slow  # importing slime
def test_slimes_own_loader_reads_the_files(tmp_path: Path) -> None:
    source = os.environ.get("ATTUNER_SLIME_SRC", "")
    if not source:
        pytest.skip("ATTUNER_SLIME_SRC names no checkout of slime")
    folder = rows_of(tmp_path / "in")
    write_rollout.write(job(folder, tmp_path / "out"))
    order = [sys.executable, "-c", LOADED, source, str(tmp_path / "out" / write_rollout.NAME)]
    done = subprocess.run(order, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    rows = open_rows(folder)
    assert rows.mask is not None
    wanted = [
        [row.tolist(), mask.tolist(), SEQ, float(n % 2 == 0), int(mask.sum()), "completed"]
        for n, (row, mask) in enumerate(zip(rows.rows[5:9], rows.mask[5:9], strict=True))
    ]
    assert json.loads(done.stdout) == wanted
