"""Pieces of report.md: foreign text that stays text, code spans, fences, lists and tables."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from attuner.report.words import MAX_TEXT, clean

# what starts markup anywhere; an underscore inside a word doesn't, and recipes are full of those
_MARKUP = re.compile(r"[\\`*\[\]<>|~$&@]|(?<![^\W_])_|_(?![^\W_])|(?<=www)\.|(?<=:)/(?=/)")
# what starts a block at the beginning of a line: headings, lists, rules, quotes
_BLOCK = re.compile(r"^(?:(\d+)([.)])(?=\s|$)|([#+=-]))")
DECISION = {"admit": "admitted", "review": "**to review**", "refuse": "**refused**"}


def esc(text: object, *, limit: int = MAX_TEXT) -> str:
    """Return foreign text that Markdown shows as it is: no markup, no links, no HTML, no mention."""
    return _MARKUP.sub(lambda m: "\\" + m[0], clean(text, limit=limit))


def block(text: object, *, limit: int = MAX_TEXT) -> str:
    """Return foreign text that may begin a line: no heading, list or rule either."""
    return _BLOCK.sub(lambda m: f"{m[1]}\\{m[2]}" if m[1] else f"\\{m[3]}", esc(text, limit=limit))


def code(text: object) -> str:
    """Return foreign text as a code span, with a fence longer than any run of back ticks in it."""
    bare = clean(text).replace("|", "\\|")  # a table splits cells before it reads code spans
    fence = "`" * (max((len(run) for run in re.findall(r"`+", bare)), default=0) + 1)
    pad = " " if bare.startswith("`") or bare.endswith("`") or not bare else ""
    return f"{fence}{pad}{bare}{pad}{fence}"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table; a leading '>' in a heading aligns its column to the right."""
    names = [h.removeprefix(">") for h in head]
    rule = ["---:" if h.startswith(">") else "---" for h in head]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (names, rule, *rows))


def fenced(text: str, language: str) -> str:
    """Return a fenced block; its lines and indents stay."""
    fence = "`" * max(3, max((len(run) + 1 for run in re.findall(r"`+", text)), default=0))
    lines = []
    for line in text.rstrip("\n").split("\n"):
        bare = line.lstrip(" ")
        lines.append(" " * (len(line) - len(bare)) + clean(bare, limit=4000))
    return f"{fence}{language}\n" + "\n".join(lines) + f"\n{fence}"


def bullets(items: Iterable[str]) -> str:
    """Return a list of foreign texts."""
    return "\n".join(f"- {block(i)}" for i in items)
