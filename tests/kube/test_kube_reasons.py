"""Why an attempt does not run, in one line, and what follows: wait, give up, or count it as lost."""

from __future__ import annotations

from typing import Any

import pytest
from kube_store import stamp

from attuner.launchers.kuberay.reasons import Reason, assess
from attuner.launchers.kuberay.verdict import Verdict, judge, words
from attuner.ports import Stamp

NOW = 1_796_000_000.0
NAME = "c-l01-a1"


def job(stage: str = "Initializing", **status: Any) -> dict[str, Any]:
    meta = {"name": NAME, "labels": {}, "creationTimestamp": stamp(NOW - status.pop("age", 100))}
    return {"metadata": meta, "status": {"jobDeploymentStatus": stage, **status}}


def pod(role: str = "worker", *, placed_s: float | None = 10, **status: Any) -> dict[str, Any]:
    conditions = status.pop("conditions", [])
    if placed_s is not None:
        conditions = [{"type": "PodScheduled", "status": "True", "lastTransitionTime": stamp(NOW - placed_s)}, *conditions]
    container = {"name": "c", "image": "r.io/train:1", "resources": {"limits": {"memory": "8Gi"}}}
    return {
        "metadata": {"name": f"{NAME}-abcde-{role}-x", "uid": role, "labels": {"ray.io/node-type": role}},
        "spec": {"nodeName": "n1", "containers": [container]},
        "status": {"phase": "Pending", "conditions": conditions, **status},
        "seen": NOW,
    }


def waits(reason: str, message: str = "") -> list[dict[str, Any]]:
    return [{"name": "c", "state": {"waiting": {"reason": reason, "message": message}}}]


def event(kind: str, name: str, reason: str, message: str) -> dict[str, Any]:
    about = {"kind": kind, "name": name}
    return {
        "metadata": {},
        "involvedObject": about,
        "type": "Warning",
        "reason": reason,
        "message": message,
        "lastTimestamp": stamp(NOW),
    }


def told(
    *pods: dict[str, Any], events: list[dict[str, Any]] | None = None, begun: bool = False, stage: str = "Initializing"
) -> Reason | None:
    return assess(job(stage), list(pods), events or [], now=NOW, pull_patience_s=180, begun=begun)


def test_nothing_in_the_way_is_no_reason() -> None:
    running = pod(phase="Running", containerStatuses=[{"name": "c", "state": {"running": {}}}])
    assert told(running, pod("head")) is None


@pytest.mark.parametrize(
    ("waiting", "placed_s", "final"),
    [
        (waits("ErrImagePull", "rpc error: i/o timeout"), 20, False),
        (waits("ImagePullBackOff", "Back-off pulling image"), 200, True),
        (waits("ImagePullBackOff", "manifest unknown"), 5, True),
        (waits("ErrImagePull", "pull access denied, repository does not exist"), 5, True),
        (waits("InvalidImageName", ""), 5, True),
    ],
)
def test_an_image_that_cannot_be_pulled_is_given_up_at_once_or_after_a_while(waiting: Any, placed_s: float, final: bool) -> None:
    found = told(pod(containerStatuses=waiting, placed_s=placed_s))
    assert found is not None
    assert (found.kind, found.final, found.lost) == ("image", final, False)
    assert "r.io/train:1" in found.line
    assert "kube.image_pull_secrets" in found.line


def test_a_pod_without_a_node_is_waited_for() -> None:
    no = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": "0/4 nodes are available: 4 Insufficient gpu.",
    }
    found = told(pod(placed_s=None, conditions=[no]))
    assert found is not None
    assert (found.kind, found.final) == ("unschedulable", False)
    assert "4 Insufficient gpu" in found.line


@pytest.mark.parametrize(("asked", "limit", "final"), [(8, 4, True), (4, 4, False)])
def test_a_quota_that_can_never_admit_is_told_from_one_that_is_used_up(asked: int, limit: int, final: bool) -> None:
    text = (
        f"requested: requests.nvidia.com/gpu={asked}, used: requests.nvidia.com/gpu=2, limited: requests.nvidia.com/gpu={limit}"
    )
    said = f'Failed to create worker Pod ns/x: pods "x" is forbidden: exceeded quota: team, {text}'
    found = told(events=[event("RayCluster", f"{NAME}-abcde", "FailedToCreateWorkerPod", said)])
    assert found is not None
    assert (found.kind, found.final) == ("quota", final)
    assert text in found.line


@pytest.mark.parametrize(
    ("message", "final"),
    [
        (
            "couldn't assign flavors to pod set devices: insufficient unused quota for gpu in flavor h100, 4 more needed",
            False,
        ),
        ("couldn't assign flavors to pod set devices: insufficient quota for gpu, request > maximum capacity (16 > 8)", True),
        ("LocalQueue team-a doesn't exist", True),
    ],
)
def test_kueue_is_waited_for_unless_it_can_never_admit(message: str, final: bool) -> None:
    found = told(events=[event("Workload", f"rayjob-{NAME}-1a2b3", "Pending", message)], stage="Suspended")
    assert found is not None
    assert (found.kind, found.final) == ("queue", final)


def test_events_about_others_say_nothing() -> None:
    said = "exceeded quota: q, requested: pods=9, used: pods=0, limited: pods=1"
    others = ("c-l01-a10", "c-l01-a1x", "c-l01-a11-abcde", f"{NAME}-abcde-worker-y")
    assert told(events=[event("RayCluster", n, "FailedCreate", said) for n in others]) is None


@pytest.mark.parametrize(("role", "begun", "final"), [("head", True, True), ("worker", True, False), ("head", False, False)])
def test_an_evicted_pod_ends_a_running_attempt_at_once_if_it_was_the_head(role: str, begun: bool, final: bool) -> None:
    """A worker's loss is the driver's to see; a pod that is lost before the driver began is made anew by KubeRay."""
    found = told(pod(role, phase="Failed", reason="Evicted", message="node was low on memory"), begun=begun)
    assert found is not None
    assert (found.kind, found.final, found.lost) == ("taken", final, True)
    assert "Evicted (node was low on memory)" in found.line


def test_a_driver_that_does_not_see_its_lost_worker_within_a_minute_never_will() -> None:
    lost = {**pod(phase="Failed", reason="Evicted"), "seen": NOW - 61}
    found = told(lost, begun=True)
    assert found is not None
    assert found.final


@pytest.mark.parametrize("reason", ["PreemptionByScheduler", "DeletionByTaintManager", "EvictionByEvictionAPI"])
def test_disruptions_are_read_from_the_pods_condition(reason: str) -> None:
    why = {"type": "DisruptionTarget", "status": "True", "reason": reason}
    found = told(pod("head", phase="Failed", conditions=[why]), begun=True)
    assert found is not None
    assert reason in found.line
    assert found.lost


def test_a_head_that_is_gone_takes_the_running_attempt_with_it() -> None:
    found = told({**pod("head", phase="Running"), "gone": NOW - 1}, begun=True)
    assert found is not None
    assert (found.final, found.lost) == (True, True)


def test_a_container_killed_for_memory_is_the_runs_own_doing() -> None:
    killed = [{"name": "c", "state": {"terminated": {"reason": "OOMKilled", "exitCode": 137}}}]
    found = told(pod("head", phase="Failed", containerStatuses=killed), begun=True)
    assert found is not None
    assert (found.kind, found.final, found.lost) == ("oom_killed", True, False)
    assert "limit 8Gi" in found.line
    assert "kube.head.memory" in found.line


def test_pods_that_fail_again_and_again_while_starting_are_given_up() -> None:
    failed = [{"name": "c", "state": {"terminated": {"exitCode": 1}}}]
    pods = [{**pod(phase="Failed", containerStatuses=failed), "gone": NOW} for _ in range(3)]
    assert told(*pods[:2]) is None
    found = told(*pods)
    assert found is not None
    assert found.final


# ------------------------------------------------------------------------------------- what follows

NEW = Stamp()
RAN = Stamp(allocated_at=NOW - 50)
DONE = Stamp(allocated_at=NOW - 50, released_at=NOW - 5, outcome="oom", detail="CUDA out of memory")


def verdict(job_: dict[str, Any] | None, stamp_: Stamp = NEW, reason: Reason | None = None) -> Verdict | None:
    return judge(job_, reason, stamp_, now=NOW, queue_timeout_s=3600)


def test_the_drivers_own_word_counts_first() -> None:
    for found in (None, job("Running"), job("Failed", reason="DeadlineExceeded"), job("Suspended")):
        assert verdict(found, DONE) == Verdict(phase="failed", detail="CUDA out of memory")
    assert verdict(job("Running"), Stamp(allocated_at=1.0, released_at=2.0, outcome="ok")) == Verdict(phase="succeeded")


def test_a_job_deleted_by_hand_is_lost() -> None:
    for stamp_ in (Stamp(), RAN):
        found = verdict(None, stamp_)
        assert found is not None
        assert (found.lost, found.detail) == (True, "the RayJob was deleted by somebody else")


@pytest.mark.parametrize("stage", ["", "Initializing", "Running", "Retrying", "Suspending", "Suspended", "Waiting"])
def test_what_may_still_run_is_not_judged(stage: str) -> None:
    assert verdict(job(stage)) is None


def test_a_final_reason_ends_it_before_kuberay_does() -> None:
    found = verdict(job(), reason=Reason("image", "image x can't be pulled", final=True))
    assert found == Verdict(phase="failed", detail="image x can't be pulled", outcome="never_allocated")
    assert verdict(job(), reason=Reason("image", "slow", final=False)) is None


@pytest.mark.parametrize(
    ("status", "stamp_", "lost", "outcome"),
    [
        ({"stage": "Failed", "reason": "PreRunningDeadlineExceeded", "message": "m"}, Stamp(), False, "never_allocated"),
        ({"stage": "Failed", "reason": "DeadlineExceeded", "message": "m"}, RAN, False, "time_limit"),
        ({"stage": "Failed", "reason": "AppFailed", "message": "exit code 137"}, RAN, True, ""),
        ({"stage": "Failed", "reason": "AppFailed", "message": "no module"}, Stamp(), False, "never_allocated"),
        ({"stage": "Failed", "reason": "JobStatusCheckTimeoutExceeded", "message": "m"}, RAN, True, ""),
        ({"stage": "ValidationFailed", "reason": "ValidationFailed", "message": "m"}, Stamp(), False, "never_allocated"),
        ({"stage": "Complete", "jobStatus": "STOPPED"}, RAN, True, ""),
        ({"stage": "Suspended"}, RAN, True, ""),
        ({"stage": "Suspended", "age": 4000}, Stamp(), False, "never_allocated"),
    ],
)
def test_what_each_end_means(status: dict[str, Any], stamp_: Stamp, lost: bool, outcome: str) -> None:
    found = verdict(job(**status), stamp_)
    assert found is not None
    assert (found.phase, found.lost, found.outcome) == ("failed", lost, outcome)
    assert found.detail


def test_phases_are_words_for_the_terminal() -> None:
    assert [words(job(s), Stamp()) for s in ("", "Initializing", "Running", "Suspended")] == [
        "submitted",
        "starting",
        "starting",
        "queued",
    ]
    assert words(job("Running"), RAN) == "running"
