"""The law of the probe in Megatron-LM's own loop: it sees what pretrain_gpt.py trains, in any layout, without an edit of it, and
what it sees is judged like any run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from attuner.cli.main import main
from attuner.core.fingerprint import Fingerprint

pytestmark = pytest.mark.slow
BUCKETS = ["--overlap-grad-reduce", "--ddp-bucket-size", "40000"]


@pytest.fixture(scope="module")
def baseline(pretrain: Any, trained: list[str]) -> Path:
    return pretrain("baseline", *trained)


def fingerprint(folder: Path) -> Fingerprint:
    return Fingerprint.model_validate_json((folder / "fingerprint.json").read_text())


def judged(capsys: pytest.CaptureFixture[str], *folders: Path) -> tuple[int, list[dict[str, Any]]]:
    code = main(["gate", "--runs", *map(str, folders), "--json"])
    return code, list(json.loads(capsys.readouterr().out)["looks"].values())


def test_it_sees_everything_and_leaves_the_loop_alone(baseline: Path) -> None:
    seen = fingerprint(baseline)
    assert (seen.missing, seen.not_finite, [s.step for s in seen.steps]) == ({}, [], [0, 1])
    first = seen.steps[0]
    assert first.batch is not None
    assert (first.batch.rows, first.batch.loss_tokens) == (8, 512)
    log = (baseline / "log.txt").read_text()
    assert "iteration        3/" in log  # trained on after the probe was gone
    assert f"lm loss: {first.loss:.6E}" in log
    assert f"grad norm: {first.clip.norm:.3f}" in log  # type: ignore[union-attr]


def test_another_layout_and_overlap_are_the_same_training(
    pretrain: Any, trained: list[str], baseline: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    split = pretrain("tp2", *trained, "--tensor-model-parallel-size", "2", "--sequence-parallel")
    code, verdicts = judged(capsys, baseline, split)
    later = [v for v in verdicts if v["look"] != "config"]
    assert {v["decision"] for v in later} == {"admit"}, [f for v in later for f in v["findings"] if f["decision"] != "admit"]
    assert code in (0, 3)  # the first look has its own say of a changed layout


def test_a_planted_skipped_bucket_is_caught(
    pretrain: Any, trained: list[str], baseline: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    healthy = pretrain("buckets", *trained, *BUCKETS)
    _, verdicts = judged(capsys, baseline, healthy)
    assert {v["decision"] for v in verdicts if v["look"] != "config"} == {"admit"}
    faulty = pretrain("skipped", *trained, *BUCKETS, script=Path(__file__).parent / "skipped_bucket.py")
    code, verdicts = judged(capsys, healthy, faulty)
    assert code == 4
    update = next(v for v in verdicts if v["look"] == "update")
    refusals = [f for f in update["findings"] if f["decision"] == "refuse"]
    assert any("replica" in f["key"] or "replica" in f["reason"] for f in refusals), refusals
