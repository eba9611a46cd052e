"""Law of the pages: axe-core finds no accessibility fault above minor on them, light or dark, on a desk or a phone, and nothing
makes a page scroll sideways. Needs Chromium, playwright and axe-core (AXE_JS, node_modules, or npm); skipped without."""

from __future__ import annotations

import os
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from report_lab import CONTEXT, spoken_events
from test_board_site import PRICES, several
from test_report_campaign import campaign_events

from attuner.report import html
from attuner.report.board_site import site
from attuner.report.facts import gather
from attuner.report.site_files import write_site

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[2]
AXE = "axe-core@4.14.1"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
SIZES = {"desk": (1280, 900), "phone": (390, 844)}
# what is folded away is looked at too: a person opens it
UNFOLD = "document.querySelectorAll('details').forEach(d => { d.open = true; })"
RUN = "axe.run(document, {resultTypes: ['violations']}).then(r => r.violations)"
SIDEWAYS = "document.documentElement.scrollWidth - document.documentElement.clientWidth"


@pytest.fixture(scope="module")
def axe(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The source of axe-core: given, installed, or fetched by npm."""
    given = [Path(os.environ["AXE_JS"])] if os.environ.get("AXE_JS") else []
    for file in (*given, ROOT / "node_modules" / "axe-core" / "axe.min.js"):
        if file.is_file():
            return file.read_text(encoding="utf-8")
    npm, folder = shutil.which("npm"), tmp_path_factory.mktemp("axe")
    if npm is None:
        pytest.skip("no axe-core: set AXE_JS to axe.min.js, or install npm")
    try:
        subprocess.run([npm, "pack", AXE, "--silent"], cwd=folder, capture_output=True, timeout=90, check=True)
    except (subprocess.SubprocessError, OSError):
        pytest.skip(f"no axe-core: npm can't fetch {AXE}; set AXE_JS to axe.min.js")
    with tarfile.open(next(folder.glob("*.tgz"))) as packed:
        packed.extractall(folder, filter="data")
    return (folder / "package" / "axe.min.js").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A headless Chromium of this machine."""
    api = pytest.importorskip("playwright.sync_api", reason="no playwright: the pages are not tried with axe-core")
    found = next((b for name in BROWSERS if (b := shutil.which(name))), None)
    if found is None:
        pytest.skip("no Chromium: the pages are not tried with axe-core")
    with api.sync_playwright() as started:
        running = started.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield running
        running.close()


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Campaign pages (whole, spoken to by people, just born) and every kind of page of the board; name and address."""
    folder = tmp_path_factory.mktemp("pages")
    found: dict[str, Path] = {}
    for name, events in (("campaign", campaign_events()), ("people", spoken_events()), ("born", campaign_events()[:9])):
        found[name] = folder / f"{name}.html"
        found[name].write_text(html.render(gather(events, CONTEXT)), encoding="utf-8")
    write_site(folder / "site", site(iter(several()), PRICES))
    for kind in ("index.html", "recipes/*.html", "reports/*.html"):
        first = next((folder / "site").glob(kind))
        found[f"site {kind}"] = first
    addresses = {name: file.as_uri() for name, file in found.items()}
    a, b = sorted(file.stem for file in (folder / "site" / "recipes").glob("*.html"))[-2:]
    return {**addresses, "site compared": f"{addresses['site index.html']}#compare={a},{b}"}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_above_minor(browser: Any, axe: str, pages: dict[str, str], scheme: str, size: str) -> None:
    width, height = SIZES[size]
    faults: list[str] = []
    # the pages' content policy lets no foreign script in; axe is one
    context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme, bypass_csp=True)
    for name, address in pages.items():
        page = context.new_page()
        page.goto(address)
        page.evaluate(UNFOLD)
        assert page.evaluate(SIDEWAYS) <= 0, f"{name} scrolls sideways at {width} px"
        page.evaluate(axe)
        faults += [f"{name}: {line}" for v in page.evaluate(RUN) if v["impact"] != "minor" for line in told(v)]
        page.close()
    context.close()
    assert faults == []


def told(violation: dict[str, Any]) -> list[str]:
    return [f"{violation['id']} at {n['target']}: {n['failureSummary'][:200]}" for n in violation["nodes"][:3]]


def test_axe_would_find_one(browser: Any, axe: str) -> None:
    context = browser.new_context(bypass_csp=True)
    page = context.new_page()
    page.set_content(
        '<html lang="en"><title>x</title><main><h1>x</h1><img src="x.png"><p style="color:#ddd">pale</p></main></html>'
    )
    page.evaluate(axe)
    assert {"image-alt", "color-contrast"} <= {v["id"] for v in page.evaluate(RUN)}
    context.close()
