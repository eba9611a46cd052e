"""Plays a replay table (`attuner.tables`) on a virtual clock, with seeded noise and the table's own charges.

The step time of an attempt is the table's, divided by one normal draw that depends on table, layout, launch, attempt and seed
alone. A launch holds its devices for start-up and its steps; profiled steps are free. Steps appear in the run's folder when
their time has come, so that what watches a running launch sees it as it would on a cluster.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attuner.core.base import digest_of
from attuner.core.errors import UserError
from attuner.core.run import Attempt, RankStep
from attuner.launchers.replay import VirtualClock
from attuner.launchers.run_folder import read_stamps
from attuner.ports import JobSpec, JobState, RunFiles
from attuner.runner import files
from attuner.tables import BREAKDOWN, Row, Table


class EventClock(VirtualClock):
    """Virtual time in which a sleep lasts until the next thing that is due, if that is later."""

    def __init__(self, start: float = 1_700_000_000.0) -> None:
        super().__init__(start)
        self._due: list[float] = []

    def due(self, at: float) -> None:
        """Say that something happens at this time."""
        self._due.append(at)

    def sleep(self, seconds: float) -> None:
        """Let time pass at once: to the next thing that is due, and at least `seconds`."""
        now = self.now()
        self._due = [t for t in self._due if t > now]
        super().sleep(max(seconds, min(self._due, default=now) - now))


@dataclass(frozen=True)
class Plan:
    """What one attempt does, and when."""

    start: float
    end: float
    outcome: str
    detail: str
    lines: list[dict[str, Any]]
    """Step lines, each with the time at which it is written."""
    rank_steps: list[RankStep]


class TableReplay:
    """Implements ports.Launcher over a table.

    Args:
        table: what launches do.
        clock: the campaign's clock; an EventClock lets a launch pass in one sleep.
        seed: of the noise.
        watched: steps of a running launch are due one by one (early stop looks at them), not all at its end.
    """

    def __init__(self, table: Table, clock: VirtualClock, *, seed: int = 0, watched: bool = False) -> None:
        self._table, self._clock, self._seed, self._watched = table, clock, seed, watched
        self._plans: dict[str, Plan] = {}
        self._caught_up = False

    def _catch_up(self, runs: Path) -> None:
        """Begin where the virtual time of an earlier process ended: its newest stamp in the campaign's folder of runs."""
        if self._caught_up:
            return
        self._caught_up = True
        stamps = [read_stamps(run).stamp() for run in runs.iterdir()] if runs.is_dir() else []
        newest = max((t for s in stamps for t in (s.allocated_at, s.released_at) if t is not None), default=0.0)
        if newest > (now := self._clock.now()):
            self._clock.sleep(newest - now)

    def submit(self, attempt: Attempt, job: JobSpec) -> Attempt:
        """Begin to play the launch into its folder, or attach if it was begun; see ports.Launcher."""
        folder = Path(attempt.folder)
        self._catch_up(folder.parent)
        if not read_stamps(folder).allocated():  # a killed process may have left the file empty
            folder.mkdir(parents=True, exist_ok=True)
            told = {"launch_id": attempt.launch_id, "gpus": job.gpus, "time_limit_s": job.time_limit_s}
            _write(folder / files.JOB, {**job.job, **told})
            hardware = [self._table.about.hardware]
            nodes = {"event": "nodes", "t": self._clock.now(), "hardware": hardware}
            allocated = {"event": "allocated", "t": self._clock.now(), "hosts": ["replay"], "gpus": job.gpus}
            _stamp(folder, nodes, allocated)
        return attempt.model_copy(update={"address": "replay"})

    def _plan(self, attempt: Attempt) -> Plan:
        """Return what the attempt does; made again from its folder by a process that has not begun it itself."""
        known = self._plans.get(attempt.submission_id)
        if known is None:
            folder = Path(attempt.folder)
            job, start = files.read_json(folder / files.JOB), read_stamps(folder).stamp().allocated_at
            row = self._table.find(job["arguments"])
            if row is None or not row.launchable() or start is None:
                raise UserError(f"{self._table.path}: {attempt.submission_id} is not in the table: its stack let it through")
            whole = planned(self._table, row, job, attempt, seed=self._seed, start=start)
            known = self._plans[attempt.submission_id] = limited(whole, job.get("time_limit_s"))
        return known

    def poll(self, attempt: Attempt) -> JobState:
        """Write what has happened by now, and return the state; see ports.Launcher."""
        folder = Path(attempt.folder)
        self._catch_up(folder.parent)
        stamps = read_stamps(folder)
        if not stamps.allocated():
            return JobState(phase="failed", detail="the replay knows nothing of it", gone=True)
        if not stamps.released():
            plan, now = self._plan(attempt), self._clock.now()
            _write_steps(folder, [line for line in plan.lines if line["t"] <= now])
            if now < plan.end:
                self._due(plan, now)
                return JobState(phase="running")
            if plan.outcome == "ok":
                _write(folder / files.CONFIG, {"arguments": files.read_json(folder / files.JOB)["arguments"]})
                _write(folder / BREAKDOWN, [r.data() for r in plan.rank_steps])
                _write(folder / files.DONE, {})
            _stamp(folder, {"event": "released", "t": plan.end, "outcome": plan.outcome, "detail": plan.detail})
            stamps = read_stamps(folder)
        return JobState(phase="succeeded" if stamps.stamp().outcome == "ok" else "failed")

    def _due(self, plan: Plan, now: float) -> None:
        """Let a sleep last until the next thing that happens to this launch."""
        if isinstance(self._clock, EventClock):
            steps = (line["t"] for line in plan.lines if line["t"] > now) if self._watched else ()
            self._clock.due(min(steps, default=plan.end))

    def cancel(self, attempt: Attempt) -> None:
        """End the attempt now; harmless if it has ended."""
        if not self.poll(attempt).done():
            _stamp(
                Path(attempt.folder), {"event": "released", "t": self._clock.now(), "outcome": "stopped", "detail": "cancelled"}
            )

    def files(self, attempt: Attempt) -> RunFiles:
        """Return what the launch has left by now."""
        return RunFiles(folder=attempt.folder, stamp=read_stamps(Path(attempt.folder)).stamp())

    def close(self) -> None:
        """Nothing was started."""


def planned(table: Table, row: Row, job: dict[str, Any], attempt: Attempt, *, seed: int, start: float) -> Plan:
    """Return what an attempt of this row does. The same arguments give the same plan for ever."""
    about = table.about
    if row.outcome != "ok":
        detail = row.note or (_out_of_memory(row, about.device_mem_gib) if row.outcome == "oom" else row.outcome)
        return Plan(start, start + table.duration_s(row), row.outcome, detail, [], [])
    identity = [table.name, *table.key(row.arguments), attempt.launch_id, str(attempt.number), str(seed)]
    chance = random.Random(int(digest_of(identity)[:16], 16))
    step_s = row.step_s / max(chance.gauss(1.0, about.noise), 0.1)
    steps, profiled = int(job["steps"]), int(job["profile_steps"])
    first = start + about.startup_s
    lines = _step_lines(table, row, job, _spread(chance, steps, step_s, about.step_noise), first)
    end = lines[-1]["t"]
    rank_steps = [breakdown(row, step=steps + i, step_s=step_s) for i in range(profiled)]
    tail = [{**lines[-1], "step": r.step, "kind": "profiled", "step_s": step_s, "t": end} for r in rank_steps]
    return Plan(start, end, "ok", "", [*lines, *tail], rank_steps)


def limited(plan: Plan, limit_s: float | None) -> Plan:
    """Return the plan as a driver would end it that lets no job hold its devices for longer."""
    if limit_s is None or plan.end - plan.start <= limit_s:
        return plan
    end = plan.start + limit_s
    why = f"still running {limit_s:g} s after allocation"
    return Plan(plan.start, end, "time_limit", why, [x for x in plan.lines if x["t"] <= end], [])


def _out_of_memory(row: Row, device_mem_gib: float | None) -> str:
    asked = f"{row.peak_mem_gib:.1f} GiB asked" if row.peak_mem_gib is not None else "more asked than there is"
    return f"out of memory: {asked}" + (f", {device_mem_gib:g} GiB on a device" if device_mem_gib else "")


def _spread(chance: random.Random, steps: int, step_s: float, sigma: float) -> list[float]:
    """Return the times of the steps: `step_s` on the mean, spread by sigma."""
    draws = [chance.gauss(0.0, sigma) for _ in range(steps)] if sigma else [0.0] * steps
    mean = sum(draws) / steps
    return [step_s * (1.0 + d - mean) for d in draws]


def _step_lines(table: Table, row: Row, job: dict[str, Any], times: list[float], now: float) -> list[dict[str, Any]]:
    tokens = table.about.global_batch * table.about.seq_len
    lines = []
    for step, step_s in enumerate(times):
        now += step_s
        kind = "warmup" if step < int(job["warmup_steps"]) else "scored"
        told = {"step": step, "kind": kind, "t": now, "step_s": step_s, "lm_loss": 0.0, "loss_tokens": None, "tokens": tokens}
        lines.append({**told, "peak_mem_gib": row.peak_mem_gib})
    return lines


def breakdown(row: Row, *, step: int, step_s: float) -> RankStep:
    """Return where a step of this row goes, for a step that took `step_s`; what the parts leave of it is idle."""
    scale = step_s / row.step_s
    if row.rank_step is not None:
        return _scaled(RankStep.model_validate(row.rank_step), step=step, scale=scale)
    part = {name: seconds * scale for name, seconds in row.parts.items()}
    named = ("fwd_compute_s", "bwd_compute_s", "recompute_s", "optimizer_s")
    forward, backward, recompute, optimizer = (part.get(name, 0.0) for name in named)
    groups = {
        "tensor_expert": part.get("tp_ep_comm_exposed_s", 0.0),
        "pipeline": part.get("pp_comm_exposed_s", 0.0),
        "data": part.get("dp_comm_exposed_s", 0.0),
    }
    compute, comm = forward + backward + recompute + optimizer, sum(groups.values())
    bubble, straggler = part.get("bubble_s", 0.0), part.get("straggler_s", 0.0)
    idle = max(step_s - compute - comm, 0.0)
    detail = {"forward": forward, "backward": backward, "recompute": recompute, "optimizer": optimizer}
    return RankStep(
        rank=0,
        step=step,
        step_s=step_s,
        compute_s=compute,
        exposed_comm_s=comm,
        host_s=0.0,
        idle_s=idle,
        comm_by_group=groups,
        detail={**detail, "bubble": bubble, "straggler": straggler},
    )


def _scaled(recorded: RankStep, *, step: int, scale: float) -> RankStep:
    data = recorded.data()
    out = {k: v * scale if k.endswith("_s") else v for k, v in data.items()}
    for name in ("comm_by_kind", "comm_by_group", "hidden_by_group", "detail"):
        out[name] = {k: v * scale for k, v in data[name].items()}
    return RankStep.model_validate({**out, "step": step})


def _write(path: Path, value: Any) -> None:
    # no flush to the disk: a replayed launch that a crash tears is played again, at no cost
    path.write_text(json.dumps(value, sort_keys=True), encoding="utf-8")


def _write_steps(folder: Path, lines: list[dict[str, Any]]) -> None:
    (folder / files.STEPS).write_text("".join(json.dumps(line, sort_keys=True) + "\n" for line in lines), encoding="utf-8")


def _stamp(folder: Path, *events: dict[str, Any]) -> None:
    with (folder / files.STAMPS).open("a", encoding="utf-8") as file:
        file.write("".join(json.dumps(event, sort_keys=True) + "\n" for event in events))
