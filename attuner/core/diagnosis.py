"""Diagnosis: what holds a step up, ranked, each with the most that easing it can give and the levers that ease it."""

from __future__ import annotations

from pydantic import Field

from attuner.core.base import Record


class Bottleneck(Record):
    """One part of the step, what it may yield, and what eases it."""

    name: str = Field(description="compute, exposed_comm:GROUP (tensor, data, expert, …), bubble, host, copy, idle, recompute, …")
    share: float = Field(ge=0, description="fraction of the step, mean over ranks and steps")
    max_gain: float = Field(ge=0, description="fraction of speed if it vanished and nothing else grew: 1/(1 - share) - 1")
    why: str = Field(default="", description="what it was told from, in a line")
    levers: list[str] = Field(default_factory=list, description="lever groups that ease it, strongest first")


class Diagnosis(Record):
    """Of one launch."""

    launch_id: str = ""
    bottlenecks: list[Bottleneck] = Field(default_factory=list, description="largest bound first")
    bubble: float | None = Field(default=None, description="share of the step, from the schedule: (pp-1)/(m·vp + pp-1)")
    stage_imbalance: float | None = Field(default=None, description="slowest stage over the mean, minus one")
    launch_bound: bool | None = Field(default=None, description="the device waits for launches, not for work")
    mem_headroom_gib: float | None = None
    stragglers: list[str] = Field(default_factory=list, description="ranks that others wait for, one line each")
    flat: bool = Field(default=False, description="no bottleneck stands out: exploring is as good as anything")
    notes: list[str] = Field(default_factory=list, description="what could not be told, and why")
