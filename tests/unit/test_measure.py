"""Honest measurement: what is no measurement, how fast a run was, how wide the band is, who leads."""

from __future__ import annotations

import math
from typing import Any

import pytest
from book import steps, trial
from lab import campaign, workload

from attuner.core.run import StepRecord
from attuner.policy.measure import calibrate, invalid_because, leads, speed, step_seconds


def without(n: int) -> list[StepRecord]:
    return [s for s in steps() if s.step != n]


def with_step(n: int, **changes: Any) -> list[StepRecord]:
    return [s.model_copy(update=changes) if s.step == n else s for s in steps()]


def test_a_whole_run_is_a_measurement() -> None:
    assert invalid_because(trial(), campaign()) == ""


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"steps": without(3)}, "scored steps"),
        ({"steps": without(1)}, "scored steps"),
        ({"steps": []}, "scored steps"),
        ({"steps": [*steps(), steps()[-1]]}, "scored steps"),
        ({"steps": list(reversed(steps()))}, "scored steps"),
        ({"steps": with_step(2, kind="profiled")}, "scored steps"),
        ({"steps": [*steps(), steps()[-1].model_copy(update={"kind": "profiled"})]}, "profiled"),
        ({"steps": with_step(2, tokens=64)}, "steps [2] consumed other than 128 tokens"),
        ({"steps": with_step(0, tokens=256)}, "steps [0] consumed other than 128 tokens"),
        ({"gpus": 1}, "ran on 1 devices, not 2"),
        ({"steps": with_step(2, step_s=0.0)}, "no usable time"),
        ({"steps": with_step(2, step_s=-1.0)}, "no usable time"),
        ({"steps": with_step(2, step_s=math.nan)}, "no usable time"),
        ({"steps": with_step(2, step_s=math.inf)}, "no usable time"),
        ({"steps": with_step(2, step_s=3.01)}, "3.01 × the median"),
    ],
)
def test_what_is_no_measurement_says_why(changes: dict[str, Any], words: str) -> None:
    assert words in invalid_because(trial(**changes), campaign())


def test_other_hardware_is_no_measurement() -> None:
    made = trial(hardware=["NVIDIA B200"])
    assert invalid_because(made, campaign(), hardware=["NVIDIA B200"]) == ""
    assert invalid_because(made, campaign()) == ""
    assert "NVIDIA H200" in invalid_because(made, campaign(), hardware=["NVIDIA H200"])


def test_the_spread_limit_itself_is_still_a_measurement() -> None:
    assert invalid_because(trial(steps=with_step(2, step_s=3.0)), campaign()) == ""


def test_profiled_steps_count_for_nothing() -> None:
    profiled = steps()[-1].model_copy(update={"step": 4, "kind": "profiled", "step_s": 99.0, "tokens": 1})
    made = trial(steps=[*steps(), profiled])
    assert invalid_because(made, campaign()) == ""
    assert speed(made, workload()) == speed(trial(), workload())


def test_speed_is_all_scored_tokens_over_all_scored_time_per_device() -> None:
    made = trial(steps=with_step(2, step_s=2.0))
    assert speed(made, workload()) == pytest.approx(3 * 128 / 4.0 / 2)
    assert step_seconds(made) == pytest.approx(4.0 / 3)


def test_warm_up_time_is_not_in_the_speed() -> None:
    assert speed(trial(steps=with_step(0, step_s=50.0)), workload()) == speed(trial(), workload())


def runs(*times: float) -> list[Any]:
    return [trial(launch_id=f"l{n:02d}", steps=steps(step_s=t), gpu_hours=float(n)) for n, t in enumerate(times, 1)]


def test_the_band_is_the_floor_on_a_quiet_machine() -> None:
    found = calibrate(runs(1, 1, 1, 1, 1), campaign(), number=1)
    assert (found.mean, found.sigma, found.band, found.busy) == (64.0, 0.0, 0.03, False)
    assert found.launch_gpu_hours == 3.0
    assert found.launches == ["l01", "l02", "l03", "l04", "l05"]


def test_the_band_is_three_sigma_on_a_noisy_machine_with_n_minus_one() -> None:
    found = calibrate(runs(1.0, 1.0, 1.0, 1.0, 1.25), campaign(), number=2)
    speeds = [64.0] * 4 + [51.2]
    mean = sum(speeds) / 5
    sigma = math.sqrt(sum((s - mean) ** 2 for s in speeds) / 4) / mean
    assert found.sigma == pytest.approx(sigma)
    assert found.band == pytest.approx(3 * sigma)
    assert found.busy


@pytest.mark.parametrize(
    ("candidate", "wins"), [(103.0, False), (103.0001, True), (100.0, False), (math.nan, False), (0.0, False)]
)
def test_a_leader_is_strictly_above_the_band(candidate: float, wins: bool) -> None:
    assert leads(candidate, 100.0, 0.03) is wins
