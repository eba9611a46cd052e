"""Reads a chrome trace (plain or gzip JSON, whole or in pieces) block by block; everything in it is untrusted.

A block of text is decoded straight into typed events (msgspec: fields that nobody asks for are never built), turned
into columns and let go, so that a trace of a gigabyte needs the memory of its columns only. A block that is no valid
JSON goes through `tolerant`, which keeps every event that can be told.
"""

from __future__ import annotations

import functools
import operator
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import msgspec
from isal import isal_zlib

from attuner.core.errors import UserError

MAX_BYTES = 32 << 30
"""Largest trace after decompression: a small gzip file can unfold into more than a machine holds."""
BLOCK_BYTES = 1 << 19
"""Text decoded at once: large enough that Python's share is small, small enough that its memory is used again at once."""

_TRIES = 6

GZIP_MAGIC = b"\x1f\x8b"
_OPENING = re.compile(rb'"traceEvents"\s*:\s*')
_KEYS = rb'"(?:ph|name|cat|ts|dur|pid|tid|args|id|s|bp)"\s*:'
BOUNDARY = re.compile(rb"\}\s*,\s*(?=\{\s*" + _KEYS + rb")")
"""Between two events: the end of one and the first known key of the next."""


class Args(msgspec.Struct, gc=False):
    """What is read of an event's arguments."""

    correlation: Any = -1
    stream: Any = None
    collective: Any = msgspec.field(name="Collective name", default=None)
    group: Any = msgspec.field(name="Process Group Description", default=None)
    group_name: Any = msgspec.field(name="Process Group Name", default=None)


NO_ARGS = Args()


class Slice(msgspec.Struct, gc=False, tag_field="ph", tag="X"):
    """One complete event as the file has it: times in microseconds, unchecked."""

    name: Any = None
    cat: Any = None
    ts: Any = None
    dur: Any = None
    pid: Any = None
    tid: Any = None
    args: Args = msgspec.field(default_factory=lambda: NO_ARGS)


class _ExactSlice(Slice, gc=False, tag_field="ph", tag="X"):
    """The same, for clocks so large that a float can't hold them to the nanosecond."""

    ts: Decimal | None = None
    dur: Decimal | None = None


COMPLETE = frozenset((Slice, _ExactSlice))

# one empty class per other phase: their fields are skipped, not built; an unknown phase takes the tolerant road
_OTHERS = [msgspec.defstruct(f"Phase{ord(ph)}", [], tag_field="ph", tag=ph, gc=False) for ph in "BEiICbnestfPNODSTpFMvVRc"]


@functools.cache
def _decoder(kind: type[Slice]) -> tuple[msgspec.json.Decoder[Any], msgspec.json.Decoder[Any]]:
    """Return decoders of a list of events, and of a document whose list of events was cut at the front."""
    events = functools.reduce(operator.or_, _OTHERS, kind)
    meta = [(k, Any, None) for k in META]
    document = msgspec.defstruct("Document", [("traceEvents", list[events]), *meta])  # type: ignore[valid-type]
    return msgspec.json.Decoder(list[events]), msgspec.json.Decoder(document)  # type: ignore[valid-type]


META = ("deviceProperties", "distributedInfo", "displayTimeUnit", "baseTimeNanoseconds", "host_name", "traceName")
"""What is read of a trace beside its events."""


@dataclass
class Told:
    """What a reader learns on the way, beside the events."""

    meta: dict[str, Any] = field(default_factory=dict)
    truncated: str = ""
    """Why the end is missing; '' for a whole trace."""
    repaired: int = 0
    """Events of invalid JSON that could be told all the same."""
    lost: int = 0
    """Events of invalid JSON that could not."""
    first_bad: int | None = None
    """Byte of the text at which the first of them lies."""
    why_bad: str = ""
    not_utf8: int = 0
    """Blocks in which bytes that aren't UTF-8 were replaced."""


@dataclass
class Block:
    """Some events of a trace, in file order, and how to read them again exactly."""

    events: list[Any]
    text: bytes | memoryview = b""
    """The JSON they came from, a list or a document; empty where times are exact already."""

    def exact(self) -> list[Any]:
        """Return the events with their times as decimals."""
        if not len(self.text):
            return self.events
        of_list, of_document = _decoder(_ExactSlice)
        return list(of_list.decode(self.text) if bytes(self.text[:1]) == b"[" else of_document.decode(self.text).traceEvents)


def blocks(source: bytes | Iterable[bytes], told: Told, *, block_bytes: int = BLOCK_BYTES) -> Iterator[Block]:
    """Yield the events of a trace, block by block; fills `told` on the way.

    Raises:
        UserError: this is no gzip or JSON, or holds no list of trace events.
    """
    from attuner.traces.tolerant import recover

    texts = _texts(source, told)
    is_list, rest = _opened(texts, told)
    offset = told.meta.pop("_offset")
    text = bytearray(b"[" + rest)
    for piece in texts:
        text += piece
        if len(text) < block_bytes:
            continue
        found = _whole_events(text, offset, told)
        if found is None:
            continue  # one event that long, or a long tail: wait for more
        block, following = found
        yield block
        offset += following - 1
        text = bytearray(b"[" + text[following:])
    rest = bytes(text[1:])
    whole = None if told.truncated else _last(rest, told, is_list=is_list)
    yield whole or recover(rest, offset, told, last=True, is_list=is_list)


def _opened(texts: Iterator[bytes], told: Told) -> tuple[bool, bytes]:
    """Read up to the list of events; return whether the list is the whole document, and the text after its bracket."""
    text = b""
    for piece in texts:
        text += piece
        found = _OPENING.search(text)
        if found or text.lstrip()[:1] == b"[":
            break
        if len(text) > 4 * BLOCK_BYTES and text.lstrip()[:1] != b"{":
            break
    head = text.lstrip().removeprefix(b"\xef\xbb\xbf")
    if head[:1] == b"[":
        told.meta["_offset"] = len(text) - len(head) + 1
        return True, head[1:]
    found = _OPENING.search(text)
    if found and text[found.end() : found.end() + 1] == b"[":
        before = text[: found.start()].rstrip().removesuffix(b",") + b"}"
        try:
            read = msgspec.json.decode(before)
            told.meta.update({k: read[k] for k in META if k in read})
        except (msgspec.DecodeError, TypeError, RecursionError):
            told.why_bad = told.why_bad or "the part before the events can't be read"
        told.meta["_offset"] = found.end() + 1
        return False, text[found.end() + 1 :]
    if found and text[found.end() : found.end() + 1]:
        raise UserError("trace: no list under traceEvents; give a chrome trace as torch.profiler exports it")
    if told.truncated:
        raise UserError(f"trace: it ends early, before its first event ({told.truncated}); profile again")
    raise UserError(_no_events(text))


def _no_events(text: bytes) -> str:
    try:
        msgspec.json.decode(text)
        return "trace: no list under traceEvents; give a chrome trace as torch.profiler exports it"
    except (msgspec.DecodeError, RecursionError) as error:
        begun = not text.strip() or text.lstrip()[:1] == b"{"
        what = "it ends early, before its first event: was the job stopped while writing?" if begun else "not valid JSON"
        return f"trace: {what} ({len(text):,} bytes: {' '.join(str(error).split())[:120]}); profile again"


def _strict(text: bytes | memoryview, told: Told) -> Block | None:
    """Return the events of a JSON list; None if it isn't one."""
    decoder = _decoder(Slice)[0]
    try:
        return Block(decoder.decode(text), text)
    except (msgspec.DecodeError, UnicodeDecodeError):
        pass
    except RecursionError:
        raise UserError("trace: JSON nested too deep for a profiler trace; profile again") from None
    try:
        mended = bytes(text).decode("utf-8", errors="replace").encode()
        found = Block(decoder.decode(mended), mended)
    except (msgspec.DecodeError, RecursionError):
        return None
    told.not_utf8 += mended != text
    return found


def _last(text: bytes, told: Told, *, is_list: bool) -> Block | None:
    """Return the last events, and read what stands after them; None if the end isn't valid."""
    if is_list:
        return _strict(b"[" + text, told)
    whole = b'{"traceEvents":[' + text
    for attempt in (whole, whole.decode("utf-8", errors="replace").encode()):
        try:
            document = _decoder(Slice)[1].decode(attempt)
        except (msgspec.DecodeError, UnicodeDecodeError):
            continue
        except RecursionError:
            raise UserError("trace: JSON nested too deep for a profiler trace; profile again") from None
        told.not_utf8 += attempt is not whole and attempt != whole
        told.meta.update({k: v for k in META if (v := getattr(document, k)) is not None})
        return Block(document.traceEvents, attempt)
    return None


def _whole_events(text: bytearray, offset: int, told: Told) -> tuple[Block, int] | None:
    """Return the events up to the last place where the text can be cut, and where the next one begins; None if nowhere."""
    from attuner.traces.tolerant import recover

    cuts = _last_boundaries(text)
    for end, following in cuts:
        kept, text[end] = text[end], ord("]")  # in place: a copy of each block would cost as much as unfolding it
        block = _strict(memoryview(text)[: end + 1], told)
        if block is not None:
            return block, following
        text[end] = kept
    return (recover(bytes(text[1 : cuts[0][0]]), offset, told), cuts[0][1]) if cuts else None


def _last_boundaries(text: bytearray) -> list[tuple[int, int]]:
    """Return where an event ends and the next begins, at the last few such places, the last one first.

    One of them may lie inside a string or a nested list; then the text up to it is no valid JSON, and an earlier one is.
    """
    reach = 1 << 14
    while True:
        start = max(0, len(text) - reach)
        found = list(BOUNDARY.finditer(text, start))
        if found or start == 0:
            return [(m.start() + 1, m.end()) for m in found[: -1 - _TRIES : -1]]
        reach *= 8


def _texts(source: bytes | Iterable[bytes], told: Told) -> Iterator[bytes]:
    """Yield the trace as plain text, unfolding gzip (also several members after one another)."""
    whole = isinstance(source, bytes | bytearray | memoryview)
    pieces: Iterator[bytes] = iter((bytes(source),)) if whole else iter(source)  # type: ignore[arg-type]
    first = b""
    for piece in pieces:
        first += piece
        if len(first) >= 2:
            break
    if first[:2] != GZIP_MAGIC:
        for at in range(0, len(first), BLOCK_BYTES):
            yield first[at : at + BLOCK_BYTES]
        yield from pieces
        return
    yield from _unfolded(first, pieces, told)


def _unfolded(first: bytes, pieces: Iterator[bytes], told: Told) -> Iterator[bytes]:
    decoder, data, size = isal_zlib.decompressobj(wbits=31), first, 0
    while True:
        try:
            text = decoder.decompress(data, BLOCK_BYTES)
        except isal_zlib.error as error:  # type: ignore[misc]  # the stub gives no base class
            if not size:
                raise UserError(f"trace: damaged gzip data ({error}); copy or profile it again") from None
            told.truncated = f"damaged gzip data after {size:,} bytes of text ({error})"
            return
        size += len(text)
        if size > MAX_BYTES:
            raise UserError(f"trace: unfolds to more than {MAX_BYTES >> 30} GiB; profile fewer steps")
        if text:
            yield text
        data = decoder.unconsumed_tail
        if decoder.eof:
            data = decoder.unused_data.lstrip(b"\0") or next(pieces, b"")
            if data[:2] != GZIP_MAGIC:
                return
            decoder = isal_zlib.decompressobj(wbits=31)
        elif not data and not text:
            data = next(pieces, b"")
            if not data:
                told.truncated = "the gzip data ends early"
                return
