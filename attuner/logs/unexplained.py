"""Logs in which no rule finds a failure: what their training steps show, and what to say where nothing shows anything."""

from __future__ import annotations

from collections.abc import Sequence

from attuner.core.failure import UNDETERMINED, EvidenceLine, Failure
from attuner.logs.lines import shown
from attuner.logs.record import LogRecord
from attuner.logs.scan import LogScan

MAX_EVIDENCE = 6


def by_steps(scans: Sequence[LogScan]) -> Failure | None:
    """Return what the steps themselves show: a loss that is no number, or two runs that do not train the same."""
    for scan in scans:
        if scan.progress.bad is not None:
            return _not_a_number(scan.name, scan.progress.bad)
        if scan.progress.twice is not None:
            return _two_runs(scan.name, *scan.progress.twice)
    return None


def _not_a_number(name: str, step: LogRecord) -> Failure:
    return Failure(
        kind="numeric.nan",
        phase="training",
        rule="STEPS-NAN",
        why=f"iteration {step.iteration}: loss or gradient norm is no number (Megatron leaves out a loss that isn't one)",
        evidence=[EvidenceLine(file=name, line=step.line, text=_said(step), rank=step.rank)],
        retry="no",
        action=f"go back to a checkpoint before iteration {step.iteration}; look at that step's batch and the norms before it",
        open="whether data, optimisation or a device made it: run that step again, on the same and on another device",
    )


def _two_runs(name: str, before: LogRecord, after: LogRecord) -> Failure:
    ratio = (after.elapsed_ms or 0.0) / (before.elapsed_ms or 1.0)
    return Failure(
        kind="perf.regression",
        phase="training",
        rule="STEPS-TWICE",
        why=f"iteration {before.iteration} of the same samples twice, in {ratio:.2f} of the time and with another loss: "
        "not the same training",
        evidence=[EvidenceLine(file=name, line=x.line, text=_said(x), rank=x.rank) for x in (before, after)],
        retry="no",
        action="compare the final arguments of both runs (`attuner gate --runs`); speeds say nothing while losses differ",
        open="which default or version made the difference",
    )


def _said(step: LogRecord) -> str:
    told = [f"iteration {step.iteration}"]
    told += [f"lm loss {step.lm_loss:.6g}"] if step.lm_loss is not None else []
    told += [f"grad norm {step.grad_norm:.4g}"] if step.grad_norm is not None else []
    told += [f"{step.elapsed_ms:.1f} ms"] if step.elapsed_ms is not None else []
    return " | ".join(told)


def unknown(scans: Sequence[LogScan]) -> Failure:
    """Return a diagnosis that claims nothing: the first error that no rule knows, or the logs' last lines."""
    failed = [(scan, line, text) for scan in scans for line, text in scan.failed]
    if failed:
        return Failure(
            kind=UNDETERMINED,
            seen="crash.unknown_error",
            rank=failed[0][1].rank,
            why="an error that no rule knows",
            evidence=[EvidenceLine(file=s.name, line=x.number, text=shown(t), rank=x.rank) for s, x, t in failed[:MAX_EVIDENCE]],
            retry="unknown",
            action="read the first error and its stack; if its cause is known, add a rule (docs/triage.md)",
            open="what led to it",
        )
    tails = [EvidenceLine(file=s.name, line=n, text=shown(t)) for s in scans for n, t in list(s.tail)[-1:]]
    return Failure(
        kind=UNDETERMINED,
        seen="nothing",
        phase="training" if any(s.progress.num_steps for s in scans) else "",
        why="no line of an error, and no sign of a known failure",
        evidence=tails[:MAX_EVIDENCE],
        retry="unknown",
        action="give the logs of all ranks, of the launcher and of the kernel (dmesg); for a hang, stacks of all ranks (py-spy)",
        open="why these logs end where they do",
    )
