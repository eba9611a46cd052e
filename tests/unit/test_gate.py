"""The gate's first look: what is uncovered is review, refuse beats review beats admit, same-math needs its test."""

from __future__ import annotations

from typing import Any

import pytest
from lab import register, rule

from attuner.core.judgement import ComponentTest, Verdict
from attuner.core.recipe import EffectiveConfig
from attuner.policy.gate import config_look, missing_tests

REGISTER = register(
    rule(1, ["lr"], kind="objective", decision="refuse"),
    rule(2, ["tp", "both"]),
    rule(3, ["both", "odd"], decision="review"),
    rule(4, ["attention"], kind="same-math", component="attention"),
    rule(5, ["when"], when={"arg": "fine", "eq": True}, examples=[]) | {"examples": rule(5, ["when"])["examples"]},
    rule(6, ["bad"], kind="defect", decision="refuse", when={"fact": "wrong", "eq": True}),
)
BASE = {"lr": 1, "tp": 2, "both": 1, "odd": 1, "attention": "local", "when": 1, "fine": False, "bad": 1}


def look(changes: dict[str, Any], *, tests: list[ComponentTest] | None = None, facts: dict[str, Any] | None = None) -> Verdict:
    before = EffectiveConfig(arguments=BASE, env={}, facts={"wrong": False})
    after = EffectiveConfig(arguments={**BASE, **changes}, env={}, facts=facts or {"wrong": False})
    return config_look(REGISTER, before, after, subject="h01", recipe="r", tests=tests or [], scope="here")


def component(**changes: Any) -> ComponentTest:
    figures = {k: 1e-6 for k, f in ComponentTest.model_fields.items() if f.annotation is float}
    said = {"component": "attention", "argument": "attention", "old": "local", "new": "sdpa", "scope": "here", "passed": True}
    return ComponentTest.model_validate({**figures, **said, "dtype": "fp32", "why": "close", "launch_id": "l07", **changes})


@pytest.mark.parametrize(
    ("changes", "decision"),
    [
        ({}, "admit"),
        ({"tp": 1}, "admit"),
        ({"odd": 2}, "review"),
        ({"lr": 2}, "refuse"),
        ({"new": 1}, "review"),
        ({"both": 2}, "review"),
        ({"tp": 1, "odd": 2}, "review"),
        ({"tp": 1, "odd": 2, "lr": 2}, "refuse"),
        ({"new": 1, "lr": 2}, "refuse"),
    ],
)
def test_refuse_beats_review_beats_admit(changes: dict[str, Any], decision: str) -> None:
    assert look(changes).decision == decision


def test_an_uncovered_value_is_review_and_named() -> None:
    finding = look({"tp": 1, "new": 7}).reviews()[0]
    assert (finding.rule, finding.key, finding.before, finding.after) == ("uncovered", "new", None, 7)


def test_a_rule_whose_condition_does_not_hold_covers_nothing() -> None:
    assert look({"when": 2}).reviews()[0].rule == "uncovered"
    assert look({"when": 2, "fine": True}).findings[-1].rule == "LAB-TST-005"


def test_no_difference_is_admitted_without_a_finding() -> None:
    assert look({}).findings == []


def test_every_changed_value_has_a_finding() -> None:
    changes = {"lr": 2, "tp": 1, "both": 2, "odd": 2, "when": 2, "x": 1}
    assert {f.key for f in look(changes).findings} == set(changes)


def test_a_defect_entered_through_a_derived_fact_refuses_though_no_value_of_its_own_changed() -> None:
    verdict = look({}, facts={"wrong": True})
    assert verdict.decision == "refuse"
    assert verdict.refusals()[0].rule == "LAB-TST-006"


def test_the_strictest_finding_stands_first() -> None:
    decisions = [f.decision for f in look({"lr": 2, "tp": 1, "x": 1, "odd": 2}).findings]
    assert decisions == ["refuse", "review", "review", "admit"]


@pytest.mark.parametrize(
    ("tests", "decision"),
    [
        ([], "review"),
        ([component()], "admit"),
        ([component(passed=False)], "refuse"),
        ([component(scope="elsewhere")], "review"),
        ([component(old="sdpa", new="local")], "review"),
        ([component(new="flash")], "review"),
        ([component(component="dispatcher")], "review"),
        ([component(argument="other")], "review"),
        ([component(), component(passed=False)], "refuse"),
        ([component(passed=False), component()], "admit"),
        ([component(passed=False), component(scope="elsewhere")], "refuse"),
    ],
)
def test_same_math_is_admitted_by_its_own_test_at_the_same_scope_only(tests: list[ComponentTest], decision: str) -> None:
    assert look({"attention": "sdpa"}, tests=tests).decision == decision


def test_a_passed_component_test_does_not_admit_what_else_changed() -> None:
    assert look({"attention": "sdpa", "lr": 2}, tests=[component()]).decision == "refuse"


def test_only_a_same_math_swap_without_its_test_is_missing_one() -> None:
    verdict = look({"attention": "sdpa", "odd": 2, "new": 1})
    assert missing_tests(REGISTER, verdict) == [("attention", "attention", "local", "sdpa")]
    assert missing_tests(REGISTER, look({"attention": "sdpa"}, tests=[component()])) == []


def test_the_looks_are_pure() -> None:
    assert look({"lr": 2, "x": 1}) == look({"lr": 2, "x": 1})
    assert look({"lr": 2}).digest() == look({"lr": 2}).digest()
