"""Checks lessons against what all campaigns tried: correct, too broad, wrong, unsupported, resting on one campaign.

Fixed code over what a lesson claims (its `claim`; without one its effect, levers and `when`), never over its text. A lesson that
claims nothing that records could show is `not checkable`: said, and never counted as correct.

Source: ATTUNE (October 2026), table G1: of 155 lessons 31 were contradicted by their own campaigns' records.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from packaging.version import InvalidVersion, Version

from attuner.core.base import Scalar, Value, canonical_json
from attuner.core.lesson import AuditResult, Claim, Lesson, LessonAudit, LessonScope
from attuner.policy.lessons import claim_digest, in_scope, is_value, kind_of
from attuner.policy.lessons_draft import covers
from attuner.policy.tried import Tried

Judged = Literal["supports", "contradicts", "neither"]
MAX_CITED = 20
"""Trials that an audit names on either side."""
MAX_WHY = 3
"""Conditions that a narrower wording spells out."""


@dataclass(frozen=True)
class Checked:
    """One lesson with its audit and, if it is too broad, the narrower one that the records support."""

    lesson: Lesson
    audit: LessonAudit
    narrower: Lesson | None = None
    num_held: int = 0
    """Trials of its move in its scope, whatever they show."""


def audit(lessons: Iterable[Lesson], records: Sequence[Tried], *, at: str = "") -> list[Checked]:
    """Check lessons against what was tried.

    Args:
        lessons: any, drafts among them.
        records: of all campaigns of a ledger.
        at: the date that the audit bears.
    """
    return [_checked(lesson, records, at) for lesson in lessons]


def _checked(lesson: Lesson, records: Sequence[Tried], at: str) -> Checked:
    def told(
        result: AuditResult, why: str, *, pro: Sequence[Tried] = (), con: Sequence[Tried] = (), narrower: Lesson | None = None
    ) -> Checked:
        cited = {"supports": [t.evidence for t in pro[:MAX_CITED]], "contradicts": [t.evidence for t in con[:MAX_CITED]]}
        made = LessonAudit(id=lesson.id, claimed=claim_digest(lesson), result=result, why=why, at=at, **cited)
        return Checked(lesson, made, narrower, len(held))

    held: list[Tried] = []
    outcome = claimed(lesson)
    if not outcome:
        return told("not checkable", "claims nothing that a record could show: no claim, and no effect at given values (`when`)")
    moves = [t for t in records if _moved(lesson, t)]
    held = [t for t in moves if in_scope(lesson.scope, t.campaign) and covers(lesson.when, t)]
    pro = [t for t in held if judge(lesson, t) == "supports"]
    con = [t for t in held if judge(lesson, t) == "contradicts"]
    # what a lesson cites speaks for or against it inside its scope; outside only if nothing inside supports it
    own = [t for t in (held if pro else moves) if _cites(lesson, t)]
    said = Counter(judge(lesson, t) for t in own)
    if said["contradicts"] and not (said["supports"] and pro):
        against = [*con, *(t for t in own if t not in con and judge(lesson, t) == "contradicts")]
        return told("wrong", f"its own evidence shows otherwise: {_shown(own, 'contradicts', lesson)}", pro=pro, con=against)
    if not pro and con:
        return told("wrong", f"no record supports it, {len(con)} speak against it: {_words(con[0])}", con=con)
    if not pro:
        return _unsupported(lesson, held, told)
    if con:
        narrow = narrower(lesson, pro, con)
        if narrow is None:
            why = f"under the same conditions {_count(pro)} support it and {_count(con)} speak against it: {_words(con[0])}"
            return told("wrong", why, pro=pro, con=con)
        shared = _bounds(lesson, narrow)
        why = f"{_count(con)} speak against it ({_words(con[0])}); the {_count(pro)} that support it share {shared}"
        return told("too broad", why, pro=pro, con=con, narrower=narrow)
    return _supported(lesson, pro, told)


Told = Callable[..., Checked]


def _unsupported(lesson: Lesson, held: Sequence[Tried], told: Told) -> Checked:
    """Return the result of a lesson that nothing supports and nothing contradicts."""
    if held:
        return told("unsupported", f"{_count(held)} of this move on record, none of them shows it: {_words(held[0])}")
    cited = [e for e in lesson.evidence if _reads_as_trial(e)]
    if cited or not lesson.source:
        which = f"; its evidence ({', '.join(cited[:MAX_WHY])}) is not on record, or shows another move" if cited else ""
        return told("unsupported", f"no record of this move in its scope{which}")
    return told("not checkable", "no record of this move in its scope; it rests on its source alone")


def _supported(lesson: Lesson, pro: Sequence[Tried], told: Told) -> Checked:
    """Return the result of a lesson that records support and none contradicts: one campaign is not yet a rule."""
    campaigns = {t.campaign.id for t in pro}
    models = {t.campaign.workload.model.lower() for t in pro}
    if len(campaigns) == 1:
        return told("one campaign", f"{_count(pro)}, all of campaign {pro[0].campaign.id}", pro=pro)
    if len(models) == 1 and [m.lower() for m in lesson.scope.models] != sorted(models):
        why = f"{_count(pro)} of {len(campaigns)} campaigns, all of the one model {pro[0].campaign.workload.model}"
        return told("one campaign", why, pro=pro)
    return told("correct", f"{_count(pro)} of {len(campaigns)} campaigns, none against it", pro=pro)


def claimed(lesson: Lesson) -> str:
    """Return the outcome that a lesson claims of a move, or '' if records can't show whether it is so.

    A hand-written lesson without a claim says enough if it names an effect, its lever groups and the values it holds at.
    """
    if lesson.claim is not None:
        return lesson.claim.outcome
    return lesson.effect if lesson.effect != "condition" and lesson.levers and lesson.when else ""


def _moved(lesson: Lesson, one: Tried) -> bool:
    """Tell whether a trial made the very move that the lesson speaks of."""
    claim = lesson.claim
    if claim is None:
        moved = lesson.when.keys() & one.sets.keys()
        return one.group in lesson.levers and bool(moved) and all(is_value(one.sets[k], lesson.when[k]) for k in moved)
    return (
        claim.sets.keys() == one.sets.keys()
        and all(is_value(one.sets[k], v) for k, v in claim.sets.items())
        and all(is_value(one.before.get(k), v) for k, v in claim.before.items())
    )


def _reads_as_trial(evidence: str) -> bool:
    campaign, _, launch = evidence.replace("/", ":", 1).partition(":")
    return bool(campaign) and bool(launch) and not any(c.isspace() or c in ":/" for c in campaign + launch)


def _cites(lesson: Lesson, one: Tried) -> bool:
    """Tell whether a trial is among a lesson's evidence: campaign:launch#attempt, campaign:launch or campaign/launch."""
    short = f"{one.campaign.id}:{one.launch}"
    return bool({one.evidence, short, short.replace(":", "/")} & {*lesson.evidence})


def judge(lesson: Lesson, one: Tried) -> Judged:
    """Tell what one trial of a lesson's move says of it; within the band it says nothing of faster or slower."""
    outcome, claim = claimed(lesson), lesson.claim
    if outcome in ("helps", "hurts"):
        if one.outcome == outcome:
            return "supports" if _in_range(claim, one) else "contradicts"
        if one.outcome == "ties":
            return "contradicts" if claim is not None and not _in_range(claim, one) else "neither"
        # a hurting move that fails is no better for it, and a claim of slower says nothing of failing
        return "neither" if outcome == "hurts" and one.outcome in ("fails", "refused") else "contradicts"
    if outcome == "fails":
        if one.outcome != "fails":
            # a derived claim of failing covers what the looks refuse: such a launch is lost as well
            return "supports" if claim is None and one.outcome == "refused" else "contradicts"
        wanted = claim.failure if claim is not None else ""
        return "supports" if not wanted or f"{one.failure}.".startswith(f"{wanted}.") else "neither"
    if one.outcome == outcome:
        return "supports"
    return "neither" if outcome == "refused" and one.outcome == "fails" else "contradicts"


def _in_range(claim: Claim | None, one: Tried) -> bool:
    """Tell whether a measured gain lies in the claimed range, give or take the band; no figure contradicts no range."""
    if claim is None or one.gain is None:
        return True
    low_ok = claim.gain_low is None or one.gain >= claim.gain_low - one.band
    return low_ok and (claim.gain_high is None or one.gain <= claim.gain_high + one.band)


# ---------------------------------------------------------------------------- a narrower wording

Fit = Callable[[Tried], bool]


def narrower(lesson: Lesson, pro: Sequence[Tried], con: Sequence[Tried]) -> Lesson | None:
    """Return the lesson bounded to what its supporting records share and no contradicting one has; None if nothing parts them.

    All bounds are tried at once, then given up one by one, those of least use first, while the rest still part them.
    """
    searched, others = _argument_bounds(pro, con)
    bounds = [*searched, *_kind_bound(lesson, pro), *_place_bounds(pro), *others]
    if any(all(b.fits(t) for b in bounds) for t in con):
        return None
    kept = list(bounds)
    for bound in reversed(bounds):
        rest = [b for b in kept if b is not bound]
        if rest and not any(all(b.fits(t) for b in rest) for t in con):
            kept = rest
    scope, when = dict(lesson.scope.data()), dict(lesson.when)
    for bound in kept:
        if bound.scope:
            scope[bound.scope] = bound.value
        else:
            when[bound.key] = bound.value  # type: ignore[assignment]
    text = f"{lesson.text.rstrip().rstrip('.')}. On record only with {'; '.join(b.said for b in kept)}."
    told = {"scope": LessonScope.model_validate(scope), "when": when, "text": text}
    shown = {"evidence": [t.evidence for t in pro[:MAX_CITED]], "status": "draft", "drafted": "records", "reviews": []}
    return lesson.model_copy(update={**told, **shown})


@dataclass(frozen=True)
class _Bound:
    key: str
    value: object
    said: str
    fits: Fit
    scope: str = ""


def _argument_bounds(pro: Sequence[Tried], con: Sequence[Tried]) -> tuple[list[_Bound], list[_Bound]]:
    """Return one bound for each final argument that some contradicting record has otherwise: searched ones, and others."""
    searched = {k for t in (*pro, *con) for k in t.searched}
    moved = {k for t in pro for k in t.sets}
    keys = sorted({k for t in (*pro, *con) for k in t.final} - moved)
    first: list[_Bound] = []
    last: list[_Bound] = []
    for key in keys:
        seen = {canonical_json(t.final.get(key)): t.final.get(key) for t in pro}
        plain: list[Scalar] = [v for v in seen.values() if not isinstance(v, list)]
        if len(seen) > 1 and len(plain) != len(seen):
            continue
        value: Value = next(iter(seen.values())) if len(seen) == 1 else sorted(plain, key=lambda v: (str(type(v)), str(v)))
        if all(is_value(t.final.get(key), value) for t in con):
            continue
        (first if key in searched else last).append(_Bound(key, value, f"{key} {_either(value)}", _at(key, value)))
    return first, last


def _at(key: str, value: Value) -> Fit:
    return lambda t: is_value(t.final.get(key), value)


def _either(value: Value) -> str:
    return " or ".join(str(v) for v in value) if isinstance(value, list) else str(value)


def _kind_bound(lesson: Lesson, pro: Sequence[Tried]) -> list[_Bound]:
    """Return a bound by dense or experts, if several models of one kind support a lesson that names none."""
    kinds = {kind_of(t.campaign.baseline.arguments) for t in pro}
    if len(kinds) > 1 or len({t.campaign.workload.model for t in pro}) < 2 or lesson.scope.models:
        return []
    kind = kinds.pop()
    return [_Bound("kind", [kind], f"{kind} models", lambda t: kind_of(t.campaign.baseline.arguments) == kind, "models")]


def _place_bounds(pro: Sequence[Tried]) -> list[_Bound]:
    """Return the bounds of a lesson's scope, the model before the machine, the version last."""
    models = sorted({t.campaign.workload.model for t in pro})
    machines = sorted({t.campaign.workload.hardware for t in pro})
    stacks = {t.campaign.stack.name for t in pro}
    found = [
        _Bound("model", models, f"model {' or '.join(models)}", lambda t: t.campaign.workload.model in models, "models"),
        _Bound(
            "hardware",
            machines,
            f"hardware {' or '.join(machines)}",
            lambda t: t.campaign.workload.hardware in machines,
            "hardware",
        ),
    ]
    sizes = [t.campaign.workload.gpus for t in pro]
    low, high = min(sizes), max(sizes)
    # a specifier of a span says no more than that: counts between two that were seen
    span = f"=={low}" if low == high else f">={low},<={high}"
    found.append(_Bound("gpus", span, f"{span} devices", lambda t: low <= t.campaign.workload.gpus <= high, "gpus"))
    if len(stacks) == 1:
        stack = stacks.pop()
        found.append(_Bound("stack", stack, f"stack {stack}", lambda t: t.campaign.stack.name == stack, "stack"))
    versions = [v for t in pro if (v := _version(t)) is not None]
    if len(versions) == len(pro):
        old, new = min(versions), max(versions)
        reach = f"=={old}" if old == new else f">={old},<={new}"
        found.append(_Bound("version", reach, f"version {reach}", _between(old, new), "versions"))
    return found


def _between(old: Version, new: Version) -> Fit:
    # as in_scope reads it: a version that can't be read is within any reach
    return lambda t: (v := _version(t)) is None or old <= v <= new


def _version(one: Tried) -> Version | None:
    try:
        return Version(one.campaign.stack.version)
    except InvalidVersion:
        return None


# ---------------------------------------------------------------------------- words and the record of audits


def _count(records: Sequence[Tried]) -> str:
    return f"{len(records)} trial{'' if len(records) == 1 else 's'}"


def _words(one: Tried) -> str:
    came = one.failure or (f"{one.gain:+.1%}" if one.gain is not None else "ended early")
    return f"{one.evidence} {one.outcome}, {came}"


def _shown(records: Sequence[Tried], judged: Judged, lesson: Lesson) -> str:
    return "; ".join(_words(t) for t in [t for t in records if judge(lesson, t) == judged][:MAX_WHY])


def _bounds(before: Lesson, after: Lesson) -> str:
    return after.text.removeprefix(before.text.rstrip().rstrip(".")).removeprefix(". On record only with ").rstrip(".")


def kept(known: Mapping[str, LessonAudit], checked: Iterable[Checked], campaigns: Container[str] = ()) -> list[LessonAudit]:
    """Return the audits to put on record: the new ones, but an old one where this ledger says nothing of what it rests on.

    So an audit against another, emptier ledger neither brings a lesson back that records had spoken against nor takes one away.
    Records that are there and no longer show it do: they were measured again, or set aside.

    Args:
        known: audits on record, by lesson.
        checked: what this ledger's records say.
        campaigns: ids of this ledger's campaigns.
    """
    found = []
    for one in checked:
        new, old = one.audit, known.get(one.lesson.id)
        stays = old is not None and old.claimed == new.claimed and not one.num_held and not (new.supports or new.contradicts)
        found.append(old if stays and old is not None and _rests_elsewhere(old, campaigns) else new)
    return found


def _rests_elsewhere(old: LessonAudit, campaigns: Container[str]) -> bool:
    """Tell whether campaigns that a ledger lacks hold an audit: all of those that support it, any that speaks against it."""
    here = [e.partition(":")[0] in campaigns for e in old.contradicts or old.supports]
    return not all(here) if old.contradicts else bool(here) and not any(here)
