"""Final values from megatron-core itself, in a process of its own: importing torch takes seconds, a question milliseconds.

The process is started with the first question and answers one JSON line per JSON line. By hand:
`python -m attuner.runner.resolve_mcore`.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from attuner.child import Asked

START_TIMEOUT_S = 180.0
ANSWER_TIMEOUT_S = 60.0


class Resolver:
    """One resolver process; safe to close twice."""

    def __init__(self) -> None:
        env = {k: v for k, v in os.environ.items() if not k.startswith(("PREFECT_", "ANTHROPIC_"))}
        command = [sys.executable, "-m", "attuner.runner.resolve_mcore"]
        self._child = Asked("resolver", command, {**env, "OMP_NUM_THREADS": "1"}, hint=f"try `{' '.join(command)}` by hand")
        self.versions: dict[str, str] = {}

    def start(self) -> None:
        """Begin to start the process without waiting for it."""
        self._child.start()

    def ask(self, question: dict[str, Any]) -> dict[str, Any]:
        """Return the answer to one question.

        Raises:
            Broken: the process died or does not answer.
        """
        if self._child.start() or not self.versions:
            ready = self._child.read(START_TIMEOUT_S)
            self.versions = {str(k): str(v) for k, v in ready.get("versions", {}).items()}
        return self._child.ask(question, ANSWER_TIMEOUT_S)

    def close(self) -> None:
        """End the process."""
        self._child.close()
        self.versions = {}
