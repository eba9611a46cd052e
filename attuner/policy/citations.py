"""Citations: whether the places in the framework's source that a hypothesis rests on exist and speak of what it changes. A claim
about code that nobody can look up is not believed, so nothing is launched on it."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from attuner.core.search import Citation, Hypothesis

WINDOW = 5
"""Lines above and below the cited one in which the argument must stand."""

Reader = Callable[[str], Sequence[str] | None]
"""The lines of a file of the pinned source; None where there is no such file."""


def problems(hypothesis: Hypothesis, read: Reader | None, *, required: bool) -> list[str]:
    """Return what is wrong with the citations, a line each; empty if all of them hold.

    Args:
        hypothesis: the move.
        read: the pinned source; None: this campaign has none.
        required: an argument may not be changed without a citation. A variable may: not all of them are the framework's.
    """
    if read is None:
        return [f"{_place(c)}: this campaign has no pinned source to look it up in" for c in hypothesis.citations]
    if required and hypothesis.arguments and not hypothesis.citations:
        return ["no citation: name file and line of the framework's source that read one of the changed arguments"]
    changed = {_plain(name) for name in (*hypothesis.arguments, *hypothesis.env)}
    return [wrong for c in hypothesis.citations if (wrong := _problem(c, changed, read))]


def _problem(citation: Citation, changed: set[str], read: Reader) -> str:
    if _plain(citation.mentions) not in changed:
        return f"{_place(citation)}: {citation.mentions} is not what this hypothesis changes"
    lines = read(citation.file)
    if lines is None:
        return f"{_place(citation)}: no such file in the pinned source"
    if citation.line > len(lines):
        return f"{_place(citation)}: the file has {len(lines)} lines"
    near = lines[max(citation.line - 1 - WINDOW, 0) : citation.line + WINDOW]
    name = re.escape(_plain(citation.mentions)).replace("_", "[_-]")
    if not re.search(rf"(?<![A-Za-z0-9_]){name}(?![A-Za-z0-9_])", "\n".join(near)):
        return f"{_place(citation)}: {citation.mentions} does not stand within {WINDOW} lines of it"
    return ""


def _plain(name: str) -> str:
    """Return an argument's name without the dashes of its flag or the prefix of a variable."""
    return name.removeprefix("env:").removeprefix("--").replace("-", "_")


def _place(citation: Citation) -> str:
    return f"{citation.file}:{citation.line}"
