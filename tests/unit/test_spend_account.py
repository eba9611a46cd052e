"""Laws of the account: what is summed is what was settled, by whatever it is summed, and a price is the user's."""

from __future__ import annotations

from pathlib import Path

import pytest
from book import Book, trial
from lab import ROOT, campaign

from attuner.cli.main import main
from attuner.core.errors import UserError
from attuner.report import spend
from attuner.yamlfile import parse, read_yaml

PRICES = {"b200": spend.DevicePrice(usd_per_hour=14.24, source="t"), "lab": spend.DevicePrice(usd_per_hour=2.0, source="t")}


def book() -> Book:
    made = Book(campaign())
    made.ran("l01", kind="calibrate", hours=1.0)
    made.launch("l02")
    made.settle("l02", 0.5, lost=True, how="last_heartbeat")
    made.settle("l02", 2.0, number=2)
    made.put("trial", "l02", trial(launch_id="l02", attempt=2, status="oom", gpu_hours=2.5))
    made.launch("l03", kind="check")
    made.settle("l03", 0.25, interrupted=True)
    made.launch("l04")
    made.settle("l04", 0.0, how="never_allocated")
    return made


def test_every_closed_attempt_is_one_charge_with_its_outcome() -> None:
    found = spend.charges(book().history, {})
    assert [(c.launch, c.attempt, c.outcome) for c in found] == [
        ("l01", 1, "ok"),
        ("l02", 1, "allocation lost"),
        ("l02", 2, "oom"),
        ("l03", 1, "interrupted"),
        ("l04", 1, "never allocated"),
    ]
    assert {c.usd for c in found} == {None}


@pytest.mark.parametrize("by", spend.GROUPS)
def test_however_it_is_summed_the_whole_stays_the_same(by: str) -> None:
    found = spend.charges(book().history, PRICES)
    rows = spend.summed(found, by)
    assert sum(r["gpu_hours"] for r in rows) == spend.total(found)["gpu_hours"] == 3.75
    assert sum(r["usd"] for r in rows) == pytest.approx(3.75 * 2.0)
    assert [r["gpu_hours"] for r in rows] == sorted((r["gpu_hours"] for r in rows), reverse=True)


def test_the_clusters_own_price_goes_before_its_hardwares() -> None:
    priced = spend.price_of(campaign(), {**PRICES, "cpu": spend.DevicePrice(usd_per_hour=1.0, source="t")})
    assert priced is not None
    assert priced.usd_per_hour == 2.0
    assert spend.price_of(campaign(), {"b200": PRICES["b200"]}) is None


def test_a_missing_price_leaves_the_whole_open() -> None:
    found = spend.charges(book().history, PRICES)
    assert spend.total([*found, found[0].model_copy(update={"usd": None})])["usd"] is None


def test_a_price_below_nothing_is_refused_in_one_line() -> None:
    with pytest.raises(UserError, match=r"^prices\.yaml: b200: usd_per_hour"):
        parse(spend.DevicePrice, {"usd_per_hour": -1, "source": "t"}, "prices.yaml: b200")


def test_an_empty_ledger_says_how_to_begin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ATTUNER_HOME", str(tmp_path))
    assert main(["spend"]) == 2
    assert "attuner run FILE" in capsys.readouterr().err


def test_the_price_table_that_comes_along_is_read() -> None:
    told = read_yaml(ROOT / "configs" / "device_prices.yaml")
    assert {name: parse(spend.DevicePrice, x, name).usd_per_hour for name, x in told.items()}["b200"] == 14.24
