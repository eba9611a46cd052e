"""The proposer `random`: uniform draws from the space, without repetition; what the framework can't build is never drawn."""

from __future__ import annotations

import random

from attuner.core.search import Hypothesis, Stop
from attuner.ports import Brief
from attuner.proposers.space import Prefilter, Space, drawn, exhausted, move, seen


class RandomSearch:
    """Implements ports.Proposer by chance alone. The draw depends on the seed and on what was asked before, nothing else."""

    def close(self) -> None:
        """Nothing to end; see ports.Proposer."""

    def ask(self, brief: Brief) -> Hypothesis | Stop:
        """Return a point that was not asked for yet; see ports.Proposer."""
        space = Space.of(brief)
        known = {space.key(s.point) for s in seen(brief, space)}
        chance = random.Random(f"{brief.campaign.proposer.seed} {len(brief.history.hypotheses())}")
        prefilter = Prefilter(brief) if brief.campaign.proposer.prefilter else None
        for point in drawn(space, chance):
            if space.key(point) in known or space.unbuildable(point) or (prefilter and prefilter.skips(space, point)):
                continue
            return move(brief, space, point, why="drawn by chance")
        return exhausted(space, known, prefilter)
