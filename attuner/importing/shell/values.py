"""What variables hold, and the mark of what can't be told: an unknown part stays inside the value and is shown as `${NAME}`."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from attuner.core.errors import UserError
from attuner.importing.shell.lexer import MARK as _OPEN
from attuner.importing.shell.lexer import MARK_END as _CLOSE
from attuner.importing.shell.nodes import Node

_UNKNOWN = re.compile(f"{_OPEN}([^{_CLOSE}]*){_CLOSE}")
_WORDS = re.compile(f"(?:{_OPEN}[^{_CLOSE}]*{_CLOSE}|[^ \t\r\n])+")
MAX_CHARS = 1_000_000
MAX_WORDS = 50_000
ROOT = "/{script_root}"
"""Stands for the folder that `--root` names, so that no path of this machine gets into a recipe."""

Held = str | list[str]


def clean(text: str) -> str:
    """Return text in which nothing looks like our mark."""
    return text.replace(_OPEN, "?").replace(_CLOSE, "?").replace("\x00", "?")


def unknown(label: str) -> str:
    """Return the mark of an unknown variable, or of a command's unknown output (a label that begins with `$`)."""
    label = " ".join(_UNKNOWN.sub(lambda m: shown(m[0]), label).split())
    return f"{_OPEN}{label if len(label) <= 80 else label[:77] + '…)'}{_CLOSE}"


def is_unknown(text: str) -> bool:
    """Tell whether a part of the text can't be told."""
    return _OPEN in text


def unknowns(text: str) -> list[str]:
    """Return what can't be told in a text, as `${NAME}` or `$(command)`."""
    return [shown(m[0]) for m in _UNKNOWN.finditer(text)]


def shown(text: str) -> str:
    """Return the text for a person or a recipe."""
    return _UNKNOWN.sub(lambda m: m[1] if m[1].startswith("$") else f"${{{m[1]}}}", text)


def blanked(text: str) -> str:
    """Return the text as if everything unknown were empty."""
    return _UNKNOWN.sub("", text)


def split(text: str) -> list[str]:
    """Return the words of an unquoted expansion."""
    return _WORDS.findall(text)


def bounded(text: str, where: str) -> str:
    """Pass a value of a sane size. Raises UserError for an expansion without end."""
    if len(text) > MAX_CHARS:
        raise UserError(f"{where}: a value of more than {MAX_CHARS} characters; that is no launch script")
    return text


@dataclass
class State:
    """What holds at one point of a script."""

    variables: dict[str, Held] = field(default_factory=dict)
    exported: set[str] = field(default_factory=set)
    functions: dict[str, list[Node]] = field(default_factory=dict)
    positional: list[str] | None = None
    doubtful: dict[str, str] = field(default_factory=dict)
    folder: str = ""
    script: str = ""

    def copy(self) -> State:
        """Return a state whose changes stay inside, as in a subshell."""
        return State(
            variables=dict(self.variables),
            exported=set(self.exported),
            functions=dict(self.functions),
            positional=self.positional,
            doubtful=dict(self.doubtful),
            folder=self.folder,
            script=self.script,
        )
