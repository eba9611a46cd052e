"""Real torchrun runs of the trainer on CPUs: layouts agree, failures are told, the guard guards."""

import json
import math
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from .conftest import ARGUMENTS, ROOT, Launched, start

Launch = Callable[..., Launched]
TP2 = {"tensor_model_parallel_size": 2, "sequence_parallel": True}
PP2 = {"pipeline_model_parallel_size": 2}
OFFLOAD = {"optimizer_cpu_offload": True, "optimizer_offload_fraction": 1.0}
FULL = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
OVERLAP = {"overlap_grad_reduce": True, "bucket_size": 20000}
LAYOUTS: dict[str, dict[str, Any]] = {
    "dp2": {},
    "ep2": {"expert_model_parallel_size": 2},
    "ep2_allgather": {"expert_model_parallel_size": 2, "moe_token_dispatcher_type": "allgather"},
    "ep2_sdpa": {"expert_model_parallel_size": 2, "attention_implementation": "sdpa"},
    "tp2_sp_recompute_offload": {**TP2, **FULL, **OFFLOAD},
    "tp2_sp_ep2_etp1": {**TP2, "expert_model_parallel_size": 2, "expert_tensor_parallel_size": 1},
    "pp2": PP2,
    "pp2_uneven": {**PP2, "num_layers_in_first_pipeline_stage": 1},
    "pp2_vpp2": {**PP2, "virtual_pipeline_model_parallel_size": 2},
    "pp2_vpp2_overlap": {
        **PP2,
        "virtual_pipeline_model_parallel_size": 2,
        "overlap_p2p_comm": True,
        "deallocate_pipeline_outputs": True,
    },
    "dp2_overlap": OVERLAP,
    "dp2_distributed": {**OVERLAP, "use_distributed_optimizer": True, "overlap_param_gather": True},
}


@pytest.fixture(scope="session")
def alone(launch: Launch, checkpoint: tuple[str, Launched]) -> Launched:
    """One rank from the checkpoint: what every layout must repeat."""
    done = launch(1, load=checkpoint[0])
    assert done.status == 0, done.log[-3000:]
    return done


def agree(done: Launched, reference: Launched) -> None:
    assert done.status == 0, done.log[-3000:]
    for step, expected in zip(done.steps, reference.steps, strict=True):
        assert step["lm_loss"] == pytest.approx(expected["lm_loss"], rel=2e-6)
        assert step["grad_norm"] == pytest.approx(expected["grad_norm"], rel=2e-6)
        assert step["aux"] == pytest.approx(expected["aux"], rel=2e-6)
        assert step["loss_tokens"] == expected["loss_tokens"] == step["tokens"]


def test_tensor_parallel_run_repeats_one_rank_and_leaves_its_records(
    launch: Launch, checkpoint: tuple[str, Launched], alone: Launched
) -> None:
    done = launch(2, {**TP2, **FULL}, load=checkpoint[0], profile_steps=1)
    assert [step["kind"] for step in done.steps] == ["warmup", "scored", "profiled"]
    done.steps.pop()
    agree(done, alone)
    config = done.json("config.json")
    assert config["facts"]["num_microbatches"] == 4
    assert config["parameters"] == alone.json("config.json")["parameters"]
    assert len(done.steps[0]["rank_step_s"]) == 2
    assert done.steps[0]["peak_mem_gib"] > 0
    assert {"imports", "init", "build", "load", "steps", "trace"} <= set(done.json("done.json")["seconds"])
    for rank in range(2):
        events = done.json(f"traces/rank{rank}.json")["traceEvents"]
        assert sum(str(event.get("name", "")).startswith("ProfilerStep#2") for event in events) >= 1
    request = {"id": 1, "arguments": {**ARGUMENTS, **TP2, **FULL}, "world_size": 2, "device_kind": "cpu", "steps": 2}
    resolved = subprocess.run(
        [sys.executable, "-m", "attuner.runner.resolve_mcore"],
        input=json.dumps(request) + "\n",
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=120,
        check=True,
    ).stdout.splitlines()
    assert json.loads(resolved[0])["ready"]
    answer = json.loads(resolved[1])
    assert answer["ok"]
    assert answer["arguments"] == config["arguments"]
    assert answer["facts"] == config["facts"]


@pytest.mark.slow
@pytest.mark.parametrize("name", LAYOUTS)
def test_layouts_and_levers_repeat_one_rank(launch: Launch, checkpoint: tuple[str, Launched], alone: Launched, name: str) -> None:
    agree(launch(2, LAYOUTS[name], load=checkpoint[0]), alone)


@pytest.mark.slow
def test_checkpoint_written_by_an_interleaved_pipeline_is_read_by_one_rank(
    launch: Launch, checkpoint: tuple[str, Launched], alone: Launched, tmp_path: Any
) -> None:
    saved = str(tmp_path / "saved")
    layout = LAYOUTS["pp2_vpp2"]
    assert launch(2, layout, load=checkpoint[0], save=saved).status == 0
    onward = launch(1, load=saved, first_row=8)
    unbroken = launch(2, layout, load=saved, first_row=8)
    agree(unbroken, onward)
    assert onward.steps[0]["lm_loss"] != alone.steps[0]["lm_loss"]


def test_memory_guard_ends_a_run_that_needs_more(launch: Launch) -> None:
    done = launch(1, device={"kind": "cpu", "mem_gib": 0.02, "threads": 1})
    assert done.status != 0
    failure = done.failure()
    assert failure["kind"] == "oom"
    assert "device memory limit 0.02 GiB exceeded" in failure["message"]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "told"), [("crash", "crash"), ("oom", "oom")])
def test_rehearsed_failures_are_told_by_the_last_rank(launch: Launch, kind: str, told: str) -> None:
    limit = 0.3 if kind == "oom" else None
    device = {"kind": "cpu", "mem_gib": limit, "threads": 1}
    done = launch(2, inject={"kind": kind, "step": 1}, device=device)
    assert done.status != 0
    assert len(done.steps) == 1
    failure = done.json("failure.rank1.json")
    assert failure["kind"] == told
    assert failure["step"] == 1


@pytest.mark.slow
def test_unlimited_device_runs_out_of_what_the_machine_has(launch: Launch) -> None:
    done = launch(1, inject={"kind": "oom", "step": 1})
    assert done.failure()["kind"] == "oom"


@pytest.mark.slow
def test_loss_that_is_no_number_is_written_and_training_goes_on(launch: Launch) -> None:
    done = launch(1, inject={"kind": "nan", "step": 1}, steps=3)
    assert done.status == 0, done.log[-3000:]
    assert math.isfinite(done.steps[0]["lm_loss"])
    assert [step["lm_loss"] for step in done.steps[1:]] == ["nan", "nan"]


@pytest.mark.slow
def test_changed_rows_and_bad_layouts_are_config_failures(launch: Launch, rows: Any) -> None:
    done = launch(2, {"global_batch_size": 3})
    assert done.failure()["kind"] == "config"
    assert "does not divide" in done.failure()["message"]
    done = launch(1, first_row=255)
    assert "rows 255 to" in done.failure()["message"]


SWAPS = [
    ("attention", "local", "sdpa", {}, True),
    ("dispatcher", "allgather", "alltoall", {}, True),
    # 0.16.1's fused cross entropy casts its gradient to bf16: another gradient in fp32, the same in bf16
    ("cross_entropy", "False", "True", {}, False),
    ("cross_entropy", "False", "True", {"params_dtype": "bf16"}, True),
]


@pytest.mark.slow
@pytest.mark.parametrize(("component", "old", "new", "changed", "passes"), SWAPS)
def test_components_compare(tmp_path: Any, component: str, old: str, new: str, changed: dict[str, Any], passes: bool) -> None:
    job = {
        "component": component,
        "old": old,
        "new": new,
        "arguments": {**ARGUMENTS, "expert_model_parallel_size": 2, **changed},
        "world_size": 2,
        "device": {"kind": "cpu", "mem_gib": None, "threads": 1},
    }
    done = start(tmp_path / "component", job, 2, "component_mcore")
    assert done.status == 0, done.log[-3000:]
    result = done.json("component.json")
    assert result["passed"] == passes, result["why"]
    assert 0 < result["forward_error_new"] < 1e-5
