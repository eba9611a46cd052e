"""Stack `automodel`: the tree with its declared defaults, the layout's formulas, the benchmark's wrapping, what a run left."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from attuner.config import load_recipe
from attuner.core.base import Value
from attuner.core.campaign import Campaign, Cluster, Device, LauncherSpec, Prepare, ProposerSpec, StackSpec
from attuner.core.errors import Refused, UserError
from attuner.core.recipe import EffectiveConfig, Recipe, Workload, differences
from attuner.ports import RunFiles, Stamp
from attuner.runner import run_automodel
from attuner.stacks.automodel.declared import FIELDS
from attuner.stacks.automodel.defaults import fields_of
from attuner.stacks.automodel.stack import AutomodelStack, wrapped

ROOT = Path(__file__).resolve().parents[2]
RECIPE = load_recipe(ROOT / "configs" / "recipes" / "automodel" / "llama-tiny-cpu.yaml")
CHECKOUT = os.environ.get("ATTUNER_AUTOMODEL_SRC", "")


def campaign(recipe: Recipe = RECIPE, gpus: int = 2, **more: Any) -> Campaign:
    work = {
        "model": "m",
        "dataset": "mock",
        "seq_len": 128,
        "global_batch": 8,
        "precision": "fp32",
        "seed": 1234,
        "hardware": "cpu",
    }
    return Campaign(
        name="t",
        workload=Workload.model_validate({**work, "steps": 6, "warmup_steps": 2, "gpus": gpus}),
        baseline=recipe,
        stack=StackSpec(name="automodel", version="?"),
        launcher=LauncherSpec(name="ray_jobs", cluster=Cluster(name="c", devices=64, devices_per_node=8, device=Device())),
        proposer=ProposerSpec(name="scripted"),
        source_file="t.yaml",
        **more,
    )


def resolve(change: dict[str, Value] | None = None, *, gpus: int = 2) -> EffectiveConfig:
    recipe = RECIPE.changed(change or {})
    return AutomodelStack().resolve(recipe, campaign(recipe, gpus))


def changes(change: dict[str, Value], *, gpus: int = 2) -> dict[str, tuple[Value, Value]]:
    found = differences(resolve(gpus=gpus), resolve(change, gpus=gpus))
    return {c.key: (c.before, c.after) for c in found}


def test_stating_a_declared_default_changes_nothing() -> None:
    stated: dict[str, Value] = {
        "distributed.defer_fsdp_grad_sync": True,
        "distributed.pp_size": 1,
        "distributed.dp_size": "none",
        "clip_grad_norm.max_norm": 1.0,
        "step_scheduler.gc_every_steps": None,
    }
    assert changes(stated) == {}


def test_one_dtype_has_one_spelling() -> None:
    assert changes({"distributed.mp_policy.param_dtype": "torch.float32", "model.torch_dtype": "fp32"}) == {}


def test_what_automodel_makes_of_a_backend_is_final() -> None:
    written: dict[str, Value] = {
        **{"model.backend.rope_fusion": True, "model.backend.experts": "gmm", "model.backend.dispatcher": "torch"},
    }
    found = resolve(written).arguments
    held = {name: found[f"model.backend.{name}"] for name in ("rope_fusion", "experts", "dispatcher")}
    assert held == {"rope_fusion": False, "experts": "torch_mm", "dispatcher": "torch"}


def test_what_follows_from_the_layout_is_a_fact() -> None:
    found = resolve(gpus=8, change={"distributed.tp_size": 2, "step_scheduler.local_batch_size": 1}).facts
    assert (found["data_parallel_size"], found["num_microbatches"]) == (4, 2)
    assert (found["rows_per_update"], found["tokens_per_update"]) == (8, 1024)


@pytest.mark.parametrize(
    ("change", "gpus", "formula"),
    [
        ({"distributed.tp_size": 3}, 8, r"world size 8 does not divide by tp·pp·cp = 3·1·1 = 3"),
        ({"step_scheduler.local_batch_size": 3}, 2, r"global_batch_size 8 does not divide by local_batch_size·dp = 3·2 = 6"),
        ({"distributed.dp_size": 4}, 2, r"dp·tp·pp·cp = 4·1·1·1 = 4, the job has 2 devices"),
        ({"distributed.ep_size": 3}, 2, r"dp·cp·tp 2 does not divide by ep_size = 3"),
        ({"distributed.pp_size": 2}, 2, r"needs a distributed.pipeline section"),
        (
            {"distributed.pp_size": 2, "distributed.pipeline.pp_microbatch_size": 2},
            2,
            r"local_batch_size / pp_microbatch_size = 2/2 = 1 is less than pp_size 2",
        ),
        ({"distributed.strategy": "ddp", "distributed.tp_size": 2}, 2, r"strategy ddp does not support it"),
        ({"distributed.overlap_grad_reduce": True}, 2, r"knows no such field of strategy fsdp2"),
        ({"step_scheduler.global_batchsize": 8}, 2, r"did you mean step_scheduler.global_batch_size\?"),
    ],
)
def test_what_automodel_would_refuse_is_refused_with_the_formula(change: dict[str, Value], gpus: int, formula: str) -> None:
    with pytest.raises(Refused, match=formula):
        resolve(change, gpus=gpus)


def test_a_launch_saves_and_reports_nothing_and_leaves_the_schedule_alone() -> None:
    given: dict[str, Value] = {**RECIPE.arguments, "wandb.project": "p", "validation_dataset.split": "v"}
    found = wrapped(given, load="/ckpt/step_10")
    assert found["step_scheduler.max_steps"] == 1000
    assert found["checkpoint.restore_from"] == "/ckpt/step_10"
    assert not [name for name in found if name.startswith(("wandb", "validation", "recipe"))]


def test_the_job_is_the_recipes_tree_under_torchrun() -> None:
    spec = AutomodelStack().command(RECIPE, campaign(), kind="search", profile_steps=1, inputs={"steps": 6, "load": None})
    assert (spec.module, spec.torchrun, spec.devices_by, spec.gpus) == ("run_automodel", True, "driver", 2)
    assert spec.job["tree"]["optimizer"] == {
        "_target_": "torch.optim.AdamW",
        "lr": 0.001,
        "betas": [0.9, 0.95],
        "weight_decay": 0.1,
    }
    assert spec.job["tree"]["checkpoint"]["enabled"] is False
    assert spec.job["tokens_per_update"] == 1024
    json.dumps(spec.job, allow_nan=False)


def test_a_loop_that_trains_otherwise_is_not_launched() -> None:
    recipe = RECIPE.changed({"recipe": "BenchmarkingRecipeForNextTokenPrediction"})
    with pytest.raises(UserError, match="only TrainFinetuneRecipeForNextTokenPrediction"):
        AutomodelStack().command(recipe, campaign(recipe), kind="search", profile_steps=0, inputs={"steps": 6})


def test_a_checkpoint_is_yours_to_make() -> None:
    with pytest.raises(UserError, match=r"prepare\.steps"):
        AutomodelStack().freeze(campaign(prepare=Prepare(steps=5)), Path("/nowhere"))


def test_mock_rows_are_frozen_by_what_makes_them(tmp_path: Path) -> None:
    stack = AutomodelStack()
    first = stack.freeze(campaign(), tmp_path)
    other = stack.freeze(campaign(RECIPE.changed({"dataset.seq_len": 64})), tmp_path)
    assert first.startswith("mock@sha256:")
    assert first != other


def write_run(folder: Path, told: dict[str, Value]) -> RunFiles:
    spec = AutomodelStack().command(RECIPE, campaign(), kind="search", profile_steps=0, inputs={"steps": 6, "load": "/c"})
    (folder / "job.json").write_text(json.dumps(spec.job))
    (folder / "config.json").write_text(json.dumps({"arguments": {**spec.job["judged"], **told}, "env": {}}))
    (folder / "done.json").write_text("{}")
    return RunFiles(folder=str(folder), stamp=Stamp(outcome="ok"))


def test_what_the_launch_itself_sets_is_told_as_judged_and_nothing_else(tmp_path: Path) -> None:
    files = write_run(tmp_path, {"checkpoint.enabled": True, "checkpoint.restore_from": "/c", "optimizer.lr": 0.5})
    judged = AutomodelStack().resolve(RECIPE, campaign()).arguments
    told = AutomodelStack().read(files).arguments
    assert {k for k in told.keys() | judged.keys() if told.get(k) != judged.get(k)} == {"optimizer.lr"}


def test_a_run_never_has_a_fingerprint_and_says_why(tmp_path: Path) -> None:
    files = write_run(tmp_path, {})
    (tmp_path / "fingerprint.json").write_text("{}")
    result = AutomodelStack().read(files)
    assert result.fingerprint is None
    assert result.unseen.startswith("not available (automodel)")


def test_a_small_number_stays_a_number_in_yaml() -> None:
    import yaml

    tree = {"lr": 1e-05, "eps": 2.5e-8, "big": 1e22, "text": "1e-05", "list": [1e-06, -3e-07]}
    assert yaml.safe_load(run_automodel.yaml_text(tree)) == tree


@pytest.mark.skipif(not CHECKOUT, reason="ATTUNER_AUTOMODEL_SRC names no AutoModel checkout")
def test_the_table_of_defaults_is_what_the_checkout_declares() -> None:
    assert fields_of(CHECKOUT) == FIELDS
