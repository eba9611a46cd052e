"""Signatures of failures: rules as data, the patterns that they are made of, and the phases that stack frames tell.

A pattern names the literal words that a line must hold, and may add a bounded regular expression; so a search for literals finds
the few lines that matter, and no text, however hostile, makes an expression run long.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from re import Match
from re import Pattern as Compiled
from typing import Any

from pydantic import Field, field_validator, model_validator

from attuner.core.base import Record
from attuner.core.failure import Retry

ROOT_CAUSE = "Root Cause (first observed failure)"
"""Title of torchrun's table of failed ranks, the first of them."""
MAX_REPEAT = 160
MAX_WIDE = 2
"""Places of an expression that may match any text."""
REGEX_LINE = 2000
SEEDS = (
    *('File "', "Traceback (", "rror", "xception", "NCCL WARN", "NVRM", "imed out", "ailed", "ailure", ", in ", "killed"),
    *("state_dict", "heckpoint", "divisible", "CUDA", "rendezvous", "ttuner r", "exit", "Signal", "Evicted"),
    "  rank      : ",
)
"""Parts of words that most lines of trouble hold and few others do."""
LEVELS = ("sign", "echo", "effect", "cause", "root")
"""From the weakest: a sign of trouble; an echo of another's end; an effect; a cause; what a machine or a scheduler says."""
_ESCAPED = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]", re.DOTALL)
_REPEAT = re.compile(r"\{(\d*)(?:,(\d*))?\}")


class Pattern(Record):
    """What a line must hold: all of `has`, nothing of `without`, and a match of `re` where there is one."""

    has: list[str] = Field(min_length=1)
    re: str = ""
    without: list[str] = Field(default_factory=list)

    @model_validator(mode="before")
    @classmethod
    def _short(cls, data: Any) -> Any:
        """Read the short forms: a text alone, one text in place of a list."""
        if isinstance(data, str):
            return {"has": [data]}
        if isinstance(data, dict):
            return {k: [v] if k in ("has", "without") and isinstance(v, str) else v for k, v in data.items()}
        return data

    @field_validator("has")
    @classmethod
    def _long_enough(cls, words: list[str]) -> list[str]:
        if not all(len(w) >= 3 for w in words):
            raise ValueError("has: words of three characters at least, for they are searched for")
        return words

    @field_validator("re")
    @classmethod
    def _bounded(cls, text: str) -> str:
        if text:
            _check_bounded(text)
        return text

    @functools.cached_property
    def compiled(self) -> Compiled[str] | None:
        """Return the expression."""
        return re.compile(self.re) if self.re else None

    def match(self, text: str) -> Match[str] | bool:
        """Return the match of a line, or whether it fits where there is no expression."""
        if any(w not in text for w in self.has) or any(w in text for w in self.without):
            return False
        return True if self.compiled is None else self.compiled.search(text[:REGEX_LINE]) or False


def _check_bounded(text: str) -> None:
    """Raise ValueError for an expression that could run long: unbounded or nested repeats, back references, many wide parts."""
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"re: {error}") from None
    bare = _ESCAPED.sub("x", text)
    if "*" in bare or re.search(r"(?<!\()\+", bare):
        raise ValueError("re: no `*` and no `+`; say how often at most: {0,40}")
    if re.search(r"\)\{", bare):
        raise ValueError("re: no repeated group")
    if re.search(r"\\[1-9]|\(\?P=", text):
        raise ValueError("re: no back reference")
    for low, high in _REPEAT.findall(bare):
        if int(high or low or MAX_REPEAT + 1) > MAX_REPEAT:
            raise ValueError(f"re: a repeat of {MAX_REPEAT} at most")
    if len(re.findall(r"\.\{", bare)) > MAX_WIDE:
        raise ValueError(f"re: `.{{…}}` {MAX_WIDE} times at most")


class Phase(Record):
    """What a run was doing, told by stack frames or by lines that announce it. The first in the list that fits holds."""

    id: str
    any: list[Pattern] = Field(min_length=1)
    ends: list[Pattern] = Field(default_factory=list, description="a later line that says that it is over")


class Example(Record):
    """A log that `attuner rules check` reads: does the rule speak, and what does the diagnosis say?"""

    log: str
    fires: bool
    kind: str = Field(default="", description="class that the whole diagnosis must come to, with this rule alone")
    phase: str = ""
    rank: int | None = None


class Seen(Record):
    """Where a signature was met."""

    source: str
    image: str = ""
    hardware: str = ""


class Variant(Record):
    """What a rule says in some phases instead."""

    phases: list[str] = Field(min_length=1)
    kind: str
    why: str = ""
    levers: list[str] | None = None
    retry: Retry | None = None
    action: str = ""


class FailureRule(Record):
    """One signature: when it speaks, what it means, what to do."""

    id: str = Field(pattern=r"^[A-Z0-9]{2,8}-[A-Z0-9]{2,8}-[0-9]{3}$")
    kind: str = Field(pattern=r"^[a-z0-9_]+(\.[a-z0-9_]+)*$")
    level: str
    any: list[Pattern] = Field(min_length=1, description="a line that fits one of them is a hit")
    all: list[Pattern] = Field(default_factory=list, description="each must fit a line somewhere in the logs")
    unless: list[Pattern] = Field(default_factory=list, description="none may fit a line anywhere in the logs")
    around: list[Pattern] = Field(
        default_factory=list, description="one must fit the hit's own context: its frames, or lines before it"
    )
    stalled: bool = Field(default=False, description="speaks only where the logs hold no training step")
    specific: int = Field(default=0, description="beats others of its level around the same line")
    phase: str = Field(default="", description="where nothing tells it better")
    variants: list[Variant] = Field(default_factory=list)
    undetermined: bool = Field(default=False, description="names no cause: the diagnosis is `undetermined`")
    open: str = Field(default="", description="what such a log doesn't tell of the cause")
    slowest: bool = Field(default=False, description="its rank is that of the largest `Rank n: x ms` behind it")
    rankless: bool = Field(default=False, description="who prints it is not who began it")
    levers: list[str] = Field(default_factory=list)
    retry: Retry
    why: str = Field(min_length=10)
    action: str = Field(min_length=10)
    source: list[str] = Field(min_length=1)
    seen_on: list[Seen] = Field(default_factory=list)
    examples: list[Example] = Field(min_length=2)

    @field_validator("level")
    @classmethod
    def _known(cls, level: str) -> str:
        if level not in LEVELS:
            raise ValueError(f"level: one of {', '.join(LEVELS)}")
        return level

    @model_validator(mode="after")
    def _both(self) -> FailureRule:
        if {e.fires for e in self.examples} != {True, False}:
            raise ValueError("examples: at least one that fires and one that does not")
        return self

    def patterns(self) -> Iterable[Pattern]:
        """Return every pattern that a line may fit."""
        return (*self.any, *self.all, *self.unless, *self.around)


class Book(Record):
    """The rules and phases that one diagnosis uses, in order."""

    rules: list[FailureRule]
    phases: list[Phase]

    def markers(self) -> tuple[str, ...]:
        """Return words of which every line that matters holds at least one; none holds another.

        Few and common parts of words (`rror`, `ailed`) stand for many patterns, for each marker costs a search of the whole log.
        """
        told = [p for rule in self.rules for p in rule.patterns()]
        told += [p for phase in self.phases for p in (*phase.any, *phase.ends)]
        words = {max(p.has, key=len) for p in told if not any(s in w for w in p.has for s in SEEDS)}
        kept: list[str] = list(SEEDS)
        for word in sorted(words, key=len):
            if not any(k in word for k in kept):
                kept.append(word)
        return tuple(kept)

    def without(self, ids: Iterable[str]) -> Book:
        """Return the book without some rules."""
        gone = set(ids)
        return Book(rules=[r for r in self.rules if r.id not in gone], phases=self.phases)
