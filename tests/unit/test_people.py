"""Laws of what people say to a campaign: on record with their names, heard at the next step, never past the gate."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from book import Book
from lab import ID, LAYOUT, MICRO, UNCOVERED, Lab, begin, campaign, finish, play, search
from test_leader import ADMIT, REVIEW, book, searched, shipped

from attuner.core.errors import Refused, UserError
from attuner.core.events import History
from attuner.core.judgement import Note
from attuner.core.people import Directive, ReviewAnswer
from attuner.core.search import Stop
from attuner.launchers.replay import Row
from attuner.ledgers.memory import MemoryLedger
from attuner.policy import budget, leader, people, stopping
from attuner.ports import Brief
from attuner.proposals import Proposal, read_proposals
from attuner.proposers.manual import Manual
from attuner.steps import people as said
from attuner.steps import review
from attuner.steps.hypothesize import waits_for

FASTER = Row(match={"micro_batch_size": 4}, step_s=0.5)
LAYOUT_ROW = Row(match={"tensor_model_parallel_size": 1}, step_s=0.8)
BUCKET = Row(match={"bucket_size": 1000}, step_s=0.4)
REST = Row(step_s=1.0, jitter=0.005)
BY = {"by": "Ada", "why": "as agreed on Monday"}


def lab(tmp_path: Path, *rows: Row, **more: Any) -> Lab:
    return Lab(tmp_path, [*rows, REST], **more)


def words(made: Lab) -> MemoryLedger:
    """A ledger without the lease: another process, while the campaign runs."""
    return MemoryLedger(made.store, now=made.clock.now)


# ------------------------------------------------------------------------------------------------ queue, ban, budget


def test_a_queued_move_goes_first_and_through_the_same_gate(tmp_path: Path) -> None:
    made = lab(tmp_path, FASTER, LAYOUT_ROW)
    kit = made.kit()
    begin(kit, campaign(LAYOUT))
    lr = Proposal(arguments={"lr": 0.5}).hypothesis()
    said.queue(words(made), ID, lr, **BY)
    said.queue(words(made), ID, Proposal.model_validate(MICRO).hypothesis(), by="Bob")
    search(kit)
    history = made.history()
    assert [(h.by, h.group) for h in history.hypotheses()] == [("Ada", "open"), ("Bob", "micro-batch"), ("", "layout")]
    assert history.verdict("h01").decision == "refuse"  # type: ignore[union-attr]
    assert not [x for x in history.launches() if x.hypothesis == "h01"]
    assert history.leader() == next(x.id for x in history.launches() if x.hypothesis == "h02")


def test_a_queued_move_is_taken_up_once(tmp_path: Path) -> None:
    made = lab(tmp_path, FASTER)
    kit = made.kit()
    begin(kit, campaign())
    move = Proposal.model_validate(MICRO).hypothesis()
    assert said.queue(words(made), ID, move, request="form-1", **BY) == said.queue(words(made), ID, move, request="form-1", **BY)
    search(kit)
    assert len(made.history().hypotheses()) == 1


class Pretender:
    """A proposer that speaks in a person's name."""

    def ask(self, brief: Brief) -> Any:
        if brief.history.hypotheses():
            return Stop(reason="done", evidence=[f"h01 was {brief.history.verdict('h01').decision}"])  # type: ignore[union-attr]
        move = Proposal.model_validate(MICRO).hypothesis()
        return move.model_copy(update={"parent": brief.history.leader(), "by": "Ada", "asked": "queue-1"})

    def close(self) -> None:
        pass


def test_a_proposer_cannot_speak_in_a_persons_name(tmp_path: Path) -> None:
    made = lab(tmp_path, FASTER, proposer=Pretender())
    play(made.kit(), campaign())
    assert [(h.by, h.asked) for h in made.history().hypotheses()] == [("", "")]


def test_a_banned_lever_is_not_launched_whoever_asks_and_is_not_shown(tmp_path: Path) -> None:
    made = lab(tmp_path, FASTER)
    kit = made.kit()
    begin(kit, campaign(MICRO, {"group": "open", "arguments": {"micro_batch_size": 4}}))
    said.ban(words(made), ID, "micro-batch", **BY)
    search(kit)
    history = made.history()
    refusals = [history.verdict(h.id).findings[0].reason for h in history.hypotheses()]  # type: ignore[union-attr]
    assert all("banned by Ada: as agreed on Monday" in x for x in refusals)
    assert [x.kind for x in history.launches() if x.kind == "search"] == []


def test_a_ban_is_taken_back(tmp_path: Path) -> None:
    made = lab(tmp_path, FASTER)
    kit = made.kit()
    begin(kit, campaign(MICRO))
    with pytest.raises(UserError, match="not banned"):
        said.unban(words(made), ID, "micro-batch", **BY)
    said.ban(words(made), ID, "micro-batch", **BY)
    said.unban(words(made), ID, "micro-batch", **BY)
    search(kit)
    assert made.history().leader() != "l01"


def test_a_persons_budget_holds_from_then_on(tmp_path: Path) -> None:
    made = lab(tmp_path, FASTER)
    kit = made.kit()
    begin(kit, campaign(MICRO))
    history = made.history()
    with pytest.raises(UserError, match="are spent"):
        said.set_budget(words(made), ID, budget.spent(history) / 2, **BY)
    said.set_budget(words(made), ID, budget.spent(history), **BY)
    search(kit)
    assert made.history().stop().reason == "the budget is spent"  # type: ignore[union-attr]
    assert not made.history().hypotheses()


# ------------------------------------------------------------------------------------------- pause, finish, cancel


def test_a_paused_campaign_waits_before_its_next_move_and_says_for_whom(tmp_path: Path) -> None:
    made = lab(tmp_path, FASTER)
    kit = made.kit()
    begin(kit, campaign(MICRO))
    assert waits_for(kit, ID, "h01") == ""
    said.pause(words(made), ID, **BY)
    assert waits_for(kit, ID, "h01") == "paused by Ada: as agreed on Monday"
    said.go_on(words(made), ID, **BY)
    assert waits_for(kit, ID, "h01") == ""


def test_a_finished_search_ships_what_leads(tmp_path: Path) -> None:
    made = lab(tmp_path, FASTER)
    kit = made.kit()
    begin(kit, campaign(LAYOUT))
    said.queue(words(made), ID, Proposal.model_validate(MICRO).hypothesis(), by="Ada")

    class Ending(MemoryLedger):
        pass

    from attuner.steps.gate import gate, launch_of
    from attuner.steps.hypothesize import hypothesize

    hypothesize(kit, ID, "h01")
    gate(kit, ID, "h01")
    from lab import measured

    measured(kit, launch_of(made.history(), "h01"))
    said.finish(words(made), ID, **BY)
    search(kit)
    shipment = finish(kit)
    assert made.history().stop().reason == "finished by a person"  # type: ignore[union-attr]
    assert not shipment.kept_baseline


class Canceller:
    """A person who cancels while the first search launch runs."""

    def __init__(self, made: Lab) -> None:
        self.made = made

    def event(self, kind: str, key: str, record: Any) -> None:
        pass

    def progress(self, launch_id: str, phase: str, steps: int) -> None:
        if launch_id == "l06" and people.cancelled(self.made.history()) is None:
            said.cancel(words(self.made), ID, **BY)


def test_cancel_ends_the_job_settles_the_charge_and_keeps_the_baseline(tmp_path: Path) -> None:
    import dataclasses

    made = Lab(tmp_path, [Row(match={"micro_batch_size": 4}, step_s=500.0), REST])
    kit = dataclasses.replace(made.kit(), watch=Canceller(made))
    shipment = play(kit, campaign(MICRO, LAYOUT))
    history = made.history()
    settled = history.settled("l06", 1)
    assert settled is not None
    assert settled.released_at is not None
    assert settled.released_at - (settled.allocated_at or 0) < 4 * 500.0
    assert history.trial("l06").cause.endswith("cancelled by Ada: as agreed on Monday")  # type: ignore[union-attr]
    assert history.trial("l06").gpu_hours == pytest.approx(settled.gpu_hours)  # type: ignore[union-attr]
    assert shipment.kept_baseline
    assert shipment.reason == "cancelled by Ada: as agreed on Monday"
    assert len(made.replay.submitted) == 6, "nothing was launched after it"
    with pytest.raises(UserError, match="was cancelled"):
        said.pause(words(made), ID, **BY)


def test_a_campaign_cancelled_while_it_calibrates_ends_without_an_error(tmp_path: Path) -> None:
    made = lab(tmp_path)
    kit = made.kit()
    from attuner.steps.birth import birth
    from attuner.steps.calibrate import calibrate, plan_calibration
    from attuner.steps.ship import ship

    birth(kit, campaign(MICRO))
    plan_calibration(kit, ID, number=1)
    said.cancel(words(made), ID, **BY)
    assert calibrate(kit, ID, number=1) is None
    search(kit)
    assert ship(kit, ID).reason.startswith("cancelled by Ada")


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
    assert "attempt 1 was refused" in leader.open_reviews(made.history, "l02")[0]
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
    rerun(words(made), ID, "ship", **BY)
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


# ---------------------------------------------------------------------------------------------------------- stops


def stopped(made: Book, *evidence: str, reason: str = "enough") -> list[str]:
    return stopping.problems(made.history, Stop(reason=reason, evidence=list(evidence)), "h09")


def test_a_stop_rests_on_what_the_records_say() -> None:
    made = book()
    searched(made, 1, 150.0, ADMIT, gain=0.5, gain_over_baseline=0.5)
    assert stopped(made, "l01 gave +50.0%, and nothing is left") == []
    assert stopped(made, "best left is inside the band 3.0%") == []
    assert "no such launch" in stopped(made, "l44 was worse")[0]
    assert "not what was measured" in stopped(made, "l01 gave +5%")[0]
    assert "the band is 3.0%" in stopped(made, "inside the band 30%")[0]
    assert "held against the records" in stopped(made, "I am tired")[0]
    assert "no evidence" in stopped(made, "  ")[0]


def test_a_model_that_can_make_no_move_needs_no_other_evidence() -> None:
    made = book()
    assert stopped(made, "0.9 of 1 dollars")
    made.put("note", stopping.no_dollars("h09"), Note(text="dollar limit"))
    assert stopped(made, "0.9 of 1 dollars") == []


class Quitter:
    """A proposer that gives up at once, for no reason that holds."""

    def __init__(self) -> None:
        self.asked = 0

    def ask(self, brief: Brief) -> Stop:
        self.asked += 1
        return Stop(reason="done", evidence=["everything was tried"])

    def close(self) -> None:
        pass


def test_a_stop_that_does_not_hold_is_refused_on_record_and_asked_again(tmp_path: Path) -> None:
    quitter = Quitter()
    made = lab(tmp_path, proposer=quitter)
    play(made.kit(), campaign())
    history = made.history()
    assert quitter.asked == stopping.TRIES
    assert history.stop().reason == "the proposer gives up, and its evidence does not hold"  # type: ignore[union-attr]
    assert "stop refused" in history.find("note", "stop h01", Note).text  # type: ignore[union-attr]


def test_manual_stops_with_evidence_that_holds() -> None:
    made = book()
    searched(made, 1, 150.0, ADMIT)
    assert stopping.problems(made.history, Manual().ask(made.brief()), "h02") == []  # type: ignore[arg-type]


def test_manual_waits_for_a_person(tmp_path: Path) -> None:
    made = lab(tmp_path, FASTER, proposer=Manual())
    kit = made.kit()
    begin(kit, campaign(proposer={"name": "manual", "wait_h": 2.0}))
    assert "waits for a person's move" in waits_for(kit, ID, "h01")
    said.queue(words(made), ID, Proposal.model_validate(MICRO).hypothesis(), **BY)
    assert waits_for(kit, ID, "h01") == ""
    made.clock.sleep(3 * 3600)
    search(kit)
    assert made.history().leader() == "l06"
    assert "nobody proposed" in made.history().stop().reason  # type: ignore[union-attr]


# --------------------------------------------------------------------------------------------------------- records


def test_words_are_masked_and_bounded(tmp_path: Path) -> None:
    made = lab(tmp_path)
    kit = made.kit()
    begin(kit, campaign())
    done = said.pause(words(made), ID, by="Ada", why="token hf_abcdefghijklmnopqrstuvwxyz " + "x" * 5000)
    assert "hf_abc" not in done.why
    assert len(done.why) <= said.MAX_WORDS


def test_a_file_of_moves_is_read_and_what_is_wrong_in_it_is_one_line(tmp_path: Path) -> None:
    file = tmp_path / "moves.yaml"
    file.write_text("- {group: micro-batch, arguments: {micro_batch_size: 4}}\n- {arguments: {bucket_size: 5}, title: bigger}\n")
    assert [(m.group, m.title) for m in read_proposals(file)] == [("micro-batch", "micro_batch_size=4"), ("open", "bigger")]
    file.write_text("- {group: micro-batch, argument: {}}\n- {arguments: {bucket_size: 5}}\n")
    with pytest.raises(UserError, match=r"moves.yaml: move 1: argument"):
        read_proposals(file)


def test_without_a_lease_only_peoples_words_are_appended(tmp_path: Path) -> None:
    made = lab(tmp_path)
    kit = made.kit()
    begin(kit, campaign())
    with pytest.raises(Refused, match="no lease is held"):
        words(made).append(ID, "budget", "x", Directive(act="pause", by="Ada"))
    assert History(words(made).history(ID)).events
