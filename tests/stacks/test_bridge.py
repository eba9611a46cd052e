"""Stack `bridge`: final values from a dump, what is unknown, formulas, the job, and what is said where Bridge is missing."""

from __future__ import annotations

import dataclasses
import enum
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from attuner.config import load_recipe, load_register
from attuner.core.base import Value
from attuner.core.campaign import Campaign, Cluster, Device, LauncherSpec, ProposerSpec, StackSpec
from attuner.core.errors import Refused, UserError
from attuner.core.recipe import EffectiveConfig, Recipe, Workload, differences
from attuner.policy.gate import config_look
from attuner.runner import bridge_config
from attuner.stacks.bridge.stack import BridgeStack, wrapping

ROOT = Path(__file__).resolve().parents[2]
DUMP = ROOT / "tests" / "stacks" / "bridge_dump.yaml"
RECIPE = load_recipe(ROOT / "configs" / "recipes" / "bridge" / "llama3-8b.yaml")


def campaign(recipe: Recipe = RECIPE, *, gpus: int = 16, source: str = str(DUMP)) -> Campaign:
    work = {"model": "m", "dataset": "d", "seq_len": 8192, "global_batch": 512, "precision": "bfloat16", "seed": 1234}
    cluster = Cluster(name="c", devices=64, devices_per_node=8, resource="GPU", device=Device(kind="cuda"))
    return Campaign(
        name="t",
        workload=Workload.model_validate({**work, "hardware": "8xH100", "steps": 10, "warmup_steps": 2, "gpus": gpus}),
        baseline=recipe,
        stack=StackSpec(name="bridge", version="?", source=source),
        launcher=LauncherSpec(name="ray_jobs", cluster=cluster),
        proposer=ProposerSpec(name="scripted"),
        source_file="t.yaml",
    )


def resolve(change: dict[str, Value] | None = None, *, gpus: int = 16, source: str = str(DUMP)) -> EffectiveConfig:
    recipe = RECIPE.changed(change or {})
    return BridgeStack().resolve(recipe, campaign(recipe, gpus=gpus, source=source))


def changes(change: dict[str, Value]) -> dict[str, tuple[Value, Value]]:
    return {c.key: (c.before, c.after) for c in differences(resolve(), resolve(change))}


def test_a_dump_gives_final_values_environment_and_facts() -> None:
    found = resolve()
    assert found.arguments["model.activation_func"] == "torch.nn.functional.silu"
    assert found.arguments["recipe"] == "llama3_8b_pretrain_config"
    assert (found.arguments["model.attention_backend"], found.arguments["model.params_dtype"]) == ("auto", "bfloat16")
    assert found.env == {"NCCL_NVLS_ENABLE": "0", "CUDA_DEVICE_MAX_CONNECTIONS": "1"}
    assert (found.facts["data_parallel_size"], found.facts["num_microbatches"]) == (4, 128)
    assert found.facts["tokens_per_update"] == 512 * 8192
    assert found.facts["unresolved"] == []


def test_a_tensor_size_that_pads_the_vocabulary_otherwise_is_another_model() -> None:
    padding: dict[str, Value] = {"model.should_pad_vocab": True, "model.vocab_size": 200064}
    sizes = {tp: resolve({**padding, "model.tensor_model_parallel_size": tp}).facts["padded_vocab_size"] for tp in (1, 2, 4, 8)}
    assert sizes == {1: 200064, 2: 200192, 4: 200192, 8: 200704}


def test_the_layers_of_every_chunk_are_a_fact() -> None:
    assert resolve({"model.pipeline_model_parallel_size": 2}).facts["layers_per_stage"] == [16, 16]
    virtual: dict[str, Value] = {"model.pipeline_model_parallel_size": 2, "model.virtual_pipeline_model_parallel_size": 4}
    assert resolve(virtual).facts["layers_per_stage"] == [4] * 8
    uneven: dict[str, Value] = {"model.pipeline_model_parallel_size": 4, "model.num_layers_in_first_pipeline_stage": 5}
    assert resolve({**uneven, "model.num_layers": 32}).facts["layers_per_stage"] == [5, 9, 9, 9]


def test_masked_documents_make_loss_masks_uneven() -> None:
    assert resolve().facts["loss_masks"] == "even"
    assert resolve({"dataset.eod_mask_loss": True}).facts["loss_masks"] == "uneven"


def test_mixed_precision_overwrites_what_it_names() -> None:
    assert changes({"ddp.grad_reduce_in_fp32": False}) == {}
    assert set(changes({"mixed_precision.grad_reduce_in_fp32": False})) == {
        "mixed_precision.grad_reduce_in_fp32",
        "ddp.grad_reduce_in_fp32",
        "fact:gradient_accumulation_dtype",
        "fact:unresolved",
    }


@pytest.mark.parametrize(
    "change",
    [
        {"comm_overlap.tp_comm_overlap": True},
        {"model.pipeline_model_parallel_size": 2},
        {"model.cuda_graph_impl": "transformer_engine"},
        {"env_vars.NCCL_ALGO": "Ring"},
    ],
)
def test_what_bridge_would_derive_is_never_admitted_unseen(change: dict[str, Value]) -> None:
    final = resolve(change)
    verdict = config_look(
        load_register(ROOT / "rules", "bridge"), resolve(), final, subject="h1", recipe="r", tests=[], scope="s"
    )
    assert final.facts["unresolved"] == [f"{k}={str(v).lower() if isinstance(v, bool) else v}" for k, v in change.items()]
    assert verdict.decision != "admit"
    assert [f.decision for f in verdict.findings if f.key == "fact:unresolved"] == ["review"]


@pytest.mark.parametrize(
    ("change", "wanted"),
    [
        ({"model.tensor_model_parallel_size": 3}, r"world size 16 does not divide by tp·pp·cp = 3·1·2 = 6"),
        ({"train.micro_batch_size": 3}, r"global_batch_size 512 does not divide by micro_batch_size·dp = 3·4 = 12"),
        ({"model.pipeline_model_parallel_size": 4, "model.num_layers": 30}, r"model.num_layers 30 does not divide by pp·vpp"),
        ({"model.tensor_parallel": 2}, r"no such field: did you mean model.tensor_model_parallel_size\?"),
        ({"train.micro_batch_size": "two"}, r"must be a whole number"),
    ],
)
def test_what_bridge_would_refuse_is_refused(change: dict[str, Value], wanted: str) -> None:
    with pytest.raises(Refused, match=wanted):
        resolve(change)


def test_a_dump_can_be_judged_and_not_launched() -> None:
    with pytest.raises(UserError, match="can be judged, not launched"):
        BridgeStack().command(RECIPE, campaign(), kind="search", profile_steps=1, inputs={"steps": 10})


def test_a_file_that_is_no_dump_is_said_to_be_none(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text("model: {a: 1}")
    with pytest.raises(UserError, match="no dump of Bridge's ConfigContainer: it lacks"):
        resolve(source=str(tmp_path / "x.yaml"))


def test_a_launch_leaves_by_exit_interval_and_lets_the_schedule_be() -> None:
    found = wrapping({"steps": 10, "load": "/c", "save": None}, profile_steps=2)
    assert found["train.exit_interval"] == 12
    assert not [name for name in found if name.startswith(("scheduler.", "optimizer.", "train.train_iters", "dataset."))]
    assert (found["checkpoint.load"], found["checkpoint.finetune"], found["checkpoint.save"]) == ("/c", True, None)


def test_overrides_are_told_in_hydras_grammar() -> None:
    found = [bridge_config.override(k, v) for k, v in {"a": None, "b": True, "c": [1, "x"], "d": "p q", "e": 1e-05}.items()]
    assert found == ["a=null", "b=true", 'c=[1,"x"]', 'd="p q"', "e=1e-05"]


def run(module: str, *words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", f"attuner.runner.{module}", *words],
        capture_output=True,
        text=True,
        cwd=folder,
        timeout=120,
        check=False,
    )


def test_the_resolver_says_what_is_missing_where_bridge_is_not_installed(tmp_path: Path) -> None:
    done = run("resolve_bridge", "--serve", folder=tmp_path)
    assert json.loads(done.stdout) == {
        "ready": False,
        "error": "stack bridge: megatron.bridge isn't installed here, and no checkout of it is named",
    }


def test_a_launch_without_bridge_fails_with_one_line_that_names_it(tmp_path: Path) -> None:
    job: dict[str, Any] = {"world_size": 1, "device": {"kind": "cuda"}, "arguments": {}, "set": {}, "steps": 1, "warmup_steps": 0}
    (tmp_path / "job.json").write_text(json.dumps(job))
    done = run("run_bridge", str(tmp_path), folder=tmp_path)
    failure = json.loads((tmp_path / "failure.rank0.json").read_text())
    assert done.returncode == 1
    assert (failure["kind"], failure["phase"]) == ("config", "imports")
    assert failure["message"] == "stack bridge: megatron.bridge isn't installed here, and no checkout of it is named"


class Kind(enum.Enum):
    flash = 1


@dataclasses.dataclass
class Part:
    _target_: str = "a.Part"
    attention_backend: Kind = Kind.flash
    lr: float = 1.0
    ranks: tuple[int, ...] = (0,)
    layers: tuple[int, ...] = (1, 2)
    nothing: None = None


class Container:
    """Stands for Bridge's: all that `flat` asks of one."""

    def to_dict(self) -> dict[str, Any]:
        part = dataclasses.asdict(Part())
        function = {"_target_": "torch.nn.functional.silu", "_call_": False}
        return {"_target_": "x", "env_vars": {"NCCL_NVLS_ENABLE": 0}, "model": {**part, "activation_func": function}}


def test_a_live_container_is_spelled_as_megatrons_rules_compare() -> None:
    values, env = bridge_config.flat(Container())
    assert values == {
        **{"model._target_": "a.Part", "model.activation_func": "torch.nn.functional.silu", "model.attention_backend": "flash"},
        **{"model.lr": 1, "model.ranks": 0, "model.layers": [1, 2]},
    }
    assert env == {"NCCL_NVLS_ENABLE": "0"}


def test_the_dump_has_the_shape_that_bridge_writes() -> None:
    assert yaml.safe_load(DUMP.read_text())["_target_"] == "megatron.bridge.training.config.ConfigContainer"
