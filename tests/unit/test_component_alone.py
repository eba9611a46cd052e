"""The law of component tests outside campaigns: one is run once, charged, and counts for every later campaign at its scope."""

from __future__ import annotations

from pathlib import Path

import pytest
from lab import BASE, SDPA, Lab, begin, campaign, search

from attuner.core.errors import Refused
from attuner.core.events import History
from attuner.core.judgement import ComponentTest
from attuner.core.recipe import Recipe
from attuner.core.run import Settlement
from attuner.launchers.replay import Row
from attuner.ports import Kit
from attuner.steps.common import SHARED_TESTS, shared_tests
from attuner.steps.component import component_alone

TABLE = [Row(match={"attention_implementation": "sdpa"}, step_s=0.5), Row(step_s=1.0, jitter=0.005)]
SWAP = ("attention", "attention_implementation", "local", "sdpa")


def run(kit: Kit, *, swap: tuple[str, str, str, str] = SWAP) -> ComponentTest:
    born = campaign(SDPA)
    candidate = Recipe(stack="mcore", arguments={**BASE, "attention_implementation": "sdpa"})
    return component_alone(kit, born, candidate, kit.stack.resolve(candidate, born), swap=swap)


def test_it_is_charged_and_on_record_and_not_run_twice(tmp_path: Path) -> None:
    made = Lab(tmp_path, TABLE)
    kit = made.kit()
    kit.ledger.claim(SHARED_TESTS)
    first = run(kit)
    assert (first.passed, first.launch_id) == (True, f"{SHARED_TESTS}/c01")
    assert run(kit) == first
    settled = History(kit.ledger.history(SHARED_TESTS)).all("settled", Settlement)
    assert [s.how for s in settled] == ["released"]
    assert settled[0].gpu_hours > 0
    assert kit.ledger.campaigns() == []


def test_a_later_campaign_launches_no_test_of_its_own(tmp_path: Path) -> None:
    made = Lab(tmp_path, TABLE)
    kit = made.kit()
    kit.ledger.claim(SHARED_TESTS)
    run(kit)
    begin(kit, campaign(SDPA))
    search(kit)
    history = made.history()
    assert [x.kind for x in history.launches()].count("check") == 0
    assert history.verdict("h01") is not None
    assert history.verdict("h01").decision == "admit"  # type: ignore[union-attr]
    assert len(shared_tests(kit)) == 1


def test_one_that_fails_to_run_is_refused_in_one_line(tmp_path: Path) -> None:
    made = Lab(tmp_path, [Row(outcome="crash")])
    kit = made.kit()
    kit.ledger.claim(SHARED_TESTS)
    with pytest.raises(Refused, match="component test of attention_implementation local→sdpa"):
        run(kit)
