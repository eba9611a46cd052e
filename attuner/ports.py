"""The five ports that steps see, and the Kit that wires them. Adapters implement them and never see each other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

from attuner.core.base import Record
from attuner.core.campaign import Campaign
from attuner.core.events import Event, History
from attuner.core.fingerprint import Fingerprint
from attuner.core.lesson import CampaignSummary, Lesson
from attuner.core.message import Question, Said
from attuner.core.recipe import EffectiveConfig, Recipe
from attuner.core.run import Attempt, RankStep, StepRecord
from attuner.core.search import Hypothesis, Stop


class JobSpec(Record):
    """What a launcher needs to run one attempt: what the runner reads, and the devices it reserves."""

    module: str
    job: dict[str, Any]
    env: dict[str, str]
    gpus: int
    gpus_per_node: int
    resource: str
    time_limit_s: float
    hang_s: float
    torchrun: bool = True
    devices_by: Literal["driver", "job"] = "driver"
    """Who reserves the devices on the cluster: the driver, or the job itself (a framework that makes Ray actors of its own)."""
    step_pattern: str = ""
    """Of a framework that writes no steps file: a line of the log that matches is a step done."""


class JobState(Record):
    """What a launcher knows of an attempt. `gone` means proved: node or head dead, job unknown."""

    phase: str
    detail: str = ""
    gone: bool = False

    def done(self) -> bool:
        """Tell whether the attempt holds no device any more."""
        return self.phase in ("succeeded", "failed", "stopped") or self.gone


class Answer(Record):
    """What a question in SQL was answered; `cut` where there were more rows."""

    columns: list[str]
    rows: list[list[Any]]
    cut: bool = False


class Stamp(Record):
    """Allocation and release of one attempt, as its runner or its cluster tells them (unix seconds)."""

    allocated_at: float | None = None
    released_at: float | None = None
    last_heartbeat: float | None = None
    hosts: list[str] = []
    hardware: list[str] = []
    outcome: str = ""
    phase: str = ""
    detail: str = ""
    other_load: float | None = None
    gpu_seconds: float | None = None
    """Device-seconds from allocation to release, where the cluster accounts for each node's own times (pods)."""
    nodes: list[str] = []
    """The cluster's ids of the nodes it ran on."""
    lost_nodes: list[str] = []
    """Those that went away under it; a further attempt keeps off them."""
    warnings: list[str] = []
    """What the job saw of its nodes and couldn't mend, a line each: slow, fewer devices, a port that is down."""
    versions: dict[str, str] = {}
    """Versions read inside the job: framework, torch, cuda, nccl, nccl_plugin, driver, image digest."""


class RunFiles(Record):
    """Where one attempt wrote, and what its runner stamped."""

    folder: str
    stamp: Stamp


class RunResult(Record):
    """What a stack reads from the files of a run."""

    steps: list[StepRecord]
    status: str
    cause: str = ""
    phase: str = ""
    arguments: dict[str, Any] = {}
    env: dict[str, str] | None = None
    fingerprint: Fingerprint | None = None
    unseen: str = ""


class Stack(Protocol):
    """Describes one training framework: resolves recipes, builds the command, reads what a run left."""

    name: str
    components: frozenset[str]
    """Component tests that it can run; a same-math swap that needs another one stays `review`."""

    def freeze(self, campaign: Campaign, folder: Path) -> str:
        """Make the dataset's rows under `folder` once and return `name@sha256:…`."""
        ...

    def resolve(self, recipe: Recipe, campaign: Campaign) -> EffectiveConfig:
        """Return the final values; raises Refused with the formula for a layout that can't be built."""
        ...

    def in_fp32(self, recipe: Recipe) -> Recipe | None:
        """Return the same training in fp32, for a check launch; None if it is in fp32 already or has no such twin."""
        ...

    def close(self) -> None:
        """End what resolving started."""
        ...

    def command(self, recipe: Recipe, campaign: Campaign, *, kind: str, profile_steps: int, inputs: dict[str, Any]) -> JobSpec:
        """Return what to run for one launch."""
        ...

    def read(self, files: RunFiles) -> RunResult:
        """Return steps and outcome of a finished run."""
        ...

    def progress(self, files: RunFiles) -> int:
        """Return how many steps a running attempt has written."""
        ...

    def component(self, files: RunFiles) -> dict[str, Any]:
        """Return what a component test measured."""
        ...

    def trace(self, files: RunFiles) -> list[RankStep]:
        """Return the breakdown of the profiled steps; empty if the run left no trace."""
        ...


class Launcher(Protocol):
    """Runs attempts on a cluster. Submission attaches when the attempt exists already."""

    def submit(self, attempt: Attempt, job: JobSpec) -> Attempt:
        """Submit, or attach to what runs under this submission id; return where it runs. Raises Transient."""
        ...

    def poll(self, attempt: Attempt) -> JobState:
        """Return the state. Raises Transient when contact is lost and nothing is proved."""
        ...

    def cancel(self, attempt: Attempt) -> None:
        """Stop the attempt and free its devices; harmless if it has ended."""
        ...

    def files(self, attempt: Attempt) -> RunFiles:
        """Return what the attempt has written so far."""
        ...

    def close(self) -> None:
        """Free what this launcher itself started."""
        ...


class Proposer(Protocol):
    """Searches. It reads history and returns one move; it can't launch, edit rules or touch the ledger."""

    def ask(self, brief: Brief) -> Hypothesis | Stop:
        """Return the next hypothesis, or a stop with its evidence."""
        ...

    def close(self) -> None:
        """End what asking started."""
        ...


@runtime_checkable
class Adviser(Protocol):
    """Answers a question outside a search by filling in one form; it can do nothing else."""

    def say(self, question: Question, desk: Desk) -> Said:
        """Return the form as it was filled in. Raises BudgetExceeded, Transient, UserError or Broken as `ask` does."""
        ...


class Ledger(Protocol):
    """Append-only truth. Any process may read; a campaign is written by the holder of its lease."""

    def append(self, campaign_id: str, kind: str, key: str, record: Record) -> int:
        """Append one record durably and return its sequence number. Raises Refused when fenced off."""
        ...

    def history(self, campaign_id: str) -> list[Event]:
        """Return the campaign's events in order."""
        ...

    def campaigns(self) -> list[str]:
        """Return the ids of all campaigns, oldest first."""
        ...

    def ask(self, events: list[Event], sql: str) -> Answer:
        """Return what one SELECT says of a copy of these events and the ledger's views on them; it can touch nothing.

        Raises UserError for SQL that is wrong, writes, or takes too long.
        """
        ...

    def claim(self, campaign_id: str) -> int:
        """Take the campaign's lease and return its fencing number. Raises Refused if a live process holds it."""
        ...

    def release(self, campaign_id: str) -> None:
        """Give the lease back; harmless if it is not held."""
        ...

    def close(self) -> None:
        """Give back every lease and let go of the file; harmless twice."""
        ...


class Watch(Protocol):
    """Who looks on: the terminal's live block. It only listens."""

    def event(self, kind: str, key: str, record: Record) -> None:
        """One record was appended."""
        ...

    def progress(self, launch_id: str, phase: str, steps: int) -> None:
        """A launch is in this phase and has done so many steps."""
        ...


class Clock(Protocol):
    """Time, so that tests and replay may own it."""

    def now(self) -> float:
        """Return unix seconds."""
        ...

    def sleep(self, seconds: float) -> None:
        """Wait."""
        ...


__all__ = [
    "Adviser",
    "Answer",
    "Brief",
    "Clock",
    "Desk",
    "Event",
    "JobSpec",
    "JobState",
    "Kit",
    "Launcher",
    "Ledger",
    "Proposer",
    "RunFiles",
    "RunResult",
    "Stack",
    "Stamp",
    "Watch",
]


Desk = Callable[[str, dict[str, Any]], Any]
"""Asks fixed code by name and input, both plain JSON, and returns a JSON answer. Raises Refused or UserError."""


@dataclass(frozen=True)
class Brief:
    """All that a proposer sees: the campaign, its past (a copy), the lever catalog, and what earlier campaigns taught."""

    campaign: Campaign
    levers: list[dict[str, Any]]
    remaining_gpu_hours: float
    next_id: str
    history: History
    lessons: list[Lesson] = field(default_factory=list)
    summaries: list[CampaignSummary] = field(default_factory=list)
    source: str = ""
    """Folders of the framework's pinned source that the proposer may read, joined as in PATH; '' if there is none."""
    desk: Desk | None = None
    """Answers what only fixed code may do for a proposer (steps/desk.py lists it); None: nobody answers."""


@dataclass(frozen=True)
class Kit:
    """The wired adapters and the folder of one campaign: all that a step may use."""

    stack: Stack
    launcher: Launcher
    proposer: Proposer
    ledger: Ledger
    clock: Clock
    folder: Path
    rules_dir: Path
    watch: Watch
    lessons_dir: Path | None = None
    """configs/lessons/ of the project; None: this campaign is taught nothing."""
    prices_file: Path | None = None
    """configs/device_prices.yaml of the project; None: the report states no dollars."""
    source: str = ""
    """Folders of the framework's pinned source, joined as in PATH; '' if there is none to look into."""
    versions: Callable[[], dict[str, str]] | None = None
    """Reads which software launches run with, holding no device; None: it can't be seen from here."""
