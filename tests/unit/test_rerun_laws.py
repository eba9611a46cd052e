"""Laws of reruns and people's words together: they never ship what a look refused, pay for nothing, or lose what ships."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from lab import ID, MICRO, UNCOVERED, Lab, begin, campaign, finish, measured, play, search
from people_lab import BUCKET, BY, FASTER, LAYOUT_ROW, REST, lab, words
from test_people_reviews import ADMIT, answered, book, searched, shipped

from attuner.core.errors import BudgetExceeded, UserError
from attuner.core.people import Invalidated
from attuner.core.search import Hypothesis, Stop
from attuner.launchers.replay import Row
from attuner.policy import budget, leader
from attuner.proposals import Proposal
from attuner.steps import people as said
from attuner.steps import review
from attuner.steps.remeasure import missing, plan_remeasure, remeasure
from attuner.steps.rerun import rerun
from attuner.steps.ship import ship


def again(made: Lab, step: str, key: str = "") -> Invalidated:
    made.store.holders.clear()
    return rerun(words(made), ID, step, key, **BY, rules_dir=made.rules)


def micro(loss: float = 5.0) -> Row:
    return Row(match={"micro_batch_size": 4}, step_s=0.5, losses=[loss])


def move(**changes: Any) -> Hypothesis:
    return Proposal.model_validate({**MICRO, **changes}).hypothesis()


# --------------------------------------------------------------------------------------- nothing ships that a look refused


def test_a_moved_baseline_judges_the_remeasurement_again_before_anything_ships(tmp_path: Path) -> None:
    made = Lab(tmp_path, [micro(5.09), REST])
    kit, born = made.kit(), campaign(MICRO)
    begin(kit, born)
    search(kit)
    made.table[0] = micro(4.91)
    assert not finish(kit).kept_baseline
    made.table[1] = Row(step_s=1.0, jitter=0.005, losses=[5.18])
    again(made, "launch", "l01")  # the leader's launch is 0.09 off now, its re-measurements 0.27
    shipment = play(made.kit(), born)
    assert shipment.kept_baseline
    score = made.history().score("l08")
    assert score is not None
    assert score.decision == "refuse"


@pytest.mark.parametrize("door", ["launch", "remeasure"])
def test_a_remeasurement_that_was_refused_is_not_forgotten_when_it_is_made_again(tmp_path: Path, door: str) -> None:
    made = Lab(tmp_path, [micro(), REST])
    kit, born = made.kit(), campaign(MICRO)
    begin(kit, born)
    search(kit)
    ids = plan_remeasure(kit, ID)
    bad = next(i for i in ids if (x := made.history().launch(i)) and x.purpose.startswith("leader"))
    for launch_id in ids:
        made.table[0] = micro(9.0 if launch_id == bad else 5.0)
        measured(kit, launch_id)
    remeasure(kit, ID)
    assert ship(kit, ID).kept_baseline
    made.table[0] = micro()
    again(made, door, bad if door == "launch" else "")
    shipment = play(made.kit(), born)
    assert shipment.kept_baseline
    assert [x.partition(":")[0] for x in shipment.open_reviews] == [f"review  rerun  {bad}#1 was refused"]
    said.answer(words(made), ID, "l06", "admit", **BY)
    again(made, "ship")
    assert not play(made.kit(), born).kept_baseline, "a person looked at it"


def test_an_admitted_refusal_does_not_cover_the_next_one() -> None:
    from book import trial

    made = book()
    searched(made, 2, 200.0, ADMIT)
    launch = made.history.launch("l02")
    assert launch is not None

    def attempt(number: int, deviation: float, decision: str) -> None:
        if number > 1:
            made.settle("l02", 1.0, number=number)
        made.put("trial", "l02", trial(launch_id="l02", attempt=number))
        finding = {"rule": "TOL-1", "decision": decision, "key": "loss", "reason": f"off by {deviation}", "deviation": deviation}
        made.verdict(f"l02#{number}", decision, launch.recipe, finding)
        made.verdict(f"l02#{number}:update", "admit", launch.recipe)

    attempt(1, 0.06, "refuse")
    attempt(2, 0.001, "admit")
    assert shipped(made) == ""
    answered(made, "l02", "admit")
    assert shipped(made) == "l02"
    attempt(3, 900.0, "refuse")
    attempt(4, 0.001, "admit")
    assert shipped(made) == ""
    assert [x.partition(":")[0] for x in leader.open_reviews(made.history, "l02")] == ["review  rerun  l02#3 was refused"]


# ------------------------------------------------------------------------------------------------ nobody waits for ever


def test_new_facts_after_an_admit_are_asked_about_once(tmp_path: Path) -> None:
    made = lab(tmp_path, BUCKET, FASTER)
    kit, born = made.kit(), campaign(MICRO, {**UNCOVERED, "parent": "l01"})
    begin(kit, born)
    search(kit)
    said.answer(words(made), ID, "l07", "admit", **BY)
    assert finish(kit).launch_id == "l07"
    for losses in ([9.0], [5.0]):
        made.table[0] = Row(match={"bucket_size": 1000}, step_s=0.4, losses=losses)
        again(made, "launch", "l07")
        kit = made.kit()
        begin(kit, born)
        search(kit)
    asked = review.question(kit, ID)
    assert asked is not None
    assert asked.launch_id == "l07"
    review.unanswered(kit, ID, "l07", why="run from a terminal")
    assert review.question(kit, ID) is None
    before = len(made.history().events)
    review.unanswered(kit, ID, "l07", why="run from a terminal")
    assert len(made.history().events) == before


# --------------------------------------------------------------------------------------- nothing is paid for nothing


@pytest.mark.parametrize("word", ["refuse", "admit"])
def test_a_word_during_the_remeasurement_measures_the_new_leader_before_it_is_judged(tmp_path: Path, word: str) -> None:
    made = lab(tmp_path, BUCKET, FASTER)
    kit = made.kit()
    begin(kit, campaign(MICRO, {**UNCOVERED, "parent": "l01"}))
    search(kit)
    if word == "refuse":
        said.answer(words(made), ID, "l07", "admit", **BY)
    else:
        review.unanswered(kit, ID, "l07", why="nobody")
    for number, launch_id in enumerate(plan_remeasure(kit, ID)):
        if number == 2:
            said.answer(words(made), ID, "l07", word, **BY)
        measured(kit, launch_id)
    assert remeasure(kit, ID) is None
    assert len(missing(made.history())) == 6
    for launch_id in plan_remeasure(kit, ID):
        measured(kit, launch_id)
    assert missing(made.history()) == []
    result = remeasure(kit, ID)
    assert result is not None
    assert not result.kept_baseline
    assert ship(kit, ID).launch_id == ("l06" if word == "refuse" else "l07")


def test_what_shipped_stays_shipped_where_the_budget_cannot_measure_its_successor(tmp_path: Path) -> None:
    made = lab(tmp_path, BUCKET, FASTER)
    kit, born = made.kit(), campaign(MICRO, {**UNCOVERED, "parent": "l01"})
    begin(kit, born)
    search(kit)
    review.unanswered(kit, ID, "l07", why="nobody")
    assert finish(kit).launch_id == "l06"
    history = made.history()
    said.set_budget(words(made), ID, budget.spent(history) + 2 * budget.reserve(history), **BY)
    said.answer(words(made), ID, "l07", "admit", **BY)
    before = len(made.history().events)
    with pytest.raises(BudgetExceeded, match=r"l06 stays shipped, because a new re-measurement reserves .* raise the budget"):
        again(made, "ship")
    with pytest.raises(BudgetExceeded, match="l06 stays shipped"):
        play(made.kit(), born)
    held = made.history().shipment()
    assert held is not None
    assert held.launch_id == "l06"
    assert not [e for e in made.history().events[before:] if e.kind == "invalidated"]


def test_a_search_that_is_taken_up_again_leaves_a_whole_remeasurement(tmp_path: Path) -> None:
    made = lab(tmp_path, Row(match={"tensor_model_parallel_size": 1}, step_s=0.3), FASTER)
    born = campaign(MICRO)
    assert play(made.kit(), born).launch_id == "l06"
    history = made.history()
    said.set_budget(words(made), ID, budget.spent(history) + 2 * budget.reserve(history), **BY)
    again(made, "hypothesize")
    said.queue(words(made), ID, Proposal.model_validate({**LAYOUT_MOVE}).hypothesis(), by="Ada")
    assert play(made.kit(), born).launch_id == "l06"


LAYOUT_MOVE = {"group": "layout", "arguments": {"tensor_model_parallel_size": 1}}


def test_a_rerun_of_a_calibration_run_does_not_enlarge_an_auto_budget(tmp_path: Path) -> None:
    made = Lab(tmp_path, [micro(), Row(step_s=900.0)])
    born = campaign(MICRO, budget={"gpu_hours": "auto"}, launch={"expected_s": 2000, "max_s": 9e4, "hang_s": 9e4})
    play(made.kit(), born)
    before = made.history()
    again(made, "launch", "l01")
    play(made.kit(), born)
    after = made.history()
    assert len(after.attempts("l01")) == 2
    assert budget.total(after) == budget.total(before)
    assert budget.reserve(after) == pytest.approx(budget.reserve(before), rel=0.05)


def test_a_launch_whose_attempt_is_open_is_not_run_again_beside_it(tmp_path: Path) -> None:
    made = lab(tmp_path, FASTER)
    play(made.kit(), campaign(MICRO))
    attempt = made.history().attempts("l06")[-1].model_copy(update={"number": 2, "submission_id": "x"})
    made.store.holders.clear()
    ledger = words(made)
    ledger.claim(ID)
    ledger.append(ID, "attempt", "l06#2", attempt)
    with pytest.raises(UserError, match="attempt 2 of l06 is under way"):
        again(made, "launch", "l06")


# ------------------------------------------------------------------------------------------ no word of a person is lost


class Thinker:
    """A proposer during whose thinking something happens."""

    def __init__(self, meanwhile: Any, answer: Hypothesis | Stop) -> None:
        self.meanwhile, self.answer = meanwhile, answer

    def ask(self, _brief: Any) -> Hypothesis | Stop:
        self.meanwhile()
        return self.answer

    def close(self) -> None:
        """Nothing was started."""


def test_a_move_that_is_queued_while_the_proposer_decides_to_stop_is_made(tmp_path: Path) -> None:
    made = lab(tmp_path, FASTER)
    stop = Stop(reason="nothing is left", evidence=["all tried"])
    queue = iter([lambda: said.queue(words(made), ID, move(), by="Ada")])
    made.proposer = Thinker(lambda: next(queue, lambda: None)(), stop)
    play(made.kit(), campaign())
    assert [h.by for h in made.history().hypotheses()] == ["Ada"]


def test_a_finish_that_is_said_while_the_proposer_thinks_launches_nothing_more(tmp_path: Path) -> None:
    made = lab(tmp_path, FASTER, LAYOUT_ROW)
    made.proposer = Thinker(lambda: said.finish(words(made), ID, **BY), move().model_copy(update={"parent": "l01"}))
    kit = made.kit()
    begin(kit, campaign())
    search(kit)
    assert [x.id for x in made.history().launches() if x.kind == "search"] == []
    stop = made.history().stop()
    assert stop is not None
    assert stop.reason == "finished by a person"


def test_a_search_that_has_ended_hears_no_move_and_says_so(tmp_path: Path) -> None:
    made = lab(tmp_path, FASTER)
    kit = made.kit()
    begin(kit, campaign())
    search(kit)
    for word in (said.pause, said.finish):
        with pytest.raises(UserError, match=r"has ended .*attuner rerun lab-0001 hypothesize"):
            word(words(made), ID, **BY)
    with pytest.raises(UserError, match="has ended"):
        said.queue(words(made), ID, move(), by="Ada")


def test_a_secret_in_a_persons_move_does_not_go_on_record(tmp_path: Path) -> None:
    made = lab(tmp_path, FASTER)
    kit = made.kit()
    begin(kit, campaign())
    token = "hf_" + "abcdefghijklmnopqrstuvwxyz"
    with pytest.raises(UserError, match=r"propose: env\.WANDB_API_KEY: looks like a secret"):
        said.queue(words(made), ID, move(env={"WANDB_API_KEY": "x"}), by="Ada")
    said.queue(words(made), ID, move(mechanism=f"with token {token}"), by="Ada")
    search(kit)
    finish(kit)
    assert token not in "".join(str(e.record) for e in made.history().events)
