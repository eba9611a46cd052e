"""Asks a model what it knows of lessons, without showing it any. Every call is on record under an id of its own, before it is
made and again before its answer is read; an answer that is on record is never paid for twice. See ADR 0024."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from attuner.core.base import Record
from attuner.core.campaign import ProposerSpec
from attuner.core.errors import BudgetExceeded, Transient
from attuner.core.events import History
from attuner.core.lesson import Lesson, LessonKnown
from attuner.core.message import FORM, Prompt, Question, Reply
from attuner.policy import dollars
from attuner.policy import lessons_known as policy
from attuner.ports import Adviser, Ledger
from attuner.steps.calls import Calls

KNOWLEDGE = "lessons-knowledge"
"""Under this id stand the calls to models that are asked what they know; it was never born, so no list of campaigns shows it."""


@dataclass(frozen=True)
class Asked:
    """What a model knew."""

    marks: list[LessonKnown]
    silent: list[Lesson]
    """Those that claim nothing an answer could be held against."""
    left: list[Lesson]
    """Those that were not asked any more, or not to the end."""
    stopped: str
    """Why; '' if nothing is left."""
    lost: Transient | None
    """Contact with the model was lost."""
    spent_usd: float
    """On this run's calls."""


def ask(
    ledger: Ledger, adviser: Adviser, spec: ProposerSpec, lessons: Sequence[Lesson], *, answers: int, again: bool, at: str
) -> Asked:
    """Ask about each lesson until the limit of dollars is reached.

    Args:
        ledger: where the calls stand.
        adviser: the model's process.
        spec: model, price, and the dollars that this run may spend.
        lessons: any.
        answers: to each question; all count.
        again: ask also what is answered on record already.
        at: the date that the marks bear.

    Raises:
        Refused: another process is asking.
        UserError: the server refuses the call.
    """
    ledger.claim(KNOWLEDGE)
    try:
        first = len(dollars.calls(_past(ledger))) + 1
        since = first if again else 1
        marks: list[LessonKnown] = []
        asked = [x for x in lessons if policy.question(x)]
        stopped, lost = "", None
        for lesson in asked:
            try:
                forms = _answers(ledger, adviser, spec, lesson, wanted=answers, first=first, since=since)
            except BudgetExceeded as error:
                stopped = str(error)
                break
            except Transient as error:
                stopped, lost = str(error), error
                break
            marks.append(policy.judged(lesson, spec.model, [policy.belief(f) for f in forms], at=at))
        return Asked(
            marks=marks,
            silent=[x for x in lessons if not policy.question(x)],
            left=asked[len(marks) :],
            stopped=stopped,
            lost=lost,
            spent_usd=dollars.spent_usd(_past(ledger), since=first),
        )
    finally:
        ledger.release(KNOWLEDGE)


def _past(ledger: Ledger) -> History:
    return History(ledger.history(KNOWLEDGE))


def _answers(
    ledger: Ledger, adviser: Adviser, spec: ProposerSpec, lesson: Lesson, *, wanted: int, first: int, since: int
) -> list[dict[str, Any] | None]:
    """Return the forms that the model filled in for one lesson: those on record, then new ones."""
    text = policy.question(lesson)
    forms = recorded(_past(ledger), spec, text, since=since)[:wanted]

    def put(kind: str, key: str, record: Record) -> None:
        ledger.append(KNOWLEDGE, kind, key, record)

    while len(forms) < wanted:
        number = len(dollars.calls(_past(ledger))) + 1
        asked = Question(
            thread=f"{lesson.id}@{number}",
            subject=lesson.id,
            model=spec.model,
            base_url=spec.base_url,
            effort=spec.effort,
            system=policy.SYSTEM,
            text=text,
            form=policy.FORM,
        )
        desk = Calls(spec, lesson.id, past=lambda: _past(ledger), put=put, first=first)
        forms.append(adviser.say(asked, desk).form)
    return forms


def recorded(history: History, spec: ProposerSpec, text: str, *, since: int = 1) -> list[dict[str, Any] | None]:
    """Return the forms on record for this very question to this model, one a conversation; None where it filled in none."""
    found: dict[str, dict[str, Any] | None] = {}
    for message, reply in dollars.calls(history):
        prompt = history.find("prompt", message.prompt, Prompt)
        opens = message.sent[:1] == [{"type": "text", "text": text}]
        same = message.model == spec.model and prompt is not None and prompt.system == [policy.SYSTEM]
        if message.number < since or not same or not (opens or message.thread in found):
            continue
        if reply is None or reply.status != "answered":
            found.pop(message.thread, None)  # contact was lost: it is asked anew
            continue
        found[message.thread] = form_of(reply)
    return list(found.values())


def form_of(reply: Reply) -> dict[str, Any] | None:
    """Return the one form that an answer fills in, unchecked; None if it fills in none, or was cut off."""
    called = [b for b in reply.content if b.get("type") == "tool_use"]
    whole = len(called) == 1 and reply.stop_reason != "max_tokens"
    if not whole or called[0].get("name") != FORM or not isinstance(called[0].get("input"), dict):
        return None
    return dict(called[0]["input"])
