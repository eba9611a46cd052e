"""The law of the budget, whatever the cluster does: what a campaign spends never exceeds its budget, failures included, and
every attempt is charged once."""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lab import ID, LAYOUT, MICRO, Lab, campaign, play

from attuner.core.errors import UserError
from attuner.core.events import History
from attuner.core.run import Attempt
from attuner.launchers.replay import Replay, Row
from attuner.launchers.run_folder import read_stamps
from attuner.policy import budget
from attuner.ports import JobSpec, JobState
from attuner.report import spend
from attuner.runner import files

KINDS = ("ok", "slow", "crash", "hang", "lost", "vanished", "never_allocated")
"""lost: the head dies, the driver's heartbeat stays; vanished: not even that."""
MAX_S, GPUS = 600.0, 2


class Wild(Replay):
    """A cluster whose launches do what they like, within the time limit that the driver enforces."""

    def __init__(self, *args: Any, fates: list[tuple[str, float]], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fates, self.lost = fates, set[str]()
        self.held = 0.0

    def _play(self, folder: Path, attempt: Attempt, job: JobSpec) -> float:
        kind, part = self.fates[(len(self.submitted) - 1) % len(self.fates)]
        limit = job.time_limit_s
        start = self._clock.now()
        if kind in ("ok", "slow"):
            row = Row(step_s=1.0 if kind == "ok" else 1.0 + 10 * part)
            table, self._table = self._table, [row]
            end = super()._play(folder, attempt, job)
            self._table = table
            self.held += end - start
            return end
        if kind == "never_allocated":
            files.append_jsonl(folder / files.STAMPS, {"event": "released", "t": start, "outcome": kind, "detail": "no room"})
            return start
        end = start + part * limit
        files.append_jsonl(folder / files.STAMPS, {"event": "allocated", "t": start, "hosts": ["h"], "gpus": job.gpus})
        if kind == "lost":
            (folder / files.HEARTBEAT).write_text(f"{end:.3f}\n")
        if kind in ("lost", "vanished"):
            self.lost.add(attempt.submission_id)
        else:
            outcome = "hang" if kind == "hang" else "crash"
            files.append_jsonl(folder / files.STAMPS, {"event": "released", "t": end, "outcome": outcome, "detail": "as drawn"})
        self.held += 0 if kind == "vanished" else end - start
        return end

    def poll(self, attempt: Attempt) -> JobState:
        if attempt.submission_id in self.lost:
            return JobState(phase="gone", gone=True)
        if read_stamps(Path(attempt.folder)).stamp().outcome == "never_allocated":
            return JobState(phase="failed")
        return super().poll(attempt)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
@given(
    fates=st.lists(st.tuples(st.sampled_from(KINDS), st.floats(0.0, 1.0)), min_size=1, max_size=30),
    whole=st.floats(0.12, 1.5),
    moves=st.integers(0, 4),
)
def test_spend_never_exceeds_the_budget(fates: list[tuple[str, float]], whole: float, moves: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        lab = Lab(Path(folder), [Row()])
        wild = lab.replay = Wild([Row()], lab.clock, fates=fates)
        lab.stack.replay = wild
        script = ([MICRO, LAYOUT] * 2)[:moves]
        born = campaign(*script, budget={"gpu_hours": whole}, launch={"expected_s": 10.0, "max_s": MAX_S})
        with contextlib.suppress(UserError):  # a baseline that fails has no campaign; what it cost counts all the same
            play(lab.kit(launcher=wild), born)
        history = lab.history()
        assert budget.spent(history) <= whole + 1e-9
        check_account(history, wild)


def check_account(history: History, wild: Wild) -> None:
    """Every submission has one charge, and together they are what the cluster was held for."""
    charged = history.settlements()
    assert sorted((c.launch_id, c.attempt) for c in charged) == sorted({(c.launch_id, c.attempt) for c in charged})
    assert len(charged) == len(wild.submitted) == len(set(wild.submitted))
    rounded = GPUS * 0.001 / 3600 * len(charged)  # a heartbeat is written to the millisecond
    assert abs(sum(c.gpu_hours for c in charged) - GPUS * wild.held / 3600) <= rounded + 1e-9
    told = spend.charges(history, {})
    assert abs(spend.total(told)["gpu_hours"] - budget.spent(history)) < 1e-9
    assert {c.campaign for c in told} <= {ID}
