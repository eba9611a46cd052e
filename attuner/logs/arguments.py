"""Reads the argument dump that Megatron's `validate_args` leaves in a log: every final argument, with its value as printed.

A rule line with the title "arguments", one line per argument (name, dots, value), and a rule line "end of arguments". Values are
`str()` of Python objects: a text None can't be told from None. Lines of other writers in between are passed over.
Source: Megatron-LM core_v0.16.1, training/arguments.py:_print_args.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from attuner.logs.lines import Line, opened

_RULE = re.compile(r"-{8,} (?P<end>end of )?(?P<title>[\w ]{0,40}?arguments) -{8,}")
_ENTRY = re.compile(r" *(?P<name>[A-Za-z_]\w{0,127}) (?P<dots>\.*)(?: (?P<value>.*))?$")
WIDTH = 32
"""A name of so many characters may have no dots; 48 today, 32 in the oldest logs."""
MAX_WRAPPED = 50
"""Lines that one value may run over."""


@dataclass
class _Dump:
    values: dict[str, str] = field(default_factory=dict)
    whole: bool = False
    last: str = ""
    wrapped: int = 0


def read_arguments(lines: Iterable[str]) -> dict[str, str]:
    """Return the arguments that a log dumps, by destination; empty if it has no dump.

    Of several dumps the last whole one holds (a restart prints it again); if none is whole, the longest. Dumps of two
    writers at a time are kept apart by their prefixes.
    """
    active: dict[tuple[int | None, str], _Dump] = {}
    best = _Dump()
    for number, text in enumerate(lines, 1):
        if not active and "arguments" not in text:
            continue
        line = opened(text, number)
        who = (line.rank, line.writer)
        rule = _RULE.search(line.text) if "arguments -" in line.text else None
        if rule is None:
            if who in active:
                _take(active[who], line)
            continue
        if not rule["end"]:
            active[who] = _Dump()
        elif who in active:
            dump = active.pop(who)
            dump.whole = True
            best = dump
    for dump in active.values():  # the log ends inside it
        if not best.whole and len(dump.values) > len(best.values):
            best = dump
    return best.values


def _take(dump: _Dump, line: Line) -> None:
    entry = _ENTRY.match(line.text)
    if entry is not None and (entry["dots"] or len(entry["name"]) >= WIDTH):
        dump.last, dump.wrapped = entry["name"], 0
        dump.values[dump.last] = (entry["value"] or "").strip()
    elif dump.last and _unfinished(dump.values[dump.last]) and dump.wrapped < MAX_WRAPPED:
        dump.wrapped += 1
        dump.values[dump.last] += f" {line.text.strip()}"


def _unfinished(value: str) -> bool:
    """Tell whether a list, a dictionary or a call is open at the value's end, so that it goes on in the next line."""
    return any(value.count(a) > value.count(b) for a, b in ("[]", "{}", "()"))
