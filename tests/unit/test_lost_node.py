"""A node that went away: its attempt is charged to the release that the driver stamped, and the next one keeps off it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from lab import ID, Lab, campaign, launch

from attuner.core.run import Attempt
from attuner.launchers.replay import Replay, Row
from attuner.ports import JobSpec, JobState, Stamp
from attuner.steps.birth import birth
from attuner.steps.calibrate import plan_calibration


class Nodes(Replay):
    """Attempt n of a launch loses node n, as its driver stamps it; what comes after `losses` runs through."""

    losses = 1

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.excluded: list[Any] = []

    def submit(self, attempt: Attempt, job: JobSpec) -> Attempt:
        self.excluded.append(job.job.get("exclude_nodes"))
        return super().submit(attempt, job)

    def poll(self, attempt: Attempt) -> JobState:
        if attempt.number <= self.losses:
            return JobState(phase="failed", detail=f"node n{attempt.number} lost", gone=True)
        return super().poll(attempt)

    def files(self, attempt: Attempt) -> Any:
        found = super().files(attempt)
        start = found.stamp.allocated_at
        if attempt.number > self.losses or start is None:
            return found
        lost = {"outcome": "node_lost", "lost_nodes": [f"n{attempt.number}"], "last_heartbeat": start + 99.0}
        return found.model_copy(update={"stamp": Stamp(allocated_at=start, released_at=start + 36.0, **lost)})


@pytest.mark.parametrize(("losses", "status"), [(1, "ok"), (2, "infrastructure")])
def test_the_launch_is_tried_once_more_without_the_lost_node_and_a_second_loss_ends_it(
    tmp_path: Path, losses: int, status: str
) -> None:
    made = Lab(tmp_path, [Row(step_s=1.0)])
    nodes = Nodes([Row(step_s=1.0)], made.clock)
    nodes.losses = losses
    made.stack.replay = nodes
    kit = made.kit(launcher=nodes)
    birth(kit, campaign())
    found = launch(kit, ID, plan_calibration(kit, ID, number=1)[0])
    assert (found.status, found.attempt) == (status, 2)
    assert nodes.excluded == [None, ["n1"]]
    first = made.history().settlements()[0]
    assert (first.lost, first.how, first.gpu_hours) == (True, "released", pytest.approx(2 * 36 / 3600))
