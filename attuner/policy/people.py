"""What people said to a campaign, read from its records: who is banned, what waits in the queue, is it paused or cancelled; and
which findings a person's answer covers. Pure; a person's word widens what may ship only where a look said `review`, never past a
refusal."""

from __future__ import annotations

from collections.abc import Iterator

from attuner.core.events import History, attempt_key
from attuner.core.judgement import Decision, Verdict
from attuner.core.people import Directive, ReviewAnswer, ReviewItem
from attuner.core.run import Launch
from attuner.core.search import Hypothesis
from attuner.policy import rounds
from attuner.policy.conduct import OPEN, POINT

RERUN = "rerun "
"""Before the rule of a refusal that doesn't hold any more."""

WORSE = 1.5
"""A measurement that a person admitted is covered again up to this factor of its deviation: a fresh run of one recipe measures
anew, and what lies further off is another fact, which nobody has seen."""


def banned(history: History) -> dict[str, Directive]:
    """Return the lever groups that people banned, each with who said so."""
    out: dict[str, Directive] = {}
    for said in history.directives():
        if said.act == "ban":
            out[said.lever] = said
        elif said.act == "unban":
            out.pop(said.lever, None)
    return out


def forbids(history: History, hypothesis: Hypothesis, levers: list[dict[str, object]]) -> str:
    """Return why a hypothesis may not be tried because of a ban, or ''.

    A ban of a group also holds for its arguments, where a move changes them without naming a group (`open`, `point`).
    """
    for group, said in banned(history).items():
        why = f"lever {group} is banned by {said.by}" + (f": {said.why}" if said.why else "")
        if hypothesis.group == group:
            return why
        lever = next((x for x in levers if x["id"] == group), None)
        changes = lever["changes"] if lever else []
        named = [*hypothesis.arguments, *(f"env:{k}" for k in hypothesis.env)]
        touched = [k for k in named if isinstance(changes, list) and k in changes]
        if touched and hypothesis.group in (OPEN, POINT):
            return f"{touched[0]}: {why}"
    return ""


def paused(history: History) -> Directive | None:
    """Return who paused the campaign, if it is paused."""
    last = None
    for said in history.directives():
        if said.act == "pause":
            last = said
        elif said.act == "go_on":
            last = None
    return last


def cancelled(history: History) -> Directive | None:
    """Return who cancelled the campaign, if anybody did: there is no way back."""
    return next((x for x in history.directives() if x.act == "cancel"), None)


def finished(history: History) -> Directive | None:
    """Return who ended the search, if anybody did."""
    return next((x for x in history.directives() if x.act == "finish"), None)


def stated_budget(history: History) -> float | None:
    """Return the total that a person set last, device-hours; None if nobody did."""
    said = [x.gpu_hours for x in history.directives() if x.act == "budget" and x.gpu_hours is not None]
    return said[-1] if said else None


def queued(history: History) -> tuple[str, Hypothesis, Directive] | None:
    """Return the first queued move that was not taken up yet: the key of its directive, the move, and who asked for it."""
    taken = {h.asked for h in history.hypotheses() if h.asked}
    for event in history.events:
        if event.kind != "directive" or event.key in taken:
            continue
        said = event.read(Directive)
        if said.act == "queue" and said.hypothesis is not None:
            return event.key, said.hypothesis, said
    return None


# ------------------------------------------------------------------------------------------------------------ reviews


def items(verdict: Verdict) -> Iterator[ReviewItem]:
    """Yield what one verdict leaves to a person."""
    for finding in verdict.reviews():
        yield ReviewItem(look=verdict.look, rule=finding.rule, key=finding.key, line=finding.line(), deviation=finding.deviation)


def all_items(history: History, launch_id: str) -> Iterator[ReviewItem]:
    """Yield what the verdicts on a launch leave to a person: the first look at its move, the later looks at each attempt, and
    refusals of its recipe that do not hold any more."""
    launch = history.launch(launch_id)
    config = history.verdict(launch.hypothesis) if launch and launch.hypothesis else None
    if config is not None:
        yield from items(config)
    for attempt in history.attempts(launch_id):
        for verdict in history.looks(launch_id, attempt.number):
            yield from items(verdict)
    if launch is not None:
        yield from _superseded(history, launch)


def _superseded(history: History, launch: Launch) -> Iterator[ReviewItem]:
    """Yield the refusals of later looks at this launch's recipe that do not hold any more.

    Another attempt was made, a rerun judged the same one again, or the re-measurement was made anew: trying until a look lets
    it pass is no evidence.

    Every launch of the recipe counts, its re-measurements too. A refusal that holds speaks for itself: by the score, or by the
    re-measurement that counts.
    """
    same = {x.id for x in history.launches() if x.recipe == launch.recipe and x.kind in ("search", "remeasure")} | {launch.id}
    counting = {launch.id, *(x.id for x in rounds.launches(history))}
    for event in history.events:
        subject = event.key.partition("#")[0]
        if event.kind != "verdict" or subject not in same or "#" not in event.key:
            continue
        verdict, held, trial = event.read(Verdict), history.verdict(event.key), history.trial(subject)
        if verdict.decision != "refuse":
            continue
        now = attempt_key(subject, trial.attempt) if trial else ""
        if subject in counting and held is not None and held.decision == "refuse" and event.key.removesuffix(":update") == now:
            continue
        first = verdict.refusals()[0]
        line = f"review  rerun  {event.key} was refused: {first.line().removeprefix('refuse  ')}"
        yield ReviewItem(look=verdict.look, rule=f"{RERUN}{first.rule}", key=first.key, line=line)


def answer_to(history: History, recipe: str) -> ReviewAnswer | None:
    """Return what people said of a recipe, whichever of its launches they said it of: their last word holds.

    An `admit` adds its items to those of the one before; a refusal takes them all back. That nobody answered in time is no
    word: it holds only where nobody ever gave one.
    """
    held: ReviewAnswer | None = None
    for event in history.events:
        if event.kind != "review":
            continue
        said = event.read(ReviewAnswer)
        if said.recipe != recipe or (said.decision == "unanswered" and held is not None):
            continue
        if said.decision == "admit" and held is not None and held.decision == "admit":
            said = said.model_copy(update={"items": [*held.items, *said.items]})
        held = said
    return held


def covers(answer: ReviewAnswer | None, item: ReviewItem) -> bool:
    """Tell whether a person admitted this very item: look, rule and key, and a deviation not much further off."""
    if answer is None or answer.decision != "admit":
        return False
    return any(_same(known, item) for known in answer.items)


def _same(known: ReviewItem, item: ReviewItem) -> bool:
    if (known.look, known.rule, known.key) != (item.look, item.rule, item.key):
        return False
    if known.deviation is None or item.deviation is None:
        # without a measurement the words are the fact: another value of the same key, or another refusal, is another question
        words = item.look == "config" or item.rule.startswith(RERUN)
        return known.deviation == item.deviation and (not words or known.line == item.line)
    return abs(item.deviation) <= WORSE * abs(known.deviation)


def left_open(history: History, launch_id: str) -> bool:
    """Tell whether everything that waits at a launch was asked about once and not answered in time."""
    launch, found = history.launch(launch_id), open_items(history, launch_id)
    said = [e.read(ReviewAnswer) for e in history.events if e.kind == "review"]
    asked = [x for x in said if launch is not None and x.recipe == launch.recipe and x.decision == "unanswered"]
    # a record without items is of a time when it stood for all
    return bool(asked) and all(any(not x.items or any(_same(known, item) for known in x.items) for x in asked) for item in found)


def open_items(history: History, launch_id: str) -> list[ReviewItem]:
    """Return what waits for a person before this launch's recipe may ship."""
    launch = history.launch(launch_id)
    if launch is None or not launch.hypothesis:
        return []
    answer = answer_to(history, launch.recipe)
    return [item for item in all_items(history, launch_id) if not covers(answer, item)]


def stands(history: History, verdict: Verdict | None) -> bool:
    """Tell whether a look admits: by itself, or because a person admitted everything that it left open. Never a refusal."""
    if verdict is None or verdict.decision == "refuse":
        return False
    answer = answer_to(history, verdict.recipe)
    found = list(items(verdict))
    return all(covers(answer, item) for item in found) and (verdict.decision == "admit" or bool(found))


def looks_stand(history: History, launch_id: str) -> bool:
    """Tell whether second and third look at a launch's last trial both stand."""
    trial = history.trial(launch_id)
    if trial is None:
        return False
    key = attempt_key(launch_id, trial.attempt)
    return all(stands(history, history.verdict(k)) for k in (key, f"{key}:update"))


def decided(history: History, launch_id: str, decision: Decision) -> Decision:
    """Return a score's decision after a person's word: `review` becomes `admit` where the looks stand by it."""
    return "admit" if decision == "review" and looks_stand(history, launch_id) else decision
