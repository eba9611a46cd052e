"""The laws of a launcher, as far as they can be held without a cluster: submission attaches, files outlive the launcher."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

import paper_cluster
import pytest
from lab import BASE

from attuner.core.errors import UserError
from attuner.core.run import Attempt
from attuner.launchers.replay import Replay, Row, VirtualClock
from attuner.launchers.replay_table import EventClock, TableReplay, planned
from attuner.ports import JobSpec
from attuner.runner import files
from attuner.stacks.mcore.stack import McoreStack
from attuner.stacks.replay.stack import ReplayStack

TABLE = [
    Row(match={"micro_batch_size": 9}, outcome="oom", detail="1.2 GiB asked, 1.0 GiB allowed"),
    Row(step_s=2.0, losses=[5.0, 4.5], final={"lr": 0.001}),
]


def job(**arguments: Any) -> JobSpec:
    given = {"arguments": {**BASE, **arguments}, "warmup_steps": 1, "steps": 4, "profile_steps": 1}
    limits = {"time_limit_s": 60.0, "hang_s": 10.0}
    return JobSpec(module="train_mcore", job=given, env={}, gpus=2, gpus_per_node=2, resource="slot", **limits)


def attempt(folder: Path, number: int = 1) -> Attempt:
    name = f"lab-l01-a{number}"
    return Attempt(launch_id="l01", number=number, submission_id=name, folder=str(folder / name), submitted_at=0.0)


class TestLauncher:
    """What the step `launch` may rely on."""

    def test_a_submission_says_where_it_runs(self, tmp_path: Path) -> None:
        assert Replay(TABLE, VirtualClock()).submit(attempt(tmp_path), job()).address

    def test_a_second_submission_attaches(self, tmp_path: Path) -> None:
        launcher = Replay(TABLE, VirtualClock())
        first = launcher.submit(attempt(tmp_path), job())
        assert launcher.submit(attempt(tmp_path), job()) == first
        assert launcher.submitted == ["lab-l01-a1"]

    def test_another_process_attaches_too(self, tmp_path: Path) -> None:
        clock = VirtualClock()
        Replay(TABLE, clock).submit(attempt(tmp_path), job())
        other = Replay(TABLE, clock)
        other.submit(attempt(tmp_path), job())
        assert other.submitted == []
        assert not other.poll(attempt(tmp_path)).done()
        clock.sleep(1000.0)
        assert other.poll(attempt(tmp_path)).phase == "succeeded"

    def test_another_attempt_is_another_run(self, tmp_path: Path) -> None:
        launcher = Replay(TABLE, VirtualClock())
        launcher.submit(attempt(tmp_path), job())
        launcher.submit(attempt(tmp_path, 2), job())
        assert launcher.submitted == ["lab-l01-a1", "lab-l01-a2"]

    def test_it_runs_until_its_time_has_passed(self, tmp_path: Path) -> None:
        clock = VirtualClock()
        launcher = Replay(TABLE, clock)
        launcher.submit(attempt(tmp_path), job())
        assert launcher.poll(attempt(tmp_path)).phase == "running"
        clock.sleep(14.9)
        assert launcher.poll(attempt(tmp_path)).phase == "running"
        clock.sleep(0.2)
        state = launcher.poll(attempt(tmp_path))
        assert (state.phase, state.gone, state.done()) == ("succeeded", False, True)

    def test_files_hold_allocation_and_release(self, tmp_path: Path) -> None:
        clock = VirtualClock(start=1000.0)
        launcher = Replay(TABLE, clock)
        launcher.submit(attempt(tmp_path), job())
        stamp = launcher.files(attempt(tmp_path)).stamp
        assert (stamp.allocated_at, stamp.released_at, stamp.outcome) == (1000.0, 1000.0 + 5.0 + 5 * 2.0, "ok")

    def test_files_of_what_never_ran_are_empty(self, tmp_path: Path) -> None:
        stamp = Replay(TABLE, VirtualClock()).files(attempt(tmp_path)).stamp
        assert stamp.allocated_at is None
        assert stamp.outcome == ""

    def test_the_stack_reads_a_played_run_like_a_real_one(self, tmp_path: Path) -> None:
        launcher = Replay(TABLE, VirtualClock())
        launcher.submit(attempt(tmp_path), job())
        found = McoreStack().read(launcher.files(attempt(tmp_path)))
        assert found.status == "ok"
        assert [s.kind for s in found.steps] == ["warmup", "scored", "scored", "scored", "profiled"]
        assert [s.lm_loss for s in found.steps] == [5.0, 4.5, 4.5, 4.5, 4.5]
        assert found.arguments == {"lr": 0.001}

    def test_a_failed_run_says_why(self, tmp_path: Path) -> None:
        clock = VirtualClock()
        launcher = Replay(TABLE, clock)
        launcher.submit(attempt(tmp_path), job(micro_batch_size=9))
        clock.sleep(100.0)
        assert launcher.poll(attempt(tmp_path)).phase == "failed"
        found = McoreStack().read(launcher.files(attempt(tmp_path)))
        assert (found.status, found.cause) == ("oom", "1.2 GiB asked, 1.0 GiB allowed")

    def test_cancel_and_close_are_harmless(self, tmp_path: Path) -> None:
        launcher = Replay(TABLE, VirtualClock())
        launcher.cancel(attempt(tmp_path))
        launcher.close()
        launcher.close()


def test_a_table_without_a_fitting_row_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no row of the table fits lab-l01-a1"):
        Replay(TABLE[:1], VirtualClock()).submit(attempt(tmp_path), job())


def test_the_jitter_of_a_row_depends_on_the_attempt_alone(tmp_path: Path) -> None:
    def end(folder: str, number: int) -> float | None:
        launcher = Replay([Row(jitter=0.3)], VirtualClock())
        launcher.submit(attempt(tmp_path / folder, number), job())
        return launcher.files(attempt(tmp_path / folder, number)).stamp.released_at

    assert end("a", 1) == end("b", 1)
    assert end("a", 1) != end("a", 2)


@pytest.mark.parametrize(
    "text", ["not json\n{}\n", '["a list"]\n', '{"step": "first"}\n', '{"step": 0}\n', '{"step": 0, "kind": "scored"}\n']
)
def test_what_a_run_leaves_is_untrusted_and_a_malformed_line_is_a_crash(tmp_path: Path, text: str) -> None:
    launcher = Replay(TABLE, VirtualClock())
    made = launcher.submit(attempt(tmp_path), job())
    (Path(made.folder) / files.STEPS).write_text(text)
    found = McoreStack().read(launcher.files(made))
    assert found.status == "crash"
    assert "can't be read" in found.cause
    assert found.steps == []


@pytest.mark.parametrize("name", [files.STAMPS, files.HEARTBEAT])
@pytest.mark.parametrize("text", ["\x00\n", "[1]\n"])
def test_torn_stamps_are_no_crash_of_the_launcher(tmp_path: Path, name: str, text: str) -> None:
    folder = Path(attempt(tmp_path).folder)
    folder.mkdir(parents=True)
    (folder / name).write_text(text)
    assert Replay(TABLE, VirtualClock()).files(attempt(tmp_path)).stamp.outcome == ""


# ------------------------------------------------------------------------------------------------- tables of replay


class TestTableReplay:
    """The same laws, for the launcher of replay tables; its steps appear as their time comes."""

    @staticmethod
    def job(**arguments: Any) -> JobSpec:
        table = paper_cluster.table()
        final = {**table.about.baseline, **arguments}
        given = {"arguments": final, "steps": 20, "warmup_steps": 2, "profile_steps": 1}
        limits = {"time_limit_s": 1e6, "hang_s": 1e6}
        return JobSpec(module="replay", job=given, env={}, gpus=16, gpus_per_node=8, resource="GPU", **limits)

    @staticmethod
    def launcher(clock: VirtualClock, **more: Any) -> TableReplay:
        return TableReplay(paper_cluster.table(), clock, **more)

    def test_a_second_submission_and_another_process_attach(self, tmp_path: Path) -> None:
        clock = EventClock()
        made = self.launcher(clock).submit(attempt(tmp_path), self.job())
        clock.sleep(10.0)
        other = self.launcher(clock)
        assert other.submit(attempt(tmp_path), self.job()) == made
        assert other.poll(made).phase == "running"
        clock.sleep(0.1)
        assert other.poll(made).phase == "succeeded"
        assert other.files(made).stamp.allocated_at == EventClock().now()

    def test_a_submission_that_a_kill_tore_is_made_again(self, tmp_path: Path) -> None:
        """The stamps' file was there and still empty: nothing had begun, and a resume must not be stuck with it for ever."""
        torn = attempt(tmp_path)
        Path(torn.folder).mkdir()
        (Path(torn.folder) / files.STAMPS).touch()
        clock = EventClock()
        launcher = self.launcher(clock)
        assert launcher.poll(torn.model_copy(update={"address": "replay"})).gone
        made = launcher.submit(torn, self.job())
        assert launcher.files(made).stamp.allocated_at == clock.now()
        assert launcher.poll(made).phase == "running"

    def test_a_process_that_goes_on_begins_where_the_virtual_time_of_the_last_one_ended(self, tmp_path: Path) -> None:
        """Else a second attempt would hold devices before the first one let them go, and a cancelled one would cost nothing."""
        clock = EventClock()
        ended = self.launcher(clock).submit(attempt(tmp_path), self.job())
        clock.sleep(10.0)
        self.launcher(clock).cancel(ended)
        late = EventClock()
        again = self.launcher(late)
        second = again.submit(attempt(tmp_path, 2), self.job())
        first_stamp, second_stamp = again.files(ended).stamp, again.files(second).stamp
        assert first_stamp.released_at is not None
        assert second_stamp.allocated_at is not None
        assert second_stamp.allocated_at >= first_stamp.released_at
        third = self.launcher(EventClock())
        third.cancel(second)
        stopped = third.files(second).stamp.released_at
        assert stopped is not None
        assert stopped >= second_stamp.allocated_at

    def test_one_sleep_lasts_to_the_end_or_where_steps_are_watched_to_the_next_step(self, tmp_path: Path) -> None:
        for watched, polls in ((False, 1), (True, 20)):
            clock, count = EventClock(), 0
            launcher = self.launcher(clock, watched=watched)
            made = launcher.submit(attempt(tmp_path / str(watched)), self.job())
            while not launcher.poll(made).done():
                clock.sleep(0.25)
                count += 1
            assert count == polls

    def test_steps_appear_as_their_time_comes(self, tmp_path: Path) -> None:
        clock = EventClock()
        launcher = self.launcher(clock, watched=True)
        made, seen = launcher.submit(attempt(tmp_path), self.job()), []
        while not launcher.poll(made).done():
            seen.append(ReplayStack().progress(launcher.files(made)))
            clock.sleep(0.25)
        assert seen == list(range(20))
        assert ReplayStack().progress(launcher.files(made)) == 21  # with the profiled one

    def test_a_cancelled_launch_is_released_and_charged_up_to_now(self, tmp_path: Path) -> None:
        clock = EventClock(start=0.0)
        launcher = self.launcher(clock, watched=True)
        made = launcher.submit(attempt(tmp_path), self.job())
        for _ in range(3):
            launcher.poll(made)
            clock.sleep(0.25)
        launcher.cancel(made)
        stamp = launcher.files(made).stamp
        assert stamp.released_at == clock.now() < 400.0
        assert launcher.poll(made).phase == "failed"
        launcher.cancel(made)
        assert launcher.files(made).stamp == stamp

    def test_out_of_memory_says_how_much_was_asked(self, tmp_path: Path) -> None:
        clock = EventClock(start=0.0)
        launcher = self.launcher(clock)
        made = launcher.submit(attempt(tmp_path), self.job(**paper_cluster.OOM["arguments"]))
        launcher.poll(made)
        clock.sleep(1.0)
        assert launcher.poll(made).phase == "failed"
        found = ReplayStack().read(launcher.files(made))
        assert (found.status, found.cause) == ("oom", "out of memory: 128.2 GiB asked, 80 GiB on a device")
        assert launcher.files(made).stamp.released_at == 360.0

    def test_the_noise_depends_on_table_layout_launch_attempt_and_seed_alone(self, tmp_path: Path) -> None:
        def end(folder: str, number: int, seed: int) -> float | None:
            clock = EventClock(start=0.0)
            launcher = self.launcher(clock, seed=seed)
            made = launcher.submit(attempt(tmp_path / folder, number), self.job())
            launcher.poll(made)
            clock.sleep(1.0)
            launcher.poll(made)
            return launcher.files(made).stamp.released_at

        ends = [end("a", 1, 0), end("b", 1, 0), end("c", 2, 0), end("d", 1, 1)]
        assert ends[0] == ends[1]
        assert len(set(ends)) == 3

    def test_cancel_close_and_files_of_what_never_ran_are_harmless(self, tmp_path: Path) -> None:
        launcher = self.launcher(EventClock())
        launcher.cancel(attempt(tmp_path))
        assert launcher.files(attempt(tmp_path)).stamp.allocated_at is None
        launcher.close()
        launcher.close()


def test_the_noise_of_a_table_has_the_spread_that_it_states() -> None:
    table = paper_cluster.table()
    job = TestTableReplay.job().job
    row = table.start()
    tries = [planned(table, row, job, attempt(Path("x"), n), seed=0, start=0.0) for n in range(400)]
    speeds = [row.step_s / (sum(line["step_s"] for line in p.lines[:20]) / 20) for p in tries]
    assert statistics.fmean(speeds) == pytest.approx(1.0, abs=0.0015)
    assert statistics.stdev(speeds) == pytest.approx(0.007, rel=0.15)
