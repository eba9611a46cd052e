"""Law: what `lengths` foretells of a sequence length is what `rows` then makes; the picture tells every figure it shows."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from attuner.cli.main import main
from attuner.core.errors import UserError
from attuner.datatools.lengths import Lengths, bins, measure
from attuner.datatools.rows import Layout, make_rows
from attuner.datatools.stream import Reading, open_stream
from attuner.report.lengths_page import histogram, page, picture
from attuner.report.lengths_text import lines

SIZES = [1, 1, 3, 7, 8, 9, 20, 31, 32, 33, 100, 500]
TRIED = [2, 3, 8, 31, 32, 64, 2000]


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    path = tmp_path / "x.jsonl"
    path.write_text("".join(json.dumps({"text": "a" * n}) + "\n" for n in SIZES))
    return path


def measured(path: Path, tried: list[int] = TRIED) -> Lengths:
    return measure(open_stream([str(path)], Reading()), tried)


@pytest.mark.parametrize("seq_len", TRIED)
def test_what_is_foretold_is_what_rows_makes(texts: Path, tmp_path: Path, seq_len: int) -> None:
    [fit] = [f for f in measured(texts).fits if f.seq_len == seq_len]
    one = make_rows([str(texts)], tmp_path / "one", Reading(), Layout(seq_len, pack="document"))["made"]["counts"]
    assert (fit.rows_one_by_one, fit.padding, fit.truncated) == (one["num_rows"], one["padding"], one["cut"])
    assert fit.documents_truncated == one["long_documents"]
    if fit.rows_end_to_end:
        end = make_rows([str(texts)], tmp_path / "end", Reading(), Layout(seq_len))["made"]["counts"]
        assert (fit.rows_end_to_end, fit.unfinished) == (end["num_rows"], end["unfinished"])
    else:
        assert fit.unfinished == sum(SIZES) + len(SIZES)


@pytest.mark.parametrize("seq_len", TRIED)
def test_a_document_is_cut_if_a_rows_end_runs_through_it(texts: Path, seq_len: int) -> None:
    [fit] = measured(texts, [seq_len]).fits
    at, cut = 0, 0
    for n in SIZES:
        rows = {(at + k) // (seq_len + 1) for k in range(n + 1)}
        cut, at = cut + (len(rows) > 1), at + n + 1
    assert fit.documents_cut == cut


def test_quantiles_are_those_of_the_documents(texts: Path) -> None:
    found, lengths = measured(texts), sorted(n + 1 for n in SIZES)
    for k in range(1, len(lengths) + 1):
        assert found.quantile(k / len(lengths)) == lengths[k - 1]
    assert (found.quantile(0), found.quantile(1)) == (2, 501)


def test_a_very_long_document_is_counted_to_a_thousandth(tmp_path: Path) -> None:
    (tmp_path / "big").write_bytes(b"x" * 3_000_017)
    found = measured(tmp_path / "big")
    assert found.longest == found.tokens == 3_000_018 == found.quantile(1)
    [counted] = found.counts
    assert 0 <= found.longest - counted < found.longest / 1000


@pytest.mark.parametrize("count", [1, 2, 7, 48, 1000])
def test_bins_hold_every_document_once(texts: Path, count: int) -> None:
    found = measured(texts)
    binned = bins(found, count)
    assert sum(n for _, _, n, _ in binned) == found.documents
    assert sum(t for _, _, _, t in binned) == found.tokens
    assert all(a < b for a, b, _, _ in binned)
    assert (binned[0][0], binned[-1][1]) == (2, 502)


def test_documents_of_one_length_are_drawn_too(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text('{"text": "abc"}\n' * 5)
    found = measured(tmp_path / "x.jsonl", [4])
    for width in (960, 360):
        ET.fromstring(histogram(found, width=width))
    assert any("5 (100%)" in line for line in lines(found))


def test_the_page_is_self_contained_and_foreign_text_is_escaped(texts: Path) -> None:
    html = page(measured(texts), "<script>alert(1)</script>")
    assert "<script" not in html
    assert not re.search(r"https?://", html)
    for svg in re.findall(r"<svg.*?</svg>", html, re.S):
        ET.fromstring(svg)
    root = ET.fromstring(picture(measured(texts), "a & b"))
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    shares = re.findall(r"tokens: ([\d.]+)% of documents", html)
    assert sum(map(float, shares[: len(shares)])) > 150  # two drawings, wide and narrow, each of all documents


def test_the_command_prints_writes_and_answers_in_json(texts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    order = [
        "data",
        "lengths",
        str(texts),
        "--seq-len",
        "8,32",
        "--html",
        str(tmp_path / "l.html"),
        "--svg",
        str(tmp_path / "l.svg"),
    ]
    assert main(order) == 0
    said = capsys.readouterr().out
    assert "12, 757 tokens with end tokens" in said
    assert (tmp_path / "l.html").read_text().startswith("<!doctype html>")
    assert (tmp_path / "l.svg").read_text().startswith("<svg")
    assert main([*order[:5], "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [f["seq_len"] for f in found["seq_lens"]] == [8, 32]
    assert found["quantiles"]["p50"] == 10


def test_nothing_to_measure_is_said(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text("{}\nnot json\n")
    with pytest.raises(UserError, match="no document with a token in it; left out: 1 lines that are no JSON object"):
        measured(tmp_path / "x.jsonl")
    with pytest.raises(UserError, match="--seq-len 0"):
        measured(tmp_path / "x.jsonl", [0])
