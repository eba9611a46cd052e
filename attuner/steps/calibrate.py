"""calibrate: make the common checkpoint, run the baseline at least five times, and take mean, σ and band from the runs."""

from __future__ import annotations

from attuner.core.errors import UserError
from attuner.core.events import History
from attuner.core.judgement import Calibration, Note
from attuner.core.run import Trial
from attuner.policy import budget, measure, people
from attuner.ports import Kit
from attuner.steps.birth import complete
from attuner.steps.common import decide, past, put, put_recipe


def plan_prepare(kit: Kit, campaign_id: str) -> str:
    """Return the id of the launch that makes the checkpoint, or '' if none is to be made."""
    complete(kit, campaign_id)
    campaign = past(kit, campaign_id).campaign()
    if campaign.prepare.checkpoint or not campaign.prepare.steps:
        return ""
    recipe = campaign.baseline.changed(campaign.prepare.arguments)
    digest = put_recipe(kit, campaign_id, recipe, kit.stack.resolve(recipe, campaign))
    return decide(kit, campaign_id, "prepare", digest, "checkpoint").id


def plan_calibration(kit: Kit, campaign_id: str, *, number: int) -> list[str]:
    """Return the launch ids of one round of baseline runs; the last one is profiled after its scored steps.

    A second round that the budget does not pay for is not run: the campaign goes on with the first round's wide band.

    Raises:
        UserError: the checkpoint that every run starts from could not be made.
    """
    history = past(kit, campaign_id)
    campaign = history.campaign()
    _check_prepared(history)
    planned = any(x.purpose.startswith(f"round {number} ") for x in history.launches() if x.kind == "calibrate")
    if history.find("note", f"calibration {number}", Note) is not None:
        return []  # it was not affordable when it was due; a budget that is freed later must not change the band
    if number > 1 and not planned:
        left, need = budget.remaining(history), campaign.noise.calibration_runs * budget.reserve(history)
        if left < need:
            text = f"no second calibration: it reserves {need:.4f} device-hours, {left:.4f} are left; the wide band holds"
            put(kit, campaign_id, "note", f"calibration {number}", Note(text=text))
            return []
    digest = campaign.baseline.digest()
    return [
        decide(
            kit,
            campaign_id,
            "calibrate",
            digest,
            f"round {number} run {run + 1}",
            profile_steps=campaign.launch.profile_steps if run == campaign.noise.calibration_runs - 1 else 0,
        ).id
        for run in range(campaign.noise.calibration_runs)
    ]


def _check_prepared(history: History) -> None:
    """Raise UserError if the launch that makes the checkpoint failed: every run after it would fail for want of it, and cost."""
    trials = [history.trial(x.id) for x in history.launches() if x.kind == "prepare"]
    failed = next((t for t in trials if t is not None and t.status != "ok"), None)
    if failed is None or people.cancelled(history) is not None:
        return
    campaign = history.campaign()
    raise UserError(
        f"{campaign.source_file}: prepare: {failed.launch_id} made no checkpoint ({failed.status}: {failed.cause}); mend the "
        f"cause, then `attuner rerun {campaign.id} launch {failed.launch_id}`"
    )


def _refusal(history: History, trial: Trial) -> str:
    """Return what the looks refuse about a baseline run: it is dead, not finite, or not the same as the first one."""
    found = [f for v in history.looks(trial.launch_id, trial.attempt) for f in v.refusals()]
    return found[0].line().removeprefix("refuse  ") if found else "its looks refuse it"


def calibrate(kit: Kit, campaign_id: str, *, number: int) -> Calibration | None:
    """Record mean, σ and band of one round; None if the campaign was cancelled before.

    Raises:
        UserError: the baseline itself fails, or could not be measured.
    """
    history = past(kit, campaign_id)
    known = history.find("calibration", str(number), Calibration)
    if known is not None or people.cancelled(history) is not None:
        return known
    campaign = history.campaign()
    trials = []
    for launch_id in plan_calibration(kit, campaign_id, number=number):
        trial, score = history.trial(launch_id), history.score(launch_id)
        if trial is None or trial.status != "ok":
            what = f"{trial.status}: {trial.cause}" if trial else "did not run"
            mend = "raise budget.gpu_hours" if budget.NO_MORE in what else "mend the recipe first"
            raise UserError(f"{campaign.source_file}: baseline: calibration run {launch_id} failed ({what}); {mend}")
        if score is None or not score.valid:
            why = score.why_invalid if score else "not scored"
            raise UserError(f"{campaign.source_file}: baseline: {launch_id} is no valid measurement, twice: {why}")
        if score.decision == "refuse":
            raise UserError(f"{campaign.source_file}: baseline: {launch_id}: {_refusal(history, trial)}; mend the recipe")
        trials.append(trial)
    calibration = measure.calibrate(trials, campaign, number=number)
    put(kit, campaign_id, "calibration", str(number), calibration)
    return calibration
