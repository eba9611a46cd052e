"""The law of the lock: whoever widens a tolerance under a running campaign stops it."""

from __future__ import annotations

from pathlib import Path

import pytest
from lab import ID, ROOT, begin
from test_steps_looks import bf16, candidates, probed, router

from attuner.core.errors import RegisterChanged
from attuner.steps.gate import gate
from attuner.steps.hypothesize import hypothesize
from attuner.steps.launch import launch
from attuner.steps.score import score


@pytest.mark.parametrize("file", ["mcore/tolerances.yaml", "tolerances.yaml"])
def test_a_widened_tolerance_stops_the_campaign(tmp_path: Path, file: str) -> None:
    made = probed(tmp_path, candidates(router(0.06), only="bf16"))
    (made.rules / "tolerances.yaml").write_text((ROOT / "rules" / "tolerances.yaml").read_text())
    kit = made.kit()
    begin(kit, bf16())
    hypothesize(kit, ID, "h01")
    gate(kit, ID, "h01")
    launch(kit, ID, "l06")
    path = made.rules / file
    path.write_text(path.read_text().replace("limit: ", "limit: 9", 1))
    with pytest.raises(RegisterChanged):
        score(kit, ID, "l06")
    assert made.history().score("l06") is None
