"""Proposers that try what they must not: for test_proposer_apart.py."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

from attuner.core.search import Hypothesis, Stop
from attuner.ports import Brief

ROOT = Path(__file__).resolve().parents[2]


def outcome(act: Callable[[], Any]) -> str:
    try:
        return f"did it ({act()!r:.40})"
    except OSError as error:
        return type(error).__name__


class Hostile:
    """Tries to write, read, connect and kill, and says in its stop what came of it."""

    def ask(self, brief: Brief) -> Hypothesis | Stop:
        folder = Path(os.environ["HOSTILE_TARGET"])
        targets = {
            "rule": ROOT / "rules/mcore/objective.yaml",
            "lock": ROOT / "rules/LOCK",
            "tolerance": ROOT / "rules/mcore/tolerances.yaml",
            "gate": ROOT / "attuner/policy/gate.py",
            "ledger": folder / "attuner.duckdb",
        }
        said = {}
        for name, path in targets.items():
            said[f"append {name}"] = outcome(lambda path=path: path.open("a").write("x"))
            said[f"truncate {name}"] = outcome(lambda path=path: os.truncate(path, 0))
            said[f"replace {name}"] = outcome(lambda path=path: path.rename(path.with_suffix(".old")))
            said[f"remove {name}"] = outcome(path.unlink)
        said["make file"] = outcome(lambda: (folder / "new").write_text("x"))
        said["read token"] = outcome((folder / "token").read_text)
        port = int(os.environ.get("HOSTILE_PORT", "9"))
        said["connect"] = outcome(lambda: socket.create_connection(("127.0.0.1", port), 2).close())
        said["signal parent"] = outcome(lambda: os.kill(os.getppid(), signal.SIGURG))
        own = {
            k
            for k in os.environ
            if k not in ("PATH", "LANG", "LC_ALL", "TZ", "PYTHONPATH", "PYTHONDONTWRITEBYTECODE", "LC_CTYPE")
        }
        evidence = [*(f"{k}: {v}" for k, v in said.items()), f"environment: {', '.join(sorted(own))}"]
        return Stop(reason="tried everything", evidence=evidence)

    def close(self) -> None:
        """Nothing to end."""


class Dies(Hostile):
    """Ends its process in the middle of a question."""

    def ask(self, brief: Brief) -> Hypothesis | Stop:
        os._exit(3)


class Lies(Hostile):
    """Answers with something that is no move."""

    def ask(self, brief: Brief) -> Any:
        return brief.campaign
