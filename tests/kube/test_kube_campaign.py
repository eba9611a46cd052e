"""A whole campaign over the Kubernetes API: the quickstart's model and data, real training on a local Ray, KubeRay stood in for.

`attuner run` knows a kubeconfig and nothing else. Its RayJobs go to the API stand-in; the operator stand-in gives pods to
each, mounts the ConfigMap, and hands the entrypoint to a real Ray through the job API.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from kube_lab import ROOT, Kube, until
from kube_operator import LocalJobs

from attuner.core.campaign import Cluster
from attuner.core.events import History
from attuner.launchers.local_ray import LocalRay

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500), pytest.mark.filterwarnings("ignore")]
SCRIPT: list[dict[str, Any]] = [
    {
        "group": "layout",
        "title": "tp→dp",
        "arguments": {
            "tensor_model_parallel_size": 1,
            "sequence_parallel": False,
            "expert_model_parallel_size": 2,
            "expert_tensor_parallel_size": 1,
        },
    },
    {"group": "micro-batch", "title": "micro batch 1→4", "parent": "h01", "arguments": {"micro_batch_size": 4}},
    {"group": "open", "title": "learning rate", "arguments": {"lr": 0.01}},
]


@pytest.fixture
def ray(tmp_path: Path) -> Iterator[LocalRay]:
    found = LocalRay(tmp_path, resource="slot", devices=2)
    yield found
    found.end()


@pytest.fixture
def quick(tmp_path: Path, ray: LocalRay) -> Iterator[Kube]:
    from ray.job_submission import JobSubmissionClient

    head = ray.ensure()
    client = JobSubmissionClient(head.dashboard, headers={"Authorization": f"Bearer {ray.token()}"})
    made = Kube(tmp_path, LocalJobs(client))
    yield made
    made.close()


def write(kube: Kube) -> Path:
    """Write the campaign: the quickstart's, with fewer steps, on this Kubernetes."""
    found = yaml.safe_load((ROOT / "configs" / "campaigns" / "quickstart.yaml").read_text())
    spec = kube.cluster(python=sys.executable).kube
    device = {"kind": "cpu", "mem_gib": 1.0, "threads": 1}
    cluster = Cluster(name="kube", resource="slot", devices=2, devices_per_node=2, start_timeout_s=120, device=device, kube=spec)
    found |= {
        "name": "quick-kube",
        "launcher": {"name": "kuberay", "cluster": cluster.data()},
        "workload": {**found["workload"], "steps": 6},
        "proposer": {"name": "scripted", "script": SCRIPT},
        "budget": {"gpu_hours": 3.0},
        "noise": {"calibration_runs": 5, "max_step_spread": 30.0, "busy_sigma": 0.9, "sigmas": 0.5},
        "launch": {"expected_s": 20, "max_s": 240, "hang_s": 60},
        "early_stop": {"enabled": False},
        "estimate": {"hold_back": False},
    }
    found["prepare"]["steps"] = 4
    path = kube.folder / "quick-kube.yaml"
    path.write_text(yaml.safe_dump(found))
    return path


def attuner(kube: Kube, *words: str) -> subprocess.Popen[str]:
    """Start a command of ours as a person would."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("ATTUNER_", "PREFECT_", "RAY_"))}
    patience = {"PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "180"}  # of a busy machine
    env = {**kept, **patience, "ATTUNER_HOME": str(kube.folder / "out"), "PREFECT_HOME": str(kube.folder / "prefect")}
    command = [sys.executable, "-m", "attuner.cli.main", *words]
    return subprocess.Popen(command, cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def history(kube: Kube) -> History:
    from attuner.ledgers.duckdb_file import DuckdbLedger

    with DuckdbLedger(kube.folder / "out" / "attuner.duckdb") as ledger:
        names = ledger.campaigns()
        return History(list(ledger.history(names[0])) if names else [])


def said(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    words = process.stdout.read()
    process.wait(30)
    process.stdout.close()
    return words


def third_runs(kube: Kube) -> bool:
    """Tell whether the third launch is at its work."""
    return len(kube.server.created("rayjobs")) >= 3 and bool(kube.store.list("pods"))


def test_a_quickstart_campaign_goes_through_kubernetes_to_its_shipment(quick: Kube) -> None:
    """It is killed outright once and resumed, and the operator restarts once, both in the middle of a launch."""
    path = write(quick)
    check = attuner(quick, "check", str(path))
    assert "valid" in said(check)
    process = attuner(quick, "run", str(path), "--quiet")
    until(lambda: process.poll() is not None or third_runs(quick), timeout_s=900)
    assert process.poll() is None, said(process)
    process.kill()
    process.wait()
    assert process.stdout is not None
    process.stdout.close()  # not read to its end: Prefect's own server holds the other one until the resume ends it
    quick.restart_operator()
    campaign = history(quick).campaign().id
    words = said(attuner(quick, "resume", campaign, "--quiet"))
    assert "shipped" in words, words
    found = history(quick)
    rows = held_and_charged(quick, found)
    print("\n".join(f"{name:28} held {held:7.1f} charged {charged:7.1f} device-s" for name, held, charged in rows))
    print(words, f"{len(quick.server.log)} requests", quick.operator.seen[-3:])
    assert quick.server.created("rayjobs") == [a.submission_id for x in found.launches() for a in found.attempts(x.id)]
    assert {s.how for s in found.settlements()} == {"pods"}
    for i, (name, held, charged) in enumerate(rows):
        seconds = 6.0 if i == 2 else 2.5  # of the third nobody saw the end, perhaps not even the beginning
        assert charged == pytest.approx(held, abs=2 * seconds), name
    shipment = found.shipment()
    assert shipment is not None
    assert not shipment.kept_baseline
    assert any(v.decision == "refuse" for v in (found.verdict("h03"),) if v)
    assert quick.store.list("rayjobs") == quick.store.list("configmaps") == []
    assert until(lambda: not quick.store.list("pods"))
    trials = [found.trial(x.id) for x in found.launches()]
    unknown = [t.launch_id for t in trials if t and "image" not in t.versions]  # of the one that nobody watched, perhaps
    assert len(trials) - len(unknown) >= len(trials) - 1 > 0
    ledger = attuner(quick, "ledger", "verify")
    assert "sound" in said(ledger)


def held_and_charged(kube: Kube, found: History) -> list[tuple[str, float, float]]:
    """Return attempt, device-seconds that its pods held by the stand-in's account, and those on the ledger."""
    rows = []
    for launch in found.launches():
        for attempt in found.attempts(launch.id):
            settled = found.settled(launch.id, attempt.number)
            assert settled is not None
            pods = [v for k, v in kube.operator.held.items() if k.startswith(f"{attempt.submission_id}-")]
            rows.append((attempt.submission_id, sum(n * (end - begin) for n, begin, end in pods), settled.gpu_hours * 3600))
    return rows
