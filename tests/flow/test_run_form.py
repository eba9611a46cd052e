"""The campaign flow by its form, on a real Prefect server: a dry run spends nothing, an override is on record."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from lab import ROOT

sys.path.insert(0, str(ROOT))  # flows/ and tasks/ are run from the checkout, never installed

from prefect import get_client
from prefect.testing.utilities import prefect_test_harness
from prefect.utilities.callables import parameter_schema

from attuner.core.events import History
from attuner.settings import load_settings
from attuner.wiring import open_ledger
from flows.campaign import campaign

pytestmark = pytest.mark.slow
REPLAY = str(ROOT / "configs" / "campaigns" / "replay-quickstart.yaml")


@pytest.fixture(scope="module", autouse=True)
def server() -> Iterator[None]:
    with prefect_test_harness():
        yield


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ATTUNER_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("ATTUNER_PROJECT", str(ROOT))
    return tmp_path / "home"


def test_every_field_of_the_form_says_what_it_is() -> None:
    schema = parameter_schema(campaign).model_dump_for_openapi()
    groups = [schema["properties"], *(x["properties"] for x in schema["definitions"].values())]
    silent = [name for group in groups for name, field in group.items() if not field.get("description")]
    assert silent == []
    assert len(groups) == 4


def test_a_dry_run_says_what_it_would_cost_and_leaves_nothing_on_record(home: Path) -> None:
    state = campaign(file=REPLAY, dry_run=True, budget_gpu_hours=0.5, return_state=True)
    assert (state.name, state.is_completed()) == ("DryRun", True)
    assert "budget 0.5 device-hours" in str(state.message)
    with get_client(sync_client=True) as client:
        (shown,) = [a for a in client.read_artifacts() if a.key == "replay-quickstart-dry-run"]
    assert "changed     budget.gpu_hours 0.4 → 0.5" in str(shown.data)
    assert not (home / "attuner.duckdb").exists()


def test_bad_input_is_one_line_in_the_failure_message(home: Path) -> None:
    for given, words in (
        ({"file": "configs/campaigns/none.yaml"}, "none.yaml: no such file"),
        ({"file": REPLAY, "proposer": "claude"}, "proposer.model: none"),
        ({}, "file: is empty"),
    ):
        state = campaign(**given, return_state=True)  # type: ignore[call-overload]
        assert state.is_failed()
        assert words in str(state.message)
        assert "\n" not in str(state.message)


def test_an_override_makes_a_campaign_whose_record_says_so(home: Path) -> None:
    folder = Path(campaign(file=REPLAY, budget_gpu_hours=0.5))
    history = History(open_ledger(load_settings()).history(folder.name))
    born = history.campaign()
    assert [str(x) for x in born.changed] == ["budget.gpu_hours 0.4 → 0.5"]
    assert born.budget.gpu_hours == 0.5
    assert history.shipment() is not None
