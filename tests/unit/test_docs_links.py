"""The documents hold together: every link in them names something that is there, and pictures stay small."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from lab import ROOT

PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
MAX_PICTURE_BYTES = 150_000


def anchor(heading: str) -> str:
    """The anchor of a heading, as GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def anchors(page: Path) -> set[str]:
    return {anchor(h) for h in re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)}


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_every_link_of_a_page_names_something_that_is_there(page: Path) -> None:
    lost = []
    for link in LINK.findall(FENCE.sub("", page.read_text(encoding="utf-8"))):
        if re.match(r"[a-z]+:", link):
            continue
        name, _, place = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        if not target.exists() or (place and target.suffix == ".md" and place not in anchors(target)):
            lost.append(link)
    assert lost == []


@pytest.mark.parametrize("picture", sorted((ROOT / "docs" / "pictures").glob("*")), ids=lambda p: p.name)
def test_a_picture_is_small_and_shown_somewhere(picture: Path) -> None:
    assert picture.stat().st_size < MAX_PICTURE_BYTES
    assert any(f"pictures/{picture.name}" in p.read_text(encoding="utf-8") for p in PAGES)
