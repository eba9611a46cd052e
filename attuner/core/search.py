"""What the search says: a Hypothesis or a Stop, and the Lever it was read from."""

from __future__ import annotations

from pydantic import Field

from attuner.core.base import Record, Value


class Hypothesis(Record):
    """One lever group changed against a parent, written down before its launch."""

    id: str
    parent: str = Field(description="launch id of the trial it starts from; the leader's or an earlier one's")
    group: str = Field(description="a lever group of levers.yaml, or `open`")
    arguments: dict[str, Value] = Field(default_factory=dict)
    env: dict[str, str] = Field(default_factory=dict)
    title: str = Field(description="short: 'micro batch 1→4'")
    bottleneck: str
    mechanism: str
    predicted_gain: float = Field(description="fraction over the leader, 0.2 = +20%")
    predicted_error: float = Field(ge=0, description="half width of the prediction, as a fraction")


class Stop(Record):
    """The proposer's reason to end the search, with what it rests on."""

    reason: str
    evidence: list[str] = Field(default_factory=list)
