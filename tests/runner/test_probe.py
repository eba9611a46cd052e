"""Real torchrun runs with the probe: every layout leaves the same fingerprint, and the run itself isn't touched."""

from collections.abc import Callable
from typing import Any

import pytest

from attuner.core.fingerprint import Fingerprint, FirstStep

from .conftest import Launched
from .test_mcore_training import LAYOUTS, PP2, TP2

Launch = Callable[..., Launched]
RANK = "tests.runner.probe_rank"
WATCHED = {"steps": 3, "warmup_steps": 2}
NORMS = ("qk_norm", "layer_norm", "final_norm")
TIED = {"untie_embeddings_and_output_weights": False}
SEEN: dict[str, dict[str, Any]] = {
    **{name: LAYOUTS[name] for name in ("dp2", "ep2", "tp2_sp_recompute_offload", "tp2_sp_ep2_etp1", "pp2_uneven", "pp2_vpp2")},
    "ep2_distributed": {**LAYOUTS["dp2_distributed"], **LAYOUTS["ep2"]},
    "dp2_offload": {"optimizer_cpu_offload": True, "optimizer_offload_fraction": 1.0},
    "micro_batch_2_without_aux": {"micro_batch_size": 2, "moe_router_load_balancing_type": "none", "moe_aux_loss_coeff": 0.0},
}


def fingerprint(done: Launched) -> Fingerprint:
    assert done.status == 0, done.log[-3000:]
    return Fingerprint.model_validate(done.json("fingerprint.json"))


def numbers(done: Launched) -> list[tuple[Any, ...]]:
    return [(step["lm_loss"], step["grad_norm"], step["aux"], step["loss_tokens"]) for step in done.steps]


def near(one: float | None, other: float | None, limit: float, scale: float | None = None) -> bool:
    assert one is not None
    assert other is not None
    return abs(one - other) <= limit * abs(scale if scale is not None else other)


def agree(step: FirstStep, expected: FirstStep) -> None:
    """Hold what third-look measurements hold: exact facts exactly, the rest within fp32's noise."""
    for exact in ("batch", "groups", "census", "grad_replicas", "weight_replicas"):
        assert getattr(step, exact) == getattr(expected, exact), exact
    assert (step.grad_replicas, step.weight_replicas) == ([], [])
    assert near(step.loss, expected.loss, 1e-6)
    assert set(step.families) == set(expected.families)
    for name, found in step.families.items():
        wanted = expected.families[name]
        assert (found.numel, found.stale) == (wanted.numel, 0), name
        assert near(found.grad_norm, wanted.grad_norm, 2e-6), name
        assert near(found.grad_projection, wanted.grad_projection, 5e-6, wanted.grad_norm), name
        assert near(found.weight_norm, wanted.weight_norm, 1e-6), name
        assert near(found.weight_projection, wanted.weight_projection, 1e-5, wanted.weight_norm), name
        assert near(found.update_norm, wanted.update_norm, 1e-5), name
        if name not in NORMS:
            assert near(found.lr, 1e-3, 1e-5), name
            assert near(found.weight_decay, 0.1, 2e-3), name
            assert found.unexplained is not None
            assert found.unexplained < 1e-4, name
    assert step.clip is not None
    assert step.clip.norm is not None
    assert near(step.clip.used_norm, step.clip.norm, 1e-6)
    coefficient = min(1.0, 1.0 / (step.clip.norm + 1e-6))
    assert near(step.clip.coefficient_min, coefficient, 1e-6)
    assert near(step.clip.coefficient_max, coefficient, 1e-6)


@pytest.fixture(scope="session")
def watched_alone(launch: Launch, checkpoint: tuple[str, Launched]) -> Fingerprint:
    """One rank from the checkpoint: what every layout must repeat."""
    return fingerprint(launch(1, load=checkpoint[0], **WATCHED))


@pytest.mark.slow
def test_the_probe_changes_no_number_and_leaves_nothing_behind(
    launch: Launch, checkpoint: tuple[str, Launched], watched_alone: Fingerprint
) -> None:
    layout, hooks = LAYOUTS["dp2_distributed"], [f"{RANK}:looks", f"{RANK}:fails", "no.such:module"]
    done = launch(2, layout, module=RANK, test="restored", load=checkpoint[0], probe_hooks=hooks, **WATCHED)
    plain = launch(2, layout, load=checkpoint[0], probe=False, **WATCHED)
    assert numbers(done) == numbers(plain)
    assert not (plain.folder / "fingerprint.json").exists()
    assert not (done.folder / "probe").exists()
    fp = fingerprint(done)
    assert [step.step for step in fp.steps] == [0, 1]
    for step, expected, line in zip(fp.steps, watched_alone.steps, done.steps, strict=False):
        agree(step, expected)
        assert step.loss == line["lm_loss"]
        assert step.aux == line["aux"]
        assert step.replicas_compared > 0
    assert (fp.data_parallel_gradients, fp.layout["dp"], fp.vocab_size) == ("sharded", 2, 256)
    assert fp.declared == watched_alone.declared
    assert set(fp.missing) == {f"hook {RANK}:fails", "hook no.such:module"}
    assert fp.hooks["step1.gradient_there"] == 1.0
    assert fp.hooks["step0.kind"] == "ChainedOptimizer"
    assert set(fp.not_finite) == {"hooks.step0.nan", "hooks.step1.nan"}
    assert {"attach", "step0", "step1"} <= set(fp.seconds)
    for rank in range(2):
        report = done.json(f"restored{rank}.json")
        assert {"optimizer", "0.module", "0.module.output_layer", "0.module.decoder.layers.0.mlp.router"} <= set(report["hooked"])
        assert report["left"] == []


@pytest.mark.slow
def test_only_warm_up_is_watched(launch: Launch, checkpoint: tuple[str, Launched]) -> None:
    assert not (checkpoint[1].folder / "fingerprint.json").exists()  # it had no warm-up
    assert [step.step for step in fingerprint(launch(1, load=checkpoint[0])).steps] == [0]


@pytest.mark.slow
@pytest.mark.parametrize(("when", "kept", "where"), [("broken", [0], "step1"), ("broken_attach", [], "attach")])
def test_a_probe_that_fails_on_one_rank_leaves_the_run_alone(
    launch: Launch, checkpoint: tuple[str, Launched], when: str, kept: list[int], where: str
) -> None:
    done = launch(2, PP2, module=RANK, test=when, load=checkpoint[0], **WATCHED)
    fp = fingerprint(done)
    assert [step.step for step in fp.steps] == kept
    assert fp.missing["probe"] == f"rank 1, {where}: RuntimeError: planted"
    assert numbers(done) == numbers(launch(2, PP2, load=checkpoint[0], probe=False, **WATCHED))


@pytest.mark.slow
@pytest.mark.parametrize("name", SEEN)
def test_every_layout_leaves_the_same_fingerprint(
    launch: Launch, checkpoint: tuple[str, Launched], watched_alone: Fingerprint, name: str
) -> None:
    fp = fingerprint(launch(2, SEEN[name], load=checkpoint[0], **WATCHED))
    assert fp.missing == {}
    assert fp.not_finite == []
    for step, expected in zip(fp.steps, watched_alone.steps, strict=True):
        if name.startswith("micro_batch"):
            assert step.batch == expected.batch
        else:
            agree(step, expected)


@pytest.mark.slow
def test_tied_weights_are_counted_once_and_their_copies_compared(launch: Launch) -> None:
    alone, staged = (fingerprint(launch(ranks, {**TIED, **layout}, **WATCHED)) for ranks, layout in ((1, {}), (2, PP2)))
    assert "output" not in alone.steps[0].families
    assert staged.steps[0].replicas_compared == 2
    assert staged.steps[0].families["embedding"].numel == alone.steps[0].families["embedding"].numel
    assert (staged.steps[1].grad_replicas, staged.steps[1].weight_replicas) == ([], [])


@pytest.mark.slow
def test_experts_that_megatron_leaves_unreduced_are_found(launch: Launch, checkpoint: tuple[str, Launched]) -> None:
    """megatron-core 0.16.1 with TP 2, ETP 1 and EP 1 reduces experts' gradients over the data-parallel ranks only, so the
    tensor ranks' experts, which are replicas, see half of the tokens each and drift apart."""
    fp = fingerprint(launch(2, {**TP2, "expert_tensor_parallel_size": 1}, load=checkpoint[0], **WATCHED))
    assert fp.steps[0].grad_replicas == ["expert_fc1", "expert_fc2"]
    assert fp.steps[0].weight_replicas == []
    assert fp.steps[1].weight_replicas == ["expert_fc1", "expert_fc2"]
