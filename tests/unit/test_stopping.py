"""Laws of a proposer's stop: it holds against the records, or the proposer is asked again."""

from __future__ import annotations

from pathlib import Path

from book import Book
from lab import ID, MICRO, begin, campaign, play, search
from people_lab import BY, FASTER, lab, words
from test_leader import ADMIT, book, searched

from attuner.core.judgement import Note
from attuner.core.search import Stop
from attuner.policy import stopping
from attuner.ports import Brief
from attuner.proposals import Proposal
from attuner.proposers.manual import Manual
from attuner.steps import people as said
from attuner.steps.hypothesize import waits_for

# ---------------------------------------------------------------------------------------------------------- stops


def stopped(made: Book, *evidence: str, reason: str = "enough") -> list[str]:
    return stopping.problems(made.history, Stop(reason=reason, evidence=list(evidence)), "h09")


def test_a_stop_rests_on_what_the_records_say() -> None:
    made = book()
    searched(made, 1, 150.0, ADMIT, gain=0.5, gain_over_baseline=0.5)
    assert stopped(made, "l01 gave +50.0%, and nothing is left") == []
    assert stopped(made, "best left is inside the band 3.0%") == []
    assert stopped(made, "the band is 3%, a band of 3% in all") == []
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
