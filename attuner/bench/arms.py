"""The arms of a comparison: a proposer with its settings, and what fixed code may do for it."""

from __future__ import annotations

from attuner.core.base import Record, Value
from attuner.core.campaign import EstimateSpec, ProposerSpec
from attuner.core.errors import UserError
from attuner.wiring import PROPOSERS

PREFILTER = "+prefilter"
NO_HOLD = "-hold"
BLACK_BOX = ("random", "tpe", "fixed_knobs")


class Arm(Record):
    """One side of a comparison. `hold_back`: the gate may hold launches back on the estimate's word."""

    name: str
    proposer: str
    prefilter: bool = False
    hold_back: bool = False

    def spec(self, seed: int, space: dict[str, list[Value]]) -> ProposerSpec:
        """Return the proposer's settings for one campaign."""
        return ProposerSpec.model_validate({"name": self.proposer, "seed": seed, "prefilter": self.prefilter, "space": space})

    def plain(self) -> bool:
        """Tell whether nothing of this arm uses the estimate, so that none need be made."""
        return self.proposer in BLACK_BOX and not self.prefilter and not self.hold_back

    def estimate(self) -> EstimateSpec:
        """Return what the estimate may do."""
        return EstimateSpec(hold_back=self.hold_back)


def arm(name: str) -> Arm:
    """Return the arm of this name: a proposer, `NAME+prefilter` (black-box that skips what the estimate holds back), `NAME-hold`.

    A black-box proposer's arm is plain: without the estimate, not even at the gate. Any other arm has the gate hold back.

    Raises:
        UserError: no such proposer, or a suffix that says nothing of it.
    """
    plain = name.removesuffix(PREFILTER).removesuffix(NO_HOLD)
    if plain not in PROPOSERS:
        raise UserError(f"arm {name}: no proposer {plain}; known: {', '.join(sorted(PROPOSERS))}")
    black_box = plain in BLACK_BOX
    if (name.endswith(PREFILTER) and not black_box) or (name.endswith(NO_HOLD) and black_box):
        raise UserError(f"arm {name}: `{PREFILTER}` is for {', '.join(BLACK_BOX)}, `{NO_HOLD}` for the others")
    filtered = name.endswith(PREFILTER)
    return Arm(name=name, proposer=plain, prefilter=filtered, hold_back=filtered or not (black_box or name.endswith(NO_HOLD)))
