"""Law: Megatron's token files are read and written as Megatron does it, and a damaged index is refused before a token is read."""

from __future__ import annotations

import struct
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from attuner.core.errors import UserError
from attuner.datatools.frozen import open_rows
from attuner.datatools.megatron_index import MAGIC, OLD_MAGIC, read_index
from attuner.datatools.rows import Layout, make_rows
from attuner.datatools.stream import Reading, open_stream
from attuner.stacks.megatron.data import ENDINGS, digest

DOCUMENTS = [[[1, 2, 3], [4]], [[5, 6, 7, 8, 9, 10]], [[300]], [[11, 12], [], [13]]]
"""Sequences by document."""
FLAT = [[t for s in d for t in s] for d in DOCUMENTS]


def write_new(prefix: Path, dtype: str = "uint16", code: int = 8) -> None:
    sequences = [s for d in DOCUMENTS for s in d]
    size = np.dtype(dtype).itemsize
    prefix.with_suffix(".bin").write_bytes(np.array([t for s in sequences for t in s], dtype).tobytes())
    lengths = [len(s) for s in sequences]
    offsets = [size * sum(lengths[:k]) for k in range(len(lengths))]
    ends = [sum(len(d) for d in DOCUMENTS[:k]) for k in range(len(DOCUMENTS) + 1)]
    prefix.with_suffix(".idx").write_bytes(
        MAGIC
        + struct.pack("<QBQQ", 1, code, len(sequences), len(ends))
        + np.array(lengths, "<i4").tobytes()
        + np.array(offsets, "<i8").tobytes()
        + np.array(ends, "<i8").tobytes()
    )


def write_old(prefix: Path, dtype: str = "int32", code: int = 4) -> None:
    sequences = [s for d in DOCUMENTS for s in d]
    prefix.with_suffix(".bin").write_bytes(np.array([t for s in sequences for t in s], dtype).tobytes())
    lengths = [len(s) for s in sequences]
    ends = [sum(len(d) for d in DOCUMENTS[:k]) for k in range(len(DOCUMENTS) + 1)]
    head = struct.pack("<6Q", 1, code, np.dtype(dtype).itemsize, len(sequences), len(sequences), len(ends))
    arrays = [range(len(sequences) + 1), [sum(lengths[:k]) for k in range(len(lengths) + 1)], lengths, ends]
    prefix.with_suffix(".idx").write_bytes(OLD_MAGIC + head + b"".join(np.array(a, "<i8").tobytes() for a in arrays))


def documents(prefix: Path, **reading: Any) -> list[list[int]]:
    stream = open_stream([str(prefix)], Reading(**reading))
    out: list[list[int]] = [[]]
    for tokens, last in stream.pieces():
        out[-1] += tokens.tolist()
        if last:
            out.append([])
    return out[:-1]


@pytest.mark.parametrize(("dtype", "code"), [("uint16", 8), ("int32", 4), ("int64", 5), ("int16", 3)])
@pytest.mark.parametrize("write", [write_new, write_old])
def test_documents_are_read_from_both_formats(tmp_path: Path, write: Any, dtype: str, code: int) -> None:
    write(tmp_path / "x", dtype, code)
    for name in ("x", "x.bin", "x.idx", ""):
        assert documents(tmp_path / name) == FLAT
    assert documents(tmp_path / "x", eos="20")[0] == [1, 2, 3, 4, 20]


def test_the_vocabulary_is_declared_or_the_largest_id_seen(tmp_path: Path) -> None:
    write_new(tmp_path / "x", "int32", 4)
    about = make_rows([str(tmp_path / "x")], tmp_path / "a", Reading(), Layout(seq_len=2))
    assert (about["vocab_size"], about["dtype"]) == (301, "int32")
    about = make_rows([str(tmp_path / "x")], tmp_path / "b", Reading(vocab_size=1000), Layout(seq_len=2))
    assert (about["vocab_size"], about["dtype"]) == (1000, "uint16")
    assert open_rows(tmp_path / "a").rows.tolist() == open_rows(tmp_path / "b").rows.tolist()
    with pytest.raises(UserError, match=r"x: document 2: token 300 is outside the vocabulary of 300"):
        make_rows([str(tmp_path / "x")], tmp_path / "c", Reading(vocab_size=300), Layout(seq_len=2))


def test_negative_tokens_are_refused(tmp_path: Path) -> None:
    write_new(tmp_path / "x", "int32", 4)
    raw = np.fromfile(tmp_path / "x.bin", np.int32)
    raw[5] = -1
    raw.tofile(tmp_path / "x.bin")
    with pytest.raises(UserError, match="document 1: token -1 is outside"):
        documents(tmp_path / "x")


def patched(raw: bytes, at: int, value: bytes) -> bytes:
    return raw[:at] + value + raw[at + len(value) :]


HEAD = len(MAGIC) + 25
LENGTHS, OFFSETS, ENDS = HEAD, HEAD + 7 * 4, HEAD + 7 * 12
DAMAGE = {
    "other magic": (0, b"MMIDIDY", "no Megatron index"),
    "other version": (9, struct.pack("<Q", 2), "index version 2"),
    "float tokens": (17, b"\x06", "type code 6"),
    "no such type": (17, b"\x63", "type code 99"),
    "too many sequences": (18, struct.pack("<Q", 1 << 40), "cut short"),
    "very many sequences": (18, struct.pack("<Q", (1 << 64) - 1), "cut short"),
    "no document ends": (26, struct.pack("<Q", 0), "don't span"),
    "negative length": (LENGTHS, struct.pack("<i", -3), "sequence 0"),
    "long sequence": (LENGTHS + 24, struct.pack("<i", 1 << 30), "sequence 6"),
    "far offset": (OFFSETS + 8, struct.pack("<q", (1 << 63) - 2), "sequence 1"),
    "negative offset": (OFFSETS, struct.pack("<q", -2), "sequence 0"),
    "odd offset": (OFFSETS + 16, struct.pack("<q", 3), "sequence 2"),
    "first document elsewhere": (ENDS, struct.pack("<q", 1), "don't span"),
    "falling ends": (ENDS + 8, struct.pack("<q", 6), "don't rise"),
    "more sequences than there are": (ENDS + 32, struct.pack("<q", 9), "don't span"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_index_is_refused(tmp_path: Path, name: str) -> None:
    write_new(tmp_path / "x")
    at, value, words = DAMAGE[name]
    path = tmp_path / "x.idx"
    path.write_bytes(patched(path.read_bytes(), at, value))
    with pytest.raises(UserError, match=words):
        read_index(tmp_path / "x")


@pytest.mark.parametrize("write", [write_new, write_old])
def test_an_index_cut_anywhere_and_a_cut_bin_are_refused(tmp_path: Path, write: Any) -> None:
    write(tmp_path / "x")
    idx, data = tmp_path / "x.idx", tmp_path / "x.bin"
    whole = idx.read_bytes()
    for size in range(len(whole)):
        idx.write_bytes(whole[:size])
        with pytest.raises(UserError):
            read_index(tmp_path / "x")
    idx.write_bytes(whole)
    data.write_bytes(data.read_bytes()[:-1])
    with pytest.raises(UserError, match=r"lies outside the \.bin"):
        read_index(tmp_path / "x")


def test_the_older_formats_offsets_cant_wrap_around(tmp_path: Path) -> None:
    write_old(tmp_path / "x")
    path = tmp_path / "x.idx"
    at = len(OLD_MAGIC) + 48 + 8 * 8 + 8
    path.write_bytes(patched(path.read_bytes(), at, struct.pack("<q", 1 << 62)))
    with pytest.raises(UserError, match="offsets that no file has"):
        read_index(tmp_path / "x")


def test_tokens_and_text_are_not_mixed(tmp_path: Path) -> None:
    write_new(tmp_path / "x")
    (tmp_path / "y.txt").write_text("text")
    with pytest.raises(UserError, match="can't be mixed"):
        documents(tmp_path)
    with pytest.raises(UserError, match="not one of a pair"):
        open_stream([str(tmp_path / "y.txt")], Reading(kind="megatron"))


@pytest.mark.slow  # importing megatron-core
@pytest.mark.parametrize(("vocab_size", "dtype"), [(256, "uint16"), (60000, "uint16"), (200_000, "int32")])
def test_megatrons_own_reader_gives_exactly_the_rows_in_order(tmp_path: Path, vocab_size: int, dtype: str) -> None:
    indexed = pytest.importorskip("megatron.core.datasets.indexed_dataset")
    (tmp_path / "x").write_bytes(bytes(range(250)) * 5)
    about = make_rows(
        [str(tmp_path / "x")], tmp_path / "rows", Reading(eos="none", vocab_size=vocab_size), Layout(9, format="megatron")
    )
    assert about["dtype"] == dtype
    theirs = indexed.IndexedDataset(str(tmp_path / "rows" / "rows"))
    ours = open_rows(tmp_path / "rows").rows
    assert len(theirs) == len(ours)
    assert [theirs[n].tolist() for n in range(len(theirs))] == ours.tolist()
    assert theirs.document_indices.tolist() == list(range(len(ours) + 1))
    # and what Megatron reads, we read: the rows come back as documents
    assert documents(tmp_path / "rows" / "rows") == ours.tolist()


@pytest.mark.slow  # importing megatron-core
def test_what_megatrons_own_writer_wrote_is_read(tmp_path: Path) -> None:
    indexed = pytest.importorskip("megatron.core.datasets.indexed_dataset")
    torch = pytest.importorskip("torch")
    builder = indexed.IndexedDatasetBuilder(str(tmp_path / "x.bin"), dtype=np.int32, multimodal=True)
    for document in DOCUMENTS:
        for sequence in document:
            builder.add_item(torch.tensor(sequence, dtype=torch.int64), mode=1)
        builder.end_document()
    builder.finalize(str(tmp_path / "x.idx"))
    builder.data_file.close()
    assert documents(tmp_path / "x") == FLAT


@pytest.mark.slow  # importing megatron-core
def test_megatrons_samples_of_the_stream_are_exactly_the_rows(tmp_path: Path) -> None:
    gpt = pytest.importorskip("megatron.core.datasets.gpt_dataset")
    indexed = pytest.importorskip("megatron.core.datasets.indexed_dataset")
    split = pytest.importorskip("megatron.core.datasets.utils").Split
    (tmp_path / "x").write_text("".join(map(str, range(2000))))
    make_rows([str(tmp_path / "x")], tmp_path / "rows", Reading(), Layout(16, format="gpt"))
    prefix, rows = str(tmp_path / "rows" / "stream"), open_rows(tmp_path / "rows").rows.tolist()
    config = gpt.GPTDatasetConfig(
        random_seed=1234,
        sequence_length=16,
        blend=([prefix], None),
        split="100,0,0",
        tokenizer=SimpleNamespace(eod=256, pad=257, vocab_size=258, unique_identifiers={}),
        reset_position_ids=False,
        reset_attention_mask=False,
        eod_mask_loss=False,
        create_attention_mask=False,
    )
    low = indexed.IndexedDataset(prefix)
    dataset = gpt.GPTDataset(low, prefix, np.arange(1, dtype=np.int32), len(rows), split.train, config)
    samples = [[*sample["tokens"].tolist(), int(sample["labels"][-1])] for sample in (dataset[n] for n in range(len(rows)))]
    assert samples != rows  # Megatron shuffles
    assert sorted(samples) == sorted(rows)
    assert all((dataset[n]["loss_mask"] == 1).all() for n in range(len(rows)))


@pytest.mark.parametrize(("layout", "prefix"), [("megatron", "rows"), ("gpt", "stream")])
def test_the_digest_is_the_one_that_the_stack_freezes(tmp_path: Path, layout: str, prefix: str) -> None:
    (tmp_path / "x").write_bytes(bytes(range(250)) * 5)
    about = make_rows([str(tmp_path / "x")], tmp_path / "rows", Reading(), Layout(9, format=layout))
    files = [tmp_path / "rows" / (prefix + ending) for ending in ENDINGS]
    assert about["megatron"] == {"prefix": prefix, "sha256": digest(files)}
