"""Law of every YAML that people write: what can't be meant is one line with file and place, and nothing is quietly read as 90."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from lab import ROOT, Lab, campaign

from attuner.cli.component import changes
from attuner.config import load_campaign
from attuner.core.errors import UserError
from attuner.runner import versions
from attuner.steps.environment import declared
from attuner.watchfile import FIELDS, load_watch
from attuner.yamlfile import documents, read_yaml

ONE = {"name": "one", "campaign": "campaigns/one.yaml", "gpu_hours": 1}
FAULTS = [
    ("2026-13-45", "line 2: '2026-13-45' is no date; mend it, or quote it if it is text"),
    ("2026-01-01T25:00:00", "is no date"),
    ("!!int abc", "line 2: 'abc' is no whole number"),
    ("!!int ''", "line 2: '' is no whole number"),
    ("!!float abc", "line 2: 'abc' is no number"),
    ("!!bool maybe", "line 2: 'maybe' is no true or false"),
    ("!!timestamp x", "line 2: 'x' is no date"),
    ("!!map abc", "line 2: expected keys and values"),
    ("!!binary zzz", "not YAML"),
    ("1" * 5000, f"line 2: '{'1' * 40}…' is no whole number"),
    ("[" * 3000 + "]" * 3000, "not YAML"),
    ("&x {b: *x}", "not YAML"),
]


@pytest.mark.parametrize(("value", "words"), FAULTS)
def test_a_value_that_is_none_is_one_line_with_its_place(tmp_path: Path, value: str, words: str) -> None:
    file = tmp_path / "x.yaml"
    file.write_text(f"a: 1\nb: {value}\n")
    for read, source in ((lambda: read_yaml(file), str(file)), (lambda: documents(file.read_text(), "text"), "text")):
        with pytest.raises(UserError) as caught:
            read()
        assert str(caught.value).startswith(f"{source}: ")
        assert words in str(caught.value)
        assert "\n" not in str(caught.value)
        assert len(str(caught.value)) < 400


def test_a_key_that_is_none_is_one_line_too() -> None:
    with pytest.raises(UserError, match=r"^x: line 1: '2026-13-45' is no date"):
        documents("? 2026-13-45\n: 1\n", "x")


@pytest.mark.parametrize("text", ["1:30", "-1:30.5", "190:20:30"])
def test_numbers_to_the_base_of_sixty_are_text(text: str) -> None:
    assert documents(f"a: {text}\n", "x") == [{"a": text}]


def test_what_is_a_number_stays_one() -> None:
    plain = {"a": 12, "b": -1.5, "c": 1.0e-05, "d": 31, "e": 1000, "f": True, "g": None, "h": "a:1", "i": float("inf")}
    assert documents("{a: 12, b: -1.5, c: 1.0e-05, d: 0x1F, e: 1_000, f: yes, g: ~, h: 'a:1', i: .inf}", "x") == [plain]


def test_a_change_on_the_command_line_is_held_to_the_same() -> None:
    assert changes(["a=[1, 2]", "b=", "c=1:30"]) == {"a": [1, 2], "b": None, "c": "1:30"}
    with pytest.raises(UserError, match="'2026-13-45' is no date"):
        changes(["a=2026-13-45"])


def watch(tmp_path: Path, **entry: Any) -> Path:
    (tmp_path / "campaigns").mkdir(exist_ok=True)
    (tmp_path / "campaigns" / "one.yaml").write_text("{}")
    file = tmp_path / "watch.yaml"
    file.write_text(yaml.safe_dump({"recipes": [{**ONE, **entry}]}))
    return file


def test_an_hour_and_a_half_is_not_ninety_hours(tmp_path: Path) -> None:
    file = watch(tmp_path)
    file.write_text(file.read_text().replace("gpu_hours: 1", "gpu_hours: 1:30"))
    with pytest.raises(UserError, match=r"one: gpu_hours: .*not '1:30'"):
        load_watch(file)


def test_every_field_that_can_change_can_be_ignored(tmp_path: Path) -> None:
    made = Lab(tmp_path, [])
    stated = declared(made.kit(), campaign(), None)
    reported = versions.versions()
    assert {*stated, *reported, *versions.PACKAGES} <= set(FIELDS)
    assert load_watch(watch(tmp_path, ignore=list(FIELDS)))[0].ignore == list(FIELDS)


def test_a_campaign_file_that_names_a_name_too_long_is_one_line(tmp_path: Path) -> None:
    told = yaml.safe_load((ROOT / "configs" / "campaigns" / "quickstart.yaml").read_text())
    file = tmp_path / "c.yaml"
    file.write_text(yaml.safe_dump({**told, "baseline": "b" * 300}))
    with pytest.raises(UserError, match="no such file"):
        load_campaign(file)
