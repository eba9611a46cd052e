"""Several nodes for real: placement, one torchrun each, exclusion, spares, slow and lost nodes, an end without leftovers."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import pytest
from nodes.cluster import wait_for
from nodes.node_lab import Site, walk
from runner.conftest import ARGUMENTS, SEQ, write_rows

from attuner.ports import JobSpec
from attuner.runner import files
from attuner.steps.launch import settle

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
SEEN_WITHIN_S = 60.0


def events(stamps: Any, name: str) -> list[dict[str, Any]]:
    return [x for x in stamps.lines if x.get("event") == name]


def train(rows: Path, ranks: int, **more: Any) -> JobSpec:
    """Return a real training of the small mixture-of-experts model, tensor-parallel over the nodes."""
    arguments = {**ARGUMENTS, "tensor_model_parallel_size": ranks, "sequence_parallel": True}
    job = {
        **{"stack": "mcore", "arguments": arguments, "world_size": ranks, "rows": str(rows), "first_row": 0},
        **{"load": None, "save": None, "steps": 4, "warmup_steps": 2, "profile_steps": 1},
        **{"device": {"kind": "cpu", "mem_gib": None, "threads": 1}, **more},
    }
    env = {"OMP_NUM_THREADS": "1"}
    limits = {"time_limit_s": 200.0, "hang_s": 90.0}
    return JobSpec(module="train_mcore", job=job, env=env, gpus=ranks, gpus_per_node=1, resource="slot", **limits)


def test_a_run_over_two_nodes_trains_with_one_torchrun_on_each(site: Site) -> None:
    rows = write_rows(site.home / "inputs" / "rows", 64, SEQ)
    launcher = site.launcher(slow_node_factor=20.0)  # two cores for three nodes: they are unequal indeed
    attempt = site.submit(launcher, "l01", train(rows, 2))
    allocated = wait_for(lambda: events(site.stamps(attempt), "allocated"), 60, "allocation")[0]
    numbers = [site.nodes.number_of(x) for x in allocated["nodes"]]
    assert len(set(numbers)) == 2
    wait_for(lambda: (Path(attempt.folder) / files.CONFIG).exists(), 120, "the ranks")
    for number in numbers:  # the leash becomes torchrun, so it is one process
        assert len(site.nodes.processes(number, running="torch.distributed.run")) == 1
        assert len(site.nodes.processes(number, running="-u -m attuner_runner.train_mcore")) == 1
    state = site.end_of(launcher, attempt)
    stamp = launcher.files(attempt).stamp
    print(json.dumps([x for x in site.stamps(attempt).lines], indent=1))
    assert (state.phase, stamp.outcome) == ("succeeded", "ok"), state
    assert stamp.nodes == allocated["nodes"]
    assert len(files.read_jsonl(Path(attempt.folder) / files.STEPS)) == 5
    assert {p.name for p in (Path(attempt.folder) / files.TRACES).iterdir()} == {"rank0.json", "rank1.json"}
    assert files.read_json(Path(attempt.folder) / files.FINGERPRINT)["steps"]
    topology = events(site.stamps(attempt), "topology")[-1]
    assert [row["ranks"] for row in topology["nodes"]] == [1, 1]
    assert topology["probe"] == "gloo"
    assert all(row["matmul_ms"] > 0 and row["exchange_gb_s"] > 0 for row in topology["nodes"])
    assert stamp.versions.keys() >= {"torch", "megatron_core", "ray", "python"}
    assert stamp.released_at is not None
    assert settle(launcher.files(attempt), attempt, gpus=2, state=state).how == "released"
    assert site.nodes.processes(running="attuner_runner") == []


def placed(site: Site, launcher: Any, name: str, job: JobSpec) -> list[int]:
    """Run a job to its end and return the numbers of its nodes."""
    attempt = site.submit(launcher, name, job)
    state = site.end_of(launcher, attempt)
    assert state.phase == "succeeded", state
    return [site.nodes.number_of(x) for x in launcher.files(attempt).stamp.nodes]


def test_calibration_runs_take_different_nodes_where_there_are_spares(site: Site) -> None:
    launcher = site.launcher()
    taken = [placed(site, launcher, f"l0{k}", walk(placement_offset=k)) for k in range(3)]
    print("nodes of three runs:", taken)
    assert sorted(n for nodes in taken for n in nodes) == [1, 2, 3]


def test_nodes_that_are_excluded_by_id_and_by_address_are_not_taken(site: Site) -> None:
    away = [next(x for ip, x in site.nodes.alive().items() if ip == "127.0.0.3"), "127.0.0.4"]
    assert placed(site, site.launcher(), "l01", walk(exclude_nodes=away, placement_offset=0)) == [3]


def test_a_node_that_a_run_would_like_and_that_is_taken_is_waited_for_no_longer_than_a_while(site: Site) -> None:
    launcher = site.launcher(start_timeout_s=100)
    holder = site.submit(launcher, "l01", walk(placement_offset=0, steps=400, pace_s=0.1))
    wait_for(lambda: site.stamps(holder).allocated(), 60, "the holder")
    first = site.nodes.number_of(launcher.files(holder).stamp.nodes[0])
    assert placed(site, launcher, "l02", walk(placement_offset=0)) != [first]


def test_a_slow_node_is_replaced_by_a_spare_and_the_run_goes_on_without_it(site: Site) -> None:
    slow = next(x for ip, x in site.nodes.alive().items() if ip == "127.0.0.3")
    inject = {"kind": "slow_node", "node": slow, "factor": 8}
    launcher = site.launcher(slow_node_factor=3.0)
    attempt = site.submit(launcher, "l01", walk(2, placement_offset=0, inject=inject, device={"kind": "cpu"}))
    state = site.end_of(launcher, attempt)
    stamps = site.stamps(attempt)
    first, last = events(stamps, "topology")
    print(json.dumps([first, last], indent=1))
    assert state.phase == "succeeded", state
    assert (first["slow"], first["replaced"], last["slow"]) == ([slow], [slow], [])
    assert slow not in stamps.stamp().nodes
    assert len(set(stamps.stamp().nodes)) == 2
    assert any("is slow or sick: matrix product" in w for w in stamps.stamp().warnings)


def test_a_slow_node_without_a_spare_is_a_warning_on_record(site: Site) -> None:
    inject = {"kind": "slow_node", "node": 1, "factor": 8}
    launcher = site.launcher(slow_node_factor=3.0)
    attempt = site.submit(launcher, "l01", walk(3, inject=inject, device={"kind": "cpu"}))
    state = site.end_of(launcher, attempt)
    assert state.phase == "succeeded", state
    assert "is slow or sick" in state.detail
    assert "no spare node is free: the run goes on with the slow one" in state.detail


@pytest.mark.parametrize("how", ["power", "raylet"])
def test_a_killed_node_is_seen_within_a_minute_charged_to_its_release_and_kept_off_after(site: Site, how: str) -> None:
    launcher = site.launcher(node_check="off")
    attempt = site.submit(launcher, "l01", walk(2, steps=900, pace_s=0.1, torchrun=True))
    wait_for(lambda: (Path(attempt.folder) / files.STEPS).exists(), 90, "the first step")
    lost = launcher.files(attempt).stamp.nodes[1]
    number = site.nodes.number_of(lost)
    killed = time.time()
    site.nodes.kill(number, running="" if how == "power" else "raylet/raylet")
    state = site.end_of(launcher, attempt)
    stamp = launcher.files(attempt).stamp
    settled = settle(launcher.files(attempt), attempt, gpus=2, state=state)
    print(f"{how}: released {(stamp.released_at or 0) - killed:.1f} s after the kill; {stamp.detail}; {settled}")
    assert (stamp.outcome, stamp.lost_nodes, state.gone) == ("node_lost", [lost], True)
    assert stamp.released_at is not None
    assert stamp.released_at - killed < SEEN_WITHIN_S
    assert (settled.how, settled.lost) == ("released", True)
    assert settled.gpu_hours == pytest.approx(2 * (stamp.released_at - (stamp.allocated_at or 0)) / 3600)
    wait_for(lambda: not site.nodes.processes(running="attuner_runner.walk"), 15, "the end of the ranks on the lost node")
    again = site.submit(launcher, "l02", walk(2, exclude_nodes=stamp.lost_nodes))
    assert site.end_of(launcher, again).phase == "succeeded"
    assert lost not in launcher.files(again).stamp.nodes


def test_a_stopped_run_leaves_nobody_on_any_node_and_is_stamped(site: Site) -> None:
    launcher = site.launcher(node_check="off")
    attempt = site.submit(launcher, "l01", walk(2, steps=900, torchrun=True))
    wait_for(lambda: (Path(attempt.folder) / files.STEPS).exists(), 90, "the first step")
    assert site.nodes.processes(running="attuner_runner.walk")
    launcher.cancel(attempt)
    assert site.nodes.processes(running="attuner_runner.walk") == []
    stamp = launcher.files(attempt).stamp
    assert stamp.outcome == "stopped"
    assert settle(launcher.files(attempt), attempt, gpus=2, state=launcher.poll(attempt)).how == "released"


def test_a_driver_killed_outright_is_charged_to_its_last_heartbeat_and_leaves_nobody(site: Site) -> None:
    launcher = site.launcher(node_check="off")
    attempt = site.submit(launcher, "l01", walk(2, steps=900, torchrun=True))
    wait_for(lambda: (Path(attempt.folder) / files.STEPS).exists(), 90, "the first step")
    site.nodes.kill(0, running="-m attuner_runner.driver")
    killed = time.time()
    state = site.end_of(launcher, attempt)
    settled = settle(launcher.files(attempt), attempt, gpus=2, state=state)
    assert settled.how == "last_heartbeat"
    assert settled.released_at == pytest.approx(killed, abs=3.0)
    wait_for(lambda: not site.nodes.processes(running="attuner_runner.walk"), 30, "the end of the ranks")


def test_a_framework_with_actors_of_its_own_takes_the_devices_that_were_reserved_for_it(site: Site) -> None:
    launcher = site.launcher()
    job = walk(3, devices_by="job", step_pattern=r"iteration +\d+/", by="log", hold=3, steps=20, pace_s=0.3, hang_s=60.0)
    attempt = site.submit(launcher, "l01", job)
    wait_for(
        lambda: (Path(attempt.folder) / files.LOG).exists() and "iteration" in (Path(attempt.folder) / files.LOG).read_text(),
        90,
        "a step",
    )
    second = site.submit(launcher, "l02", walk(1))
    state = site.end_of(launcher, attempt)
    stamp, other = launcher.files(attempt).stamp, None
    assert (state.phase, stamp.outcome) == ("succeeded", "ok"), state
    assert len(set(stamp.nodes)) == 3
    assert site.end_of(launcher, second).phase == "succeeded"
    other = launcher.files(second).stamp
    assert other.allocated_at is not None
    assert stamp.released_at is not None
    assert other.allocated_at > (stamp.allocated_at or 0) + 20 * 0.3, "the second run began while the first held all devices"


def test_a_log_without_new_steps_is_a_hang(site: Site) -> None:
    launcher = site.launcher()
    job = walk(1, step_pattern=r"iteration +\d+/", by="log", steps=2, pace_s=60.0, hang_s=4.0)
    attempt = site.submit(launcher, "l01", job)
    site.end_of(launcher, attempt)
    stamp = launcher.files(attempt).stamp
    assert stamp.outcome == "hang"
    assert re.search("no step for 4 s; 1 steps done", stamp.detail)
