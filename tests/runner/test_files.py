"""The helpers that read and write a run directory."""

import json
from pathlib import Path

import pytest

from attuner.runner import files


def test_torn_last_line_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / files.STEPS
    assert files.read_jsonl(path) == []
    files.append_jsonl(path, {"step": 0})
    with path.open("a") as file:
        file.write('{"step": 1')
    assert files.read_jsonl(path) == [{"step": 0}]


def test_torn_middle_line_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / files.STEPS
    path.write_text('{"step\n{}\n')
    with pytest.raises(json.JSONDecodeError):
        files.read_jsonl(path)


def test_json_is_strict_and_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / files.DONE
    files.write_json(path, {"a": 1})
    with pytest.raises(ValueError, match="JSON compliant"):
        files.write_json(path, {"a": float("nan")})
    assert files.read_json(path) == {"a": 1}
    assert [p.name for p in tmp_path.iterdir()] == [files.DONE]
