"""`attuner import` and `attuner check` of a recipe alone, as commands."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from attuner.cli.main import main
from attuner.config import load_recipe, load_recipe_file
from attuner.core.base import Value
from attuner.importing.defaults import same_as_text

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = """#!/bin/bash
export CUDA_DEVICE_MAX_CONNECTIONS=1
ARGS=(--num-layers 8 --hidden-size 64 --num-attention-heads 8 --seq-length 64 --tensor-model-parallel-size 4
  --pipeline-model-parallel-size 2 --global-batch-size 32 --micro-batch-size 1 --bf16 --lr 1e-4 --load $CKPT)
torchrun --nproc_per_node 8 --nnodes 2 pretrain_gpt.py ${ARGS[@]}
"""


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("ATTUNER_MEGATRON_SRC", "ATTUNER_SLIME_SRC"):
        monkeypatch.delenv(name, raising=False)
    file = tmp_path / "train.sh"
    file.write_text(SCRIPT)
    return file


def attuner(*words: str | Path) -> int:
    return main(["--project", str(ROOT), *map(str, words)])


def test_a_script_becomes_a_recipe_and_what_must_be_set_is_said(
    script: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "new" / "recipe.yaml"
    assert attuner("import", script, "-o", out) == 0
    recipe = load_recipe(out)
    assert recipe.stack == "megatron"
    assert recipe.arguments["tensor_model_parallel_size"] == 4
    assert recipe.env == {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}
    said = capsys.readouterr().out
    assert "16 devices" in said
    assert "to be set here       load = ${CKPT}" in said
    assert f"attuner check {out} --gpus 16" in said


def test_a_figure_and_its_source_are_carried(script: Path, tmp_path: Path) -> None:
    out = tmp_path / "recipe.yaml"
    assert attuner("import", script, "-o", out, "--published", "412.5", "--published-source", "a blog, table 2") == 0
    found = load_recipe_file(out).published
    assert found is not None
    assert (found.value, found.source, found.unit) == (412.5, "a blog, table 2", "tokens/s/GPU")


def test_other_devices_are_an_adaptation_with_its_reason(
    script: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "recipe.yaml"
    assert attuner("import", script, "-o", out, "--gpus", "4") == 0
    file = load_recipe_file(out)
    assert file.arguments["pipeline_model_parallel_size"] == 1
    assert [a.change for a in file.adaptations] == ["devices: 16 → 4", "pipeline_model_parallel_size: 2 → 1"]
    assert file.adaptations[1].why == "4 devices do not divide by tp·pp·cp = 4·2·1 = 8"
    assert "by arithmetic alone" in capsys.readouterr().out


def test_devices_that_nothing_fits_are_refused_with_the_formula(
    script: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "recipe.yaml"
    assert attuner("import", script, "-o", out, "--gpus", "7") == 4
    assert "7 devices do not divide by tp·pp·cp = 4·2·1 = 8" in capsys.readouterr().err
    assert not out.exists()


@pytest.mark.parametrize(
    ("more", "what"),
    [
        (["--set", "X"], "--set X: write NAME=VALUE"),
        (["--published", "3"], "--published VALUE and --published-source TEXT go together"),
        (["--published", "-1", "--published-source", "x"], "must be a positive figure"),
        (["--gpus", "-2"], "--gpus -2: must be at least 1"),
        (["--launch", "3"], "--launch 3: train.sh starts 1"),
        (["--root", "/nowhere"], "--root /nowhere: no such folder"),
    ],
)
def test_a_wrong_option_is_one_line(
    more: list[str], what: str, script: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert attuner("import", script, "-o", tmp_path / "recipe.yaml", *more) == 2
    assert what in capsys.readouterr().err


def test_a_file_is_written_over_only_when_asked(script: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "recipe.yaml"
    out.write_text("mine")
    assert attuner("import", script, "-o", out) == 2
    assert out.read_text() == "mine"
    assert "--force writes over it" in capsys.readouterr().err
    assert attuner("import", script, "-o", out, "--force") == 0


def test_json_says_everything(script: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert attuner("import", script, "-o", tmp_path / "r.yaml", "--json") == 0
    body = json.loads(capsys.readouterr().out)
    assert body["gpus"] == 16
    assert {"kind": "to_set", "text": "load = ${CKPT}"} in body["notices"]


def test_a_recipe_alone_must_be_told_its_devices(script: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "recipe.yaml"
    attuner("import", script, "-o", out)
    assert attuner("check", out) == 2
    assert "a recipe alone names no number of devices; add --gpus N" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("value", "default", "same"),
    [
        (1.0, "1", True),
        (1e-6, "1e-06", True),
        (True, "1", False),
        (False, "False", True),
        (None, "None", True),
        ("flash", "AttnBackend.flash", True),
        ("torch.float32", "float32", True),
        ("data.jsonl", "other.jsonl", False),
        (0.5, "1.5", False),
        ([1, 2], "[1, 2]", True),
    ],
)
def test_a_final_value_is_compared_with_a_printed_default(value: Value, default: str, same: bool) -> None:
    assert same_as_text(value, default) is same
