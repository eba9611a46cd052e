"""What was run: Launch (decided), Attempt (submitted), Settlement (charged), EarlyEnd (ended on purpose), Trial (what came of
it), Evidence, StepBreakdown.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from attuner.core.base import Record
from attuner.core.failure import Failure
from attuner.core.fingerprint import Fingerprint

LaunchKind = Literal["prepare", "calibrate", "search", "check", "remeasure"]
TrialStatus = Literal["ok", "oom", "hang", "crash", "infrastructure", "stopped_early"]


class Launch(Record):
    """A launch that was decided, with its reserve; recorded before anything is submitted."""

    id: str
    kind: LaunchKind
    recipe: str = Field(description="digest of the recipe")
    hypothesis: str = ""
    purpose: str
    reserve_gpu_hours: float
    time_limit_s: float
    profile_steps: int = 0
    steps: int | None = Field(default=None, description="of a check launch that trains; None: the workload's")
    component: list[str] = Field(default_factory=list, description="of a check: component, argument, old value, new value")


class Attempt(Record):
    """One submission of a launch; a lost allocation opens a second one."""

    launch_id: str
    number: int
    submission_id: str
    folder: str = Field(description="where the run writes; survives the Ray head")
    address: str = ""
    head_pid: int | None = None
    submitted_at: float
    time_limit_s: float | None = Field(
        default=None, description="how long it may hold its devices; less than its launch's where the budget pays for no more"
    )


class Settlement(Record):
    """The charge of one attempt, from allocation to release."""

    launch_id: str
    attempt: int
    gpus: int
    allocated_at: float | None
    released_at: float | None
    gpu_hours: float
    how: Literal["released", "last_heartbeat", "never_allocated", "pods"] = Field(
        description="who tells its end; pods: summed over pods, each with its own times"
    )
    detail: str = Field(default="", description="the launcher's last word on the job")
    lost: bool = Field(default=False, description="the allocation was proved gone")
    interrupted: bool = Field(default=False, description="stopped together with its campaign; a resume tries afresh")


class EarlyEnd(Record):
    """A running attempt that was ended before its last step; recorded before its job is stopped."""

    launch_id: str
    attempt: int
    step: int = Field(description="the last step that was seen")
    cause: str


class StepRecord(Record):
    """One training step of a run, as the trainer wrote it."""

    step: int
    kind: Literal["warmup", "scored", "profiled"]
    t: float
    step_s: float
    rank_step_s: list[float] = Field(default_factory=list)
    lm_loss: float
    aux: dict[str, float] = Field(default_factory=dict)
    grad_norm: float | None = None
    loss_tokens: float | None = Field(description="tokens that the loss is a mean over; None: a log that doesn't say")
    tokens: int
    peak_mem_gib: float | None = None


class Trial(Record):
    """What came of a launch: the steps, the cause if it failed, the cost."""

    launch_id: str
    attempt: int
    status: TrialStatus
    cause: str = ""
    phase: str = ""
    steps: list[StepRecord] = Field(default_factory=list)
    gpu_hours: float = Field(description="of all its attempts so far")
    duration_s: float = 0.0
    hosts: list[str] = Field(default_factory=list)
    hardware: list[str] = Field(default_factory=list, description="models of the devices it ran on")
    gpus: int = 0
    env: dict[str, str] | None = Field(default=None, description="what a rank reported of its environment; None: nothing")
    config_digest: str = Field(default="", description="digest of the final arguments that the run itself reported")
    other_load: float | None = Field(default=None, description="mean cores other processes took while scored steps ran")
    fingerprint: Fingerprint | None = Field(default=None, description="what the probe saw of the first steps")
    unseen: str = Field(default="", description="why there is no fingerprint")
    failure: Failure | None = Field(default=None, description="of one that failed: what its logs tell")
    nodes: list[str] = Field(default_factory=list, description="the cluster's ids of the nodes it ran on")
    versions: dict[str, str] = Field(
        default_factory=dict, description="read inside the job: framework, torch, cuda, nccl, nccl_plugin, driver, image"
    )

    def own_gpu_hours(self) -> float:
        """Return what its own attempt cost, device-hours: without lost ones, and without what a rerun set aside."""
        return self.duration_s * self.gpus / 3600.0 if self.duration_s and self.gpus else self.gpu_hours

    def step0_loss(self) -> float | None:
        """Return the loss of the first step: same weights, same rows, no update yet."""
        return self.steps[0].lm_loss if self.steps and self.steps[0].step == 0 else None

    def peak_mem_gib(self) -> float | None:
        """Return the largest device memory of any step, GiB."""
        return max((s.peak_mem_gib for s in self.steps if s.peak_mem_gib is not None), default=None)


class Evidence(Record):
    """What the second and the third look judge: the steps of one run and what the probe saw of its first ones."""

    label: str = Field(description="what the run is called in findings: a launch with its attempt, a folder, a file")
    recipe: str = Field(default="", description="digest of its recipe")
    steps: list[StepRecord] = Field(default_factory=list)
    fingerprint: Fingerprint | None = None
    unseen: str = Field(default="", description="why there is no fingerprint")
    precision: str = Field(default="", description="fp32, bf16, fp16 or other; '': nobody says")
    printed: bool = Field(default=False, description="read from a log: losses of seven digits, gradient norms of three decimals")

    @classmethod
    def of(cls, trial: Trial, recipe: str, *, precision: str = "") -> Evidence:
        """Return a trial as evidence; `precision` is the workload's, for a run without a fingerprint."""
        seen = trial.fingerprint
        return cls(
            label=f"{trial.launch_id}#{trial.attempt}",
            recipe=recipe,
            steps=trial.steps,
            fingerprint=seen,
            unseen=trial.unseen,
            precision=seen.precision if seen else precision,
        )

    def losses(self) -> dict[int, float]:
        """Return the loss by step."""
        return {s.step: s.lm_loss for s in self.steps}

    def step(self, number: int) -> StepRecord | None:
        """Return one step."""
        return next((s for s in self.steps if s.step == number), None)


class RankStep(Record):
    """Where one profiled step of one rank went; compute, exposed comm, copies, host and idle add up to `step_s`."""

    rank: int
    step: int
    step_s: float
    compute_s: float
    exposed_comm_s: float
    host_s: float
    idle_s: float
    overlapped_comm_s: float = 0.0
    copy_s: float = Field(default=0.0, description="memory copies with nothing else under way")
    comm_by_kind: dict[str, float] = Field(default_factory=dict, description="exposed seconds by collective")
    comm_by_group: dict[str, float] = Field(
        default_factory=dict, description="exposed seconds by group: tensor, data, expert, pipeline, context, unknown"
    )
    hidden_by_group: dict[str, float] = Field(default_factory=dict, description="hidden seconds by group")
    detail: dict[str, float] = Field(
        default_factory=dict,
        description="seconds inside them, where the source tells: forward, backward, recompute, optimizer, bubble, straggler",
    )


class StepBreakdown(Record):
    """Where the profiled steps of a launch went, per rank and step."""

    launch_id: str
    attempt: int = 1
    rank_steps: list[RankStep]

    def shares(self) -> dict[str, float]:
        """Return mean fractions of the step: compute, exposed_comm, copy, host, idle."""
        total = sum(r.step_s for r in self.rank_steps) or 1.0
        parts = {name: f"{name}_s" for name in ("compute", "exposed_comm", "copy", "host", "idle")}
        return {name: sum(getattr(r, field) for r in self.rank_steps) / total for name, field in parts.items()}

    def comm_shares(self) -> dict[str, float]:
        """Return exposed communication by collective, as fractions of the step."""
        total = sum(r.step_s for r in self.rank_steps) or 1.0
        return _summed([r.comm_by_kind for r in self.rank_steps], total)

    def group_shares(self) -> dict[str, float]:
        """Return exposed communication by group (tensor, data, expert, …), as fractions of the step."""
        return _summed([r.comm_by_group for r in self.rank_steps], sum(r.step_s for r in self.rank_steps) or 1.0)

    def detail_shares(self) -> dict[str, float]:
        """Return what the source tells beside the parts (recompute, optimizer, bubble, …), as fractions of the step."""
        return _summed([r.detail for r in self.rank_steps], sum(r.step_s for r in self.rank_steps) or 1.0)


def _summed(parts: list[dict[str, float]], total: float) -> dict[str, float]:
    return {k: sum(p.get(k, 0.0) for p in parts) / total for k in sorted({k for p in parts for k in p})}
