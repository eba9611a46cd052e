"""Laws of writing a site: each file atomically, only what changed, and nothing that others put there."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_board_site import PRICES, several

from attuner.core.errors import UserError
from attuner.report.board_site import site
from attuner.report.site_files import write_site


def test_only_what_changed_is_written_and_what_is_no_longer_there_goes(tmp_path: Path) -> None:
    old, new = site(several(), PRICES), site(several()[1:], PRICES)
    assert len(write_site(tmp_path, old)) == len(old)
    assert write_site(tmp_path, old) == []
    mine = tmp_path / "recipes" / "mine.html"
    mine.write_text("mine")
    edited = tmp_path / "reports" / "begun-0001.html"
    edited.write_text("edited by hand")
    changed = write_site(tmp_path, new)
    assert tmp_path / "index.html" in changed
    assert not (tmp_path / "recipes" / "begun-0001.html").exists()
    assert edited.read_text() == "edited by hand"
    assert mine.read_text() == "mine"
    assert not list(tmp_path.rglob("*.draft"))


def test_a_strangers_file_is_never_replaced(tmp_path: Path) -> None:
    page = tmp_path / "index.html"
    page.write_text("a stranger's")
    with pytest.raises(UserError, match="not written by attuner board"):
        write_site(tmp_path, {"recipes/a.html": "x", "index.html": "y"})
    assert [p.name for p in tmp_path.rglob("*")] == ["index.html"]
    assert page.read_text() == "a stranger's"


@pytest.mark.parametrize("name", ["../out.html", "/tmp/out.html", "a/../../out.html", "", "a\\..\\b"])
def test_a_path_out_of_the_folder_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UserError, match="not a path inside"):
        write_site(tmp_path / "site", {name: "x"})


def test_a_link_out_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "recipes").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UserError, match="link out of the site"):
        write_site(tmp_path / "site", {"recipes/a.html": "x"})
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_folder_that_cannot_be_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(UserError, match="name another folder"):
        write_site(tmp_path / "file" / "site", {"index.html": "x"})
