"""Who may ship: the fastest admitted launch above the band, under the campaign's rule for open reviews."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from book import Book
from lab import campaign

from attuner.core.judgement import Calibration, Score
from attuner.policy.leader import open_reviews, shippable, waiting
from attuner.steps.ship import decide_shipment

REVIEW = {"rule": "uncovered", "decision": "review", "key": "x", "reason": "a person must look"}
ADMIT = {"rule": "LAB-TST-002", "decision": "admit", "key": "x", "reason": "placement"}


def book(**gate: Any) -> Book:
    made = Book(campaign(gate=gate))
    given = {"round": 1, "launches": ["l00"], "mean": 100.0, "sigma": 0.0, "band": 0.03, "busy": False}
    made.put("calibration", "1", Calibration.model_validate({**given, "launch_gpu_hours": 1.0, "step0_loss": 5.0}))
    return made


def searched(made: Book, n: int, speed: float, *findings: dict[str, Any], kind: str = "search", **score: Any) -> str:
    recipe = made.recipe(micro_batch_size=n + 1)
    made.suppose(f"h{n:02d}")
    worst = "review" if REVIEW in findings else "admit"
    made.verdict(f"h{n:02d}", worst, recipe, *findings)
    made.ran(f"l{n:02d}", recipe=recipe, hypothesis=f"h{n:02d}", kind=kind)
    said = {"launch_id": f"l{n:02d}", "attempt": 1, "valid": True, "decision": "admit", "tokens_per_s_per_gpu": speed}
    leads = speed > made.history.leader_speed() * 1.03
    made.put("score", f"l{n:02d}", Score.model_validate({**said, "new_leader": leads, **score}))
    return f"l{n:02d}"


def shipped(made: Book) -> str:
    found = shippable(made.history)
    return found.launch_id if found else ""


def test_the_fastest_admitted_launch_ships() -> None:
    made = book()
    searched(made, 1, 150.0)
    searched(made, 2, 200.0)
    searched(made, 3, 180.0)
    assert shipped(made) == "l02"


@pytest.mark.parametrize("speed", [103.0, 100.0, 50.0])
def test_nothing_inside_the_band_ships(speed: float) -> None:
    made = book()
    searched(made, 1, speed)
    assert shipped(made) == ""


@pytest.mark.parametrize("score", [{"valid": False}, {"decision": "refuse"}, {"decision": "review"}, {"new_leader": False}])
def test_what_is_invalid_or_refused_never_ships(score: dict[str, Any]) -> None:
    made = book()
    searched(made, 1, 500.0, **score)
    assert shipped(made) == ""


@pytest.mark.parametrize("kind", ["calibrate", "remeasure", "check", "prepare"])
def test_only_a_searched_launch_ships(kind: str) -> None:
    made = book()
    searched(made, 1, 500.0, kind=kind)
    assert shipped(made) == ""


def test_before_ship_passes_over_an_open_review() -> None:
    made = book(review="before_ship")
    searched(made, 1, 150.0, ADMIT)
    searched(made, 2, 200.0, ADMIT, REVIEW)
    assert shipped(made) == "l01"
    assert len(open_reviews(made.history, "l02")) == 1


def test_report_only_ships_it_and_lists_it() -> None:
    made = book(review="report_only")
    searched(made, 1, 150.0, ADMIT)
    searched(made, 2, 200.0, ADMIT, REVIEW)
    assert shipped(made) == "l02"


def test_a_review_of_the_second_look_is_open_too() -> None:
    made = book()
    searched(made, 1, 200.0, ADMIT)
    made.verdict("l01#1", "review", "", REVIEW)
    assert shipped(made) == ""


def test_a_review_of_the_third_look_is_open_too() -> None:
    made = book()
    searched(made, 1, 200.0, ADMIT)
    made.verdict("l01#1:update", "review", "", REVIEW)
    assert shipped(made) == ""
    assert len(open_reviews(made.history, "l01")) == 1


def test_nothing_ships_before_a_calibration() -> None:
    assert shippable(Book().history) is None


def test_a_launch_whose_first_look_refused_never_ships() -> None:
    made = book()
    searched(made, 1, 200.0)
    recipe = made.history.launches()[0].recipe
    made.verdict("h01", "refuse", recipe, {**ADMIT, "decision": "refuse"})
    assert shipped(made) == ""


def test_a_launch_whose_verdict_is_on_another_recipe_or_missing_never_ships() -> None:
    made = book()
    searched(made, 1, 200.0)
    assert shipped(made) == "l01"
    made.verdict("h01", "admit", made.campaign.baseline.digest(), ADMIT)
    assert shipped(made) == ""
    made = book()
    searched(made, 1, 200.0)
    made.events = [e for e in made.events if e.kind != "verdict"]
    assert shipped(made) == ""


def test_a_launch_that_did_not_take_the_lead_from_a_shippable_leader_does_not_ship() -> None:
    made = book()
    searched(made, 1, 200.0, ADMIT, new_leader=True)
    searched(made, 2, 201.0, ADMIT, new_leader=False)
    assert shipped(made) == "l01"


def test_what_beats_the_baseline_but_waits_is_named_as_the_reason(tmp_path: Path) -> None:
    made = book()
    searched(made, 1, 200.0, REVIEW, decision="review", new_leader=False)
    searched(made, 2, 101.0, REVIEW, decision="review", new_leader=False)
    assert [s.launch_id for s in waiting(made.history)] == ["l01"]
    found = decide_shipment(made.history, tmp_path)
    assert found.kept_baseline
    assert "waits for a person's review" in found.reason
    assert found.open_reviews


def test_without_anything_faster_nothing_waits(tmp_path: Path) -> None:
    made = book()
    searched(made, 1, 101.0, REVIEW, decision="review", new_leader=False)
    searched(made, 2, 300.0, REVIEW, decision="refuse", new_leader=False)
    assert waiting(made.history) == []
    assert decide_shipment(made.history, tmp_path).reason == "no launch beat the baseline by more than the band"
