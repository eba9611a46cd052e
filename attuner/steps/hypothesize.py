"""hypothesize: ask the proposer for one move and put it on record, or record why the search ends. A move that cites places in the
framework's source which don't say what it claims is refused here."""

from __future__ import annotations

from attuner.config import load_levers
from attuner.core.events import History
from attuner.core.search import Hypothesis, Stop
from attuner.policy import budget, conduct
from attuner.ports import Brief, Kit
from attuner.steps.common import past, put
from attuner.steps.desk import Desk, refused_citations, uncited
from attuner.steps.lessons import taught


def hypothesize(kit: Kit, campaign_id: str, hypothesis_id: str) -> Hypothesis | Stop:
    """Return the hypothesis with this id, asking for it if it isn't on record; a Stop ends the search."""
    history = past(kit, campaign_id)
    known = history.hypothesis(hypothesis_id) or history.stop()
    if isinstance(known, Stop):
        return known
    move = known or must_stop(history) or ask(kit, history, hypothesis_id)
    if isinstance(move, Stop):
        put(kit, campaign_id, "stop", "final", move)
        return move
    if known is None:
        put(kit, campaign_id, "hypothesis", hypothesis_id, move)
    look_up(kit, history, move)
    return move


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
    """Return the stop that fixed code imposes: no budget for one more launch, or ten moves that launched nothing."""
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
    """Ask the proposer. It gets a copy of the past and can touch nothing."""
    campaign = history.campaign()
    read = taught(kit, campaign.id)
    brief = Brief(
        campaign=campaign,
        levers=load_levers(kit.rules_dir, campaign.stack.name),
        remaining_gpu_hours=budget.remaining(history),
        next_id=hypothesis_id,
        history=history,
        lessons=read.lessons,
        summaries=read.summaries,
        source=kit.source,
        desk=Desk(kit, campaign.id, hypothesis_id),
    )
    move = kit.proposer.ask(brief)
    # the id is ours to give: a proposer can't overwrite an earlier hypothesis by naming it
    return move if isinstance(move, Stop) else move.model_copy(update={"id": hypothesis_id})
