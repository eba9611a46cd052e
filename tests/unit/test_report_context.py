"""Laws of what a report reads beside the ledger: a bad price file never keeps a report from being written, and is named."""

from __future__ import annotations

from pathlib import Path

import pytest
from lab import LEVERS, campaign, write_rules
from test_report_campaign import campaign_events

from attuner.core.errors import UserError
from attuner.core.events import History
from attuner.report.details import Context
from attuner.steps.context import context_of, read_price_table
from attuner.steps.ship import write_report


@pytest.fixture
def history() -> History:
    return History(campaign_events())


def test_prices_and_levers_are_read_from_the_projects_files(tmp_path: Path, history: History) -> None:
    prices = tmp_path / "device_prices.yaml"
    prices.write_text('CPU: {usd_per_hour: 0.5, source: "our own bill", read: "2026-11"}\n')
    found = context_of(history, write_rules(tmp_path / "rules"), prices)
    assert [x["id"] for x in found.levers] == [x["id"] for x in LEVERS]
    assert found.prices["cpu"].usd_per_hour == 0.5
    page = write_report(history, tmp_path, found)[1].read_text()
    assert "0.5 per device-hour by configs/device_prices.yaml (our own bill, read 2026-11)" in page


@pytest.mark.parametrize("text", ["cpu: {usd_per_hour: -1, source: x}", "- a list", "cpu: ["])
def test_a_price_table_that_cannot_be_read_is_named_on_the_page(tmp_path: Path, history: History, text: str) -> None:
    prices = tmp_path / "device_prices.yaml"
    prices.write_text(text)
    with pytest.raises(UserError):
        read_price_table(prices)
    found = context_of(history, write_rules(tmp_path / "rules"), prices)
    assert dict(found.prices) == {}
    page = write_report(history, tmp_path, found)[1].read_text()
    assert "the price table can&#x27;t be read" in page


def test_without_files_the_page_says_that_no_price_is_stated(tmp_path: Path, history: History) -> None:
    for prices in (None, tmp_path / "nowhere.yaml"):
        found = context_of(history, tmp_path, prices)
        assert (dict(found.prices), list(found.levers), found.no_prices) == ({}, [], "")
    assert context_of(History([]), tmp_path, None) == Context()
    assert campaign().stack.name == "mcore"  # whose levers are read above
