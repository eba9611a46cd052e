"""One line of a log without what launchers put around it: terminal codes, time stamps, rank, actor and pod prefixes.

Who wrote a line is kept: its rank where a prefix tells it, else the name that the prefix gives the process.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from attuner.core.private import mask

MAX_LINE = 1 << 16
"""Longest line that is looked at, bytes; what is beyond is dropped."""
MAX_PREFIXES = 8
_TERMINAL = re.compile(r"\x1b(?:\[[0-?]{0,32}[ -/]{0,8}[@-~]|\][^\x07\x1b]{0,512}(?:\x07|\x1b\\)|[@-Z\\-_])")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
_RANKED = (
    # torchrun's own, `--role` prefixes, nanotron's and Megatron's own marks are read where they matter
    re.compile(r"\[rank(?P<rank>\d{1,6})\]: ?"),
    re.compile(r"\[default(?P<local>\d{1,4})\]: ?"),
    re.compile(r"\[[a-z_]{1,24}(?P<local>\d{1,4})\]: ?"),
    re.compile(r"(?P<rank>\d{1,6}): (?=\s*\S)"),
)
_NAMED = (
    re.compile(r"\((?P<name>[A-Za-z_][\w.:-]{0,63} pid=\d{1,10}(?:, ip=[0-9a-fA-F.:]{1,45})?)\) ?"),
    re.compile(r"\((?P<name>raylet|autoscaler|gcs_server|dashboard|driver)(?:, ip=[0-9a-fA-F.:]{1,45})?\) ?"),
    re.compile(r"\[?pod/(?P<name>[a-z0-9.-]{1,253}/[a-z0-9.-]{1,63})\]? "),
    re.compile(r"(?P<name>[a-z0-9][a-z0-9_.]{0,63}(?:-[a-z0-9_.]{1,63}){0,8}-\d{1,6}) {1,8}\| "),
    re.compile(r"(?P<name>[a-z][a-z0-9]{0,31}(?:-[a-z0-9]{1,32}){1,8}): (?=\S)"),
)
_TIMED = (
    re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?(?: std(?:out|err) [FP])?[ \t]{1,8}"),
    re.compile(r"\[?\d\d/\d\d/\d{4} \d\d:\d\d:\d\d\]?[ \t]{1,8}"),
)
_BEGINNING = {
    "[": (*_RANKED, *_NAMED, *_TIMED),
    "(": _NAMED,
    " ": (re.compile(r" {1,6}(?P<rank>\d{1,6}): (?=\[rank|\[default|Traceback|\[?\d{4}-\d\d)"),),  # srun --label pads its ranks
    "": (),
    **dict.fromkeys("0123456789", (*_RANKED, *_NAMED, *_TIMED)),
}
"""Prefixes that may begin with a character; any other begins with a letter."""
_LETTERS = _NAMED
_CUT_WORDS = re.compile(r"\s+")


@dataclass(frozen=True, slots=True)
class Line:
    """A line and who wrote it; `rank` is None where no prefix tells it."""

    number: int
    text: str
    rank: int | None = None
    writer: str = ""


def plain(text: str) -> str:
    """Return text without terminal codes, control and direction characters; tabs become spaces."""
    if "\x1b" in text:
        text = _TERMINAL.sub("", text)
    return _CONTROL.sub("", text.replace("\t", "    ")).rstrip()


def opened(text: str, number: int) -> Line:
    """Return the line without its prefixes, and the rank and the writer that they name."""
    text = plain(text)
    rank, writer, at = None, [], 0
    for _ in range(MAX_PREFIXES):
        for pattern in _BEGINNING.get(text[at : at + 1], _LETTERS):
            match = pattern.match(text, at)
            if match is None:
                continue
            told = match.groupdict()
            if told.get("rank") is not None or told.get("local") is not None:
                rank = int(told.get("rank") or told["local"])
                if told.get("local") is not None:
                    writer.append(match[0].strip(": "))
            elif told.get("name"):
                writer.append(told["name"])
            at = match.end()
            break
        else:
            break
        if text[at : at + 1] == " " and text[at : at + 2] != "  ":
            at += 1
    return Line(number=number, text=text[at:], rank=rank, writer=" ".join(writer))


def shown(text: str, limit: int = 240) -> str:
    """Return text as it may be shown: one line of printable characters, without secrets, cut in its middle if it is long."""
    text = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in _CUT_WORDS.sub(" ", plain(text)))
    text = mask(text)
    return text if len(text) <= limit else f"{text[: limit * 2 // 3]} … {text[-(limit // 3) :]}"
