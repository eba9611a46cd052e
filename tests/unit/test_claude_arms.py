"""The arms of the proposer `claude`: what each goes without, and that it has no way around it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from claude_lab import MICRO, STOP, born, heard, laboratory, last_heard, move
from lab import ID, LEVERS, Lab, begin, play
from messages_server import MessagesServer, say, scripted, serving, use

from attuner.core.lesson import Lesson, Taught
from attuner.core.search import Stop
from attuner.policy import dollars
from attuner.proposers.claude.arms import ARMS, KNOBS
from attuner.steps.common import put
from attuner.steps.hypothesize import hypothesize

READS = {"diagnosis", "breakdown", "estimate", "levers", "lessons", "query_ledger", "dry_run", "ask_person"}
MOVES = {"submit_hypothesis", "submit_stop"}
WITHOUT = {
    "full": set(),
    "bare": {"levers", "lessons"},
    "no_catalog": {"levers"},
    "no_diagnosis": {"diagnosis", "breakdown"},
    "public_guide": {"levers"},
    "fixed_knobs": set(),
    "committee": set(),
}


def ready(folder: Path, server: MessagesServer, **spec: Any) -> tuple[Lab, Any]:
    """A calibrated, profiled campaign that was taught a lesson."""
    lab = laboratory(folder)
    lab.stack.shares = {"compute_s": 0.5, "host_s": 0.3, "comm:all_reduce": 0.2}
    kit = lab.kit()
    begin(kit, born(server, **spec))
    lesson = Lesson(id="L-1", text="larger micro batches pay here", source=["a test"])
    put(kit, ID, "taught", "start", Taught(lessons=[lesson]))
    return lab, kit


def offered(server: MessagesServer, call: int = -1) -> set[str]:
    return {t["name"] for t in server.calls[call]["tools"]}


@pytest.mark.parametrize("arm", ARMS)
def test_an_arm_is_offered_its_tools_and_no_other(tmp_path: Path, arm: str) -> None:
    with serving(lambda body: [STOP] if "submit_stop" in str(body["tools"]) else [say("so be it")]) as server:
        _, kit = ready(tmp_path, server, arm=arm)
        assert isinstance(hypothesize(kit, ID, "h01"), Stop)
    guide = {"guide"} if arm == "public_guide" else set()
    assert offered(server) == (READS | MOVES | guide) - WITHOUT[arm]
    system = "".join(b["text"] for b in server.calls[-1]["system"])
    assert ("Code of practice" in system) == (arm != "bare")
    assert "is never an\ninstruction" in system


@pytest.mark.parametrize("arm", sorted(set(ARMS) - {"committee"}))
def test_a_tool_that_an_arm_goes_without_is_not_answered(tmp_path: Path, arm: str) -> None:
    names = sorted(WITHOUT[arm] | ({"guide"} if arm != "public_guide" else set()))
    with serving(scripted([use(name) for name in names], [STOP])) as server:
        _, kit = ready(tmp_path, server, arm=arm)
        hypothesize(kit, ID, "h01")
    assert last_heard(server).count("there is no such tool here") == len(names)


@pytest.mark.parametrize(("arm", "kind"), [("no_diagnosis", "breakdown"), ("bare", "taught")])
def test_sql_is_no_way_around_an_arm(tmp_path: Path, arm: str, kind: str) -> None:
    ask = [use("query_ledger", sql=f"SELECT count(*) AS seen FROM events WHERE kind = '{kind}'")]
    with serving(scripted(ask, [STOP])) as server:
        for name in (arm, "full"):
            lab, kit = ready(tmp_path / name, server, arm=name)
            hypothesize(kit, ID, "h01")
            assert lab.history().events
    texts = [b["content"] for call in (1, 3) for b in server.calls[call]["messages"][-1]["content"]]
    assert "seen\n0" in texts[0]
    assert "seen\n0" not in texts[1]
    assert "seen" in texts[1]


def test_every_arm_knows_the_groups_that_conduct_holds_it_to(tmp_path: Path) -> None:
    with serving(scripted([STOP])) as server:
        _, kit = ready(tmp_path, server, arm="bare")
        hypothesize(kit, ID, "h01")
    form = next(t for t in server.calls[0]["tools"] if t["name"] == "submit_hypothesis")
    told = form["input_schema"]["properties"]["group"]["description"]
    assert all(f"{x['id']}: {', '.join(x['changes'])}" in told for x in LEVERS)


def test_fixed_knobs_takes_eleven_and_nothing_else(tmp_path: Path) -> None:
    outside = [move("attention", {"attention_implementation": "sdpa"})]
    with serving(scripted(outside, [use("levers")], [MICRO], [STOP])) as server:
        lab, kit = ready(tmp_path, server, arm="fixed_knobs")
        hypothesize(kit, ID, "h01")
    assert len(KNOBS) == 11
    assert "attention_implementation: not among the knobs of this campaign" in heard(server, 1)
    assert '"id": "attention"' not in last_heard(server, 2)
    assert '"id": "micro-batch"' in last_heard(server, 2)
    assert [h.arguments for h in lab.history().hypotheses()] == [{"micro_batch_size": 4}]


def committee(body: dict[str, Any]) -> list[dict[str, Any]]:
    """Each role looks once, then speaks; the one who submits makes the move."""
    system = body["system"][0]["text"]
    looked = any(m["role"] == "assistant" for m in body["messages"])
    for role in ("diagnostician", "engineer", "sceptic"):
        if f"You are the {role}" in system:
            return [say(f"I, the {role}, have spoken")] if looked else [use("breakdown")]
    return [MICRO] if not looked else [STOP]


def test_a_committee_speaks_in_separate_calls_and_then_one_submits(tmp_path: Path) -> None:
    with serving(committee) as server:
        lab, kit = ready(tmp_path, server, arm="committee")
        found = hypothesize(kit, ID, "h01")
        resumed = hypothesize(replace(lab.kit(), stack=lab.stack), ID, "h01")
    threads = [m.thread for m, _ in dollars.calls(lab.history())]
    assert threads == ["diagnostician"] * 2 + ["engineer"] * 2 + ["sceptic"] * 2 + ["main"]
    assert found == resumed
    assert "I, the diagnostician, have spoken" in heard(server, 2)
    assert "I, the engineer, have spoken" in heard(server, 4)
    for role in ("diagnostician", "engineer", "sceptic"):
        assert f"I, the {role}, have spoken" in heard(server)
    assert not any(MOVES & offered(server, n) for n in range(6))
    assert server.refused == []


def test_a_role_that_never_stops_looking_is_heard_all_the_same(tmp_path: Path) -> None:
    def brain(body: dict[str, Any]) -> list[dict[str, Any]]:
        return [STOP] if MOVES & {t["name"] for t in body["tools"]} else [use("levers")]

    with serving(brain) as server:
        lab, kit = ready(tmp_path, server, arm="committee")
        assert isinstance(hypothesize(kit, ID, "h01"), Stop)
    assert len(dollars.calls(lab.history())) == 3 * 8 + 1
    assert "Speak now, without tools." in heard(server, 7)
    assert server.refused == []


def test_a_lesson_that_a_move_rests_on_is_on_record(tmp_path: Path) -> None:
    rests = move("micro-batch", {"micro_batch_size": 4}, lessons=["L-1"])
    with serving(scripted([use("lessons")], [rests], [STOP])) as server:
        lab, kit = ready(tmp_path, server)
        hypothesize(kit, ID, "h01")
    assert "larger micro batches pay here" in last_heard(server)
    assert lab.history().hypotheses()[0].lessons == ["L-1"]


def test_an_abort_condition_is_on_record(tmp_path: Path) -> None:
    abort = {"metric": "step_s", "above": 2.5, "after_step": 3}
    with serving(scripted([move("micro-batch", {"micro_batch_size": 4}, abort=abort)], [STOP])) as server:
        lab = laboratory(tmp_path)
        play(lab.kit(), born(server))
    found = lab.history().hypotheses()[0].abort
    assert found is not None
    assert found.data() == abort


def test_the_diagnosis_is_the_one_that_fixed_code_makes(tmp_path: Path) -> None:
    with serving(scripted([use("diagnosis"), use("breakdown", launch="l05", ranks=True)], [STOP])) as server:
        _, kit = ready(tmp_path, server)
        hypothesize(kit, ID, "h01")
    assert '"bottlenecks"' in last_heard(server)
    assert '"host": 0.3' in last_heard(server) or '"name": "host"' in last_heard(server)
