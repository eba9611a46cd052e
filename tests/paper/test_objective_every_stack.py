"""Global batch, learning rate and its schedule, data, precision, seed, model and loss: a change of any is refused by the first
look on every stack, with that stack's own resolver and its own names.

Stacks `megatron` and `slime` need the checkouts that ATTUNER_MEGATRON_SRC and ATTUNER_SLIME_SRC name; Bridge is resolved from a
dumped configuration, AutoModel from its declared defaults.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from attuner.config import load_recipe, load_register
from attuner.core.base import Value
from attuner.core.campaign import Campaign, Cluster, Device, LauncherSpec, Prepare, ProposerSpec, StackSpec
from attuner.core.errors import Refused
from attuner.core.judgement import Verdict
from attuner.core.recipe import EffectiveConfig, Recipe, Workload
from attuner.policy.gate import config_look
from attuner.policy.register import Register
from attuner.ports import Stack
from attuner.wiring import stack_of

ROOT = Path(__file__).resolve().parents[2]
RECIPES = ROOT / "configs" / "recipes"
MEGATRON, SLIME = os.environ.get("ATTUNER_MEGATRON_SRC", ""), os.environ.get("ATTUNER_SLIME_SRC", "")
DUMP = str(ROOT / "tests" / "stacks" / "bridge_dump.yaml")


@dataclass(frozen=True)
class Case:
    """A stack's example: its recipe, devices, and what changes each part of the objective in its names."""

    stack: str
    recipe: str
    gpus: int
    refused: dict[str, dict[str, Value]]
    admitted: dict[str, Value]
    kind: str = "cuda"
    spec: dict[str, Any] = field(default_factory=dict)
    needs: tuple[str, ...] = ()


CASES = [
    Case(
        "mcore",
        "mcore/tiny-moe-carried-over",
        2,
        {
            "global batch": {"global_batch_size": 16},
            "learning rate": {"lr": 0.01},
            "data": {"seq_length": 64},
            "precision": {"bf16": True, "params_dtype": "bf16"},
            "gradients' precision": {"grad_reduce_in_fp32": False, "bf16": True},
            "seed": {"seed": 1},
            "model": {"num_layers": 4},
            "router": {"moe_router_topk": 3},
            "optimizer": {"adam_beta2": 0.999},
            "clipping": {"clip_grad": 0.1},
        },
        {"recompute_granularity": None, "recompute_method": None, "recompute_num_layers": None},
        kind="cpu",
    ),
    Case(
        "megatron",
        "megatron/llama3-8b",
        64,
        {
            "global batch": {"global_batch_size": 512},
            "learning rate": {"lr": 3.0e-3},
            "schedule": {"lr_decay_iters": 500},
            "length of the run": {"train_iters": 500, "lr_decay_iters": None},
            "data": {"mock_data": False, "data_path": ["/d/other"]},
            "row length": {"seq_length": 4096},
            "precision": {"bf16": False, "fp16": True},
            "products' precision": {"fp8_format": "hybrid"},
            "seed": {"seed": 1},
            "model": {"num_layers": 16},
            "optimizer": {"adam_beta2": 0.999},
            "clipping": {"clip_grad": 0.1},
        },
        {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1},
        spec={"source": MEGATRON, "torch": "2.9.0", "transformer_engine": "2.9.0"},
        needs=(MEGATRON,),
    ),
    Case(
        "slime",
        "slime/glm4.5-355b",
        64,
        {
            "global batch": {"rollout_batch_size": 64},
            "updates per rollout": {"num_steps_per_rollout": 2},
            "learning rate": {"lr": 1.0e-4},
            "length of the run": {"num_rollout": 30},
            "data": {"prompt_data": "/d/other.jsonl"},
            "sampling": {"rollout_temperature": 0.5},
            "precision": {"attention_softmax_in_fp32": False},
            "gradients' precision": {"argv": ["--grad-reduce-in-bf16"]},
            "seed": {"seed": 7},
            "model": {"moe_router_topk": 4},
            "loss": {"eps_clip": 0.4},
            "advantages": {"advantage_estimator": "grpo"},
            "optimizer": {"adam_beta2": 0.999},
        },
        {"moe_permute_fusion": None, "recompute_num_layers": 2},
        spec={"source": MEGATRON, "slime_source": SLIME, "torch": "2.9.0", "transformer_engine": "2.9.0"},
        needs=(MEGATRON, SLIME),
    ),
    Case(
        "bridge",
        "bridge/llama3-8b",
        16,
        {
            "global batch": {"train.global_batch_size": 256},
            "learning rate": {"optimizer.lr": 0.003},
            "schedule": {"scheduler.lr_decay_iters": 50},
            "length of the run": {"train.train_iters": 50, "scheduler.lr_decay_iters": None},
            "data": {"dataset.data_path": ["/data/other_text_document"]},
            "row length": {"dataset.seq_length": 4096, "model.seq_length": 4096},
            "precision": {"mixed_precision": "bf16_with_fp8_current_scaling_mixed"},
            "products' precision": {"mixed_precision.fp8": "hybrid"},
            "gradients' precision": {"mixed_precision.grad_reduce_in_fp32": False},
            "seed": {"rng.seed": 1},
            "order of rows": {"dataset.random_seed": 1},
            "model": {"model.num_layers": 16},
            "loss": {"model.cross_entropy_fusion_impl": "te"},
            "optimizer": {"optimizer.adam_beta2": 0.999},
            "clipping": {"optimizer.clip_grad": 0.1},
            "the whole perf recipe": {"recipe": "llama3_8b_pretrain_8gpu_h100_bf16_config"},
        },
        {"model.recompute_granularity": "full", "model.recompute_method": "uniform", "model.recompute_num_layers": 1},
        spec={"source": DUMP},
    ),
    Case(
        "automodel",
        "automodel/llama-tiny-cpu",
        2,
        {
            "global batch": {"step_scheduler.global_batch_size": 16},
            "learning rate": {"optimizer.lr": 0.01},
            "schedule": {"lr_scheduler.lr_decay_steps": 50},
            "length of the run": {"step_scheduler.max_steps": 50},
            "data": {"dataset._target_": "nemo_automodel.components.datasets.llm.nanogpt_dataset.NanogptDataset"},
            "row length": {"dataset.seq_len": 64},
            "packing": {"packed_sequence.packed_sequence_size": 1024},
            "precision": {"distributed.mp_policy.param_dtype": "bfloat16"},
            "gradients' precision": {"distributed.mp_policy.reduce_dtype": "bf16"},
            "weights' precision": {"model.torch_dtype": "bfloat16"},
            "strategy": {"distributed.strategy": "megatron_fsdp"},
            "seed": {"seed": 1},
            "model": {"model.config.num_hidden_layers": 4},
            "loss": {"loss_fn.fp32_upcast": False},
            "optimizer": {"optimizer.betas": [0.9, 0.999]},
            "clipping": {"clip_grad_norm.max_norm": 0.1},
            "loop": {"recipe": "BenchmarkingRecipeForNextTokenPrediction"},
            "experts' norm": {"model.backend.experts": "te", "distributed.ep_size": 2},
        },
        {"distributed.activation_checkpointing": True},
        kind="cpu",
    ),
]


@dataclass(frozen=True)
class Judge:
    """One stack with its resolved baseline."""

    case: Case
    stack: Stack
    campaign: Campaign
    register: Register
    base: EffectiveConfig

    def verdict(self, change: dict[str, Value]) -> Verdict:
        """Return the first look at the baseline with one change; what can't be built is refused as the gate does."""
        candidate = self.campaign.baseline.changed(dict(change))
        try:
            final = self.stack.resolve(candidate, self.campaign)
        except Refused as error:
            pytest.fail(f"the change can't be built, so the register isn't asked: {error}")
        return config_look(
            self.register, self.base, final, subject="h1", recipe=candidate.digest(), tests=[], scope="scope of nothing"
        )


def campaign_of(case: Case) -> Campaign:
    """Return a campaign around a case's recipe, as `attuner gate` makes it."""
    recipe = load_recipe(RECIPES / f"{case.recipe}.yaml")
    cluster = Cluster(name="c", devices=4096, devices_per_node=8, device=Device.model_validate({"kind": case.kind}))
    work = {"model": "m", "dataset": "d", "seq_len": 1, "global_batch": 1, "precision": "?", "seed": 1, "hardware": "8xH100"}
    return Campaign(
        name="t",
        workload=Workload.model_validate({**work, "steps": 4, "warmup_steps": 2, "gpus": case.gpus}),
        baseline=Recipe(stack=case.stack, arguments=recipe.arguments, env=recipe.env),
        stack=StackSpec.model_validate({"name": case.stack, "version": "?", **case.spec}),
        launcher=LauncherSpec(name="ray_jobs", cluster=cluster),
        proposer=ProposerSpec(name="scripted"),
        prepare=Prepare(checkpoint="/ckpt"),
        source_file="t.yaml",
    )


@pytest.fixture(scope="module", params=CASES, ids=lambda c: c.stack)
def judge(request: pytest.FixtureRequest) -> Iterator[Judge]:
    case: Case = request.param
    if not all(case.needs or ("-",)):
        pytest.skip(f"stack {case.stack}: set ATTUNER_MEGATRON_SRC and, for slime, ATTUNER_SLIME_SRC")
    campaign = campaign_of(case)
    stack = stack_of(campaign)
    try:
        base = stack.resolve(campaign.baseline, campaign)
        yield Judge(case, stack, campaign, load_register(ROOT / "rules", case.stack), base)
    finally:
        stack.close()


def test_every_change_of_the_objective_is_refused(judge: Judge) -> None:
    found = {name: judge.verdict(change) for name, change in judge.case.refused.items()}
    assert {name: v.decision for name, v in found.items() if v.decision != "refuse"} == {}
    assert [name for name, v in found.items() if not any(f.decision == "refuse" and f.source for f in v.findings)] == []


def test_what_only_places_the_work_is_not_refused(judge: Judge) -> None:
    verdict = judge.verdict(judge.case.admitted)
    assert [f.line() for f in verdict.findings if f.decision == "refuse"] == []
    assert verdict.findings != []


def test_every_stack_that_can_be_named_is_judged_here() -> None:
    from attuner.wiring import STACKS

    assert {c.stack for c in CASES} == set(STACKS) - {"replay"}


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.stack)
def test_the_global_batch_learning_rate_data_and_precision_are_among_the_cases(case: Case) -> None:
    assert {"global batch", "learning rate", "data", "precision"} <= set(case.refused)
