"""The signatures of failures: each speaks where its examples say, names levers that exist, and no text makes one run long."""

from __future__ import annotations

import functools
import time
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from attuner.core.errors import UserError
from attuner.failures import check_failures, lever_ids, load_failures
from attuner.logs.signatures import REGEX_LINE, Book, FailureRule, Pattern
from attuner.logs.triage import triage

ROOT = Path(__file__).resolve().parents[2]
RULES = ROOT / "rules"
STACKS = sorted(p.name for p in RULES.iterdir() if p.is_dir())


@functools.cache
def book(stack: str = "") -> Book:
    return load_failures(RULES, stack)


def entry(**changes: Any) -> dict[str, Any]:
    """Return a well-formed rule."""
    return {
        "id": "TST-ONE-001",
        "kind": "test.one",
        "level": "cause",
        "any": ["it broke"],
        "retry": "no",
        "why": "written for a test",
        "action": "mend what broke, then go on",
        "source": ["tests"],
        "examples": [{"log": "it broke", "fires": True}, {"log": "it holds", "fires": False}],
        **changes,
    }


def test_every_example_comes_out_and_every_lever_exists() -> None:
    assert check_failures(book(), lever_ids(RULES, "")) == []


@pytest.mark.parametrize("stack", STACKS)
def test_every_stack_has_the_common_signatures_and_only_its_own_beside_them(stack: str) -> None:
    ids = {r.id for r in book(stack).rules}
    assert {"TORCH-OOM-001", "NCCL-TMO-001", "RAY-DIED-001"} <= ids
    assert ids <= {r.id for r in book().rules}
    assert ("MEG-RERUN-001" in ids) == (stack in ("megatron", "slime", "bridge"))


def test_an_example_that_does_not_come_out_is_told() -> None:
    wrong = FailureRule.model_validate(
        entry(
            examples=[{"log": "it holds", "fires": True}, {"log": "it broke", "fires": False}],
            levers=["no-such-lever"],
        )
    )
    told = check_failures(Book(rules=[wrong], phases=[]), set())
    assert [p.split(": ", 1)[1] for p in told] == [
        "example 1: does not fire, but must",
        "example 2: fires, but must not",
        "lever no-such-lever: no stack has it",
    ]


@pytest.mark.parametrize(
    "wrong",
    [
        {"examples": [{"log": "it broke", "fires": True}, {"log": "it broke too", "fires": True}]},
        {"level": "loud"},
        {"retry": "perhaps"},
        {"any": []},
        {"source": []},
        {"id": "one"},
        {"unknown_key": 1},
    ],
)
def test_a_rule_that_cant_be_meant_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        FailureRule.model_validate(entry(**wrong))


@pytest.mark.parametrize(
    "expression", ["(a+)+b", "a*b", r"(\w{1,9}){2,9}", r"x.{0,500}y", r"(x)\1", "a.{0,9}b.{0,9}c.{0,9}d", "(unclosed", r"\d+"]
)
def test_an_expression_that_could_run_long_is_refused(expression: str) -> None:
    with pytest.raises(ValidationError):
        Pattern.model_validate({"has": "word", "re": expression})


@pytest.mark.parametrize("expression", [r"\(\?P<rank>\d{1,7}\)", r"[*+]{1,3}", r"(?:a|b)?c", r"(?P<rank>\d{1,7})\b", r"\)\*"])
def test_a_bounded_expression_is_taken(expression: str) -> None:
    assert Pattern.model_validate({"has": "word", "re": expression}).re == expression


def test_no_hostile_line_makes_a_pattern_run_long() -> None:
    slow = []
    for rule in book().rules:
        for pattern in rule.patterns():
            if not pattern.re:
                continue
            words = " ".join(pattern.has)
            for filler in (words, f"{words} ", f"{words}1", f"{words}a:1:", "a" * 50, "1" * 50 + ": ", "(" * 20, " :  "):
                line = words + filler * (REGEX_LINE // max(len(filler), 1)) + words
                start = time.process_time()
                pattern.match(line)
                spent = time.process_time() - start
                if spent > 0.15:
                    slow.append((rule.id, pattern.re, filler, spent))
    assert slow == []


def test_a_log_of_hostile_lines_is_read_in_bounded_time() -> None:
    words = sorted({w for r in book().rules for p in r.patterns() for w in p.has})
    lines = [" ".join(words)[:4000], *(f"[rank{i}]: {w} " + "x" * 300 for i, w in enumerate(words * 3))]
    start = time.process_time()
    found = triage([("hostile", "\n".join(lines).encode())], book())
    assert time.process_time() - start < 10
    assert found.rule


def folder(tmp_path: Path, text: str) -> Path:
    (tmp_path / "one").mkdir()
    (tmp_path / "failures.yaml").write_text(text)
    return tmp_path


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("- 1", "expected the keys"),
        ("rules: [{id: TST-ONE-001}]", "TST-ONE-001"),
        ("rules: []\nwrong: 1", "expected the keys"),
        ("phases: [{id: x}]", "phase x: any: is missing"),
    ],
)
def test_a_malformed_file_is_one_line_that_names_it(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(UserError, match=said) as error:
        load_failures(folder(tmp_path, text))
    assert "failures.yaml" in str(error.value)


def test_an_unknown_stack_is_named_with_the_known_ones() -> None:
    with pytest.raises(UserError, match=r"stack nemo: unknown; known: .*megatron"):
        load_failures(RULES, "nemo")


def test_markers_hold_no_other_and_cover_every_pattern() -> None:
    markers = book().markers()
    assert [(a, b) for a in markers for b in markers if a != b and a in b] == []
    for rule in book().rules:
        for pattern in rule.patterns():
            assert any(m in word for m in markers for word in pattern.has), rule.id
