"""Rounds of the final re-measurement: where a rerun changes leader or band, or a person wants it, it is made again with fresh
launches; those of earlier rounds stay on record and are charged."""

from __future__ import annotations

from attuner.core.events import History
from attuner.core.run import Launch


def current(history: History) -> int:
    """Return the number of the round that counts, from 1."""
    return 1 + sum(x.new_round for x in history.reruns())


def purpose(side: str, pair: int, number: int) -> str:
    """Return the purpose of one launch of a round; the first round's carries no number."""
    return f"{side} {pair}" if number == 1 else f"{side} {pair} round {number}"


def launches(history: History) -> list[Launch]:
    """Return the launches of the round that counts."""
    number = current(history)
    end = f" round {number}"
    found = [x for x in history.launches() if x.kind == "remeasure"]
    return [x for x in found if (x.purpose.endswith(end) if number > 1 else " round " not in x.purpose)]
