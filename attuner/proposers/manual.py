"""The proposer `manual`: people propose (`attuner propose`, the form in the UI); fixed code queues and judges their moves.

It is asked only when nothing is queued and nobody has proposed anything for as long as the campaign waits (proposer.wait_h).
"""

from __future__ import annotations

from attuner.core.search import Hypothesis, Stop
from attuner.ports import Brief


class Manual:
    """Implements ports.Proposer for people."""

    def close(self) -> None:
        """Nothing to end; see ports.Proposer."""

    def ask(self, brief: Brief) -> Hypothesis | Stop:
        """Return the stop: nobody proposed anything in time; see ports.Proposer."""
        moves = sum(bool(h.by) for h in brief.history.hypotheses())
        tried = [x.id for x in brief.history.launches() if x.kind == "search"]
        return Stop(
            reason=f"nobody proposed a move for {brief.campaign.proposer.wait_h:g} h",
            evidence=[f"{moves} moves of people", f"launched: {', '.join(tried) or 'none'}", _band(brief)],
        )


def _band(brief: Brief) -> str:
    calibration = brief.history.calibration()
    return f"band {calibration.band:.1%}" if calibration else "not calibrated"
