"""What the probe says of the rows that a step consumed depends on the rows alone."""

from collections.abc import Callable
from typing import Any

import pytest

from .conftest import start

LAYOUTS: dict[str, tuple[int, dict[str, int], int]] = {
    "dp2": (2, {}, 1),
    "dp2, micro batch 2": (2, {}, 2),
    "cp2": (2, {"context_parallel_size": 2}, 2),
    "pp2": (2, {"pipeline_model_parallel_size": 2}, 4),
    "tp2": (2, {"tensor_model_parallel_size": 2}, 1),
    "pp2 cp2": (4, {"pipeline_model_parallel_size": 2, "context_parallel_size": 2}, 1),
}
EVERYTHING = {"inputs", "targets", "labels", "loss_mask", "rows_digest"}
SPOILT = {
    "rows in another order": set(),
    "tokens exchanged between rows": {"inputs", "rows_digest"},
    "targets exchanged between rows": {"rows_digest"},
    "mask rolled": {"targets", "loss_mask", "rows_digest"},
}
Told = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Told:
    def go(ranks: int, layout: dict[str, int], micro: int, spoil: str = "") -> dict[str, Any]:
        folder = tmp_path_factory.mktemp("rows") / "run"
        done = start(folder, {"layout": layout, "micro": micro, "spoil": spoil}, ranks, "tests.runner.probe_rows")
        assert done.status == 0, done.log[-3000:]
        found = done.json("rows.json")
        assert (found["missing"], found["why"]) == ({}, "")
        batch: dict[str, Any] = found["batch"]
        return batch

    return go


@pytest.fixture(scope="module")
def alone(told: Told) -> dict[str, Any]:
    return told(1, {}, 1)


@pytest.mark.slow
@pytest.mark.parametrize("name", LAYOUTS)
def test_no_layout_changes_what_was_consumed(told: Told, alone: dict[str, Any], name: str) -> None:
    assert told(*LAYOUTS[name]) == alone


@pytest.mark.slow
@pytest.mark.parametrize("spoil", SPOILT)
def test_every_exchange_is_seen_and_an_order_is_not(told: Told, alone: dict[str, Any], spoil: str) -> None:
    found = told(2, {}, 1, spoil)
    assert {key for key in EVERYTHING if found[key] != alone[key]} == SPOILT[spoil]
    assert (found["rows"], found["loss_tokens"], found["positions"]) == (8, alone["loss_tokens"], alone["positions"])


@pytest.mark.slow
def test_tensor_ranks_that_see_other_rows_are_found(told: Told) -> None:
    assert told(2, {"tensor_model_parallel_size": 2}, 1, "rank 1 sees others")["replicas_differ"] is True
