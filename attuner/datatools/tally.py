"""What was read and what was left out, counted by reason; `strict` turns the first thing left out into an error."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from attuner.core.errors import UserError

NOT_JSON = "lines that are no JSON object"
NO_TEXT = "lines without text under the key"
TOO_LONG = "documents above the length limit"
NOT_UTF8 = "documents that are not UTF-8"
EMPTY = "empty documents"
HIDDEN = "hidden files and folders"
LINKS = "links to folders (never followed inside a folder)"
SPECIAL = "broken links, pipes, sockets and devices"

_NEVER_STRICT = frozenset({EMPTY, HIDDEN, LINKS, SPECIAL})
"""Left out by design: nothing that the user meant to train on is lost."""


def shown(name: object) -> str:
    """Return a name as one line of valid text: file names may hold newlines, and bytes that are no UTF-8."""
    text = str(name).encode("utf-8", "backslashreplace").decode()
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


@dataclass
class Tally:
    """Counts of one reading."""

    strict: bool = False
    dropped: Counter[str] = field(default_factory=Counter)
    first: dict[str, str] = field(default_factory=dict)
    """Reason → where it was met first (file:line)."""
    num_bytes: int = 0
    num_documents: int = 0

    def drop(self, reason: str, where: str) -> None:
        """Count one thing that is left out.

        Raises:
            UserError: with `strict`, unless it is left out by design.
        """
        if self.strict and reason not in _NEVER_STRICT:
            raise UserError(f"{shown(where)}: one of the {reason}; without --strict they are left out and counted")
        self.dropped[reason] += 1
        self.first.setdefault(reason, shown(where))

    def data(self) -> dict[str, Any]:
        """Return the counts as plain data."""
        return {
            "documents": self.num_documents,
            "bytes": self.num_bytes,
            "dropped": {k: {"count": n, "first": self.first[k]} for k, n in sorted(self.dropped.items())},
        }

    def why(self) -> str:
        """Return what was left out as the end of a sentence; '' for nothing."""
        found = [f"{n:,} {reason} (first: {self.first[reason]})" for reason, n in sorted(self.dropped.items())]
        return f"; left out: {'; '.join(found)}" if found else ""
