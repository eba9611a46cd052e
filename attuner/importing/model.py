"""What an import gives: a recipe's arguments and environment, and all that a person must know of how they were understood."""

from __future__ import annotations

import re
from typing import Any, Literal

from pydantic import Field

from attuner.core.base import Record, Value
from attuner.core.private import MASK

Kind = Literal["to_set", "undecided", "default", "overridden", "unknown", "secret", "left_out", "unparsed", "note"]
TITLES: dict[Kind, str] = {
    "to_set": "to be set here",
    "undecided": "could not tell",
    "default": "defaults taken",
    "overridden": "a later flag wins",
    "unknown": "unknown flags",
    "secret": "secrets, not copied",
    "left_out": "not carried over",
    "unparsed": "not understood",
    "note": "notes",
}
NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")
TEXTS = re.compile(r"(name|path|dir|version|file|prefix|_id|key)$")
"""Arguments whose value stays text, even if it looks like a number."""


def one_line(text: str) -> str:
    """Return a text that can't break out of a line, of a comment, or of a terminal's."""
    return "".join(c if c.isprintable() else "?" for c in " ".join(text.split()))


class Notice(Record):
    """One thing to know."""

    kind: Kind
    text: str


class Imported(Record):
    """A recipe as it was understood.

    stack: '' if the source doesn't tell.
    entry: the program that the source starts.
    gpus: devices that the source asks for; 0 if it doesn't tell.
    """

    source: str
    format: str
    stack: str
    entry: str = ""
    arguments: dict[str, Value] = Field(default_factory=dict)
    env: dict[str, str] = Field(default_factory=dict)
    gpus: int = 0
    notices: list[Notice] = Field(default_factory=list)

    def of(self, *kinds: Kind) -> list[str]:
        """Return the texts of notices of these kinds."""
        return [n.text for n in self.notices if n.kind in kinds]


class Notes:
    """Takes notices, each once and in order."""

    def __init__(self) -> None:
        self._seen: dict[tuple[Kind, str], Notice] = {}
        self._hidden: set[str] = set()

    def hide(self, secret: str) -> None:
        """Keep a secret out of every notice, those taken already too; a plain word is none, whatever it is called."""
        if len(secret) >= 12 and any(c.isdigit() for c in secret):
            self._hidden.add(secret)

    def hides(self, text: str) -> bool:
        """Tell whether a text holds a hidden secret."""
        return any(secret in text for secret in self._hidden)

    def add(self, kind: Kind, text: str) -> None:
        """Take a notice; it becomes one line."""
        line = one_line(text)
        line = line if len(line) <= 400 else line[:399] + "…"
        self._seen.setdefault((kind, line), Notice(kind=kind, text=line))

    def all(self) -> list[Notice]:
        """Return the notices, those that ask for most first."""
        order = list(TITLES)
        told = [n.model_copy(update={"text": self._masked(n.text)}) for n in self._seen.values()]
        return sorted(told, key=lambda n: order.index(n.kind))

    def _masked(self, text: str) -> str:
        for secret in sorted(self._hidden, key=len, reverse=True):
            text = text.replace(secret, MASK)
        return text


def plain(text: str, name: str = "") -> Value:
    """Return a word as the number it spells, else as it is; a number that would be spelled otherwise stays text."""
    if TEXTS.search(name) or not NUMBER.fullmatch(text):
        return text
    if re.fullmatch(r"[-+]?\d+", text):
        return int(text) if str(int(text)) == text and len(text) < 19 else text
    return float(text)


def scalar(value: Any, name: str = "") -> Value | None:
    """Return a YAML value as a recipe's value; None stays None, anything else that is no scalar is refused by a TypeError."""
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int | float):
        return value
    if isinstance(value, str):
        return plain(value, name)
    raise TypeError(type(value).__name__)
