"""Drafts lessons from what campaigns tried: what changed, what came of it, where, and by which trials.

A draft states no more than its records hold. It is scoped to the stack, version, model, hardware and device count that were
run, and `when` holds the move with every argument that those campaigns searched over, at the values that were seen. Trials and
campaigns that say the same make one draft; trials that disagree at the same values make one that expects nothing. A person
widens, an audit checks.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from packaging.version import InvalidVersion, Version

from attuner.core.base import Scalar, Value, canonical_json, digest_of
from attuner.core.lesson import Claim, Lesson, LessonScope
from attuner.policy.conduct import SHIPPED
from attuner.policy.lessons import EFFECTS, is_value
from attuner.policy.tried import Tried

MAX_NAMED = 4
"""Arguments that a draft's text spells out."""
MAX_TOLD = 8
"""Trials that the text of a draft of trials that disagree tells one by one."""
MAX_WORD = 30


def drafts(records: Iterable[Tried]) -> list[Lesson]:
    """Return candidate lessons, in the order in which their first trial was run."""
    cells: dict[str, list[Tried]] = defaultdict(list)
    order: dict[str, int] = {}
    for one in records:
        if one.group == SHIPPED:
            continue  # a whole recipe again, on another stack: it says nothing of any one move
        order.setdefault(one.evidence, len(order))
        cells[canonical_json([*_place(one), one.campaign.workload.model, one.group, one.sets, one.before])].append(one)
    said: dict[str, tuple[dict[str, Value], list[Tried]]] = {}
    for cell in cells.values():
        for when, same in _agreeing(cell):
            first, outcomes = same[0], sorted({_came(t) for t in same})
            key = canonical_json([*_place(first), first.group, sorted(first.sets), first.before, when, outcomes])
            said.setdefault(key, (when, []))[1].extend(same)
    found = [(when, sorted(same, key=lambda t: order[t.evidence])) for when, same in said.values()]
    return [_lesson(same, when) for when, same in sorted(found, key=lambda x: order[x[1][0].evidence])]


def said_already(draft: Lesson, known: Iterable[Lesson]) -> bool:
    """Tell whether a lesson is there that says as much of the same move on the same trials, whatever became of it.

    A rejected draft isn't drafted again until a trial more speaks for it.
    """
    return any(
        x.id == draft.id
        or (
            _claimed_move(x) == _claimed_move(draft) and x.scope.stack == draft.scope.stack and {*draft.evidence} <= {*x.evidence}
        )
        for x in known
    )


def _claimed_move(lesson: Lesson) -> list[Any]:
    claim = lesson.claim
    return [claim.outcome, claim.sets, claim.before] if claim else [lesson.effect, lesson.levers]


def _place(one: Tried) -> list[Any]:
    """Return where a trial ran, all but the model: campaigns of two models at one place may say the same."""
    campaign = one.campaign
    return [campaign.stack.name, campaign.stack.version, campaign.workload.hardware, campaign.workload.gpus]


def _came(one: Tried) -> str:
    return f"{one.outcome} {one.failure}".strip()


def _context(one: Tried, keys: Iterable[str]) -> dict[str, Value]:
    return {k: one.final.get(k) for k in sorted(keys) if k not in one.sets}


def _agreeing(cell: Sequence[Tried]) -> list[tuple[dict[str, Value], list[Tried]]]:
    """Split the trials of one move at one place into those that say the same, each with the values they say it for.

    All trials of one outcome stand together if no other outcome was seen within the values they span; else each set of values
    stands alone, with whatever outcomes were seen there.
    """
    keys = {k for t in cell for k in t.searched}
    by_outcome: dict[str, list[Tried]] = defaultdict(list)
    for one in cell:
        by_outcome[_came(one)].append(one)
    spans = {came: _span([_context(t, keys) for t in same]) for came, same in by_outcome.items()}
    clash = any(
        span is None or any(t.outcome != by_outcome[came][0].outcome and covers(span, t) for t in cell)
        for came, span in spans.items()
    )
    if not clash:
        return [({**same[0].sets, **(spans[came] or {})}, same) for came, same in by_outcome.items()]
    alone: dict[str, list[Tried]] = defaultdict(list)
    for one in cell:
        alone[canonical_json(_context(one, keys))].append(one)
    return [({**same[0].sets, **_context(same[0], keys)}, same) for same in alone.values()]


def _span(contexts: Sequence[dict[str, Value]]) -> dict[str, Value] | None:
    """Return the values seen of each argument; None where lists differ, since a list of lists can't be said."""
    found: dict[str, Value] = {}
    for key in contexts[0]:
        values = {canonical_json(c.get(key)): c.get(key) for c in contexts}
        if len(values) == 1:
            found[key] = next(iter(values.values()))
            continue
        plain: list[Scalar] = [v for v in values.values() if not isinstance(v, list)]
        if len(plain) != len(values):
            return None
        found[key] = sorted(plain, key=lambda v: (str(type(v)), str(v)))
    return found


def covers(when: dict[str, Value], one: Tried) -> bool:
    """Tell whether a trial's final values are among those that a lesson speaks of."""
    return all(is_value(one.final.get(k), v) for k, v in when.items())


def _lesson(same: Sequence[Tried], when: dict[str, Value]) -> Lesson:
    """Return the draft of trials that stand together, at the values they stand for."""
    first = same[0]
    mixed = len({t.outcome for t in same}) > 1
    word = "mixed" if mixed else first.outcome
    stack, version, hardware, gpus = _place(first)
    identity = digest_of([stack, version, hardware, gpus, first.group, first.before, when, word, _failure(same)])[:8]
    return Lesson(
        id=f"{stack}-{first.group}-{word}-{identity}",
        text=_text(same, mixed=mixed, when=when),
        scope=LessonScope(
            stack=stack,
            versions=_exactly(version),
            models=sorted({t.campaign.workload.model for t in same}),
            hardware=[hardware] if hardware else [],
            gpus=f"=={gpus}",
        ),
        levers=[first.group],
        effect="condition" if mixed else EFFECTS[first.outcome],
        when=when,
        evidence=[t.evidence for t in same],
        status="draft",
        drafted="records",
        claim=None if mixed else _claim(same),
    )


def _exactly(version: str) -> str:
    """Return a specifier of one version; '' for a version that is none, which the draft's text then names."""
    try:
        return f"=={Version(version)}"
    except InvalidVersion:
        return ""


def _claim(same: Sequence[Tried]) -> Claim:
    first = same[0]
    gains = [t.gain for t in same if t.gain is not None]
    known = first.outcome in ("helps", "hurts") and len(gains) == len(same)
    band = max(t.band for t in same)
    return Claim(
        outcome=first.outcome,
        sets=first.sets,
        before=first.before,
        # one more run of the same recipe may read a band lower or higher, and says the same
        gain_low=round(min(gains) - band, 4) if known else None,
        gain_high=round(max(gains) + band, 4) if known else None,
        failure=_failure(same),
    )


def _failure(same: Sequence[Tried]) -> str:
    """Return the class of failure that all of them share; '' where they differ."""
    kinds = {t.failure for t in same}
    return kinds.pop() if len(kinds) == 1 else ""


def _text(same: Sequence[Tried], *, mixed: bool, when: dict[str, Value]) -> str:
    """Return what the records say, in one or two sentences."""
    first = same[0]
    named = list(first.sets)
    move = ", ".join(f"{k} {_word(first.before[k])} → {_word(first.sets[k])}" for k in named[:MAX_NAMED])
    more = f" and {len(named) - MAX_NAMED} more" if len(named) > MAX_NAMED else ""
    campaigns = len({t.campaign.id for t in same})
    trials = f"{len(same)} trial{'s' if len(same) > 1 else ''} of {campaigns} campaign{'s' if campaigns > 1 else ''}"
    told = "; ".join(f"{_came_words([t])} ({t.evidence})" for t in same[:MAX_TOLD])
    rest = f"; and {len(same) - MAX_TOLD} more" if len(same) > MAX_TOLD else ""
    what = f"went either way: {told}{rest}" if mixed else _came_words(same)
    seen = [f"{k}={_word(v)}" for k, v in when.items() if k not in first.sets]
    held = f" Seen only with {', '.join(seen[:MAX_NAMED])}{' …' if len(seen) > MAX_NAMED else ''}." if seen else ""
    odd = first.campaign.stack.version
    of = f" Version {odd}." if not _exactly(odd) else ""
    return f"{move}{more}: {what}; {trials}.{held}{of}"


def _came_words(same: Sequence[Tried]) -> str:
    outcome = same[0].outcome
    gains = sorted(t.gain for t in same if t.gain is not None)
    figures = "" if not gains else f"{gains[0]:+.1%}" if gains[0] == gains[-1] else f"{gains[0]:+.1%} to {gains[-1]:+.1%}"
    band = f"band {max(t.band for t in same):.1%}"
    if outcome == "fails":
        phases = sorted({t.phase for t in same if t.phase})
        kinds = ", ".join(sorted({t.failure for t in same}))
        return f"failed, {kinds}" + (f" in {'/'.join(phases)}" if phases else "")
    if outcome == "refused":
        rules = ", ".join(dict.fromkeys(r for t in same for r in t.rules))
        return f"ran{f' at {figures}' if figures else ''} and was refused by the looks" + (f" ({rules})" if rules else "")
    if not figures:
        return "surely slower than what it started from, and ended early"
    ended = f", and {len(same) - len(gains)} ended early as surely slower" if len(gains) < len(same) else ""
    within = "no difference beyond the band, " if outcome == "ties" else ""
    return f"{within}{figures} ({band}){ended}"


def _word(value: Value) -> str:
    said = "none" if value is None else str(value)
    return said if len(said) <= MAX_WORD else said[: MAX_WORD - 1] + "…"
