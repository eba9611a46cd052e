"""The text of a record: read fast, and told to be canonical or not without writing all of it again in Python.

`msgspec` reads and writes JSON several times as fast as `json`. It is strict: whatever it refuses (NaN, a lone surrogate, a
number too large) `json` reads as before. It spells some floats otherwise than Python (`1e-7`, `1e16`, `0.00001`): `canonical`
puts these three forms right and compares. A text that comes out the same is canonical, any other is asked of `json` itself.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from typing import Any

import msgspec

from attuner.core.base import canonical_json

_decode = msgspec.json.Decoder().decode
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_encode = msgspec.json.Encoder(order="sorted").encode
# Both begin with plain letters, so that `re` looks for these first.
_EXPONENT = re.compile(rb"e(-\d|\d\d+)(?=[,\]}]|$)")
_FIVE_ZEROS = re.compile(rb"0\.0000([1-9]\d*)(?=[,\]}]|$)")


def parsed(text: str) -> Any:
    """Return what the JSON says, as `json.loads` would; raises ValueError."""
    try:
        return _decode(text)
    except (msgspec.MsgspecError, UnicodeEncodeError):
        return json.loads(text)


def parsed_without(text: str, left_out: Collection[str]) -> Any:
    """Return what the JSON of an object says, but for these fields, which cost next to nothing; raises ValueError."""
    try:
        fields = _fields(text)
        return {name: _decode(value) for name, value in fields.items() if name not in left_out}
    except (msgspec.MsgspecError, UnicodeEncodeError):
        record = json.loads(text)
        return {k: v for k, v in record.items() if k not in left_out} if isinstance(record, dict) else record


def canonical(text: str) -> bool:
    """Tell whether the text is `canonical_json` of what it says: one spelling, no key given twice. Raises ValueError."""
    try:
        raw = text.encode()
        if _as_python(_encode(_decode(raw))) == raw:
            return True
    except (msgspec.MsgspecError, ValueError, OverflowError):
        pass
    return canonical_json(json.loads(text)) == text


def _as_python(text: bytes) -> bytes:
    """Return JSON by msgspec with its floats spelled as Python spells them.

    Only a number can match a whole one: inside a string a change of letters changes what it says, so the comparison fails.
    """
    return _FIVE_ZEROS.sub(_small, _EXPONENT.sub(_signed, text))


def _signed(found: re.Match[bytes]) -> bytes:
    power = found[1]
    return b"e-0" + power[1:] if power[:1] == b"-" else b"e+" + power


def _small(found: re.Match[bytes]) -> bytes:
    at, digits = found.start(), found[1]
    if at and found.string[at - 1] not in b":[,-":
        return found[0]  # the end of a longer number
    rest = digits[1:]
    return digits[:1] + (b"." + rest if rest else b"") + b"e-05"
