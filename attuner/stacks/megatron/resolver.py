"""Final values from Megatron-LM itself: one process for each checkout, started with the first question. The checkout is the
user's code: it runs there only, in an environment that holds nothing but what Python needs.

By hand: `python -m attuner.runner.resolve_megatron --serve CHECKOUT`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any

from attuner.child import Asked
from attuner.core.errors import UserError

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
        command = [sys.executable, "-P", "-m", MODULE, "--serve", source, *([slime_source] if slime_source else [])]
        self._child = Asked("resolver", command, environment(os.environ), hint=f"try `{' '.join(command)}` by hand")
        self.versions: dict[str, str] = {}
        self.catalogue: list[dict[str, Any]] = []

    def start(self) -> None:
        """Start the process and wait until it is ready; harmless when it runs.

        Raises:
            UserError: the folder is no checkout, or can't be imported here.
            Broken: the process died or does not answer.
        """
        if not self._child.start():
            return
        ready = self._child.read(START_TIMEOUT_S)
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
        return self._child.ask(question, ANSWER_TIMEOUT_S)

    def close(self) -> None:
        """End the process and its forks."""
        self._child.close()
        self.versions = {}
