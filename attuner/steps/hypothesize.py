"""hypothesize: ask the proposer for one move and put it on record, or record why the search ends. A move that cites places in the
framework's source which don't say what it claims is refused here."""

from __future__ import annotations

from attuner.config import load_levers
from attuner.core.events import History
from attuner.core.judgement import Note
from attuner.core.search import Hypothesis, Stop
from attuner.policy import budget, conduct, people, stopping
from attuner.policy.drift import shipped_move
from attuner.ports import Brief, Kit
from attuner.steps.common import past, put
from attuner.steps.desk import Desk, refused_citations, uncited
from attuner.steps.lessons import taught

MANUAL = "manual"


def hypothesize(kit: Kit, campaign_id: str, hypothesis_id: str) -> Hypothesis | Stop:
    """Return the hypothesis with this id, asking for it if it isn't on record; a Stop ends the search.

    Before the proposer is asked, people are heard: a cancelled campaign stops, and what is queued goes first.
    """
    history = past(kit, campaign_id)
    known = history.hypothesis(hypothesis_id) or history.stop()
    if isinstance(known, Stop):
        return known
    first = known or must_stop(history) or shipped_move(history, hypothesis_id) or asked_by_person(history, hypothesis_id)
    move = first or _heard(kit, campaign_id, hypothesis_id, ask(kit, history, hypothesis_id))
    if isinstance(move, Stop):
        put(kit, campaign_id, "stop", "final", move)
        return move
    if known is None:
        put(kit, campaign_id, "hypothesis", hypothesis_id, move)
    look_up(kit, history, move)
    return move


def _heard(kit: Kit, campaign_id: str, hypothesis_id: str, move: Hypothesis | Stop) -> Hypothesis | Stop:
    """Return the move, or what people said while the proposer thought: it may think for minutes."""
    history = past(kit, campaign_id)
    stopped = must_stop(history)
    if stopped is not None:
        return stopped
    return (asked_by_person(history, hypothesis_id) or move) if isinstance(move, Stop) else move


def waits_for(kit: Kit, campaign_id: str, hypothesis_id: str) -> str:
    """Return what the next move waits for, as a line for a person, or '' if it can be made now.

    It waits while somebody holds the campaign back; with proposer `manual` also until a person has queued a move, for a while.
    """
    history = past(kit, campaign_id)
    if history.hypothesis(hypothesis_id) or history.stop() or must_stop(history):
        return ""
    said = people.paused(history)
    if said is not None:
        return f"paused by {said.by}" + (f": {said.why}" if said.why else "")
    spec = history.campaign().proposer
    if spec.name == MANUAL and people.queued(history) is None and shipped_move(history, hypothesis_id) is None:
        left_s = history.events[-1].at + spec.wait_h * 3600.0 - kit.clock.now()
        if left_s > 0:
            return f"waits for a person's move (attuner propose), {left_s / 3600.0:.1f} h more"
    return ""


def asked_by_person(history: History, hypothesis_id: str) -> Hypothesis | None:
    """Return the move that a person queued first, if one waits; an unnamed parent is the leader."""
    waiting = people.queued(history)
    if waiting is None:
        return None
    key, move, said = waiting
    parent = move.parent or history.leader()
    return move.model_copy(update={"id": hypothesis_id, "parent": parent, "by": said.by, "asked": key})


def look_up(kit: Kit, history: History, move: Hypothesis) -> None:
    """Refuse a move whose citations don't hold, unless it was judged already: the gate then launches nothing for it.

    Also called for a move that is on record: a crash may have come between the two records.
    """
    if history.verdict(move.id) is not None:
        return
    wrong = uncited(kit, history, move)
    if wrong:
        put(kit, history.campaign().id, "verdict", move.id, refused_citations(move, wrong))


def must_stop(history: History) -> Stop | None:
    """Return the stop that fixed code imposes: cancelled, no budget for one more launch, or ten moves that launched nothing."""
    for reason, said in (("cancelled", people.cancelled(history)), ("finished by a person", people.finished(history))):
        if said is not None:
            return Stop(reason=reason, evidence=[f"by {said.by}" + (f": {said.why}" if said.why else "")])
    left, need = budget.remaining(history), budget.reserve(history)
    if left < need:
        evidence = [
            f"{left:.4f} device-hours left for search, one launch reserves {need:.4f}",
            f"spent {budget.spent(history):.4f}",
        ]
        return Stop(reason="the budget is spent", evidence=evidence)
    streak = conduct.no_launch_streak(history)
    if streak >= conduct.NO_LAUNCH_LIMIT:
        last = [h.id for h in history.hypotheses()[-streak:]]
        return Stop(reason="no_launch", evidence=[f"{streak} hypotheses in a row launched nothing: {', '.join(last)}"])
    return None


def ask(kit: Kit, history: History, hypothesis_id: str) -> Hypothesis | Stop:
    """Ask the proposer. It gets a copy of the past and can touch nothing; levers that people banned are not shown to it.

    A stop whose evidence doesn't hold is put on record as refused, and the proposer is asked again, a few times.
    """
    campaign = history.campaign()
    for _ in range(stopping.TRIES):
        move = _answer(kit, past(kit, campaign.id), hypothesis_id)
        if not isinstance(move, Stop):
            return move
        wrong = stopping.problems(past(kit, campaign.id), move, hypothesis_id)
        if not wrong:
            return move
        refused = Note(text=f"stop refused: {'; '.join(wrong)} ({move.reason}; {'; '.join(move.evidence)})"[:2000])
        put(kit, campaign.id, "note", f"stop {hypothesis_id}", refused)
    return Stop(reason="the proposer gives up, and its evidence does not hold", evidence=wrong)


def _answer(kit: Kit, history: History, hypothesis_id: str) -> Hypothesis | Stop:
    campaign = history.campaign()
    read = taught(kit, campaign.id)
    banned = people.banned(history)
    brief = Brief(
        campaign=campaign,
        levers=[x for x in load_levers(kit.rules_dir, campaign.stack.name) if x["id"] not in banned],
        remaining_gpu_hours=budget.remaining(history),
        next_id=hypothesis_id,
        history=history,
        lessons=read.lessons,
        summaries=read.summaries,
        source=kit.source,
        desk=Desk(kit, campaign.id, hypothesis_id),
    )
    move = kit.proposer.ask(brief)
    # the id is ours to give: a proposer can't overwrite an earlier hypothesis by naming it, nor speak in a person's name
    if isinstance(move, Stop):
        return move
    return move.without_secrets().model_copy(update={"id": hypothesis_id, "by": "", "asked": ""})
