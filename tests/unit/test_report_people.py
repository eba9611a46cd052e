"""Laws of the page after people spoke to a campaign that was really played: it says what the ledger says, and adds up."""

from __future__ import annotations

import re
import typing
from pathlib import Path

import pytest
from lab import ID, LAYOUT, MICRO, Lab, campaign, play
from test_report_pages import Page, answers

from attuner.core.people import Act, Directive
from attuner.launchers.replay import Row
from attuner.ledgers.memory import MemoryLedger
from attuner.report import html, markdown, queries
from attuner.report.curve import curve
from attuner.report.facts import ReportFacts, gather
from attuner.steps.rerun import rerun

REST = Row(step_s=1.0, jitter=0.005)
OOM = Row(match={"micro_batch_size": 4}, outcome="oom", detail="out of memory in forward")
FAST = Row(match={"micro_batch_size": 4}, step_s=0.5, jitter=0.005)
LAYOUT_ROW = Row(match={"tensor_model_parallel_size": 1}, step_s=0.8)


@pytest.fixture
def made(tmp_path: Path) -> Lab:
    """A campaign whose first move ran out of memory, which Ada had run again: it leads now."""
    return run_again(tmp_path, LAYOUT_ROW)


def run_again(tmp_path: Path, layout: Row) -> Lab:
    lab = Lab(tmp_path, [OOM, layout, REST])
    play(lab.kit(), campaign(MICRO, LAYOUT))
    lab.table[0] = FAST
    lab.store.holders.clear()
    ledger = MemoryLedger(lab.store, now=lab.clock.now)
    rerun(ledger, ID, "launch", "l06", rules_dir=lab.rules, by="Ada", why="a <neighbour> used the memory")
    play(lab.kit(), campaign(MICRO, LAYOUT))
    return lab


def told(lab: Lab) -> ReportFacts:
    return gather(lab.history().events)


def test_a_rerun_is_told_with_what_came_of_it_and_every_attempt_is_charged(made: Lab) -> None:
    facts = told(made)
    first, *_ = facts.details.reruns
    assert (first.by, first.step, first.key) == ("Ada", "launch", "l06")
    assert first.again[0] == "attempt l06#2 (ok)"
    row = next(r for r in facts.rows if r.id == "l06")
    assert (row.outcome, row.num_attempts, row.new_leader) == ("ok", 2, True)
    assert row.gpu_hours == pytest.approx(sum(s.gpu_hours for s in made.history().settlements() if s.launch_id == "l06"))
    assert facts.leader is not None
    assert facts.leader.id == "l06"
    assert "a <neighbour> used the memory" in Page(html.render(facts)).words
    assert "neighbour" in markdown.render(facts)


def test_the_curve_only_goes_on_and_up_after_a_rerun(tmp_path: Path) -> None:
    # both lead in the order of decisions, but the first was charged last
    facts = told(run_again(tmp_path, Row(match={"tensor_model_parallel_size": 1}, step_s=0.3)))
    assert [r.id for r in facts.rows if r.new_leader] == ["l06", "l07"]
    (path,) = re.findall(r'class="best" d="([^"]*)"', curve(facts))
    across = [float(x) for x in re.findall(r"[MH]([\d.]+)", path)]
    heights = [float(y) for y in re.findall(r"V([\d.]+)", path)]
    assert across == sorted(across)
    assert heights == sorted(heights, reverse=True)  # up the page is a smaller number


def test_the_queries_see_what_holds_after_a_rerun(made: Lab) -> None:
    facts, events = told(made), made.history().events
    launches = {row[0]: row for row in answers(facts, events, queries.launches(facts))}
    assert launches["l06"][3] == "ok"
    assert {k: row[-1] for k, row in launches.items()} == {
        r.id: pytest.approx(r.gpu_hours * facts.units.per_hour) for r in facts.rows if r.id.startswith("l")
    }
    total = {row[0]: row[2] for row in answers(facts, events, queries.spend(facts))}["total"]
    assert total == pytest.approx(facts.total_gpu_hours * facts.units.per_hour)
    assert {row[2] for row in answers(facts, events, queries.people())} >= {"Ada"}


def test_every_word_a_person_can_say_has_words_on_the_page(tmp_path: Path) -> None:
    lab = Lab(tmp_path, [FAST, LAYOUT_ROW, REST])
    play(lab.kit(), campaign(MICRO))
    pen = MemoryLedger(lab.store, now=lab.clock.now)
    for n, act in enumerate(typing.get_args(Act)):
        pen.append(ID, "directive", f"d{n}", Directive(act=act, by="Bob", lever="layout", gpu_hours=1.0))
    said = [w.said for w in told(lab).details.words]
    assert len(said) == len(typing.get_args(Act))
    assert all(" " in words for words in said), "an act is told in words"
