"""Laws of the records: one spelling, one digest, and what counts as a difference."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from book import trial
from pydantic import ValidationError

from attuner.core.base import canonical_json, digest_of
from attuner.core.recipe import EffectiveConfig, Recipe, differences, same_value
from attuner.core.run import StepRecord, Trial


def config(arguments: dict[str, Any], **more: Any) -> EffectiveConfig:
    return EffectiveConfig.model_validate({"arguments": arguments, "env": {}, "facts": {}, **more})


def test_equal_data_have_one_spelling() -> None:
    assert canonical_json({"b": [1, 2.5], "a": "µ"}) == canonical_json({"a": "µ", "b": [1, 2.5]}) == '{"a":"µ","b":[1,2.5]}'


def test_a_bare_nan_has_no_spelling() -> None:
    with pytest.raises(ValueError, match="JSON"):
        canonical_json({"a": math.nan})


def test_the_digest_of_a_recipe_never_moves() -> None:
    made = Recipe(stack="mcore", arguments={"b": 2, "a": [1, None, True], "c": 0.5}, env={"X": "1"})
    assert made.digest() == digest_of(
        {"arguments": {"a": [1, None, True], "b": 2, "c": 0.5}, "env": {"X": "1"}, "stack": "mcore"}
    )
    assert made.digest() == "683d830a9c04bf50926ac755bcb5ea0fc04bd4efcede83ebcf9ef5ef736b3a98"


@pytest.mark.parametrize(
    ("given", "kept"), [(1.0, 1), (0.5, 0.5), (-3.0, -3), (1e300, 1e300), (True, True), ("1", "1"), (None, None)]
)
def test_a_whole_float_in_a_recipe_is_spelled_as_an_integer(given: Any, kept: Any) -> None:
    value = Recipe(stack="mcore", arguments={"x": given}).arguments["x"]
    assert value == kept
    assert type(value) is type(kept)


def test_a_recipe_survives_json_with_its_digest() -> None:
    made = Recipe(stack="mcore", arguments={"x": 1.0, "y": [1, 2], "z": 1e-5, "t": True, "n": None})
    assert Recipe.model_validate(json.loads(json.dumps(made.data()))).digest() == made.digest()


def test_a_whole_float_in_a_list_is_spelled_as_an_integer_too() -> None:
    assert Recipe(stack="mcore", arguments={"x": [1.0]}).digest() == Recipe(stack="mcore", arguments={"x": [1]}).digest()


def test_a_record_is_frozen_and_knows_its_keys() -> None:
    made = Recipe(stack="mcore")
    with pytest.raises(ValidationError):
        made.stack = "other"  # type: ignore[misc]
    with pytest.raises(ValidationError):
        Recipe.model_validate({"stack": "mcore", "argument": {}})


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
def test_a_loss_that_is_no_number_survives_the_ledger(loss: float) -> None:
    step = StepRecord(step=0, kind="scored", t=0, step_s=1, lm_loss=loss, aux={"load": loss}, loss_tokens=1, tokens=1)
    made = trial(steps=[step])
    back = Trial.model_validate(json.loads(canonical_json(made.data())))
    assert repr(back.steps[0].lm_loss) == repr(loss)
    assert repr(back.steps[0].aux["load"]) == repr(loss)
    assert back.digest() == made.digest()


@pytest.mark.parametrize(
    ("a", "b", "same"),
    [
        (1, 1.0, True),
        (True, 1, False),
        (False, 0, False),
        (False, None, False),
        (None, None, True),
        (None, 0, False),
        ("", None, False),
        ("1", 1, False),
        (["x"], "x", True),
        ([True], True, True),
        ([1], True, False),
        ([1, 2], [1.0, 2], True),
        ([1, 2], [2, 1], False),
        ([1, 2], [1], False),
        ([], None, False),
        ([1, True], [1, 1], False),
        (math.nan, math.nan, False),
    ],
)
def test_same_value(a: Any, b: Any, same: bool) -> None:
    assert same_value(a, b) is same
    assert same_value(b, a) is same


def test_every_difference_is_named_whatever_its_kind() -> None:
    before = config({"a": 1, "b": 2, "gone": None}, env={"X": "1"}, facts={"dp": 1})
    after = config({"a": 1.0, "b": 3, "new": None}, env={"X": "2", "Y": "1"}, facts={"dp": 2})
    assert [c.key for c in differences(before, after)] == ["b", "env:X", "env:Y", "fact:dp", "gone", "new"]


def test_a_configuration_does_not_differ_from_itself() -> None:
    made = config({"a": [1], "b": None, "c": True}, env={"X": ""}, facts={"f": [1, 2]})
    assert differences(made, made) == []


def test_nan_as_a_final_value_is_a_difference_and_never_silent() -> None:
    made = config({"a": math.nan})
    assert [c.key for c in differences(made, made)] == ["a"]


def test_the_step_zero_loss_is_of_step_zero_or_missing() -> None:
    later = trial().model_copy(update={"steps": trial().steps[1:]})
    assert trial().step0_loss() == 5.0
    assert later.step0_loss() is None
    assert trial(steps=[]).step0_loss() is None
