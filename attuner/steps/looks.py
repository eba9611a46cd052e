"""The second and the third look at a finished launch, on record before anything is scored; and the check launches that decide
what lies between the limits: baseline and candidate once more, in fp32, for the observed steps and one more."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from attuner.config import REPLAY, load_tolerances
from attuner.core.campaign import OBSERVED_STEPS, Campaign
from attuner.core.errors import BudgetExceeded, Refused
from attuner.core.events import History, attempt_key, update_key
from attuner.core.judgement import Finding, Verdict, verdict_of
from attuner.core.recipe import Recipe
from attuner.core.run import Evidence, Launch, Trial
from attuner.policy.forward import forward_look
from attuner.policy.update import update_look
from attuner.policy.zones import Limits
from attuner.ports import Kit
from attuner.steps.common import decide, past, put, put_recipe
from attuner.steps.launch import launch

CHECK_STEPS = OBSERVED_STEPS + 1
"""The last one shows what the last observed update did."""
BASELINE_CHECK = "fp32 check of the baseline"


@dataclass(frozen=True)
class Looks:
    """The two verdicts on one attempt."""

    forward: Verdict
    update: Verdict

    def findings(self) -> list[Finding]:
        """Return the findings of both."""
        return [*self.forward.findings, *self.update.findings]


def looks(kit: Kit, campaign_id: str, trial: Trial, decided: Launch) -> Looks:
    """Return the second and the third look at a finished run, and record those that are not on record yet.

    Raises:
        Transient: a check launch lost contact with its job.
    """
    keys = attempt_key(trial.launch_id, trial.attempt), update_key(trial.launch_id, trial.attempt)
    history = past(kit, campaign_id)
    first, second = history.verdict(keys[0]), history.verdict(keys[1])
    if first is not None and second is not None:
        return Looks(first, second)
    found = _decided_by_check(kit, campaign_id, decided, _judged(kit, history, trial, decided))
    # a crash between the two records leaves one; the other is judged again from the same evidence and the same checks
    for key, known, verdict in ((keys[0], first, found.forward), (keys[1], second, found.update)):
        if known is None:
            put(kit, campaign_id, "verdict", key, verdict)
    return Looks(first or found.forward, second or found.update)


def limits_of(kit: Kit, campaign: Campaign) -> Limits:
    """Return the stack's limits; a campaign may tighten the one on the first loss, never widen it."""
    return load_tolerances(kit.rules_dir, campaign.stack.name).capped(loss_step0=campaign.gate.step0_loss_tolerance)


def references(history: History, trial: Trial) -> list[Evidence]:
    """Return the baseline's calibration runs that ended well before this one was judged, this one left out."""
    campaign = history.campaign()
    runs = (history.trial(x.id) for x in history.launches() if x.kind == "calibrate" and x.id != trial.launch_id)
    return [
        Evidence.of(t, campaign.baseline.digest(), precision=campaign.workload.precision)
        for t in runs
        if t is not None and t.status == "ok" and _counts(history, t)
    ]


def _counts(history: History, trial: Trial) -> bool:
    score = history.score(trial.launch_id)
    return score is None or score.valid or score.attempt != trial.attempt


def _judged(kit: Kit, history: History, trial: Trial, decided: Launch) -> Looks:
    campaign = history.campaign()
    limits, reference = limits_of(kit, campaign), references(history, trial)
    candidate = Evidence.of(trial, decided.recipe, precision=campaign.workload.precision)
    subject, replayed = attempt_key(trial.launch_id, trial.attempt), campaign.gate.probe == "optional"
    if campaign.stack.name == REPLAY:
        return Looks(_not_available("forward", subject, decided.recipe), _not_available("update", subject, decided.recipe))
    forward = forward_look(reference, candidate, limits=limits, subject=subject, recipe=decided.recipe, replayed=replayed)
    own = decided.recipe == campaign.baseline.digest()
    update = update_look(reference, candidate, limits=limits, subject=subject, recipe=decided.recipe, replayed=replayed, own=own)
    return Looks(forward, update)


def _not_available(look: Literal["forward", "update"], subject: str, recipe: str) -> Verdict:
    """Return the verdict of a look that can't be taken: stack `replay` plays figures, nothing is trained, and nothing ships."""
    name = {"forward": "second look", "update": "third look"}[look]
    reason = "not available (replay): a table holds no losses, batches or gradients"
    return verdict_of(look, subject, recipe, [Finding(rule="replay", decision="admit", key=name, reason=reason)])


# ------------------------------------------------------------------------------------------------- check launches


def _decided_by_check(kit: Kit, campaign_id: str, decided: Launch, found: Looks) -> Looks:
    """Return the looks with what a check launch decides, if it is all that stands between the run and being admitted."""
    campaign = past(kit, campaign_id).campaign()
    if not worth_a_check(found.findings()) or decided.recipe == campaign.baseline.digest():
        return found
    if campaign.gate.checks == "manual":
        return _reviewed(found, "gate.checks is manual")
    outcome = fp32_check(kit, campaign_id, decided.recipe)
    if isinstance(outcome, str):
        return _reviewed(found, outcome)
    said = outcome.said()
    return Looks(settled(found.forward, said), settled(found.update, said))


def worth_a_check(findings: Sequence[Finding]) -> bool:
    """Tell whether a check launch can change what is said of a run: something in it can be checked, and nothing refuses it.

    Where something else is open too, a check can't admit the run, but it can still show that it is wrong.
    """
    return any(f.check for f in findings) and all(f.decision != "refuse" for f in findings)


@dataclass(frozen=True)
class Check:
    """Baseline and candidate in fp32, and what the looks say of them there."""

    baseline: str
    candidate: str
    looks: Looks

    def said(self) -> Finding:
        """Return what the check says of the candidate, as the one finding that decides."""
        bad = [f for f in self.looks.findings() if f.decision != "admit"]
        names = f"check launch {self.candidate} against {self.baseline}, both in fp32"
        if not bad:
            measured = [f for f in self.looks.findings() if f.deviation is not None and f.tolerance]
            worst = max(measured, key=lambda f: (f.deviation or 0.0) / (f.tolerance or 1.0), default=None)
            near = f"; nearest to its limit: {worst.key}, {worst.reason}" if worst else ""
            return Finding(rule="fp32-check", decision="admit", reason=f"{names}: every look admits{near}")
        first = next((f for f in bad if f.deviation is not None or f.decision == "refuse"), bad[0])
        # beyond a limit in fp32 is beyond what rounding explains: there is no higher precision left to ask
        decision = "refuse" if first.deviation is not None or first.decision == "refuse" else "review"
        reason = f"{names}: {first.key} {first.compared()}: {first.reason}"
        return Finding.model_validate(
            {"rule": "fp32-check", "decision": decision, "reason": reason, "cause": first.cause, "todo": first.todo}
        )


def fp32_check(kit: Kit, campaign_id: str, recipe: str) -> Check | str:
    """Run baseline and candidate in fp32 for a few steps and look at them; the reason if that can't be done.

    The launches are charged as checks. The baseline's is made once per campaign, a candidate's once per recipe.
    """
    campaign = past(kit, campaign_id).campaign()
    trials: list[tuple[Trial, Launch]] = []
    for digest, purpose in ((campaign.baseline.digest(), BASELINE_CHECK), (recipe, f"fp32 check of {recipe[:12]}")):
        ran = _run_in_fp32(kit, campaign_id, past(kit, campaign_id).recipe(digest), purpose)
        if isinstance(ran, str):
            return ran
        trials.append(ran)
    (base, base_launch), (candidate, candidate_launch) = trials
    limits, twin = limits_of(kit, campaign), candidate_launch.recipe
    reference, subject = [Evidence.of(base, base_launch.recipe)], attempt_key(candidate.launch_id, candidate.attempt)
    evidence = Evidence.of(candidate, twin)
    found = Looks(
        forward_look(reference, evidence, limits=limits, subject=subject, recipe=twin),
        update_look(reference, evidence, limits=limits, subject=subject, recipe=twin),
    )
    for key, verdict in (
        (subject, found.forward),
        (update_key(candidate.launch_id, candidate.attempt), found.update),
    ):
        if past(kit, campaign_id).verdict(key) is None:
            put(kit, campaign_id, "verdict", key, verdict)
    return Check(base.launch_id, candidate.launch_id, found)


def _run_in_fp32(kit: Kit, campaign_id: str, recipe: Recipe, purpose: str) -> tuple[Trial, Launch] | str:
    twin = kit.stack.in_fp32(recipe)
    if twin is None:
        return "this recipe has no twin in fp32"
    try:
        effective = kit.stack.resolve(twin, past(kit, campaign_id).campaign())
        decided = decide(kit, campaign_id, "check", put_recipe(kit, campaign_id, twin, effective), purpose, steps=CHECK_STEPS)
    except BudgetExceeded as error:
        return f"no check launch: {error}"
    except Refused as error:
        return f"its twin in fp32 can't be built: {error}"
    trial = launch(kit, campaign_id, decided.id)
    if trial.status != "ok":
        return f"check launch {decided.id} failed ({trial.status}: {trial.cause})"
    if trial.config_digest != effective.argument_digest():
        return f"check launch {decided.id} ran with other final arguments than were resolved"
    return trial, decided


def settled(verdict: Verdict, said: Finding) -> Verdict:
    """Return a verdict whose checkable findings are decided by what a check said; the others stay."""
    findings = [
        f
        if not f.check
        else f.model_copy(
            update={
                "decision": said.decision,
                "reason": f"{f.reason}; {said.reason}",
                "cause": said.cause if said.decision != "admit" else "",
                "todo": said.todo if said.decision != "admit" else "",
                "check": False,
            }
        )
        for f in verdict.findings
    ]
    return verdict_of(verdict.look, verdict.subject, verdict.recipe, findings)


def _reviewed(found: Looks, why: str) -> Looks:
    """Return looks whose open findings stay for a person, with the reason why no check decided them."""

    def said(verdict: Verdict) -> Verdict:
        findings = [f.model_copy(update={"reason": f"{f.reason}; {why}"}) if f.check else f for f in verdict.findings]
        return verdict_of(verdict.look, verdict.subject, verdict.recipe, findings)

    return Looks(said(found.forward), said(found.update))
