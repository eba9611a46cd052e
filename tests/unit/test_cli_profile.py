"""Law: `attuner profile` answers for every trace it is given: a breakdown, or why there is none; the page is self-contained."""

from __future__ import annotations

import gzip
import json
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from attuner.cli.main import main

Json = dict[str, Any]


def write(path: Path, *, rank: int, gpu: str = "H100", name: str = "gemm", packed: bool = False) -> Path:
    """A trace of three steps of 100 µs: 40 of computation, 30 of an exposed all-to-all, 10 of waiting for the host."""
    events: list[Json] = []

    def add(what: str, start: float, end: float, cat: str, **args: Any) -> None:
        times = {"ts": 1e9 + start, "dur": end - start}
        events.append({"ph": "X", "name": what, "cat": cat, "pid": 0, "tid": args.get("stream", 1), "args": args, **times})

    for n in range(3):
        at = 100 * n
        add(f"ProfilerStep#{n}", at, at + 100, "user_annotation")
        add("cudaLaunchKernel", at, at + 10, "cuda_runtime", correlation=10 * n + 1)
        add(name, at + 10, at + 50, "kernel", stream=7, correlation=10 * n + 1)
        add("nccl:all_to_all", at + 45, at + 55, "user_annotation")
        add("cudaLaunchKernelExC", at + 46, at + 50, "cuda_runtime", correlation=10 * n + 2)
        add("ncclDevKernel_SendRecv(x)", at + 50, at + 80, "kernel", stream=9, correlation=10 * n + 2)
    document = {
        "deviceProperties": [{"id": 0, "name": gpu}],
        "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": 2},
        "traceEvents": events,
    }
    raw = json.dumps(document).encode()
    path.write_bytes(gzip.compress(raw) if packed else raw)
    return path


def test_a_folder_of_ranks_is_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "rank1.json", rank=1)
    write(tmp_path / "rank0.json.gz", rank=0, packed=True)
    assert main(["profile", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert re.search(r"rank 0: .*rank0\.json\.gz \(cuda, H100, nccl, world of 2; 18 events\)", out)
    assert re.search(r"^ +1 +100\.0 µs +40\.00% +30\.00% +0\.00% ", out, re.MULTILINE)
    assert re.search(r"exposed expert +30\.0 µs +30\.00% +\+42\.9%", out)
    assert "stragglers, over 3 common steps and 3 collectives" in out


def test_json_is_in_whole_nanoseconds_and_adds_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "t.json", rank=0)
    assert main(["profile", "--json", str(path)]) == 0
    data = json.loads(capsys.readouterr().out)
    steps = data["ranks"][0]["steps"]
    assert data["unit"] == "ns"
    assert [s["span"] for s in steps] == [100_000] * 3
    for s in steps:
        parts = [s[k] for k in ("compute", "exposed", "copy", "host", "idle")]
        assert all(isinstance(p, int) for p in parts)
        assert sum(parts) == s["span"]
    assert steps[0]["exposed_by_group"] == {"expert": 30_000}


def test_what_cannot_be_read_gets_its_reason_beside_what_can(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good, bad = write(tmp_path / "a.json", rank=0), tmp_path / "b.json"
    bad.write_bytes(b"PK\x03\x04")
    assert main(["profile", str(good), str(bad)]) == 0
    assert "b.json: not read: not valid JSON" in capsys.readouterr().err
    assert main(["profile", str(bad)]) == 2
    assert "not valid JSON" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "says"), [("none.json", "no such file"), ("empty", "no trace (.json, .json.gz) in this folder")]
)
def test_a_wrong_path_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, says: str) -> None:
    (tmp_path / "empty").mkdir()
    assert main(["profile", str(tmp_path / name)]) == 2
    assert says in capsys.readouterr().err


def test_different_hardware_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pair = [write(tmp_path / "a.json", rank=0), write(tmp_path / "b.json", rank=1, gpu="V100")]
    assert main(["profile", *map(str, pair)]) == 2
    assert "can't be compared: hardware H100" in capsys.readouterr().err


def svgs(html: str) -> list[ET.Element]:
    return [ET.fromstring(x) for x in re.findall(r"<svg.*?</svg>", html, re.DOTALL)]


def test_the_page_draws_every_step_to_scale(tmp_path: Path) -> None:
    paths = [write(tmp_path / f"rank{n}.json", rank=n) for n in (0, 1)]
    page = tmp_path / "out.html"
    assert main(["profile", *map(str, paths), "--html", str(page)]) == 0
    html = page.read_text(encoding="utf-8")
    bars, *timelines = svgs(html)
    assert len(timelines) == 2
    rects = [r for r in bars.iter("rect") if r.get("class", "").startswith("p-")]
    rows: dict[str, list[tuple[float, float, str]]] = {}
    for r in rects:
        rows.setdefault(r.attrib["y"], []).append((float(r.attrib["x"]), float(r.attrib["width"]), r.attrib["class"]))
    assert len(rows) == 6  # two ranks of three steps
    for n, row in enumerate(rows.values()):
        whole = sum(w for _, w, _ in row)
        # the device rests at the end of a step because the next one's launch hasn't come; after the last there is none
        rest = {"p-host": 0.1, "p-idle": 0.2} if n % 3 == 2 else {"p-host": 0.3}
        assert {c: round(w / whole, 3) for _, w, c in row} == {"p-compute": 0.4, "p-comm0": 0.3, **rest}
        assert all(abs(a[0] + a[1] - b[0]) < 0.02 for a, b in pairwise(row))
        assert row[0][0] == 150.0
        assert row[-1][0] + row[-1][1] <= 960
    names = [t.text for t in timelines[0].iter("text") if t.get("class") == "row-name"]
    assert names == ["compute", "expert communication", "host-bound"]


def test_the_page_needs_no_network_and_runs_nothing_of_a_trace(tmp_path: Path) -> None:
    evil = '</title><script>alert(1)</script><img src="http://x/y">'
    page = tmp_path / "out.html"
    assert main(["profile", str(write(tmp_path / "t.json", rank=0, name=evil)), "--html", str(page)]) == 0
    html = page.read_text(encoding="utf-8")
    assert "<script" not in html
    assert "<img" not in html
    assert "default-src 'none'" in html
    assert "&lt;script&gt;" in html


def test_a_terminal_is_shown_no_control_characters(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", str(write(tmp_path / "t.json", rank=0, name="\x1b[31mred\u202e"))]) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert "\u202e" not in out


def test_reading_a_trace_loads_nothing_heavy(tmp_path: Path) -> None:
    path = write(tmp_path / "t.json", rank=0)
    code = (
        "import sys; from attuner.cli.main import main; main(sys.argv[1:]); "
        "print([m for m in ('pydantic', 'prefect', 'ray', 'torch', 'yaml', 'duckdb', 'rich') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code, "profile", str(path)], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
