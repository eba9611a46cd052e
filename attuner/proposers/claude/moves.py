"""From a submitted tool call to a record: a Hypothesis or a Stop, or a line on what is wrong with it."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError

from attuner.core.errors import UserError
from attuner.core.search import Hypothesis, Stop
from attuner.ports import Brief
from attuner.proposers.claude.arms import KNOB_ARGUMENTS, KNOBS, Arm

MAX_TEXT = 2_000


def hypothesis(given: dict[str, Any], brief: Brief, arm: Arm, assumptions: list[str]) -> Hypothesis:
    """Return the move. Raises UserError with one line on the first thing that is wrong."""
    parent = str(given.get("parent", "leader"))
    body = {
        **given,
        "id": brief.next_id,
        "parent": brief.history.leader() if parent == "leader" else parent,
        "assumptions": assumptions,
    }
    try:
        move = Hypothesis.model_validate(body)
    except ValueError as error:
        raise UserError(_first(error)) from None
    if not move.arguments and not move.env:
        raise UserError("arguments, env: both are empty; a hypothesis changes something")
    for name in ("title", "bottleneck", "mechanism"):
        if not 0 < len(getattr(move, name)) <= MAX_TEXT:
            raise UserError(f"{name}: say it in 1 to {MAX_TEXT} characters")
    foreign = [k for k in (*move.arguments, *(f"env:{k}" for k in move.env)) if arm.knobs and k not in KNOB_ARGUMENTS]
    if foreign:
        raise UserError(f"{', '.join(foreign)}: not among the knobs of this campaign: {', '.join(KNOBS)}")
    return move


def stop(given: dict[str, Any], assumptions: list[str]) -> Stop:
    """Return the stop. Raises UserError without a reason or evidence."""
    try:
        found = Stop.model_validate(given)
    except ValueError as error:
        raise UserError(_first(error)) from None
    if not found.reason or not found.evidence:
        raise UserError("reason, evidence: a stop says why, with at least one figure")
    return found.model_copy(update={"evidence": [*found.evidence, *(f"assumed: {x}" for x in assumptions)]})


def _first(error: ValueError) -> str:
    if not isinstance(error, ValidationError):
        return " ".join(str(error).split())[:200]
    problems = error.errors()
    where = ".".join(str(x) for x in problems[0]["loc"])
    return f"{where}: {problems[0]['msg']}"
