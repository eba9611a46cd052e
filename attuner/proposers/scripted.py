"""The proposer `scripted`: a list of moves written in the campaign file, in order; for tests, drills and a person's own list."""

from __future__ import annotations

from attuner.core.errors import UserError
from attuner.core.search import Hypothesis, Stop
from attuner.ports import Brief

KEYS = {"group", "arguments", "env", "parent", "title", "bottleneck", "mechanism", "predicted_gain", "predicted_error"}


class Scripted:
    """Plays `proposer.script`; a move's `parent` is `leader` (the default), a launch id, or `h01`."""

    def close(self) -> None:
        """Nothing to end; see ports.Proposer."""

    def ask(self, brief: Brief) -> Hypothesis | Stop:
        """Return the next move of the script; see ports.Proposer."""
        script = brief.campaign.proposer.script
        done = sum(not h.by for h in brief.history.hypotheses())  # what a person queued is no move of the script
        if done >= len(script):
            return Stop(reason="the script has ended", evidence=[f"{done} moves played"])
        move = dict(script[done])
        unknown = set(move) - KEYS
        if unknown or "group" not in move:
            raise UserError(
                f"proposer.script[{done}]: {', '.join(sorted(unknown)) or 'group'}: {'unknown key' if unknown else 'is missing'}"
            )
        parent = move.pop("parent", "leader")
        changed = {**_part(move, "arguments", done), **_part(move, "env", done)}
        defaults = {
            "id": brief.next_id,
            "parent": _launch(brief, str(parent)),
            "title": ", ".join(f"{k}={v}" for k, v in changed.items()),
            "bottleneck": "as scripted",
            "mechanism": "as scripted",
            "predicted_gain": 0.0,
            "predicted_error": 1.0,
        }
        try:
            return Hypothesis.model_validate({**defaults, **move})
        except ValueError as error:
            raise UserError(f"proposer.script[{done}]: {' '.join(str(error).split()[:20])}") from None


def _part(move: dict[str, object], name: str, number: int) -> dict[str, object]:
    part = move.get(name, {})
    if not isinstance(part, dict):
        raise UserError(f"proposer.script[{number}].{name}: expected keys and values, not {part!r}")
    return part


def _launch(brief: Brief, parent: str) -> str:
    """Return the launch that a move starts from; a hypothesis stands for the launch it became."""
    if parent == "leader":
        return brief.history.leader()
    became = {x.hypothesis: x.id for x in brief.history.launches() if x.hypothesis and x.kind == "search"}
    return became.get(parent, parent)
