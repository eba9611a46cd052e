"""Failures of public runs: class, root-cause rank, next action, and no confidence where the text leaves the cause open.

The corpus is skipped where a checkout has none beside it (another folder is named with ATTUNER_CORPUS). `failures_unseen.yaml`,
of threads that no rule was written from at first, is always read.
"""

from __future__ import annotations

import functools
import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from attuner.core.failure import Failure
from attuner.failures import lever_ids, load_failures
from attuner.logs.signatures import Book
from attuner.logs.triage import triage

HERE, ROOT = Path(__file__).parent, Path(__file__).resolve().parents[2]
CORPUS = Path(os.environ.get("ATTUNER_CORPUS") or ROOT.parent / "shared" / "corpus")
FILE = CORPUS / "failures.jsonl"
ROWS: dict[str, dict[str, Any]] = {x["id"]: x for x in map(json.loads, FILE.read_text().splitlines())} if FILE.exists() else {}
ACTIONS: dict[str, dict[str, Any]] = yaml.safe_load((HERE / "failure_actions.yaml").read_text())
UNSEEN: list[dict[str, Any]] = yaml.safe_load((HERE / "failures_unseen.yaml").read_text())
here = pytest.mark.skipif(not ROWS, reason=f"no failures at {FILE}")


@functools.cache
def book() -> Book:
    return load_failures(ROOT / "rules")


@functools.cache
def found(case: str) -> Failure:
    return triage([(case, ROWS[case]["excerpt"].encode())], book(), catalog=lever_ids(ROOT / "rules", ""))


def class_of(failure: Failure) -> str:
    return failure.seen or failure.kind


@here
@pytest.mark.parametrize("case", sorted(ROWS))
def test_class_and_root_cause_rank(case: str) -> None:
    assert class_of(found(case)) == ROWS[case]["expected_class"]
    if "root_rank" in ROWS[case]:
        assert found(case).rank == ROWS[case]["root_rank"]


@here
@pytest.mark.parametrize("case", sorted(ACTIONS))
def test_the_next_action_is_what_the_case_asks_for(case: str) -> None:
    wanted, told = ACTIONS[case], found(case)
    text = f"{told.why}; {told.action}"
    assert [group for group in wanted["says"] if not any(str(word) in text for word in group)] == []
    assert set(wanted["levers"]) <= set(told.levers)
    assert told.retry == wanted["retry"]


@here
@pytest.mark.parametrize("case", sorted(c for c in ACTIONS if ACTIONS[c]["open"]))
def test_what_a_text_leaves_open_is_said_to_be_open(case: str) -> None:
    assert found(case).open or found(case).undetermined


@here
def test_three_guesses_are_no_cause() -> None:
    told = found("F011")
    assert told.undetermined
    assert told.levers == []
    assert "oom" not in told.kind


@here
def test_who_waits_is_not_named_as_the_root() -> None:
    assert [found(case).rank for case in ("F016", "F017", "F019", "F035", "F068")] == [None] * 5


@here
def test_every_case_is_judged() -> None:
    assert set(ACTIONS) == set(ROWS)
    assert len(ROWS) == 58


@here
@pytest.mark.parametrize("case", sorted(ROWS))
def test_evidence_stands_in_the_log_and_names_its_line(case: str) -> None:
    lines = ROWS[case]["excerpt"].splitlines()
    for evidence in found(case).evidence:
        assert 1 <= evidence.line <= len(lines)
        if found(case).rule and not found(case).rule.startswith("STEPS-"):
            assert evidence.text.split(" … ")[0].split()[-1] in lines[evidence.line - 1]


@pytest.mark.parametrize("row", UNSEEN, ids=[x["source"] for x in UNSEEN])
def test_threads_that_no_rule_was_written_from(row: dict[str, Any]) -> None:
    told = triage([("log", row["log"].encode())], book())
    assert class_of(told) == row["kind"]
    assert row.get("rank") in (None, told.rank)
