"""The board's page in a real browser: its content policy lets its own script run, and the script says what the ledger says."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from test_board_site import PRICES, SitePage, pairs
from test_report_campaign import CAMPAIGN_ID

from attuner.core.recipe import EffectiveConfig, differences
from attuner.report.board_site import index
from attuner.report.board_table import COLUMNS
from attuner.report.site_files import write_site

pytestmark = pytest.mark.slow


def shown(browser: str, address: str, profile: Path) -> str:
    """Return the page as the browser has it after its script ran."""
    words = [browser, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={profile}", "--dump-dom", address]
    return subprocess.run(words, capture_output=True, text=True, timeout=120, check=True).stdout


def test_a_browser_runs_the_page_and_compares_two_recipes(tmp_path: Path) -> None:
    browser = next((b for name in ("chromium", "chromium-browser", "google-chrome") if (b := shutil.which(name))), None)
    if browser is None:
        pytest.skip("no Chromium: the page is not tried in a browser")
    found = pairs()
    a, b = (next(e for e in found if e.slug == name) for name in (CAMPAIGN_ID, "odd-0001"))
    write_site(tmp_path / "site", {"index.html": index(found)})
    address = (tmp_path / "site" / "index.html").as_uri()
    dom = shown(browser, f"{address}#compare={a.slug},{b.slug},nobody", tmp_path / "profile")
    assert re.search(r'<html[^>]* class="js"', dom)
    assert dom.count("<th") > len(COLUMNS)
    assert len(re.findall(r"<th[^>]*data-sort[^>]*><button", dom)) == sum(bool(c.kind) for c in COLUMNS)
    assert f"{len(found)} of {len(found)} campaigns shown" in dom
    old, new = (EffectiveConfig(arguments=dict(e.final), env={}, facts={}) for e in (a, b))
    want = [c.key for c in differences(old, new)]
    table = re.findall(r'<table id="differences".*?</table>', dom, re.DOTALL)[0]
    assert [row[0] for row in SitePage(table).rows[1:]] == want
    assert f"{len(want)} final values differ" in dom
    assert "&lt;/script&gt;" in table  # a value that is markup is text
    assert PRICES["cpu"].source not in dom  # `<price>` is escaped
