"""score: is the measurement valid, do the second and the third look admit it, how fast is it, does it lead."""

from __future__ import annotations

from attuner.core.events import History
from attuner.core.judgement import Decision, Score, worst
from attuner.core.run import Launch, Trial
from attuner.policy import measure
from attuner.ports import Kit
from attuner.steps.common import check_lock, past, put
from attuner.steps.looks import looks


def score(kit: Kit, campaign_id: str, launch_id: str) -> Score | None:
    """Record the score of a launch; None for one that failed (its trial says why).

    Raises:
        RegisterChanged: rules/ or the judging code moved since birth.
        Transient: a check launch lost contact with its job.
    """
    history = past(kit, campaign_id)
    trial, launch = history.trial(launch_id), history.launch(launch_id)
    if trial is None or launch is None or trial.status != "ok":
        return None
    known = history.score(launch_id)
    if known is not None and known.attempt == trial.attempt:
        return known
    campaign = history.campaign()
    check_lock(kit, campaign)
    first = _first_calibration(history) or trial
    why = measure.invalid_because(trial, campaign, hardware=first.hardware) or _unlike_resolved(history, launch, trial)
    if why:
        invalid = Score(launch_id=launch_id, attempt=trial.attempt, valid=False, why_invalid=why)
        put(kit, campaign_id, "score", launch_id, invalid)
        return invalid
    found = looks(kit, campaign_id, trial, launch)
    result = _scored(history, trial, launch, worst([found.forward.decision, found.update.decision]))
    put(kit, campaign_id, "score", launch_id, result)
    return result


def _unlike_resolved(history: History, launch: Launch, trial: Trial) -> str:
    """Return what is wrong if the run's own final arguments are not those that the gate judged."""
    effective = history.effective(launch.recipe)
    if effective is None or trial.config_digest != effective.argument_digest():
        return "the run's final arguments are not those that were judged; see config.json in its folder"
    first = _first_calibration(history) or trial
    if trial.env is None or first.env is None:
        return ""
    wrong = [k for k, v in effective.env.items() if trial.env.get(k) != v]
    judged = effective.env.keys() | _judged_env(history)
    others = (trial.env.keys() | first.env.keys()) - judged
    wrong += [k for k in others if trial.env.get(k) != first.env.get(k)]
    return f"the ranks' environment is not the judged one: {', '.join(sorted(wrong))}" if wrong else ""


def _first_calibration(history: History) -> Trial | None:
    """Return the first baseline run that ended well: every other run is compared with it."""
    trials = (history.trial(x.id) for x in history.launches() if x.kind == "calibrate")
    return next((t for t in trials if t is not None and t.status == "ok"), None)


def _judged_env(history: History) -> set[str]:
    """Return the variables of the baseline's own judged environment: a candidate may lack one that it was judged without."""
    baseline = history.effective(history.campaign().baseline.digest())
    return set(baseline.env) if baseline else set()


def _scored(history: History, trial: Trial, launch: Launch, decision: Decision) -> Score:
    campaign, calibration = history.campaign(), history.calibration()
    speed = measure.speed(trial, campaign.workload)
    leader_speed = history.leader_speed() or speed
    admitted = decision == "admit"
    wins = (
        launch.kind == "search" and admitted and calibration is not None and measure.leads(speed, leader_speed, calibration.band)
    )
    return Score(
        launch_id=trial.launch_id,
        attempt=trial.attempt,
        valid=True,
        decision=decision,
        tokens_per_s_per_gpu=speed,
        step_s=measure.step_seconds(trial),
        gain=speed / leader_speed - 1.0,
        gain_over_baseline=speed / calibration.mean - 1.0 if calibration else 0.0,
        new_leader=wins,
        leader_before=history.leader(),
    )
