"""Lessons, read side: which of them hold for a campaign, what they say of a move before it is tried, and what a campaign leaves.
What is drafted from records and how lessons are checked against them: lessons_draft.py, lessons_audit.py.

A lesson advises. Nothing here refuses or admits anything, and no lesson becomes a rule by itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

from attuner.core.base import Value, digest_of
from attuner.core.campaign import Campaign
from attuner.core.events import History
from attuner.core.lesson import CampaignSummary, Lesson, LessonAudit, LessonScope
from attuner.core.recipe import same_value
from attuner.core.run import Launch
from attuner.policy import budget

WEIGHTS = {
    ("helps", "confirmed"): 1.25,
    ("helps", "tentative"): 1.1,
    ("hurts", "confirmed"): 0.5,
    ("hurts", "tentative"): 0.75,
    ("fails", "confirmed"): 0.1,
    ("fails", "tentative"): 0.4,
}
"""What one lesson makes of an expected gain. A prior, not a measurement: this campaign's own launches soon outweigh it."""
LIMITS = (0.05, 2.0)
EFFECTS = {"helps": "helps", "hurts": "hurts", "ties": "condition", "fails": "fails", "refused": "fails"}
"""What a proposer is told to expect of a move with this outcome: one that the looks refuse is as lost as one that fails."""
STANDING = ("correct", "one campaign", "not checkable")
"""Results of an audit with which a lesson is still read."""
KINDS = ("dense", "moe")
MAX_SUMMARIES = 5
"""Earlier campaigns that a later one reads."""
MAX_MOVES = 40
"""Lines of one summary."""


def problems(lesson: Lesson) -> list[str]:
    """Return what is wrong with a lesson beyond its fields: unreadable specifiers, a claim that rests on nothing."""
    found = []
    for name, text in (("versions", lesson.scope.versions), ("gpus", lesson.scope.gpus)):
        try:
            SpecifierSet(text)
        except InvalidSpecifier:
            found.append(f"scope.{name}: {text!r} is no specifier; it looks like >=0.16,<0.19")
    if not lesson.evidence and not lesson.source:
        found.append("evidence: neither evidence nor source; say what it rests on")
    if lesson.effect != "condition" and not lesson.levers:
        found.append(f"levers: a lesson that {lesson.effect} names the lever groups it speaks of")
    return [*found, *_claim_problems(lesson)]


def _claim_problems(lesson: Lesson) -> list[str]:
    claim, found = lesson.claim, []
    if claim is None:
        return []
    if lesson.effect != EFFECTS[claim.outcome]:
        found.append(f"claim.outcome: {claim.outcome} doesn't go with effect {lesson.effect}; say {EFFECTS[claim.outcome]} there")
    if not claim.sets:
        found.append("claim.sets: is empty; name what the move sets")
    if claim.before.keys() - claim.sets.keys():
        found.append("claim.before: speaks of more than claim.sets; leave that out, or say it under `when`")
    if claim.gain_low is not None and claim.gain_high is not None and claim.gain_low > claim.gain_high:
        found.append(f"claim.gain_low: {claim.gain_low:g} is above gain_high {claim.gain_high:g}; swap them")
    if claim.failure and claim.outcome != "fails":
        found.append(f"claim.failure: nothing fails where the outcome is {claim.outcome}; leave it out")
    return found


def select(lessons: Iterable[Lesson], campaign: Campaign) -> list[Lesson]:
    """Return the lessons that hold for a campaign; left out: retired, contradicted, rejected ones, drafts nobody accepted."""
    return [x for x in lessons if live(x) and in_scope(x.scope, campaign)]


def live(lesson: Lesson) -> bool:
    """Tell whether a lesson may be read: its status says so, and a person accepted it if no person wrote it."""
    last = lesson.reviews[-1].decision if lesson.reviews else ""
    return lesson.status in ("confirmed", "tentative") and last != "rejected" and (not lesson.drafted or last == "accepted")


def claim_digest(lesson: Lesson) -> str:
    """Return the digest of what a lesson claims; its wording, status, source and reviews are no part of it."""
    said = lesson.data()
    return digest_of({name: said.get(name) for name in ("scope", "levers", "effect", "when", "claim", "evidence")})


def standing(lessons: Iterable[Lesson], audits: Mapping[str, LessonAudit]) -> list[Lesson]:
    """Return the lessons that stand after their last audit; what rests on one campaign alone is never surer than tentative.

    Args:
        lessons: any.
        audits: the last audit of each, by id; one of another claim says nothing.
    """
    found = []
    for lesson in lessons:
        audit = audits.get(lesson.id)
        if audit is not None and audit.claimed == claim_digest(lesson):
            if audit.result not in STANDING:
                continue
            if audit.result == "one campaign" and lesson.status == "confirmed" and not lesson.source:
                lesson = lesson.model_copy(update={"status": "tentative"})
        found.append(lesson)
    return found


def in_scope(scope: LessonScope, campaign: Campaign) -> bool:
    """Tell whether a scope covers a campaign: stack, version, model (a pattern, `dense` or `moe`), hardware, device count.

    A version that can't be read keeps the lesson in force, as it does a rule.
    """
    work, stack = campaign.workload, campaign.stack
    return (
        scope.stack in ("", stack.name)
        and _within(scope.versions, stack.version)
        and _within(scope.gpus, str(work.gpus))
        and (not scope.models or any(_model_is(name, campaign) for name in scope.models))
        and (not scope.hardware or _fits(scope.hardware, work.hardware))
    )


def _within(specifier: str, version: str) -> bool:
    if not specifier:
        return True
    try:
        return SpecifierSet(specifier).contains(Version(version), prereleases=True)
    except (InvalidVersion, InvalidSpecifier):
        return True


def _fits(patterns: Iterable[str], text: str) -> bool:
    return any(fnmatchcase(text.lower(), pattern.lower()) for pattern in patterns)


def _model_is(name: str, campaign: Campaign) -> bool:
    if name in KINDS:
        return (kind_of(campaign.baseline.arguments) == "moe") == (name == "moe")
    return _fits([name], campaign.workload.model)


def kind_of(arguments: Mapping[str, Value]) -> str:
    """Return `moe` for a model with experts, else `dense`."""
    experts = arguments.get("num_experts", arguments.get("num_moe_experts"))
    return "moe" if isinstance(experts, int) and experts > 1 else "dense"


def speaking(lessons: Iterable[Lesson], group: str, arguments: Mapping[str, Value]) -> list[Lesson]:
    """Return the lessons that speak of a lever group at these final arguments (those after the move)."""
    return [x for x in lessons if group in x.levers and all(is_value(arguments.get(k), v) for k, v in x.when.items())]


def is_value(value: Value, wanted: Value) -> bool:
    """Tell whether a final value is the wanted one; a list that is wanted of a plain value means any of its entries."""
    if isinstance(wanted, list) and not isinstance(value, list):
        return any(same_value(value, w) for w in wanted)
    return same_value(value, wanted)


def apply(lessons: Iterable[Lesson], group: str, arguments: Mapping[str, Value]) -> float:
    """Return by what lessons multiply the expected gain of a move: above 1 it helped elsewhere, below 1 it hurt or failed.

    Args:
        lessons: those in scope (`select`).
        group: the move's lever group.
        arguments: final arguments after the move.
    """
    weight = 1.0
    for lesson in speaking(lessons, group, arguments):
        weight *= WEIGHTS.get((lesson.effect, lesson.status), 1.0)
    return min(max(weight, LIMITS[0]), LIMITS[1])


def family_of(model: str) -> str:
    """Return a model's family, the letters that its name begins with: `glm-4.5` and `glm4.5-355b` are both `glm`."""
    found = re.match(r"[a-z]+", model.lower())
    return found.group() if found else model.lower()


def akin(summary: CampaignSummary, campaign: Campaign) -> bool:
    """Tell whether an earlier campaign's summary is worth reading: the same stack, and a model of the same family."""
    same = summary.stack == campaign.stack.name and summary.campaign_id != campaign.id
    return same and family_of(summary.model) == family_of(campaign.workload.model)


def nearest(summaries: Sequence[CampaignSummary], campaign: Campaign) -> list[CampaignSummary]:
    """Return at most MAX_SUMMARIES of the kin, nearest first: the same model, then the same hardware, then the latest.

    Args:
        summaries: oldest first.
        campaign: the one that will read them.
    """
    work = campaign.workload
    ranked = sorted(
        enumerate(x for x in summaries if akin(x, campaign)),
        key=lambda pair: (pair[1].model != work.model, pair[1].hardware != work.hardware, -pair[0]),
    )
    return [summary for _, summary in ranked[:MAX_SUMMARIES]]


def summary(history: History) -> CampaignSummary | None:
    """Return a finished campaign in a few lines; None if it has not shipped."""
    shipped, calibration = history.shipment(), history.calibration()
    if shipped is None or calibration is None:
        return None
    campaign = history.campaign()
    launch = history.launch(shipped.launch_id)
    leader: dict[str, Value] = {}
    if not shipped.kept_baseline and launch is not None:
        before, after = campaign.baseline.arguments, history.recipe(launch.recipe).arguments
        leader = {k: v for k, v in after.items() if k not in before or not same_value(v, before[k])}
    work = campaign.workload
    return CampaignSummary(
        campaign_id=campaign.id,
        model=work.model,
        hardware=work.hardware,
        gpus=work.gpus,
        stack=campaign.stack.name,
        version=campaign.stack.version,
        baseline_tokens_per_s_per_gpu=calibration.mean,
        gain=shipped.gain,
        spent_gpu_hours=budget.spent(history),
        moves=[_move(history, x) for x in history.launches() if x.kind == "search"][-MAX_MOVES:],
        leader=leader,
    )


def _move(history: History, launch: Launch) -> str:
    hypothesis, trial, score = history.hypothesis(launch.hypothesis), history.trial(launch.id), history.score(launch.id)
    told = f"{hypothesis.group}: {hypothesis.title}, predicted {hypothesis.predicted_gain:+.1%}" if hypothesis else launch.purpose
    if trial is None:
        return f"{told}, not run"
    if trial.status != "ok":
        return f"{told}, {trial.status.replace('_', ' ')}"
    if score is None or not score.valid:
        return f"{told}, no valid measurement"
    lead = ", new leader" if score.new_leader else ""
    refused = ", refused by the looks" if score.decision == "refuse" else ""
    return f"{told}, measured {score.gain:+.1%}{lead}{refused}"
