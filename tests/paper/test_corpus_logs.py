"""Log lines of public runs, one of every grammar: what is printed is read, what a line sets as a trap is not stepped into.

Skipped where a checkout has no corpus beside it; another folder is named with ATTUNER_CORPUS.
"""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import pytest

from attuner.logs.reader import LogReader
from attuner.logs.record import LogRecord

CORPUS = Path(os.environ.get("ATTUNER_CORPUS") or Path(__file__).resolve().parents[3] / "shared" / "corpus")
FILE = CORPUS / "logs.jsonl"
ROWS: list[dict[str, Any]] = [json.loads(x) for x in FILE.read_text().splitlines()] if FILE.exists() else []
pytestmark = pytest.mark.skipif(not ROWS, reason=f"no log lines at {FILE}")
ROUNDED = {"approx 3.2e4 (bar: 32040)": 32040, "approx 2.56e7": 25_600_000}
NOT_A_NUMBER = ("nan", "absent_means_nan")


def read(row: dict[str, Any], size: int) -> tuple[list[LogRecord], LogReader]:
    known = row["context"]
    reader = LogReader(seq_length=known.get("seq_length"), world_size=known.get("world_size"))
    data, out = f"{row['line']}\n".encode(), []
    for at in range(0, len(data), size):
        out += reader.feed(data[at : at + size])
    return out + reader.close(), reader


def fits(found: Any, wanted: Any, record: LogRecord) -> bool:
    """Tell whether a value is as expected; the corpus rounds tokens per second to one decimal."""
    wanted = ROUNDED.get(wanted, wanted) if isinstance(wanted, str) else wanted
    if wanted == "unreliable":
        return found is None or record.rejoined
    if wanted == "lost_to_rounding":
        return found is None and any("rounding" in x for x in record.oddities)
    if wanted in NOT_A_NUMBER:
        return found is not None and math.isnan(found)
    if isinstance(wanted, dict):
        return found == pytest.approx(wanted)
    return found is None if wanted is None else found == pytest.approx(wanted, rel=1e-6, abs=0.051 if wanted > 100 else 0)


@pytest.mark.parametrize("size", [1 << 20, 11])
@pytest.mark.parametrize("row", ROWS, ids=[r["id"] for r in ROWS])
def test_a_line_is_read_as_printed(row: dict[str, Any], size: int) -> None:
    found, _ = read(row, size)
    if row["kind"] == "validation":
        assert found == []
        return
    assert len(found) == 1
    wrong = {k: getattr(found[0], k) for k, v in row["expected"].items() if not fits(getattr(found[0], k), v, found[0])}
    assert wrong == {}


def test_the_corpus_is_whole() -> None:
    assert len(ROWS) == 26


def by_id(row: str) -> LogRecord:
    return read(next(r for r in ROWS if r["id"] == row), 1 << 20)[0][0]


def test_a_run_that_took_no_step_is_said_to_have_taken_none() -> None:
    assert by_id("L007").stepped is False


def test_the_broken_line_gives_its_whole_rate_or_none() -> None:
    assert by_id("L013").learning_rate in (None, 1e-6)


def test_what_cant_be_is_pointed_out() -> None:
    assert any("mfu" in x for x in by_id("L028").oddities)
    assert by_id("L014").locale


def test_samples_per_second_agree_with_tokens_per_second() -> None:
    found = by_id("L010")
    assert found.samples_per_s == pytest.approx(82.041)
    assert found.tokens_per_s == pytest.approx((found.samples_per_s or 0) * 2048, rel=1e-4)
    assert found.tokens_per_s == pytest.approx((found.tokens_per_s_per_gpu or 0) * 32, rel=1e-4)


def test_the_current_rate_is_read_not_the_running_average() -> None:
    assert by_id("L031").samples_per_s == pytest.approx(32.110014)
