"""The stack `megatron` judges and does not launch; what nobody states is in no record."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from attuner.core.campaign import Campaign, Cluster, Device, LauncherSpec, ProposerSpec, StackSpec
from attuner.core.errors import Refused, UserError
from attuner.core.recipe import Recipe, Workload
from attuner.ports import RunFiles, Stamp
from attuner.settings import load_settings
from attuner.stacks.megatron.arguments import capability, entry_of, final_config, question, versions_of
from attuner.stacks.megatron.stack import MegatronStack


def campaign(*, hardware: str = "H100", env: dict[str, str] | None = None, **stack: Any) -> Campaign:
    work = {"model": "glm", "dataset": "d", "seq_len": 8, "global_batch": 8, "precision": "bfloat16", "seed": 1}
    cluster = Cluster(name="c", devices=64, devices_per_node=8, device=Device(kind="cuda"), env=env or {})
    return Campaign(
        name="t",
        workload=Workload.model_validate({**work, "steps": 2, "warmup_steps": 1, "gpus": 64, "hardware": hardware}),
        baseline=Recipe(stack="megatron"),
        stack=StackSpec.model_validate({"name": "megatron", "version": "0.16.1", **stack}),
        launcher=LauncherSpec(name="ray_jobs", cluster=cluster),
        proposer=ProposerSpec(name="scripted"),
        source_file="c.yaml",
    )


def answer(**more: Any) -> dict[str, Any]:
    return {"ok": True, "arguments": {"lr": 1.0}, "env": {}, "facts": {"initial_weights": "random"}, **more}


def test_a_spec_says_only_what_was_stated() -> None:
    plain = StackSpec(name="mcore", version="0.16.1")
    assert plain.data() == {"name": "mcore", "version": "0.16.1"}
    stated = StackSpec(name="megatron", version="0.16.1", commit="1dcf0daf", patches=["megatron.patch"])
    assert stated.data() == {"name": "megatron", "version": "0.16.1", "commit": "1dcf0daf", "patches": ["megatron.patch"]}
    assert StackSpec.model_validate(stated.data()) == stated


@pytest.mark.parametrize("name", ["H100", "8xH100", "NVIDIA H100 80GB HBM3", "h200"])
def test_hardware_has_a_capability(name: str) -> None:
    assert capability(name) == (9, 0)


def test_hardware_that_is_not_known_has_none() -> None:
    assert (capability("A100-SXM4-80GB"), capability("GB200x72"), capability("laptop")) == ((8, 0), (10, 0), None)


def test_a_question_merges_the_launchers_environment_and_the_recipes() -> None:
    asked = question(Recipe(stack="megatron", env={"B": "2"}), campaign(env={"A": "1", "B": "1"}, torch="2.9.0"))
    assert asked["env"] == {"A": "1", "B": "2"}
    assert (asked["world_size"], asked["capability"], asked["torch"], asked["entry"]) == (64, [9, 0], "2.9.0", "pretrain_gpt.py")


@pytest.mark.parametrize("arguments", [{"actor_num_nodes": 8}, {"argv": ["--actor-num-nodes", "8"]}, {"--actor-num-nodes": 1}])
def test_slimes_command_line_is_recognised(arguments: dict[str, Any]) -> None:
    assert entry_of(StackSpec(name="megatron", version=""), Recipe(stack="megatron", arguments=arguments)) == "slime"


def test_versions_that_nobody_knows_are_left_out() -> None:
    found = versions_of(campaign(hardware="?"), {"megatron_core": "0.16.1", "python": "3.11.7", "commit": ""})
    assert found == {"megatron_core": "0.16.1", "python": "3.11.7", "model": "glm", "capability": "9.0"}


def test_patches_are_part_of_the_commit() -> None:
    found = versions_of(campaign(commit="1dcf", patches=["megatron.patch"]), {"commit": "1dcf0daf+edited"})
    assert found["megatron_lm_commit"] == "1dcf0daf+megatron.patch"


def test_a_checkout_of_another_commit_is_an_error() -> None:
    with pytest.raises(UserError, match=r"stack.commit: 1dcf, but .* is at beef"):
        versions_of(campaign(commit="1dcf"), {"commit": "beef"})


def test_an_answer_becomes_final_values_or_a_refusal() -> None:
    final = final_config(answer(), campaign(), {})
    assert final.facts == {"initial_weights": "random", "device_kind": "cuda"}
    with pytest.raises(Refused, match="does not divide"):
        final_config({"ok": False, "error": "60 does not divide by 8"}, campaign(), {})
    with pytest.raises(Refused, match="no plain form"):
        final_config(answer(arguments={"lr": [[1]]}), campaign(), {})


def test_without_a_checkout_it_says_what_to_set() -> None:
    with pytest.raises(UserError, match="set ATTUNER_MEGATRON_SRC"):
        MegatronStack().resolve(Recipe(stack="megatron"), campaign())


def test_the_settings_fill_in_this_machines_checkouts() -> None:
    settings = load_settings({"ATTUNER_MEGATRON_SRC": "/m", "ATTUNER_SLIME_SRC": "/s"})
    bare = StackSpec(name="megatron", version="?")
    assert (settings.sourced(bare).source, settings.sourced(bare).slime_source) == ("/m", "/s")
    assert settings.sourced(bare.model_copy(update={"source": "/own"})).source == "/own"
    assert settings.sourced(bare, source="/asked").source == "/asked"
    assert settings.sourced(StackSpec(name="mcore", version="1")) == StackSpec(name="mcore", version="1")


def test_a_recipe_without_a_checkout_is_refused_before_anything_is_launched() -> None:
    inputs = {"steps": 2, "load": None, "save": None}
    with pytest.raises(UserError, match=r"c\.yaml: stack\.source: names no Megatron-LM checkout"):
        MegatronStack().command(Recipe(stack="megatron"), campaign(), kind="search", profile_steps=0, inputs=inputs)


@pytest.mark.parametrize(
    ("inputs", "stack", "words"),
    [
        ({"component": ["attention", "a", 1, 2]}, {}, "no component tests"),
        ({}, {"entry": "slime"}, "launched by stack slime"),
    ],
)
def test_what_it_can_not_launch_is_said_in_one_line(inputs: dict[str, Any], stack: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        MegatronStack().command(Recipe(stack="megatron"), campaign(**stack), kind="check", profile_steps=0, inputs=inputs)


@pytest.mark.parametrize(
    ("arguments", "twin"),
    [
        ({"bf16": True, "transformer_impl": "local"}, {"transformer_impl": "local"}),
        ({"bf16": True}, None),
        ({"transformer_impl": "local"}, None),
    ],
)
def test_the_twin_in_fp32_exists_where_attention_has_one(arguments: dict[str, Any], twin: dict[str, Any] | None) -> None:
    found = MegatronStack().in_fp32(Recipe(stack="megatron", arguments=arguments))
    assert (found.arguments if found else None) == twin


def test_resolving_in_the_image_takes_one_cpu_and_no_device(tmp_path: Path) -> None:
    stack = MegatronStack()
    job = stack.resolve_job([Recipe(stack="megatron", arguments={"lr": 1})], campaign(), source="/opt/Megatron-LM")
    assert (job.resource, job.gpus, job.torchrun, job.module) == ("CPU", 1, False, "resolve_megatron")
    assert job.job["requests"][0]["arguments"] == {"lr": 1}
    told = {"versions": {"megatron_core": "0.16.1"}, "answers": [answer(), {"ok": False, "error": "no"}]}
    (tmp_path / "resolved.json").write_text(json.dumps(told))
    first, second = stack.resolved(RunFiles(folder=str(tmp_path), stamp=Stamp()), campaign())
    assert not isinstance(first, Refused)
    assert first.versions["megatron_core"] == "0.16.1"
    assert isinstance(second, Refused)


def test_a_job_in_the_image_that_failed_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no checkout there"):
        MegatronStack().resolved(RunFiles(folder=str(tmp_path), stamp=Stamp(detail="no checkout there")), campaign())
