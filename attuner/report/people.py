"""Who said what to a campaign, and when: answers to what waited for a person, directives, and reruns with what they set aside and
what was done again. Every word stays on record, also one that a later word replaced."""

from __future__ import annotations

from dataclasses import dataclass

from attuner.core.events import INVALIDATED, Event, History
from attuner.core.people import Directive, Invalidated, ReviewAnswer
from attuner.report.words import Units

SHOWN_RECORDS = 6


@dataclass(frozen=True)
class Word:
    """One thing that a person said; untrusted text."""

    at: float
    by: str
    said: str
    why: str
    followed: str = ""
    """What came of it, where the records tell."""


@dataclass(frozen=True)
class Rerun:
    """One step that a person had done again; untrusted text."""

    at: float
    by: str
    step: str
    key: str
    why: str
    set_aside: tuple[str, ...]
    """Records that no longer hold, `kind key`; they stay in the ledger."""
    again: tuple[str, ...]
    """What was made afterwards under the same names, and new attempts with what came of them."""


def words(history: History, units: Units) -> tuple[Word, ...]:
    """Return every answer and directive, in order."""
    found = []
    for event in history.events:
        if event.kind == "review":
            found.append(_answer(event))
        elif event.kind == "directive":
            found.append(_directive(event, history, units))
    return tuple(found)


def _answer(event: Event) -> Word:
    answer = event.read(ReviewAnswer)
    about = f"{len(answer.items)} finding{'' if len(answer.items) == 1 else 's'} about {answer.launch_id}"
    if answer.decision == "unanswered":
        return Word(event.at, answer.by or "nobody", f"did not answer in time: {about} not admitted", answer.why)
    said = f"{'admitted' if answer.decision == 'admit' else 'refused'} {about}"
    items = "; ".join(i.line.removeprefix("review  ") or " ".join(x for x in (i.rule, i.key) if x) for i in answer.items)
    return Word(event.at, answer.by, f"{said}: {items}" if items else said, answer.why)


def _directive(event: Event, history: History, units: Units) -> Word:
    word = event.read(Directive)
    followed = ""
    if word.act == "queue":
        moves = [h for h in history.hypotheses() if h.asked == event.key]
        launches = [x.id for x in history.launches() if any(x.hypothesis == h.id for h in moves)]
        followed = ", ".join([*(h.id for h in moves), *launches]) or "not taken up"
    title = word.hypothesis.title if word.hypothesis else ""
    said = {
        "queue": f"asked for: {title}",
        "ban": f"banned lever {word.lever}",
        "unban": f"allowed lever {word.lever} again",
        "pause": "paused the campaign",
        "go_on": "let it go on",
        "budget": f"set the budget to {units.spent(word.gpu_hours or 0.0)}",
        "finish": "ended the search; what led was to be measured again and shipped",
        "cancel": "cancelled the campaign",
    }.get(word.act, word.act.replace("_", " "))
    return Word(event.at, word.by, said, word.why, followed)


def reruns(history: History) -> tuple[Rerun, ...]:
    """Return every rerun, in order."""
    return tuple(_rerun(e, history) for e in history.events if e.kind == INVALIDATED)


def _rerun(event: Event, history: History) -> Rerun:
    word = event.read(Invalidated)
    named = set(word.hides)
    later = [e for e in history.events if e.n > event.n]
    again = list(dict.fromkeys(f"{e.kind} {e.key}" for e in later if f"{e.kind} {e.key}" in named))
    if word.step == "launch":
        again = [_attempt(history, word.key, a.number) for a in history.attempts(word.key) if a.number > word.after] + again
    return Rerun(event.at, word.by, word.step, word.key, word.why, tuple(word.hides), tuple(again))


def _attempt(history: History, launch_id: str, number: int) -> str:
    trial = history.trial(launch_id)
    came = trial.status.replace("_", " ") if trial and trial.attempt == number else "no trial holds"
    return f"attempt {launch_id}#{number} ({came})"


def shortly(records: tuple[str, ...]) -> str:
    """Return some records in one line, the first few by name."""
    more = f" and {len(records) - SHOWN_RECORDS} more" if len(records) > SHOWN_RECORDS else ""
    return ", ".join(records[:SHOWN_RECORDS]) + more
