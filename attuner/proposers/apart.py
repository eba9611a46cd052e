"""Any proposer, in a process of its own that can touch nothing: it gets a copy of the past and gives back one move.

The proposer is untrusted. It has no ledger, no rules folder, no cluster and no credentials: its environment is empty, and where
the kernel has Landlock it can neither write a file nor read one beyond code, nor connect, nor signal (`jail`). While it makes its
move it may ask fixed code through its pipe: one line `{"ask", "input"}`, answered by the brief's desk with one line.
"""

from __future__ import annotations

import json
import logging
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Sequence
from typing import Any

from attuner.core import errors
from attuner.core.errors import Broken, Refused, RegisterChanged, UserError
from attuner.core.search import Hypothesis, Stop
from attuner.ports import Brief, Desk

START_TIMEOUT_S = 60.0
PASSED_ON = ("PATH", "LANG", "LC_ALL", "TZ")
_log = logging.getLogger(__name__)


class Apart:
    """Implements ports.Proposer by asking a worker process; safe to close twice.

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
        self._kind, self._path, self._network = kind, list(path), network
        self._env, self._readable, self._timeout_s = env or {}, list(readable), answer_timeout_s
        self._process: subprocess.Popen[str] | None = None
        self._lines: queue.Queue[str] = queue.Queue()

    def ask(self, brief: Brief) -> Hypothesis | Stop:
        """Return the worker's move; see ports.Proposer.

        Raises:
            UserError: what the proposer itself says of the campaign file.
            Broken: the worker died, does not answer, or answers with something that is no move.
        """
        process = self._started()
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
        self._say(process, question)
        while "ask" in (said := self._read(self._timeout_s)):
            try:
                answer = _answer(brief.desk, said)
            except BaseException:
                self.close()  # it waits for an answer that never comes: the next question finds a fresh process
                raise
            self._say(process, answer)
        return self._move(said)

    def _say(self, process: subprocess.Popen[str], value: dict[str, Any]) -> None:
        if process.stdin is None:
            raise Broken("proposer: no way to ask it; this is a defect of attuner")
        try:
            process.stdin.write(json.dumps(value) + "\n")
            process.stdin.flush()
        except OSError as error:
            self.close()
            raise Broken(f"proposer {self._kind}: {error}; see the lines above it") from None

    def _move(self, said: dict[str, Any]) -> Hypothesis | Stop:
        if "error" in said:
            kind = getattr(errors, str(said.get("kind")), Broken)
            raise (kind if isinstance(kind, type) and issubclass(kind, errors.AttunerError) else Broken)(str(said["error"]))
        try:
            return Stop.model_validate(said["stop"]) if "stop" in said else Hypothesis.model_validate(said["hypothesis"])
        except (KeyError, ValueError) as error:
            raise Broken(f"proposer {self._kind}: no move: {' '.join(str(error).split())[:200]}") from None

    def _started(self) -> subprocess.Popen[str]:
        if self._process is not None:
            return self._process
        env = {k: os.environ[k] for k in PASSED_ON if k in os.environ}
        if self._path:
            env["PYTHONPATH"] = os.pathsep.join(self._path)
        options = ["--network"] if self._network else []
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "attuner.proposers.worker", self._kind, *options, *self._readable],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**env, "PYTHONDONTWRITEBYTECODE": "1", **self._env},
            start_new_session=True,
        )
        threading.Thread(target=self._pump, args=(self._process, self._lines), daemon=True).start()
        if not self._read(START_TIMEOUT_S).get("jailed"):
            _log.warning("the proposer runs in a process of its own, but this kernel has no Landlock to lock it in")
        return self._process

    @staticmethod
    def _pump(process: subprocess.Popen[str], lines: queue.Queue[str]) -> None:
        if process.stdout is not None:
            for line in process.stdout:
                lines.put(line)
        lines.put("")  # the end

    def _read(self, timeout_s: float) -> dict[str, Any]:
        try:
            line = self._lines.get(timeout=timeout_s)
        except queue.Empty:
            self.close()
            raise Broken(f"proposer {self._kind}: no answer within {timeout_s:.0f} s") from None
        if not line:
            self.close()
            raise Broken(f"proposer {self._kind}: its process ended; see the lines above it")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        """End the worker."""
        process, self._process = self._process, None
        if process is None:
            return
        if process.poll() is None:
            process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
        self._lines = queue.Queue()


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
