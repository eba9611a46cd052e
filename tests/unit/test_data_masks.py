"""Law: a mask says label by label what counts, goes with its rows in the trainer, and its consequence for the gate is said."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from attuner.cli.main import main
from attuner.core.errors import UserError
from attuner.datatools.frozen import open_rows
from attuner.datatools.masks import Keep, Masked, consequence, make_masks
from attuner.datatools.rows import Layout, make_rows
from attuner.datatools.stream import Reading
from attuner.runner.errors import ConfigError
from attuner.runner.rows import Rows

CHATS = ["Q:hi A:yes; Q:so A:no;", "A:first; then Q:x", "nothing", "A:A:cut"]
WIDTH = 24


def rows_of(folder: Path, texts: list[str], **layout: Any) -> Path:
    folder.mkdir()
    (folder / "x.jsonl").write_text("".join(json.dumps({"text": t}) + "\n" for t in texts))
    made = Layout(**{"seq_len": WIDTH - 1, "pack": "document", **layout})
    make_rows([str(folder / "x.jsonl")], folder / "rows", Reading(), made)
    return folder / "rows"


def kept(folder: Path) -> list[str]:
    """Return the labels that count of every row, as text; special tokens in brackets."""
    rows = open_rows(folder)
    assert rows.mask is not None
    names = {256: "<end>", 257: "<pad>"}
    return [
        "".join(names.get(t, chr(t)) for t, m in zip(row[1:].tolist(), mask.tolist(), strict=True) if m)
        for row, mask in zip(rows.rows, rows.mask, strict=True)
    ]


@pytest.mark.parametrize(("keep", "wanted"), [
    (Keep(), [f"{t}<end>"[1:] + "<pad>" * (WIDTH - len(t) - 1) for t in CHATS]),
    (Keep(no_padding=True), [f"{t}<end>"[1:] for t in CHATS]),
    (Keep(after="A:", until=";"), ["yes;no;", "first;", "", "A:cut<end>" + "<pad>" * (WIDTH - 8)]),
    (Keep(after="ids:65,58", until="ids:59", no_padding=True), ["yes;no;", "first;", "", "A:cut<end>"]),
    (Keep(after="A:", no_padding=True), ["yes; Q:so A:no;<end>", "first; then Q:x<end>", "", "A:cut<end>"]),
    (Keep(no_document_ends=True, no_padding=True), [f"{t}<end>"[1:] for t in CHATS]),
])  # fmt: skip
def test_labels_count_as_asked(tmp_path: Path, keep: Keep, wanted: list[str]) -> None:
    folder = rows_of(tmp_path / "in", CHATS)
    masked = make_masks(folder, keep)
    assert kept(folder) == wanted
    mask = open_rows(folder).mask
    assert mask is not None
    sums = mask.sum(axis=1).tolist()
    assert (masked.loss_tokens, masked.fewest, masked.most) == (sum(sums), min(sums), max(sums))
    assert masked.empty_rows == sums.count(0)
    assert masked.uniform == ("even" if min(sums) == max(sums) else "uneven")


def test_after_an_end_token_another_document_begins(tmp_path: Path) -> None:
    folder = rows_of(tmp_path / "in", ["abc", "def", "ghijk"], pack="concatenate", seq_len=11)
    make_masks(folder, Keep(no_document_ends=True))
    # as Megatron's --eod-mask-loss: where the token that is read is the end token, its label doesn't count
    assert kept(folder) == ["bc<end>ef<end>hij"]


def test_a_mask_goes_to_the_trainer_with_rows_of_any_type(tmp_path: Path) -> None:
    folder = rows_of(tmp_path / "in", CHATS)
    make_masks(folder, Keep(after="A:", until=";"))
    [batch] = Rows(str(folder), WIDTH - 1, 258, torch.device("cpu")).update(0, 4, 4, 1, 0)
    rows = open_rows(folder)
    assert batch["tokens"].tolist() == rows.rows[:, :-1].tolist()
    assert batch["labels"].tolist() == rows.rows[:, 1:].tolist()
    assert rows.mask is not None
    assert batch["loss_mask"].tolist() == rows.mask.tolist()
    for dtype, vocab_size in (("uint8", 256), ("int32", 100_000)):
        out = tmp_path / dtype
        make_rows([str(tmp_path / "in" / "x.jsonl")], out, Reading(eos="none", vocab_size=vocab_size), Layout(seq_len=7))
        [batch] = Rows(str(out), 7, vocab_size, torch.device("cpu")).update(0, 2, 2, 1, 0)
        assert open_rows(out).rows.dtype == np.dtype(dtype)
        assert batch["tokens"].tolist() == open_rows(out).rows[:2, :-1].tolist()


def test_a_trainer_refuses_rows_of_a_type_it_doesnt_know(tmp_path: Path) -> None:
    folder = rows_of(tmp_path / "in", CHATS)
    about = json.loads((folder / "rows.json").read_text())
    (folder / "rows.json").write_text(json.dumps({**about, "dtype": "float32"}))
    with pytest.raises(ConfigError, match=r"rows\.json: dtype float32"):
        Rows(str(folder), WIDTH - 1, 258, torch.device("cpu"))


def test_masks_are_replaced_only_when_told(tmp_path: Path) -> None:
    folder = rows_of(tmp_path / "in", CHATS)
    make_masks(folder, Keep(no_padding=True))
    before = {p.name: p.read_bytes() for p in folder.iterdir()}
    with pytest.raises(UserError, match="--force replaces them"):
        make_masks(folder, Keep())
    assert {p.name: p.read_bytes() for p in folder.iterdir()} == before
    make_masks(folder, Keep(), force=True)
    make_masks(folder, Keep(no_padding=True), force=True)
    assert {p.name: p.read_bytes() for p in folder.iterdir()} == before


@pytest.mark.parametrize(("keep", "words"), [
    (Keep(until=";"), "--until: needs --after"),
    (Keep(after="ids:65,x"), "token ids as ids:1,2,3"),
    (Keep(after="ids:9999"), r"tokens \[9999\] can't stand in these rows"),
    (Keep(after="a" * WIDTH), "can't stand in these rows"),
    (Keep(after="~~~"), "no label would count"),
])  # fmt: skip
def test_a_wish_that_cant_be_is_refused_and_leaves_nothing(tmp_path: Path, keep: Keep, words: str) -> None:
    folder = rows_of(tmp_path / "in", CHATS)
    before = {p.name: p.read_bytes() for p in folder.iterdir()}
    with pytest.raises(UserError, match=words):
        make_masks(folder, keep)
    assert {p.name: p.read_bytes() for p in folder.iterdir()} == before


def test_what_the_rows_dont_have_cant_be_masked(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("some text without an end")
    make_rows([str(tmp_path / "x")], tmp_path / "rows", Reading(eos="none"), Layout(seq_len=3))
    for keep, words in ((Keep(no_padding=True), "have no padding"), (Keep(no_document_ends=True), "without an end token")):
        with pytest.raises(UserError, match=words):
            make_masks(tmp_path / "rows", keep)


def test_the_consequence_is_that_of_the_rules(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = rows_of(tmp_path / "in", CHATS)
    assert main(["data", "masks", str(folder)]) == 0
    said = capsys.readouterr().out
    assert "fact:loss_masks even" in said
    assert "padding counts in the loss; --no-padding leaves it out" in said
    assert main(["data", "masks", str(folder), "--no-padding", "--force", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["loss_masks"] == json.loads((folder / "rows.json").read_text())["masks"]["loss_masks"] == "uneven"
    assert "unless calculate_per_token_loss is on" in " ".join(found["consequence"])
    even = Masked(2, 10, 10, 5, 5, 0, False, "")
    assert consequence(even) == [
        "equally many loss tokens in every row (fact:loss_masks even): another micro batch weighs each token as before"
    ]
