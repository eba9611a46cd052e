"""Plays one campaign on a replay table, in this process: the real steps, a ledger in memory, virtual time, no proposer process.

Protocol: the search may spend 30 baseline launches, rounded up to 10 device-hours (`auto`, as the paper's); calibration and
re-measurement come on top. With `all_in` they are paid from the same 30. Every arm pays by the same rules.
"""

from __future__ import annotations

import math
import shutil
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from attuner.bench.arms import Arm
from attuner.bench.outcome import Outcome, outcome_of
from attuner.config import load_cluster
from attuner.core.base import Record
from attuner.core.campaign import Budget, Campaign, Cluster, Device, EarlyStop, GateSpec, LauncherSpec, LaunchLimits, StackSpec
from attuner.core.events import Event, History
from attuner.core.search import Stop
from attuner.launchers.replay_table import EventClock, TableReplay
from attuner.ledgers.memory import MemoryLedger
from attuner.policy.budget import AUTO_LAUNCHES, AUTO_ROUND, RESERVE
from attuner.ports import Kit, Proposer
from attuner.stacks.replay.stack import VERSION, ReplayStack
from attuner.steps.birth import birth
from attuner.steps.calibrate import calibrate, plan_calibration, plan_prepare
from attuner.steps.common import put
from attuner.steps.gate import gate, launch_of
from attuner.steps.hypothesize import hypothesize
from attuner.steps.launch import launch
from attuner.steps.profile import profile
from attuner.steps.remeasure import plan_remeasure, remeasure
from attuner.steps.score import score
from attuner.steps.ship import decide_shipment, on_paper
from attuner.tables import Table, load_table, perturbed
from attuner.wiring import Unwatched, proposer_class

CALIBRATIONS, PAIRS = 5, 3


class Protocol(Record):
    """What is the same for every arm of a comparison."""

    launches: int = AUTO_LAUNCHES
    all_in: bool = False
    early_stop: bool = False
    perturb: dict[str, float] = {}


@dataclass(frozen=True)
class Entry:
    """One campaign to play."""

    table: Path
    arm: Arm
    seed: int
    protocol: Protocol


def search_budget(table: Table, launches: int) -> float:
    """Return what `launches` baseline launches cost, rounded up to 10 device-hours."""
    return math.ceil(launches * table.gpu_hours(table.start()) / AUTO_ROUND) * AUTO_ROUND


def campaign(table: Table, entry: Entry, *, configs: Path | None = None) -> Campaign:
    """Return the campaign of one arm, seed and protocol on a table."""
    protocol, hours = entry.protocol, table.gpu_hours(table.start())
    budget = search_budget(table, protocol.launches)
    if not protocol.all_in:
        budget += (CALIBRATIONS + 2 * PAIRS * RESERVE) * hours
    cluster = cluster_of(table, configs)
    if entry.arm.plain():
        cluster = cluster.model_copy(update={"figures": {}})  # without figures no estimate is made: it would go unused
    return Campaign(
        id=f"bench-{entry.arm.name.replace('+', '-').replace('_', '-')}-{entry.seed:04d}",
        name="bench",
        workload=table.workload(),
        baseline=table.baseline(),
        stack=StackSpec(name="replay", version=VERSION),
        launcher=LauncherSpec(name="replay", cluster=cluster, table=str(table.path), seed=entry.seed),
        proposer=entry.arm.spec(entry.seed, {k: list(v) for k, v in table.space().items()}),
        budget=Budget(gpu_hours=budget),
        gate=GateSpec(probe="optional"),
        launch=LaunchLimits(expected_s=table.duration_s(table.start()), max_s=1e6, hang_s=1e6),
        estimate=entry.arm.estimate(),
        early_stop=EarlyStop(enabled=protocol.early_stop),
        source_file=str(table.path),
    )


def cluster_of(table: Table, configs: Path | None) -> Cluster:
    """Return the cluster that a table stands for, with the figures of the cluster file that it names."""
    about = table.about
    known = Cluster(name=about.hardware, devices=about.gpus, devices_per_node=about.gpus_per_node)
    if about.cluster:
        root = configs or table.path.parent.parent
        known = load_cluster(root / about.cluster)
    device = Device(kind=about.device_kind, mem_gib=about.device_mem_gib or known.device.mem_gib)
    sizes = {"devices": about.gpus, "devices_per_node": about.gpus_per_node}
    return known.model_copy(update={**sizes, "device": device, "resource": "GPU" if about.device_kind == "cuda" else "slot"})


class OnceLedger(MemoryLedger):
    """A ledger in memory whose rows are parsed once: thousands of histories are read in a comparison."""

    def __init__(self, clock: EventClock) -> None:
        super().__init__(now=clock.now)
        self._events: list[Event] = []

    def history(self, campaign_id: str) -> list[Event]:
        """Return the campaign's events in order; see ports.Ledger."""
        with self.store.thread:
            self._events += [row.event() for row in self.store.rows[len(self._events) :]]
        return [e for e in self._events if e.campaign_id == campaign_id]


def play(entry: Entry, *, rules: Path, configs: Path | None = None) -> Outcome:
    """Play one campaign to its end and return what came of it.

    Raises:
        UserError: the table or the arm can't be used.
    """
    table = perturbed(load_table(entry.table), **entry.protocol.perturb)
    born = campaign(table, entry, configs=configs)
    began = time.perf_counter()
    folder = Path(tempfile.mkdtemp(prefix="attuner-bench-"))
    try:
        history = run(table, born, proposer_class(entry.arm.proposer, f"arm {entry.arm.name}")(), folder=folder, rules=rules)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return outcome_of(table, history, arm=entry.arm.name, seed=entry.seed, real_s=time.perf_counter() - began)


def run(table: Table, born: Campaign, proposer: Proposer, *, folder: Path, rules: Path) -> History:
    """Run a campaign on a table, from birth to what it would ship, and return its past."""
    clock = EventClock()
    kit = Kit(
        stack=ReplayStack(table),
        launcher=TableReplay(table, clock, seed=born.launcher.seed, watched=born.early_stop.enabled),
        proposer=proposer,
        ledger=OnceLedger(clock),
        clock=clock,
        folder=folder,
        rules_dir=rules,
        watch=Unwatched(),
    )
    try:
        steps(kit, born)
        history = History(kit.ledger.history(born.id))
        # what would ship goes on record without a report: thousands of campaigns are played
        put(kit, born.id, "shipment", "final", on_paper(decide_shipment(history, folder), history))
        return History(kit.ledger.history(born.id))
    finally:
        proposer.close()


def steps(kit: Kit, born: Campaign) -> None:
    """Take a campaign from birth to its re-measurement, as flows/campaign.py composes it, without Prefect."""
    birth(kit, born)
    prepared = plan_prepare(kit, born.id)
    if prepared and launch(kit, born.id, prepared).status != "ok":
        launch(kit, born.id, prepared, again=True)
    for number in (1, 2):
        launches = plan_calibration(kit, born.id, number=number)
        for launch_id in launches:
            _measured(kit, born.id, launch_id)
        found = calibrate(kit, born.id, number=number) if launches else None
        if found is None or not found.busy:
            break
    _search(kit, born.id)
    for launch_id in plan_remeasure(kit, born.id):
        _measured(kit, born.id, launch_id)
    remeasure(kit, born.id)


def _measured(kit: Kit, name: str, launch_id: str) -> None:
    launch(kit, name, launch_id)
    profile(kit, name, launch_id)
    found = score(kit, name, launch_id)
    if found is None or not found.valid:
        launch(kit, name, launch_id, again=True)
        profile(kit, name, launch_id)
        score(kit, name, launch_id)


def _search(kit: Kit, name: str) -> None:
    number = 1
    while not isinstance(hypothesize(kit, name, f"h{number:02d}"), Stop):
        gate(kit, name, f"h{number:02d}")
        launch_id = launch_of(History(kit.ledger.history(name)), f"h{number:02d}")
        if launch_id:
            _measured(kit, name, launch_id)
        number += 1
