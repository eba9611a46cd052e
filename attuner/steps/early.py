"""early: watches a running search trial and says when it is to be ended. What it decides is on record before the job is stopped,
so that a crash in between ends it all the same.
"""

from __future__ import annotations

from collections.abc import Callable

from attuner.core.events import History, attempt_key
from attuner.core.run import Attempt, EarlyEnd, Launch
from attuner.policy import early as policy
from attuner.policy.conduct import SHIPPED
from attuner.ports import Kit
from attuner.steps.common import put

Watch = Callable[[Attempt], bool]
"""Tells whether an attempt is to be ended now; asked while it runs."""


def watch(kit: Kit, campaign_id: str, history: History, launch: Launch) -> Watch | None:
    """Return what watches a launch, or None: only search launches are ended early, and only where the campaign wants it."""
    campaign = history.campaign()
    if launch.kind != "search" or not campaign.early_stop.enabled:
        return None
    yard = policy.yardstick(history)
    hypothesis = history.hypothesis(launch.hypothesis)
    if hypothesis is not None and hypothesis.group == SHIPPED:
        return None  # by how much a shipped recipe became slower is worth its whole measurement
    abort = hypothesis.abort if hypothesis else None
    seen = 0

    def due(attempt: Attempt) -> bool:
        nonlocal seen
        if early_end(history, attempt) is not None:
            return True  # decided before a crash
        files = kit.launcher.files(attempt)
        done = kit.stack.progress(files)
        if done <= seen:
            return False
        written = kit.stack.read(files).steps
        # a replayed run may have written steps whose time has not come
        steps = [s for s in written if s.t <= kit.clock.now()]
        seen = len(steps) if len(steps) < len(written) else done
        cause = policy.aborted(steps, abort, num_scored=len(campaign.workload.scored_steps()))
        cause = cause or (policy.surely_slower(steps, yard) if yard else "")
        if cause:
            end = EarlyEnd(launch_id=attempt.launch_id, attempt=attempt.number, step=steps[-1].step, cause=cause)
            put(kit, campaign_id, "early_end", attempt_key(attempt.launch_id, attempt.number), end)
        return bool(cause)

    return due


def early_end(history: History, attempt: Attempt) -> EarlyEnd | None:
    """Return why an attempt was ended early, if it was."""
    return history.find("early_end", attempt_key(attempt.launch_id, attempt.number), EarlyEnd)
