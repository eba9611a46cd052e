"""Stack `slime`: training alone on saved rollouts, with the schedule as long as the recipe's."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from attuner.core.base import Value
from attuner.core.campaign import Campaign, Cluster, Device, LauncherSpec, Prepare, ProposerSpec, StackSpec
from attuner.core.errors import UserError
from attuner.core.recipe import EffectiveConfig, Recipe, Workload
from attuner.ports import JobSpec, RunFiles, Stamp
from attuner.stacks.slime import benchmark
from attuner.stacks.slime.stack import STEP, SlimeStack

RECIPE = Recipe(stack="slime", arguments={"num_rollout": 3000, "lr": 1e-6, "save": "/out", "use_wandb": True})
FINAL: dict[str, Value] = {
    **{"num_rollout": 3000, "lr_decay_iters": 12000, "global_batch_size": 256, "rollout_batch_size": 128},
    **{"n_samples_per_prompt": 8, "start_weight_decay": 0.1, "end_weight_decay": 0.1, "lr": 1e-6},
}


class Resolved:
    """A judge that has resolved already."""

    def __init__(self, arguments: dict[str, Value]) -> None:
        self.final = EffectiveConfig(arguments=arguments, env={}, facts={"train_steps": 12000})
        self.entries: list[str] = []

    def resolve(self, recipe: Recipe, campaign: Campaign) -> EffectiveConfig:
        self.entries.append(campaign.stack.entry)
        return self.final

    def known_arguments(self, campaign: Campaign) -> list[dict[str, Any]]:
        return []

    def resolve_job(self, recipes: list[Recipe], campaign: Campaign, *, source: str, slime_source: str = "") -> JobSpec:
        raise NotImplementedError

    def resolved(self, files: RunFiles, campaign: Campaign) -> list[Any]:
        raise NotImplementedError

    def close(self) -> None:
        pass


def campaign(dataset: str = "/data/rollouts/{rollout_id}.pt", **more: Any) -> Campaign:
    work = {"model": "m", "dataset": dataset, "seq_len": 4096, "global_batch": 256, "precision": "bfloat16", "seed": 1234}
    cluster = Cluster(name="c", devices=64, devices_per_node=8, resource="GPU", device=Device(kind="cuda"))
    return Campaign(
        name="t",
        workload=Workload.model_validate({**work, "hardware": "8xH100", "steps": 10, "warmup_steps": 2, "gpus": 64}),
        baseline=RECIPE,
        stack=StackSpec(name="slime", version="?", source="/opt/Megatron-LM", slime_source="/opt/slime"),
        launcher=LauncherSpec(name="ray_jobs", cluster=cluster),
        proposer=ProposerSpec(name="scripted"),
        source_file="t.yaml",
        **more,
    )


@pytest.fixture
def judge() -> Resolved:
    return Resolved(dict(FINAL))


def command(judge: Resolved, **inputs: Any) -> JobSpec:
    given = {"steps": 10, "load": "/ckpt", **inputs}
    return SlimeStack(judge).command(RECIPE, campaign(), kind="search", profile_steps=1, inputs=given)


def test_slimes_arguments_are_resolved_as_slimes(judge: Resolved) -> None:
    command(judge)
    assert set(judge.entries) == {"slime"}


def test_a_launch_replays_saved_rollouts_and_holds_no_devices_itself(judge: Resolved) -> None:
    spec = command(judge)
    assert (spec.module, spec.devices_by, spec.torchrun) == ("run_slime", "job", False)
    assert spec.job["set"]["debug_train_only"] is True
    assert spec.job["set"]["load_debug_rollout_data"] == "/data/rollouts/{rollout_id}.pt"
    assert spec.job["set"]["load"] == "/ckpt"
    assert {"save", "use_wandb", "eval_interval"} <= set(spec.job["drop"])


def test_the_run_is_cut_and_the_schedule_is_not(judge: Resolved) -> None:
    found = command(judge).job["set"]
    assert found["num_rollout"] == 3  # 11 steps at 128·8/256 = 4 updates a rollout
    assert found["lr_decay_iters"] == 12000


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"end_weight_decay": 0.2}, "weight decay grows"),
        ({"num_rollout": None}, "num_rollout: is missing"),
        ({"custom_megatron_init_path": "mine.init"}, "attuner's probe is attached there"),
    ],
)
def test_what_cannot_be_cut_short_honestly_is_refused(judge: Resolved, change: dict[str, Value], why: str) -> None:
    judge.final = EffectiveConfig(arguments={k: v for k, v in {**FINAL, **change}.items() if v is not None}, env={}, facts={})
    with pytest.raises(UserError, match=why):
        command(judge)


def test_a_line_of_slimes_log_is_a_step() -> None:
    line = "[2026-08-21 10:00:00] model.py:914 - step 7: {'train/loss': 0.1, 'train/grad_norm': 0.2, 'train/step': 7}"
    assert re.search(STEP, line)
    assert not re.search(STEP, "step_time: {'perf/step_time': 1.0}")


def test_rollouts_are_frozen_by_their_bytes(judge: Resolved, tmp_path: Path) -> None:
    for i in range(2):
        (tmp_path / f"{i}.pt").write_bytes(bytes([i]))
    name = f"{tmp_path}/{{rollout_id}}.pt"
    first = SlimeStack(judge).freeze(campaign(name), tmp_path)
    (tmp_path / "1.pt").write_bytes(b"x")
    assert first.startswith(f"{name}@sha256:")
    assert SlimeStack(judge).freeze(campaign(name), tmp_path) != first
    with pytest.raises(UserError, match="not seen from here"):
        SlimeStack(judge).freeze(campaign("/nowhere/{rollout_id}.pt"), tmp_path)
    with pytest.raises(UserError, match=r"prepare\.steps"):
        SlimeStack(judge).freeze(campaign(name, prepare=Prepare(steps=2)), tmp_path)


def test_what_the_launch_itself_sets_is_told_as_judged(judge: Resolved, tmp_path: Path) -> None:
    told = {**FINAL, "num_rollout": 3, "debug_train_only": True, "load": "/ckpt", "lr": 0.5}
    (tmp_path / "job.json").write_text(json.dumps({"judged": FINAL}))
    (tmp_path / "config.json").write_text(json.dumps({"arguments": told, "env": {}}))
    found = SlimeStack(judge).read(RunFiles(folder=str(tmp_path), stamp=Stamp(outcome="ok"))).arguments
    assert found == {**FINAL, "lr": 0.5}


def test_updates_per_rollout_follow_from_the_rows() -> None:
    assert benchmark.steps_per_rollout(FINAL) == 4
    assert benchmark.steps_per_rollout({**FINAL, "num_steps_per_rollout": 2}) == 2


def test_an_image_without_slime_is_told_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    job = {"slime_source": str(tmp_path), "script": "train.py", "arguments": {}, "set": {}, "drop": [], "steps": 1}
    (tmp_path / "job.json").write_text(json.dumps(job))
    done = subprocess.run(
        [sys.executable, "-m", "attuner.runner.run_slime", str(tmp_path)], capture_output=True, text=True, timeout=60, check=False
    )
    failure = json.loads((tmp_path / "failure.rank0.json").read_text())
    assert done.returncode == 1
    assert failure["kind"] == "config"
    assert failure["message"].endswith("isn't installed in this image, and slime's train.py needs it")
