"""The register's closed language, and when a rule speaks."""

from __future__ import annotations

from typing import Any

import pytest
from lab import register, rule

from attuner.core.errors import UserError
from attuner.core.recipe import EffectiveConfig
from attuner.policy.conditions import check_condition, holds
from attuner.policy.register import (
    Rule,
    build_register,
    carried_defects,
    check_rule,
    covers,
    decide,
    examples_of,
    in_scope,
    uncovered,
)

LISTS = {"l": ["x"], "m": ["x", "y"], "n": [0, 0.5]}
BEFORE = {"a": 1, "b": 4, "s": "x", "t": True, "none": None, "env:E": "1", "fact:f": 2, **LISTS}
AFTER = {**BEFORE, "a": 2, "b": 2, "s": "y", "env:E": "2", "fact:f": 3}


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ({"arg": "a", "changed": True}, True),
        ({"arg": "a", "changed": False}, False),
        ({"arg": "t", "changed": True}, False),
        ({"arg": "t", "changed": False}, True),
        ({"arg": "absent", "changed": False}, True),
        ({"env": "E", "changed": True}, True),
        ({"fact": "f", "changed": True}, True),
        ({"arg": "a", "eq": 2}, True),
        ({"arg": "a", "eq": 2.0}, True),
        ({"arg": "a", "eq": 1}, False),
        ({"arg": "a", "eq": 1, "side": "before"}, True),
        ({"arg": "a", "eq": 2, "side": "after"}, True),
        ({"arg": "l", "eq": "x"}, True),
        ({"arg": "t", "eq": 1}, False),
        ({"arg": "none", "eq": None}, True),
        ({"arg": "absent", "eq": None}, True),
        ({"arg": "a", "ne": 1}, True),
        ({"arg": "a", "ne": 2}, False),
        ({"arg": "s", "one_of": ["x", "y"]}, True),
        ({"arg": "s", "one_of": ["x", "z"]}, False),
        ({"arg": "a", "ge": 2}, True),
        ({"arg": "a", "ge": 2.1}, False),
        ({"arg": "a", "le": 2}, True),
        ({"arg": "a", "le": 1.9}, False),
        ({"arg": "s", "ge": 0}, False),
        ({"arg": "t", "ge": 0}, False),
        ({"arg": "none", "le": 9}, False),
        ({"arg": "a", "same_product": ["b"]}, True),
        ({"arg": "a", "same_product": ["absent"]}, False),
        ({"arg": "m", "eq": "x"}, True),
        ({"arg": "m", "eq": "z"}, False),
        ({"arg": "m", "ne": "x"}, True),
        ({"arg": "l", "ne": "x"}, False),
        ({"arg": "m", "one_of": ["y", "z"]}, True),
        ({"arg": "m", "one_of": ["z"]}, False),
        ({"arg": "n", "ge": 0.5}, True),
        ({"arg": "n", "ge": 0.6}, False),
        ({"arg": "n", "le": 0}, True),
        ({"arg": "n", "le": -1}, False),
        ({"arg": "m", "eq": ["x", "y"]}, True),
        ({"arg": "m", "eq": ["y", "x"]}, False),
        ({"arg": "m", "ne": ["x", "y"]}, False),
        ({"arg": "m", "ne": ["x"]}, True),
        ({"arg": "l", "eq": ["x"]}, True),
        ({"arg": "s", "eq": ["y"]}, True),
        ({"all": [{"arg": "a", "eq": 2}, {"arg": "b", "eq": 2}]}, True),
        ({"all": [{"arg": "a", "eq": 2}, {"arg": "b", "eq": 4}]}, False),
        ({"any": [{"arg": "a", "eq": 9}, {"arg": "b", "eq": 2}]}, True),
        ({"any": [{"arg": "a", "eq": 9}, {"arg": "b", "eq": 4}]}, False),
        ({"all": [{"any": [{"arg": "a", "eq": 2}]}, {"all": [{"env": "E", "eq": "2"}]}]}, True),
        (None, True),
    ],
)
def test_every_operator_means_what_it_says(condition: Any, expected: bool) -> None:
    if condition is not None:
        check_condition(condition)
    assert holds(condition, BEFORE, AFTER) is expected


@pytest.mark.parametrize(
    "condition",
    [
        {},
        [],
        "a == 1",
        None,
        {"arg": "a"},
        {"eq": 1},
        {"arg": "a", "gt": 1},
        {"arg": "a", "lambda": "x"},
        {"arg": "a", "eq": 1, "ne": 2},
        {"arg": "a", "env": "E", "eq": 1},
        {"arg": "a", "eq": 1, "note": "x"},
        {"arg": "a", "eq": 1, "side": "left"},
        {"all": []},
        {"any": {}},
        {"all": [{"arg": "a", "eq": 1}], "any": [{"arg": "a", "eq": 1}]},
        {"all": [{"arg": "a", "eq": 1}], "arg": "a"},
        {"any": [{"arg": "a", "python": "1"}]},
        {"not": {"arg": "a", "eq": 1}},
        {"exec": "import os"},
    ],
)
def test_the_language_is_closed(condition: Any) -> None:
    with pytest.raises(ValueError, match=r"condition|side|stands alone"):
        check_condition(condition)


@pytest.mark.parametrize(
    "condition",
    [
        {"arg": "a", "ge": "1"},
        {"arg": "a", "ge": True},
        {"arg": "a", "le": [1]},
        {"arg": "a", "one_of": "abc"},
        {"arg": "a", "one_of": []},
        {"arg": "a", "same_product": "bc"},
        {"arg": "a", "same_product": []},
        {"arg": "a", "changed": "no"},
        {"arg": "a", "eq": {"x": 1}},
    ],
)
def test_the_language_is_closed_in_its_values_too(condition: Any) -> None:
    with pytest.raises(ValueError, match="can't take"):
        check_condition(condition)


@pytest.mark.parametrize("condition", [{"arg": 7, "eq": 1}, {"arg": "a", "same_product": [7]}, {"arg": "a", "one_of": [{}]}])
def test_the_language_is_closed_in_its_names_too(condition: Any) -> None:
    with pytest.raises(ValueError, match=r"condition|can't take"):
        check_condition(condition)


DEFECT = Rule.model_validate(rule(9, ["a"], kind="defect", decision="refuse", when={"arg": "bad", "eq": True}))


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ({"bad": False, "a": 1}, {"bad": True, "a": 1}, "refuse"),
        ({"bad": True, "a": 1}, {"bad": False, "a": 1}, "refuse"),
        ({"bad": True, "a": 1}, {"bad": True, "a": 2}, "refuse"),
        ({"bad": True, "a": 1}, {"bad": True, "a": 1}, None),
        ({"bad": False, "a": 1}, {"bad": False, "a": 2}, None),
        ({"bad": True, "a": 1, "c": 1}, {"bad": True, "a": 1, "c": 2}, None),
    ],
    ids=["enters", "leaves", "moves inside", "stays", "moves outside", "moves what it does not cover"],
)
def test_a_defect_speaks_when_entered_left_or_moved_in(before: Any, after: Any, said: Any) -> None:
    assert decide(DEFECT, before, after) == said


def test_any_other_rule_speaks_when_a_covered_value_changes_and_its_condition_holds() -> None:
    made = Rule.model_validate(rule(1, ["a", "fact:x*"], when={"arg": "b", "eq": 1}))
    assert decide(made, {"a": 1, "b": 1}, {"a": 2, "b": 1}) == "admit"
    assert decide(made, {"a": 1, "b": 1}, {"a": 2, "b": 2}) is None
    assert decide(made, {"a": 1, "b": 2}, {"a": 1, "b": 1}) is None
    assert decide(made, {"b": 1}, {"b": 1, "fact:xyz": 1}) == "admit"
    assert decide(made, {"b": 1}, {"b": 1, "fact:y": 1}) is None


def test_a_value_that_appears_or_goes_is_a_change() -> None:
    made = Rule.model_validate(rule(1, ["a"]))
    assert decide(made, {}, {"a": 1}) == "admit"
    assert decide(made, {"a": 1}, {}) == "admit"
    assert decide(made, {}, {"a": None}) == "admit"


@pytest.mark.parametrize(
    ("names", "key", "covered"),
    [
        (["a"], "a", True),
        (["a"], "transformer.a", True),
        (["a"], "ddp.a", True),
        (["a"], "optimizer.a", True),
        (["a"], "other.a", False),
        (["a"], "env:a", False),
        (["a"], "ab", False),
        (["a*"], "transformer.ab", True),
        (["transformer.a"], "a", False),
        (["transformer.a"], "optimizer.a", False),
        (["fact:a"], "transformer.a", False),
        (["env:A_*"], "env:A_B", True),
    ],
)
def test_a_name_covers_the_config_fields_of_that_name_too(names: list[str], key: str, covered: bool) -> None:
    made = register(rule(1, names))
    assert covers(made.rules[0], key) is covered
    assert bool(made.covering(key)) is covered


@pytest.mark.parametrize("names", [[], ["*"], [""], ["a*b"], ["**"], ["env:*"], ["fact:*"]])
def test_no_rule_covers_everything_or_nothing(names: list[str]) -> None:
    with pytest.raises(UserError, match=r"lab\.yaml: rule LAB-TST-001: .*covers"):
        build_register("lab", [("lab.yaml", {**rule(1, ["a"]), "covers": names})])


def test_a_defect_alone_covers_no_argument() -> None:
    defect = {**rule(9, ["a", "b"], kind="defect", decision="refuse", when={"arg": "bad", "eq": True}), "examples": BAD}
    assert uncovered(register(defect, rule(1, ["a"])), ["a", "b", "c"]) == ["b", "c"]


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        (rule(1, ["a"], expect="refuse"), "example 1 expects refuse"),
        ({**rule(1, ["a"]), "examples": [{"before": {"a": 1}, "expect": "silent"}] * 2}, "one example that fires"),
        ({**rule(1, ["a"]), "examples": [{"before": {"a": 1}, "after": {"a": 2}, "expect": "admit"}] * 2}, "one that does not"),
        (rule(1, ["a"], kind="objective"), "can't admit"),
        (rule(1, ["a"], kind="same-math"), "only with a component test"),
        (rule(1, ["a"], kind="defect", decision="refuse"), "needs `when`"),
    ],
)
def test_a_rule_is_held_to_its_examples_and_its_kind(entry: dict[str, Any], words: str) -> None:
    assert any(words in p for p in check_rule(Rule.model_validate(entry)))


@pytest.mark.parametrize(
    "change",
    [
        {"id": "lab-1"},
        {"reason": "short"},
        {"source": []},
        {"examples": [{"before": {"a": 1}, "expect": "silent"}]},
        {"kind": "objective", "decision": "refuse", "examples": []},
        {"kind": "same-math", "decision": "review", "examples": []},
        {"kind": "defect", "when": {"arg": "a", "eq": 1}, "examples": []},
        {"when": {"arg": "a", "eq": 1}, "examples": []},
        {"kind": "hope"},
        {"decision": "maybe"},
        {"when": {"python": "1"}},
        {"severity": 9},
        {"added": "yesterday"},
    ],
)
def test_a_malformed_rule_is_one_line_that_names_file_and_rule(change: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=r"lab\.yaml: rule") as error:
        build_register("lab", [("lab.yaml", {**rule(1, ["a"]), **change})])
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("kind", ["placement", "bookkeeping"])
def test_a_plain_rule_gets_its_examples_from_its_class(kind: str) -> None:
    made = Rule.model_validate({**rule(1, ["a", "fact:b", "env:C_*"], kind=kind), "examples": []})
    examples = examples_of(made)
    assert check_rule(made) == []
    assert [sorted(e.after) for e in examples if e.expect == "admit"] == [["a"], ["fact:b"], ["env:C_x"]]
    assert [e.after for e in examples if e.expect == "silent"] == [{}]


def test_an_entry_that_is_no_mapping_is_refused() -> None:
    with pytest.raises(UserError, match=r"lab\.yaml"):
        build_register("lab", [("lab.yaml", "a rule")])  # type: ignore[list-item]


def test_two_rules_do_not_share_an_id() -> None:
    with pytest.raises(UserError, match="stands twice"):
        register(rule(1, ["a"]), rule(1, ["b"]))


def test_the_lock_of_a_register_does_not_depend_on_order() -> None:
    one, two = rule(1, ["a"]), rule(2, ["b"])
    assert register(one, two).lock() == register(two, one).lock()
    assert register(one).lock() != register(one, two).lock()


def scoped(wanted: str, name: str = "megatron-core") -> Rule:
    made = rule(9, ["a"], kind="defect", decision="refuse", when={"arg": "bad", "eq": True}, scope={name: wanted})
    return Rule.model_validate({**made, "examples": BAD})


BAD = [{"before": {"bad": False}, "after": {"bad": True}, "expect": "refuse"}, {"before": {"bad": False}, "expect": "silent"}]


@pytest.mark.parametrize(
    ("wanted", "version", "speaks"),
    [
        ("<0.19.0", "0.16.1", True),
        ("<0.19.0", "0.16.1+local", True),
        ("<0.19.0", "0.19.0", False),
        ("<0.19.0", "0.20", False),
        ("<0.9", "0.16.1", False),
        (">=0.16,<0.17", "0.16.1", True),
        ("<0.19.0", "0.18.0rc1", True),
        ("==0.16.1", "0.16.2", False),
    ],
)
def test_a_rule_holds_in_the_versions_of_its_scope(wanted: str, version: str, speaks: bool) -> None:
    assert in_scope(scoped(wanted), {"megatron_core": version, "torch": "2.13.0"}) is speaks
    assert in_scope(scoped(wanted, "megatron_core"), {"megatron-core": version}) is speaks


@pytest.mark.parametrize("versions", [{}, {"torch": "2.13.0"}])
def test_a_version_that_nobody_reports_leaves_a_rule_in_force(versions: dict[str, str]) -> None:
    assert in_scope(scoped("<0.1"), versions)


@pytest.mark.parametrize("version", ["core_r0.16.1", "unknown", ""])
def test_a_version_that_cannot_be_read_leaves_a_rule_in_force(version: str) -> None:
    assert in_scope(scoped("<0.19.0"), {"megatron_core": version})


def test_a_scope_that_is_no_specifier_is_one_line() -> None:
    entry = {**rule(1, ["a"]), "scope": {"megatron-core": "before 0.19"}}
    with pytest.raises(UserError, match=r"lab\.yaml: rule LAB-TST-001.*before 0\.19"):
        build_register("lab", [("lab.yaml", entry)])


PLACE = {"model": "GLM-4.5-Air", "hardware": "8x H200", "network": "ib", "megatron_lm_commit": "1dcf0dafc6e4"}


@pytest.mark.parametrize(
    ("scope", "speaks"),
    [
        ({"commit": ["1dcf0da"]}, True),
        ({"commit": ["d98e8a6", "1dcf0dafc6e4aa"]}, True),
        ({"commit": ["d98e8a6"]}, False),
        ({"model": ["glm-4.5*"]}, True),
        ({"model": ["minimax*", "mixtral*"]}, False),
        ({"hardware": ["*h200*"]}, True),
        ({"hardware": ["*h100*"]}, False),
        ({"network": ["ib", "roce"]}, True),
        ({"model": ["glm*"], "hardware": ["*b200*"]}, False),
        ({"model": ["glm*"], "megatron-core": "<0.19.0"}, True),
    ],
)
def test_a_rule_holds_for_the_commits_models_and_devices_of_its_scope(scope: dict[str, Any], speaks: bool) -> None:
    made = Rule.model_validate(rule(1, ["a"], scope=scope))
    assert in_scope(made, PLACE) is speaks
    assert in_scope(made, {})


@pytest.mark.parametrize(
    "scope", [{"model": "glm*"}, {"commit": "1dcf0da"}, {"hardware": []}, {"torch": ["<2.6"]}, {"commit": [1234567]}]
)
def test_a_scope_of_the_wrong_shape_is_one_line(scope: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=r"lab\.yaml: rule LAB-TST-001: scope"):
        build_register("lab", [("lab.yaml", {**rule(1, ["a"]), "scope": scope})])


def test_the_defects_that_a_baseline_carries_are_those_in_scope_that_hold() -> None:
    made = register(scoped("<0.19.0").data())
    bad = EffectiveConfig(arguments={"bad": True}, env={}, facts={}, versions={"megatron_core": "0.16.1"})
    assert [r.id for r in carried_defects(made, bad)] == ["LAB-TST-009"]
    assert carried_defects(made, bad.model_copy(update={"versions": {"megatron_core": "0.19.0"}})) == []
    assert carried_defects(made, bad.model_copy(update={"arguments": {"bad": False}})) == []
