"""Conduct: what a proposer may ask for, whatever its reasons. Pure functions over the campaign's past."""

from __future__ import annotations

from typing import Any

from attuner.core.errors import Refused
from attuner.core.events import History
from attuner.core.recipe import Recipe
from attuner.core.search import Hypothesis

NO_LAUNCH_LIMIT = 10
"""Hypotheses in a row that launched nothing before the search ends. Source: ATTUNE, table D3 (`no launch`)."""
MAX_VALUE_LENGTH = 200
BLACK_BOX = ("random", "tpe", "fixed_knobs")
"""Proposers that know no levers: they set values of the catalog at once, as group `point`."""
OPEN, POINT = "open", "point"
SHIPPED = "shipped"
"""Group of a re-tuning's first move, which fixed code makes: the recipe that was shipped, all its changes at once."""
RETUNER = "nightly re-tuning"
"""Who asks for it."""


def candidate(history: History, hypothesis: Hypothesis) -> Recipe:
    """Return the recipe that a hypothesis stands for: its parent's, with one group changed.

    Raises:
        Refused: the parent is unknown or was never run.
    """
    parent = history.launch(hypothesis.parent)
    if parent is None or parent.kind not in ("calibrate", "search") or history.trial(parent.id) is None:
        raise Refused(f"{hypothesis.id}: parent {hypothesis.parent} is not a finished baseline or search launch of this campaign")
    return history.recipe(parent.recipe).changed(hypothesis.arguments, hypothesis.env)


def check_group(hypothesis: Hypothesis, levers: list[dict[str, Any]], *, proposer: str = "") -> None:
    """Raise Refused unless the hypothesis changes exactly one lever group, or `open` with one argument or variable.

    `open` may carry what its one argument forces: what a lever lists for it under `forces`. A black-box proposer, which knows
    no levers, may set any values of the catalog at once: group `point`.
    """
    changed = [*hypothesis.arguments, *(f"env:{k}" for k in hypothesis.env)]
    if not changed:
        raise Refused(f"{hypothesis.id}: changes nothing")
    for key, value in {**hypothesis.arguments, **hypothesis.env}.items():
        if isinstance(value, str) and len(value) > MAX_VALUE_LENGTH:
            raise Refused(f"{hypothesis.id}: the value of {key} is longer than {MAX_VALUE_LENGTH} characters")
    if hypothesis.group == OPEN:
        _check_open(hypothesis, changed, levers)
    elif hypothesis.group == POINT:
        _check_point(hypothesis, changed, levers, proposer)
    else:
        _check_lever(hypothesis, changed, levers)


def check_shipped(history: History, hypothesis: Hypothesis) -> None:
    """Raise Refused unless a move of group `shipped` is exactly the recipe that this campaign re-tunes, and its first one."""
    retunes = history.campaign().retunes
    if retunes is None:
        raise Refused(f"{hypothesis.id}: `{SHIPPED}` is for re-tunings: this campaign starts from no shipped recipe")
    if hypothesis.by != RETUNER:
        raise Refused(f"{hypothesis.id}: `{SHIPPED}` is asked for by fixed code alone")
    earlier = [h.id for h in history.hypotheses() if h.id != hypothesis.id and h.group == SHIPPED]
    if earlier:
        raise Refused(f"{hypothesis.id}: `{SHIPPED}` was {earlier[0]} already")
    if candidate(history, hypothesis).digest() != retunes.recipe.digest():
        raise Refused(f"{hypothesis.id}: `{SHIPPED}` is the recipe that {retunes.of} shipped, and no other one")


def _check_lever(hypothesis: Hypothesis, changed: list[str], levers: list[dict[str, Any]]) -> None:
    lever = next((x for x in levers if x["id"] == hypothesis.group), None)
    if lever is None:
        known = ", ".join(x["id"] for x in levers)
        raise Refused(f"{hypothesis.id}: no lever group {hypothesis.group}; known: {known}, open")
    foreign = [k for k in changed if k not in lever["changes"]]
    if foreign:
        raise Refused(f"{hypothesis.id}: {', '.join(foreign)} is not part of lever group {hypothesis.group}: one group at a time")


def _check_open(hypothesis: Hypothesis, changed: list[str], levers: list[dict[str, Any]]) -> None:
    if len(changed) > 1 and not any(set(changed) <= {name, *forced(levers, name)} for name in changed):
        raise Refused(
            f"{hypothesis.id}: `open` changes one argument or variable and what it forces, not {', '.join(changed)}; "
            f"no lever says under `forces` that one of them forces the others"
        )


def _check_point(hypothesis: Hypothesis, changed: list[str], levers: list[dict[str, Any]], proposer: str) -> None:
    if proposer not in BLACK_BOX:
        raise Refused(
            f"{hypothesis.id}: `point` is for black-box proposers ({', '.join(BLACK_BOX)}), not {proposer or 'a person'}: "
            f"one group at a time"
        )
    catalogued = {name for lever in levers for name in lever["changes"]}
    foreign = [k for k in changed if k not in catalogued]
    if foreign:
        raise Refused(f"{hypothesis.id}: {', '.join(foreign)} is in no lever group: `point` sets values of the catalog only")


def forced(levers: list[dict[str, Any]], name: str) -> set[str]:
    """Return the arguments that an argument forces, by the word of any lever (`forces: {argument: [others]}`)."""
    return {other for lever in levers for other in lever.get("forces", {}).get(name, ())}


def failed_before(history: History, recipe: str) -> str:
    """Return the launch in which this very recipe failed by its own doing, or ''.

    A launch whose allocation was lost did not fail, so its recipe may run again.
    """
    for launch in history.launches():
        trial = history.trial(launch.id)
        if launch.kind in ("prepare", "check"):  # these run something else than the recipe's steps
            continue
        if launch.recipe == recipe and trial is not None and trial.status not in ("ok", "infrastructure"):
            return launch.id
    return ""


def check_recipe(history: History, recipe: str) -> None:
    """Raise Refused for a recipe that failed, or was measured, unchanged."""
    failed = failed_before(history, recipe)
    if failed:
        trial = history.trial(failed)
        status = trial.status if trial else ""
        how = "was stopped early in" if status == "stopped_early" else "failed in"
        raise Refused(f"this recipe {how} {failed} ({status}) and is not launched again unchanged")
    done = [
        x.id for x in history.launches() if x.recipe == recipe and x.kind in ("calibrate", "search") and not _lost(history, x.id)
    ]
    if done:
        raise Refused(f"this recipe was measured in {done[0]} already; remeasure is the place to measure again")


def _lost(history: History, launch_id: str) -> bool:
    trial = history.trial(launch_id)
    return trial is not None and trial.status == "infrastructure"


def no_launch_streak(history: History) -> int:
    """Return how many hypotheses in a row, up to now, launched nothing."""
    launched = {x.hypothesis for x in history.launches() if x.kind == "search"}
    streak = 0
    for hypothesis in reversed(history.hypotheses()):
        if hypothesis.id in launched:
            break
        streak += 1
    return streak
