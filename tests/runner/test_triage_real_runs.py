"""Triage of runs that really failed: torchrun, megatron-core, two ranks on CPUs, and the logs that they left."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from attuner.core.failure import Failure
from attuner.ports import RunFiles, Stamp
from attuner.steps.triage import triaged

from .conftest import Launched

RULES = Path(__file__).resolve().parents[2] / "rules"
Launch = Callable[..., Launched]


def diagnosed(done: Launched, status: str) -> Failure:
    """Return the diagnosis as a campaign would record it; the run's output is what its driver would have kept."""
    (done.folder / "log.txt").write_text(done.log)
    told = done.failure()
    given = {"status": status, "cause": str(told["message"]), "phase": str(told["phase"])}
    found = triaged(RunFiles(folder=str(done.folder), stamp=Stamp()), RULES, "mcore", **given)
    assert found is not None
    return found


@pytest.mark.slow
def test_a_device_that_is_too_small_is_out_of_memory_where_it_was_told(launch: Launch) -> None:
    done = launch(1, device={"kind": "cpu", "mem_gib": 0.02, "threads": 1})
    found = diagnosed(done, "oom")
    assert done.failure()["phase"] == "build"
    assert (found.kind, found.phase, found.levers, found.retry) == ("oom.start", "start-up", ["layout"], "no")


@pytest.mark.slow
def test_the_rank_that_ran_out_of_memory_is_the_root(launch: Launch) -> None:
    done = launch(2, inject={"kind": "oom", "step": 1}, device={"kind": "cpu", "mem_gib": 0.3, "threads": 1})
    found = diagnosed(done, "oom")
    assert (found.kind.split(".")[0], found.rank) == ("oom", 1)


@pytest.mark.slow
def test_a_layout_that_is_refused_is_a_configuration(launch: Launch) -> None:
    found = diagnosed(launch(2, {"global_batch_size": 3}), "crash")
    assert (found.kind, found.retry) == ("config.assertion", "no")


@pytest.mark.slow
def test_a_crash_that_no_rule_knows_is_undetermined_and_shown(launch: Launch) -> None:
    found = diagnosed(launch(2, inject={"kind": "crash", "step": 1}), "crash")
    assert found.undetermined
    assert any("rehearsed crash" in e.text for e in found.evidence)
