"""Final values from Megatron-Bridge itself: one process for each checkout, started with the first question. Its code runs there
only, in an environment that holds nothing but what Python needs.

By hand: `python -m attuner.runner.resolve_bridge --serve [CHECKOUT]`.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from attuner.child import Asked
from attuner.core.errors import UserError

START_TIMEOUT_S = 180.0
ANSWER_TIMEOUT_S = 120.0
MODULE = "attuner.runner.resolve_bridge"
KEPT = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "HF_HOME", "HF_HUB_OFFLINE")
"""All of this process's environment that Bridge's code sees; recipes read model descriptions from Hugging Face's cache."""


class Resolver:
    """One resolver process; safe to close twice. source: folder of the checkout; '' is the installed package."""

    def __init__(self, source: str) -> None:
        command = [sys.executable, "-P", "-m", MODULE, "--serve", *([source] if source else [])]
        env = {name: os.environ[name] for name in KEPT if name in os.environ}
        env |= {"OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
        self._child = Asked("resolver", command, env, hint=f"try `{' '.join(command)}` by hand")
        self.versions: dict[str, str] = {}

    def ask(self, question: dict[str, Any]) -> dict[str, Any]:
        """Return the answer to one question.

        Raises:
            UserError: Bridge can't be imported here; what is missing.
            Broken: the process died or does not answer.
        """
        if self._child.start():
            ready = self._child.read(START_TIMEOUT_S)
            if not ready.get("ready"):
                self.close()
                raise UserError(str(ready.get("error", "stack bridge: Megatron-Bridge could not be loaded")))
            self.versions = {str(k): str(v) for k, v in ready["versions"].items()}
        return self._child.ask(question, ANSWER_TIMEOUT_S)

    def close(self) -> None:
        """End the process and its forks."""
        self._child.close()
        self.versions = {}
