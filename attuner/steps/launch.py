"""launch: run one decided launch to its end and record what came of it, whatever that is.

A failed run is data: it comes back as a Trial with its cause and cost. Contact lost raises Transient, and the next call
attaches to the same attempt. An allocation proved gone closes the attempt, charged to its last heartbeat, and opens one
more; a second loss is a Trial with cause infrastructure. A search trial that is surely slower than the leader is ended early.
"""

from __future__ import annotations

from typing import Any

from attuner.core.base import digest_of
from attuner.core.campaign import Campaign
from attuner.core.errors import Broken
from attuner.core.events import History, attempt_key
from attuner.core.private import mask
from attuner.core.run import Attempt, Launch, Settlement, Trial
from attuner.policy import budget, people
from attuner.ports import JobSpec, JobState, Kit, RunFiles
from attuner.steps import early
from attuner.steps.common import past, put
from attuner.steps.triage import triaged

POLL_S = 0.25
HEAR_EVERY = 8
"""Polls between two looks at what people said meanwhile."""
LOST_LIMIT = 2
CHANCE = ("crash", "hang", "infrastructure")
"""What may end a run of a recipe that is known to run: a killed rank, a node's hiccup. Out of memory is no chance."""


def launch(kit: Kit, campaign_id: str, launch_id: str, *, again: bool = False) -> Trial:
    """Run the launch, or return its trial if it has one.

    Args:
        again: the measurement on record is invalid, or the baseline itself failed: make one fresh attempt of the same recipe.

    Raises:
        Transient: contact lost; call again, it attaches to the same attempt.
    """
    history = past(kit, campaign_id)
    decided = history.launch(launch_id)
    if decided is None:
        raise Broken(f"{campaign_id}: no launch {launch_id} on record; decide it first")
    trial = history.trial(launch_id)
    if trial is not None and not (again and _to_repeat(history, decided, trial) and _affordable(history, decided)):
        return trial
    seen = max(trial.attempt if trial else 0, history.rerun_after(launch_id))
    while True:
        history = past(kit, campaign_id)
        closed = _closed_without_trial(history, launch_id, after=seen)
        if closed is not None:
            return _record_trial(kit, campaign_id, closed, history)
        why = _not_to_launch(history, decided)
        if why:
            return _not_launched(kit, campaign_id, history, decided, why)
        attempt = _open_attempt(kit, campaign_id, history, decided)
        job = _job(kit, history, decided, attempt)
        attempt, state = follow(kit, campaign_id, attempt, job, ended_when=early.watch(kit, campaign_id, history, decided))
        settlement = settle(kit.launcher.files(attempt), attempt, gpus=job.gpus, state=state)
        if state.phase != "succeeded" and people.cancelled(past(kit, campaign_id)) is not None:
            settlement = settlement.model_copy(update={"interrupted": True})
        put(kit, campaign_id, "settled", attempt_key(launch_id, attempt.number), settlement)


def _to_repeat(history: History, decided: Launch, trial: Trial) -> bool:
    """Tell whether the launch gets a fresh attempt: its measurement is invalid, or it is the baseline's and failed by chance.

    There is one, not more. A candidate's failure is data and is not repeated: it may well be its own.
    """
    score = history.score(trial.launch_id)
    invalid = score is not None and not score.valid and score.attempt == trial.attempt
    failed = (
        decided.kind in ("prepare", "calibrate") and trial.status in CHANCE and trial.attempt > history.rerun_after(decided.id)
    )
    if not (invalid or failed):
        return False
    closed = [s for s in history.settlements() if s.launch_id == trial.launch_id and not s.lost and not s.interrupted]
    return sum(1 for s in closed if history.rerun_after(trial.launch_id) < s.attempt <= trial.attempt) < 2


def _affordable(history: History, decided: Launch) -> bool:
    """Tell whether a fresh attempt fits the budget; one that was begun already is carried on in any case."""
    trial = history.trial(decided.id)
    if trial is not None and any(a.number > trial.attempt for a in history.attempts(decided.id)):
        return True
    return budget.left_for(history, decided.kind) >= decided.reserve_gpu_hours


def _not_to_launch(history: History, decided: Launch) -> str:
    """Return why no further attempt may be opened: cancelled, or the budget does not pay for it, whatever had been reserved.

    An attempt that is open already is followed to its end.
    """
    attempts = history.attempts(decided.id)
    if attempts and history.settled(decided.id, attempts[-1].number) is None:
        return ""
    end = people.cancelled(history)
    if end is not None:
        return f"cancelled by {end.by}" + (f": {end.why}" if end.why else "")
    return budget.why_no_attempt(history, decided)


def _not_launched(kit: Kit, campaign_id: str, history: History, decided: Launch, why: str) -> Trial:
    """Record that a decided launch got no further attempt."""
    attempts = history.attempts(decided.id)
    cause = f"not launched{' again' if attempts else ''}: {why}"
    trial = Trial(
        launch_id=decided.id,
        attempt=attempts[-1].number if attempts else 0,
        status="infrastructure",
        cause=cause,
        gpu_hours=history.charge(decided.id),
    )
    put(kit, campaign_id, "trial", decided.id, trial)
    return trial


def _closed_without_trial(history: History, launch_id: str, *, after: int) -> Attempt | None:
    """Return the attempt whose outcome is final but not on record yet; None if there is something left to run.

    An attempt that was stopped together with its campaign is no outcome, and neither is the first lost allocation; one that was
    to be ended early is an outcome whatever else befell it.
    """
    closed = [(a, s) for a in history.attempts(launch_id) if a.number > after and (s := history.settled(launch_id, a.number))]
    lost = 0
    for attempt, settlement in closed:
        lost += settlement.lost
        if early.early_end(history, attempt) is not None:
            return attempt
        if not settlement.interrupted and (not settlement.lost or lost >= LOST_LIMIT):
            return attempt
    return None


def _open_attempt(kit: Kit, campaign_id: str, history: History, decided: Launch) -> Attempt:
    """Return the attempt that is not closed yet, or record a new one before anything is submitted."""
    attempts = history.attempts(decided.id)
    if attempts and history.settled(decided.id, attempts[-1].number) is None:
        return attempts[-1]
    number = len(attempts) + 1
    attempt = Attempt(
        launch_id=decided.id,
        number=number,
        submission_id=f"{campaign_id}-{decided.id}-a{number}",
        folder=str(kit.folder / "runs" / f"{decided.id}-a{number}"),
        submitted_at=kit.clock.now(),
        time_limit_s=budget.attempt_limit_s(history, decided),
    )
    put(kit, campaign_id, "attempt", attempt_key(decided.id, number), attempt)
    return attempt


def _job(kit: Kit, history: History, decided: Launch, attempt: Attempt) -> JobSpec:
    campaign = history.campaign()
    job = kit.stack.command(
        history.recipe(decided.recipe),
        campaign,
        kind=decided.kind,
        profile_steps=decided.profile_steps,
        inputs=inputs(kit, history, campaign, decided),
    )
    limits: dict[str, Any] = {"time_limit_s": attempt.time_limit_s or decided.time_limit_s, "hang_s": campaign.launch.hang_s}
    if lost := _lost_nodes(kit, history, decided):
        limits["job"] = {**job.job, "exclude_nodes": lost}
    return job.model_copy(update=limits)


def _lost_nodes(kit: Kit, history: History, decided: Launch) -> list[str]:
    """Return the nodes that went away under earlier attempts of this launch: the next one keeps off them."""
    lost = [a for a in history.attempts(decided.id) if (s := history.settled(decided.id, a.number)) and s.lost]
    return sorted({node for a in lost for node in kit.launcher.files(a).stamp.lost_nodes})


def inputs(kit: Kit, history: History, campaign: Campaign, decided: Launch) -> dict[str, Any]:
    """Return what a launch reads and writes: rows, checkpoint, where its data begin, which component it tests."""
    given = campaign.prepare.checkpoint
    checkpoint = given or (str(kit.folder / "inputs" / "checkpoint") if campaign.prepare.steps else None)
    rows = str(kit.folder / "inputs" / "rows")
    if decided.kind == "prepare":
        return {"rows": rows, "first_row": 0, "steps": campaign.prepare.steps, "load": None, "save": checkpoint}
    runs = [x.id for x in history.launches() if x.kind == "calibrate"]
    offset = runs.index(decided.id) if decided.id in runs else None
    return {
        "rows": rows,
        "first_row": campaign.prepare.steps * campaign.workload.global_batch,
        "steps": decided.steps or campaign.workload.steps,
        "load": checkpoint,
        "save": None,
        "placement_offset": offset,
        "component": decided.component,
    }


def follow(
    kit: Kit, campaign_id: str, attempt: Attempt, job: JobSpec, *, ended_when: early.Watch | None = None
) -> tuple[Attempt, JobState]:
    """Submit or attach, and wait for the end. Ctrl-C stops the job before it is passed on; so does a person who cancels.

    Args:
        ended_when: asked while the job runs; its yes ends the job.
    """
    if not attempt.address:
        where = kit.launcher.submit(attempt, job)
        if where != attempt:
            put(kit, campaign_id, "attempt", attempt_key(attempt.launch_id, attempt.number), where)
            attempt = where
    polls = 0
    try:
        while not (state := kit.launcher.poll(attempt)).done():
            polls += 1
            kit.watch.progress(attempt.launch_id, state.phase, kit.stack.progress(kit.launcher.files(attempt)))
            if (ended_when is not None and ended_when(attempt)) or (
                polls % HEAR_EVERY == 1 and people.cancelled(past(kit, campaign_id)) is not None
            ):
                kit.launcher.cancel(attempt)
            else:
                kit.clock.sleep(POLL_S)
    except Exception:
        raise  # contact lost: the job goes on, and the next call attaches to it
    except BaseException:
        _interrupted(kit, campaign_id, attempt, job.gpus)  # Ctrl-C, or a cancel that Prefect passes on
        raise
    return attempt, state


def _interrupted(kit: Kit, campaign_id: str, attempt: Attempt, gpus: int) -> None:
    """End the job and settle its charge; a resume opens the next attempt."""
    kit.launcher.cancel(attempt)
    stopped = settle(kit.launcher.files(attempt), attempt, gpus=gpus, state=JobState(phase="stopped"))
    settlement = stopped.model_copy(update={"interrupted": True})
    put(kit, campaign_id, "settled", attempt_key(attempt.launch_id, attempt.number), settlement)


def settle(files: RunFiles, attempt: Attempt, *, gpus: int, state: JobState) -> Settlement:
    """Return the charge of one attempt: from allocation to release, or to the last heartbeat if there was no release."""
    stamp = files.stamp
    start, end = stamp.allocated_at, stamp.released_at
    how = "released"
    if start is None:
        how, end = "never_allocated", None
    elif end is None:
        # the driver was killed outright: it held the devices at least until its last heartbeat
        how, end = "last_heartbeat", max(stamp.last_heartbeat or start, start)
    # never negative: a clock set back while the job ran must not earn device-hours
    hours = gpus * max(end - start, 0.0) / 3600.0 if start is not None and end is not None else 0.0
    if stamp.gpu_seconds is not None:
        how, hours = "pods", max(stamp.gpu_seconds, 0.0) / 3600.0
    return Settlement.model_validate(
        {
            "launch_id": attempt.launch_id,
            "attempt": attempt.number,
            "gpus": gpus,
            "allocated_at": start,
            "released_at": end,
            "gpu_hours": hours,
            "how": how,
            "lost": state.gone,
            "detail": mask(state.detail),
        }
    )


def _cut_short(history: History, attempt: Attempt) -> bool:
    """Tell whether the attempt had less time than its launch: the budget paid for no more."""
    decided = history.launch(attempt.launch_id)
    return decided is not None and attempt.time_limit_s is not None and attempt.time_limit_s < decided.time_limit_s


def _record_trial(kit: Kit, campaign_id: str, attempt: Attempt, history: History) -> Trial:
    files = kit.launcher.files(attempt)
    result, stamp = kit.stack.read(files), files.stamp
    settlement = history.settled(attempt.launch_id, attempt.number)
    if settlement is None:
        raise Broken(f"{attempt.submission_id}: a trial before its charge")
    status, cause = result.status, result.cause
    end = early.early_end(history, attempt)
    if end is not None and status not in ("ok", "oom", "hang"):  # these it was before the order to stop reached it
        status, cause = "stopped_early", end.cause
    elif settlement.lost or "never_allocated" in (settlement.how, stamp.outcome):  # pods held them for nobody, perhaps
        status, cause = "infrastructure", settlement.detail or stamp.detail or "the devices were never allocated"
    elif stamp.outcome == "time_limit" and _cut_short(history, attempt):
        cause = f"{cause}; {budget.NO_MORE}"
    stack = history.campaign().stack.name
    failure = triaged(files, kit.rules_dir, stack, status=status, cause=cause, phase=result.phase)
    trial = Trial.model_validate(
        {
            "launch_id": attempt.launch_id,
            "attempt": attempt.number,
            "status": status,
            "cause": mask(cause),
            "phase": result.phase,
            "failure": failure,
            "steps": [s.model_dump() for s in result.steps],
            "gpu_hours": history.charge(attempt.launch_id),
            "duration_s": settlement.gpu_hours * 3600.0 / settlement.gpus,
            "hosts": stamp.hosts,
            "hardware": stamp.hardware,
            "nodes": stamp.nodes,
            "versions": stamp.versions,
            "gpus": settlement.gpus if settlement.how != "never_allocated" else 0,
            "env": result.env,
            "config_digest": digest_of(result.arguments) if result.arguments else "",
            "other_load": stamp.other_load,
            "fingerprint": result.fingerprint,
            "unseen": result.unseen,
        }
    )
    put(kit, campaign_id, "trial", attempt.launch_id, trial)
    return trial
