"""The slow road through a trace that is no valid JSON: event by event, keeping all that can be told, counting the rest.

Known ways in which profilers write invalid JSON: kernel names with unescaped quotes (kineto PR 1459, pytorch 146900),
Windows paths with single backslashes (pytorch 98432), control characters (pytorch 130622), `NaN` and `inf` for times
that were never measured, and files that end in the middle because the job was killed while writing.
"""

from __future__ import annotations

import json
import re
from decimal import Decimal
from typing import Any

import msgspec

from attuner.core.errors import UserError
from attuner.traces.document import BOUNDARY, META, NO_ARGS, Args, Block, Slice, Told

_LONE_BACKSLASH = re.compile(r'\\(?!["\\/bfnrt]|u[0-9a-fA-F]{4})')
_NAME = re.compile(r'"name"\s*:\s*"(.*?)"\s*,\s*"(?:ph|cat|pid|tid|ts|dur|args|id|s)"\s*:', re.DOTALL)
_FIELD = re.compile(r'"(ph|cat|pid|tid|ts|dur|correlation|stream)"\s*:\s*("[^"\\]*"|-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)')
_DECODE = json.JSONDecoder(strict=False, parse_float=Decimal, parse_constant=lambda _: None)


def recover(text: bytes, offset: int, told: Told, *, last: bool = False, is_list: bool = False) -> Block:
    """Return the events of a block of invalid JSON; `offset` is where it begins in the text.

    Raises:
        UserError: it is the end of the trace and not a single event could be told.
    """
    found: list[Any] = []
    at, ends = 0, [*((m.start() + 1, m.end()) for m in BOUNDARY.finditer(text)), (len(text), len(text))]
    for n, (end, following) in enumerate(ends):
        piece = text[at:end]
        if last and n == len(ends) - 1:
            found += _final(piece, offset + at, told, is_list=is_list)
        else:
            found += _one(piece, offset + at, told)
        at = following
    return Block(found)


def from_dict(event: Any) -> Slice | None:
    """Return an event that was parsed already, unchecked like any other; None if it isn't a complete event."""
    if not isinstance(event, dict) or event.get("ph") != "X":
        return None
    args = event.get("args")
    known = NO_ARGS
    if isinstance(args, dict):
        known = Args(
            correlation=args.get("correlation", -1),
            stream=args.get("stream"),
            collective=args.get("Collective name"),
            group=args.get("Process Group Description"),
            group_name=args.get("Process Group Name"),
        )
    return Slice(**{k: event.get(k) for k in ("name", "cat", "ts", "dur", "pid", "tid")}, args=known)


def _one(piece: bytes, offset: int, told: Told) -> list[Any]:
    """Return the event that a piece of text is, if it can be told."""
    raw = piece.decode("utf-8", errors="replace")
    told.not_utf8 += "\ufffd" in raw and b"\xef\xbf\xbd" not in piece
    try:
        event = _DECODE.decode(raw.strip())
    except (ValueError, RecursionError) as error:
        _said(told, offset, error)
    else:
        return [x] if (x := from_dict(event)) is not None else []
    if (mended := _mended(raw)) is None:
        told.lost += 1
        return []
    told.repaired += 1
    return [x] if (x := from_dict(mended)) is not None else []


def _mended(raw: str) -> Any:
    """Return an event of invalid JSON by its known faults; None if name or time can't be told."""
    try:
        return _DECODE.decode(_LONE_BACKSLASH.sub(r"\\\\", raw).strip())
    except (ValueError, RecursionError):
        pass
    name = _NAME.search(raw)
    rest = raw.replace(name.group(0), "", 1) if name else raw
    fields: dict[str, Any] = {}
    for key, value in _FIELD.findall(rest):
        fields.setdefault(key, value[1:-1] if value.startswith('"') else _number(value))
    if name is None or "ts" not in fields or fields.get("ph") != "X":
        return None if name is None or fields.get("ph", "X") == "X" else {"ph": fields["ph"]}
    args = {k: fields.pop(k) for k in ("correlation", "stream") if k in fields}
    return {**fields, "name": name.group(1), "args": args}


def _number(digits: str) -> int | Decimal:
    return int(digits) if digits.lstrip("-").isdigit() else Decimal(digits)


def _final(piece: bytes, offset: int, told: Told, *, is_list: bool) -> list[Any]:
    """Return the last event, and read what stands after the list; says so if the text just ends."""
    raw = piece.decode("utf-8", errors="replace")
    stripped = raw.lstrip()
    if stripped[:1] in ("]", ""):
        event, rest = None, stripped
    else:
        try:
            event, end = _DECODE.raw_decode(stripped)
            rest = stripped[end:]
        except RecursionError:
            raise UserError("trace: JSON nested too deep for a profiler trace; profile again") from None
        except ValueError as error:
            return _cut(piece, offset, told, error)
    rest = rest.lstrip()
    if rest[:1] != "]":
        if not is_list:  # the list form may leave its bracket out
            told.truncated = told.truncated or f"the text ends inside the list of events, at byte {offset + len(piece):,}"
    else:
        _tail(rest[1:], told)
    return [x] if (x := from_dict(event)) is not None else []


def _cut(piece: bytes, offset: int, told: Told, error: ValueError) -> list[Any]:
    """Tell a last event that is broken from one that was cut off."""
    closing = re.search(rb"\}\s*\]\s*(?:,\s*\"|\})", piece)
    if closing and not told.truncated:
        _tail(piece[closing.start() + 1 :].decode("utf-8", errors="replace").lstrip()[1:], told)
        return _one(piece[: closing.start() + 1], offset, told)
    told.truncated = told.truncated or f"the text ends inside an event, at byte {offset + len(piece):,}"
    if told.why_bad == "":
        told.why_bad = str(error)
    return []


def _tail(rest: str, told: Told) -> None:
    """Read the fields after the events, as far as they are valid."""
    body = "{" + rest.lstrip().removeprefix(",")
    try:
        read = msgspec.json.decode(body.encode())
    except (msgspec.DecodeError, RecursionError):
        if rest.rstrip()[-1:] != "}":
            told.truncated = told.truncated or "the text ends after the list of events"
        return
    if isinstance(read, dict):
        told.meta.update({k: read[k] for k in META if k in read})


def _said(told: Told, offset: int, error: Exception) -> None:
    if told.first_bad is None:
        told.first_bad, told.why_bad = offset, " ".join(str(error).split())[:120]
