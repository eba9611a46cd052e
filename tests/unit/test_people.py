"""Laws of what people say to a campaign: on record with their names, heard at the next step, never past the gate."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from lab import ID, LAYOUT, MICRO, Lab, begin, campaign, finish, play, search
from people_lab import BY, FASTER, LAYOUT_ROW, REST, lab, words

from attuner.core.errors import Refused, UserError
from attuner.core.events import History
from attuner.core.people import Directive
from attuner.core.search import Stop
from attuner.launchers.replay import Row
from attuner.ledgers.memory import MemoryLedger
from attuner.policy import budget, people
from attuner.ports import Brief
from attuner.proposals import Proposal, read_proposals
from attuner.steps import people as said
from attuner.steps.hypothesize import waits_for

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
