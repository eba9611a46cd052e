"""Law: whatever a source holds, what can't be read is named and counted, and memory stays that of one document."""

from __future__ import annotations

import gzip
import json
import os
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from attuner.core.errors import UserError
from attuner.datatools import sources as src
from attuner.datatools import tally as why
from attuner.datatools.frozen import open_rows
from attuner.datatools.rows import Layout, make_rows
from attuner.datatools.stream import Reading, open_stream
from attuner.datatools.tally import Tally

BAD_LINES = [
    (b'{"text": "cut sho', why.NOT_JSON),
    (b"\x00\xff\xfe junk", why.NOT_JSON),
    (b'["text"]', why.NOT_JSON),
    (b"12", why.NOT_JSON),
    (b"[" * 100_000, why.NOT_JSON),
    (b'{"other": "text"}', why.NO_TEXT),
    (b'{"text": 12}', why.NO_TEXT),
    (b'{"text": null}', why.NO_TEXT),
    (b'{"text": "lone \\ud800 surrogate"}', why.NOT_JSON),
    (b'{"text": "not \xff utf-8"}', why.NO_TEXT),
]


def documents(named: Path | list[str], **reading: Any) -> tuple[list[list[int]], Tally]:
    """Return the tokens of every document and the counts."""
    stream = open_stream([str(named)] if isinstance(named, Path) else named, Reading(**{"eos": "none", **reading}))
    out: list[list[int]] = [[]]
    for tokens, last in stream.pieces():
        out[-1] += tokens.tolist()
        if last:
            out.append([])
    assert out.pop() == []
    return out, stream.tally


@pytest.mark.parametrize(("line", "reason"), BAD_LINES)
def test_a_bad_line_is_counted_with_its_place_and_refused_when_strict(tmp_path: Path, line: bytes, reason: str) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(b'{"text": "good"}\n' + line + b'\n\n{"a": {"text": 1}, "text": "too"}')
    found, tally = documents(path)
    assert found == [list(b"good"), list(b"too")]
    assert dict(tally.dropped) == {reason: 1}
    assert tally.first == {reason: f"{path}:2"}
    with pytest.raises(UserError, match=f"{path}:2: one of the {reason}"):
        documents(path, strict=True)


@pytest.mark.parametrize("size", [10, src.PIECE - 1, src.PIECE, src.PIECE + 1, 3 * src.PIECE])
def test_a_line_is_whole_wherever_pieces_of_the_file_end(tmp_path: Path, size: int) -> None:
    texts = ["a" * size, "b", "c" * size, ""]
    path = tmp_path / "x.jsonl"
    path.write_text("\n".join(json.dumps({"text": t}) for t in texts))
    found, tally = documents(path)
    assert [bytes(d).decode() for d in found] == texts[:3]
    assert dict(tally.dropped) == {why.EMPTY: 1}


def test_a_huge_line_is_left_out_and_never_held(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    with path.open("wb") as file:
        file.write(b'{"text": "before"}\n{"text": "')
        for _ in range(64):
            file.write(b"x" * src.PIECE)
        file.write(b'"}\n{"text": "after"}\n')
    tracemalloc.start()
    found, tally = documents(path, max_document_bytes=2 * src.PIECE)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert [bytes(d) for d in found] == [b"before", b"after"]
    assert dict(tally.dropped) == {why.TOO_LONG: 1}
    assert peak < 16 * src.PIECE


def test_any_byte_is_a_token_of_a_text_file(tmp_path: Path) -> None:
    raw = bytes(range(256)) * 3
    (tmp_path / "junk").write_bytes(raw)
    assert documents(tmp_path / "junk")[0] == [list(raw)]


def test_a_packed_file_is_unpacked_and_a_broken_one_refused(tmp_path: Path) -> None:
    packed = gzip.compress(b'{"text": "hello"}\n')
    path = tmp_path / "x.jsonl.gz"
    path.write_bytes(packed)
    assert documents(path)[0] == [list(b"hello")]
    for bad in (packed[:-9], packed[:12], b"\x1f\x8b" + os.urandom(100), b"no gzip at all"):
        path.write_bytes(bad)
        with pytest.raises(UserError, match=r"x\.jsonl\.gz: can't be read to its end"):
            documents(path)


def test_a_folder_is_read_in_a_fixed_order_without_what_is_hidden_linked_or_no_file(tmp_path: Path) -> None:
    top = tmp_path / "in"
    (top / "sub" / "deep").mkdir(parents=True)
    (top / ".git").mkdir()
    (top / ".git" / "config").write_text("hidden")
    for name in ("b", "a", "sub/z", "sub/deep/y"):
        (top / name).write_text(name)
    (top / "loop").symlink_to(top)
    (top / "sub" / "up").symlink_to("..")
    (top / "gone").symlink_to("nowhere")
    (top / "c").symlink_to("a")
    os.mkfifo(top / "pipe")
    found, tally = documents(top)
    assert [bytes(d).decode() for d in found] == ["a", "b", "a", "sub/z", "sub/deep/y"]
    assert dict(tally.dropped) == {why.HIDDEN: 1, why.LINKS: 2, why.SPECIAL: 2}
    documents(top, strict=True)


def test_a_link_to_itself_is_no_source(tmp_path: Path) -> None:
    (tmp_path / "self").symlink_to("self")
    with pytest.raises(UserError, match="self: no such file or folder"):
        documents(tmp_path / "self")


@pytest.mark.parametrize(("reading", "words"), [
    ({"eos": "400"}, "--eos 400: not in the vocabulary of 258"),
    ({"eos": "<end>"}, "--eos <end>: not in the vocabulary"),
    ({"vocab_size": 200}, "token 255 is outside the vocabulary of 200"),
    ({"vocab_size": 200, "eos": "auto"}, "--vocab-size 200: the end token 256 is not below it"),
    ({"vocab_size": 0}, "--vocab-size 0"),
    ({"tokenizer": "meta-llama/Llama-3"}, "--allow-download takes a name from the hub"),
])  # fmt: skip
def test_what_doesnt_fit_the_vocabulary_is_refused(tmp_path: Path, reading: dict[str, Any], words: str) -> None:
    (tmp_path / "x").write_bytes(b"\x01\xff")
    with pytest.raises(UserError, match=words):
        documents(tmp_path / "x", **reading)


def test_an_empty_source_is_said_to_be_empty(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="empty: nothing to read in it"):
        documents(tmp_path / "empty")
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(UserError, match=r"no row: 0 documents gave 0 tokens, a row takes 5; left out: 1 empty documents"):
        make_rows([str(tmp_path / "file")], tmp_path / "out", Reading(), Layout(seq_len=4))


def test_a_hugging_face_tokenizer_is_read_from_its_file(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers", reason="pip install tokenizers")
    inner = tokenizers.Tokenizer(tokenizers.models.BPE(unk_token=None))
    inner.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<end>"],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    texts = ["the cat sat on the mat", "the dog and the cat, é ü", "on and on and on"]
    inner.train_from_iterator(texts * 20, trainer)
    folder = tmp_path / "model"
    folder.mkdir()
    inner.save(str(folder / "tokenizer.json"))
    (tmp_path / "x.jsonl").write_text("".join(json.dumps({"text": t}) + "\n" for t in texts))
    end = inner.token_to_id("<end>")
    wanted = [inner.encode(t, add_special_tokens=False).ids for t in texts]
    with pytest.raises(UserError, match="it names no end token"):
        documents(tmp_path / "x.jsonl", tokenizer=str(folder), eos="auto")
    for eos in ("<end>", str(end), "auto"):
        assert documents(tmp_path / "x.jsonl", tokenizer=str(folder), eos=eos)[0] == [[*w, end] for w in wanted]
        (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": {"content": "<end>"}}))
    (tmp_path / "y.txt").write_bytes(b"\xff\xfe")
    assert dict(documents(tmp_path / "y.txt", tokenizer=str(folder))[1].dropped) == {why.NOT_UTF8: 1}
    about = make_rows([str(tmp_path / "x.jsonl")], tmp_path / "rows", Reading(tokenizer=str(folder)), Layout(seq_len=5))
    assert (about["dtype"], about["vocab_size"]) == ("uint16", inner.get_vocab_size())
    flat = [token for w in wanted for token in [*w, end]]
    assert open_rows(tmp_path / "rows").rows.reshape(-1).tolist() == flat[: len(flat) // 6 * 6]
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(UserError, match="no tokenizer"):
        documents(tmp_path / "x.jsonl", tokenizer=str(folder))
