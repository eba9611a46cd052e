"""The whole way on Megatron-LM's own training script: imported from a launch script, tuned through the local Ray on two CPU
ranks, one candidate refused before launch, shipped with all three looks. Needs a checkout of core_v0.16.1, named by
ATTUNER_MEGATRON_SRC."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import ROOT, SOURCE

from attuner.core.events import History
from attuner.ledgers.duckdb_file import DuckdbLedger
from attuner.policy import budget

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not SOURCE, reason="ATTUNER_MEGATRON_SRC names no Megatron-LM checkout")]
NONE: dict[str, Any] = {"recompute_granularity": None, "recompute_method": None, "recompute_num_layers": None}
ONE: dict[str, Any] = {"tensor_model_parallel_size": 1, "sequence_parallel": False, "expert_tensor_parallel_size": 1}
MOVES: list[dict[str, Any]] = [
    {"group": "tensor-parallel", "title": "TP 2→1", "arguments": ONE},
    {"group": "open", "title": "learning rate × 10", "arguments": {"lr": 0.01}},
    {"group": "recompute", "title": "recompute full→none", "parent": "h01", "arguments": NONE},
    {"group": "micro-batch", "title": "micro batch 1→4", "parent": "h03", "arguments": {"micro_batch_size": 4}},
]


def attuner(home: Path, *words: str) -> str:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("ATTUNER_", "PREFECT_", "RAY_"))}
    env = {**kept, "ATTUNER_HOME": str(home), "PREFECT_HOME": str(home / "prefect"), "ATTUNER_MEGATRON_SRC": SOURCE}
    command = [sys.executable, "-m", "attuner.cli.main", "--project", str(ROOT), *words]
    done = subprocess.run(command, env=env, cwd=home, capture_output=True, text=True, timeout=1800, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    return done.stdout


def campaign(folder: Path) -> Path:
    """Write the campaign that comes along with another proposer: one whose moves are known beforehand."""
    told = yaml.safe_load((ROOT / "configs" / "campaigns" / "megatron-cpu.yaml").read_text())
    told |= {"baseline": str(folder / "recipe.yaml"), "proposer": {"name": "scripted", "script": MOVES}}
    told["launch"] |= {"max_s": 600, "hang_s": 200}
    told |= {"budget": {"gpu_hours": 3.0}, "estimate": {"hold_back": False}, "early_stop": {"enabled": False}}
    file = folder / "campaign.yaml"
    file.write_text(yaml.safe_dump(told))
    return file


def test_a_launch_script_becomes_a_shipped_recipe(tmp_path: Path) -> None:
    attuner(tmp_path, "import", str(ROOT / "configs" / "scripts" / "tiny-moe-cpu.sh"), "-o", "recipe.yaml")
    attuner(tmp_path, "run", str(campaign(tmp_path)), "--quiet")
    (name,) = [row["campaign"] for row in json.loads(attuner(tmp_path, "status", "--json"))]
    assert "sound" in attuner(tmp_path, "ledger", "verify")
    with DuckdbLedger(tmp_path / "attuner.duckdb") as ledger:
        history = History(list(ledger.history(name)))
    tried = [x for x in history.launches() if x.kind == "search"]
    assert len(tried) == 3
    refused = history.verdict("h02")
    assert refused is not None
    assert refused.decision == "refuse"
    assert [f.key for f in refused.refusals()] == ["lr"]
    shipment = history.shipment()
    assert shipment is not None
    for launch in tried:
        trial = history.trial(launch.id)
        assert trial is not None
        assert trial.status == "ok", trial.cause
        assert {v.look for v in history.looks(launch.id, trial.attempt)} == {"forward", "update"}
    assert budget.spent(history) == pytest.approx(sum(s.gpu_hours for s in history.settlements()))
    if not shipment.kept_baseline:  # a busy machine may hide any gain; what is shipped has its looks in any case
        leader = history.trial(shipment.launch_id)
        assert leader is not None
        assert {v.decision for v in history.looks(shipment.launch_id, leader.attempt)} == {"admit"}
    print(f"{name}: gain {shipment.gain:+.0%}, kept baseline: {shipment.kept_baseline} {shipment.reason}")
