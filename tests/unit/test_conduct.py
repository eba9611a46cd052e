"""Conduct: one group at a time, one argument when open, nothing failed again unchanged, ten empty moves at most."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from book import Book, hypothesis
from lab import LEVERS

from attuner.config import load_levers
from attuner.core.errors import Refused, UserError
from attuner.policy import conduct

FORCES = [{**LEVERS[2], "forces": {"recompute_granularity": ["recompute_method", "env:RECOMPUTE"]}}, *LEVERS]
POINT = {"group": "point", "arguments": {"micro_batch_size": 4, "tensor_model_parallel_size": 1, "recompute_granularity": None}}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"group": "layout", "arguments": {"tensor_model_parallel_size": 1, "pipeline_model_parallel_size": 2}},
        {"group": "open", "arguments": {"anything": 1}},
        {"group": "open", "arguments": {}, "env": {"X": "1"}},
    ],
)
def test_one_group_or_one_open_argument_may_change(changes: dict[str, Any]) -> None:
    conduct.check_group(hypothesis(**changes), LEVERS)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"arguments": {}}, "changes nothing"),
        ({"arguments": {"micro_batch_size": 4, "tensor_model_parallel_size": 1}}, "one group at a time"),
        ({"env": {"X": "1"}}, "env:X is not part of lever group"),
        ({"group": "nowhere"}, "no lever group nowhere; known: .*open"),
        ({"group": "open", "arguments": {"a": 1, "b": 2}}, "`open` changes one"),
        ({"group": "open", "arguments": {"a": 1}, "env": {"X": "1"}}, "`open` changes one"),
        ({"group": "open", "arguments": {"a": "x" * 201}}, "longer than 200"),
        ({"group": "open", "arguments": {}, "env": {"X": "y" * 201}}, "longer than 200"),
    ],
)
def test_anything_else_is_refused_with_its_reason(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(Refused, match=words):
        conduct.check_group(hypothesis(**changes), LEVERS)


def test_a_candidate_is_its_parent_with_the_change() -> None:
    book = Book()
    book.ran("l01", kind="calibrate")
    made = conduct.candidate(book.history, hypothesis(env={"X": "1"}))
    assert made == book.campaign.baseline.changed({"micro_batch_size": 4}, {"X": "1"})


@pytest.mark.parametrize("parent", ["l01", "l99"])
def test_a_parent_that_never_ran_is_refused(parent: str) -> None:
    book = Book()
    book.launch("l01")
    with pytest.raises(Refused, match=f"parent {parent} is not a finished baseline or search launch"):
        conduct.candidate(book.history, hypothesis(parent=parent))


def test_an_open_argument_carries_what_it_forces() -> None:
    granularity = {"recompute_granularity": "full", "recompute_method": "uniform"}
    conduct.check_group(hypothesis(group="open", arguments=granularity), FORCES)
    conduct.check_group(hypothesis(group="open", arguments={"recompute_granularity": "full"}, env={"RECOMPUTE": "1"}), FORCES)
    for more in ({"micro_batch_size": 4}, {"lr": 1}):
        with pytest.raises(Refused, match="`open` changes one argument or variable and what it forces"):
            conduct.check_group(hypothesis(group="open", arguments={**granularity, **more}), FORCES)
    with pytest.raises(Refused, match="`open` changes one"):
        # forcing goes one way: the method alone forces nothing that stands beside it
        conduct.check_group(hypothesis(group="open", arguments={"recompute_method": "uniform"}, env={"RECOMPUTE": "1"}), FORCES)


def test_forces_is_an_argument_with_a_list(tmp_path: Path) -> None:
    (tmp_path / "lab").mkdir()
    for wrong in (["a"], {"a": "b"}, {"a": []}):
        (tmp_path / "lab" / "levers.yaml").write_text(yaml.safe_dump([{**LEVERS[0], "forces": wrong}]))
        with pytest.raises(UserError, match="lever micro-batch: forces: is an argument with the list"):
            load_levers(tmp_path, "lab")


@pytest.mark.parametrize("name", conduct.BLACK_BOX)
def test_a_black_box_sets_any_values_of_the_catalog_at_once(name: str) -> None:
    conduct.check_group(hypothesis(**POINT), LEVERS, proposer=name)


@pytest.mark.parametrize("name", ["", "catalog", "claude", "scripted"])
def test_a_proposer_that_knows_levers_may_not_set_a_point(name: str) -> None:
    with pytest.raises(Refused, match=r"`point` is for black-box proposers .random, tpe, fixed_knobs.*one group at a time"):
        conduct.check_group(hypothesis(**POINT), LEVERS, proposer=name)


@pytest.mark.parametrize("more", [{"arguments": {"lr": 0.1, "micro_batch_size": 2}}, {"env": {"X": "1"}}])
def test_a_point_stays_inside_the_catalog(more: dict[str, Any]) -> None:
    with pytest.raises(Refused, match="is in no lever group"):
        conduct.check_group(hypothesis(**{**POINT, **more}), LEVERS, proposer="tpe")


@pytest.mark.parametrize("name", ["", *conduct.BLACK_BOX])
def test_a_black_box_obeys_the_other_laws_of_conduct(name: str) -> None:
    with pytest.raises(Refused, match="changes nothing"):
        conduct.check_group(hypothesis(**{**POINT, "arguments": {}}), LEVERS, proposer=name)
    two = {"micro_batch_size": 4, "tensor_model_parallel_size": 1}
    with pytest.raises(Refused, match="one group at a time"):
        conduct.check_group(hypothesis(arguments=two), LEVERS, proposer=name)


def test_a_recipe_that_was_stopped_early_is_not_launched_again_unchanged() -> None:
    book = Book()
    recipe = book.recipe(micro_batch_size=4)
    book.ran("l01", status="stopped_early", recipe=recipe)
    with pytest.raises(Refused, match="was stopped early in l01"):
        conduct.check_recipe(book.history, recipe)
    conduct.check_recipe(book.history, book.recipe(micro_batch_size=2))


@pytest.mark.parametrize("status", ["oom", "hang", "crash"])
def test_a_recipe_that_failed_is_not_launched_again_unchanged(status: str) -> None:
    book = Book()
    recipe = book.recipe(micro_batch_size=4)
    book.ran("l01", status=status, recipe=recipe)
    with pytest.raises(Refused, match=f"failed in l01 .{status}."):
        conduct.check_recipe(book.history, recipe)
    conduct.check_recipe(book.history, book.recipe(micro_batch_size=2))


@pytest.mark.parametrize("kind", ["check", "prepare"])
@pytest.mark.parametrize("status", ["oom", "crash", "hang"])
def test_a_failed_check_or_checkpoint_says_nothing_about_its_recipe(kind: str, status: str) -> None:
    book = Book()
    recipe = book.recipe(micro_batch_size=4)
    book.ran("l01", status=status, recipe=recipe, kind=kind)
    conduct.check_recipe(book.history, recipe)


@pytest.mark.parametrize("kind", ["check", "prepare"])
def test_a_recipe_whose_machine_was_lost_did_not_fail(kind: str) -> None:
    book = Book()
    recipe = book.recipe(micro_batch_size=4)
    book.ran("l01", status="infrastructure", recipe=recipe, kind=kind)
    assert conduct.failed_before(book.history, recipe) == ""
    conduct.check_recipe(book.history, recipe)


def test_a_recipe_whose_machine_was_lost_in_search_may_run_again() -> None:
    book = Book()
    recipe = book.recipe(micro_batch_size=4)
    book.ran("l01", status="infrastructure", recipe=recipe)
    conduct.check_recipe(book.history, recipe)


@pytest.mark.parametrize("kind", ["search", "calibrate"])
def test_a_measured_recipe_is_not_measured_again_in_the_search(kind: str) -> None:
    book = Book()
    recipe = book.recipe(micro_batch_size=4)
    book.ran("l01", recipe=recipe, kind=kind)
    with pytest.raises(Refused, match="was measured in l01 already"):
        conduct.check_recipe(book.history, recipe)


def test_the_streak_counts_moves_since_the_last_launch() -> None:
    book = Book()
    assert conduct.no_launch_streak(book.history) == 0
    book.suppose("h01")
    book.suppose("h02")
    assert conduct.no_launch_streak(book.history) == 2
    book.launch("l05", hypothesis="h02")
    assert conduct.no_launch_streak(book.history) == 0
    book.suppose("h03")
    assert conduct.no_launch_streak(book.history) == 1
    book.launch("l06", hypothesis="h03", kind="check")
    assert conduct.no_launch_streak(book.history) == 1


@pytest.mark.parametrize("kind", ["prepare", "check", "remeasure"])
def test_only_a_baseline_or_a_searched_launch_is_a_parent(kind: str) -> None:
    book = Book()
    book.ran("l01", kind=kind, recipe=book.recipe(micro_batch_size=4, tensor_model_parallel_size=1))
    with pytest.raises(Refused, match="parent"):
        conduct.candidate(book.history, hypothesis(group="recompute", arguments={"recompute_granularity": None}))
