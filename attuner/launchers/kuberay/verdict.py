"""What has become of an attempt: the RayJob's status, its reason and the driver's stamps, judged. Pure.

The driver's own word counts first: what it stamped as released is the run's own outcome, whatever Kubernetes says after it.
"""

from __future__ import annotations

from typing import Any, Literal

from attuner.core.base import Record
from attuner.launchers.kuberay.pods import seconds
from attuner.launchers.kuberay.reasons import Reason
from attuner.ports import Stamp

NOT_YET = ("", "Initializing", "Running", "Waiting", "Retrying", "Suspending", "Suspended")
NEVER = "never_allocated"
BROKEN = ("node_lost", "infrastructure")
"""Outcomes that a driver gives to an allocation that broke under the ranks."""
WORDS = {
    "": "submitted",
    "Initializing": "starting",
    "Running": "running",
    "Waiting": "starting",
    "Retrying": "starting",
    "Suspending": "queued",
    "Suspended": "queued",
    "Complete": "ending",
    "Failed": "ending",
    "ValidationFailed": "ending",
}


class Verdict(Record):
    """How an attempt ended. `lost`: the cluster took it away, and it says nothing of the recipe."""

    phase: Literal["succeeded", "failed", "stopped"]
    detail: str = ""
    lost: bool = False
    outcome: str = ""
    """Stands in for the driver's outcome where it left none."""


def judge(
    job: dict[str, Any] | None, reason: Reason | None, stamp: Stamp, *, now: float, queue_timeout_s: float
) -> Verdict | None:
    """Return how the attempt ended, None while it may still run.

    Args:
        job: the RayJob; None: it is proved to be gone.
        reason: what stands in the way, if anything.
        stamp: of the driver.
    """
    told = _own(stamp)
    if job is None:
        return told or _stranded("the RayJob was deleted by somebody else", stamp, lost=True)
    status = job.get("status") or {}
    stage, message = status.get("jobDeploymentStatus", ""), " ".join(str(status.get("message", "")).split())[:240]
    if stage in NOT_YET:
        return _waiting(job, stage, reason, stamp, now, queue_timeout_s)
    if told is not None:
        return told
    why = status.get("reason", "")
    because = "; ".join(x for x in (reason.line if reason else "", f"{why}: {message}" if why else message) if x)
    if stage == "ValidationFailed":
        return Verdict(phase="failed", detail=f"KubeRay refuses the RayJob: {message}", outcome=NEVER)
    if why == "DeadlineExceeded" and stamp.allocated_at is not None:
        return Verdict(phase="failed", detail=because, outcome="time_limit")
    if why == "JobStatusCheckTimeoutExceeded":
        return _stranded(f"the Ray head did not answer: {because}", stamp, lost=True)
    return _stranded(because or f"KubeRay says {stage} and no more", stamp, lost=reason is not None and reason.lost)


def _own(stamp: Stamp) -> Verdict | None:
    """Return the driver's own verdict, if it has released the devices."""
    if not stamp.outcome:
        return None
    if stamp.outcome == "stopped":  # an order of ours would be on record, and nothing would be judged
        return Verdict(
            phase="stopped", detail="stopped by somebody else: the RayJob was deleted, or the Ray job stopped", lost=True
        )
    return Verdict(phase="succeeded" if stamp.outcome == "ok" else "failed", detail=stamp.detail, lost=stamp.outcome in BROKEN)


def _stranded(detail: str, stamp: Stamp, *, lost: bool) -> Verdict:
    """Return the verdict on an attempt whose driver left no word: killed while it held devices, or never begun."""
    if stamp.allocated_at is None:
        return Verdict(phase="failed", detail=detail, lost=lost, outcome=NEVER)
    return Verdict(phase="failed", detail=detail, lost=True)


def _waiting(
    job: dict[str, Any], stage: str, reason: Reason | None, stamp: Stamp, now: float, queue_timeout_s: float
) -> Verdict | None:
    if (told := _own(stamp)) is not None:
        return told  # KubeRay will say so too, some seconds of every device later
    if stage in ("Suspending", "Suspended") and stamp.allocated_at is not None:
        # resumed, it would train a second time within the same attempt
        return _stranded("suspended while it ran (Kueue preempted it?)", stamp, lost=True)
    if stage == "Suspended" and now - (seconds(job["metadata"].get("creationTimestamp")) or now) > queue_timeout_s:
        why = f": {reason.line}" if reason else ""
        return Verdict(phase="failed", detail=f"not admitted within {queue_timeout_s:g} s{why}", outcome=NEVER)
    if reason is None or not reason.final:
        return None
    if reason.kind == "oom_killed":  # the run's own doing: it would happen again
        return Verdict(phase="failed", detail=reason.line, outcome="crash")
    return _stranded(reason.line, stamp, lost=reason.lost)


def words(job: dict[str, Any], stamp: Stamp) -> str:
    """Return the phase of an attempt that goes on, in one word."""
    status = job.get("status") or {}
    if stamp.allocated_at is not None and not stamp.outcome:
        return "running"
    word = WORDS.get(status.get("jobDeploymentStatus", ""), "starting")
    return "starting" if word == "running" else word
