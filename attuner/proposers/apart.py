"""Any proposer, in a process of its own that can touch nothing: it gets a copy of the past and gives back one move.

The proposer is untrusted. It has no ledger, no rules folder, no cluster and no credentials: its environment is empty, and where
the kernel has Landlock it can neither write a file nor read one beyond code, nor connect, nor signal (`jail`). While it makes its
move it may ask fixed code through its pipe: one line `{"ask", "input"}`, answered by the brief's desk with one line.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence
from typing import Any

from attuner.child import Child
from attuner.core import errors
from attuner.core.errors import Broken, Refused, RegisterChanged, UserError
from attuner.core.message import Question, Said
from attuner.core.search import Hypothesis, Stop
from attuner.ports import Brief, Desk

START_TIMEOUT_S = 60.0
PASSED_ON = ("PATH", "LANG", "LC_ALL", "TZ")
_log = logging.getLogger(__name__)


class Apart:
    """Implements ports.Proposer, and ports.Adviser for a proposer that does, by asking a worker process; safe to close twice.

    Args:
        kind: `module:Class` of the proposer.
        path: folders to put on its import path (for proposers outside this package).
        env: further variables that it needs, by value.
        readable: files and folders that it may read beside code.
        network: it talks to a model, so TCP stays open.
        answer_timeout_s: how long it may be silent; a question to fixed code is a word too.
    """

    def __init__(
        self,
        kind: str,
        *,
        path: Sequence[str] = (),
        env: dict[str, str] | None = None,
        readable: Sequence[str] = (),
        network: bool = False,
        answer_timeout_s: float = 600.0,
    ) -> None:
        given, env = env, {k: os.environ[k] for k in PASSED_ON if k in os.environ}
        if path:
            env["PYTHONPATH"] = os.pathsep.join(path)
        words = ["--network"] if network else []
        self._kind, self._timeout_s = kind, answer_timeout_s
        self._child = Child(
            f"proposer {kind}",
            [sys.executable, "-P", "-m", "attuner.proposers.worker", kind, *words, *readable],
            {**env, "PYTHONDONTWRITEBYTECODE": "1", **(given or {})},
            hint="see the lines above it",
            heard=True,
        )

    def ask(self, brief: Brief) -> Hypothesis | Stop:
        """Return the worker's move; see ports.Proposer.

        Raises:
            UserError: what the proposer itself says of the campaign file.
            Broken: the worker died, does not answer, or answers with something that is no move.
        """
        self.start()
        question = {
            "campaign": brief.campaign.data(),
            "levers": brief.levers,
            "remaining_gpu_hours": brief.remaining_gpu_hours,
            "next_id": brief.next_id,
            "events": [e.data() for e in brief.history.events],
            "lessons": [x.data() for x in brief.lessons],
            "summaries": [x.data() for x in brief.summaries],
            "source": brief.source,
        }
        return self._move(self._heard(question, brief.desk))

    def say(self, question: Question, desk: Desk) -> Said:
        """Return what the worker answers to a question outside a search; see ports.Adviser.

        Raises:
            BudgetExceeded, Transient, UserError: what it says itself.
            Broken: the worker died, does not answer, or answers with something that is no answer.
        """
        self.start()
        heard = self._heard({"question": question.data()}, desk)
        try:
            return Said.model_validate(heard["said"])
        except (KeyError, ValueError) as error:
            raise Broken(f"proposer {self._kind}: no answer: {' '.join(str(error).split())[:200]}") from None

    def _heard(self, question: dict[str, Any], desk: Desk | None) -> dict[str, Any]:
        """Ask, let fixed code answer what the worker asks meanwhile, and return its last word; raise what it says went wrong."""
        self._child.say(question)
        while "ask" in (said := self._child.read(self._timeout_s)):
            try:
                answer = _answer(desk, said)
            except BaseException:
                self.close()  # it waits for an answer that never comes: the next question finds a fresh process
                raise
            self._child.say(answer)
        if "error" in said:
            kind = getattr(errors, str(said.get("kind")), Broken)
            raise (kind if isinstance(kind, type) and issubclass(kind, errors.AttunerError) else Broken)(str(said["error"]))
        return said

    def _move(self, said: dict[str, Any]) -> Hypothesis | Stop:
        try:
            return Stop.model_validate(said["stop"]) if "stop" in said else Hypothesis.model_validate(said["hypothesis"])
        except (KeyError, ValueError) as error:
            raise Broken(f"proposer {self._kind}: no move: {' '.join(str(error).split())[:200]}") from None

    @property
    def pid(self) -> int | None:
        """The worker's process id; None while it isn't started."""
        return self._child.pid

    def start(self) -> None:
        """Start the worker and wait until it is locked in; harmless when it runs."""
        if self._child.start() and not self._child.read(START_TIMEOUT_S).get("jailed"):
            _log.warning("the proposer runs in a process of its own, but this kernel has no Landlock to lock it in")

    def close(self) -> None:
        """End the worker."""
        self._child.close()


def _answer(desk: Desk | None, said: dict[str, Any]) -> dict[str, Any]:
    """Let fixed code answer what the proposer asks; a refusal is an answer, a moved register or lost contact is not."""
    try:
        if desk is None:
            raise Refused("nobody answers here")
        given = said.get("input")
        return {"answer": desk(str(said["ask"]), given if isinstance(given, dict) else {})}
    except RegisterChanged:
        raise
    except (Refused, UserError) as error:
        return {"refused": str(error), "kind": type(error).__name__}
