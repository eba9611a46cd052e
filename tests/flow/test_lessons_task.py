"""The task `lessons` on a real Prefect server and ledger: its artifact, made once a campaign, and never a failed campaign."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from lab import LAYOUT, MICRO, ROOT
from lessons_lab import FULL, Raw, played

sys.path.insert(0, str(ROOT))  # flows/ and tasks/ are run from the checkout, never installed

from prefect import flow, get_client
from prefect.testing.utilities import prefect_test_harness

from attuner.ledgers.duckdb_file import DuckdbLedger
from tasks.lessons import lessons

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", autouse=True)
def server() -> Iterator[None]:
    with prefect_test_harness(server_startup_timeout=120):
        yield


@flow(name="after")
def after(campaign_id: str) -> int:
    return lessons(campaign_id)


def ledger_of(home: Path, *, launcher: str = "ray_jobs") -> None:
    """A finished campaign in a file, as if it had run on a cluster."""
    history = played(home.parent / "played", "a-1", FULL, LAYOUT, MICRO)
    home.mkdir()
    with DuckdbLedger(home / "attuner.duckdb") as ledger:
        ledger.claim("a-1")
        with ledger.batch():
            for event in history.events:
                record = json.loads(json.dumps(event.record))
                if event.kind == "campaign":
                    record["launcher"]["name"] = launcher
                if event.kind != "lease":
                    ledger.append("a-1", event.kind, event.key, Raw(content=record))
        ledger.release("a-1")


def artifacts() -> list[str]:
    with get_client(sync_client=True) as client:
        return [str(a.data) for a in client.read_artifacts() if a.key == "a-1-lessons"]


def test_a_campaign_shows_what_it_leaves_and_drafts_it_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATTUNER_HOME", str(tmp_path / "home"))
    ledger_of(tmp_path / "home")
    assert after("a-1") == 2
    assert after("a-1") == 2
    texts = artifacts()
    assert len(set(texts)) == 1
    assert "2 drafted, 0 said already." in texts[0]
    assert "attuner lessons review lessons/mcore/a-1-" in texts[0]
    assert len(list((tmp_path / "home" / "lessons" / "mcore").glob("a-1-*.yaml"))) == 1


def test_whatever_goes_wrong_the_campaign_does_not_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATTUNER_HOME", str(tmp_path / "home"))
    ledger_of(tmp_path / "home")
    (tmp_path / "home" / "lessons" / "mcore").mkdir(parents=True)
    (tmp_path / "home" / "lessons" / "mcore" / "broken.yaml").write_text("{not: a list}\n")
    assert after("a-1") == 0
    assert after("no-such-campaign") == 0
