"""Laws of reviews: what a person admits may ship, what nobody admits may not, and no word passes a refusal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from book import Book
from lab import ID, MICRO, UNCOVERED, begin, campaign, finish, play, search
from people_lab import BUCKET, BY, FASTER, lab, words
from test_leader import ADMIT, REVIEW, book, searched, shipped

from attuner.core.errors import UserError
from attuner.core.people import Invalidated, ReviewAnswer
from attuner.policy import leader, people
from attuner.steps import people as said
from attuner.steps import review

# ------------------------------------------------------------------------------------------------------- reviews


def answered(made: Book, launch_id: str, decision: str, **more: Any) -> None:
    history = made.history
    launch = history.launch(launch_id)
    assert launch is not None
    body = {"launch_id": launch_id, "recipe": launch.recipe, "decision": decision, "by": "Ada", "why": "I looked"}
    items = list(people.all_items(history, launch_id))
    made.put("review", launch_id, ReviewAnswer.model_validate({**body, "items": items, **more}))


def test_what_a_person_admits_may_ship() -> None:
    made = book()
    searched(made, 1, 150.0, ADMIT)
    searched(made, 2, 200.0, REVIEW)
    assert shipped(made) == "l01"
    answered(made, "l02", "admit")
    assert shipped(made) == "l02"
    assert leader.open_reviews(made.history, "l02") == []


@pytest.mark.parametrize("decision", ["refuse", "unanswered"])
def test_what_nobody_admits_does_not(decision: str) -> None:
    made = book()
    searched(made, 1, 150.0, ADMIT)
    searched(made, 2, 200.0, REVIEW)
    answered(made, "l02", decision)
    assert shipped(made) == "l01"


def test_what_a_person_refuses_does_not_ship_even_where_reviews_are_only_reported() -> None:
    made = book(review="report_only")
    searched(made, 2, 200.0, REVIEW)
    assert shipped(made) == "l02"
    answered(made, "l02", "refuse")
    assert shipped(made) == ""


def test_an_answer_covers_only_what_was_open_when_it_was_given() -> None:
    made = book()
    searched(made, 2, 200.0, REVIEW)
    answered(made, "l02", "admit", items=[])
    assert shipped(made) == ""


def look(made: Book, launch_id: str, recipe: str, *, deviation: float | None, decision: str = "review") -> None:
    finding = {"rule": "TOL-1", "decision": decision, "key": "loss", "reason": "between the limits", "deviation": deviation}
    made.verdict(f"{launch_id}#1", decision, recipe, finding)
    made.verdict(f"{launch_id}#1:update", "admit", recipe)


@pytest.mark.parametrize(("later", "covered"), [(0.02, True), (0.029, True), (0.031, False), (-0.04, False), (None, False)])
def test_a_measurement_is_covered_only_about_as_far_off_as_the_person_saw_it(later: float | None, covered: bool) -> None:
    made = book()
    searched(made, 2, 200.0, ADMIT, decision="review", new_leader=False)
    recipe = made.history.launch("l02").recipe  # type: ignore[union-attr]
    look(made, "l02", recipe, deviation=0.02)
    answered(made, "l02", "admit")
    assert shipped(made) == "l02", "what the looks left open may ship once a person admitted it"
    made.ran("l09", recipe=recipe, kind="remeasure")
    look(made, "l09", recipe, deviation=later)
    assert people.looks_stand(made.history, "l09") is covered


def test_a_refusal_of_a_look_is_not_for_a_person_to_admit() -> None:
    made = book()
    searched(made, 2, 200.0, REVIEW, decision="refuse", new_leader=False)
    recipe = made.history.launch("l02").recipe  # type: ignore[union-attr]
    look(made, "l02", recipe, deviation=9.0, decision="refuse")
    answered(made, "l02", "admit")
    assert shipped(made) == ""
    assert not people.looks_stand(made.history, "l02")


def test_a_refused_attempt_that_passes_when_run_again_waits_for_a_person() -> None:
    made = book()
    searched(made, 2, 200.0, ADMIT)
    recipe = made.history.launch("l02").recipe  # type: ignore[union-attr]
    look(made, "l02", recipe, deviation=9.0, decision="refuse")
    made.settle("l02", 1.0, number=2)
    from book import trial

    made.put("trial", "l02", trial(launch_id="l02", attempt=2))
    assert "l02#1 was refused" in leader.open_reviews(made.history, "l02")[0]
    assert shipped(made) == ""


def test_a_campaign_asks_for_what_would_ship_and_ships_it_once_admitted(tmp_path: Path) -> None:
    made = lab(tmp_path, BUCKET, FASTER)
    kit = made.kit()
    begin(kit, campaign(MICRO, {**UNCOVERED, "parent": "l01"}))
    search(kit)
    asked = review.question(kit, ID)
    assert asked is not None
    assert (asked.launch_id, asked.instead) == ("l07", "l06")
    assert "could not decide" in asked.text()
    said.answer(words(made), ID, "l07", "admit", **BY)
    assert review.question(kit, ID) is None
    assert finish(kit).launch_id == "l07"


def test_nobody_answers_and_the_best_without_open_review_ships(tmp_path: Path) -> None:
    made = lab(tmp_path, BUCKET, FASTER)
    kit = made.kit()
    begin(kit, campaign(MICRO, {**UNCOVERED, "parent": "l01"}))
    search(kit)
    review.unanswered(kit, ID, "l07", why="nobody answered within 24 h")
    assert review.question(kit, ID) is None
    assert finish(kit).launch_id == "l06"


def test_an_answer_after_the_shipment_decides_it_again(tmp_path: Path) -> None:
    from attuner.steps.rerun import rerun

    made = lab(tmp_path, BUCKET, FASTER)
    moves = (MICRO, {**UNCOVERED, "parent": "l01"})
    assert play(made.kit(), campaign(*moves)).launch_id == "l06"
    made.store.holders.clear()
    said.answer(words(made), ID, "l07", "admit", **BY)
    rerun(words(made), ID, "ship", rules_dir=made.rules, **BY)
    made.store.holders.clear()
    assert play(made.kit(), campaign(*moves)).launch_id == "l07"
    assert made.history().remeasurement().leader == "l07"  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("launch", "given", "kind", "what"),
    [
        ("l06", {"by": ""}, UserError, "say who you are"),
        ("l07", {"why": ""}, UserError, "give the reason"),
        ("l99", {}, UserError, "no such scored launch"),
        ("l06", {}, UserError, "nothing waits"),
    ],
)
def test_an_answer_that_cant_be_meant_is_one_line(
    tmp_path: Path, launch: str, given: dict[str, str], kind: type[Exception], what: str
) -> None:
    made = lab(tmp_path, BUCKET, FASTER)
    kit = made.kit()
    begin(kit, campaign(MICRO, {**UNCOVERED, "parent": "l01"}))
    search(kit)
    with pytest.raises(kind, match=what):
        said.answer(words(made), ID, launch, "admit", **{**BY, **given})


def test_the_last_word_about_a_recipe_holds_whichever_launch_it_was_said_of() -> None:
    made = book()
    searched(made, 2, 200.0, REVIEW)
    recipe = made.history.launch("l02").recipe  # type: ignore[union-attr]
    made.ran("l09", recipe=recipe, kind="remeasure")
    look(made, "l09", recipe, deviation=0.02)
    answered(made, "l02", "admit")
    answered(made, "l09", "admit")
    assert shipped(made) == "l02", "a second admit takes nothing of the first away"
    assert people.looks_stand(made.history, "l09")
    answered(made, "l02", "refuse")
    assert shipped(made) == ""
    answered(made, "l09", "unanswered")
    assert shipped(made) == "", "what nobody answered is no answer"


def test_a_refusal_that_a_rerun_set_aside_waits_for_a_person() -> None:
    made = book()
    searched(made, 2, 200.0, ADMIT)
    recipe = made.history.launch("l02").recipe  # type: ignore[union-attr]
    look(made, "l02", recipe, deviation=9.0, decision="refuse")
    body = {"step": "launch", "key": "l00", "by": "Ada", "why": "a busy baseline", "hides": ["verdict l02#1"], "after": 1}
    made.put("invalidated", "launch l00 1", Invalidated.model_validate(body))
    look(made, "l02", recipe, deviation=0.001, decision="admit")
    assert "was refused" in leader.open_reviews(made.history, "l02")[0]
    assert shipped(made) == ""
    answered(made, "l02", "admit")
    assert shipped(made) == "l02"


def test_a_proposers_title_stays_words_in_the_question() -> None:
    asked = review.Question(
        campaign_id=ID,
        launch_id="l07",
        title="<img src=x> [click](http://evil)\n# head",
        tokens_per_s_per_gpu=1.0,
        gain_over_baseline=0.5,
        instead="the baseline",
        items=["review  X-1  `a` <script>"],
    )
    text = asked.text()
    assert "\n# head" not in text
    assert "\\<img" in text
    assert "\\[click" in text
    assert "``review X-1 `a` <script>``" in text


@pytest.mark.parametrize("review", ["before_ship", "report_only"])
def test_a_refusal_that_was_run_away_waits_for_a_person_whatever_the_rule(review: str) -> None:
    made = book(review=review)
    searched(made, 2, 200.0, ADMIT)
    launch = made.history.launch("l02")
    assert launch is not None
    look(made, "l02", launch.recipe, deviation=0.06, decision="refuse")
    look(made, "l02", launch.recipe, deviation=0.001, decision="admit")  # a rerun judged it again
    assert shipped(made) == ""
    answered(made, "l02", "admit")
    assert shipped(made) == "l02"
