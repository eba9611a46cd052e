"""Law: rows are a function of sources and options, hold every token once or say where it went, and are finished or absent."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attuner.cli.main import main
from attuner.core.errors import AttunerError, Refused, UserError
from attuner.datatools.frozen import open_rows
from attuner.datatools.output import new_folder
from attuner.datatools.rows import Layout, make_rows, row_order
from attuner.datatools.stream import Reading

TEXTS = ["one small document", "", "another, with é and ü", "x" * 50]


def sources(folder: Path) -> Path:
    folder.mkdir()
    (folder / "a.txt").write_text(TEXTS[0])
    (folder / "b.txt").write_bytes(b"")
    (folder / "c").mkdir()
    (folder / "c" / "d.jsonl").write_text("".join(json.dumps({"text": t, "id": 1}) + "\n" for t in TEXTS[2:]))
    return folder


def made(named: Path | str, out: Path, *, reading: Reading | None = None, **layout: Any) -> dict[str, Any]:
    return make_rows([str(named)], out, reading or Reading(), Layout(**{"seq_len": 9, **layout}))


def stream_of(texts: list[str], eos: int = 256) -> list[int]:
    return [token for t in texts if t for token in [*t.encode(), eos]]


def test_end_to_end_rows_are_the_documents_with_their_end_tokens_in_order(tmp_path: Path) -> None:
    about = made(sources(tmp_path / "in"), tmp_path / "rows")
    rows, wanted = open_rows(tmp_path / "rows").rows, stream_of([TEXTS[0], *TEXTS[2:]])
    assert rows.reshape(-1).tolist() == wanted[: rows.size]
    assert about["made"]["counts"]["unfinished"] == len(wanted) - rows.size < 10
    assert about["vocab_size"] == 258
    assert rows.dtype == np.uint16


def test_without_special_tokens_a_byte_is_a_byte(tmp_path: Path) -> None:
    about = made(sources(tmp_path / "in"), tmp_path / "rows", reading=Reading(eos="none"))
    assert (about["dtype"], about["vocab_size"]) == ("uint8", 256)
    raw = b"".join(t.encode() for t in TEXTS)
    assert (tmp_path / "rows" / "rows.bin").read_bytes() == raw[: len(raw) // 10 * 10]


@pytest.mark.parametrize("long", ["cut", "split", "drop"])
@pytest.mark.parametrize("seq_len", [2, 9, 18, 19, 20, 51, 200])
def test_every_token_is_in_a_row_or_counted(tmp_path: Path, long: str, seq_len: int) -> None:
    for pack in ("concatenate", "document"):
        out = tmp_path / pack
        if (pack == "concatenate" and seq_len == 200) or (pack == "document" and long == "drop" and seq_len < 18):
            continue  # no row: another test
        counts = made(sources(tmp_path / f"in-{pack}"), out, pack=pack, long=long, seq_len=seq_len)["made"]["counts"]
        assert counts["tokens"] == len(stream_of(TEXTS))
        in_rows = counts["num_rows"] * (seq_len + 1) - counts["padding"]
        assert counts["tokens"] == in_rows + counts["cut"] + counts["unfinished"]


def test_one_document_a_row_is_padded_and_says_how_much_is_its_own(tmp_path: Path) -> None:
    made(sources(tmp_path / "in"), tmp_path / "cut", pack="document", seq_len=30)
    rows = open_rows(tmp_path / "cut")
    wanted = [stream_of([t])[:31] for t in TEXTS if t]
    assert rows.used is not None
    assert [row[:n].tolist() for row, n in zip(rows.rows, rows.used.tolist(), strict=True)] == wanted
    assert all((row[n:] == 257).all() for row, n in zip(rows.rows, rows.used.tolist(), strict=True))
    made(tmp_path / "in", tmp_path / "split", pack="document", seq_len=30, long="split")
    split = open_rows(tmp_path / "split")
    assert split.used is not None
    pieces = [row[:n].tolist() for row, n in zip(split.rows, split.used.tolist(), strict=True)]
    assert [token for piece in pieces for token in piece] == stream_of(TEXTS)
    made(tmp_path / "in", tmp_path / "drop", pack="document", seq_len=30, long="drop")
    assert [r[:n].tolist() for r, n in zip(*kept(tmp_path / "drop"), strict=True)] == [w for w in wanted if len(w) < 31]


def kept(folder: Path) -> tuple[Any, list[int]]:
    rows = open_rows(folder)
    assert rows.used is not None
    return rows.rows, rows.used.tolist()


@pytest.mark.parametrize("pack", ["concatenate", "document"])
def test_pieces_of_a_big_file_are_one_document(tmp_path: Path, pack: str) -> None:
    text = bytes(range(256)) * 9000  # 2.3 MB: three pieces
    (tmp_path / "big").write_bytes(text)
    about = made(tmp_path / "big", tmp_path / "rows", pack=pack, long="split", seq_len=1023)
    rows, counts = open_rows(tmp_path / "rows").rows, about["made"]["counts"]
    assert counts["documents"] == 1
    assert counts["tokens"] == len(text) + 1
    flat = rows.reshape(-1)[: len(text)]
    assert (flat == np.frombuffer(text, np.uint8)[: len(flat)]).all()
    assert (rows == 256).sum() == (1 if pack == "document" else 0)


def test_the_same_input_gives_the_same_bytes_and_a_seed_another_order(tmp_path: Path) -> None:
    sources(tmp_path / "in")
    for name, shuffle in (("a", 7), ("b", 7), ("plain", None), ("other", 8)):
        made(tmp_path / "in", tmp_path / name, shuffle=shuffle, pack="document", seq_len=3, long="split", format="megatron")
    files = {p.name for p in (tmp_path / "a").iterdir()}
    assert files == {"rows.bin", "rows.json", "rows.idx", "used.bin", "sources.sha256"}
    assert all((tmp_path / "a" / f).read_bytes() == (tmp_path / "b" / f).read_bytes() for f in files)
    plain, shuffled, other = (open_rows(tmp_path / n) for n in ("plain", "a", "other"))
    assert shuffled.rows.tolist() != plain.rows.tolist() != other.rows.tolist() != shuffled.rows.tolist()
    order = row_order(7, len(plain.rows))
    assert sorted(order.tolist()) == list(range(len(plain.rows)))
    assert shuffled.rows.tolist() == plain.rows[order].tolist()
    assert plain.used is not None
    assert shuffled.used is not None
    assert shuffled.used.tolist() == plain.used[order].tolist()


def test_the_shuffled_order_is_fixed_for_ever() -> None:
    assert row_order(1, 8).tolist() == [2, 6, 5, 0, 3, 1, 7, 4]


def test_sources_are_on_record_as_sha256sum_checks_them(tmp_path: Path) -> None:
    folder = sources(tmp_path / "in")
    (folder / "new\nline.txt").write_text("a name that would break a list")
    about = made(folder, tmp_path / "rows", num_rows=1)  # the files behind the first row are read to the end for the digest
    listed = (tmp_path / "rows" / "sources.sha256").read_bytes()
    assert hashlib.sha256(listed).hexdigest() == about["made"]["sources"]["sha256"]
    done = subprocess.run(["sha256sum", "-c", "rows/sources.sha256"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    everything = made(folder, tmp_path / "all")
    assert everything["made"]["sources"]["files"] == 4 > about["made"]["sources"]["files"] == 1
    subprocess.run(["sha256sum", "-c", "all/sources.sha256"], cwd=tmp_path, capture_output=True, check=True)


def test_the_rows_asked_for_are_the_first_ones(tmp_path: Path) -> None:
    sources(tmp_path / "in")
    for pack in ("concatenate", "document"):
        made(tmp_path / "in", tmp_path / pack, pack=pack)
        about = made(tmp_path / "in", tmp_path / f"{pack}-2", pack=pack, num_rows=2)
        few, many = (open_rows(tmp_path / n) for n in (f"{pack}-2", pack))
        assert few.rows.tolist() == many.rows[:2].tolist()
        assert about["made"]["counts"]["stopped_at_num_rows"]
        if few.used is not None:
            assert about["made"]["counts"]["padding"] == 20 - int(few.used.sum())


def test_a_finished_output_is_never_touched_without_force(tmp_path: Path) -> None:
    folder = sources(tmp_path / "in")
    made(folder, tmp_path / "rows")
    before = (tmp_path / "rows" / "rows.bin").read_bytes()
    with pytest.raises(UserError, match="exists; --force replaces it"):
        made(folder, tmp_path / "rows", seq_len=4)
    assert (tmp_path / "rows" / "rows.bin").read_bytes() == before
    make_rows([str(folder)], tmp_path / "rows", Reading(), Layout(seq_len=4), force=True)
    assert open_rows(tmp_path / "rows").seq_len == 4
    assert sorted(p.name for p in tmp_path.iterdir()) == ["in", "rows"]


def test_a_folder_that_is_not_ours_is_never_replaced(tmp_path: Path) -> None:
    folder = sources(tmp_path / "in")
    for force in (False, True):
        with pytest.raises(UserError, match=r"holds no rows\.json, so it isn't replaced"):
            make_rows([str(folder / "a.txt")], folder, Reading(), Layout(seq_len=4), force=force)
    link = tmp_path / "link"
    link.symlink_to(folder)
    with pytest.raises(UserError, match="is no folder"):
        make_rows([str(folder / "a.txt")], link, Reading(), Layout(seq_len=4), force=True)
    assert (folder / "a.txt").read_text() == TEXTS[0]


def test_a_failed_writing_leaves_nothing(tmp_path: Path) -> None:
    sources(tmp_path / "in")
    with pytest.raises(UserError, match="outside the vocabulary of 100"):
        made(tmp_path / "in", tmp_path / "rows", reading=Reading(vocab_size=100, eos="none"))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["in"]


KILLED = """
import os, signal, sys
from pathlib import Path
from attuner.datatools.output import new_folder
with new_folder(Path(sys.argv[1]), mark="rows.json") as part:
    (part / "rows.json").write_text("{}")
    (part / "junk").mkdir()
    (part / "junk" / "mask.bin").write_text("half")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_writer_left_is_never_taken_for_finished(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path / "rows")])
    assert done.returncode == -signal.SIGKILL
    assert [p.name for p in tmp_path.iterdir()] == [".rows.part"]
    made(sources(tmp_path / "in"), tmp_path / "rows")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["in", "rows"]
    assert open_rows(tmp_path / "rows").seq_len == 9
    assert sorted(p.name for p in (tmp_path / "rows").iterdir()) == ["rows.bin", "rows.json", "sources.sha256"]


def test_two_writers_of_one_folder_dont_meet(tmp_path: Path) -> None:
    with new_folder(tmp_path / "rows", mark="rows.json") as part:
        with pytest.raises(Refused, match="another process is writing it"):
            made(sources(tmp_path / "in"), tmp_path / "rows")
        (part / "rows.json").write_text("{}")
    assert [p.name for p in (tmp_path / "rows").iterdir()] == ["rows.json"]


FULL = """
import resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
from attuner.cli.main import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize("shuffle", [[], ["--shuffle", "1"]])
def test_a_full_disk_is_one_line_and_no_half_file(tmp_path: Path, shuffle: list[str]) -> None:
    (tmp_path / "big").write_bytes(os.urandom(200_000))
    order = ["data", "rows", str(tmp_path / "big"), "-o", str(tmp_path / "rows"), "--seq-len", "63", *shuffle]
    done = subprocess.run([sys.executable, "-c", FULL, *order], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.splitlines() == [f"attuner: {tmp_path / 'rows'}: no room left; nothing was kept (File too large)"]
    assert [p.name for p in tmp_path.iterdir()] == ["big"]


def test_rows_that_changed_are_refused(tmp_path: Path) -> None:
    made(sources(tmp_path / "in"), tmp_path / "rows")
    path = tmp_path / "rows" / "rows.bin"
    raw = path.read_bytes()
    for bad, words in ((raw[:-2], "bytes, rows.json asks for"), (b"x" + raw[1:], "differs from the sha256")):
        path.write_bytes(bad)
        with pytest.raises(UserError, match=words):
            open_rows(tmp_path / "rows")
    (tmp_path / "rows" / "rows.json").write_text("[]")
    with pytest.raises(AttunerError, match="not readable"):
        open_rows(tmp_path / "rows")


def test_the_command_says_what_it_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    order = ["data", "rows", str(sources(tmp_path / "in")), "-o", str(tmp_path / "rows"), "--seq-len", "9"]
    assert main(order) == 0
    said = capsys.readouterr().out
    digest = json.loads((tmp_path / "rows" / "rows.json").read_text())["sha256"]
    assert f"rows@sha256:{digest}" in said
    assert "1 empty documents (first:" in said
    assert main(order) == 2
    assert capsys.readouterr().err == f"attuner: {tmp_path / 'rows'}: exists; --force replaces it\n"
    assert main([*order, "--force", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["sha256"] == digest


@pytest.mark.parametrize("num_rows", [None, 3])
def test_overlapping_rows_are_one_stream(tmp_path: Path, num_rows: int | None) -> None:
    text = bytes(range(250)) * 4000  # several blocks
    (tmp_path / "x").write_bytes(text)
    about = made(tmp_path / "x", tmp_path / "rows", seq_len=99, format="gpt", num_rows=num_rows)
    rows, counts = open_rows(tmp_path / "rows").rows, about["made"]["counts"]
    stream = np.fromfile(tmp_path / "rows" / "stream.bin", np.uint16)
    assert stream.tolist() == [*text[: len(rows) * 99 + 1]]
    assert all(rows[n].tolist() == list(text[n * 99 : n * 99 + 100]) for n in range(len(rows)))
    assert len(rows) == (num_rows or 1_000_000 // 99)
    assert num_rows or counts["tokens"] == len(rows) * 99 + 1 + counts["unfinished"]
    for layout in ({"pack": "document"}, {"shuffle": 1}):
        with pytest.raises(UserError, match="--format gpt: rows stand end to end and unshuffled"):
            made(tmp_path / "x", tmp_path / "other", format="gpt", **layout)


def test_an_output_inside_a_source_is_refused(tmp_path: Path) -> None:
    folder = sources(tmp_path / "in")
    with pytest.raises(UserError, match="lies in the source"):
        made(folder, folder / "c" / "rows")
    assert sorted(p.name for p in (folder / "c").iterdir()) == ["d.jsonl"]


def test_names_of_any_bytes_are_read_listed_and_shown_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    for name in (b"a\xff\n", b"b\\n"):
        (folder / os.fsdecode(name)).write_text("some text to read")
    (folder / os.fsdecode(b"c\xfe\n")).write_bytes(b"")
    assert main(["data", "rows", str(folder), "-o", str(tmp_path / "rows"), "--seq-len", "4"]) == 0
    assert "(first: " + str(folder) + "/c\\udcfe\\n)" in capsys.readouterr().out
    subprocess.run(["sha256sum", "-c", str(tmp_path / "rows" / "sources.sha256")], capture_output=True, check=True)
    assert main(["data", "lengths", str(folder), "--html", str(tmp_path / "l.html")]) == 0


def test_padding_is_padding_in_every_block(tmp_path: Path) -> None:
    sizes = [18 - n // 1000 for n in range(18_000)]  # over two blocks, ever shorter
    (tmp_path / "x.jsonl").write_text("".join(json.dumps({"text": "a" * n}) + "\n" for n in sizes))
    made(tmp_path / "x.jsonl", tmp_path / "rows", pack="document", seq_len=29)
    rows, used = kept(tmp_path / "rows")
    assert used == [n + 1 for n in sizes]
    own = np.arange(30)[None, :] < np.array(used)[:, None]
    assert ((rows == 257) == ~own).all()
