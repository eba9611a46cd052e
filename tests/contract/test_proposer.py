"""The laws of a proposer, held by every adapter: it returns a Hypothesis or a Stop, and changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from book import Book
from lab import LAYOUT, MICRO, ROOT, campaign

from attuner.config import load_levers
from attuner.core.base import canonical_json
from attuner.core.errors import UserError
from attuner.core.judgement import Calibration
from attuner.core.search import Hypothesis, Stop
from attuner.ports import Brief, Proposer
from attuner.proposers.catalog import Catalog
from attuner.proposers.random_search import RandomSearch
from attuner.proposers.scripted import Scripted
from attuner.proposers.tpe import FixedKnobs, Tpe

MADE: dict[str, Callable[[], Proposer]] = {
    "catalog": Catalog,
    "fixed_knobs": FixedKnobs,
    "random": RandomSearch,
    "scripted": Scripted,
    "tpe": Tpe,
}


@pytest.fixture(params=sorted(MADE))
def proposer(request: pytest.FixtureRequest) -> Proposer:
    return MADE[request.param]()


def book(calibrated: bool = True) -> Book:
    spec = {"name": "scripted", "script": [MICRO, LAYOUT], "space": {"micro_batch_size": [1, 2, 4, 8]}}
    made = Book(campaign(proposer=spec))
    if calibrated:
        made.ran("l01", kind="calibrate")
        given = {"round": 1, "launches": ["l01"], "mean": 100.0, "sigma": 0.0, "band": 0.03, "busy": False}
        made.put("calibration", "1", Calibration.model_validate({**given, "launch_gpu_hours": 1.0, "step0_loss": 5.0}))
    return made


def brief(made: Book, next_id: str = "h01") -> Brief:
    return made.brief(load_levers(ROOT / "rules", "mcore"), next_id)


def frozen(given: Brief) -> str:
    events = [e.data() for e in given.history.events]
    return canonical_json([given.campaign.data(), given.levers, events, given.next_id, given.remaining_gpu_hours])


class TestProposer:
    """What the step `hypothesize` may rely on."""

    def test_it_returns_a_hypothesis_or_a_stop(self, proposer: Proposer) -> None:
        assert isinstance(proposer.ask(brief(book())), Hypothesis | Stop)

    def test_it_has_an_answer_to_an_empty_past(self, proposer: Proposer) -> None:
        assert isinstance(proposer.ask(brief(book(calibrated=False))), Hypothesis | Stop)

    def test_it_changes_nothing_of_what_it_was_given(self, proposer: Proposer) -> None:
        given = brief(book())
        before = frozen(given)
        proposer.ask(given)
        assert frozen(given) == before

    def test_the_same_past_gives_the_same_answer_even_after_a_crash(self, proposer: Proposer) -> None:
        first = proposer.ask(brief(book()))
        assert proposer.ask(brief(book())) == first
        assert type(proposer)().ask(brief(book())) == first

    def test_a_stop_carries_its_evidence(self, proposer: Proposer) -> None:
        made = book()
        for number in range(1, 30):
            move = proposer.ask(brief(made, f"h{number:02d}"))
            if isinstance(move, Stop):
                assert move.reason
                assert move.evidence
                return
            made.put("hypothesis", move.id, move)
            made.verdict(move.id, "refuse", made.campaign.baseline.changed(move.arguments).digest())
        pytest.fail("it never stops")

    def test_a_hypothesis_starts_from_a_launch_of_the_campaign(self, proposer: Proposer) -> None:
        move = proposer.ask(brief(book()))
        assert isinstance(move, Stop) or move.parent == "l01"


def scripted(*script: dict[str, Any]) -> Hypothesis | Stop:
    made = Book(campaign(*script))
    made.ran("l01", kind="calibrate")
    return Scripted().ask(brief(made))


def test_a_script_is_played_in_order_to_its_end() -> None:
    made, said = book(), []
    for number in (1, 2, 3):
        move = Scripted().ask(brief(made, f"h{number:02d}"))
        said.append(move)
        if isinstance(move, Hypothesis):
            made.put("hypothesis", move.id, move)
    assert [m.group for m in said if isinstance(m, Hypothesis)] == ["micro-batch", "layout"]
    assert isinstance(said[-1], Stop)


@pytest.mark.parametrize(
    ("move", "words"), [({**MICRO, "argumens": {}}, "argumens: unknown key"), ({"arguments": {}}, "group: is missing")]
)
def test_a_mistake_in_a_script_is_one_line(move: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=r"proposer\.script\[0\]: " + words) as error:
        scripted(move)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "move", [{**MICRO, "arguments": [1]}, {**MICRO, "predicted_gain": "much"}, {**MICRO, "arguments": {"x": {"y": 1}}}]
)
def test_a_wrong_type_in_a_script_is_one_line(move: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=r"proposer\.script\[0\]"):
        scripted(move)


def test_a_script_may_name_its_parent() -> None:
    found = scripted({**MICRO, "parent": "l07"})
    assert isinstance(found, Hypothesis)
    assert found.parent == "l07"
