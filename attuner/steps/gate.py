"""gate: the first look at a hypothesis, before anything is launched; an admitted one becomes a decided launch, unless the
estimate holds it back: it surely runs out of memory, or can't pay for itself.
"""

from __future__ import annotations

from typing import Any

from attuner.config import load_levers, load_register
from attuner.core.base import Value
from attuner.core.errors import BudgetExceeded, Refused, UserError
from attuner.core.events import History
from attuner.core.judgement import ComponentTest, Finding, Note, Verdict
from attuner.core.recipe import EffectiveConfig, Recipe
from attuner.core.search import Forecast, Hypothesis
from attuner.policy import conduct, hold_back, people
from attuner.policy import gate as policy
from attuner.ports import Kit
from attuner.steps.common import check_lock, decide, past, put, put_recipe, scope_of, shared_tests
from attuner.steps.launch import launch

NO_ESTIMATE = "estimate"
"""Key of the note that says why a campaign has no estimate."""


def gate(kit: Kit, campaign_id: str, hypothesis_id: str) -> Verdict:
    """Judge a hypothesis and record the verdict; an admitted or reviewed one has a decided launch afterwards.

    Raises:
        RegisterChanged: rules/ or the judging code moved since birth.
        Transient: a component test lost contact with its job.
    """
    history = past(kit, campaign_id)
    known = history.verdict(hypothesis_id)
    if known is not None:
        return _decided(kit, campaign_id, known)
    check_lock(kit, history.campaign())
    hypothesis = history.hypothesis(hypothesis_id)
    if hypothesis is None:
        raise Refused(f"{hypothesis_id} is not on record: a hypothesis is written down before it is judged")
    verdict = _judge(kit, campaign_id, history, hypothesis)
    # on record before its launch is decided: a crash in between must not judge the hypothesis against its own launch
    put(kit, campaign_id, "verdict", hypothesis_id, verdict)
    return _decided(kit, campaign_id, verdict)


def launch_of(history: History, hypothesis_id: str) -> str:
    """Return the launch that a hypothesis became, or '' if it was refused."""
    verdict = history.verdict(hypothesis_id)
    if verdict is None or verdict.decision == "refuse":
        return ""
    return next((x.id for x in history.launches() if x.hypothesis == hypothesis_id and x.kind == "search"), "")


def _decided(kit: Kit, campaign_id: str, verdict: Verdict) -> Verdict:
    """Decide the launch of a verdict that does not refuse; without budget for it the verdict becomes a refusal."""
    if verdict.decision == "refuse":
        return verdict
    campaign = past(kit, campaign_id).campaign()
    profiled = campaign.launch.profile_steps
    try:
        decide(kit, campaign_id, "search", verdict.recipe, "candidate", hypothesis=verdict.subject, profile_steps=profiled)
    except BudgetExceeded as error:
        verdict = _refused("budget", verdict.subject, str(error), verdict.recipe, list(verdict.findings))
        put(kit, campaign_id, "verdict", verdict.subject, verdict)
    return verdict


def _judge(kit: Kit, campaign_id: str, history: History, hypothesis: Hypothesis) -> Verdict:
    campaign = history.campaign()
    rule, digest = "conduct", ""
    try:
        levers = load_levers(kit.rules_dir, campaign.stack.name)
        if hypothesis.group == conduct.SHIPPED:
            conduct.check_shipped(history, hypothesis)
        else:
            conduct.check_group(hypothesis, levers, proposer="" if hypothesis.by else campaign.proposer.name)
        _check_ban(history, hypothesis, levers)
        candidate = conduct.candidate(history, hypothesis)
        digest = candidate.digest()
        conduct.check_recipe(history, digest)
        rule = "layout"
        effective = kit.stack.resolve(candidate, campaign)
    except Refused as error:
        return _refused(rule, hypothesis.id, str(error), digest, [])
    put_recipe(kit, campaign_id, candidate, effective)
    verdict = look(kit, past(kit, campaign_id), effective, subject=hypothesis.id, recipe=digest)
    held = held_back(kit, campaign_id, hypothesis, candidate, effective)
    # a shipped recipe is measured whatever the estimate expects of it: that is what a re-tuning is for
    if held and verdict.decision != "refuse" and hypothesis.group != conduct.SHIPPED:
        return _refused("held_back", hypothesis.id, held, digest, list(verdict.findings))
    if verdict.decision == "review" and campaign.gate.component_tests == "auto":
        register = load_register(kit.rules_dir, campaign.stack.name)
        for component, argument, old, new in policy.missing_tests(register, verdict):
            if component not in kit.stack.components:
                continue
            component_test(kit, campaign_id, candidate, effective, component=component, argument=argument, old=old, new=new)
        verdict = look(kit, past(kit, campaign_id), effective, subject=hypothesis.id, recipe=digest)
    return verdict


def _check_ban(history: History, hypothesis: Hypothesis, levers: list[dict[str, Any]]) -> None:
    why = people.forbids(history, hypothesis, levers)
    if why:
        raise Refused(f"{hypothesis.id}: {why}")


def held_back(kit: Kit, campaign_id: str, hypothesis: Hypothesis, candidate: Recipe, effective: EffectiveConfig) -> str:
    """Record what the estimate expects of a candidate; return why it is better not launched, in figures, or ''.

    Where no estimate is possible one note per campaign (or, of one candidate, one of its own) says why; nothing is held back.
    """
    history = past(kit, campaign_id)
    forecast = history.forecast(hypothesis.id)
    if forecast is None and history.leader():
        forecast = _forecast(kit, history, hypothesis, candidate, effective)
    if forecast is None or not forecast.held or not history.campaign().estimate.hold_back:
        return ""
    return forecast.why


def _forecast(
    kit: Kit, history: History, hypothesis: Hypothesis, candidate: Recipe, effective: EffectiveConfig
) -> Forecast | None:
    from attuner.estimate.forecast import Forecaster  # here, so that the first look alone answers at once

    campaign, leader, key = history.campaign(), history.leader(), NO_ESTIMATE
    try:
        forecaster = Forecaster.of(history, campaign)
        key = f"{NO_ESTIMATE} {hypothesis.id}"
        forecast = forecaster.forecast(hypothesis.id, candidate, effective.arguments, leader)
    except (UserError, Refused) as error:
        if history.find("note", key, Note) is None:
            put(kit, campaign.id, "note", key, Note(text=f"no {key}: {error}"))
        return None
    forecast = hold_back.weighed(
        forecast,
        memory=forecaster.surely_oom(effective.arguments) if forecast.held else "",
        parent=history.trial(hypothesis.parent),
        unknown=hold_back.unmodelled(_recipe_of(history, leader), candidate),
    )
    put(kit, campaign.id, "forecast", hypothesis.id, forecast)
    return forecast


def _recipe_of(history: History, launch_id: str) -> Recipe:
    launch = history.launch(launch_id)
    return history.recipe(launch.recipe) if launch else history.campaign().baseline


def look(kit: Kit, history: History, effective: EffectiveConfig, *, subject: str, recipe: str) -> Verdict:
    """Return the first look at final values, against the campaign's baseline. Pure but for reading the register."""
    campaign = history.campaign()
    baseline = history.effective(campaign.baseline.digest())
    if baseline is None:
        raise Refused(f"{campaign.id}: the baseline was never resolved; run the campaign from its start")
    return policy.config_look(
        load_register(kit.rules_dir, campaign.stack.name),
        baseline,
        effective,
        subject=subject,
        recipe=recipe,
        tests=[*shared_tests(kit), *history.component_tests()],
        scope=scope_of(baseline, campaign),
    )


def _refused(rule: str, subject: str, reason: str, recipe: str, findings: list[Finding]) -> Verdict:
    finding = Finding(rule=rule, decision="refuse", reason=reason)
    return Verdict(look="config", subject=subject, recipe=recipe, decision="refuse", findings=[finding, *findings])


def component_test(
    kit: Kit,
    campaign_id: str,
    candidate: Recipe,
    effective: EffectiveConfig,
    *,
    component: str,
    argument: str,
    old: Value,
    new: Value,
) -> ComponentTest | None:
    """Run old and new of one same-math swap side by side as a charged check launch; None if it could not be run.

    Without budget for it the swap stays `review`: that is no reason to stop the campaign.
    """
    history = past(kit, campaign_id)
    campaign = history.campaign()
    scope = scope_of(effective, campaign)
    key = f"{component}:{argument}:{old}:{new}:{scope[:12]}"
    known = history.find("component", key, ComponentTest)
    if known is not None:
        return known
    baseline = candidate.changed({argument: old})
    digest = put_recipe(kit, campaign_id, baseline, kit.stack.resolve(baseline, campaign))
    try:
        asked = [component, argument, str(old), str(new)]
        purpose = f"component test: {argument} {old}→{new}"
        decided = decide(kit, campaign_id, "check", digest, purpose, component=asked)
    except BudgetExceeded:
        return None
    trial = launch(kit, campaign_id, decided.id)
    if trial.status != "ok":
        return None
    attempt = past(kit, campaign_id).attempts(decided.id)[-1]
    measured = kit.stack.component(kit.launcher.files(attempt))
    test = ComponentTest.model_validate(
        {
            **measured,
            "component": component,
            "argument": argument,
            "old": old,
            "new": new,
            "scope": scope,
            "launch_id": decided.id,
        }
    )
    put(kit, campaign_id, "component", key, test)
    return test
