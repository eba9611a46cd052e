"""Looks ahead: which recipes a few single moves can reach, what each is worth, and which move to make first.

One launch changes one lever group, but levers are worth more together: a deeper pipeline frees the memory that lets
recompute go. So the plan values whole destinations (up to `DEPTH` moves from a launch that has run) by the worth of the
destination per device-hour of all launches on the way, and starts with the step that is worth most by itself.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from attuner.core.base import Value
from attuner.proposers.catalog_moves import Move
from attuner.proposers.catalog_value import Outlook

DEPTH = 3
WIDE, DEEP = 16, 6
"""Places that are gone on from: after one move, and after two."""
PATIENCE = 0.85
"""A destination one launch farther off counts so much less: every step may go wrong."""

Key = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Root:
    """A launch that has run, from which a move may start."""

    launch: str
    arguments: Mapping[str, Value]
    facts: Mapping[str, Value] = field(default_factory=dict)
    only: frozenset[str] | None = None
    """It ran out of memory: lever groups that need less of it, and only they may start here."""


@dataclass(frozen=True)
class Place:
    """Final arguments that some moves lead to."""

    root: Root
    moves: tuple[Move, ...]
    arguments: Mapping[str, Value]
    outlook: Outlook
    score: float = 0.0


@dataclass
class Planner:
    """Finds the best destination; the callables do what depends on the campaign."""

    options: Callable[[Place, frozenset[str]], list[Move]]
    """Moves from a place, without some groups."""
    value: Callable[[Root, tuple[Move, ...], Mapping[str, Value]], Outlook | None]
    """The outlook of a place over the leader; None for one that can't be built."""
    band: float
    depth: int = DEPTH
    _seen: dict[Key, Place] = field(default_factory=dict)

    def places(self, roots: list[Root]) -> list[Place]:
        """Return every place within reach that isn't a root, best score first."""
        self._seen = {_key(r.arguments): Place(r, (), r.arguments, Outlook(0.0, 0.0)) for r in roots}
        known = set(self._seen)
        front = list(self._seen.values())
        for depth in range(1, self.depth + 1):
            reached = [q for p in front for q in self._from(p, depth)]
            front = self._front(reached, WIDE if depth == 1 else DEEP)
            if not front:
                break
        return sorted((p for k, p in self._seen.items() if k not in known), key=lambda p: -p.score)

    def _from(self, place: Place, depth: int) -> list[Place]:
        done = frozenset(m.group for m in place.moves)
        reached = []
        for move in self.options(place, done):
            if place.root.only is not None and not place.moves and move.group not in place.root.only:
                continue
            arguments = {**place.arguments, **move.arguments}
            key = _key(arguments)
            if key in self._seen:
                continue
            moves = (*place.moves, move)
            outlook = self.value(place.root, moves, arguments)
            if outlook is None:
                continue
            score = outlook.worth(self.band) / (outlook.cost * depth) * PATIENCE ** (depth - 1)
            found = Place(place.root, moves, arguments, outlook, score)
            self._seen[key] = found
            reached.append(found)
        return reached

    def _front(self, reached: list[Place], size: int) -> list[Place]:
        """Return where to go on from: the best that fit, and the fastest that might fit after a change that frees memory."""
        fitting = sorted(reached, key=lambda p: -p.outlook.worth(self.band))[:size]
        tight = sorted((p for p in reached if p.outlook.fits < 0.5), key=lambda p: -p.outlook.gain)[: size // 2]
        return [*fitting, *(p for p in tight if p not in fitting)]

    def first_steps(self, place: Place) -> list[Place]:
        """Return the single moves that begin the way to a place, the one that is worth most by itself first."""
        if len(place.moves) == 1:
            return [place]
        steps = []
        for order in itertools.permutations(place.moves, 1):
            arguments = {**place.root.arguments, **order[0].arguments}
            outlook = self.value(place.root, order, arguments)
            if outlook is not None:
                steps.append(Place(place.root, order, arguments, outlook, place.score))
        return sorted(steps, key=lambda p: (-(p.outlook.fits > 0.5), -(p.outlook.worth(self.band)), -p.outlook.gain))


def _key(arguments: Mapping[str, Value]) -> Key:
    return tuple(sorted((k, str(v)) for k, v in arguments.items() if v is not None))
