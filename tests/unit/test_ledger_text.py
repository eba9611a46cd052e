"""Reading a record fast is reading it right: the same values as `json`, and canonical exactly where `canonical_json` says so."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from attuner.core.base import canonical_json
from attuner.ledgers.text import canonical, parsed, parsed_without

NUMBERS = st.one_of(
    st.floats(allow_nan=False, allow_infinity=False),
    st.floats(min_value=1e-12, max_value=1e-3),
    st.floats(min_value=1e14, max_value=1e19),
    st.integers(-(2**70), 2**70),
    st.sampled_from([-0.0, 1e16, 1e-5, 9.999e-5, 1e-4, 10.00001, -2.5e-7, 5e-324, 1.5e99]),
)
LEAVES = st.one_of(
    NUMBERS, st.text(), st.none(), st.booleans(), st.sampled_from(["e-5, ", "0.00001,", "\x0e-5,", "1e16]", "NaN"])
)
RECORDS = st.dictionaries(
    st.text(max_size=3), st.recursive(LEAVES, lambda x: st.lists(x) | st.dictionaries(st.text(), x), max_leaves=8)
)


def said(text: str) -> bool | None:
    """Tell by `json` alone whether a text is canonical; None if it is no JSON that a ledger could hold."""
    try:
        return canonical_json(json.loads(text)) == text
    except (ValueError, RecursionError):
        return None


def asked(text: str) -> bool | None:
    try:
        return canonical(text)
    except ValueError:
        return None


@given(RECORDS)
@example({"a": 1.5e99, "b": [1e-7, 1e16, 0.00001, -0.00001], "c": "e-5,"})
def test_what_canonical_json_writes_is_canonical_and_read_the_same(record: dict[str, Any]) -> None:
    text = canonical_json(record)
    assert canonical(text)
    assert repr(parsed(text)) == repr(json.loads(text))


@given(
    RECORDS, st.integers(0), st.sampled_from([*' 0123456789e-+.",:[]{}\\u', "E", "e1", "e-0", '"a":1,']), st.sampled_from("+=-")
)
def test_an_edited_text_is_judged_as_json_itself_would(record: dict[str, Any], at: int, letter: str, how: str) -> None:
    text = canonical_json(record)
    k = at % len(text)
    edited = text[:k] + ("" if how == "-" else letter) + text[k + (how != "+") :]
    assert asked(edited) == said(edited)
    if said(edited) is not None:
        assert repr(parsed(edited)) == repr(json.loads(edited))


@pytest.mark.parametrize(
    ("text", "want"),
    [
        *(('{"a":1e-7}', False), ('{"a":1e-07}', True), ('{"a":0.00001}', False), ('{"a":1e-05}', True), ('{"a":1e16}', False)),
        *(
            ('{"a":1e+16}', True),
            ('{"a":1,"a":1}', False),
            ('{"b":1,"a":1}', False),
            ('{"a": 1}', False),
            ('{"a":"\\u0041"}', False),
        ),
        *(
            ('{"a":-0}', False),
            ('{"a":1.0}', True),
            ('{"a":1.00}', False),
            ("[]", True),
            ('{"a":123456789012345678901234567890}', True),
        ),
        *(('{"a":NaN}', None), ('{"a":1e999}', None), ("", None), ('{"a":"\\ud800"}', False)),
    ],
)
def test_other_spellings_are_not_canonical(text: str, want: bool | None) -> None:
    assert said(text) == want, "the example itself"
    assert asked(text) == want


def test_what_msgspec_refuses_is_read_as_before() -> None:
    assert math.isnan(parsed('{"a":NaN}')["a"])
    assert parsed('{"a":-Infinity,"b":1e999}') == {"a": -math.inf, "b": math.inf}
    assert parsed('"\\ud800"') == "\ud800"
    with pytest.raises(ValueError, match="Expecting"):
        parsed("no json")


@given(RECORDS, st.sets(st.text(max_size=3)))
def test_fields_that_are_left_out_are_all_that_is_missing(record: dict[str, Any], names: set[str]) -> None:
    kept = {k: v for k, v in json.loads(canonical_json(record)).items() if k not in names}
    assert repr(parsed_without(canonical_json(record), names)) == repr(dict(sorted(kept.items())))
