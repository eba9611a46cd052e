"""Reads a finished run without its campaign: the folder of a launch or of an attached probe, or a plain Megatron log.

What is there decides which looks are possible: `config.json` the first, `steps.jsonl` or a log the second, `fingerprint.json`
the third.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from attuner.core.errors import UserError
from attuner.core.recipe import EffectiveConfig
from attuner.core.run import Evidence, StepRecord
from attuner.runner import files as run_files
from attuner.runs import fingerprint_of, steps_of
from attuner.stacks.megatron.log import LoggedRun, read_log

LOG_STACK = "megatron"


@dataclass(frozen=True)
class FinishedRun:
    """One run as two looks and a half see it."""

    evidence: Evidence
    stack: str = ""
    """Name of its stack; '' if nothing says it."""
    config: EffectiveConfig | None = None
    no_config: str = ""
    """Why there are no final values."""
    global_batch: dict[int, int] = field(default_factory=dict)
    """Rows of each step's update, where a log says them."""
    notes: list[str] = field(default_factory=list)


def read_run(path: Path) -> FinishedRun:
    """Return what a run left.

    Raises:
        UserError: nothing is there, or what is there can't be read; one line.
    """
    if path.is_dir():
        return _folder(path)
    if not path.is_file():
        raise UserError(f"{path}: no such run: name a run's folder, or a Megatron log file")
    logged = _log(path)
    if not logged.steps:
        raise UserError(f"{path}: no iteration line of Megatron-LM in it; give it the log of the last rank")
    unseen = "a log holds no gradients per family"
    evidence = Evidence(label=str(path), steps=logged.steps, unseen=unseen, printed=True)
    return FinishedRun(evidence, LOG_STACK, None, "a log holds no final values", logged.global_batch, logged.notes())


def _folder(path: Path) -> FinishedRun:
    try:
        steps = steps_of(path)
        job = run_files.read_json(path / run_files.JOB) if (path / run_files.JOB).exists() else {}
        config = run_files.read_json(path / run_files.CONFIG) if (path / run_files.CONFIG).exists() else None
    except (ValueError, OSError) as error:
        raise UserError(f"{path}: can't be read: {' '.join(str(error).split())[:200]}") from None
    probed = fingerprint_of(path)
    seen = probed.get("fingerprint")
    logged = LoggedRun()
    if not steps or (seen is not None and len(steps) <= len(seen.steps)):
        logged = next((found for log in sorted([*path.glob("*.txt"), *path.glob("*.log")]) if (found := _log(log)).steps), logged)
    printed = bool(logged.steps)
    if not steps and not printed and seen is not None:
        steps = [_from_probe(s.step, s.loss, s.aux) for s in seen.steps if s.loss is not None]
    if not steps and not printed and seen is None:
        raise UserError(f"{path}: no {run_files.STEPS}, no {run_files.FINGERPRINT}, no Megatron log in it: not a run's folder")
    evidence = Evidence(
        label=str(path),
        steps=_joined(steps, logged),
        fingerprint=seen,
        unseen=str(probed.get("unseen", "")),
        precision=seen.precision if seen else "",
        printed=printed and not steps,
    )
    effective, why = _config(config, job)
    return FinishedRun(evidence, str(job.get("stack", "")), effective, why, logged.global_batch, logged.notes())


def _log(path: Path) -> LoggedRun:
    return read_log(path.read_text(encoding="utf-8", errors="replace"))


def _joined(steps: list[StepRecord], logged: LoggedRun) -> list[StepRecord]:
    """Return the steps that the run wrote, and beyond them those that its log tells."""
    known = {s.step for s in steps}
    return sorted([*steps, *(s for s in logged.steps if s.step not in known)], key=lambda s: s.step)


def _from_probe(step: int, loss: float, aux: dict[str, float | None]) -> StepRecord:
    told = {k: v for k, v in aux.items() if v is not None}
    return StepRecord(step=step, kind="warmup", t=0.0, step_s=0.0, lm_loss=loss, aux=told, loss_tokens=None, tokens=0)


def _config(config: Any, job: dict[str, Any]) -> tuple[EffectiveConfig | None, str]:
    """Return final values as the stack's resolver would give them, or why there are none."""
    if not isinstance(config, dict) or "arguments" not in config:
        return None, f"the run left no {run_files.CONFIG}"
    facts = {k: v for k, v in config.get("facts", {}).items() if k != "expert_tensor_parallel_size"}
    if job:
        facts["device_kind"] = job.get("device", {}).get("kind", "cpu")
        facts["initial_weights"] = "checkpoint" if job.get("load") else "random"
    try:
        return (
            EffectiveConfig(
                arguments=config["arguments"],
                env=config.get("env", {}),
                facts=facts,
                versions={k: str(v) for k, v in config.get("versions", {}).items()},
            ),
            "",
        )
    except ValueError as error:
        return None, f"{run_files.CONFIG} can't be read: {' '.join(str(error).split())[:160]}"
