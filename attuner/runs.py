"""Reads what a launch left in its folder, for every stack whose runner writes attuner's own files: steps, final values,
fingerprint, traces, the driver's last word. What is on disk is untrusted: a malformed line is an outcome, never a crash."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from attuner import benchmarking
from attuner.core.errors import UserError
from attuner.core.fingerprint import Fingerprint
from attuner.core.recipe import EffectiveConfig
from attuner.core.run import RankStep, StepRecord
from attuner.ports import RunFiles, RunResult
from attuner.runner import files as run_files
from attuner.traces.kineto import breakdown

FAILED = {"oom": "oom", "hang": "hang", "time_limit": "hang"}


def read_result(files: RunFiles) -> RunResult:
    """Return steps and outcome of a finished run; what it reported of its final arguments is passed on as it is."""
    folder, stamp = Path(files.folder), files.stamp
    try:
        steps = steps_of(folder)
        config = run_files.read_json(folder / run_files.CONFIG) if (folder / run_files.CONFIG).exists() else {}
        told = EffectiveConfig(arguments=config.get("arguments", {}), env=config.get("env", {}), facts={})
    except (ValueError, AttributeError) as error:
        cause = f"the run's files can't be read: {' '.join(str(error).split())[:200]}"
        return RunResult(steps=[], status="crash", cause=cause, phase="reading")
    if stamp.outcome == "ok":
        done = (folder / run_files.DONE).exists() or (folder / run_files.COMPONENT).exists()
        status, cause = ("ok", "") if done else ("crash", "the ranks ended without their last word (done.json)")
    else:
        status, cause = FAILED.get(stamp.outcome, "crash"), stamp.detail or "the driver died without a word"
    return RunResult(
        steps=steps,
        status=status,
        cause=cause,
        phase=stamp.phase,
        arguments=told.arguments,
        env=told.env if "env" in config else None,
        **fingerprint_of(folder),
    )


def num_steps(files: RunFiles) -> int:
    """Return how many steps a running attempt has written."""
    return len(run_files.read_jsonl(Path(files.folder) / run_files.STEPS))


def rank_steps(files: RunFiles) -> list[RankStep]:
    """Return the breakdown of every rank's profiled steps, from the traces that the ranks left."""
    found: list[RankStep] = []
    folder = Path(files.folder)
    for rank, path in enumerate(sorted((folder / run_files.TRACES).glob("rank*.json"), key=_rank_of)):
        found += breakdown(path.read_bytes(), rank=rank)
    return found


class RunFolders:
    """The reading half of a stack that wraps a training program: what a launch left in its folder, in attuner's own files."""

    name: str
    wrapped: tuple[str, ...]
    """The arguments that a launch itself sets or drops (see benchmarking.as_judged)."""
    components: frozenset[str] = frozenset()

    def read(self, files: RunFiles) -> RunResult:
        """Return steps and outcome; see ports.Stack."""
        result, job = read_result(files), Path(files.folder) / run_files.JOB
        if not result.arguments or not job.exists():
            return result
        told = benchmarking.as_judged(result.arguments, run_files.read_json(job).get("judged", {}), self.wrapped)
        return result.model_copy(update={"arguments": told})

    def progress(self, files: RunFiles) -> int:
        """Return how many steps are written."""
        return num_steps(files)

    def component(self, files: RunFiles) -> dict[str, Any]:
        """Refuse: such a stack has no component tests. Raises UserError."""
        raise UserError(f"stack {self.name} has no component tests")

    def trace(self, files: RunFiles) -> list[RankStep]:
        """Return the breakdown of every rank's profiled steps."""
        return rank_steps(files)


def steps_of(folder: Path) -> list[StepRecord]:
    """Return the steps that a run wrote. Raises ValueError for a line that isn't a step."""
    return [StepRecord.model_validate(_known(x)) for x in run_files.read_jsonl(folder / run_files.STEPS)]


def fingerprint_of(folder: Path) -> dict[str, Any]:
    """Return what the probe left, or why that can't be used; it is untrusted, like all that a run leaves."""
    path = folder / run_files.FINGERPRINT
    if not path.exists():
        return {"unseen": f"the run left no {run_files.FINGERPRINT}"}
    try:
        return {"fingerprint": Fingerprint.model_validate(run_files.read_json(path))}
    except (ValueError, OSError) as error:
        return {"unseen": f"{run_files.FINGERPRINT} can't be read: {' '.join(str(error).split())[:200]}"}


def _rank_of(path: Path) -> int:
    digits = "".join(c for c in path.stem if c.isdigit())
    return int(digits or 0)


def _known(line: Any) -> dict[str, Any]:
    if not isinstance(line, dict):
        raise ValueError(f"a step line is not a mapping: {line!r:.80}")
    return {k: v for k, v in line.items() if k in StepRecord.model_fields}
