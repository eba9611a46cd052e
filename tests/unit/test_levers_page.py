"""docs/levers.md is what the catalog says, whole, and `attuner rules levers` prints it."""

from __future__ import annotations

import json

import pytest
from lab import ROOT

from attuner.cli.levers import page, stacks
from attuner.cli.main import main
from attuner.config import load_levers

RULES = ROOT / "rules"


def test_the_committed_page_is_the_generated_one() -> None:
    said = "run `attuner rules levers --markdown > docs/levers.md`"
    assert (ROOT / "docs" / "levers.md").read_text(encoding="utf-8") == page(RULES), said


def test_the_page_holds_every_group_option_argument_and_source() -> None:
    text = page(RULES)
    for stack in stacks(RULES):
        assert f"## Stack `{stack}`" in text
        for lever in load_levers(RULES, stack):
            assert f"### `{lever['id']}`" in text
            assert all(source in text for source in lever["source"])
            assert all(f"`{name}`" in text for name in lever["changes"])
            assert all(f"| {option['title']} |" in text for option in lever["options"])


def test_conditions_and_values_are_put_in_words() -> None:
    text = page(RULES)
    rows = [x for x in text.splitlines() if x.startswith("| TP 2→1 |")]
    row = next(x for x in rows if "`tensor_model_parallel_size` is 2" in x)
    assert "`sequence_parallel` off" in row
    assert row.endswith("| + |")
    overlap = next(x for x in text.splitlines() if x.startswith("| overlap expert exchange |"))
    assert "(`pipeline_model_parallel_size` is 1 or `virtual_pipeline_model_parallel_size` ≥ 2)" in overlap
    assert "is one of [alltoall, flex]" in overlap


def test_the_catalog_is_printed_for_people_and_programs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--project", str(ROOT), "rules", "levers", "--stack", "mcore"]) == 0
    said = capsys.readouterr().out
    assert "mcore: layout" in said
    assert "megatron:" not in said
    assert main(["--project", str(ROOT), "rules", "levers", "--json"]) == 0
    assert set(json.loads(capsys.readouterr().out)) == set(stacks(RULES))
    assert main(["--project", str(ROOT), "rules", "levers", "--markdown"]) == 0
    assert capsys.readouterr().out == page(RULES)
