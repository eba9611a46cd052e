"""The laws of wrapping a Megatron-LM run into a launch: what is trained stays the recipe's, what is judged too."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import pytest

from attuner.benchmarking import as_judged, check_weights
from attuner.core.campaign import Campaign, Prepare
from attuner.core.errors import UserError
from attuner.core.recipe import EffectiveConfig
from attuner.runner.megatron_tokens import Vocabulary
from attuner.stacks.megatron import benchmark, data

TRAINED = (
    "train_iters",
    "train_samples",
    "lr",
    "lr_decay_iters",
    "lr_warmup_iters",
    "seed",
    "global_batch_size",
    "data_path",
    "split",
)


def vocabulary() -> Vocabulary:
    parser = argparse.ArgumentParser()
    for name in ("save", "load", "log-interval", "exit-interval", "train-iters", "tensorboard-dir"):
        parser.add_argument(f"--{name}")
    parser.add_argument("--lr", type=float)
    parser.add_argument("--data-path", nargs="*")
    parser.add_argument("--finetune", action="store_true")
    return Vocabulary(parser)


@pytest.mark.parametrize("inputs", [{"load": None, "save": None}, {"load": "/c", "save": None}, {"load": None, "save": "/c"}])
def test_no_launch_touches_what_is_trained(inputs: dict[str, Any]) -> None:
    found = benchmark.wrapping({"steps": 10, **inputs}, profile_steps=1)
    assert not {*found, *benchmark.DROPPED} & set(TRAINED)
    assert found["exit_interval"] == 11  # leaves by this, so the schedule stays the recipe's


def test_a_missing_checkpoint_ends_a_launch_instead_of_training_from_random_weights() -> None:
    found = benchmark.wrapping({"steps": 10, "load": "/c", "save": None}, profile_steps=0)
    assert found["exit_on_missing_checkpoint"] is True
    assert "save" not in found


def test_dropped_options_go_with_their_values_and_nothing_else_does() -> None:
    words = ["--lr", "-1e-3", "--save", "/a", "--data-path", "0.5", "/x", "--tensorboard-dir=/t", "--finetune", "--load", "/b"]
    kept = vocabulary().without(words, {"save", "load", "tensorboard_dir"})
    assert kept == ["--lr", "-1e-3", "--data-path", "0.5", "/x", "--finetune"]


def test_a_run_is_judged_by_its_own_report_save_for_the_wrapping() -> None:
    judged: dict[str, Any] = {"lr": 0.1, "save": "checkpoints", "log_interval": 10, "exit_interval": None}
    told: dict[str, Any] = {"lr": 0.2, "load": "/c", "log_interval": 1, "exit_interval": 11, "new": 1}
    found = as_judged(told, judged, benchmark.ALWAYS_TOLD)
    assert found == {"lr": 0.2, "new": 1, "save": "checkpoints", "log_interval": 10, "exit_interval": None}


def frame(dataset: str) -> Campaign:
    work = {"model": "m", "dataset": dataset, "seq_len": 4, "global_batch": 2, "precision": "fp32", "seed": 1}
    cluster = {"name": "c", "devices": 2, "devices_per_node": 2}
    return Campaign.model_validate(
        {
            "name": "t",
            "workload": {**work, "steps": 4, "warmup_steps": 1, "gpus": 2, "hardware": "cpu"},
            "baseline": {"stack": "megatron"},
            "stack": {"name": "megatron", "version": "0.16.1"},
            "launcher": {"name": "ray_jobs", "cluster": cluster},
            "proposer": {"name": "scripted"},
            "source_file": "t.yaml",
        }
    )


def final(**arguments: Any) -> EffectiveConfig:
    return EffectiveConfig(arguments=arguments, env={}, facts={})


def rows(folder: Path) -> str:
    (folder / "rows.bin").write_bytes(b"\x01\x02")
    (folder / "rows.idx").write_bytes(b"\x03")
    return str(folder / "rows")


def test_files_have_the_digest_of_their_content(tmp_path: Path) -> None:
    prefix = rows(tmp_path)
    found = data.freeze(frame("mine"), final(data_path=["0.3", prefix]))
    assert found.startswith("mine@sha256:")
    assert data.freeze(frame(found), final(data_path=prefix)) == found
    (tmp_path / "rows.bin").write_bytes(b"\x01\x03")
    with pytest.raises(UserError, match="the file says"):
        data.freeze(frame(found), final(data_path=prefix))


def test_mock_data_change_with_what_they_are_made_from() -> None:
    one = data.freeze(frame("mock"), final(mock_data=True, seed=1, vocab_size=8))
    assert one != data.freeze(frame("mock"), final(mock_data=True, seed=2, vocab_size=8))


@pytest.mark.parametrize(
    ("dataset", "arguments", "words"),
    [
        ("mine", {"mock_data": True}, "name it mock"),
        ("mine", {}, "neither data_path"),
        ("mine", {"data_path": "/nowhere/rows"}, "not seen from here; state mine@sha256"),
    ],
)
def test_data_that_can_not_be_named_are_refused_in_one_line(dataset: str, arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        data.freeze(frame(dataset), final(**arguments))


def test_data_out_of_sight_keep_the_stated_digest(caplog: pytest.LogCaptureFixture) -> None:
    stated = f"mine@sha256:{'0' * 64}"
    assert data.freeze(frame(stated), final(data_path="/nowhere/rows")) == stated
    assert "on trust" in caplog.text


@pytest.mark.parametrize("name", ["load", "pretrained_checkpoint"])
def test_weights_that_no_launch_would_load_are_refused_at_birth(name: str) -> None:
    with pytest.raises(UserError, match=r"t\.yaml: prepare\.checkpoint: the recipe's \w+ is /ckpt"):
        check_weights(frame("mock"), {name: "/ckpt"}, ("load", "pretrained_checkpoint"))
    told = frame("mock").model_copy(update={"prepare": Prepare(checkpoint="/ckpt")})
    check_weights(told, {name: "/ckpt"}, ("load", "pretrained_checkpoint"))
    check_weights(frame("mock"), {}, ("load", "pretrained_checkpoint"))
