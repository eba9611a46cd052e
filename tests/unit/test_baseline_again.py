"""A baseline is known to run: one killed rank doesn't end its campaign. A candidate's failure is data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from lab import ID, MICRO, Lab, begin, campaign, play
from people_lab import FASTER, REST

from attuner.core.errors import UserError
from attuner.core.run import Attempt
from attuner.launchers.replay import Replay, Row
from attuner.ports import JobSpec
from attuner.runner import watching
from attuner.runner.files import LOG


class Flaky(Replay):
    """A cluster on which the named attempts end badly."""

    def __init__(self, *args: Any, ends: dict[str, str], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.ends = ends

    def _play(self, folder: Path, attempt: Attempt, job: JobSpec) -> float:
        end = self.ends.get(attempt.submission_id.removeprefix(f"{ID}-"))
        table = self._table
        if end is not None:
            self._table = [Row(outcome=end, detail="rank 1: Signal 9 (SIGKILL)")]
        try:
            return super()._play(folder, attempt, job)
        finally:
            self._table = table


def flaky(tmp_path: Path, **ends: str) -> tuple[Lab, Any]:
    made = Lab(tmp_path, [FASTER, REST])
    named = {name.replace("_", "-"): end for name, end in ends.items()}
    made.stack.replay = made.replay = Flaky(made.table, made.clock, ends=named)
    return made, made.kit(launcher=made.replay)


@pytest.mark.parametrize("end", ["crash", "hang"])
def test_a_baseline_run_that_fails_once_is_made_again_and_both_are_charged(tmp_path: Path, end: str) -> None:
    made, kit = flaky(tmp_path, l02_a1=end)
    assert play(kit, campaign(MICRO)).launch_id == "l06"
    history = made.history()
    trial = history.trial("l02")
    assert trial is not None
    assert (trial.status, trial.attempt) == ("ok", 2)
    assert [s.attempt for s in history.settlements() if s.launch_id == "l02"] == [1, 2]
    assert all(s.gpu_hours > 0 for s in history.settlements() if s.launch_id == "l02")


@pytest.mark.parametrize(("ends", "attempts"), [({"l02_a1": "crash", "l02_a2": "crash"}, 2), ({"l02_a1": "oom"}, 1)])
def test_a_baseline_that_fails_twice_or_not_by_chance_has_no_campaign(
    tmp_path: Path, ends: dict[str, str], attempts: int
) -> None:
    made, kit = flaky(tmp_path, **ends)
    with pytest.raises(UserError, match="calibration run l02 failed"):
        begin(kit, campaign(MICRO))
    assert len(made.history().attempts("l02")) == attempts


def test_a_candidate_that_fails_is_not_made_again(tmp_path: Path) -> None:
    made, kit = flaky(tmp_path, l06_a1="crash")
    assert play(kit, campaign(MICRO)).kept_baseline
    assert len(made.history().attempts("l06")) == 1


def test_a_checkpoint_that_fails_once_is_made_again(tmp_path: Path) -> None:
    made, kit = flaky(tmp_path, l01_a1="crash")
    play(kit, campaign(MICRO, prepare={"steps": 4}))
    trial = made.history().trial("l01")
    assert trial is not None
    assert (trial.status, trial.attempt) == ("ok", 2)


def test_without_its_checkpoint_nothing_more_is_launched(tmp_path: Path) -> None:
    made, kit = flaky(tmp_path, l01_a1="crash", l01_a2="crash")
    with pytest.raises(
        UserError, match=r"prepare: l01 made no checkpoint \(crash: rank 1: Signal 9.*attuner rerun lab-0001 launch l01"
    ):
        begin(kit, campaign(MICRO, prepare={"steps": 4}))
    assert [x.kind for x in made.history().launches()] == ["prepare"]


TORCHRUN = """torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
=======================================================
attuner_runner.train_mcore FAILED
-------------------------------------------------------
Failures:
[1]:
  rank      : 0 (local_rank: 0)
  exitcode  : -15 (pid: 31008)  (SIGTERM)
  traceback : Signal 15 (SIGTERM) received by PID 31008
-------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-30_19:49:17
  rank      : 1 (local_rank: 1)
  exitcode  : -9 (pid: 31009)  (SIGKILL)
  error_file: <N/A>
  traceback : Signal 9 (SIGKILL) received by PID 31009
=======================================================
"""


@pytest.mark.parametrize(
    ("log", "said"),
    [
        (TORCHRUN, "exit code 1; rank 1: Signal 9 (SIGKILL) received by PID 31009"),
        ("ImportError: no module named x\n=====\n", "exit code 1; ImportError: no module named x"),
        ("", "exit code 1; "),
    ],
)
def test_the_cause_of_a_killed_rank_is_its_signal_and_never_a_line_of_dashes(tmp_path: Path, log: str, said: str) -> None:
    (tmp_path / LOG).write_text(log)
    assert watching.cause(tmp_path, "failed", "exit code 1") == ("crash", "", said)
