"""Judges a soak's campaigns from their records and from what their runs left: which law was broken, in one line each. Pure."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import dataclass, field

from attuner.core.events import Event, History, attempt_key, update_key
from attuner.core.judgement import Shipment
from attuner.core.run import Attempt, Settlement
from attuner.policy import budget

ONCE = ("campaign", "launch", "hypothesis", "calibration", "stop", "remeasurement", "shipment", "early_end")
"""Kinds that are decided once per key, whatever happens to the process that decides."""
ROUND_S = 0.01
BEAT_S = 2.0
"""A killed driver's last heartbeat: it may have been read half a second before the last one was written."""


@dataclass(frozen=True)
class Left:
    """What one run folder says of the time for which it held devices, unix seconds."""

    launch_id: str
    attempt: int
    allocated_at: float | None
    released_at: float | None
    last_heartbeat: float | None


@dataclass(frozen=True)
class Found:
    """A campaign of the soak: its records, its run folders, and how it ended by the word of who ran it."""

    campaign_id: str
    events: list[Event]
    runs: list[Left] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    said: str = ""
    """The one-line reason with which its last run ended, if it did not complete."""
    real: bool = False
    """Trained for real: its devices are one machine's, so no two of its runs may hold them at once."""


def judge(found: Found) -> list[str]:
    """Return every law that this campaign broke."""
    history = History(found.events)
    return [
        *_ended(found, history),
        *_once(found.events),
        *_paid(history, found.events),
        *_held(history, real=found.real),
        *_against_folders(history, found.runs),
        *_within_budget(history),
        *_looked(found, history),
    ]


def _ended(found: Found, history: History) -> list[str]:
    shipment = history.shipment()
    if shipment is None:
        return [] if found.said.strip() else ["no end: neither a shipment nor a reason"]
    return [] if shipment.reason.strip() else ["a shipment without a reason"]


def _once(events: list[Event]) -> list[str]:
    counts = Counter((e.kind, e.key) for e in events if e.kind in ONCE)
    return [f"decided {n} times: {kind} {key}" for (kind, key), n in counts.items() if n > 1]


def _paid(history: History, events: list[Event]) -> list[str]:
    """Every attempt has exactly one charge; a further attempt has a reason."""
    charges = Counter(e.key for e in events if e.kind == "settled")
    opened = {e.key for e in events if e.kind == "attempt"}
    wrong = [f"paid {n} times: {key}" for key, n in charges.items() if n > 1]
    wrong += [f"a charge without an attempt: {key}" for key in charges if key not in opened]
    wrong += [f"an attempt without a charge: {key}" for key in sorted(opened) if key not in charges]
    for launch in history.launches():
        attempts = history.attempts(launch.id)
        if [a.number for a in attempts] != list(range(1, len(attempts) + 1)):
            wrong.append(f"attempts of {launch.id} are not numbered in a row")
        for before in attempts[:-1]:
            if not _closed_without_outcome(history, events, before):
                wrong.append(f"paid twice: {launch.id} has a further attempt after #{before.number}, which had come to its end")
        trial = history.trial(launch.id)
        if trial is not None and abs(trial.gpu_hours - history.charge(launch.id)) > 1e-9:
            wrong.append(
                f"{launch.id}: the trial says {trial.gpu_hours:.6f} device-hours, its charges {history.charge(launch.id):.6f}"
            )
    return wrong


def _closed_without_outcome(history: History, events: list[Event], attempt: Attempt) -> bool:
    """Tell whether an attempt ended in a way that lets another one begin: lost, interrupted, or its measurement invalid."""
    charge = history.settled(attempt.launch_id, attempt.number)
    if charge is None:
        return False
    scores = [e.record for e in events if e.kind == "score" and e.key == attempt.launch_id]
    invalid = any(s["attempt"] == attempt.number and not s["valid"] for s in scores)
    return charge.lost or charge.interrupted or invalid


def _span(charge: Settlement) -> tuple[float, float] | None:
    if charge.allocated_at is None or charge.released_at is None:
        return None
    return charge.allocated_at, charge.released_at


def _held(history: History, *, real: bool) -> list[str]:
    """No two attempts of a launch held devices at once; of a real campaign, no two attempts at all."""
    groups: dict[str, list[Settlement]] = {}
    for charge in history.settlements():
        groups.setdefault("" if real else charge.launch_id, []).append(charge)
    wrong = []
    for charges in groups.values():
        spans = sorted((s, attempt_key(c.launch_id, c.attempt)) for c in charges if (s := _span(c)))
        for (one, first), (two, second) in itertools.pairwise(spans):
            if two[0] < one[1] - ROUND_S:
                wrong.append(f"{first} and {second} held devices at once for {one[1] - two[0]:.2f} s")
    return wrong


def _against_folders(history: History, runs: list[Left]) -> list[str]:
    """What ran is charged, and for as long as its own stamps say."""
    wrong = []
    for run in runs:
        key = attempt_key(run.launch_id, run.attempt)
        charge = history.settled(run.launch_id, run.attempt)
        if charge is None:
            if run.allocated_at is not None:
                wrong.append(f"ran and was not charged: {key}")
            continue
        start, end, slack = run.allocated_at, run.released_at, ROUND_S
        if end is None and run.last_heartbeat is not None:
            end, slack = run.last_heartbeat, BEAT_S
        held = 0.0 if start is None else max((start if end is None else end) - start, 0.0)
        charged = charge.gpu_hours * 3600.0 / charge.gpus if charge.gpus else 0.0
        if abs(held - charged) > slack:
            wrong.append(f"{key}: its folder says {held:.2f} s, its charge {charged:.2f} s")
    return wrong


def _within_budget(history: History) -> list[str]:
    """What was spent, failures included, is at most the budget."""
    if not history.launches():
        return []
    spent, total = budget.spent(history), budget.total(history)
    return [f"spent {spent:.4f} of {total:.4f} device-hours"] if spent > total + 1e-9 else []


def _looked(found: Found, history: History) -> list[str]:
    """What shipped and is not the baseline was admitted by all three looks, in its own launch and in every re-measurement."""
    shipment = history.shipment()
    if shipment is None or shipment.kept_baseline:
        return []
    if shipment.on_paper:
        return ["a recipe found on paper lies there as if it were shippable"] if "recipe.yaml" in found.files else []
    if found.files and "recipe.yaml" not in found.files:
        return ["shipped, but its recipe is not written"]
    launch, score, again = history.launch(shipment.launch_id), history.score(shipment.launch_id), history.remeasurement()
    if launch is None or score is None or again is None:
        return [f"shipped without launch, score or re-measurement: {shipment.launch_id}"]
    pairs = history.campaign().remeasure.pairs
    wrong = [f"shipped recipe is not the one of {launch.id}"] if launch.recipe != shipment.recipe else []
    if min(len(set(again.leader_launches)), len(set(again.baseline_launches))) < pairs:
        wrong.append(f"re-measured in fewer than {pairs} pairs")
    looked = [(launch.hypothesis, launch.id), *_run_looks(launch.id, score.attempt)]
    for launch_id in again.leader_launches:
        trial = history.trial(launch_id)
        looked += _run_looks(launch_id, trial.attempt if trial else 0)
    for subject, of in looked:
        if not _admitted(history, subject, shipment):
            wrong.append(f"shipped without an admitting look: {subject} (of {of})")
    return wrong


def _run_looks(launch_id: str, attempt: int) -> list[tuple[str, str]]:
    return [(attempt_key(launch_id, attempt), launch_id), (update_key(launch_id, attempt), launch_id)]


def _admitted(history: History, subject: str, shipment: Shipment) -> bool:
    verdict = history.verdict(subject)
    return verdict is not None and verdict.decision == "admit" and verdict.recipe == shipment.recipe
