"""Final values from Megatron-LM itself: one process for each checkout, started with the first question. The checkout is the
user's code: it runs there only, in an environment that holds nothing but what Python needs.

By hand: `python -m attuner.runner.resolve_megatron --serve CHECKOUT`.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Mapping
from typing import Any

from attuner.core.errors import Broken, UserError

START_TIMEOUT_S = 180.0
ANSWER_TIMEOUT_S = 90.0
MODULE = "attuner.runner.resolve_megatron"
KEPT = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "SYSTEMROOT")
"""All of this process's environment that a checkout's code sees; the job's own variables come with each question."""


def environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of the resolver: no token, no key, no setting of anyone else's."""
    return {
        **{name: environ[name] for name in KEPT if name in environ},
        "OMP_NUM_THREADS": "1",
        "PYTHONDONTWRITEBYTECODE": "1",  # the checkout is left as it is
    }


class Resolver:
    """One resolver process; safe to close twice.

    Args:
        source: folder of the Megatron-LM checkout.
        slime_source: folder of slime's, or ''.
    """

    def __init__(self, source: str, slime_source: str = "") -> None:
        self._command = [sys.executable, "-P", "-m", MODULE, "--serve", source, *([slime_source] if slime_source else [])]
        self._process: subprocess.Popen[str] | None = None
        self._lines: queue.Queue[str] = queue.Queue()
        self._count = 0
        self.versions: dict[str, str] = {}
        self.catalogue: list[dict[str, Any]] = []

    def start(self) -> None:
        """Start the process and wait until it is ready; harmless when it runs.

        Raises:
            UserError: the folder is no checkout, or can't be imported here.
            Broken: the process died or does not answer.
        """
        if self._process is not None:
            return
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environment(os.environ),
            start_new_session=True,
        )
        threading.Thread(target=_pump, args=(self._process, self._lines), daemon=True).start()
        ready = self._read(START_TIMEOUT_S)
        if not ready.get("ready"):
            self.close()
            raise UserError(f"stack megatron: {ready.get('error', 'the checkout could not be loaded')}")
        self.versions = {str(k): str(v) for k, v in ready["versions"].items()}
        self.catalogue = list(ready.get("catalogue", []))

    def ask(self, question: dict[str, Any]) -> dict[str, Any]:
        """Return the answer to one question.

        Raises:
            UserError: the checkout can't be used.
            Broken: the process died or does not answer.
        """
        self.start()
        process, self._count = self._process, self._count + 1
        if process is None or process.stdin is None:
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
