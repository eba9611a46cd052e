"""A really slower candidate on the local cluster: ended while it runs, charged to that moment, not scored, told in status."""

from __future__ import annotations

from typing import Any

import pytest

from attuner.core.events import History

pytestmark = pytest.mark.slow

FAST: dict[str, Any] = {
    **{"tensor_model_parallel_size": 1, "sequence_parallel": False, "micro_batch_size": 8, "global_batch_size": 16},
    **{"recompute_granularity": None, "recompute_method": None, "recompute_num_layers": None},
}
SLOW: list[dict[str, Any]] = [{"group": "micro-batch", "title": "micro batch 8→1", "arguments": {"micro_batch_size": 1}}]
SCORED = 40


def test_a_slower_candidate_is_ended_while_it_runs(drill: Any) -> None:
    work = {
        "model": "drill-moe",
        "dataset": "python-stdlib",
        "seq_len": 64,
        "global_batch": 16,
        "precision": "fp32",
        "seed": 1234,
    }
    drill.write(
        script=SLOW,
        recipe=FAST,
        workload={**work, "steps": 2 + SCORED, "warmup_steps": 2, "gpus": 2, "hardware": "cpu"},
        early_stop={"confidence": 0.95},  # tests share their machine: eight times the operators must show above its noise
        launch={"expected_s": 40, "max_s": 300, "hang_s": 90},
    )
    drill.attuner("run", str(drill.file), "--quiet")
    history = History(drill.events())
    (launch,) = [x for x in history.launches() if x.kind == "search"]
    trial = history.trial(launch.id)
    assert trial is not None
    assert trial.status == "stopped_early", trial.cause
    assert trial.cause.startswith("slower than the leader l0")
    seen = [s for s in trial.steps if s.kind == "scored"]
    assert 3 <= len(seen) < SCORED
    (settled,) = [s for s in history.settlements() if s.launch_id == launch.id]
    assert settled.how == "released"
    assert settled.released_at is not None
    assert settled.allocated_at is not None
    assert trial.gpu_hours == pytest.approx(2 * (settled.released_at - settled.allocated_at) / 3600)
    assert settled.released_at >= trial.steps[-1].t
    assert history.score(launch.id) is None
    assert history.shipment() is not None
    print(f"{trial.cause}; {len(seen)} of {SCORED} scored steps, {trial.gpu_hours * 3600:.1f} device-seconds")
    assert "stopped early" in drill.attuner("status", drill.campaign()).stdout
    assert "sound" in drill.attuner("ledger", "verify").stdout
    assert drill.marked() == []
