"""The estimate against published points and replay tables, with floors at what it reaches; skipped without ../shared.

The figures are those of `python bench/estimate.py`, which prints them all.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SHARED = Path(os.environ.get("ATTUNER_SHARED", ROOT.parent / "shared"))
sys.path.insert(0, str(ROOT / "bench"))

import estimate_memory  # noqa: E402
import estimate_points  # noqa: E402
import estimate_tables  # noqa: E402

from attuner.estimate.learning import learn  # noqa: E402

POINTS = SHARED / "facts" / "throughput_points.csv"
needs_points = pytest.mark.skipif(not POINTS.exists(), reason=f"{POINTS}: published points are not here")
needs_tables = pytest.mark.skipif(not (SHARED / "replay").exists(), reason=f"{SHARED / 'replay'}: replay tables are not here")
FLOORS = {
    "GPT-175B": (0.03, 0.87, 0.007),
    "GPT-18.4B": (0.055, 0.73, 0.046),
    "GPT-3.6B": (0.07, 0.92, 0.001),
    "GPT-39.1B": (0.075, 0.68, 0.001),
}
"""Model → largest mean error, smallest rank correlation, largest regret of the top pick."""
PLAIN = {"GPT-175B": (0.50, 0.022), "GPT-18.4B": (0.83, 0.0), "GPT-3.6B": (-0.02, 0.0), "GPT-39.1B": (0.87, 0.053)}
TABLES = {  # table → share of out-of-memory layouts told, rank correlation; after the baseline alone
    "glm-4.5-128xb200": (0.72, 0.89),
    "llama3-70b-64xb200": (0.90, 0.97),
    "minimax-m2-64xb200": (0.86, 0.88),
    "mixtral-8x7b-64xb200": (0.82, 0.80),
}


@pytest.mark.slow
@needs_points
def test_step_times_of_each_model_from_the_other_three() -> None:
    for told in estimate_points.leave_one_out(estimate_points.read_points(POINTS)):
        mape, rank, regret = FLOORS[told.model]
        assert told.mape <= mape, told
        assert told.spearman >= rank, told
        assert told.regret <= regret, told


@needs_points
def test_the_plain_baseline_is_the_published_one() -> None:
    for told in estimate_points.constant_and_bubble(estimate_points.read_points(POINTS)):
        rank, regret = PLAIN[told.model]
        assert told.spearman == pytest.approx(rank, abs=0.01)
        assert told.regret == pytest.approx(regret, abs=0.001)


@needs_points
def test_published_memory_is_on_the_right_side_and_in_the_band() -> None:
    told = estimate_memory.told_rows(estimate_points.read_points(POINTS))
    measured = [t for t in told if t.measured_gib]
    assert (len(told), len(measured)) == (175, 49)
    assert [t.id for t in told if not t.right_side()] == []
    assert [t.id for t in measured if not t.covered()] == []
    assert max(t.high_gib / t.peak_gib - 1 for t in told) <= 0.1501
    errors = [abs(t.peak_gib / t.measured_gib - 1) for t in measured if t.measured_gib]
    assert sum(errors) / len(errors) < 0.02


@pytest.mark.slow
@needs_tables
@pytest.mark.parametrize(
    ("name", "label"),
    [*((n, "") for n in sorted(TABLES)), ("glm-4.5-128xb200", "inter-node ×2"), ("llama3-70b-64xb200", "compute −15%")],
)
def test_a_greedy_search_ends_within_the_noise_band(name: str, label: str) -> None:
    field = estimate_tables.open_field(ROOT / "configs" / "replay" / f"{name}.yaml", estimate_tables.PERTURBED[label])
    search = estimate_tables.greedy(field)
    assert search.regret <= estimate_tables.NOISE_BAND
    assert search.launches <= 6
    assert search.failed <= 1
    if not label:
        after = estimate_tables.judge(field, learn(field.shape, field.machine, search.path[:1]), 1)
        told, rank = TABLES[name]
        assert after.oom_told >= told
        assert after.ok_held <= 0.02
        assert after.better_held <= 0.02
        assert after.spearman >= rank
