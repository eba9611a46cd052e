"""The estimate learns from a campaign's own trials: a truth made by hidden corrections is found again, and the band narrows."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from test_estimate_model import BASE, MOE, machine

from attuner.core.campaign import Campaign, Cluster, Device, Figure, LauncherSpec, ProposerSpec, StackSpec
from attuner.core.errors import Refused, UserError
from attuner.core.events import Event, History
from attuner.core.judgement import Calibration
from attuner.core.recipe import Recipe, Workload
from attuner.core.run import Launch, RankStep, StepBreakdown, StepRecord, Trial
from attuner.estimate.forecast import Forecaster
from attuner.estimate.gauss import cholesky, inverse, posterior, solve
from attuner.estimate.learning import NEUTRAL, Learnt, Observation, learn
from attuner.estimate.memory_learning import surely_above
from attuner.estimate.model import AT, NO_THETA, Theta, model_of
from attuner.estimate.shape import Layout

MACHINE = machine()
MODEL = model_of(MOE, MACHINE)
FULL = replace(BASE, recompute="full")
OTHERS = [replace(FULL, micro_batch=2), replace(FULL, tp=1, ep=8), replace(FULL, pp=2), replace(BASE, ep=8)]


def truth(**hidden: float) -> Theta:
    return tuple(hidden.get(name, 0.0) for name in AT)


def seen(layout: Layout, theta: Theta, *, parts: bool = True, mem: float = 1.0) -> Observation:
    told = MODEL.rank_parts(layout, 0, theta) if parts else {}
    peak = NEUTRAL.memory.peak(MODEL, layout)[0] * mem
    return Observation(layout=layout, step_s=MODEL.step(layout, theta).seconds, parts=told, peak_mem_gib=peak, stage=0)


def width(learnt: Learnt, layout: Layout) -> float:
    said = learnt.estimate(MODEL, layout)
    return math.log(said.step_high_s / said.step_low_s)


def test_linear_algebra_solves_what_it_should() -> None:
    a = [[4.0, 2.0, 0.6], [2.0, 5.0, 1.0], [0.6, 1.0, 3.0]]
    x = solve(cholesky(a), [1.0, -2.0, 0.5])
    assert [sum(r * v for r, v in zip(row, x, strict=True)) for row in a] == pytest.approx([1.0, -2.0, 0.5])
    inv = inverse(a)
    for i in range(3):
        for j in range(3):
            assert sum(a[i][k] * inv[k][j] for k in range(3)) == pytest.approx(float(i == j), abs=1e-12)
    # one unknown, prior 0 ± 2, seen as 3 ± 1: mean 3·4/5, variance 4/5
    mean, cov = posterior([[4.0]], [([1.0], 3.0, 1.0)])
    assert (mean[0], cov[0][0]) == pytest.approx((2.4, 0.8))


def test_without_observations_the_public_figures_stand() -> None:
    assert learn(MOE, MACHINE, []).theta == NO_THETA
    assert learn(MOE, MACHINE, []).estimate(MODEL, FULL) == NEUTRAL.estimate(MODEL, FULL)


def test_an_observed_layout_is_reproduced_and_every_band_narrows() -> None:
    hidden = truth(gemm=0.3, grouped=0.3, expert_near=0.5, backward=0.05)
    learnt = learn(MOE, MACHINE, [seen(FULL, hidden)])
    assert learnt.estimate(MODEL, FULL).step_s == pytest.approx(MODEL.step(FULL, hidden).seconds, rel=0.01)
    assert width(learnt, FULL) < 0.2 * width(NEUTRAL, FULL)
    for other in OTHERS:
        assert width(learnt, other) < width(NEUTRAL, other)


def test_a_breakdown_tells_what_others_will_take() -> None:
    hidden = truth(gemm=0.25, grouped=0.4, expert_near=0.6, pipeline=-0.4)
    with_parts, without = (learn(MOE, MACHINE, [seen(FULL, hidden, parts=p)]) for p in (True, False))
    errors: list[list[float]] = [[], [], []]
    for other in OTHERS:
        real = math.log(MODEL.step(other, hidden).seconds)
        for into, learnt in zip(errors, (NEUTRAL, without, with_parts), strict=True):
            into.append(abs(math.log(learnt.estimate(MODEL, other).step_s) - real))
    blind, step_only, told = (sum(e) / len(e) for e in errors)
    assert told < step_only < blind
    assert told < 0.05


def test_more_observations_narrow_further_and_gains_are_surer_than_times() -> None:
    hidden = truth(gemm=0.2, tensor_near=0.3)
    one = learn(MOE, MACHINE, [seen(FULL, hidden)])
    three = learn(MOE, MACHINE, [seen(x, hidden) for x in (FULL, *OTHERS[:2])])
    target = OTHERS[3]
    assert width(three, target) < width(one, target)
    gain, error = one.gain(MODEL, OTHERS[0], FULL)
    real = MODEL.step(FULL, hidden).seconds / MODEL.step(OTHERS[0], hidden).seconds - 1
    assert abs(gain - real) < error
    said = one.estimate(MODEL, OTHERS[0])
    assert error / (1 + gain) <= (said.step_high_s / said.step_s - 1) * 1.1
    assert one.gain(MODEL, FULL, FULL) == pytest.approx((0.0, 0.0), abs=1e-3)


def test_a_part_that_is_not_there_is_learnt_to_be_small() -> None:
    layout = replace(BASE, global_batch=256, micro_batch=1, seq_len=1024)
    assert MODEL.step(layout).parts["host"] > 0.05 * MODEL.step(layout).seconds
    parts = {**MODEL.rank_parts(layout, 0), "host": 0.0}
    observation = Observation(layout=layout, step_s=MODEL.step(layout).seconds, parts=parts, stage=0)
    assert learn(MOE, MACHINE, [observation]).theta[AT["host"]] < -0.1


def test_peaks_correct_memory_and_an_out_of_memory_trial_raises_it() -> None:
    before = NEUTRAL.memory.peak(MODEL, FULL)
    learnt = learn(MOE, MACHINE, [seen(FULL, NO_THETA, mem=1.06)])
    after = learnt.memory.peak(MODEL, FULL)
    assert after[0] == pytest.approx(1.06 * before[0], rel=0.01)
    assert after[2] - after[1] < before[2] - before[1]
    small = replace(MACHINE, mem_gib=before[0] * 1.05)
    failed = learn(MOE, small, [Observation(layout=FULL, outcome="oom")])
    raised = failed.memory.peak(model_of(MOE, small), FULL)
    assert raised[0] > 0.99 * before[0] * 1.05
    assert failed.memory.peak(model_of(MOE, small), OTHERS[0])[0] > NEUTRAL.memory.peak(MODEL, OTHERS[0])[0]


def test_surely_above_asks_for_three_cases_in_four() -> None:
    assert surely_above(100.0, 90.0, 95.0)
    assert not surely_above(100.0, 90.0, 97.0)


# a whole campaign's history

MODEL_ARGUMENTS = {
    **{"num_layers": 16, "hidden_size": 2048, "num_attention_heads": 16, "num_query_groups": 4, "ffn_hidden_size": 8192},
    **{"gated_linear_unit": True, "vocab_size": 32000, "num_experts": 16, "moe_router_topk": 2, "moe_ffn_hidden_size": 1024},
    **{"moe_shared_expert_intermediate_size": 1024, "moe_layer_freq": [0, *(1,) * 15], "use_distributed_optimizer": True},
    "bf16": True,
}
PEAK_GIB = 2.6
LAYOUT_ARGUMENTS = {
    **{"tensor_model_parallel_size": 2, "pipeline_model_parallel_size": 4, "expert_model_parallel_size": 4},
    **{"expert_tensor_parallel_size": 1, "micro_batch_size": 1, "recompute_granularity": "full"},
}


def campaign(*, figures: bool = True, mem_gib: float = 80.0) -> Campaign:
    values = {"peak_tflops": 1000.0, "mem_gb_s": 3000.0, "intra_gb_s": 400.0, "inter_gb_s": 50.0, "num_units": 132.0}
    cluster = Cluster(
        name="test",
        devices=64,
        devices_per_node=8,
        device=Device(kind="cuda", mem_gib=mem_gib),
        figures={n: Figure(value=v, source="made up for a test") for n, v in values.items()} if figures else {},
    )
    work = {"model": "m", "dataset": "d", "seq_len": 4096, "global_batch": 256, "precision": "bf16", "seed": 1, "steps": 4}
    return Campaign(
        name="test",
        workload=Workload(**work, warmup_steps=1, gpus=32, hardware="h"),  # type: ignore[arg-type]
        baseline=Recipe(stack="replay", arguments={**MODEL_ARGUMENTS, **LAYOUT_ARGUMENTS}),
        stack=StackSpec(name="replay", version="1"),
        launcher=LauncherSpec(name="replay", cluster=cluster),
        proposer=ProposerSpec(name="catalog"),
    )


def history(of: Campaign, *trials: tuple[Recipe, str, float]) -> History:
    records: list[tuple[str, str, object]] = []
    for i, (recipe, status, step_s) in enumerate(trials):
        launch = Launch(
            **{"id": f"l{i}", "kind": "calibrate" if not i else "search", "recipe": recipe.digest(), "purpose": "test"},
            **{"reserve_gpu_hours": 1.0, "time_limit_s": 60.0},
        )
        steps = [
            StepRecord(step=n, kind="scored", t=0.0, step_s=step_s, lm_loss=1.0, loss_tokens=1.0, tokens=1, peak_mem_gib=PEAK_GIB)
            for n in range(3)
        ]
        trial = Trial(launch_id=launch.id, attempt=1, status=status, gpu_hours=1.0, steps=steps if status == "ok" else [])  # type: ignore[arg-type]
        records += [("recipe", recipe.digest(), recipe), ("launch", launch.id, launch), ("trial", launch.id, trial)]
        if status == "ok":
            half = step_s / 2
            rank = RankStep(rank=0, step=3, step_s=step_s, compute_s=half, exposed_comm_s=half, host_s=0.0, idle_s=0.0)
            records.append(("breakdown", launch.id, StepBreakdown(launch_id=launch.id, rank_steps=[rank])))
    band = Calibration(
        **{"round": 1, "launches": ["l0"], "mean": 1.0, "sigma": 0.01, "band": 0.03, "busy": False},
        **{"launch_gpu_hours": 1.0, "step0_loss": 1.0},
    )
    records.append(("calibration", "1", band))
    events = [
        Event(seq=n, campaign_id="c", n=n, kind=k, key=key, at=0.0, fence=0, record=r.data(), prev="", hash="")  # type: ignore[attr-defined]
        for n, (k, key, r) in enumerate(records)
    ]
    assert of.name == "test"
    return History(events)


def test_a_forecaster_learns_from_the_history_and_says_so() -> None:
    here = campaign()
    blind = Forecaster.of(history(here), here)
    taught = Forecaster.of(history(here, (here.baseline, "ok", 20.0)), here)
    given = here.baseline.arguments
    assert taught.predict(given).step_s == pytest.approx(20.0, rel=0.02)
    assert taught.predict(given).peak_mem_gib == pytest.approx(PEAK_GIB, rel=0.02)
    assert blind.predict(given).step_s != pytest.approx(20.0, rel=0.1)
    lighter = here.baseline.changed({"recompute_granularity": None})
    gain, error = taught.gain(lighter.arguments, "l0")
    assert gain > 0.03
    assert error > 0
    forecast = taught.forecast("h1", lighter, lighter.arguments, "l0")
    assert (forecast.hypothesis, forecast.recipe, forecast.num_learnt, forecast.held) == ("h1", lighter.digest(), 1, False)
    assert (forecast.gain, forecast.gain_error) == (gain, error)


def test_what_surely_does_not_fit_or_cannot_lead_is_held_with_figures() -> None:
    here = campaign(mem_gib=4.0)
    taught = Forecaster.of(history(here, (here.baseline, "ok", 20.0)), here)
    heavy = here.baseline.changed({"recompute_granularity": None, "micro_batch_size": 4})
    assert "which has 4 GiB" in taught.surely_oom(heavy.arguments)
    assert taught.forecast("h", heavy, heavy.arguments, "l0").held
    assert taught.surely_oom(here.baseline.arguments) == ""
    wide = campaign()
    taught = Forecaster.of(history(wide, (wide.baseline, "ok", 20.0)), wide)
    slow = wide.baseline.changed({"pipeline_model_parallel_size": 8, "micro_batch_size": 16})
    said = taught.forecast("h", slow, slow.arguments, "l0")
    assert said.held
    assert "can't become leader" in said.why


def test_an_out_of_memory_trial_is_remembered() -> None:
    here = campaign(mem_gib=4.5)
    heavy = here.baseline.changed({"recompute_granularity": None})
    before = Forecaster.of(history(here, (here.baseline, "ok", 20.0)), here).predict(heavy.arguments)
    after = Forecaster.of(history(here, (here.baseline, "ok", 20.0), (heavy, "oom", 0.0)), here).predict(heavy.arguments)
    assert before.peak_mem_gib < 4.5
    assert after.peak_mem_gib > before.peak_mem_gib


def test_what_cannot_be_estimated_says_why() -> None:
    bare = campaign(figures=False)
    with pytest.raises(UserError, match="peak_tflops"):
        Forecaster.of(history(bare), bare)
    here = campaign()
    taught = Forecaster.of(history(here, (here.baseline, "ok", 20.0)), here)
    with pytest.raises(Refused, match="world size 32 does not divide"):
        taught.predict({**here.baseline.arguments, "tensor_model_parallel_size": 3})
    with pytest.raises(UserError, match="another model"):
        taught.predict({**here.baseline.arguments, "hidden_size": 4096})
