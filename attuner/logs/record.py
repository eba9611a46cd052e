"""What a log tells of one training step. None: the log doesn't say; NaN: it says that it was no number."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(slots=True)
class LogRecord:
    """One training step (or, with an interval, the mean of several) as printed. Validation lines never become one."""

    iteration: int
    """The framework's own count; `zero_based` tells whether its first is 0."""
    grammar: str = ""
    total_iterations: int | None = None
    consumed_samples: int | None = None
    elapsed_ms: float | None = None
    tflops_per_gpu: float | None = None
    """By the framework's own formula, which changes between versions: never compare runs by it."""
    tokens_per_s: float | None = None
    """Of all devices: printed, or worked out from batch, sequence length and time where the log or the caller tells them."""
    tokens_per_s_per_gpu: float | None = None
    """As printed."""
    samples_per_s: float | None = None
    global_batch_size: int | None = None
    seq_length: int | None = None
    """Of this line; None where it isn't printed."""
    learning_rate: float | None = None
    """The next step's, in Megatron."""
    lm_loss: float | None = None
    """NaN where a whole line leaves it out although an update was made: Megatron prints no loss that isn't a number."""
    aux_losses: dict[str, float] = field(default_factory=dict)
    grad_norm: float | None = None
    loss_scale: float | None = None
    skipped_iterations: int | None = None
    nan_iterations: int | None = None
    peak_mem_gib: float | None = None
    num_label_tokens: float | None = None
    zero_based: bool = False
    whole: bool = True
    """False where another writer broke the line, or its end is missing: what is told holds, the rest is unknown."""
    rejoined: bool = False
    """The line was put together from two pieces."""
    locale: bool = False
    """Decimal commas were read as such."""
    approximate: tuple[str, ...] = ()
    """Fields that were printed with so few digits that they are near the value only."""
    oddities: tuple[str, ...] = ()
    """What can't be, or was lost to rounding; for a person."""
    rank: int | None = None
    writer: str = ""
    line: int = 0

    @property
    def stepped(self) -> bool | None:
        """Tell whether any update was made; None where the log doesn't say. Loss scaling skips updates."""
        if self.skipped_iterations is None:
            return None
        return self.lm_loss is not None or self.skipped_iterations == 0


@dataclass(slots=True)
class MemoryReport:
    """Device memory of one rank as it reported it, GiB; None: not told. Peaks are since the process began."""

    rank: int
    iteration: int | None = None
    allocated_gib: float | None = None
    max_allocated_gib: float | None = None
    reserved_gib: float | None = None
    max_reserved_gib: float | None = None
    used_gib: float | None = None
    """Of the whole device, other processes included."""
    total_gib: float | None = None


@dataclass
class LogFacts:
    """What a log tells beside its steps. Of every rank the last memory report."""

    seq_length: int | None = None
    world_size: int | None = None
    memory: dict[int, MemoryReport] = field(default_factory=dict)
    parameters: dict[tuple[int, ...], int] = field(default_factory=dict)
    """Number of parameters by model-parallel position, as Megatron prints it: (tensor, pipeline), or (tensor, gtp, pipeline)."""
    broken: int = 0
    """Step lines that another writer broke, rejoined ones included."""
    dropped: int = 0
    """Step lines of which nothing could be read, or that only repeat another rank's."""
    lines: int = 0


def steady(records: Sequence[LogRecord]) -> list[LogRecord]:
    """Return the records whose time says how fast a run is: without each start's first (warm-up) and skipped ones."""
    out, last = [], None
    for record in records:
        if last is not None and record.iteration > last and record.stepped is not False and record.elapsed_ms is not None:
            out.append(record)
        last = record.iteration
    return out
