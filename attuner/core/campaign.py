"""Campaign: a frozen workload, a baseline recipe, a cluster and a budget, as a person writes them and as they are born."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from attuner.core.base import Record, Value
from attuner.core.environment import Retunes
from attuner.core.kube import KubeSpec
from attuner.core.message import ModelPrice
from attuner.core.recipe import Change, Recipe, Workload

OBSERVED_STEPS = 2
"""Steps that the probe looks at, from step 0 on: the first update, and what the second one starts from."""


class StackSpec(Record):
    """The training framework, and which one exactly. What nobody states isn't part of the record or its digest."""

    name: str = Field(description="mcore, megatron, slime, bridge, automodel or replay (docs/stacks.md)")
    version: str = Field(description="of the framework: what launches run with, and what scopes of rules speak of")
    source: str = Field(default="", description="folder of the job's framework checkout; bridge: or a dumped *.yaml")
    slime_source: str = Field(default="", description="slime: folder of slime's checkout")
    commit: str = Field(default="", description="commit that the checkout must be at; its version where it has no .git")
    patches: list[str] = Field(default_factory=list, description="names of what is applied on top of the commit")
    entry: Literal["", "pretrain_gpt.py", "slime"] = Field(default="", description="megatron: whose command line it is")
    torch: str = Field(default="", description="version on the cluster; '' is not known, and no rule's scope speaks of it")
    transformer_engine: str = Field(default="", description="version on the cluster; '' is not known")
    job_source: str = Field(default="", description="folder of the checkout on the cluster's nodes; default: source")
    script: str = Field(default="", description="megatron: training script in the checkout; default: pretrain_gpt.py")
    script_arguments: list[str] = Field(default_factory=list, description="megatron: words for the script's own options")

    @model_serializer(mode="wrap")
    def _stated(self, whole: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {name: value for name, value in whole(self).items() if value or name in ("name", "version")}


class Device(Record):
    """One device of the cluster."""

    kind: Literal["cpu", "cuda"] = Field(
        default="cpu", description="what the figures of the estimate and of the report stand for"
    )
    mem_gib: float | None = Field(default=None, gt=0, description="memory limit of one device; enforced on a CPU")
    threads: int = Field(default=1, gt=0, description="compute threads of a CPU device")


class Figure(Record):
    """One published or measured figure of a machine, with where it is from."""

    value: float = Field(description="in the unit that its name ends with")
    source: str = Field(description="where it is from")
    note: str = Field(default="", description="what to know of it")


class Cluster(Record):
    """Where launches run: the Ray resource that stands for a device, and how many there are."""

    name: str = Field(description="what it is called on record and in reports")
    resource: str = Field(default="slot", description="Ray resource of one device: slot (CPU) or GPU")
    devices: int = Field(gt=0, description="of the whole cluster; a campaign asks for no more")
    devices_per_node: int = Field(gt=0, description="of one node")
    device: Device = Device()
    env: dict[str, str] = Field(default_factory=dict, description="environment that the launcher adds to every job")
    autoscaled: bool = Field(default=False, description="nodes are added on demand: too few of them now is no refusal")
    cpus_per_node: float = Field(default=0, ge=0, description="Ray CPUs reserved on each node together with its devices")
    storage: str = Field(default="", description="where runs write on the cluster: '' (ATTUNER_HOME), a path, s3://bucket/prefix")
    scratch: str = Field(default="", description="folder that all nodes of a run see, where it writes before storage gets it")
    keep_ranks: list[int] = Field(default_factory=list, description="ranks whose traces are kept; empty: all")
    start_timeout_s: float = Field(default=600, gt=0, description="a run that got no devices by then is given up, uncharged")
    node_check: Literal["auto", "off"] = Field(default="auto", description="auto: probe the nodes when there are several")
    slow_node_factor: float = Field(default=1.5, gt=1, description="a node slower than the median by this is slow or sick")
    kube: KubeSpec | None = Field(default=None, description="launcher kuberay: namespace, image and pods (docs/kubernetes.md)")
    figures: dict[str, Figure] = Field(
        default_factory=dict, description="speeds and sizes for the estimate, by name (attuner/estimate/hardware.py lists them)"
    )


class LauncherSpec(Record):
    """Which adapter launches, on which cluster; `table` and `seed` are the replay launcher's."""

    name: str = Field(description="ray_jobs, kuberay or replay")
    cluster: Cluster
    table: str = Field(default="", description="replay: the table that is played: its description, or its .csv")
    seed: int = Field(default=0, description="replay: seeds the noise")


class ProposerSpec(Record):
    """Which proposer searches, with its settings."""

    name: str = Field(description="catalog, claude, manual, random, tpe, fixed_knobs or scripted")
    script: list[dict[str, object]] = Field(default_factory=list, description="scripted: its moves, in order")
    wait_h: float = Field(default=24.0, ge=0, description="manual: hours to wait for a person's next move before the search ends")
    seed: int = Field(default=0, description="random, tpe, fixed_knobs")
    space: dict[str, list[Value]] = Field(
        default_factory=dict, description="values to try of each argument; default: what levers.yaml says under `space`"
    )
    prefilter: bool = Field(default=False, description="random, tpe, fixed_knobs: skip what the estimate holds back")
    model: str = Field(default="", description="claude: name of the model")
    max_usd: float = Field(default=0.0, ge=0, description="claude: dollars that a campaign may spend on it")
    arm: str = Field(
        default="full", description="claude: full, bare, no_catalog, no_diagnosis, public_guide, fixed_knobs or committee"
    )
    base_url: str = Field(default="", description="claude: another server that speaks the Messages API")
    effort: str = Field(default="", description="claude: low, medium, high; '' is the model's default")
    price: ModelPrice | None = Field(default=None, description="claude: of the model; read from configs/prices/ if not given")


class EstimateSpec(Record):
    """What the estimate may do beside predicting."""

    hold_back: bool = Field(default=True, description="don't launch what surely runs out of memory or can't pay for itself")


class EarlyStop(Record):
    """When a running trial that is surely slower than the leader is ended."""

    enabled: bool = Field(default=True, description="false: every trial runs to its end")
    confidence: float = Field(default=0.999, gt=0.5, lt=1, description="of the sequential test, over a whole launch")


class Budget(Record):
    """Device-hours that the campaign may spend; `auto` is 30 × one unprofiled launch, rounded up to 10."""

    gpu_hours: Annotated[float, Field(gt=0, allow_inf_nan=False)] | Literal["auto"] = Field(
        default="auto", description="device-hours of all launches together; auto: 30 × one unprofiled launch, rounded up to 10"
    )


class Noise(Record):
    """How the band is made from the calibration runs."""

    calibration_runs: int = Field(default=5, ge=5, description="baseline launches that make mean and band")
    floor: float = Field(default=0.03, gt=0, description="the band is no smaller than this, a fraction")
    sigmas: float = Field(default=3.0, gt=0, description="so many standard deviations of the calibration make the band")
    busy_sigma: float = Field(default=0.08, gt=0, description="above it the machine is too busy: calibrate once more")
    max_step_spread: float = Field(default=3.0, gt=1, description="slowest scored step over the median of a valid run")


class GateSpec(Record):
    """How the gate treats what it can't decide alone."""

    step0_loss_tolerance: float = Field(
        default=0.05, gt=0, le=0.05, description="fraction by which the loss of step 0 may differ, at most"
    )
    review: Literal["before_ship", "report_only"] = Field(
        default="before_ship",
        description="before_ship: what is open for review ships only if a person admits it; report_only: the report lists it",
    )
    review_wait_h: float = Field(default=24.0, ge=0, description="hours a deployed run waits for a person's review")
    component_tests: Literal["auto", "manual"] = Field(
        default="auto", description="auto: run a missing component test as a charged check launch"
    )
    probe: Literal["required", "optional"] = Field(
        default="required", description="optional: a replayed table has no gradients to look at"
    )
    checks: Literal["auto", "manual"] = Field(
        default="auto", description="auto: a deviation that only a check launch can decide gets one, charged"
    )


class Remeasure(Record):
    """The final interleaved re-measurement."""

    pairs: int = Field(default=3, ge=3, description="of launches, leader and baseline in turn")


class LaunchLimits(Record):
    """Times that bound one launch, in seconds."""

    expected_s: float | None = Field(default=None, gt=0, description="a person's guess of one launch, for the first reserve")
    max_s: float = Field(default=600, gt=0, description="a launch that runs longer is ended")
    hang_s: float = Field(default=120, gt=0, description="no step for this long is a hang")
    profile_steps: int = Field(
        default=1, ge=1, description="further steps of a profiled launch, under the profiler and without a score"
    )


class Published(Record):
    """What a recipe's authors report of it."""

    value: float = Field(gt=0, description="tokens per second and device, unless `unit` says otherwise")
    unit: str = Field(default="tokens/s/GPU", description="of the value")
    source: str = Field(description="where they say so")
    note: str = Field(default="", description="their hardware, software or workload where it differs from this campaign's")


class Adaptation(Record):
    """One thing that was changed from the public recipe to run it here."""

    change: str = Field(description="what")
    why: str = Field(description="why")


class Prepare(Record):
    """The common checkpoint that every launch starts from: given, or made once by training some steps."""

    checkpoint: str = Field(default="", description="folder of an existing checkpoint; then nothing is trained")
    steps: int = Field(default=0, ge=0, description="steps that make the checkpoint, on rows of their own")
    arguments: dict[str, Value] = Field(default_factory=dict, description="what differs from the baseline while making it")


class Campaign(Record):
    """Everything that is fixed when a campaign is born; recorded once, never edited."""

    id: str = ""
    name: str = Field(
        pattern=r"^[a-z0-9]([a-z0-9-]{0,22}[a-z0-9])?$", description="begins the campaign's id; small letters, digits, dashes"
    )
    workload: Workload
    baseline: Recipe
    stack: StackSpec
    launcher: LauncherSpec
    proposer: ProposerSpec
    budget: Budget = Budget()
    noise: Noise = Noise()
    gate: GateSpec = GateSpec()
    remeasure: Remeasure = Remeasure()
    launch: LaunchLimits = LaunchLimits()
    prepare: Prepare = Prepare()
    estimate: EstimateSpec = EstimateSpec()
    early_stop: EarlyStop = EarlyStop()
    published: Published | None = Field(default=None, description="from the recipe's file: what its authors report")
    adaptations: list[Adaptation] = Field(
        default_factory=list, description="from the recipe's file: what was changed to run here"
    )
    register_lock: str = ""
    source_file: str = ""
    changed: list[Change] = Field(default_factory=list, description="what a run form set instead of what the file says")
    retunes: Retunes | None = Field(default=None, description="of a re-tuning: the shipped recipe that it starts from")

    @model_validator(mode="after")
    def _check(self) -> Campaign:
        cluster = self.launcher.cluster
        if self.workload.gpus > cluster.devices:
            raise ValueError(
                f"workload.gpus: {self.workload.gpus} is more than the {cluster.devices} devices of cluster {cluster.name}"
            )
        if self.workload.warmup_steps >= self.workload.steps:
            raise ValueError(
                f"workload.warmup_steps: {self.workload.warmup_steps} leaves no scored step of {self.workload.steps}"
            )
        if self.baseline.stack != self.stack.name:
            raise ValueError(f"baseline: written for stack {self.baseline.stack}, the campaign says {self.stack.name}")
        return self
