"""What people say to a campaign, put on record: queue a move, ban a lever, pause, set the budget, finish, cancel, answer reviews.

None of it takes the campaign's lease, so it can be said while another process runs it; steps act on it when they come to it.
Every door (terminal, form in the Prefect UI) ends here, and what can't be meant is refused before it is on record.
"""

from __future__ import annotations

import secrets

from attuner.config import load_levers
from attuner.core.errors import Refused, UserError
from attuner.core.events import History
from attuner.core.judgement import SEVERITY
from attuner.core.people import Act, Directive, ReviewAnswer
from attuner.core.private import is_secret, mask
from attuner.core.search import Hypothesis
from attuner.policy import budget, conduct, leader, people
from attuner.ports import Ledger

MAX_WORDS = 500


def named(by: str, why: str, *, what: str, reason_needed: bool = False) -> tuple[str, str]:
    """Return who speaks and why, as they go on record.

    Raises:
        UserError: nobody is named, or a reason is missing where one is owed.
    """
    by, why = " ".join(by.split())[:100], mask(" ".join(why.split())[:MAX_WORDS])
    if not by:
        raise UserError(f"{what}: by: say who you are, for the record (--as NAME)")
    if reason_needed and not why:
        raise UserError(f"{what}: why: give the reason, for the record (--why TEXT)")
    return by, why


def opened(ledger: Ledger, campaign_id: str, *, what: str, ended: bool = False, searching: bool = False) -> History:
    """Return the past of a campaign that can still hear something.

    Args:
        ended: also one that has shipped.
        searching: only one whose search goes on: what was said to a search that has ended would never be heard.

    Raises:
        UserError: no such campaign, or it has ended, or its search has.
    """
    history = History(ledger.history(campaign_id))
    if not history.events:
        raise UserError(f"{what}: no campaign {campaign_id} on record; see `attuner status`")
    end = people.cancelled(history)
    if end is not None:
        raise UserError(f"{what}: {campaign_id} was cancelled by {end.by}; start a new campaign")
    again = f"`attuner rerun {campaign_id} hypothesize` takes its search up again"
    if not ended and history.shipment() is not None:
        raise UserError(f"{what}: {campaign_id} has shipped; {again}")
    stop = history.stop()
    if searching and stop is not None:
        raise UserError(f"{what}: the search of {campaign_id} has ended ({stop.reason}); {again}")
    return history


def _say(ledger: Ledger, campaign_id: str, directive: Directive) -> Directive:
    ledger.append(campaign_id, "directive", f"{directive.act}-{secrets.token_hex(4)}", directive)
    return directive


def queue(ledger: Ledger, campaign_id: str, hypothesis: Hypothesis, *, by: str, why: str = "", request: str = "") -> Directive:
    """Put a person's move first in line; the gate judges it like any other.

    Args:
        hypothesis: its id is given later; an empty parent is the leader at that time.
        request: id of the request; the same request twice is one move.

    Raises:
        UserError: it changes nothing, or the campaign has ended.
    """
    by, why = named(by, why, what="propose")
    history = opened(ledger, campaign_id, what="propose", searching=True)
    if not hypothesis.arguments and not hypothesis.env:
        raise UserError("propose: arguments: the move changes nothing; set an argument or an environment variable")
    if hypothesis.parent and history.launch(hypothesis.parent) is None:
        raise UserError(f"propose: parent: {hypothesis.parent}: no such launch; leave it out for the leader")
    secret = next((k for k, v in hypothesis.env.items() if is_secret(k, v)), "")
    if secret:
        raise UserError(
            f"propose: env.{secret}: looks like a secret, and a move goes on record; put it into the nodes' environment"
        )
    directive = Directive(act="queue", by=by, why=why, hypothesis=hypothesis.without_secrets())
    if request:
        known = history.find("directive", f"queue-{request}", Directive)
        if known is None:
            ledger.append(campaign_id, "directive", f"queue-{request}", directive)
        return known or directive
    return _say(ledger, campaign_id, directive)


def check_lever(ledger: Ledger, campaign_id: str, lever: str, rules_dir: object) -> None:
    """Raise UserError for a lever group that the campaign's catalog doesn't have."""
    from pathlib import Path

    stack = opened(ledger, campaign_id, what="ban").campaign().stack.name
    known = [x["id"] for x in load_levers(Path(str(rules_dir)), stack)]
    if lever not in (*known, conduct.OPEN, conduct.POINT):
        raise UserError(f"ban: {lever}: no such lever of stack {stack}; known: {', '.join(known)}, {conduct.OPEN}")


def ban(ledger: Ledger, campaign_id: str, lever: str, *, by: str, why: str = "") -> Directive:
    """Forbid a lever group for the rest of the campaign."""
    by, why = named(by, why, what="ban", reason_needed=True)
    opened(ledger, campaign_id, what="ban")
    return _say(ledger, campaign_id, Directive(act="ban", by=by, why=why, lever=lever))


def unban(ledger: Ledger, campaign_id: str, lever: str, *, by: str, why: str = "") -> Directive:
    """Take a ban back. Raises UserError if there is none."""
    by, why = named(by, why, what="unban")
    if lever not in people.banned(opened(ledger, campaign_id, what="unban")):
        raise UserError(f"unban: {lever} is not banned in {campaign_id}")
    return _say(ledger, campaign_id, Directive(act="unban", by=by, why=why, lever=lever))


def plain(ledger: Ledger, campaign_id: str, act: Act, *, by: str, why: str = "") -> Directive:
    """Pause, go on, finish or cancel.

    Raises:
        UserError: it has ended, it is not paused (go_on), or the reason is missing (finish, cancel).
    """
    by, why = named(by, why, what=act, reason_needed=act in ("finish", "cancel"))
    history = opened(ledger, campaign_id, what=act, searching=act in ("pause", "finish"))
    if act == "go_on" and people.paused(history) is None:
        raise UserError(f"go-on: {campaign_id} is not paused")
    if act == "pause" and (held := people.paused(history)) is not None:
        raise UserError(f"pause: {campaign_id} is paused already, by {held.by}")
    return _say(ledger, campaign_id, Directive(act=act, by=by, why=why))


def pause(ledger: Ledger, campaign_id: str, *, by: str, why: str = "") -> Directive:
    """Hold the campaign back before its next move; what runs now runs to its end."""
    return plain(ledger, campaign_id, "pause", by=by, why=why)


def go_on(ledger: Ledger, campaign_id: str, *, by: str, why: str = "") -> Directive:
    """Let a paused campaign go on."""
    return plain(ledger, campaign_id, "go_on", by=by, why=why)


def finish(ledger: Ledger, campaign_id: str, *, by: str, why: str) -> Directive:
    """End the search after what runs now; what leads is re-measured and ships."""
    return plain(ledger, campaign_id, "finish", by=by, why=why)


def cancel(ledger: Ledger, campaign_id: str, *, by: str, why: str) -> Directive:
    """End the campaign: its job is stopped and its charge settled, nothing more is launched, the baseline is kept."""
    return plain(ledger, campaign_id, "cancel", by=by, why=why)


def set_budget(ledger: Ledger, campaign_id: str, total_gpu_hours: float, *, by: str, why: str = "") -> Directive:
    """Set the campaign's total budget, device-hours; what is spent stays spent.

    Raises:
        UserError: it is no usable number, or less than what is spent and held by launches under way.
    """
    by, why = named(by, why, what="budget", reason_needed=True)
    history = opened(ledger, campaign_id, what="budget", ended=True)
    bound = budget.spent(history) + budget.reserved(history)
    if not bound <= total_gpu_hours < float("inf"):
        raise UserError(f"budget: {total_gpu_hours:g} device-hours: {bound:.4f} are spent or held by launches already; give more")
    return _say(ledger, campaign_id, Directive(act="budget", by=by, why=why, gpu_hours=total_gpu_hours))


def answer(ledger: Ledger, campaign_id: str, launch_id: str, decision: str, *, by: str, why: str) -> ReviewAnswer:
    """Put a person's answer to a launch's open review items on record; it holds for the launch's recipe.

    Args:
        decision: admit or refuse.

    Raises:
        UserError: no such launch, nothing waits there, or name or reason is missing.
        Refused: a look refuses it: no word of a person changes that.
    """
    by, why = named(by, why, what="review", reason_needed=True)
    if decision not in ("admit", "refuse"):
        raise UserError(f"review: {decision}: say admit or refuse")
    history = opened(ledger, campaign_id, what="review", ended=True)
    launch, score = history.launch(launch_id), history.score(launch_id)
    if launch is None or score is None:
        waits = ", ".join(s.launch_id for s in leader.waiting(history)) or "none"
        raise UserError(f"review: {launch_id}: no such scored launch in {campaign_id}; waiting: {waits}")
    if score.valid and SEVERITY[score.decision] >= SEVERITY["refuse"] and decision == "admit":
        raise Refused(f"review: {launch_id}: a look refuses it; that is not for a person to admit")
    items = list(people.all_items(history, launch_id))
    if not items:
        raise UserError(f"review: {launch_id}: nothing waits for a person there")
    found = ReviewAnswer.model_validate(
        {"launch_id": launch_id, "recipe": launch.recipe, "decision": decision, "by": by, "why": why, "items": items}
    )
    ledger.append(campaign_id, "review", launch_id, found)
    return found
