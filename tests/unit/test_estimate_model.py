"""The estimate's arithmetic: parts add up, more recompute holds less and takes longer, groups that cross nodes cost more."""

from __future__ import annotations

from dataclasses import replace

import pytest

from attuner.core.campaign import Cluster, Device, Figure
from attuner.core.errors import UserError
from attuner.estimate.hardware import Hardware, busiest
from attuner.estimate.learning import NEUTRAL
from attuner.estimate.memory import stage_memory
from attuner.estimate.model import AT, NO_THETA, STEP_PARTS, Model, estimate
from attuner.estimate.network import Group, all_to_all_s, gather_s
from attuner.estimate.shape import Layout, Shape

MOE = Shape(
    **{"num_layers": 16, "hidden": 2048, "heads": 16, "kv_groups": 4, "ffn": 8192, "vocab": 32000, "gated": True},
    **{"num_experts": 16, "topk": 2, "moe_ffn": 1024, "shared_ffn": 1024, "moe_layers": (0, *(1,) * 15)},
)
BASE = Layout(gpus=32, global_batch=256, seq_len=4096, tp=2, pp=4, ep=4)


def machine(**change: float) -> Hardware:
    figures = {
        **{"peak_tflops": 1000.0, "mem_gb_s": 3000.0, "intra_gb_s": 400.0, "inter_gb_s": 50.0, "num_units": 132, "mem_gib": 80.0},
        **change,
    }
    cluster = Cluster(
        name="test",
        devices=64,
        devices_per_node=8,
        device=Device(kind="cuda"),
        figures={name: Figure(value=value, source="made up for a test") for name, value in figures.items()},
    )
    return Hardware.of(cluster)


LAYOUTS = [
    BASE,
    replace(BASE, recompute="full"),
    replace(BASE, recompute="selective", recompute_modules=("moe", "layernorm")),
    replace(BASE, pp=2, vp=2, ep=8),
    replace(BASE, tp=1, etp=2, dispatcher="allgather", overlap_grad_reduce=True),
    replace(BASE, cp=2, offload=1.0, distributed_optimizer=False),
    replace(BASE, attention="unfused", micro_batch=2, first_layers=3, last_layers=5),
]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_parts_add_up_to_the_step_under_any_correction(layout: Layout) -> None:
    model = Model(MOE, machine())
    pushed = tuple(0.3 * (-1) ** i for i in range(len(NO_THETA)))
    for theta in (NO_THETA, pushed):
        step = model.step(layout, theta)
        assert set(step.parts) == set(STEP_PARTS)
        assert sum(step.parts.values()) == pytest.approx(step.seconds, rel=1e-12)
        assert min(step.parts.values()) >= 0
        for stage in (None, 0, layout.pp - 1):
            seen = model.rank_parts(layout, stage, theta)
            whole = sum(s for n, s in seen.items() if n not in ("forward", "backward"))
            assert whole == pytest.approx(step.seconds, rel=1e-12)
            assert seen["forward"] + seen["backward"] == pytest.approx(seen["compute"])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_slopes_are_those_of_the_step(layout: Layout) -> None:
    model, h = Model(MOE, machine()), 1e-6
    base = model.step(layout)
    for name, at in AT.items():
        moved = tuple(h if i == at else 0.0 for i in range(len(NO_THETA)))
        numeric = (model.step(layout, moved).seconds - base.seconds) / h
        assert base.slope[at] == pytest.approx(numeric, abs=2e-4 * base.seconds), name


def test_more_recompute_holds_less_and_takes_longer() -> None:
    kinds = [BASE, replace(BASE, recompute="selective", recompute_modules=("moe", "mlp")), replace(BASE, recompute="full")]
    said = [estimate(MOE, layout, machine()) for layout in kinds]
    held = [max(s["activations"] + s["moe"] for s in e.stages) for e in said]
    assert held[0] > held[1] > held[2]
    assert said[0].step_s < said[1].step_s < said[2].step_s
    assert said[0].parts["recompute"] == 0 < said[1].parts["recompute"] < said[2].parts["recompute"]


def test_a_sharded_optimizer_holds_less_and_offload_holds_nothing() -> None:
    whole, shared, away = (
        stage_memory(MOE, replace(BASE, distributed_optimizer=d, offload=o), 0, range(4))["optimizer"]
        for d, o in ((False, 0.0), (True, 0.0), (True, 1.0))
    )
    assert whole > 1.9 * shared > 0
    assert away == 0


def test_memory_parts_grow_with_what_they_hold() -> None:
    one, two = (stage_memory(MOE, replace(BASE, micro_batch=b), 3, range(12, 16)) for b in (1, 2))
    assert two["activations"] == pytest.approx(2 * one["activations"])
    assert two["logits"] == pytest.approx(2 * one["logits"])
    assert two["weights"] == one["weights"]
    wide = stage_memory(MOE, replace(BASE, ep=8), 3, range(12, 16))
    assert wide["weights"] < one["weights"]


def test_bubble_shrinks_with_micro_batches_and_virtual_stages() -> None:
    few, many = (estimate(MOE, replace(BASE, global_batch=b), machine()) for b in (64, 1024))
    assert few.parts["bubble"] / few.step_s > many.parts["bubble"] / many.step_s
    flat, woven = (estimate(MOE, replace(BASE, pp=2, vp=v), machine()) for v in (1, 4))
    assert woven.parts["bubble"] < 0.5 * flat.parts["bubble"]


def test_a_group_that_crosses_nodes_costs_more() -> None:
    near, far = Group.of(8, 1, 8), Group.of(8, 2, 8)
    assert (near.far, far.far, far.near) == (False, True, 4)
    assert gather_s(far, 1e9, machine()) > gather_s(near, 1e9, machine()) > gather_s(Group.of(1, 1, 8), 1e9, machine()) == 0
    assert all_to_all_s(far, 1e9, machine()) > 2 * all_to_all_s(near, 1e9, machine())
    inside, across = (estimate(MOE, replace(BASE, pp=1, tp=1, ep=e), machine()) for e in (8, 16))
    assert across.parts["comm:expert"] > 2 * inside.parts["comm:expert"]
    slow = estimate(MOE, replace(BASE, pp=1, tp=1, ep=16), machine(inter_gb_s=25.0))
    assert slow.parts["comm:expert"] == pytest.approx(2 * across.parts["comm:expert"], rel=0.05)  # but for latency


def test_shared_ports_are_shared_by_chance() -> None:
    assert busiest(1, 4) == 1
    assert busiest(2, 4) == pytest.approx(1.25)
    assert busiest(4, 4) == pytest.approx(2.125)
    own, shared = machine(), machine(num_links=4)
    assert own.out_bytes_s(2) == pytest.approx(2 * own.out_bytes_s(1))
    assert shared.out_bytes_s(2) == pytest.approx(2 * own.out_bytes_s(1) / 2.125)
    assert shared.out_bytes_s(8) == own.out_bytes_s(8)


def test_larger_products_reach_more_of_the_peak() -> None:
    def used(shape: Shape) -> float:
        said = estimate(shape, Layout(gpus=1, global_batch=1, seq_len=4096), machine())
        return shape.flops_per_token(4096) * 4096 / said.parts["compute"]

    small = Shape(num_layers=2, hidden=512, heads=8, ffn=2048, vocab=1024)
    large = Shape(num_layers=2, hidden=8192, heads=64, ffn=32768, vocab=1024)
    assert 0.1e15 < used(small) < used(large) < 0.82e15


def test_a_band_lies_around_the_estimate() -> None:
    said = estimate(MOE, BASE, machine(), NEUTRAL)
    assert said.step_low_s < said.step_s < said.step_high_s
    assert said.mem_low_gib < said.peak_mem_gib < said.mem_high_gib <= 1.15 * said.peak_mem_gib
    assert said.tokens_per_s_per_gpu == pytest.approx(256 * 4096 / said.step_s / 32)


@pytest.mark.parametrize("name", ["peak_tflops", "mem_gb_s", "intra_gb_s"])
def test_a_missing_figure_is_named(name: str) -> None:
    figures = {n: Figure(value=1.0, source="x") for n in ("peak_tflops", "mem_gb_s", "intra_gb_s") if n != name}
    with pytest.raises(UserError, match=f"figures.{name} is missing"):
        Hardware.of(Cluster(name="c", devices=8, devices_per_node=8, figures=figures))


def test_an_unknown_figure_and_a_network_without_figure_are_named() -> None:
    three = {n: Figure(value=1.0, source="x") for n in ("peak_tflops", "mem_gb_s", "intra_gb_s")}
    with pytest.raises(UserError, match=r"figures\.speed is unknown"):
        Hardware.of(Cluster(name="c", devices=8, devices_per_node=8, figures={**three, "speed": Figure(value=1.0, source="x")}))
    with pytest.raises(UserError, match="inter_gb_s is missing"):
        Hardware.of(Cluster(name="c", devices=16, devices_per_node=8, figures=three))
