"""Plays a recorded table of trials on a virtual clock: what a launch would have done, without doing it.

Each row of the table says which arguments it `match`es (the first row that fits holds) and what comes of such a launch:
a step time, a loss, or a failure. The launcher writes the very files that a real run leaves, so stacks and steps see no
difference. For tests, for comparing proposers, and for rehearsing a campaign before it costs anything.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from pydantic import Field

from attuner.core.base import Record, Value, digest_of
from attuner.core.errors import UserError
from attuner.core.recipe import same_value
from attuner.core.run import Attempt
from attuner.launchers.run_folder import read_stamps, write_job
from attuner.ports import Clock, JobSpec, JobState, RunFiles
from attuner.runner import files

START_S = 5.0


class Row(Record):
    """What comes of launches whose arguments match."""

    match: dict[str, Value] = Field(default_factory=dict)
    outcome: str = "ok"
    detail: str = ""
    step_s: float = 1.0
    jitter: float = Field(default=0.0, ge=0, lt=1, description="relative spread between launches, made from the attempt's id")
    losses: list[float] = Field(default_factory=lambda: [5.0])
    final: dict[str, Value] = Field(default_factory=dict, description="final arguments the run reports")
    peak_mem_gib: float = 0.1


class VirtualClock:
    """Time that passes only when somebody sleeps."""

    def __init__(self, start: float = 1_700_000_000.0) -> None:
        self._now = start

    def now(self) -> float:
        """Return unix seconds."""
        return self._now

    def sleep(self, seconds: float) -> None:
        """Let time pass at once."""
        self._now += seconds


class Replay:
    """Implements ports.Launcher over a table."""

    def __init__(self, table: list[Row], clock: Clock, *, final: dict[str, dict[str, Value]] | None = None) -> None:
        self._table, self._clock = table, clock
        self._final = final or {}
        self._ends: dict[str, float] = {}
        self.submitted: list[str] = []

    def final_arguments(self, arguments: dict[str, Any], final: dict[str, Value]) -> None:
        """Say what a run with these arguments reports as its final ones (a real run reports them itself)."""
        self._final[digest_of(arguments)] = final

    def submit(self, attempt: Attempt, job: JobSpec) -> Attempt:
        """Play the launch into its folder, or attach if it was played; see ports.Launcher."""
        folder = Path(attempt.folder)
        if not read_stamps(folder).started():
            self.submitted.append(attempt.submission_id)
            write_job(folder, {**job.job, "launch_id": attempt.launch_id})
            self._ends[attempt.submission_id] = self._play(folder, attempt, job)
        return attempt.model_copy(update={"address": "replay"})

    def _play(self, folder: Path, attempt: Attempt, job: JobSpec) -> float:
        arguments = job.job["arguments"]
        row = next((r for r in self._table if all(same_value(arguments.get(k), v) for k, v in r.match.items())), None)
        if row is None:
            raise UserError(f"replay: no row of the table fits {attempt.submission_id}; add one without `match`")
        start = self._clock.now()
        files.append_jsonl(folder / files.STAMPS, {"event": "allocated", "t": start, "hosts": ["replay"], "gpus": job.gpus})
        step_s = row.step_s * (1.0 + row.jitter * _spread(attempt.submission_id))
        end, outcome, detail = start + START_S, row.outcome, row.detail
        if outcome == "ok":
            end = _write_steps(folder, job, row, step_s=step_s, start=end)
        if end - start > job.time_limit_s:  # as the driver of a real launch ends it
            end, outcome = start + job.time_limit_s, "time_limit"
            detail = f"still running {job.time_limit_s:g} s after allocation"
            _rewrite(folder / files.STEPS, [x for x in files.read_jsonl(folder / files.STEPS) if x["t"] <= end])
        if outcome == "ok":
            final = self._final.get(digest_of(arguments), row.final)
            files.write_json(folder / files.CONFIG, {"arguments": final})
            files.write_json(folder / files.DONE, {})
        released = {"event": "released", "t": end, "outcome": outcome, "detail": detail, "other_load": None}
        files.append_jsonl(folder / files.STAMPS, released)
        return end

    def poll(self, attempt: Attempt) -> JobState:
        """Return the state at this moment of the virtual clock; see ports.Launcher."""
        end = self._ends.get(attempt.submission_id)
        if end is None:
            end = read_stamps(Path(attempt.folder)).stamp().released_at or 0.0
        if self._clock.now() < end:
            return JobState(phase="running")
        outcome = read_stamps(Path(attempt.folder)).stamp().outcome
        return JobState(phase="succeeded" if outcome == "ok" else "failed")

    def cancel(self, attempt: Attempt) -> None:
        """Take back what would have come after this moment; harmless if it has ended."""
        folder, now = Path(attempt.folder), self._clock.now()
        if self.poll(attempt).done():
            return
        told = [x for x in files.read_jsonl(folder / files.STAMPS) if x["event"] != "released"]
        done = [x for x in files.read_jsonl(folder / files.STEPS) if x["t"] <= now]
        _rewrite(folder / files.STAMPS, [*told, {"event": "released", "t": now, "outcome": "stopped", "detail": "asked to stop"}])
        _rewrite(folder / files.STEPS, done)
        (folder / files.DONE).unlink(missing_ok=True)
        self._ends[attempt.submission_id] = now

    def files(self, attempt: Attempt) -> RunFiles:
        """Return what the launch left."""
        return RunFiles(folder=attempt.folder, stamp=read_stamps(Path(attempt.folder)).stamp())

    def close(self) -> None:
        """Nothing was started."""


def _rewrite(path: Path, lines: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(x, sort_keys=True) + "\n" for x in lines))


def _spread(identity: str) -> float:
    """Return a number in [-1, 1] that depends on the attempt alone."""
    return int(digest_of(identity)[:8], 16) / 0x7FFFFFFF - 1.0


def _write_steps(folder: Path, job: JobSpec, row: Row, *, step_s: float, start: float) -> float:
    arguments, now = job.job["arguments"], start
    tokens = int(arguments["global_batch_size"]) * int(arguments["seq_length"])
    warmup, steps = int(job.job["warmup_steps"]), int(job.job["steps"])
    for step in range(steps + int(job.job["profile_steps"])):
        now += step_s
        loss = row.losses[min(step, len(row.losses) - 1)]
        kind = "warmup" if step < warmup else ("scored" if step < steps else "profiled")
        line = {
            "step": step,
            "kind": kind,
            "t": now,
            "step_s": step_s,
            "lm_loss": loss if math.isfinite(loss) else str(loss),
            "loss_tokens": tokens,
            "tokens": tokens,
            "peak_mem_gib": row.peak_mem_gib,
        }
        files.append_jsonl(folder / files.STEPS, line)
    return now
