"""Law of the budget as it is told: board, page and account say one figure, a person's last word included."""

from __future__ import annotations

from pathlib import Path

from lab import ID, Lab, begin, campaign

from attuner.core.people import Directive
from attuner.launchers.replay import Row
from attuner.report import board, claims
from attuner.report.facts import gather
from attuner.report.spend import whole


def test_every_place_that_tells_the_budget_tells_a_persons_last_word(tmp_path: Path) -> None:
    for given, before in (({"gpu_hours": 0.5}, 0.5), ({"gpu_hours": "auto"}, 10.0)):
        made = Lab(tmp_path / str(before), [Row(step_s=1.0)])
        kit = made.kit()
        begin(kit, campaign(budget=given))
        born = made.history().events[:2]
        assert board.row(board.brief(born))["budget_gpu_hours"] == (None if given["gpu_hours"] == "auto" else 0.5)
        for said in (before, 9.0):
            if said == 9.0:
                kit.ledger.append(ID, "directive", "d1", Directive(act="budget", by="Ada", gpu_hours=9.0))
            history = made.history()
            facts = gather(history.events)
            told = board.row(board.brief(history.events)), board.row(facts), whole(history, {})
            assert [x["budget_gpu_hours"] for x in told] == [said, said, said]
            assert f" of {facts.units.amount(said)} " in claims.cost(facts)
