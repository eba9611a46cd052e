"""Every setting has one line: the page is what the records that read the files say, and none of them is left without words."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from lab import ROOT

from attuner.cli import settings as module
from attuner.cli.main import main
from attuner.cli.settings import page, settings
from attuner.config import AT_BIRTH, load_campaign
from attuner.settings import INHERITED, KNOWN


def test_the_page_is_what_the_records_say() -> None:
    there = (ROOT / "docs" / "settings.md").read_text(encoding="utf-8")
    assert there == page(), "run `attuner settings --markdown > docs/settings.md`"


def test_no_setting_is_without_words_and_none_stands_twice() -> None:
    found = settings()
    assert [f"{x.section} {x.key}" for x in found if not x.what.strip()] == []
    assert len({(x.section, x.key) for x in found}) == len(found)
    keys = {f"{x.section}:{x.key}" for x in found}
    assert set(module.ALSO) <= keys, "words for keys that are no more"
    assert {f"campaign:{k}" for k in module.ELSEWHERE} <= keys
    assert not {f"campaign:{k}" for k in AT_BIRTH} & keys


def test_every_variable_that_is_known_is_there() -> None:
    listed = {x.key for x in settings() if x.section == "environment"}
    assert {*KNOWN, *INHERITED} <= listed


@pytest.mark.parametrize("file", sorted((ROOT / "configs" / "campaigns").glob("*.yaml")), ids=lambda p: p.stem)
def test_every_key_of_the_campaign_files_is_on_the_page(file: Path) -> None:
    keys = {x.key for x in settings() if x.section == "campaign"}
    data = yaml.safe_load(file.read_text(encoding="utf-8"))
    assert load_campaign(file, configs=ROOT / "configs")
    for name, value in data.items():
        assert name in keys
        if isinstance(value, dict) and name not in module.ELSEWHERE and f"{name}.{next(iter(value), '')}" in keys:
            assert {f"{name}.{k}" for k in value} <= keys


def test_the_verb_finds_a_setting_by_a_word(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["settings", "hang_s", "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert (found["section"], found["key"], found["kind"], found["default"]) == (
        "campaign",
        "launch.hang_s",
        "number, > 0",
        "120",
    )
    assert main(["settings", "--markdown"]) == 0
    assert capsys.readouterr().out == page()
    assert main(["settings", "max_usd"]) == 0
    assert "proposer.max_usd" in capsys.readouterr().out
