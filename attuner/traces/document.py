"""Reads the bytes of a chrome trace (plain or gzip JSON) into its complete events; everything in it is untrusted.

A trace is data from a file that anyone may have written: sizes are bounded, nesting is bounded by the JSON decoder,
and an event whose fields don't have the promised types is left out, so that nothing later has to check again.
"""

from __future__ import annotations

import json
import zlib
from typing import Any, NamedTuple

from attuner.core.errors import UserError

MAX_BYTES = 4 << 30
"""Largest trace after decompression: a small gzip file can unfold into more than a machine holds."""

_GZIP_MAGIC = b"\x1f\x8b"
_NEAR_END = 4096  # characters: a cut inside a string is reported where that string began
_MAX_US = 1e18  # thirty thousand years; above it a float can't tell one microsecond from the next hundred


class Slice(NamedTuple):
    """One complete event: start and end in microseconds on the trace's clock, and the thread or stream it ran on."""

    start: float
    end: float
    name: str
    category: str
    thread: tuple[int | str, int | str]
    args: dict[str, Any]


def read_slices(data: bytes | dict[str, Any]) -> list[Slice]:
    """Return the complete events (`ph` X) of a chrome trace, in file order.

    Events without a name, or whose time isn't a finite positive number, or whose duration is negative (a known fault
    of the recorder: the end was never written), are left out.

    Raises:
        UserError: the bytes aren't gzip or JSON, or hold no list of trace events.
    """
    document: Any = _parse(data) if isinstance(data, bytes | bytearray | memoryview) else data
    events = document.get("traceEvents") if isinstance(document, dict) else document
    if not isinstance(events, list):
        raise UserError("trace: no list under traceEvents; give a chrome trace as torch.profiler exports it")
    return [found for event in events if isinstance(event, dict) and (found := _slice(event)) is not None]


def _slice(event: dict[str, Any]) -> Slice | None:
    if event.get("ph") != "X":
        return None
    start, span, name = event.get("ts"), event.get("dur"), event.get("name")
    pid, tid = event.get("pid"), event.get("tid")
    if not isinstance(start, int | float) or not isinstance(span, int | float) or not isinstance(name, str):
        return None
    if not isinstance(pid, int | str) or not isinstance(tid, int | str):
        return None
    # written so that NaN fails every comparison
    if not (0 < start < _MAX_US and 0 <= span < _MAX_US):
        return None
    category, args = event.get("cat"), event.get("args")
    return Slice(
        start=start,
        end=start + span,
        name=name,
        category=category.lower() if isinstance(category, str) else "",
        thread=(pid, tid),
        args=args if isinstance(args, dict) else {},
    )


def _parse(data: bytes | bytearray | memoryview) -> Any:
    raw = bytes(data)
    text = _unzip(raw) if raw[:2] == _GZIP_MAGIC else raw
    try:
        # kernel names come from C++ and may hold any byte: a bad one must not cost the whole trace
        return json.loads(text.decode("utf-8", errors="replace"), strict=False)
    except json.JSONDecodeError as error:
        begun = text[:1] in (b"{", b"[") and error.pos >= len(text) - _NEAR_END
        what = "it ends early: was the job stopped while writing?" if begun or not text else "not valid JSON"
        where = f"character {error.pos:,} of {len(text):,}: {error.msg}"
        raise UserError(f"trace: {what} ({where}); profile again") from None
    except RecursionError:
        raise UserError("trace: JSON nested too deep for a profiler trace; profile again") from None


def _unzip(raw: bytes) -> bytes:
    decoder = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
    try:
        text = decoder.decompress(raw, MAX_BYTES)
    except zlib.error as error:
        raise UserError(f"trace: damaged gzip data ({error}); copy or profile it again") from None
    if decoder.unconsumed_tail:
        raise UserError(f"trace: unfolds to more than {MAX_BYTES >> 30} GiB; profile fewer steps")
    if not decoder.eof:
        raise UserError("trace: the gzip data ends early: was the job stopped while writing? profile again")
    return text
