"""A headless Chromium on the Prefect UI: pages opened, forms filled in, pictures taken. Nothing is downloaded."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = os.environ.get("ATTUNER_TEST_CHROMIUM", "") or shutil.which("chromium") or shutil.which("chromium-browser") or ""
FLAGS = [
    *("--no-sandbox", "--disable-background-networking", "--disable-component-update", "--disable-sync", "--no-first-run"),
    *("--use-angle=swiftshader", "--enable-unsafe-swiftshader"),  # the run graph is drawn by WebGL
]
WAIT_MS = 90_000
needs_browser = pytest.mark.skipif(
    not CHROMIUM or importlib.util.find_spec("playwright.sync_api") is None,
    reason="needs a Chromium and `pip install playwright` (no browser of its own)",
)


class Browser:
    """One page of the Prefect UI."""

    def __init__(self, page: Any, base: str) -> None:
        self.page, self._base = page, base
        page.set_default_timeout(WAIT_MS)

    def open(self, path: str, *, until: str) -> None:
        """Open a page and wait for a text on it."""
        self.page.goto(self._base + path, timeout=WAIT_MS)
        self.page.get_by_text(until).first.wait_for()

    def scroll(self) -> None:
        """Scroll down: Prefect's lists load what comes into view."""
        self.page.mouse.move(700, 700)
        self.page.mouse.wheel(0, 3000)

    def field(self, name: str) -> Any:
        """Return a form's field by its title."""
        title = self.page.locator(".schema-form-property__label", has_text=re.compile(rf"^{name}( \(Optional\))?$"))
        return self.page.locator(".schema-form-property", has=title).last

    def fill(self, name: str, text: str) -> None:
        """Write into a text field, or an optional one whose type is chosen first."""
        field = self.field(name)
        for kind in ("float", "int", "str"):
            if field.get_by_text(kind, exact=True).count():
                field.get_by_text(kind, exact=True).click()
        field.locator("textarea, input:not([type=checkbox])").first.fill(text)

    def choose(self, name: str, options: tuple[str, ...], option: str) -> None:
        """Choose from a list by the keyboard: its menu opens, closes again on a synthetic click, and heeds the arrows."""
        control = self.field(name).locator(".p-select-button__control").first
        for wait_ms in (300, 600, 1200, 2400):  # the menu is animated, and a busy machine takes its time
            control.focus()
            for key in ("ArrowDown", *["ArrowUp"] * len(options), *["ArrowDown"] * options.index(option), "Enter"):
                self.page.keyboard.press(key)
                self.page.wait_for_timeout(wait_ms)
            if control.inner_text() == option:
                return
            self.page.keyboard.press("Tab")  # closes the menu
        raise AssertionError(f"{name}: {control.inner_text()}, not {option}")

    def press(self, name: str) -> None:
        """Press a button."""
        self.page.get_by_role("button", name=name, exact=True).last.click()

    def submit(self, done: Callable[[], bool], *, tries: int = 6) -> None:
        """Press Submit until it was heeded: a busy SQLite answers 503, and the UI then asks a person to try again."""
        for _ in range(tries):
            self.press("Submit")
            for _ in range(20):
                if done():
                    return
                self.page.wait_for_timeout(500)
        raise AssertionError("the form was not taken")

    def picture(self, name: str) -> None:
        """Keep a picture of the page where a person asked for it (ATTUNER_TEST_SHOTS)."""
        shots = os.environ.get("ATTUNER_TEST_SHOTS")
        if shots:
            Path(shots).mkdir(parents=True, exist_ok=True)
            self.page.wait_for_timeout(2500)  # animations and the run graph come to rest
            self.page.screenshot(path=Path(shots) / f"{name}.png")


@contextlib.contextmanager
def browser(base: str, *, height: int = 900) -> Iterator[Browser]:
    """Open a browser on a server's UI."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as started:
        chromium = started.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        try:
            yield Browser(chromium.new_page(viewport={"width": 1280, "height": height}), base)
        finally:
            chromium.close()
