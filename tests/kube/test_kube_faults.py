"""What a launch survives on Kubernetes, through the step `launch` and a ledger: nothing is launched twice within an attempt,
and what pods held is what the ledger says, whatever went wrong."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lab
import pytest
from kube_lab import NAMESPACE, Driver, Kube, roles, until
from kube_nodes import quota

from attuner.core.errors import Transient, UserError
from attuner.core.recipe import Recipe
from attuner.core.run import Launch, Trial
from attuner.ledgers.memory import MemoryLedger
from attuner.ports import Kit
from attuner.steps.birth import birth
from attuner.steps.common import put
from attuner.steps.launch import launch

pytestmark = pytest.mark.slow
A1, A2 = f"{lab.ID}-l01-a1", f"{lab.ID}-l01-a2"


class Quick:
    """Real time, in which a pause is short."""

    def now(self) -> float:
        return time.time()

    def sleep(self, seconds: float) -> None:
        time.sleep(min(seconds, 0.02))


class Eyes(lab.Seen):
    """Who looks on; calls back at every look."""

    def __init__(self, look: Callable[[str], None] | None = None) -> None:
        super().__init__()
        self.look = look
        self.phases: list[str] = []

    def progress(self, launch_id: str, phase: str, steps: int) -> None:
        self.phases.append(phase)
        if self.look is not None:
            self.look(phase)


class Bench:
    """One campaign with one decided launch of four devices, on this Kubernetes."""

    def __init__(self, kube: Kube) -> None:
        self.kube = kube
        self.lab = lab.Lab(kube.folder / "lab", [])
        self.cluster = kube.cluster()
        launcher = {"name": "replay", "cluster": self.cluster.data()}
        kit = self.kit()
        baseline = Recipe(stack="mcore", arguments=lab.BASE)
        birth(kit, lab.campaign(launcher=launcher, workload=lab.workload(gpus=4).data()))
        decided = Launch(
            id="l01", kind="calibrate", recipe=baseline.digest(), purpose="t", reserve_gpu_hours=1.0, time_limit_s=60.0
        )
        put(kit, lab.ID, "launch", "l01", decided)

    def kit(self, look: Callable[[str], None] | None = None, **more: Any) -> Kit:
        """Return the kit of a new process."""
        self.lab.store.holders.clear()
        ledger = MemoryLedger(self.lab.store)
        if ledger.campaigns():
            ledger.claim(lab.ID)
        return Kit(
            stack=self.lab.stack,
            launcher=self.kube.launcher(cluster=self.cluster, **more),
            proposer=self.lab.proposer,
            ledger=ledger,
            clock=Quick(),
            folder=self.kube.folder / lab.ID,
            rules_dir=self.lab.rules,
            watch=Eyes(look),
        )

    def run(self, kit: Kit | None = None, *, patience: int = 200) -> Trial:
        """Run the launch; contact lost is answered as Prefect does: call again."""
        kit = kit or self.kit()
        for _ in range(patience):
            try:
                return launch(kit, lab.ID, "l01")
            except Transient:
                time.sleep(0.05)
        raise AssertionError("contact never came back")

    def charged_s(self) -> float:
        """Return device-seconds on record."""
        return sum(s.gpu_hours for s in self.lab.history().settlements()) * 3600

    def check(self, trial: Trial, *, status: str, created: list[str], begun: int, driver: Driver) -> None:
        """Hold what every fault must leave intact: launches, drivers, charge, nothing left behind."""
        assert (trial.status, self.kube.server.created("rayjobs")) == (status, created), trial.cause
        assert driver.begun == begun
        pods = len(self.kube.operator.held)
        assert self.charged_s() == pytest.approx(self.kube.held_s(), abs=4 * 1.3 * max(pods, 1))
        assert self.charged_s() >= self.kube.held_s() - 4 * 1.3 * max(pods, 1)
        assert self.kube.store.list("rayjobs") == []
        assert until(lambda: not self.kube.store.list("pods"))


@pytest.fixture
def bench(kube: Kube) -> Bench:
    return Bench(kube)


def once(when: str, act: Callable[[], None]) -> Callable[[str], None]:
    """Act at the first look at a phase."""
    done: list[str] = []

    def look(phase: str) -> None:
        if phase == when and not done:
            done.append(phase)
            act()

    return look


def slow(driver: Driver, run_s: float = 1.5) -> None:
    driver.run_s = run_s


def test_a_launch_without_a_fault(bench: Bench, driver: Driver) -> None:
    trial = bench.run()
    bench.check(trial, status="ok", created=[A1], begun=1, driver=driver)
    settled = bench.lab.history().settlements()[0]
    assert (settled.how, settled.released_at is not None) == ("pods", True)
    assert trial.nodes == ["n1"]
    assert trial.versions["image"].startswith("sha256:")


@pytest.mark.parametrize("phase", ["submitted", "starting", "running", "releasing"])
def test_a_dropped_watch_goes_on_where_it_was(bench: Bench, driver: Driver, phase: str) -> None:
    slow(driver)
    trial = bench.run(bench.kit(once(phase, bench.kube.server.drop_watches)))
    bench.check(trial, status="ok", created=[A1], begun=1, driver=driver)


def test_an_expired_watch_begins_with_a_fresh_list(bench: Bench, driver: Driver) -> None:
    slow(driver)

    def expire() -> None:
        bench.kube.store.expire()
        bench.kube.server.drop_watches()

    trial = bench.run(bench.kit(once("running", expire)))
    bench.check(trial, status="ok", created=[A1], begun=1, driver=driver)
    lists = [r for r in bench.kube.server.log if (r.user, r.verb, r.resource) == ("attuner", "list", "pods")]
    assert len(lists) >= 2


def leave_for(kube: Kube, seconds: float) -> Callable[[], None]:
    """Return what takes the server away and brings it back by itself."""

    def leave() -> None:
        kube.server.stop()
        threading.Timer(seconds, kube.server.start).start()

    return leave


@pytest.mark.parametrize("away_s", [0.2, 60.0])
@pytest.mark.parametrize("phase", ["starting", "running"])
def test_a_server_that_is_away_for_a_while_costs_nothing_and_launches_nothing_twice(
    bench: Bench, driver: Driver, phase: str, away_s: float
) -> None:
    """With little patience contact is lost and found again; with much nothing is even noticed."""
    slow(driver, 2.5)
    trial = bench.run(bench.kit(once(phase, leave_for(bench.kube, 1.5)), away_s=away_s, patience_s=0.2))
    bench.check(trial, status="ok", created=[A1], begun=1, driver=driver)


def test_thirty_seconds_without_a_server_cost_nothing(bench: Bench, driver: Driver) -> None:
    """With the launcher's own patience; the run ends meanwhile, and its pods are held until the operator can act again."""
    slow(driver, 5.0)
    trial = bench.run(bench.kit(once("running", leave_for(bench.kube, 30.0)), patience_s=20.0))
    bench.check(trial, status="ok", created=[A1], begun=1, driver=driver)
    assert bench.charged_s() > 4 * 29


@pytest.mark.parametrize("fault", ["busy", "broken"])
def test_a_busy_server_is_asked_again(bench: Bench, driver: Driver, fault: str) -> None:
    setattr(bench.kube.server, fault, 6)
    bench.check(bench.run(), status="ok", created=[A1], begun=1, driver=driver)
    code = {"busy": 429, "broken": 503}[fault]
    assert sum(r.status == code for r in bench.kube.server.log) == 6


def test_a_server_that_says_when_is_asked_then(bench: Bench) -> None:
    bench.kube.server.busy, bench.kube.server.retry_after = 1, "1"
    bench.run()
    log = [r for r in bench.kube.server.log if r.user == "attuner"]
    refused = next(r for r in log if r.status == 429)
    again = next(r for r in log if (r.verb, r.resource) == (refused.verb, refused.resource) and r.at > refused.at)
    assert again.at - refused.at >= 1.0


def test_an_evicted_head_loses_the_attempt_and_one_more_is_made(bench: Bench, driver: Driver) -> None:
    """KubeRay gives the job to the new head; its second driver may not begin."""
    driver.go.clear()

    def evict() -> None:
        bench.kube.evict("head")
        driver.go.set()

    trial = bench.run(bench.kit(once("running", evict)))
    bench.check(trial, status="ok", created=[A1, A2], begun=2, driver=driver)
    first = bench.lab.history().settled("l01", 1)
    assert first is not None
    assert first.lost
    assert "head pod" in first.detail
    assert "Evicted" in first.detail or "TerminationByKubelet" in first.detail


def test_a_head_that_was_replaced_while_nobody_looked_trains_nothing_twice(bench: Bench, driver: Driver) -> None:
    """attuner is away; KubeRay makes a new head and submits the job again: the run directory was claimed before."""
    driver.go.clear()
    kube = bench.kube

    def leave(phase: str) -> None:
        if phase == "running":
            raise Transient("this process ends here")

    with pytest.raises(Transient):
        launch(bench.kit(leave), lab.ID, "l01")
    for launcher in kube.launchers:
        launcher.close()
    kube.evict("head")
    until(lambda: kube.operator.seen[-1] == (A1, "Failed"))
    assert driver.begun == 1
    assert len(kube.ray.started) == 2  # type: ignore[attr-defined]
    driver.go.set()
    trial = bench.run()
    bench.check(trial, status="ok", created=[A1, A2], begun=2, driver=driver)


def test_what_ended_while_attuner_was_away_is_charged_by_what_is_known(bench: Bench, driver: Driver) -> None:
    slow(driver, 1.0)

    def leave(phase: str) -> None:
        if phase == "running":
            raise Transient("this process ends here")

    with pytest.raises(Transient):
        launch(bench.kit(leave), lab.ID, "l01")
    for launcher in bench.kube.launchers:
        launcher.close()
    until(lambda: not bench.kube.store.list("pods"))
    gone = time.time()
    until(lambda: time.time() > gone + 1.5)  # so that what vanished did so some time ago
    trial = bench.run()
    bench.check(trial, status="ok", created=[A1], begun=1, driver=driver)
    detail = bench.lab.history().settlements()[0].detail
    assert "vanished unseen" in detail
    assert "charged to its driver's stamps" in detail


def test_an_image_that_cannot_be_pulled_is_no_second_launch_and_its_devices_are_charged(bench: Bench, driver: Driver) -> None:
    assert bench.cluster.kube is not None
    bench.kube.nodes.bad_images[bench.cluster.kube.image] = "manifest unknown"
    trial = bench.run()
    bench.check(trial, status="infrastructure", created=[A1], begun=0, driver=driver)
    assert "can't be pulled (ImagePullBackOff" in trial.cause
    assert "manifest unknown" in trial.cause
    assert bench.lab.history().settlements()[0].how == "pods"


def test_a_job_deleted_by_hand_is_lost_and_charged(bench: Bench, driver: Driver) -> None:
    driver.go.clear()
    kube = bench.kube

    def by_hand() -> None:
        kube.store.delete("rayjobs", NAMESPACE, A1)
        driver.go.set()

    trial = bench.run(bench.kit(once("running", by_hand)))
    bench.check(trial, status="ok", created=[A1, A2], begun=2, driver=driver)
    first = bench.lab.history().settled("l01", 1)
    assert first is not None
    assert first.lost
    assert "somebody else" in first.detail


@pytest.mark.parametrize("phase", ["submitted", "starting", "running", "releasing"])
def test_an_operator_that_restarts_costs_nothing(bench: Bench, driver: Driver, phase: str) -> None:
    slow(driver, 0.5)
    trial = bench.run(bench.kit(once(phase, bench.kube.restart_operator)))
    bench.check(trial, status="ok", created=[A1], begun=1, driver=driver)


def test_a_quota_that_never_admits_is_refused_and_costs_nothing(bench: Bench, driver: Driver) -> None:
    bench.kube.store.create("resourcequotas", NAMESPACE, quota("team", gpu="2"))
    with pytest.raises(UserError, match="could never start"):
        bench.run()
    assert bench.kube.server.created("rayjobs") == []
    assert bench.charged_s() == 0.0
    assert driver.begun == 0


def test_a_quota_that_shrinks_after_the_check_ends_the_launch_without_a_second_one(bench: Bench, driver: Driver) -> None:
    rules = roles("role", "capacity")
    for rule in rules:
        rule.resources = [x for x in rule.resources if x != "resourcequotas"]  # so that the check sees nothing
    bench.kube.server.users["attuner"] = rules
    bench.kube.store.create("resourcequotas", NAMESPACE, quota("team", gpu="2"))
    trial = bench.run()
    bench.check(trial, status="infrastructure", created=[A1], begun=0, driver=driver)
    assert "limited: requests.nvidia.com/gpu=2" in trial.cause
    assert "it can never be admitted" in trial.cause
    assert bench.charged_s() == 0.0


def test_a_process_killed_between_rayjob_and_config_map_leaves_pods_that_wait(bench: Bench, driver: Driver) -> None:
    bench.kube.server.users["attuner"] = [r for r in roles("role") if r.resources != ["configmaps"]]
    with pytest.raises(UserError, match="create configmaps"):
        bench.run()
    until(lambda: [e for e in bench.kube.store.list("events") if e["reason"] == "FailedMount"])
    bench.kube.server.users["attuner"] = roles("role")
    bench.check(bench.run(), status="ok", created=[A1], begun=1, driver=driver)


def test_a_run_that_fails_by_itself_is_data(bench: Bench, driver: Driver) -> None:
    driver.outcome = "oom"
    trial = bench.run()
    bench.check(trial, status="oom", created=[A1], begun=1, driver=driver)


def test_a_driver_killed_without_a_word_is_lost_and_one_more_is_made(bench: Bench, driver: Driver) -> None:
    driver.outcome = ""
    trial = bench.run()
    bench.check(trial, status="infrastructure", created=[A1, A2], begun=2, driver=driver)


def test_ctrl_c_frees_the_devices(bench: Bench, driver: Driver) -> None:
    driver.go.clear()

    def interrupt(phase: str) -> None:
        if phase == "running":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        launch(bench.kit(interrupt), lab.ID, "l01")
    assert bench.kube.store.list("pods") == []
    found = bench.lab.history().settlements()[0]
    assert (found.interrupted, found.how) == (True, "pods")
    driver.go.set()
    trial = bench.run()
    bench.check(trial, status="ok", created=[A1, A2], begun=2, driver=driver)


def test_folder_is_where_the_step_says(bench: Bench) -> None:
    trial = bench.run()
    folder = Path(bench.lab.history().attempts("l01")[0].folder)
    assert (folder / "kube.jsonl").exists()
    assert trial.attempt == 1


def test_stamps_that_come_late_are_waited_for(bench: Bench, driver: Driver) -> None:
    """The storage shows them a moment after Kubernetes says that the job succeeded, and its pods are gone by then."""
    driver.late_s = 0.3
    trial = bench.run()
    bench.check(trial, status="ok", created=[A1], begun=1, driver=driver)


def test_a_head_that_goes_after_the_end_is_no_loss(bench: Bench, driver: Driver) -> None:
    """The watch of RayJobs is behind, the one of pods is not: the RayJob itself is asked before anything is concluded."""
    slow(driver)
    driver.late_s = 0.3

    def silence() -> None:
        bench.kube.server.silent = "rayjobs"

    trial = bench.run(bench.kit(once("running", silence)))
    bench.check(trial, status="ok", created=[A1], begun=1, driver=driver)
