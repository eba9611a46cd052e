"""remeasure: leader and original baseline again, interleaved, fresh launches, looked at again; the reported gain is this one."""

from __future__ import annotations

import statistics

from attuner.core.errors import BudgetExceeded
from attuner.core.events import INVALIDATED, History
from attuner.core.judgement import Note, Remeasurement, Score, worst
from attuner.core.people import Invalidated
from attuner.policy import budget, leader, measure, people, rounds
from attuner.ports import Kit
from attuner.steps.common import check_lock, decide, past, put
from attuner.steps.gate import look

UNAFFORDABLE = "remeasure"
"""Key of the note that says why nothing was re-measured."""


def plan_remeasure(kit: Kit, campaign_id: str) -> list[str]:
    """Return the launch ids of the pairs in the order to run them; empty if nothing beat the baseline.

    The order within a pair alternates, so that a drift of the machine favours neither side.
    """
    history = past(kit, campaign_id)
    if people.cancelled(history) is not None:
        return []
    history = renewed(kit, history)
    campaign = history.campaign()
    best = leader.shippable(history)
    best_launch = history.launch(best.launch_id) if best else None
    if best_launch is None:
        return []
    if not _affordable(kit, campaign_id, history):
        return []
    ids, number = [], rounds.current(history)
    for pair in range(campaign.remeasure.pairs):
        sides = [("baseline", campaign.baseline.digest()), ("leader", best_launch.recipe)]
        for name, recipe in sides if pair % 2 == 0 else reversed(sides):
            ids.append(decide(kit, campaign_id, "remeasure", recipe, rounds.purpose(name, pair + 1, number)).id)
    return ids


def renewed(kit: Kit, history: History) -> History:
    """Return the past after what no longer holds was set aside: a re-measurement of another leader, or with another band.

    So it is after a launch was rerun, or a person answered a review. What was measured stays on record, and charged.

    Raises:
        BudgetExceeded: what shipped may still ship, and the budget does not pay for measuring its successor: it stays.
    """
    why = outdated(history)
    if not why:
        return history
    dear = too_dear(history)
    if dear:
        raise BudgetExceeded(f"remeasure: {dear}")
    check_lock(kit, history.campaign())  # nothing is set aside that couldn't be judged again
    campaign_id = history.campaign().id
    said = Invalidated(
        step="remeasure",
        key="",
        by="attuner",
        why=why,
        hides=["remeasurement final", "shipment final", f"note {UNAFFORDABLE}"],
        new_round=bool(rounds.launches(history)),
    )
    put(kit, campaign_id, INVALIDATED, f"remeasure {len(history.reruns()) + 1}", said)
    return past(kit, campaign_id)


def outdated(history: History) -> str:
    """Return why re-measurement or shipment don't hold any more, or ''."""
    again, best, calibration = history.remeasurement(), leader.shippable(history), history.calibration()
    if again is not None and calibration is not None:
        name = best.launch_id if best else ""
        if again.leader != name:
            return f"the leader changed: {again.leader} was re-measured, {name or 'the baseline'} leads now"
        if again.band != calibration.band:
            return f"the band changed: {again.band:.2%} → {calibration.band:.2%}"
    other = _other_leader(history, best)
    if other:
        return other
    shipment = history.shipment()
    if again is None and shipment is not None and best is not None and history.find("note", UNAFFORDABLE, Note) is None:
        return f"{best.launch_id} may ship now, and was not re-measured"
    return ""


def too_dear(history: History) -> str:
    """Return why what shipped must not be set aside for another leader, or '': it may still ship, and the budget does not pay for
    the launches that its successor needs."""
    shipment, best = history.shipment(), leader.shippable(history)
    if shipment is None or shipment.kept_baseline or best is None or not outdated(history):
        return ""
    shipped = history.score(shipment.launch_id)
    if (
        shipped is None
        or leader.refused_by_person(history, shipment.launch_id)
        or people.open_items(history, shipment.launch_id)
        or people.decided(history, shipment.launch_id, shipped.decision) != "admit"
    ):
        return ""
    need, left = budget.round_reserve(history), budget.remaining(history, for_remeasure=True)
    if need <= left + 1e-9:
        return ""
    more = f"attuner budget {history.campaign().id} {budget.total(history) + need - left:.4f}"
    return (
        f"{outdated(history)}; {shipment.launch_id} stays shipped, because a new re-measurement reserves {need:.4f} device-hours "
        f"and {max(left, 0):.4f} are left; raise the budget: {more}"
    )


def _other_leader(history: History, best: Score | None) -> str:
    """Return a line if this round's launches measure another recipe than the leader's: they say nothing of it."""
    launch = history.launch(best.launch_id) if best else None
    wrong = [x for x in rounds.launches(history) if x.purpose.startswith("leader ") and launch and x.recipe != launch.recipe]
    return f"the leader changed: {wrong[0].id} measures another recipe than {launch.id}'s" if wrong and launch else ""


def _affordable(kit: Kit, campaign_id: str, history: History) -> bool:
    """Tell whether the missing launches fit the budget; if not, note it once: the baseline is kept for that reason."""
    if history.find("note", UNAFFORDABLE, Note) is not None:
        return False
    done = len(rounds.launches(history))
    if done >= 2 * history.campaign().remeasure.pairs:
        return True  # decided when they fitted; a resume goes on with them
    need = (2 * history.campaign().remeasure.pairs - done) * budget.reserve(history)
    left = budget.remaining(history, for_remeasure=True)
    if need <= left + 1e-9:
        return True
    text = f"the re-measurement reserves {need:.4f} device-hours and {max(left, 0):.4f} are left: a launch overdrew the budget"
    put(kit, campaign_id, "note", UNAFFORDABLE, Note(text=text))
    return False


def remeasure(kit: Kit, campaign_id: str) -> Remeasurement | None:
    """Record the re-measured gain; None if there is no leader to measure, or not all of its launches have run.

    Inside the band, or if any look refuses now, or if a launch failed, the baseline is kept and the record says why. A person's
    word may change the leader meanwhile: its launches are then planned here, and run before anything is compared.
    """
    ids = plan_remeasure(kit, campaign_id)
    history = past(kit, campaign_id)
    known = history.remeasurement()
    if known is not None or not ids or missing(history):
        return known
    campaign, calibration, best = history.campaign(), history.calibration(), leader.shippable(history)
    if calibration is None or best is None:
        return None
    check_lock(kit, campaign)
    history = past(kit, campaign_id)
    sides: dict[str, list[Score]] = {"baseline": [], "leader": []}
    ids_of: dict[str, list[str]] = {"baseline": [], "leader": []}
    for launch_id in ids:
        launch, scored = history.launch(launch_id), history.score(launch_id)
        name = launch.purpose.split()[0] if launch else ""
        ids_of[name].append(launch_id)
        # a baseline with a defect of its own is `review` for ever: that must not keep its candidates from being measured
        admitted = ("admit", "review") if name == "baseline" else ("admit",)
        if scored is not None and scored.valid and people.decided(history, launch_id, scored.decision) in admitted:
            sides[name].append(scored)
    means = {name: statistics.fmean(s.tokens_per_s_per_gpu for s in side) if side else 0.0 for name, side in sides.items()}
    result = _judged(kit, campaign_id, best, ids_of, sides, means, calibration.band)
    put(kit, campaign_id, "remeasurement", "final", result)
    return result


def missing(history: History) -> list[str]:
    """Return the launches of the round that counts which have no outcome yet; none if they will not be made any more."""
    if leader.shippable(history) is None or people.cancelled(history) is not None:
        return []
    if history.find("note", UNAFFORDABLE, Note) is not None:
        return []
    return [x.id for x in rounds.launches(history) if history.trial(x.id) is None]


def _first_objection(history: History, ids_of: dict[str, list[str]]) -> str:
    """Return what the looks said first against a launch that did not count."""
    for launch_id in [*ids_of["leader"], *ids_of["baseline"]]:
        trial = history.trial(launch_id)
        for verdict in history.looks(launch_id, trial.attempt) if trial else []:
            against = [f for f in verdict.findings if f.decision != "admit"]
            if against:
                mine = history.campaign().id
                ask = f"; a person may: attuner review {mine} {launch_id} --admit, attuner rerun {mine} score {launch_id}"
                return f" ({launch_id}: {against[0].line()}{ask if against[0].decision == 'review' else ''})"
    return ""


def _judged(
    kit: Kit,
    campaign_id: str,
    best: Score,
    ids_of: dict[str, list[str]],
    sides: dict[str, list[Score]],
    means: dict[str, float],
    band: float,
) -> Remeasurement:
    history = past(kit, campaign_id)
    launch = history.launch(best.launch_id)
    effective = history.effective(launch.recipe) if launch else None
    pairs = history.campaign().remeasure.pairs
    complete = all(len(side) >= pairs for side in sides.values())
    config = (
        look(kit, history, effective, subject=launch.hypothesis, recipe=launch.recipe).decision
        if launch and effective
        else "refuse"
    )
    gain = means["leader"] / means["baseline"] - 1.0 if means["baseline"] else 0.0
    faster = measure.leads(means["leader"], means["baseline"], band)
    reason = ""
    if not complete:
        counts = {name: len(side) for name, side in sides.items()}
        reason = f"only {counts} of {pairs} launches a side gave a valid, admitted measurement{_first_objection(history, ids_of)}"
    elif config == "refuse":
        reason = "the first look refuses the leader now"
    elif not faster:
        reason = f"re-measured gain {gain:+.1%} is inside the band of {band:.1%}"
    decision = worst([config, "admit" if complete else "refuse"])
    return Remeasurement(
        baseline_launches=ids_of["baseline"],
        leader_launches=ids_of["leader"],
        leader=best.launch_id,
        baseline_mean=means["baseline"],
        leader_mean=means["leader"],
        gain=gain,
        band=band,
        decision=decision,
        kept_baseline=bool(reason),
        reason=reason,
    )
