"""What a campaign survives: kill -9 of itself at any stage, of the Ray head, a stopped rank, a dead rank, no memory."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from attuner.core.events import History
from attuner.launchers.local_ray import LocalRay

pytestmark = pytest.mark.slow


def kill(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()
    if process.stdout:
        process.stdout.close()


def running(events: list[Any], kind: str) -> bool:
    """Tell whether a launch of this kind has been submitted and has no trial yet."""
    history = History(events)
    return any(
        x.kind == kind and history.trial(x.id) is None and any(a.address for a in history.attempts(x.id))
        for x in history.launches()
    )


def training(drill: Any, events: list[Any], kind: str) -> bool:
    """Tell whether a launch of this kind is at its steps right now."""
    if not running(events, kind):
        return False
    history = History(events)
    return any(
        (Path(a.folder) / "steps.jsonl").exists()
        for x in history.launches()
        if x.kind == kind and history.trial(x.id) is None
        for a in history.attempts(x.id)
    )


def launch_rows(events: list[Any]) -> list[str]:
    history = History(events)
    return [
        f"{x.id} {x.kind} a{a.number} {s.how if s else 'open'} {s.gpu_hours * 3600 if s else 0:.1f} device-s "
        + (t.status if t else "-")
        for x in history.launches()
        for a in history.attempts(x.id)
        for s in [history.settled(x.id, a.number)]
        for t in [history.trial(x.id)]
    ]


def ranks_of(folder: Path) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                line = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if str(folder).encode() in line and b"train_mcore" in line and b"torch.distributed.run" not in line:
                found.append(int(entry.name))
    return found


def test_a_campaign_killed_in_calibrate_in_a_launch_and_in_remeasure_ends_all_the_same(drill: Any) -> None:
    drill.write()
    process = drill.start("run", str(drill.file), "--quiet")
    drill.wait_for(lambda e: running(e, "calibrate"), process)
    second = drill.attuner("resume", drill.campaign(), "--quiet", check=False)
    assert second.returncode == 4, second.stderr
    assert "runs this campaign" in second.stderr
    kill(process)
    for stage in ("search", "remeasure"):
        process = drill.start("resume", drill.campaign(), "--quiet")
        drill.wait_for(lambda e, stage=stage: training(drill, e, stage), process)
        kill(process)
    done = drill.attuner("resume", drill.campaign(), "--quiet")
    assert "shipped" in done.stdout
    events = drill.events()
    history = History(events)
    print("\n".join(launch_rows(events)))
    for launch in history.launches():
        assert len(history.attempts(launch.id)) == 1, f"{launch.id} was paid twice"
        assert history.trial(launch.id) is not None
    shipment = history.shipment()
    assert shipment is not None
    assert not shipment.kept_baseline
    assert "sound" in drill.attuner("ledger", "verify").stdout
    assert drill.marked() == []


def _children(pid: int) -> list[int]:
    import psutil

    return [c.pid for c in psutil.Process(pid).children(recursive=True)]


MOVES: list[dict[str, Any]] = [
    {"group": "micro-batch", "title": "to hang", "arguments": {"micro_batch_size": 2}},
    {"group": "micro-batch", "title": "to crash", "arguments": {"micro_batch_size": 4}},
    {"group": "recompute", "title": "no memory", "arguments": {"recompute_granularity": None}, "parent": "l02"},
    {"group": "open", "title": "count zero gradients", "arguments": {"log_num_zeros_in_grad": True}},
    {"group": "open", "title": "fewer malloc arenas", "env": {"MALLOC_ARENA_MAX": "2"}},
    {"group": "open", "title": "learning rate", "arguments": {"lr": 0.01}},
]


def test_contact_lost_a_dead_head_a_hang_a_crash_and_an_open_lever_in_one_campaign(drill: Any) -> None:
    """One campaign that meets everything: what each costs and becomes is on record, and it still ends."""
    quiet = {"floor": 9.0, "max_step_spread": 30.0, "busy_sigma": 0.9}  # nothing leads: no re-measurement to wait for
    drill.write(script=MOVES, launch={"expected_s": 20, "max_s": 120, "hang_s": 12}, noise=quiet)
    process = drill.start("run", str(drill.file), "--quiet")
    drill.wait_for(lambda e: training(drill, e, "calibrate"), process)
    ray = LocalRay(drill.home / drill.campaign(), resource="slot", devices=2)
    lose_contact(ray)
    drill.wait_for(lambda e: History(e).trial("l02") is not None, process)
    drill.wait_for(lambda e: training(drill, e, "calibrate"), process)
    victim = open_launch(drill, "calibrate")
    kill_head(ray)
    drill.wait_for(lambda e: History(e).trial(victim) is not None, process)
    for sent in (signal.SIGSTOP, signal.SIGKILL):
        drill.wait_for(lambda e: training(drill, e, "search"), process)
        launch = open_launch(drill, "search")
        ranks = ranks_of(Path(History(drill.events()).attempts(launch)[-1].folder))
        assert ranks, "no rank to signal"
        os.kill(ranks[0], sent)
        drill.wait_for(lambda e, launch=launch: History(e).trial(launch) is not None, process)
    out, _ = process.communicate(timeout=300)
    assert process.returncode == 0, out
    history = History(drill.events())
    print("\n".join(launch_rows(drill.events())))
    assert len(history.attempts("l02")) == 1, "contact lost was paid twice"
    first, second = (history.settled(victim, n) for n in (1, 2))
    assert first is not None
    assert first.lost
    assert first.how == "last_heartbeat"
    assert first.gpu_hours > 0
    assert second is not None
    assert second.how == "released"
    trials = {h.title: history.trial(x.id) for h in history.hypotheses() for x in history.launches() if x.hypothesis == h.id}
    assert trials["to hang"] is not None
    assert trials["to hang"].status == "hang"
    assert trials["to crash"] is not None
    assert trials["to crash"].status == "crash"
    assert all(t is not None and t.gpu_hours > 0 for t in trials.values())
    for title in ("count zero gradients", "fewer malloc arenas"):
        trial = trials[title]
        assert trial is not None
        score = history.score(trial.launch_id)
        assert score is not None
        assert score.valid, score.why_invalid
        print(f"open: {title}: {score.tokens_per_s_per_gpu:.0f} tokens/s per device, {score.decision}")
    refused = history.verdict("h06")
    assert refused is not None
    assert refused.decision == "refuse"
    assert "learning rate" not in trials
    assert drill.marked() == []


def open_launch(drill: Any, kind: str) -> str:
    """Return the launch of this kind that is running."""
    history = History(drill.events())
    return next(x.id for x in history.launches() if x.kind == kind and history.trial(x.id) is None and history.attempts(x.id))


def lose_contact(ray: LocalRay) -> None:
    """Make the head deaf for longer than a client's patience."""
    assert ray.pid is not None
    deaf = [p for p in _children(ray.pid) if b"dashboard.py" in Path(f"/proc/{p}/cmdline").read_bytes()]
    assert deaf
    for pid in deaf:
        os.kill(pid, signal.SIGSTOP)
    time.sleep(15)  # the outage itself
    for pid in deaf:
        os.kill(pid, signal.SIGCONT)


def kill_head(ray: LocalRay) -> None:
    """Kill gcs, raylet, dashboard and the head itself, all at once."""
    assert ray.pid is not None
    for child in [*_children(ray.pid), ray.pid]:
        try:
            os.kill(child, signal.SIGKILL)
        except ProcessLookupError:
            continue
