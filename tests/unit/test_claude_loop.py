"""The tool-use loop of the proposer `claude`: one move an ask, whatever the model says and the server answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from claude_lab import MICRO, STOP, born, heard, laboratory, last_heard, move
from lab import ID, begin, play
from messages_server import KEY, Failure, MessagesServer, say, scripted, serving, use

from attuner.core.errors import Transient, UserError
from attuner.core.events import History
from attuner.core.message import Prompt
from attuner.core.search import Hypothesis, Stop
from attuner.policy import dollars
from attuner.proposers.claude import conversation, proposer
from attuner.proposers.claude.proposer import Claude
from attuner.steps.hypothesize import hypothesize


def asked(folder: Path, server: MessagesServer, **spec: Any) -> tuple[Hypothesis | Stop, History]:
    """The first move of a calibrated campaign."""
    lab = laboratory(folder)
    kit = lab.kit()
    begin(kit, born(server, **spec))
    return hypothesize(kit, ID, "h01"), lab.history()


def test_a_campaign_is_tuned_and_every_call_is_on_record_with_its_price(tmp_path: Path) -> None:
    script = scripted([use("query_ledger", sql="SELECT id FROM launches"), use("levers")], [MICRO], [STOP])
    with serving(script) as server:
        lab = laboratory(tmp_path)
        shipment = play(lab.kit(), born(server))
    history = lab.history()
    assert shipment.gain == pytest.approx(1.0)
    assert history.stop() == Stop(reason="nothing is left", evidence=["the band is 3%"])
    made = dollars.calls(history)
    assert [m.number for m, _ in made] == [1, 2, 3]
    assert [m.hypothesis for m, _ in made] == ["h01", "h01", "h02"]
    for (message, reply), billed in zip(made, server.billed, strict=True):
        assert reply is not None
        assert reply.usage.data() == {
            "input_tokens": billed["input_tokens"],
            "output_tokens": billed["output_tokens"],
            "cache_write_tokens": billed["cache_creation_input_tokens"],
            "cache_read_tokens": billed["cache_read_input_tokens"],
        }
        usd = billed["input_tokens"] * 4 + billed["output_tokens"] * 20
        usd += billed["cache_creation_input_tokens"] * 5 + billed["cache_read_input_tokens"] * 0.2
        assert reply.usd == pytest.approx(usd / 1e6)
        assert reply.usd < message.bound_usd
    assert server.refused == []
    prompt = history.find("prompt", made[0][0].prompt, Prompt)
    assert prompt is not None
    assert prompt.system == [b["text"] for b in server.calls[0]["system"]]
    assert [t["name"] for t in prompt.tools] == [t["name"] for t in server.calls[0]["tools"]]
    assert {m.prompt for m, _ in made} == {made[0][0].prompt}
    assert "+100.0% over the leader of then, admit; the new leader" in last_heard(server)


def test_the_prompt_is_a_growing_prefix_that_the_cache_holds(tmp_path: Path) -> None:
    script = scripted([use("levers")], [use("levers", group="layout")], [MICRO], [STOP])
    with serving(script) as server:
        play(laboratory(tmp_path).kit(), born(server))
    for before, after in zip(server.billed, server.billed[1:], strict=False):
        assert after["cache_read_input_tokens"] == before["cache_read_input_tokens"] + before["cache_creation_input_tokens"]
    assert server.billed[-1]["cache_read_input_tokens"] > 5 * server.billed[-1]["input_tokens"]
    assert "cache_control" in server.calls[0]["tools"][-1]
    assert "cache_control" in server.calls[0]["system"][-1]


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (use("submit_hypothesis", parent="leader", group="open"), "title: Field required"),
        (move("open"), "arguments, env: both are empty"),
        (move("open", {"a": {"b": 1}}), "arguments.a"),
        (move("open", {"a": 1}, predicted_error=-1), "predicted_error: Input should be greater than or equal to 0"),
        (move("open", {"a": 1}, budget=9), "budget: Extra inputs are not permitted"),
        (move("open", {"a": 1}, title=""), "title: say it"),
        (move("open", {"a": 1}, citations=[{"file": "x", "line": 0, "mentions": "a"}]), "citations.0.line"),
        (use("submit_stop", reason="tired", evidence=[]), "a stop says why"),
        (use("write_file", path="rules/LOCK", text="x"), "there is no such tool here"),
        (use("read_source", file="x.py"), "there is no such tool here"),
        (use("query_ledger", sql="DROP TABLE events"), "one SELECT, and nothing else"),
        (use("query_ledger"), "query_ledger: 'sql'"),
        (use("ask_person", question="May I?"), "question, default: both are needed"),
        (use("breakdown", launch="l99"), "l99: no such launch"),
        (use("dry_run", parent="leader", group="micro-batch", arguments={"lr": 1}), "lr is not part of lever group micro-batch"),
        (say("I think we should wait."), "Use a tool"),
    ],
)
def test_what_is_malformed_is_told_to_the_model_and_recorded_as_no_move(tmp_path: Path, wrong: Any, told: str) -> None:
    with serving(scripted([wrong], [MICRO])) as server:
        found, history = asked(tmp_path, server)
    assert isinstance(found, Hypothesis)
    assert found.arguments == {"micro_batch_size": 4}
    assert told in last_heard(server)
    assert [h.id for h in history.hypotheses()] == ["h01"]
    assert server.refused == []


def test_two_moves_in_one_answer_are_none(tmp_path: Path) -> None:
    with serving(scripted([MICRO, use("levers"), STOP], [STOP])) as server:
        found, history = asked(tmp_path, server)
    assert isinstance(found, Stop)
    assert last_heard(server).count("One move at a time") == 3
    assert history.hypotheses() == []


def test_what_is_asked_beside_a_move_still_gets_a_result(tmp_path: Path) -> None:
    with serving(scripted([use("levers"), MICRO], [STOP])) as server:
        play(laboratory(tmp_path).kit(), born(server))
    assert server.refused == []


def test_a_model_that_makes_no_move_ends_the_search_after_a_bounded_number_of_answers(tmp_path: Path) -> None:
    with serving(lambda _: [say("hm")]) as server:
        found, _ = asked(tmp_path, server)
    assert found == Stop(reason="the model made no move", evidence=["24 answers to h01, none of them a valid move"])
    assert len(server.calls) == proposer.MAX_TURNS


def test_an_answer_that_was_cut_off_is_not_acted_on(tmp_path: Path) -> None:
    with serving(scripted([MICRO], [STOP]), stop_reason="max_tokens") as server:
        found, history = asked(tmp_path, server)
    assert isinstance(found, Stop)
    assert found.reason == "the model made no move"
    assert "cut off at its limit" in last_heard(server)
    assert history.hypotheses() == []


def test_a_model_that_refuses_ends_the_search(tmp_path: Path) -> None:
    with serving(scripted([say("I won't.")]), stop_reason="refusal") as server:
        found, _ = asked(tmp_path, server)
    assert found == Stop(reason="the model refused to go on", evidence=["I won't."])


def test_a_conversation_that_outgrew_the_model_ends_the_search(tmp_path: Path) -> None:
    with serving(scripted([say("…")]), stop_reason="model_context_window_exceeded") as server:
        found, _ = asked(tmp_path, server)
    assert isinstance(found, Stop)
    assert found.reason == "the conversation outgrew the model's window"
    assert len(server.calls) == 1


def test_what_the_model_thought_goes_back_as_it_came(tmp_path: Path) -> None:
    """Thinking is signed, and bound to its conversation: another byte in it would be refused."""
    thought = {"type": "thinking", "thinking": "", "signature": "EqQBCkYIBRgCKkA="}
    unknown = {"type": "redacted_thinking", "data": "EmwKAhgBEgy3va3pzix"}
    with serving(scripted([thought, unknown, use("levers")], [STOP])) as server:
        found, _ = asked(tmp_path, server)
    assert isinstance(found, Stop)
    assert server.calls[1]["messages"][1]["content"][:2] == [thought, unknown]


def test_an_empty_answer_is_asked_again(tmp_path: Path) -> None:
    answers = iter([[], [STOP]])
    with serving(lambda _: next(answers)) as server:
        found, _ = asked(tmp_path, server)
    assert isinstance(found, Stop)
    assert server.refused == []


def test_wanting_a_person_takes_the_default_and_records_the_assumption(tmp_path: Path) -> None:
    ask = use("ask_person", question="May I use eight ranks?", default="no, two")
    with serving(scripted([ask], [MICRO], [STOP])) as server:
        lab = laboratory(tmp_path)
        play(lab.kit(), born(server))
    first = lab.history().hypotheses()[0]
    assert first.assumptions == ["May I use eight ranks? → no, two"]
    assert "Your default is taken and recorded as an assumption: no, two" in heard(server, 1)


def test_a_stop_names_what_was_assumed(tmp_path: Path) -> None:
    with serving(scripted([use("ask_person", question="Go on?", default="no")], [STOP])) as server:
        found, _ = asked(tmp_path, server)
    assert isinstance(found, Stop)
    assert found.evidence == ["the band is 3%", "assumed: Go on? → no"]


def test_passing_failures_are_retried_by_the_client_and_cost_nothing(tmp_path: Path) -> None:
    failures = [Failure(529, "overloaded_error"), Failure(500), Failure(429, "rate_limit_error")]
    with serving(scripted([STOP]), failures=failures) as server:
        found, history = asked(tmp_path, server)
    assert isinstance(found, Stop)
    assert [r.status for _, r in dollars.calls(history) if r] == ["answered"]


def test_a_server_that_stays_busy_is_transient_and_the_same_move_may_be_asked_again(tmp_path: Path) -> None:
    with serving(scripted([STOP]), failures=[Failure(529, "overloaded_error", "busy")] * 5) as server:
        lab = laboratory(tmp_path)
        kit = lab.kit()
        begin(kit, born(server))
        with pytest.raises(Transient, match="the server answers 529: busy"):
            hypothesize(kit, ID, "h01")
        failed = dollars.calls(lab.history())
        assert [(r.status, r.usd, r.detail) for _, r in failed if r] == [("failed", 0.0, "529: busy")]
        assert isinstance(hypothesize(kit, ID, "h01"), Stop)
    assert [m.number for m, _ in dollars.calls(lab.history())] == [1, 2]
    assert server.refused == []


@pytest.mark.parametrize("status", [400, 403, 404, 413])
def test_a_call_that_is_refused_is_the_users_error_in_one_line(tmp_path: Path, status: int) -> None:
    failures = [Failure(status, message="your account\nis no more")]
    with serving(scripted([STOP]), failures=failures) as server, pytest.raises(UserError) as caught:
        asked(tmp_path, server)
    assert str(caught.value) == f"claude: the server refuses the call, {status}: your account is no more"


def test_a_wrong_key_is_said_without_the_key(tmp_path: Path) -> None:
    with serving(scripted([STOP]), key="another") as server, pytest.raises(UserError) as caught:
        asked(tmp_path, server)
    assert "401: invalid key" in str(caught.value)
    assert KEY not in str(caught.value)


@pytest.mark.slow
def test_nobody_at_the_address_is_transient_and_costs_nothing(tmp_path: Path) -> None:
    with serving(scripted([STOP]), counts=False) as server:
        pass
    lab = laboratory(tmp_path)
    kit = lab.kit()
    begin(kit, born(server))
    with pytest.raises(Transient, match="no contact with the server"):
        hypothesize(kit, ID, "h01")
    assert dollars.spent_usd(lab.history()) == 0.0


def test_without_a_count_of_the_server_every_byte_counts_as_a_token(tmp_path: Path) -> None:
    with serving(scripted([STOP]), counts=False) as server:
        _, history = asked(tmp_path, server)
    message, reply = dollars.calls(history)[0]
    assert reply is not None
    assert message.input_tokens > 3.5 * reply.usage.prompt_tokens()


def test_a_long_conversation_is_begun_anew_with_what_happened_in_short(tmp_path: Path) -> None:
    long = [use("query_ledger", sql="SELECT repeat('x', 2000) FROM range(6)") for _ in range(40)]
    turns = iter([long, [MICRO], [STOP]])
    with serving(lambda _: next(turns)) as server:
        lab = laboratory(tmp_path)
        play(lab.kit(), born(server))
    made = dollars.calls(lab.history())
    assert [m.thread for m, _ in made] == ["main", "main", "main.2"]
    before = made[1][1]
    assert before is not None
    assert before.usage.prompt_tokens() > conversation.LONG_TOKENS
    assert len(server.calls[2]["messages"]) == 1
    assert "h01 on l01, micro-batch" in heard(server)
    assert server.refused == []


def test_without_a_desk_or_a_key_nothing_is_asked(tmp_path: Path) -> None:
    with serving(scripted([STOP])) as server:
        lab = laboratory(tmp_path)
        lab.proposer = Claude(key="")
        kit = lab.kit()
        begin(kit, born(server))
        with pytest.raises(UserError, match="no ANTHROPIC_API_KEY was given"):
            hypothesize(kit, ID, "h01")
    assert server.calls == []
