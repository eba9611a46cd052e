"""What a trace is brought down to: plain records in whole nanoseconds, one `StepParts` per profiled step.

The parts of a step (`compute`, `exposed`, `copy`, `host`, `idle`) are a partition of it: every nanosecond belongs to
exactly one, and they add up to `span` exactly.
"""

from __future__ import annotations

from dataclasses import dataclass, field

PARTS = ("compute", "exposed", "copy", "host", "idle")


@dataclass
class StepParts:
    """Where one step of one rank went, ns."""

    number: int
    start: int
    span: int
    compute: int
    exposed: int
    """Communication with nothing computing beside it."""
    copy: int
    """Memory copies (and fills) with nothing else on the device."""
    host: int
    idle: int
    hidden: int
    """Communication beside computation: inside `compute`."""
    copies: int
    """All memory copies, whatever else went on."""
    exposed_by_kind: dict[str, int] = field(default_factory=dict)
    exposed_by_group: dict[str, int] = field(default_factory=dict)
    hidden_by_group: dict[str, int] = field(default_factory=dict)
    detail: dict[str, int] = field(default_factory=dict)
    """Inside `compute`, where the trace tells: forward, backward, recompute, optimizer."""
    records: int = 0
    """Kernels (CPU run: operators) that begin in the step."""
    missing: int = 0
    """Kernel launches in the step that left no record on the device."""
    doubt: str = ""
    """Why the step is left out of means; '' for a step that counts."""
    collectives: list[tuple[str, int]] = field(default_factory=list)
    """Kind and length of each communication kernel that begins in the step, in order."""


@dataclass
class LaunchStats:
    """What was launched and when it began on the device; delays in ns from the launch call's start."""

    records: int = 0
    """Kernels, copies and fills on the device."""
    matched: int = 0
    """Of them, those whose launch is in the trace."""
    lost: int = 0
    """Kernel launches without a record on the device."""
    shared: int = 0
    """Records beyond the first under one correlation id, of launches that launch one thing."""
    graph: int = 0
    """Records of CUDA graphs: many under one launch."""
    graph_launches: int = 0
    clamped: int = 0
    """Records that begin before their launch (clocks differ): their delay counts as nothing."""
    mean_delay: int = 0
    median_delay: int = 0
    max_queue: int = 0
    """Largest number of launches at once that had not begun."""
    overlapping: int = 0
    """Records that begin before the one before them on their stream has ended."""
    clock_shift: int = 0
    """ns that device times were moved by, where the two clocks plainly differ."""


@dataclass
class Use:
    """One kernel's time over the steps that count."""

    name: str
    count: int
    total: int
    """Sum over its runs, ns; runs that overlap count twice."""
    communicates: bool


@dataclass
class Quirk:
    """Something about a trace that a reader has to know: what, how often, in words."""

    code: str
    count: int
    text: str


@dataclass
class Lane:
    """A track of the timeline of one step: stretches in ns from the step's start."""

    name: str
    css: str
    stretches: list[tuple[int, int]]


@dataclass
class RankProfile:
    """All that is told of one rank's trace."""

    rank: int
    source: str = ""
    rank_from: str = ""
    """trace, file name or order."""
    device: str = "cpu"
    """cpu, cuda or rocm."""
    hardware: str = ""
    world_size: int | None = None
    backend: str = ""
    steps: list[StepParts] = field(default_factory=list)
    whole: bool = False
    """There were no step marks: the one step is the whole of what was recorded."""
    launches: LaunchStats | None = None
    kernels: list[Use] = field(default_factory=list)
    groups_from: dict[str, int] = field(default_factory=dict)
    """Collectives whose group was told by their process group's `description`, as the `only_group` of several ranks in
    which such a collective runs, by `kind` alone, or not (`untold`)."""
    quirks: list[Quirk] = field(default_factory=list)
    timeline: list[Lane] = field(default_factory=list)
    timeline_step: int | None = None
    events: int = 0

    def counted(self) -> list[StepParts]:
        """Return the steps that means are taken over; all of them if every one is in doubt."""
        return [s for s in self.steps if not s.doubt] or self.steps

    def mean(self, part: str) -> float:
        """Return the mean of a part over the steps that count, ns."""
        steps = self.counted()
        return sum(getattr(s, part) for s in steps) / len(steps) if steps else 0.0

    def say(self, code: str, count: int, text: str) -> None:
        """Note a quirk, if it happened at all."""
        if count:
            self.quirks.append(Quirk(code, count, text))
