"""The catalog on the four replay tables and on machines that differ from them: near the best, in few launches, none of them lost.

The rows lie outside the checkout; without them the tests skip. Figures over twenty seeds: docs/bench.md.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from attuner.bench.arms import arm
from attuner.bench.play import Entry, Protocol, play

ROOT = Path(__file__).resolve().parents[2]
TABLES = ("glm-4.5-128xb200", "minimax-m2-64xb200", "mixtral-8x7b-64xb200", "llama3-70b-64xb200")
MACHINES: dict[str, dict[str, float]] = {
    "as it is": {},
    "slow network": {"inter_node_comm": 2.0},
    "slow devices": {"compute": 0.85},
}
SHARED = ROOT.parent / "shared" / "replay"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not SHARED.is_dir(), reason="the replay tables are not beside this checkout"),
]


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("machine", MACHINES)
def test_it_ends_near_the_best_in_ten_launches_at_most(name: str, machine: str) -> None:
    file = ROOT / "configs" / "replay" / f"{name}.yaml"
    outcome = play(
        Entry(file, arm("catalog"), 7, Protocol(perturb=MACHINES[machine])), rules=ROOT / "rules", configs=ROOT / "configs"
    )
    assert outcome.near_best
    assert outcome.launches <= 10
    assert outcome.failed <= 1
    assert outcome.kept_baseline == name.startswith("mixtral")
