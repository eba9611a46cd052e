"""Law of a re-tuning's pages: they say that it is one, and its gain is over what ran before, not over the old baseline."""

from __future__ import annotations

from pathlib import Path

import pytest
from lab import LR, Lab, campaign, play
from test_report_pages import answers

from attuner.core.environment import Environment, Retunes
from attuner.core.events import Event
from attuner.core.recipe import Change, Recipe
from attuner.launchers.replay import Row
from attuner.report import board, board_rows, board_table, claims, html, markdown, queries, said
from attuner.report.facts import ReportFacts, gather

FAST = Row(match={"micro_batch_size": 4, "recompute_granularity": "full"}, step_s=0.5)
FASTER = Row(match={"micro_batch_size": 4}, step_s=0.4)
BROKEN = Row(match={"micro_batch_size": 4, "recompute_granularity": "full"}, outcome="crash")
REST = Row(step_s=1.0, jitter=0.002)
MORE = {"group": "recompute", "arguments": {"recompute_granularity": "selective"}}


def events(folder: Path, *rows: Row, script: tuple[dict[str, object], ...] = (), micro_batch_size: int = 4) -> list[Event]:
    """Play a re-tuning of what lab-0000 shipped."""
    base = campaign().baseline
    recipe = Recipe(stack=base.stack, arguments={**base.arguments, "micro_batch_size": micro_batch_size})
    past = Retunes(
        of="lab-0000",
        recipe=recipe,
        tokens_per_s_per_gpu=128.0,
        baseline_tokens_per_s_per_gpu=64.0,
        band=0.03,
        before=Environment(),
        changes=[Change(key="torch", before="2.13.0", after="2.14.0")],
    )
    made = Lab(folder, [*rows, REST])
    play(made.kit(), campaign(*script).model_copy(update={"retunes": past}))
    return list(made.history().events)


def texts(facts: ReportFacts) -> tuple[str, str]:
    return markdown.render(facts), html.render(facts)


def line(found: list[Event]) -> str:
    return board.text([board.row(board.brief(found))])


def test_what_ships_again_has_gained_nothing_and_pays_nothing_back(tmp_path: Path) -> None:
    found = events(tmp_path, FAST)
    facts = gather(found)
    assert facts.retuned is not None
    assert (facts.retuned.same, facts.retuned.gain, facts.state) == (True, 0.0, "shipped")
    assert claims.headline(facts) == "Re-tuning: what lab-0000 shipped ships again, +100% tokens/s/device over the baseline"
    assert (claims.paid(facts), claims.payback(facts)) == (None, "")
    assert "no speed that pays it back" in said.payback_lines(facts)[0]
    for page in texts(facts):
        assert "aid back after" not in page
        assert "A re-tuning of lab-0000, because of torch 2.13.0 → 2.14.0. What it shipped ran at " in page.replace("\\", "")
    row = board.row(board.brief(found))
    assert (row["retunes"], row["gain_over_retuned"]) == ("lab-0000", 0.0)
    assert row == board.row(facts)
    assert "+100% (0% re-tuned)" in line(found)
    assert "re-tuning: 0% over what ran before" in board_table.gain(board_rows.entry(found, {})).html


def test_a_faster_recipe_is_paid_back_by_what_it_gained_over_what_ran_before(tmp_path: Path) -> None:
    found = events(tmp_path, FAST, FASTER, script=(MORE,))
    facts = gather(found)
    assert facts.retuned is not None
    assert facts.claim is not None
    assert facts.retuned.gain == pytest.approx(0.25, abs=0.01)
    assert facts.claim.gain == pytest.approx(1.5, abs=0.02)
    head = "Re-tuning: +25% tokens/s/device over what lab-0000 shipped, +150% over the baseline"
    assert claims.headline(facts) == head
    assert all(head in page for page in texts(facts))
    paid = claims.paid(facts)
    assert paid is not None
    assert paid.hours == pytest.approx(facts.total_gpu_hours / (2 * facts.retuned.gain))
    assert paid.baseline_hours == pytest.approx(paid.hours * (1 + facts.retuned.gain))
    assert ", over what lab-0000 shipped (" in claims.payback(facts)
    assert "which the recipe of lab-0000 needs" in said.payback_lines(facts)[0]
    assert "+150% (+25% re-tuned)" in line(found)
    (row,) = answers(facts, found, queries.claim(facts))
    assert float(row[1]) / float(row[5]) - 1 == pytest.approx(facts.retuned.gain)


def test_what_no_longer_runs_gives_no_gain_over_it(tmp_path: Path) -> None:
    found = events(tmp_path, BROKEN, FASTER, script=({"group": "micro-batch", "arguments": {"micro_batch_size": 2}},))
    assert gather(found).state == "baseline kept"
    assert claims.headline(gather(found)) == "Re-tuning: baseline kept"
    two = Row(match={"micro_batch_size": 2}, step_s=0.5)
    facts = gather(
        events(tmp_path / "two", BROKEN, two, script=({"group": "micro-batch", "arguments": {"micro_batch_size": 2}},))
    )
    assert facts.retuned is not None
    assert (facts.retuned.before, facts.retuned.gain) == (None, None)
    assert claims.headline(facts).endswith("over the baseline; what lab-0000 shipped was not measured here")
    assert claims.payback(facts) == ""
    assert "can't be told" in said.payback_lines(facts)[0]


def test_a_baseline_that_was_kept_is_what_a_re_tuning_gains_over(tmp_path: Path) -> None:
    micro = {"group": "micro-batch", "arguments": {"micro_batch_size": 4}}
    facts = gather(events(tmp_path, FAST, script=(micro,), micro_batch_size=1))
    assert facts.retuned is not None
    assert facts.claim is not None
    assert facts.retuned.gain == pytest.approx(facts.claim.gain)
    assert claims.headline(facts) == "Re-tuning: +100% tokens/s/device over the baseline, which lab-0000 kept"
    assert claims.payback(facts)


def test_a_re_tuning_says_so_from_its_first_event_on(tmp_path: Path) -> None:
    found = events(tmp_path, FAST)
    first = next(n for n, e in enumerate(found, 1) if e.kind == "campaign")
    for n in range(first, len(found) + 1):
        some = gather(found[:n])
        assert claims.headline(some).startswith("Re-tuning: ")
        assert board.row(some) == board.row(board.brief(found[:n]))


def test_an_ordinary_campaign_says_nothing_of_it(tmp_path: Path) -> None:
    made = Lab(tmp_path, [FAST, REST])
    play(made.kit(), campaign({"group": "micro-batch", "arguments": {"micro_batch_size": 4}}, LR))
    facts = gather(made.history().events)
    assert claims.headline(facts) == "+100% tokens/s/device"
    assert claims.payback(facts)
    assert "re-tun" not in "".join(texts(facts)).lower()
    assert "re-tun" not in line(list(made.history().events))
