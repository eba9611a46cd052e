"""A proposer's process: answers one JSON line (a brief) with one JSON line (a hypothesis or a stop), and may ask fixed code
through the same pipe meanwhile (`Pipe`). It locks itself in before it reads anything of the campaign. Started by `apart`:
`python -m attuner.proposers.worker MODULE:CLASS [--network] [READABLE...]`."""

from __future__ import annotations

import importlib
import json
import os
import sys
from pathlib import Path
from typing import Any, TextIO

from attuner.core import errors
from attuner.core.campaign import Campaign
from attuner.core.errors import AttunerError, Broken, Refused
from attuner.core.events import Event, History
from attuner.core.lesson import CampaignSummary, Lesson
from attuner.core.message import Question
from attuner.ports import Adviser, Brief, Desk, Proposer
from attuner.proposers import jail


class Pipe:
    """Implements ports.Desk by asking the parent process."""

    def __init__(self, questions: TextIO, answers: TextIO) -> None:
        """Ask on `answers`, hear on `questions`."""
        self._questions, self._answers = questions, answers

    def __call__(self, name: str, given: dict[str, Any]) -> Any:
        """Ask fixed code; raises Refused or UserError as it does, and Broken when the parent is gone."""
        _say(self._answers, {"ask": name, "input": given})
        line = self._questions.readline()
        if not line:
            raise Broken("the process that asked is gone")
        heard = json.loads(line)
        if "refused" in heard:
            kind = getattr(errors, str(heard.get("kind")), Refused)
            raise kind(str(heard["refused"]))
        return heard["answer"]


def answer(proposer: Proposer, asked: dict[str, Any], desk: Desk | None = None) -> dict[str, Any]:
    """Ask the proposer and return {"hypothesis"|"stop": …}, {"said": …} to a question, or {"error", "kind"} of a failure."""
    if "question" in asked:
        return _said(proposer, asked["question"], desk)
    brief = Brief(
        campaign=Campaign.model_validate(asked["campaign"]),
        levers=asked["levers"],
        remaining_gpu_hours=asked["remaining_gpu_hours"],
        next_id=asked["next_id"],
        history=History([Event.model_validate(e) for e in asked["events"]]),
        lessons=[Lesson.model_validate(x) for x in asked["lessons"]],
        summaries=[CampaignSummary.model_validate(x) for x in asked["summaries"]],
        source=asked["source"],
        desk=desk,
    )
    try:
        move = proposer.ask(brief)
    except AttunerError as error:
        return {"error": str(error), "kind": type(error).__name__}
    return {type(move).__name__.lower(): move.data()}


def _said(proposer: Proposer, question: dict[str, Any], desk: Desk | None) -> dict[str, Any]:
    try:
        if not isinstance(proposer, Adviser) or desk is None:
            raise Refused(f"{type(proposer).__name__}: answers no questions outside a search")
        return {"said": proposer.say(Question.model_validate(question), desk).data()}
    except AttunerError as error:
        return {"error": str(error), "kind": type(error).__name__}


def serve(proposer: Proposer, questions: TextIO, answers: TextIO, *, jailed: bool) -> None:
    """Answer until the questions end; the first line says whether the process is locked in."""
    _say(answers, {"jailed": jailed})
    desk = Pipe(questions, answers)
    while line := questions.readline():
        _say(answers, answer(proposer, json.loads(line), desk))


def _say(answers: TextIO, value: dict[str, Any]) -> None:
    answers.write(json.dumps(value) + "\n")
    answers.flush()


def main(argv: list[str]) -> None:
    """Import the proposer, lock this process in, and serve on the standard streams."""
    own = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever a proposer prints goes to stderr, never into an answer
    module, _, kind = argv[0].partition(":")
    proposer: Proposer = getattr(importlib.import_module(module), kind)()
    # never sys.path itself: a checkout on it would open everything that lies in the checkout
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    code = [sys.prefix, sys.base_prefix, str(Path(__file__).resolve().parents[1]), *(p for p in given if p)]
    readable = [x for x in argv[1:] if x != "--network"]
    jailed = jail.enter([*code, *readable], network="--network" in argv)
    serve(proposer, sys.stdin, own, jailed=jailed)


if __name__ == "__main__":
    main(sys.argv[1:])
