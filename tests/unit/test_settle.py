"""What one attempt costs: from allocation to release, else to the last heartbeat, else nothing."""

from __future__ import annotations

from typing import Any

import pytest

from attuner.core.run import Attempt, Settlement
from attuner.ports import JobState, RunFiles, Stamp
from attuner.steps.launch import settle


def charge(*, gone: bool = False, gpus: int = 2, **stamp: Any) -> Settlement:
    attempt = Attempt(launch_id="l01", number=1, submission_id="x", folder="/nowhere", submitted_at=0.0)
    state = JobState(phase="failed", detail="as it said", gone=gone)
    return settle(RunFiles(folder="/nowhere", stamp=Stamp.model_validate(stamp)), attempt, gpus=gpus, state=state)


def test_a_released_attempt_is_charged_from_allocation_to_release_on_every_device() -> None:
    found = charge(allocated_at=100.0, released_at=1900.0, last_heartbeat=1800.0)
    assert (found.how, found.gpu_hours, found.lost) == ("released", 1.0, False)
    assert charge(allocated_at=100.0, released_at=1900.0, gpus=8).gpu_hours == 4.0


def test_without_a_release_it_is_charged_to_the_last_heartbeat() -> None:
    found = charge(allocated_at=100.0, last_heartbeat=1900.0, gone=True)
    assert (found.how, found.gpu_hours, found.lost, found.released_at) == ("last_heartbeat", 1.0, True, 1900.0)


@pytest.mark.parametrize("beat", [None, 50.0])
def test_a_heartbeat_before_the_allocation_costs_nothing_and_never_less(beat: float | None) -> None:
    assert charge(allocated_at=100.0, last_heartbeat=beat).gpu_hours == 0.0


def test_what_was_never_allocated_costs_nothing() -> None:
    found = charge(last_heartbeat=1900.0, released_at=2000.0)
    assert (found.how, found.gpu_hours, found.released_at) == ("never_allocated", 0.0, None)


def test_the_launchers_last_word_is_kept() -> None:
    assert charge(allocated_at=0.0, released_at=1.0).detail == "as it said"


def test_a_charge_is_never_negative() -> None:
    assert charge(allocated_at=100.0, released_at=50.0).gpu_hours >= 0.0
