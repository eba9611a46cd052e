"""The catalog proposer: reads where the leader's step goes, learns from its tries, gives up with evidence."""

from __future__ import annotations

from typing import Any

import pytest
from book import Book
from lab import ROOT, rank_step, resolved

from attuner.config import load_levers
from attuner.core.base import Value
from attuner.core.judgement import Calibration, Score
from attuner.core.recipe import EffectiveConfig
from attuner.core.run import StepBreakdown
from attuner.core.search import Hypothesis, Stop
from attuner.proposers.catalog import Catalog, group_scale

LEVERS = load_levers(ROOT / "rules", "mcore")
COMM = {"compute_s": 0.1, "host_s": 0.1, "comm:all_gather": 0.4, "comm:reduce_scatter": 0.4}
HOST = {"compute_s": 0.3, "host_s": 0.6, "idle_s": 0.1}
IDLE = {"compute_s": 0.005, "host_s": 0.005, "idle_s": 0.99}
FINAL: dict[str, Value] = {
    **{
        "expert_model_parallel_size": 1,
        "expert_tensor_parallel_size": 1,
        "sequence_parallel": True,
        "overlap_grad_reduce": False,
    },
    **{"optimizer_cpu_offload": False, "moe_token_dispatcher_type": "alltoall", "recompute_method": "uniform"},
}


def final(book: Book, recipe: str, **facts: Value) -> None:
    """Write down the final values of a recipe, with what the real stack would add."""
    made = resolved(book.history.recipe(recipe))
    arguments = {**FINAL, **made.arguments}
    facts = {**made.facts, "data_parallel_size": 1, "num_microbatches": 8, **facts}
    book.put("effective", recipe, EffectiveConfig(arguments=arguments, env={}, facts=facts))


def calibrated(shares: dict[str, float], **facts: Value) -> Book:
    """A campaign after its calibration: five runs, the last of them profiled."""
    book = Book()
    base = book.campaign.baseline.digest()
    final(book, base, **facts)
    names = [f"l{n:02d}" for n in range(1, 6)]
    for name in names:
        book.ran(name, kind="calibrate", recipe=base)
    book.put("breakdown", "l05", StepBreakdown(launch_id="l05", rank_steps=[rank_step(**shares)]))
    given = {"round": 1, "launches": names, "mean": 100.0, "sigma": 0.0, "band": 0.03, "busy": False}
    book.put("calibration", "1", Calibration.model_validate({**given, "launch_gpu_hours": 1.0, "step0_loss": 5.0}))
    return book


def ask(book: Book, number: int = 1) -> Hypothesis | Stop:
    return Catalog().ask(book.brief(LEVERS, f"h{number:02d}"))


def moved(found: Hypothesis | Stop) -> Hypothesis:
    assert isinstance(found, Hypothesis), found
    return found


def tried(book: Book, found: Hypothesis, status: str = "ok", *, gain: float = 0.0, leads: bool = False) -> str:
    """Play a hypothesis to its end by hand; return its launch id."""
    number = len(book.history.launches()) + 1
    book.put("hypothesis", found.id, found)
    parent = book.history.launch(found.parent)
    assert parent is not None
    recipe = book.history.recipe(parent.recipe).changed(found.arguments)
    book.put("recipe", recipe.digest(), recipe)
    final(book, recipe.digest())
    launch_id = f"l{number:02d}"
    book.ran(launch_id, recipe=recipe.digest(), hypothesis=found.id, status=status)
    if status == "ok":
        said = {"launch_id": launch_id, "attempt": 1, "valid": True, "decision": "admit", "gain": gain, "new_leader": leads}
        book.put("score", launch_id, Score.model_validate({**said, "tokens_per_s_per_gpu": 100.0 * (1 + gain)}))
    return launch_id


def test_exposed_communication_is_answered_by_the_layout_first() -> None:
    found = moved(ask(calibrated(COMM)))
    assert found.group == "layout"
    assert found.bottleneck.startswith("exposed_comm:")
    assert found.predicted_gain > 0.5


def test_host_time_is_answered_by_the_micro_batch_first() -> None:
    found = moved(ask(calibrated(HOST)))
    assert found.group == "micro-batch"
    assert found.bottleneck == "host"
    assert found.arguments == {"micro_batch_size": 4}


def test_a_hypothesis_names_parent_bottleneck_mechanism_and_prediction() -> None:
    found = moved(ask(calibrated(HOST), 7))
    assert (found.id, found.parent) == ("h07", "l01")
    assert found.mechanism
    assert found.predicted_error > 0


def test_a_step_that_no_lever_eases_stops_with_the_best_that_was_left() -> None:
    found = ask(calibrated(IDLE))
    assert isinstance(found, Stop)
    assert any(words.startswith("best left: ") for words in found.evidence)
    assert any("band 3.0%" in words for words in found.evidence)


def test_without_any_option_left_it_stops_and_says_so() -> None:
    found = Catalog().ask(calibrated(HOST).brief([], "h01"))
    assert isinstance(found, Stop)
    assert "no option of the catalog is left" in found.evidence


def test_an_option_is_offered_only_where_its_conditions_hold() -> None:
    found = moved(ask(calibrated(HOST, num_microbatches=2)))
    assert found.arguments != {"micro_batch_size": 4}


def test_a_layout_out_of_memory_is_tried_again_with_recompute_on_top_of_it() -> None:
    book = calibrated(COMM)
    first = moved(ask(book))
    plain = {"recompute_granularity": None}
    first = first.model_copy(update={"arguments": {**first.arguments, **plain}})
    failed = tried(book, first, "oom")
    second = moved(ask(book, 2))
    assert second.parent == failed
    assert second.group == "recompute"
    assert second.arguments["recompute_granularity"] in ("full", "selective")
    assert second.predicted_gain < first.predicted_gain


@pytest.mark.parametrize("status", ["hang", "crash", "infrastructure"])
def test_any_other_failure_is_left_alone(status: str) -> None:
    book = calibrated(COMM)
    failed = tried(book, moved(ask(book)), status)
    assert moved(ask(book, 2)).parent != failed


def walk(shares: dict[str, float], outcome: Any, limit: int = 40) -> list[Hypothesis]:
    """Ask until it stops."""
    book, found = calibrated(shares), []
    for number in range(1, limit):
        move = ask(book, number)
        if isinstance(move, Stop):
            return found
        found.append(move)
        outcome(book, move)
    raise AssertionError("it never stops")


def keys(moves: list[Hypothesis]) -> list[str]:
    return [f"{m.parent} {sorted(m.arguments.items(), key=str)}" for m in moves]


@pytest.mark.parametrize("status", ["ok", "oom", "crash"])
def test_no_recipe_is_asked_for_twice_and_it_ends(status: str) -> None:
    recipes: list[str] = []

    def outcome(book: Book, move: Hypothesis) -> None:
        tried(book, move, status, gain=-0.01)
        recipes.append(book.history.launches()[-1].recipe)

    moves = walk({**HOST, "comm:all_gather": 0.5}, outcome)
    assert moves
    assert len(recipes) == len(set(recipes))


def test_a_refused_recipe_is_not_asked_for_again() -> None:
    def outcome(book: Book, move: Hypothesis) -> None:
        parent = book.history.launch(move.parent)
        assert parent is not None
        book.put("hypothesis", move.id, move)
        book.verdict(move.id, "refuse", book.history.recipe(parent.recipe).changed(move.arguments).digest())

    moves = walk(HOST, outcome)
    assert len(keys(moves)) == len(set(keys(moves)))


def test_a_try_that_lost_halves_the_groups_next_prediction() -> None:
    book = calibrated(HOST)
    first = moved(ask(book))
    tried(book, first, gain=-0.02)
    assert group_scale(book.history, first.group) == 0.5
    assert group_scale(book.history, "layout") == 1.0


def test_a_try_that_gave_more_than_predicted_raises_the_groups_next_prediction() -> None:
    book = calibrated(HOST)
    first = moved(ask(book))
    tried(book, first, gain=4 * first.predicted_gain, leads=True)
    assert group_scale(book.history, first.group) == pytest.approx(2**0.5)


def test_the_next_move_starts_from_the_new_leader() -> None:
    book = calibrated({**HOST, "comm:all_gather": 0.5})
    leader = tried(book, moved(ask(book)), gain=0.5, leads=True)
    assert moved(ask(book, 2)).parent == leader
