"""Final values from megatron-core itself, in a process of its own: importing torch takes seconds, a question milliseconds.

The process is started with the first question and answers one JSON line per JSON line.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
from typing import Any

from attuner.core.errors import Broken

START_TIMEOUT_S = 180.0
ANSWER_TIMEOUT_S = 60.0


class Resolver:
    """One resolver process; safe to close twice."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._lines: queue.Queue[str] = queue.Queue()
        self._count = 0
        self.versions: dict[str, str] = {}

    def ask(self, question: dict[str, Any]) -> dict[str, Any]:
        """Return the answer to one question.

        Raises:
            Broken: the process died or does not answer.
        """
        process = self._started()
        self._count += 1
        if process.stdin is None:
            raise Broken("resolver: no way to ask it; this is a defect of attuner")
        try:
            process.stdin.write(json.dumps({"id": self._count, **question}) + "\n")
            process.stdin.flush()
        except OSError as error:
            raise Broken(f"resolver: {error}; see the lines above it, and retry") from None
        answer = self._read(ANSWER_TIMEOUT_S)
        if answer.get("id") != self._count:
            raise Broken(f"resolver: answered question {answer.get('id')}, not {self._count}")
        return answer

    def start(self) -> None:
        """Begin to start the process without waiting for it."""
        if self._process is not None:
            return
        env = {k: v for k, v in os.environ.items() if not k.startswith(("PREFECT_", "ANTHROPIC_"))}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "attuner.runner.resolve_mcore"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**env, "OMP_NUM_THREADS": "1"},
            start_new_session=True,
        )
        threading.Thread(target=self._pump, args=(self._process,), daemon=True).start()

    def _pump(self, process: subprocess.Popen[str]) -> None:
        if process.stdout is not None:
            for line in process.stdout:
                self._lines.put(line)
        self._lines.put("")  # the end

    def _started(self) -> subprocess.Popen[str]:
        fresh = self._process is None
        self.start()
        if self._process is None:
            raise Broken("resolver: did not start")
        if fresh or not self.versions:
            ready = self._read(START_TIMEOUT_S)
            self.versions = {str(k): str(v) for k, v in ready.get("versions", {}).items()}
        return self._process

    def _read(self, timeout_s: float) -> dict[str, Any]:
        try:
            line = self._lines.get(timeout=timeout_s)
        except queue.Empty:
            self.close()
            raise Broken(f"resolver: no answer within {timeout_s:.0f} s") from None
        if not line:
            code = self._process.poll() if self._process else None
            self.close()
            raise Broken(f"resolver: ended (exit {code}); try `{sys.executable} -m attuner.runner.resolve_mcore` by hand")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        """End the process."""
        process, self._process, self.versions = self._process, None, {}
        if process is not None and process.poll() is None:
            process.kill()
        if process is not None:
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    with contextlib.suppress(OSError):
                        pipe.close()
        self._lines = queue.Queue()
