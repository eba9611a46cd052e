"""Device time from pods against timelines worked out by hand, to the second."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from kube_store import stamp

from attuner.core.run import Attempt
from attuner.launchers.kuberay.pods import Account, PodLog, account, read_pod, stamp_of
from attuner.ports import JobState, RunFiles, Stamp
from attuner.steps.launch import settle

KEY = "nvidia.com/gpu"
T0 = 1_796_000_000.0
"""All times below are seconds after this."""


def pod(name: str, gpus: int, *, placed: float | None = 0.0, ended: list[float] | None = None, **more: Any) -> dict[str, Any]:
    """A pod as the API tells it: devices, when it was placed, when each of its containers ended."""
    conditions = []
    if placed is not None:
        conditions.append({"type": "PodScheduled", "status": "True", "lastTransitionTime": stamp(T0 + placed)})
    running = [{"name": "c", "state": {"running": {"startedAt": stamp(T0 + more.get("started", 0.0))}}}]
    over = [{"name": f"c{i}", "state": {"terminated": {"finishedAt": stamp(T0 + t)}}} for i, t in enumerate(ended or [])]
    phase = more.get("phase", "Succeeded" if ended else "Running" if placed is not None else "Pending")
    limits = {KEY: str(gpus)} if gpus else {}
    meta = {"uid": f"uid-{name}", "name": name, "labels": {"ray.io/node-type": more.get("role", "worker")}}
    if "deletion" in more:
        meta["deletionTimestamp"] = stamp(T0 + more["deletion"])
    return {
        "metadata": meta,
        "spec": {"nodeName": more.get("node", "n1"), "containers": [{"name": "c", "resources": {"limits": limits}}]},
        "status": {"phase": phase, "conditions": conditions, "containerStatuses": over or running},
    }


def log_of(folder: Path, *seen: tuple[float, dict[str, Any], bool]) -> PodLog:
    """A log of sights: (when, pod, was it the last sight of a deleted pod)."""
    log = PodLog(folder)
    for at, found, deleted in seen:
        log.see(read_pod(found, key=KEY, now=T0 + at, deleted=deleted), T0 + at)
    return PodLog(folder)  # as the next process reads it


def charge(log: PodLog, *, now: float = 1000.0, **more: Any) -> Account:
    found = account(log.pods.values(), now=T0 + now, **more)
    assert found is not None
    return found


def test_a_pod_that_pulls_its_image_for_long_holds_its_devices_all_the_while(tmp_path: Path) -> None:
    """Placed at 10, its container started at 400 only, ended at 1000: 990 s of 8 devices."""
    log = log_of(tmp_path, (11, pod("w", 8, placed=10), False), (1001, pod("w", 8, placed=10, started=400, ended=[1000]), False))
    assert charge(log).gpu_seconds == 8 * 990
    assert charge(log).released_at == T0 + 1000


def test_a_container_that_is_started_again_changes_nothing(tmp_path: Path) -> None:
    """Restarted in place at 300 and 500; the pod lasts from 0 to 900."""
    again = pod("w", 4, phase="Running", started=500)
    again["status"]["containerStatuses"][0]["lastState"] = {"terminated": {"finishedAt": stamp(T0 + 300)}}
    log = log_of(tmp_path, (1, pod("w", 4), False), (500, again, False), (901, pod("w", 4, ended=[900]), False))
    assert charge(log).gpu_seconds == 4 * 900


def test_a_container_that_has_ended_in_a_pod_that_lives_releases_nothing(tmp_path: Path) -> None:
    log = log_of(tmp_path, (1, pod("w", 4), False), (501, pod("w", 4, ended=[500], phase="Running"), False))
    assert charge(log, now=800).gpu_seconds == 4 * 800
    assert charge(log, now=800).released_at is None


def test_the_last_container_of_a_pod_counts(tmp_path: Path) -> None:
    log = log_of(tmp_path, (1, pod("w", 2), False), (700, pod("w", 2, ended=[650, 690]), False))
    assert charge(log).gpu_seconds == 2 * 690


def test_a_pod_made_anew_in_place_of_a_failed_one_is_charged_beside_it(tmp_path: Path) -> None:
    """The first from 0 to 100, its successor from 130 to 600; nobody pays for the 30 s between."""
    first, second = pod("w-a", 8, ended=[100], phase="Failed"), pod("w-b", 8, placed=130, ended=[600])
    log = log_of(
        tmp_path, (1, pod("w-a", 8), False), (101, first, False), (131, pod("w-b", 8, placed=130), False), (601, second, True)
    )
    assert charge(log).gpu_seconds == 8 * 100 + 8 * 470
    assert charge(log).released_at == T0 + 600


def test_a_pod_that_was_never_placed_costs_nothing(tmp_path: Path) -> None:
    log = log_of(tmp_path, (1, pod("w", 8, placed=None), False), (900, pod("w", 8, placed=None), True))
    assert account(log.pods.values(), now=T0 + 1000) is None


def test_a_head_without_devices_costs_nothing_however_long_it_lasts(tmp_path: Path) -> None:
    log = log_of(tmp_path, (1, pod("h", 0, role="head"), False), (1, pod("w", 4, placed=20, ended=[80]), False))
    assert charge(log, now=5000).gpu_seconds == 4 * 60


def test_two_workers_are_charged_each_by_its_own_times(tmp_path: Path) -> None:
    """8 devices from 10 to 500 and 8 from 95 to 520."""
    a, b = pod("a", 8, placed=10, ended=[500], node="n1"), pod("b", 8, placed=95, ended=[520], node="n2")
    found = charge(log_of(tmp_path, (600, a, False), (600, b, False)))
    assert found.gpu_seconds == 8 * 490 + 8 * 425
    assert (found.allocated_at, found.released_at, found.nodes) == (T0 + 10, T0 + 520, ["n1", "n2"])


def test_a_pod_that_is_seen_to_be_deleted_ends_then_if_its_containers_say_nothing(tmp_path: Path) -> None:
    log = log_of(tmp_path, (1, pod("w", 4), False), (321, pod("w", 4), True))
    assert charge(log).gpu_seconds == 4 * 321


def test_a_pod_whose_node_is_lost_ends_when_it_should_have_gone(tmp_path: Path) -> None:
    """Deleted with a grace that ends at 200; it is still listed at 300 and will be for ever."""
    log = log_of(tmp_path, (1, pod("w", 4), False), (300, pod("w", 4, deletion=200), False))
    assert charge(log).gpu_seconds == 4 * 200
    young = log_of(tmp_path / "young", (1, pod("w", 4), False), (210, pod("w", 4, deletion=200), False))
    assert charge(young, now=210).released_at is None


@pytest.mark.parametrize(
    ("stamped", "charged", "source"),
    [([], 700, "when it was missed"), ([550.0], 550, "its driver's stamps"), ([90.0, 9000.0], 700, "when it was missed")],
)
def test_a_pod_that_vanished_unseen_is_bounded_by_what_else_is_known(
    tmp_path: Path, stamped: list[float], charged: int, source: str
) -> None:
    """Last watched at 100, missed at 700; a bound outside of that time says nothing."""
    log = log_of(tmp_path, (1, pod("w", 4), False))
    log.alive(T0 + 100)
    log.missing(set(), T0 + 700, watched=log.last)
    found = charge(PodLog(tmp_path), bounds=[T0 + x for x in stamped])
    assert found.gpu_seconds == 4 * charged
    assert found.notes == [f"w vanished unseen within 600 s; charged to {source}"]


def test_an_end_that_was_seen_is_never_taken_back(tmp_path: Path) -> None:
    log = log_of(tmp_path, (1, pod("w", 4), False), (501, pod("w", 4, ended=[500]), False), (520, pod("w", 4), False))
    log.missing(set(), T0 + 900, watched=log.last)
    assert charge(PodLog(tmp_path)).gpu_seconds == 4 * 500


def test_a_torn_line_and_a_killed_writer_lose_nothing_else(tmp_path: Path) -> None:
    log = log_of(tmp_path, (1, pod("w", 4), False), (501, pod("w", 4, ended=[500]), False))
    with log.path.open("a") as file:
        file.write('{"kind": "pod", "at": 1796000')
    assert charge(PodLog(tmp_path)).gpu_seconds == 4 * 500


def test_an_unchanged_pod_is_written_once(tmp_path: Path) -> None:
    log_of(tmp_path, *[(float(t), pod("w", 4), False) for t in range(50)])
    assert len((tmp_path / "kube.jsonl").read_text().splitlines()) == 1


def test_the_devices_of_init_containers_count_where_they_need_more(tmp_path: Path) -> None:
    found = pod("w", 2, ended=[10])
    found["spec"]["initContainers"] = [{"name": "i", "resources": {"limits": {KEY: "4"}}}]
    assert charge(log_of(tmp_path, (11, found, False))).gpu_seconds == 40


# ------------------------------------------------------------------------------------- and the driver's stamps


def settled(stamp_: Stamp, *, gpus: int = 4) -> tuple[str, float]:
    attempt = Attempt(launch_id="l01", number=1, submission_id="c-l01-a1", folder="", submitted_at=T0)
    found = settle(RunFiles(folder="", stamp=stamp_), attempt, gpus=gpus, state=JobState(phase="succeeded"))
    return found.how, round(found.gpu_hours * 3600, 6)


def test_the_charge_of_a_launch_is_what_its_pods_held_not_what_its_driver_used(tmp_path: Path) -> None:
    """Pods from 10 to 700, the driver from 300 to 650."""
    log = log_of(tmp_path, (11, pod("w", 4, placed=10), False), (701, pod("w", 4, placed=10, ended=[700]), False))
    driver = Stamp(allocated_at=T0 + 300, released_at=T0 + 650, outcome="ok")
    found = stamp_of(driver, log, gpus=4, now=T0 + 800)
    assert settled(found) == ("pods", 4 * 690)
    assert (found.allocated_at, found.released_at, found.outcome) == (T0 + 10, T0 + 700, "ok")


def test_pods_that_nobody_saw_are_charged_by_the_drivers_stamps(tmp_path: Path) -> None:
    """Of two workers one was seen, for 50 s; the driver held 8 devices for 400 s."""
    log = log_of(tmp_path, (11, pod("w", 4, ended=[50]), False))
    found = stamp_of(Stamp(allocated_at=T0 + 5, released_at=T0 + 405), log, gpus=8, now=T0 + 900)
    assert settled(found, gpus=8) == ("pods", 8 * 400)
    assert found.detail == "pods were seen for 200 of 3200 device-seconds or more; charged as if all were held throughout"
    killed = stamp_of(Stamp(allocated_at=T0 + 5, last_heartbeat=T0 + 205), PodLog(tmp_path / "none"), gpus=8, now=T0 + 900)
    assert settled(killed, gpus=8) == ("pods", 8 * 200)


def test_pods_that_nobody_saw_held_their_devices_before_the_driver_and_after_it(tmp_path: Path) -> None:
    """The RayJob lasted from -60 to 430: an image was pulled, a cluster torn down. It is the most it can have been."""
    log = PodLog(tmp_path)
    log.see_job({"startTime": stamp(T0 - 60), "endTime": stamp(T0 + 430)}, T0 + 800)
    found = stamp_of(Stamp(allocated_at=T0 + 5, released_at=T0 + 405), PodLog(tmp_path), gpus=8, now=T0 + 900)
    assert settled(found, gpus=8) == ("pods", 8 * 490)
    assert (found.allocated_at, found.released_at) == (T0 - 60, T0 + 430)


def test_whole_seconds_of_kubernetes_are_no_pods_unseen(tmp_path: Path) -> None:
    log = log_of(tmp_path, (11, pod("w", 4, ended=[50]), False))
    found = stamp_of(Stamp(allocated_at=T0 + 0.2, released_at=T0 + 51.9), log, gpus=4, now=T0 + 900)
    assert (found.gpu_seconds, found.detail) == (4 * 50, "")


def test_what_never_got_devices_is_settled_as_never_allocated(tmp_path: Path) -> None:
    log = log_of(tmp_path, (1, pod("w", 4, placed=None), False))
    assert settled(stamp_of(Stamp(), log, gpus=0, now=T0 + 900)) == ("never_allocated", 0.0)


def test_devices_held_while_an_image_could_not_be_pulled_are_charged(tmp_path: Path) -> None:
    log = log_of(tmp_path, (1, pod("w", 4, phase="Pending"), False), (181, pod("w", 4, phase="Pending"), True))
    assert settled(stamp_of(Stamp(outcome="never_allocated"), log, gpus=0, now=T0 + 900)) == ("pods", 4 * 181)
