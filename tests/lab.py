"""A laboratory for the laws of a campaign: real steps, policy and ledger, a replayed cluster, a virtual clock.

The stack is McoreStack's own `command` and `read`; only its resolver (a process of megatron-core) is replaced by a few
lines of arithmetic, and what a trace or a component test would hold is given by the test.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from attuner.core.base import Record, Value
from attuner.core.campaign import Campaign
from attuner.core.errors import Refused
from attuner.core.events import Event, History
from attuner.core.judgement import ComponentTest, Shipment
from attuner.core.recipe import EffectiveConfig, Recipe, Workload
from attuner.core.run import RankStep
from attuner.core.search import Stop
from attuner.launchers.replay import Replay, Row, VirtualClock
from attuner.ledgers.memory import MemoryLedger, Store
from attuner.policy.register import Register, build_register
from attuner.ports import JobSpec, Kit, Proposer, RunFiles, RunResult
from attuner.proposers.scripted import Scripted
from attuner.stacks.mcore.stack import McoreStack
from attuner.steps.birth import birth
from attuner.steps.calibrate import calibrate, plan_calibration, plan_prepare
from attuner.steps.gate import gate, launch_of
from attuner.steps.hypothesize import hypothesize
from attuner.steps.launch import launch
from attuner.steps.profile import profile
from attuner.steps.remeasure import plan_remeasure, remeasure
from attuner.steps.score import score
from attuner.steps.ship import ship

ROOT = Path(__file__).resolve().parents[1]
ID = "lab-0001"
BASE: dict[str, Value] = {
    "hidden_size": 64,
    "seq_length": 16,
    "global_batch_size": 8,
    "lr": 0.001,
    "seed": 1,
    "tensor_model_parallel_size": 2,
    "pipeline_model_parallel_size": 1,
    "micro_batch_size": 1,
    "recompute_granularity": "full",
    "attention_implementation": "local",
    "num_moe_experts": 4,
}
MICRO = {"group": "micro-batch", "arguments": {"micro_batch_size": 4}}
LR = {"group": "open", "arguments": {"lr": 0.01}}
LAYOUT = {"group": "layout", "arguments": {"tensor_model_parallel_size": 1}}
SDPA = {"group": "attention", "arguments": {"attention_implementation": "sdpa"}}
UNCOVERED = {"group": "open", "arguments": {"bucket_size": 1000}}
HOUR = 3600.0


def rule(number: int, covers: list[str], *, kind: str = "placement", decision: str = "admit", **more: Any) -> dict[str, Any]:
    """A well-formed entry of a register with examples that come out."""
    key = covers[0].rstrip("*")
    expect = more.pop("expect", decision)
    return {
        "id": f"LAB-TST-{number:03d}",
        "kind": kind,
        "decision": decision,
        "covers": covers,
        "reason": "written for a test, and long enough to be a reason",
        "source": ["tests/lab.py"],
        "added": "2026-11-30",
        "examples": [{"before": {key: 1}, "after": {key: 2}, "expect": expect}, {"before": {key: 1}, "expect": "silent"}],
        **more,
    }


RULES = [
    rule(1, ["lr", "global_batch_size", "seq_length", "seed"], kind="objective", decision="refuse"),
    rule(2, ["tensor_model_parallel_size", "micro_batch_size", "recompute_granularity", "fact:num_microbatches"]),
    rule(3, ["fact:data_parallel_size", "pipeline_model_parallel_size"]),
    rule(4, ["attention_implementation"], kind="same-math", component="attention"),
]
LEVERS = [
    {"id": name, "changes": changes, "eases": {}, "idea": "as the test says", "options": [], "source": ["tests/lab.py"]}
    for name, changes in (
        ("micro-batch", ["micro_batch_size"]),
        ("layout", ["tensor_model_parallel_size", "pipeline_model_parallel_size"]),
        ("recompute", ["recompute_granularity"]),
        ("attention", ["attention_implementation"]),
    )
]


def register(*entries: dict[str, Any]) -> Register:
    return build_register("lab", [("lab.yaml", entry) for entry in entries or RULES])


def write_rules(folder: Path, levers: list[dict[str, Any]] | None = None) -> Path:
    """Write a small register for the stack `mcore` and return its folder."""
    (folder / "mcore").mkdir(parents=True)
    (folder / "mcore" / "lab.yaml").write_text(yaml.safe_dump(RULES))
    (folder / "mcore" / "levers.yaml").write_text(yaml.safe_dump(LEVERS if levers is None else levers))
    (folder / "tolerances.yaml").write_text((ROOT / "rules" / "tolerances.yaml").read_text())
    return folder


def campaign(*script: dict[str, Any], **changes: Any) -> Campaign:
    """A small campaign; `changes` replace whole sections. A replayed table holds no gradients, so no probe is asked for."""
    device = {"kind": "cpu"}
    data: dict[str, Any] = {
        "id": ID,
        "name": "lab",
        "workload": workload().data(),
        "baseline": {"stack": "mcore", "arguments": BASE},
        "stack": {"name": "mcore", "version": "0.16.1"},
        "launcher": {"name": "replay", "cluster": {"name": "lab", "devices": 2, "devices_per_node": 2, "device": device}},
        "proposer": {"name": "scripted", "script": list(script)},
        "budget": {"gpu_hours": 100.0},
        "launch": {"expected_s": 10.0, "max_s": 600.0},
        "source_file": "lab.yaml",
    }
    gate = {"probe": "optional", **changes.get("gate", {})}
    return Campaign.model_validate({**data, **changes, "gate": gate})


def workload(**changes: Any) -> Workload:
    given = {"model": "lab", "dataset": "rows", "seq_len": 16, "global_batch": 8, "precision": "fp32", "seed": 1}
    return Workload.model_validate({**given, "steps": 4, "warmup_steps": 1, "gpus": 2, "hardware": "cpu", **changes})


class LabStack(McoreStack):
    """McoreStack with arithmetic for a resolver; what traces and component tests hold is given."""

    def __init__(self, replay: Replay) -> None:
        super().__init__()
        self.replay = replay
        self.component_passes = True
        self.shares: dict[str, float] | None = None
        self.spoiled = False

    def freeze(self, campaign: Campaign, folder: Path) -> str:
        return f"{campaign.workload.dataset}@sha256:0"

    def resolve(self, recipe: Recipe, campaign: Campaign) -> EffectiveConfig:
        return resolved(recipe, gpus=campaign.workload.gpus)

    def command(self, recipe: Recipe, campaign: Campaign, *, kind: str, profile_steps: int, inputs: dict[str, Any]) -> JobSpec:
        self.replay.final_arguments(recipe.arguments, self.resolve(recipe, campaign).arguments)
        return super().command(recipe, campaign, kind=kind, profile_steps=profile_steps, inputs=inputs)

    def read(self, files: RunFiles) -> RunResult:
        found = super().read(files)
        if not (self.spoiled and found.steps):
            return found
        last = found.steps[-1].model_copy(update={"lm_loss": float("nan")})
        return found.model_copy(update={"steps": [*found.steps[:-1], last]})

    def component(self, files: RunFiles) -> dict[str, Any]:
        said = {"passed": self.component_passes, "dtype": "fp32", "why": "as the test says"}
        figures = {k for k, f in ComponentTest.model_fields.items() if f.annotation is float}
        return {**said, **dict.fromkeys(figures, 1e-6)}

    def trace(self, files: RunFiles) -> list[RankStep]:
        return [rank_step(**self.shares)] if self.shares else []


def resolved(recipe: Recipe, *, gpus: int = 2) -> EffectiveConfig:
    """Final values of a recipe, by arithmetic; a default that the recipe may override stands in for the framework's."""
    final: dict[str, Value] = {"bucket_size": None, "moe_aux_loss_coeff": 0, **recipe.arguments}
    tp, pp = final["tensor_model_parallel_size"], final["pipeline_model_parallel_size"]
    micro, rows = final["micro_batch_size"], final["global_batch_size"]
    assert isinstance(tp, int)
    assert isinstance(pp, int)
    assert isinstance(micro, int)
    assert isinstance(rows, int)
    if gpus % (tp * pp):
        raise Refused(f"world size {gpus} does not divide by tp·pp = {tp * pp}")
    facts: dict[str, Value] = {"data_parallel_size": gpus // tp // pp, "num_microbatches": rows // micro // (gpus // tp // pp)}
    return EffectiveConfig(arguments=final, env=recipe.env, facts=facts)


def rank_step(**shares: float) -> RankStep:
    """One profiled step of one second; a key of the form `comm:KIND` is exposed communication of that kind."""
    comm = {k.removeprefix("comm:"): v for k, v in shares.items() if k.startswith("comm:")}
    parts = {name: shares.get(name, 0.0) for name in ("compute_s", "host_s", "idle_s")}
    return RankStep(rank=0, step=4, step_s=1.0, exposed_comm_s=sum(comm.values()), comm_by_kind=comm, **parts)


class Hasty(VirtualClock):
    """Virtual time in which a wait is at least a minute, so that a replayed launch needs few polls."""

    def sleep(self, seconds: float) -> None:
        super().sleep(max(seconds, 60.0))


class PowerCut(BaseException):
    """The process dies here: no handler may answer it."""


class MortalLedger(MemoryLedger):
    """A ledger whose process dies instead of writing its record number `lives` + 1."""

    def __init__(self, store: Store, *, lives: int | None, clock: VirtualClock) -> None:
        super().__init__(store, now=clock.now)
        self.lives = lives
        self._read: list[Event] = []

    def history(self, campaign_id: str) -> list[Event]:
        """As in the ledger itself, but a row, which never changes, is parsed once: hundreds of campaigns are played here."""
        self._read += [row.event() for row in self.store.rows[len(self._read) :]]
        return [event for event in self._read if event.campaign_id == campaign_id]

    def append(self, campaign_id: str, kind: str, key: str, record: Record) -> int:
        if self.lives is not None:
            if self.lives == 0:
                raise PowerCut(f"before {kind} {key}")
            self.lives -= 1
        return super().append(campaign_id, kind, key, record)


class Seen:
    """Who looks on: keeps what it heard."""

    def __init__(self) -> None:
        self.kinds: list[str] = []

    def event(self, kind: str, key: str, record: Record) -> None:
        self.kinds.append(kind)

    def progress(self, launch_id: str, phase: str, steps: int) -> None:
        pass


@dataclass
class Lab:
    """Everything of one campaign that outlives a process: the store, the cluster, the clock, the folders."""

    folder: Path
    table: list[Row]
    proposer: Proposer = field(default_factory=Scripted)
    levers: list[dict[str, Any]] | None = None
    store: Store = field(default_factory=Store)
    clock: VirtualClock = field(default_factory=Hasty)

    def __post_init__(self) -> None:
        self.rules = write_rules(self.folder / "rules", self.levers)
        self.replay = Replay(self.table, self.clock)
        self.stack = LabStack(self.replay)

    def kit(self, *, lives: int | None = None, launcher: Any = None) -> Kit:
        """A process of its own on what is left of the last one."""
        self.store.holders.clear()
        ledger = MortalLedger(self.store, lives=None, clock=self.clock)
        if ledger.campaigns():
            ledger.claim(ID)
        ledger.lives = lives
        return Kit(
            stack=self.stack,
            launcher=launcher or self.replay,
            proposer=self.proposer,
            ledger=ledger,
            clock=self.clock,
            folder=self.folder / ID,
            rules_dir=self.rules,
            watch=Seen(),
        )

    def history(self) -> History:
        return History(MemoryLedger(self.store).history(ID))


def measured(kit: Kit, launch_id: str) -> None:
    """As flows/campaign.py: launch, profile, score, and one fresh attempt for an invalid measurement or a failed baseline."""
    launch(kit, ID, launch_id)
    profile(kit, ID, launch_id)
    found = score(kit, ID, launch_id)
    if found is None or not found.valid:
        launch(kit, ID, launch_id, again=True)
        profile(kit, ID, launch_id)
        score(kit, ID, launch_id)


def search(kit: Kit) -> None:
    """As flows/campaign.py: one change at a time."""
    number = 1
    while not isinstance(hypothesize(kit, ID, f"h{number:02d}"), Stop):
        gate(kit, ID, f"h{number:02d}")
        launch_id = launch_of(History(kit.ledger.history(ID)), f"h{number:02d}")
        if launch_id:
            measured(kit, launch_id)
        number += 1


def begin(kit: Kit, born: Campaign) -> None:
    """Birth, checkpoint and calibration."""
    birth(kit, born)
    prepared = plan_prepare(kit, ID)
    if prepared and launch(kit, ID, prepared).status != "ok":
        launch(kit, ID, prepared, again=True)
    for number in (1, 2):
        launches = plan_calibration(kit, ID, number=number)
        for launch_id in launches:
            measured(kit, launch_id)
        if not launches or not calibrate(kit, ID, number=number).busy:
            break


def finish(kit: Kit) -> Shipment:
    """Re-measure and ship."""
    for launch_id in plan_remeasure(kit, ID):
        measured(kit, launch_id)
    remeasure(kit, ID)
    return ship(kit, ID)


def play(kit: Kit, born: Campaign) -> Shipment:
    """The whole campaign, as flows/campaign.py composes it."""
    begin(kit, born)
    search(kit)
    return finish(kit)
