"""profile: split the profiled steps of a launch into compute, exposed communication, host and idle."""

from __future__ import annotations

from attuner.core.errors import UserError
from attuner.core.judgement import Note
from attuner.core.run import StepBreakdown
from attuner.ports import Kit
from attuner.steps.common import past, put


def profile(kit: Kit, campaign_id: str, launch_id: str) -> StepBreakdown | None:
    """Record where the profiled steps went; None for a launch that failed or was not profiled."""
    history = past(kit, campaign_id)
    known, trial = history.breakdown(launch_id), history.trial(launch_id)
    if known is not None and trial is not None and known.attempt == trial.attempt:
        return known
    if trial is None or trial.status != "ok":
        return None
    attempt = next(a for a in history.attempts(launch_id) if a.number == trial.attempt)
    try:
        rank_steps = kit.stack.trace(kit.launcher.files(attempt))
    except UserError as error:
        # a torn trace costs the diagnosis of one launch, not the campaign
        put(kit, campaign_id, "note", f"trace {launch_id}", Note(text=f"{launch_id}: no breakdown: {error}"))
        return None
    if not rank_steps:
        return None
    breakdown = StepBreakdown(launch_id=launch_id, attempt=trial.attempt, rank_steps=rank_steps)
    put(kit, campaign_id, "breakdown", launch_id, breakdown)
    return breakdown
