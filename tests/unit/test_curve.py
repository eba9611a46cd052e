"""Laws of the curve: the bound of each step, and a trend whose false alarms stay below the stated rate though steps correlate.

The simulations have fixed seeds. Runs differ by what real ones differ by: noise from step to step, a random walk (rounding
that grows), and an offset that a whole run keeps; Student's t over runs does not mind which.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest
from looks import blind, evidence, forward, limits, objections, steps

from attuner.core.judgement import Finding
from attuner.core.run import Evidence
from attuner.policy.curve import ALPHA, Curves, curve_look, threshold

STEPS = 30
MEAN = [6.0 * math.exp(-0.02 * t) for t in range(STEPS)]
Noise = Callable[[random.Random], list[float]]


def run(label: str, losses: list[float]) -> Evidence:
    return blind(label, steps(tuple(losses)), precision="bf16")


def reference(*losses: list[float]) -> list[Evidence]:
    return [run(f"l{n:02d}#1", x) for n, x in enumerate(losses, 1)]


def found(candidate: list[float], *replicates: list[float], excused: str = "") -> dict[str, Finding]:
    runs = reference(*replicates or [MEAN])
    return {f.key: f for f in curve_look(runs, run("l07#1", candidate), limits=limits(), excused=excused)}


def white(draw: random.Random) -> list[float]:
    return [draw.gauss(0.0, 0.003) for _ in range(STEPS)]


def walk(draw: random.Random) -> list[float]:
    out, x = [], 0.0
    for _ in range(STEPS):
        x += draw.gauss(0.0, 0.001)
        out.append(x)
    return out


def offset(draw: random.Random) -> list[float]:
    x = draw.gauss(0.0, 0.004)
    return [x + draw.gauss(0.0, 0.0005) for _ in range(STEPS)]


def play(noise: Noise, draw: random.Random) -> list[float]:
    return [m * (1 + e) for m, e in zip(MEAN, noise(draw), strict=True)]


def alarms(noise: Noise, *, trials: int, replicates: int, floor: float) -> tuple[int, int]:
    """Count trends said of healthy candidates: by the trend, and by a sign test over steps at the same rate."""
    draw, ours, naive = random.Random(20261130), 0, 0
    for _ in range(trials):
        curves = Curves(list(range(STEPS)), [play(noise, draw) for _ in range(replicates)], play(noise, draw))
        ours += abs(curves.drift(curves.candidate)) > threshold(curves, floor)
        above = sum(c > m for c, m in zip(curves.candidate, curves.mean, strict=True))
        naive += _binomial(above) < ALPHA
    return ours, naive


def _binomial(above: int) -> float:
    tail = min(above, STEPS - above)
    return 2 * sum(math.comb(STEPS, k) for k in range(tail + 1)) / 2.0**STEPS


@pytest.mark.parametrize("noise", [white, walk, offset])
@pytest.mark.parametrize("replicates", [3, 5])
def test_false_alarms_stay_at_the_stated_rate_however_steps_correlate(noise: Noise, replicates: int) -> None:
    trials = 3000
    ours, _ = alarms(noise, trials=trials, replicates=replicates, floor=0.0)
    # mean 3 at the stated rate; 11 or more would have a chance of 1 in 3,000
    assert ours <= 10


def test_a_sign_test_over_steps_would_alarm_at_a_third_of_healthy_runs_and_more() -> None:
    _, naive = alarms(walk, trials=1000, replicates=5, floor=0.0)
    assert naive > 300


def test_below_the_floor_nothing_alarms_whatever_the_replicates_say() -> None:
    # replicates of one layout are bitwise equal here: their spread is 0, and any other layout is outside it
    drifting = [m * (1 + 9e-4) for m in MEAN]
    assert found(drifting, *[MEAN] * 5)["curve trend"].decision == "admit"
    assert found([m * (1 + 3e-3) for m in MEAN], *[MEAN] * 5)["curve trend"].decision == "review"


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("noise", [white, walk])
def test_a_rate_ten_times_too_high_or_too_low_is_a_trend(noise: Noise, sign: int) -> None:
    """Training ten times as fast (or slow) moves each step's loss by several percent of what it has gained so far."""
    draw, said = random.Random(7), 0
    for _ in range(200):
        replicates = [play(noise, draw) for _ in range(5)]
        pace = 10.0 if sign > 0 else 0.1
        faster = [6.0 * math.exp(-0.02 * t * pace) for t in range(STEPS)]
        candidate = [x * (1 + e) for x, e in zip(faster, noise(draw), strict=True)]
        told = found(candidate, *replicates)
        said += told["curve trend"].decision != "admit" or told["curve"].decision == "refuse"
    assert said == 200


def test_a_small_steady_difference_is_a_trend_on_a_quiet_machine_and_noise_of_that_size_is_not() -> None:
    draw = random.Random(11)
    quiet = [[m * (1 + draw.gauss(0.0, 2e-4)) for m in MEAN] for _ in range(5)]
    assert found([m * 1.004 for m in MEAN], *quiet)["curve trend"].decision == "review"
    assert found([m * (1 + 0.004 * (-1) ** t) for t, m in enumerate(MEAN)], *quiet)["curve trend"].decision == "admit"


def test_a_trend_names_drift_threshold_and_false_alarm_rate() -> None:
    told = found([m * 1.01 for m in MEAN], *[MEAN] * 5)["curve trend"]
    assert told.decision == "review"
    assert "+1.0e-02" in told.reason
    assert "5 baseline runs" in told.reason
    assert "0.1%" in told.reason
    assert not told.check  # a check launch sees the first steps only


# ------------------------------------------------------------------------------------------------- each step


@pytest.mark.parametrize(("off", "decision"), [(0.0499, "admit"), (0.0501, "refuse"), (-0.0499, "admit"), (-0.0501, "refuse")])
def test_no_step_is_further_off_than_five_percent(off: float, decision: str) -> None:
    for at in (1, 17, STEPS - 1):
        losses = [m * (1 + off) if t == at else m for t, m in enumerate(MEAN)]
        told = found(losses)["curve"]
        assert told.decision == decision
        assert f"step {at}" in told.reason


def test_where_replicates_spread_wider_than_that_three_times_their_spread_holds() -> None:
    wide = [[m * (1 + x) for m in MEAN] for x in (-0.03, 0.0, 0.03)]  # standard deviation 0.03
    assert found([m * 1.089 for m in MEAN], *wide)["curve"].decision == "admit"
    assert found([m * 1.091 for m in MEAN], *wide)["curve"].decision == "refuse"


def test_a_loss_that_is_no_number_is_refused() -> None:
    assert found([math.nan if t == 9 else m for t, m in enumerate(MEAN)])["curve"].decision == "refuse"


# ------------------------------------------------------------------------------------------------- too flat, too short


def test_a_curve_too_flat_to_tell_is_for_a_person_unless_the_third_look_saw_the_update() -> None:
    flat = [5.0 - 1e-7 * t for t in range(STEPS)]
    told = found(flat, flat)["curve trend"]
    assert (told.decision, "too flat to tell" in told.reason, bool(told.todo)) == ("review", True, True)
    assert found(flat, flat, excused="the third look saw the update itself")["curve trend"].decision == "admit"


def test_a_curve_too_short_to_tell_says_so() -> None:
    told = found(MEAN[:4], MEAN[:4])["curve trend"]
    assert told.decision == "review"
    assert "too short to tell: only 3 steps" in told.reason


def test_flatness_excuses_no_drift() -> None:
    flat = [5.0] * STEPS
    assert found([5.1] * STEPS, flat, excused="the third look saw it")["curve trend"].decision == "review"


def test_the_third_look_excuses_a_flat_curve_only_if_it_saw_the_update() -> None:
    flat = steps((2.93,) * 6)
    saw = evidence(lambda data: data.update(lines=flat))
    assert forward(saw, saw.model_copy(update={"label": "l01#1"})).decision == "admit"
    assert "curve trend" in objections(forward(blind(lines=flat), blind("l01#1", flat)))


# ------------------------------------------------------------------------------------------------- other lengths


def test_a_shorter_run_is_judged_over_what_it_has_and_left_to_a_person() -> None:
    told = found(MEAN[:20])
    assert told["curve"].decision == "admit"
    assert told["number of steps"].decision == "review"
    assert (told["number of steps"].before, told["number of steps"].after) == (STEPS, 20)
    assert "number of steps" not in found([*MEAN, 3.0])


def test_runs_without_a_step_in_common_are_refused() -> None:
    late = blind("l07#1", [s.model_copy(update={"step": s.step + 100}) for s in steps()])
    told = curve_look(reference(MEAN), late, limits=limits())
    assert [f.decision for f in told] == ["refuse"]
