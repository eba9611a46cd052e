"""What a crash costs the proposer `claude`: killed before any record of a search, it pays for at most one call twice."""

from __future__ import annotations

from pathlib import Path

import pytest
from claude_lab import MICRO, STOP, born, laboratory, move
from lab import ID, PowerCut, begin, search
from messages_server import scripted, serving, use

from attuner.core.search import Stop
from attuner.policy import dollars
from attuner.steps.hypothesize import hypothesize

SCRIPT = scripted([use("levers")], [use("ask_person", question="Go?", default="yes")], [MICRO], [move("open", {"lr": 1})], [STOP])
SEARCH = ("message", "reply", "hypothesis", "verdict", "stop", "launch", "trial", "score")


@pytest.mark.slow
def test_killed_before_any_record_of_the_search_it_goes_on_and_repeats_no_call_that_was_answered(tmp_path: Path) -> None:
    with serving(SCRIPT) as whole:
        lab = laboratory(tmp_path / "whole")
        kit = lab.kit()
        begin(kit, born(whole))
        before = len(lab.store.rows)
        search(kit)
    expected = [(e.kind, e.key) for e in lab.history().events if e.kind in SEARCH]
    records = len(lab.store.rows) - before
    in_flight = 0
    for lives in range(records):
        with serving(SCRIPT) as server:
            lab = laboratory(tmp_path / str(lives))
            begin(lab.kit(), born(server))
            with pytest.raises(PowerCut):
                search(lab.kit(lives=lives))
            cut = lab.history()
            lost = [m for m, reply in dollars.calls(cut) if reply is None]
            search(lab.kit())
            history = lab.history()
        made = dollars.calls(history)
        assert len(lost) <= 1
        assert len(server.billed) == len(whole.billed) + len(lost)
        assert [m.number for m, reply in made if reply is None] == [m.number for m in lost]
        assert dollars.spent_usd(history) == pytest.approx(sum(r.usd for _, r in made if r) + sum(m.bound_usd for m in lost))
        kinds = [(e.kind, e.key) for e in history.events if e.kind in SEARCH and e.kind not in ("message", "reply")]
        assert kinds == [x for x in expected if x[0] not in ("message", "reply")]
        assert history.hypotheses()[0].assumptions == ["Go? → yes"]
        assert isinstance(history.stop(), Stop)
        in_flight += len(lost)
    assert in_flight == len(whole.billed)  # each call was in flight at one of the cuts


def test_an_answer_on_record_is_acted_on_without_the_server(tmp_path: Path) -> None:
    with serving(scripted([MICRO])) as server:
        lab = laboratory(tmp_path)
        begin(lab.kit(), born(server))
        with pytest.raises(PowerCut, match="before hypothesis h01"):
            hypothesize(lab.kit(lives=3), ID, "h01")  # the prompt, the call, its reply
        calls = len(server.calls)
    found = hypothesize(lab.kit(), ID, "h01")  # the server is gone
    assert calls == 1
    assert not isinstance(found, Stop)
    assert found.arguments == {"micro_batch_size": 4}


def test_the_dollar_limit_is_held_before_each_call(tmp_path: Path) -> None:
    with serving(lambda _: [use("levers")]) as server:
        lab = laboratory(tmp_path)
        kit = lab.kit()
        begin(kit, born(server, max_usd=0.40))
        found = hypothesize(kit, ID, "h01")
    history = lab.history()
    spent = dollars.spent_usd(history)
    assert isinstance(found, Stop)
    assert found.reason == "the dollar limit is reached"
    assert found.evidence[0].startswith(f"dollar limit: {spent:.4f} of 0.4 US dollars are spent, the next call may cost 0.3")
    assert 0 < len(server.billed) == len(dollars.calls(history)) < 24
    assert spent < 0.40


def test_a_limit_below_one_call_makes_none(tmp_path: Path) -> None:
    with serving(scripted([STOP])) as server:
        lab = laboratory(tmp_path)
        kit = lab.kit()
        begin(kit, born(server, max_usd=0.01))
        found = hypothesize(kit, ID, "h01")
    assert isinstance(found, Stop)
    assert server.calls == []
    assert dollars.calls(lab.history()) == []


def test_a_call_in_flight_at_a_crash_counts_as_its_bound_against_the_limit(tmp_path: Path) -> None:
    with serving(scripted([STOP])) as server:
        lab = laboratory(tmp_path)
        begin(lab.kit(), born(server, max_usd=0.5))
        with pytest.raises(PowerCut, match="before reply"):
            hypothesize(lab.kit(lives=2), ID, "h01")
        found = hypothesize(lab.kit(), ID, "h01")
    message, reply = dollars.calls(lab.history())[0]
    assert reply is None
    assert isinstance(found, Stop)
    assert found.reason == "the dollar limit is reached"
    assert f"{message.bound_usd:.4f} of 0.5 US dollars are spent" in found.evidence[0]
    assert len(server.billed) == 1


def test_the_key_is_in_no_record(tmp_path: Path) -> None:
    with serving(SCRIPT) as server:
        lab = laboratory(tmp_path)
        kit = lab.kit()
        begin(kit, born(server))
        search(kit)
    assert server.key not in "".join(row.record for row in lab.store.rows)
