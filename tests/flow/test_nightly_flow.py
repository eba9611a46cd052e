"""Laws of the flow `nightly` on a real Prefect server and the real framework: an unchanged night leaves no trace, an upgrade is
seen, what can't begin is told, and what goes wrong with one recipe stays with it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import yaml
from lab import ROOT

sys.path.insert(0, str(ROOT))  # flows/ and tasks/ are run from the checkout, never installed

from overlay import VERSION, release
from prefect import get_client
from prefect.testing.utilities import prefect_test_harness

from attuner.core.environment import Environment
from attuner.core.events import History
from attuner.core.judgement import Calibration, Shipment
from attuner.core.news import Alert, Told
from attuner.ledgers.duckdb_file import DuckdbLedger
from attuner.settings import load_settings
from attuner.steps.birth import birth
from attuner.wiring import new_kit, read_campaign
from flows.nightly import nightly

pytestmark = pytest.mark.slow
RECIPE = {
    **{"num_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "ffn_hidden_size": 128, "num_moe_experts": 4},
    **{"moe_router_topk": 2, "moe_ffn_hidden_size": 128, "moe_router_load_balancing_type": "none", "normalization": "RMSNorm"},
    **{"gated_linear_unit": True, "activation_func": "silu", "add_bias_linear": False, "hidden_dropout": 0.0},
    **{"attention_dropout": 0.0, "vocab_size": 256, "seq_length": 64, "global_batch_size": 8, "lr": 0.001, "clip_grad": 1.0},
    **{"grad_reduce_in_fp32": True, "seed": 1234, "tensor_model_parallel_size": 2, "sequence_parallel": True},
    **{"micro_batch_size": 1, "moe_token_dispatcher_type": "alltoall"},
}


@pytest.fixture(scope="module", autouse=True)
def server() -> Iterator[None]:
    with prefect_test_harness(server_startup_timeout=180):
        yield


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home of its own with one recipe on watch, and a campaign of it that has shipped the baseline here."""
    for name in ("ATTUNER_RAY_ADDRESS", "ATTUNER_RAY_PYTHON", "ATTUNER_WEBHOOK_FILE", "PYTHONPATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("ATTUNER_HOME", str(tmp_path / "out"))
    monkeypatch.setenv("ATTUNER_PROJECT", str(ROOT))
    (tmp_path / "baseline.yaml").write_text(yaml.safe_dump({"stack": "mcore", "arguments": RECIPE}))
    work = {"model": "drill-moe", "dataset": "python-stdlib", "seq_len": 64, "global_batch": 8, "precision": "fp32", "seed": 1234}
    body = {
        "name": "drill",
        "workload": {**work, "steps": 8, "warmup_steps": 2, "gpus": 2, "hardware": "cpu"},
        "baseline": "baseline.yaml",
        "stack": {"name": "mcore", "version": metadata.version("megatron-core")},
        "launcher": {"name": "ray_jobs", "cluster": "clusters/laptop.yaml"},
        "proposer": {"name": "scripted"},
        "launch": {"expected_s": 8},
        "budget": {"gpu_hours": 0.2},
    }
    (tmp_path / "drill.yaml").write_text(yaml.safe_dump(body))
    watch(tmp_path, {"name": "drill", "campaign": "drill.yaml", "gpu_hours": 0.2})
    finished(tmp_path / "drill.yaml")
    return tmp_path


def watch(folder: Path, *recipes: dict[str, Any]) -> None:
    (folder / "watch.yaml").write_text(yaml.safe_dump({"recipes": list(recipes)}))


def finished(file: Path) -> None:
    """Bring a campaign into the world for real, and put on record what its end would have."""
    campaign = read_campaign(str(file), load_settings())
    with new_kit(campaign) as kit:
        birth(kit, campaign)
        given = {"round": 1, "launches": ["l01"], "mean": 100.0, "sigma": 0.01, "band": 0.03, "busy": False}
        calibration = Calibration.model_validate({**given, "launch_gpu_hours": 0.004, "step0_loss": 5.5})
        kit.ledger.append(campaign.id, "calibration", "1", calibration)
        said = {"recipe": campaign.baseline.digest(), "gain": 0.0, "kept_baseline": True, "reason": "nothing beat it"}
        shipment = Shipment.model_validate({"launch_id": "l01", "folder": str(kit.folder), **said})
        kit.ledger.append(campaign.id, "shipment", "final", shipment)


def rows(home: Path) -> list[tuple[str, str, str]]:
    ledger = DuckdbLedger(home / "out" / "attuner.duckdb")
    return [(e.campaign_id, e.kind, e.key) for name in [*ledger.campaigns(), "watch"] for e in ledger.history(name)]


def files(home: Path) -> list[str]:
    return sorted(p.relative_to(home).as_posix() for p in (home / "out").rglob("*") if "duckdb" not in p.name)


def shown(key: str) -> str:
    """Return the data of the newest artifact with this key."""
    with get_client(sync_client=True) as client:
        found = client.request("POST", "/artifacts/latest/filter", json={"artifacts": {"key": {"any_": [key]}}}).json()
    return str(found[0]["data"]) if found else ""


@pytest.fixture
def upgrade(tmp_path: Path) -> Path:
    """A folder for PYTHONPATH in which megatron-core is a later release: its own files, another version."""
    return release(tmp_path / "upgrade")


def test_an_unchanged_night_leaves_nothing_behind(home: Path) -> None:
    before, lay = rows(home), files(home)
    (said,) = nightly(str(home / "watch.yaml"))
    assert said.startswith("drill: nothing to do: nothing changed since drill-")
    assert rows(home) == before
    assert files(home) == lay
    assert "nothing changed since" in shown("nightly")


def test_the_birth_recorded_what_was_seen(home: Path) -> None:
    ledger = DuckdbLedger(home / "out" / "attuner.duckdb")
    history = History(ledger.history(ledger.campaigns()[0]))
    found = history.find("environment", "birth", Environment)
    assert found is not None
    assert found.looked["megatron_core"] == metadata.version("megatron-core")
    assert found.looked["torch"] == metadata.version("torch")
    assert found.declared["data"].startswith("python-stdlib@sha256:")


def test_an_upgraded_package_is_seen_and_a_dry_run_only_says_so(
    home: Path, upgrade: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = rows(home)
    monkeypatch.setenv("PYTHONPATH", str(upgrade))
    (said,) = nightly(str(home / "watch.yaml"), dry_run=True)
    assert said.startswith("drill: re-tunes: changed since drill-"), said
    assert f"megatron_core {metadata.version('megatron-core')} → {VERSION}" in said
    assert rows(home) == before


def test_a_framework_that_does_not_start_is_told_once_and_the_other_recipes_are_looked_at(
    home: Path, upgrade: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (upgrade / "megatron" / "core" / "package_info.py").write_text("raise ImportError('this release needs a newer torch')\n")
    (home / "torn.yaml").write_text("name: torn\n")
    torn = {"name": "torn", "campaign": "torn.yaml", "gpu_hours": 1.0}
    watch(home, torn, {"name": "drill", "campaign": "drill.yaml", "gpu_hours": 0.2})
    monkeypatch.setenv("PYTHONPATH", str(upgrade))
    first, second = nightly(str(home / "watch.yaml"))
    assert first.startswith("torn: could not be looked at: ")
    assert "baseline: is missing" in first
    assert second.startswith("drill: can't begin: drill can't begin on the environment as it is: the baseline can't be resolved")
    history = History(DuckdbLedger(home / "out" / "attuner.duckdb").history("watch"))
    alerts = history.all("alert", Alert)
    assert [a.kind for a in alerts] == ["look_fails", "baseline_fails"]
    assert [t.undeliverable for t in history.all("told", Told)] == ["", ""]
    before = rows(home)
    assert nightly(str(home / "watch.yaml"), only="drill")[0].startswith("drill: waits: it could not begin")
    assert rows(home) == before
