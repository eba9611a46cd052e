"""Citations: fixed code looks each of them up, and a move that rests on a wrong one launches nothing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from book import hypothesis
from claude_lab import MICRO, STOP, born, laboratory, last_heard, move
from lab import ID, PowerCut, begin, search
from messages_server import scripted, serving

from attuner.core.errors import UserError
from attuner.policy import citations
from attuner.source import Source
from attuner.steps.gate import gate
from attuner.steps.hypothesize import hypothesize

CODE = "\n".join([*(f"# line {n}" for n in range(1, 20)), "rows = config.micro_batch_size", *("pass" for _ in range(10))])
"""The argument stands in line 20 of 30."""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "site" / "megatron" / "core"
    (folder / "pipeline_parallel").mkdir(parents=True)
    (folder / "pipeline_parallel" / "schedules.py").write_text(CODE)
    (folder / "flags.md").write_text("--micro-batch-size\nmicro_batch_sizes\nmy_micro_batch_size\n")
    (tmp_path / "site" / "secret.py").write_text("micro_batch_size")
    (folder / "out.py").symlink_to(tmp_path / "site" / "secret.py")
    return folder


def cited(file: str, line: int, mentions: str = "micro_batch_size") -> dict[str, Any]:
    return {"file": file, "line": line, "mentions": mentions}


def wrong(folder: Path | None, *places: dict[str, Any], required: bool = True, **more: Any) -> list[str]:
    given = {"arguments": {"micro_batch_size": 4}, "citations": list(places), **more}
    return citations.problems(hypothesis(**given), Source(str(folder)).lines if folder else None, required=required)


@pytest.mark.parametrize("file", ["pipeline_parallel/schedules.py", "megatron/core/pipeline_parallel/schedules.py"])
@pytest.mark.parametrize("line", [15, 20, 25])
def test_a_place_that_mentions_the_argument_within_five_lines_holds(source: Path, file: str, line: int) -> None:
    assert wrong(source, cited(file, line)) == []


@pytest.mark.parametrize("name", ["micro_batch_size", "--micro-batch-size", "micro-batch-size"])
def test_an_argument_is_known_by_its_flag_too(source: Path, name: str) -> None:
    assert wrong(source, cited("flags.md", 1, name)) == []


@pytest.mark.parametrize(
    ("place", "said"),
    [
        (cited("pipeline_parallel/schedules.py", 14), "micro_batch_size does not stand within 5 lines of it"),
        (cited("pipeline_parallel/schedules.py", 31), "the file has 30 lines"),
        (cited("schedules.py", 20), "no such file in the pinned source"),
        (cited("pipeline_parallel", 1), "no such file in the pinned source"),
        (cited("../../secret.py", 1), "no such file in the pinned source"),
        (cited("out.py", 1), "no such file in the pinned source"),
        (cited("/etc/passwd", 1), "no such file in the pinned source"),
        (cited("a\0b.py", 1), "no such file in the pinned source"),
        (cited("pipeline_parallel/schedules.py", 20, "config"), "config is not what this hypothesis changes"),
        (cited("pipeline_parallel/schedules.py", 20, "batch"), "batch is not what this hypothesis changes"),
    ],
)
def test_a_place_that_says_something_else_is_named(source: Path, place: dict[str, Any], said: str) -> None:
    assert wrong(source, cited("pipeline_parallel/schedules.py", 20), place) == [f"{place['file']}:{place['line']}: {said}"]


def test_a_longer_name_is_no_mention(source: Path) -> None:
    (source / "flags.md").write_text("micro_batch_sizes\nmy_micro_batch_size\n")
    assert wrong(source, cited("flags.md", 1)) != []


def test_an_argument_needs_a_citation_and_a_variable_does_not(source: Path) -> None:
    assert "no citation" in wrong(source)[0]
    assert wrong(source, required=False) == []
    assert wrong(source, arguments={}, env={"MALLOC_ARENA_MAX": "2"}) == []


def test_without_a_source_nothing_is_needed_and_nothing_believed() -> None:
    assert wrong(None) == []
    assert wrong(None, cited("a.py", 1)) == ["a.py:1: this campaign has no pinned source to look it up in"]


def test_a_source_is_searched_by_pattern_and_never_outside(source: Path) -> None:
    found = Source(str(source))
    assert found.grep("micro_batch_size") == [
        "megatron/core/flags.md:2: micro_batch_sizes",
        "megatron/core/flags.md:3: my_micro_batch_size",
        "megatron/core/pipeline_parallel/schedules.py:20: rows = config.micro_batch_size",
    ]
    assert found.grep("micro_batch_size", under="pipeline_parallel", limit=1) == [
        "megatron/core/pipeline_parallel/schedules.py:20: rows = config.micro_batch_size"
    ]
    with pytest.raises(UserError, match="pattern: "):
        found.grep("(")


def test_an_unverifiable_citation_is_refused_and_the_model_is_told_in_its_next_turn(tmp_path: Path, source: Path) -> None:
    false = move("micro-batch", {"micro_batch_size": 4}, citations=[cited("pipeline_parallel/schedules.py", 2)])
    right = move("micro-batch", {"micro_batch_size": 4}, citations=[cited("pipeline_parallel/schedules.py", 20)])
    with serving(scripted([false], [MICRO], [right], [STOP])) as server:
        lab = laboratory(tmp_path / "lab")
        kit = replace(lab.kit(), source=str(source))
        begin(kit, born(server))
        calibrated = len(lab.replay.submitted)
        search(kit)
    history = lab.history()
    assert [v.decision for h in history.hypotheses() if (v := history.verdict(h.id))] == ["refuse", "refuse", "admit"]
    refused = [v.refusals()[0] for h in history.hypotheses()[:2] if (v := history.verdict(h.id))]
    assert [f.rule for f in refused] == ["citation", "citation"]
    assert "does not stand within 5 lines" in refused[0].reason
    assert refused[1].reason.startswith("no citation")
    assert len(lab.replay.submitted) == calibrated + 1
    assert [x.hypothesis for x in history.launches() if x.kind == "search"] == ["h03"]
    assert "refuse: citation: pipeline_parallel/schedules.py:2: micro_batch_size does not stand" in last_heard(server, 1)


def test_a_crash_between_the_move_and_its_refusal_does_not_let_it_through(tmp_path: Path, source: Path) -> None:
    with serving(scripted([MICRO], [STOP])) as server:
        lab = laboratory(tmp_path / "lab")
        begin(replace(lab.kit(), source=str(source)), born(server))
        with pytest.raises(PowerCut, match="before verdict h01"):
            hypothesize(replace(lab.kit(lives=4), source=str(source)), ID, "h01")
        assert lab.history().verdict("h01") is None
        kit = replace(lab.kit(), source=str(source))
        hypothesize(kit, ID, "h01")
        verdict = gate(kit, ID, "h01")
    assert verdict.decision == "refuse"
    assert verdict.findings[0].rule == "citation"
    assert [x for x in lab.history().launches() if x.kind == "search"] == []
