"""Laws of the doctor on this machine: it sees a moved rule, telemetry and a missing server, and mends nothing."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from lab import ROOT

from attuner.cli import doctor
from attuner.core.access import Check
from attuner.settings import Settings


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    project = tmp_path / "project"
    shutil.copytree(ROOT / "rules", project / "rules")
    return Settings(home=tmp_path / "home", project=project)


def checks(settings: Settings) -> dict[str, Check]:
    return {c.name: c for c in doctor.machine(settings)}


def test_an_untouched_installation_is_well(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("PREFECT_SERVER_ANALYTICS_ENABLED", "false"), ("DO_NOT_TRACK", "1"), ("RAY_USAGE_STATS_ENABLED", "0")):
        monkeypatch.setenv(name, value)
    assert {name: check.ok for name, check in checks(settings).items()} == dict.fromkeys(
        ("home", "rules", "ledger", "telemetry"), True
    )
    assert not settings.home.exists()  # it only looked


def test_a_moved_rule_is_named(settings: Settings) -> None:
    file = settings.rules_dir() / "common.yaml"
    file.write_text(file.read_text() + "# later\n")
    found = checks(settings)["rules"]
    assert not found.ok
    assert "rules/common.yaml" in found.detail
    assert "rules lock" in found.mend


def test_telemetry_that_is_not_switched_off_is_named(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "1")
    found = checks(settings)["telemetry"]
    assert not found.ok
    assert "RAY_USAGE_STATS_ENABLED=0" in found.mend


def test_without_a_server_one_line_says_how_to_start_one() -> None:
    (found,) = doctor.prefect(mend=False)
    assert not found.ok
    assert "prefect server start" in found.mend


def test_clusters_of_campaign_files_are_looked_at_under_their_names(settings: Settings) -> None:
    (found,) = doctor.clusters(
        [str(ROOT / "configs" / "campaigns" / "replay-quickstart.yaml")], settings.model_copy(update={"project": ROOT})
    )
    assert found.ok
    assert found.name == "laptop: cluster"
