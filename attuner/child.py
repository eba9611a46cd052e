"""A child process that speaks JSON, one line a word: what stacks ask a framework's own code, and what asks a proposer, goes
through it. It begins with the first word and ends with `close`; whatever becomes of it, the asker hears it in one line."""

from __future__ import annotations

import contextlib
import json
import queue
import subprocess
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from attuner.core.errors import Broken


class Child:
    """One process; safe to close twice, and to start again after.

    Args:
        name: what it is called in errors.
        command, env: how it is started; nothing of this process's environment is added.
        hint: what to do when it fails, the end of an error's line.
        heard: its stderr is this process's; else it is thrown away.
    """

    def __init__(self, name: str, command: Sequence[str], env: Mapping[str, str], *, hint: str, heard: bool = False) -> None:
        self._name, self._command, self._env, self._hint, self._heard = name, list(command), dict(env), hint, heard
        self._process: subprocess.Popen[str] | None = None
        self._lines: queue.Queue[str] = queue.Queue()

    @property
    def pid(self) -> int | None:
        """The process id; None while it isn't started."""
        return self._process.pid if self._process else None

    def start(self) -> bool:
        """Begin to start the process, without waiting for it; return whether it was this call that did."""
        if self._process is not None:
            return False
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=None if self._heard else subprocess.DEVNULL,
            text=True,
            env=self._env,
            start_new_session=True,
        )
        threading.Thread(target=_pump, args=(self._process, self._lines), daemon=True).start()
        return True

    def say(self, value: Mapping[str, Any]) -> None:
        """Write one word. Raises: Broken when nobody listens."""
        process = self._process
        if process is None or process.stdin is None:
            raise Broken(f"{self._name}: no way to ask it; this is a defect of attuner")
        try:
            process.stdin.write(json.dumps(value) + "\n")
            process.stdin.flush()
        except OSError as error:
            self.close()
            raise Broken(f"{self._name}: {error}; {self._hint}") from None

    def read(self, timeout_s: float) -> dict[str, Any]:
        """Return the next word. Raises: Broken when it ended, says nothing for `timeout_s`, or speaks no JSON."""
        try:
            line = self._lines.get(timeout=timeout_s)
        except queue.Empty:
            self.close()
            raise Broken(f"{self._name}: no answer within {timeout_s:.0f} s; {self._hint}") from None
        if not line:
            code = self._process.wait() if self._process else None
            self.close()
            raise Broken(f"{self._name}: ended (exit {code}); {self._hint}")
        try:
            answer: Any = json.loads(line)
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            self.close()
            raise Broken(f"{self._name}: said something that is no answer; {self._hint}")
        return answer

    def close(self) -> None:
        """End the process and its forks."""
        process, self._process = self._process, None
        if process is None:
            return
        if process.poll() is None:
            process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        self._lines = queue.Queue()


class Asked(Child):
    """A child that answers numbered questions, once it has said that it is ready."""

    def __init__(self, name: str, command: Sequence[str], env: Mapping[str, str], *, hint: str) -> None:
        super().__init__(name, command, env, hint=hint)
        self._count = 0

    def ask(self, question: Mapping[str, Any], timeout_s: float) -> dict[str, Any]:
        """Return the answer to one question. Raises: Broken as `read`, and when another question is answered."""
        self._count += 1
        self.say({"id": self._count, **question})
        answer = self.read(timeout_s)
        if answer.get("id") != self._count:
            self.close()
            raise Broken(f"{self._name}: answered question {answer.get('id')}, not {self._count}")
        return answer


def _pump(process: subprocess.Popen[str], lines: queue.Queue[str]) -> None:
    if process.stdout is not None:
        with contextlib.suppress(ValueError):  # closed while it was read
            for line in process.stdout:
                lines.put(line)
    lines.put("")  # the end
