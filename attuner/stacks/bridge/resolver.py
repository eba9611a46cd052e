"""Final values from Megatron-Bridge itself: one process for each checkout, started with the first question. Its code runs there
only, in an environment that holds nothing but what Python needs.

By hand: `python -m attuner.runner.resolve_bridge --serve [CHECKOUT]`.
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

from attuner.core.errors import Broken, UserError

START_TIMEOUT_S = 180.0
ANSWER_TIMEOUT_S = 120.0
MODULE = "attuner.runner.resolve_bridge"
KEPT = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "HF_HOME", "HF_HUB_OFFLINE")
"""All of this process's environment that Bridge's code sees; recipes read model descriptions from Hugging Face's cache."""


class Resolver:
    """One resolver process; safe to close twice. source: folder of the checkout; '' is the installed package."""

    def __init__(self, source: str) -> None:
        self._command = [sys.executable, "-P", "-m", MODULE, "--serve", *([source] if source else [])]
        self._process: subprocess.Popen[str] | None = None
        self._lines: queue.Queue[str] = queue.Queue()
        self._count = 0
        self.versions: dict[str, str] = {}

    def ask(self, question: dict[str, Any]) -> dict[str, Any]:
        """Return the answer to one question.

        Raises:
            UserError: Bridge can't be imported here; what is missing.
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
            self.close()
            raise Broken(f"resolver: {error}; try `{self._shown()}` by hand") from None
        answer = self._read(ANSWER_TIMEOUT_S)
        if answer.get("id") != self._count:
            self.close()
            raise Broken(f"resolver: answered question {answer.get('id')}, not {self._count}")
        return answer

    def _started(self) -> subprocess.Popen[str]:
        if self._process is not None:
            return self._process
        env = {name: os.environ[name] for name in KEPT if name in os.environ}
        process = self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**env, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"},
            start_new_session=True,
        )
        threading.Thread(target=_pump, args=(process, self._lines), daemon=True).start()
        ready = self._read(START_TIMEOUT_S)
        if not ready.get("ready"):
            self.close()
            raise UserError(str(ready.get("error", "stack bridge: Megatron-Bridge could not be loaded")))
        self.versions = {str(k): str(v) for k, v in ready["versions"].items()}
        return process

    def _read(self, timeout_s: float) -> dict[str, Any]:
        try:
            line = self._lines.get(timeout=timeout_s)
        except queue.Empty:
            self.close()
            raise Broken(f"resolver: no answer within {timeout_s:.0f} s; try `{self._shown()}` by hand") from None
        if not line:
            code = self._process.wait() if self._process else None
            self.close()
            raise Broken(f"resolver: ended (exit {code}); try `{self._shown()}` by hand")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _shown(self) -> str:
        return " ".join(self._command)

    def close(self) -> None:
        """End the process and its forks."""
        process, self._process, self.versions = self._process, None, {}
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


def _pump(process: subprocess.Popen[str], lines: queue.Queue[str]) -> None:
    if process.stdout is not None:
        with contextlib.suppress(ValueError):  # closed while it was read
            for line in process.stdout:
                lines.put(line)
    lines.put("")  # the end
