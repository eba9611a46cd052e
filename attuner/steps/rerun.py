"""rerun: one step of a campaign again, because a person says so and why. One idempotent function behind every door.

It sets records aside, in one `invalidated` event; going on with the campaign then does again what is missing, and nothing else:
a rerun launch gets a new attempt, its profile, its score and the chain of leaders after it are computed anew, later launches
stay; re-measurement and shipment are made again only if leader or band changed (steps/remeasure.outdated). Every attempt stays on
record and is charged. A rerun is exempt from "not again unchanged", never from gate or budget.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from attuner.core.errors import BudgetExceeded, UserError
from attuner.core.events import INVALIDATED, History, attempt_key, update_key
from attuner.core.judgement import Calibration
from attuner.core.people import Invalidated
from attuner.core.run import Launch
from attuner.policy import budget, people
from attuner.ports import Ledger
from attuner.steps.common import check_rules
from attuner.steps.people import named
from attuner.steps.remeasure import UNAFFORDABLE, too_dear

STEPS = ("launch", "profile", "score", "gate", "calibrate", "hypothesize", "remeasure", "ship")
ENDS = ("remeasurement final", "shipment final", f"note {UNAFFORDABLE}")


def rerun(
    ledger: Ledger, campaign_id: str, step: str, key: str = "", *, by: str, why: str, rules_dir: Path, request: str = ""
) -> Invalidated:
    """Set aside what this step made, and what follows from it; the campaign then goes on from there.

    Args:
        step: launch, profile, score, gate, calibrate, hypothesize, remeasure or ship.
        key: launch id (launch, profile, score), hypothesis id (gate), round (calibrate); '' for the others.
        rules_dir: the rules' folder: what they couldn't judge again is not set aside.
        request: id of the request: the same one twice is one rerun.

    Raises:
        UserError: no such step or key, or it can't be rerun.
        Refused: a process runs the campaign now (pause or cancel it, or wait).
        RegisterChanged: rules/ or the judging code moved since birth.
        BudgetExceeded: the budget doesn't allow it; `attuner budget` raises it.
    """
    by, why = named(by, why, what="rerun", reason_needed=True)
    history = _history(ledger, campaign_id)
    known = _same_request(history, request)
    if known is not None:
        return known
    check_rules(rules_dir, history.campaign())
    planned(history, step, key)  # what can't be is refused before anything is on record, the lease included
    ledger.claim(campaign_id)
    try:
        history = _history(ledger, campaign_id)  # the holder before us may have gone on
        known = _same_request(history, request)
        if known is not None:
            return known
        body = planned(history, step, key)
        said = Invalidated.model_validate({**body, "step": step, "key": key, "by": by, "why": why, "request": request})
        ledger.append(campaign_id, INVALIDATED, f"{step} {key or '-'} {len(history.reruns()) + 1}", said)
        return said
    finally:
        ledger.release(campaign_id)


def _same_request(history: History, request: str) -> Invalidated | None:
    return next((x for x in history.reruns() if request and x.request == request), None)


def _history(ledger: Ledger, campaign_id: str) -> History:
    history = History(ledger.history(campaign_id))
    if not history.events:
        raise UserError(f"rerun: no campaign {campaign_id} on record; see `attuner status`")
    end = people.cancelled(history)
    if end is not None:
        raise UserError(f"rerun: {campaign_id} was cancelled by {end.by}; start a new campaign")
    return history


def planned(history: History, step: str, key: str) -> dict[str, object]:
    """Return what a rerun of this step sets aside, as fields of Invalidated. Pure; raises as `rerun` does."""
    makers: dict[str, Callable[[History, str], dict[str, object]]] = {
        "launch": _launch,
        "profile": _profile,
        "score": _score,
        "gate": _gate,
        "calibrate": _calibrate,
        "hypothesize": _search,
        "remeasure": _remeasure,
        "ship": _ship,
    }
    if step not in makers:
        raise UserError(f"rerun: {step}: no such step; known: {', '.join(STEPS)}")
    if bool(key) != (step in ("launch", "profile", "score", "gate", "calibrate")):
        needs = "takes no key" if key else "needs the id of a launch, a hypothesis or a round"
        raise UserError(f"rerun: {step}: {needs}")
    body = makers[step](history, key)
    hides = body["hides"]
    assert isinstance(hides, list)
    return {**body, "hides": list(dict.fromkeys(hides))}


def _found(history: History, launch_id: str, step: str) -> Launch:
    launch = history.launch(launch_id)
    if launch is None:
        known = ", ".join(x.id for x in history.launches()) or "none yet"
        raise UserError(f"rerun {step}: {launch_id}: no such launch; known: {known}")
    return launch


def _launch(history: History, launch_id: str) -> dict[str, object]:
    """A new attempt, and everything that was made from the old one."""
    launch = _found(history, launch_id, "launch")
    if history.trial(launch_id) is None:
        raise UserError(f"rerun launch: {launch_id} has no outcome yet; `attuner resume` goes on with it")
    if launch.kind == "prepare" and (trial := history.trial(launch_id)) is not None and trial.status == "ok":
        raise UserError(
            f"rerun launch: {launch_id} made the checkpoint that every launch starts from; start a new campaign for another"
        )
    attempts = history.attempts(launch_id)
    if attempts and history.settled(launch_id, attempts[-1].number) is None:
        raise UserError(
            f"rerun launch: attempt {attempts[-1].number} of {launch_id} is under way; `attuner resume` goes on with it"
        )
    if launch.component:
        raise UserError(f"rerun launch: {launch_id} is a component test; make it again by `attuner component-test`")
    _require(history, launch)
    hides = [f"trial {launch_id}", f"breakdown {launch_id}", f"note trace {launch_id}", f"score {launch_id}"]
    if launch.kind == "calibrate":
        hides += _after_baseline(history, launch_id)
    elif launch.kind == "search":
        hides += _chain(history, launch_id)
    elif launch.kind == "check":
        hides += _looks(history, [x for x in _scored(history, "") if _leans_on_check(history, x)])
        hides += [*_chain(history, ""), *ENDS]
    else:
        hides += ENDS
    return {"hides": hides, "after": attempts[-1].number if attempts else 0}


def _require(history: History, launch: Launch) -> None:
    """Raise BudgetExceeded unless the new attempt fits, and the re-measurement that a new leader would need."""
    pairs = 2 * history.campaign().remeasure.pairs * budget.reserve(history) if launch.kind in ("search", "calibrate") else 0.0
    need = launch.reserve_gpu_hours + pairs
    left = budget.remaining(history, for_remeasure=True)
    if need > left + 1e-9:
        more = f"{history.campaign().id} {budget.total(history) + need - left:.4f}"
        raise BudgetExceeded(
            f"rerun launch: {launch.id} reserves {launch.reserve_gpu_hours:.4f} device-hours and a re-measurement {pairs:.4f}; "
            f"{max(left, 0):.4f} are left; raise the budget: attuner budget {more}"
        )


def _profile(history: History, launch_id: str) -> dict[str, object]:
    _found(history, launch_id, "profile")
    return {"hides": [f"breakdown {launch_id}", f"note trace {launch_id}"]}


def _score(history: History, launch_id: str) -> dict[str, object]:
    launch = _found(history, launch_id, "score")
    trial = history.trial(launch_id)
    if trial is None or trial.status != "ok":
        raise UserError(
            f"rerun score: {launch_id} has no run to score ({trial.status if trial else 'not run'}); rerun its launch"
        )
    hides = [f"score {launch_id}", *_looks(history, [launch_id])]
    if launch.kind == "calibrate":
        hides += _after_baseline(history, launch_id)
    elif launch.kind == "search":
        hides += _chain(history, launch_id)
    elif launch.kind == "remeasure":
        hides += ENDS
    return {"hides": hides}


def _gate(history: History, hypothesis_id: str) -> dict[str, object]:
    verdict = history.verdict(hypothesis_id)
    if history.hypothesis(hypothesis_id) is None or verdict is None:
        raise UserError(f"rerun gate: {hypothesis_id}: no such judged hypothesis")
    launched = next((x.id for x in history.launches() if x.hypothesis == hypothesis_id and x.kind == "search"), "")
    if launched:
        raise UserError(f"rerun gate: {hypothesis_id} became {launched}; rerun its launch or its score")
    return {"hides": [f"verdict {hypothesis_id}", f"forecast {hypothesis_id}"]}


def _calibrate(history: History, number: str) -> dict[str, object]:
    if not any(str(x.round) == number for x in _calibrations(history, "")):
        raise UserError(f"rerun calibrate: {number}: no such round")
    return {"hides": [f"calibration {number}", *_chain(history, "")]}


def _search(history: History, _key: str) -> dict[str, object]:
    """Take the search up again: the stop is set aside; what was re-measured holds unless the leader changes."""
    if history.stop() is None:
        raise UserError("rerun hypothesize: the search has not ended; `attuner resume` goes on with it")
    finished = people.finished(history)
    if finished is not None:
        raise UserError(f"rerun hypothesize: {finished.by} finished the search; start a new campaign")
    return {"hides": ["stop final", "shipment final"]}


def _remeasure(history: History, _key: str) -> dict[str, object]:
    if history.remeasurement() is None and history.shipment() is None:
        raise UserError("rerun remeasure: nothing was re-measured yet; `attuner resume` goes on")
    again = history.remeasurement() is not None
    need = 2 * history.campaign().remeasure.pairs * budget.reserve(history) if again else 0.0
    left = budget.remaining(history, for_remeasure=True)
    if need > left + 1e-9:
        raise BudgetExceeded(
            f"rerun remeasure: reserves {need:.4f} device-hours, {max(left, 0):.4f} are left; raise the budget: "
            f"attuner budget {history.campaign().id} {budget.total(history) + need - left:.4f}"
        )
    return {"hides": list(ENDS), "new_round": again}


def _ship(history: History, _key: str) -> dict[str, object]:
    dear = too_dear(history)
    if dear:
        raise BudgetExceeded(f"rerun ship: {dear}")
    return {"hides": ["shipment final"]}


# ------------------------------------------------------------------------------------------- what follows from what


def _calibrations(history: History, launch_id: str) -> list[Calibration]:
    """Return the rounds that a launch is part of; '' for all."""
    rounds = history.all("calibration", Calibration)
    return [x for x in rounds if not launch_id or launch_id in x.launches]


def _after_baseline(history: History, launch_id: str) -> list[str]:
    """Return what follows from a baseline run: every look compares with these runs, and every gain is one over their mean.

    Re-measurement and shipment are decided again too, from the same launches: what they rested on is judged anew.
    """
    rounds = [f"calibration {x.round}" for x in _calibrations(history, launch_id)]
    return [*rounds, *_looks(history, _scored(history, launch_id)), *ENDS]


def _scored(history: History, besides: str) -> list[str]:
    return [s.launch_id for s in history.scores() if s.launch_id != besides]


def _chain(history: History, launch_id: str) -> list[str]:
    """Return the scores of this search launch and of the later ones: each says what it gained over the leader before it."""
    search = [x.id for x in history.launches() if x.kind == "search"]
    later = search[search.index(launch_id) :] if launch_id in search else search
    return [f"score {x}" for x in later]


def _looks(history: History, launches: list[str]) -> list[str]:
    """Return the looks at these launches' last trials, and their scores: judged again from the evidence on record."""
    out = []
    for launch_id in launches:
        trial = history.trial(launch_id)
        if trial is not None:
            keys = (attempt_key(launch_id, trial.attempt), update_key(launch_id, trial.attempt))
            out += [f"score {launch_id}", *(f"verdict {k}" for k in keys)]
    return out


def _leans_on_check(history: History, launch_id: str) -> bool:
    """Tell whether a look at a launch was decided by a check launch, or left open for want of one."""
    trial = history.trial(launch_id)
    verdicts = history.looks(launch_id, trial.attempt) if trial else []
    return any("check" in f.reason or f.check for v in verdicts for f in v.findings)
