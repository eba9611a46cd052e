"""What a model knows of lessons: neutral questions and comparison by fixed code, asked by the real client of a local server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from lab import ROOT
from lessons_lab import lesson
from messages_server import KEY, Block, Brain, Failure, MessagesServer, say, serving, use

from attuner.cli.main import main
from attuner.config import load_lessons
from attuner.core.events import History
from attuner.core.lesson import Belief, Lesson
from attuner.ledgers.duckdb_file import DuckdbLedger
from attuner.lessonfiles import KNOWN, as_yaml, lesson_files, load_known, write_known
from attuner.policy import dollars
from attuner.policy.lessons_known import belief, compare, holds, judged, question
from attuner.steps.lessons_known import KNOWLEDGE

MODEL = "claude-opus-5-5"
CLAIM = {"outcome": "helps", "sets": {"micro_batch_size": 4}, "before": {"micro_batch_size": 1}}
HELPS = lesson(
    id="micro", text="The secret is in the sauce.", when={"micro_batch_size": 4, "recompute_granularity": "full"}, claim=CLAIM
)
FAILS = lesson(id="wide", effect="fails", levers=["layout"], when={"tensor_model_parallel_size": 1}, scope={"models": ["moe"]})
SILENT = lesson(id="silent", effect="condition", when={})
ASKED = ("micro_batch_size", "tensor_model_parallel_size")


# ---------------------------------------------------------------------------- the question


def test_a_question_names_scope_and_values_and_nothing_of_what_came_of_them() -> None:
    text = question(HELPS)
    assert text == "\n".join(
        [
            "Where it runs:",
            "- framework: a small training loop on megatron-core (fields of its TransformerConfig and optimizer configuration)",
            "",
            "The change sets:",
            "- micro_batch_size: from 1 to 4",
            "",
            "These hold before and after:",
            "- recompute_granularity: full",
            "",
            "Nothing else is changed. What happens to the training throughput, against the run before the change?",
        ]
    )
    assert "a mixture of experts" in question(FAILS)
    assert question(SILENT) == ""


@pytest.mark.parametrize("outcome", ["helps", "hurts", "ties", "fails", "refused"])
def test_a_question_is_the_same_whatever_the_lesson_says_came_of_the_move(outcome: Any) -> None:
    effect = {"ties": "condition", "refused": "fails"}.get(outcome, outcome)
    other = lesson(text="another", when=HELPS.when, effect=effect, claim={**CLAIM, "outcome": outcome}, status="tentative")
    assert question(other) == question(HELPS)


def test_of_the_starter_set_no_text_of_a_lesson_is_in_its_question() -> None:
    every = [x for stack in ("mcore", "megatron") for x in load_lessons(ROOT / "configs" / "lessons", stack)]
    asked = [x for x in every if question(x)]
    assert (len(asked), len(every)) == (18, 33)  # as docs/lessons.md says
    for one in asked:
        sentences = [s.strip() for s in one.text.split(". ")]
        assert not any(s in question(one) for s in sentences)
        assert one.id not in question(one)


# ---------------------------------------------------------------------------- the comparison


@pytest.mark.parametrize(
    ("claim", "form", "wanted"),
    [
        ({}, {"outcome": "helps"}, "right"),
        ({}, {"outcome": "hurts"}, "wrong"),
        ({}, {"outcome": "ties"}, "wrong"),
        ({}, {"outcome": "unknown"}, "unknown"),
        ({"gain_low": 0.2, "gain_high": 0.4}, {"outcome": "helps", "gain_low": 0.3, "gain_high": 0.9}, "right"),
        ({"gain_low": 0.2, "gain_high": 0.4}, {"outcome": "helps", "gain_low": 0.5, "gain_high": 0.9}, "partly"),
        ({"gain_low": 0.2, "gain_high": 0.4}, {"outcome": "helps", "gain_high": 0.1}, "partly"),
        ({"gain_low": 0.2, "gain_high": 0.4}, {"outcome": "helps", "gain_low": 0.1}, "right"),
        ({"gain_low": 0.2, "gain_high": 0.4}, {"outcome": "helps"}, "partly"),
        ({"outcome": "fails", "failure": "oom.forward"}, {"outcome": "fails", "failure": "oom"}, "right"),
        ({"outcome": "fails", "failure": "oom.forward"}, {"outcome": "fails", "failure": "hang"}, "partly"),
        ({"outcome": "fails"}, {"outcome": "refused"}, "partly"),
        ({"outcome": "hurts"}, {"outcome": "fails", "failure": "oom"}, "partly"),
        ({"outcome": "ties"}, {"outcome": "ties"}, "right"),
        ({"outcome": "refused"}, {"outcome": "helps"}, "wrong"),
    ],
)
def test_an_answer_is_held_against_the_claim_by_fixed_code(claim: dict[str, Any], form: dict[str, Any], wanted: str) -> None:
    found = belief(form)
    assert found is not None
    assert compare(lesson(when=HELPS.when, claim={**CLAIM, **claim}), found) == wanted


def test_without_a_claim_a_refusal_is_a_failure_as_the_audit_of_records_reads_it() -> None:
    assert compare(FAILS, Belief(outcome="refused")) == "right"


@pytest.mark.parametrize(
    "form",
    [
        None,
        {},
        {"outcome": "great"},
        {"outcome": "helps", "gain_low": 0.4, "gain_high": 0.2},
        {"outcome": "helps", "gain_low": "a lot"},
        {"outcome": "helps", "gain_low": float("nan")},
        {"outcome": "fails", "failure": "of nerve"},
        {"outcome": "helps", "because": "I say so"},
    ],
)
def test_a_form_that_cannot_be_meant_is_no_answer(form: dict[str, Any] | None) -> None:
    assert belief(form) is None


@pytest.mark.parametrize(
    ("answers", "result"),
    [
        (["helps", "helps", "helps"], "known"),
        (["helps", "helps", None], "partly known"),
        (["helps", "hurts", "hurts"], "contradicted"),
        (["unknown", "unknown", "helps"], "not known"),
        (["helps", "unknown", "hurts"], "partly known"),
        ([None, None, None], "no answer"),
    ],
)
def test_known_is_what_every_answer_gets_right(answers: list[Any], result: str) -> None:
    found = judged(HELPS, MODEL, [Belief(outcome=x) if x else None for x in answers], at="2026-11-30")
    assert found.result == result
    assert holds(found, HELPS)
    assert not holds(found, HELPS.model_copy(update={"effect": "hurts"}))


# ---------------------------------------------------------------------------- the verb, real client and real server


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ATTUNER_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
    made = tmp_path / "project"
    (made / "flows").mkdir(parents=True)
    (made / "flows" / "campaign.py").write_text("")
    (made / "rules").symlink_to(ROOT / "rules")
    folder = made / "configs" / "lessons" / "mcore"
    folder.mkdir(parents=True)
    (made / "configs" / "prices").symlink_to(ROOT / "configs" / "prices")
    (folder / "planted.yaml").write_text("".join(as_yaml(x) for x in (HELPS, FAILS, SILENT)))
    return made


def call(project: Path, server: MessagesServer, *words: str) -> int:
    return main(["--project", str(project), "lessons", "audit", "--model", MODEL, "--base-url", server.url, *words])


def told(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    return dict(json.loads(capsys.readouterr().out))


def past(project: Path) -> History:
    with DuckdbLedger(project.parent / "home" / "attuner.duckdb") as ledger:
        assert ledger.verify() == []
        return History(ledger.history(KNOWLEDGE))


def about(**forms: Any) -> Brain:
    """A model that answers by the argument it is asked about; a list is answered in turn."""
    turns: dict[str, Iterator[Any]] = {k: iter(v) for k, v in forms.items() if isinstance(v, list)}

    def brain(body: dict[str, Any]) -> list[Block]:
        text = body["messages"][0]["content"][0]["text"]
        key = next(k for k in forms if k in text)
        found = next(turns[key]) if key in turns else forms[key]
        return [found if "type" in found else use("answer", **found)]

    return brain


KNOWS = about(micro_batch_size={"outcome": "helps"}, tensor_model_parallel_size={"outcome": "fails", "failure": "oom"})


def test_a_model_that_knows_is_marked_beside_the_lesson_and_every_call_is_on_record(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = project / "configs" / "lessons"
    with serving(KNOWS) as server:
        assert call(project, server, "--json") == 0
        found = told(capsys)
        assert found["counts"] == {"known": 2, "partly known": 0, "contradicted": 0, "not known": 0, "no answer": 0}
        assert found["claim_nothing"] == ["silent"]
        assert len(server.calls) == 6
        # neither text nor catalog: one question, one form
        for body in server.calls:
            said = json.dumps(body)
            assert not any(x in said for x in ("sauce", "planted", "lever", '"micro"', '"wide"'))
            assert [t["name"] for t in body["tools"]] == ["answer"]
        # asked once: the marks hold, and nothing is paid twice
        assert call(project, server, "--json") == 0
        assert told(capsys)["lessons"] == []
        (folder / KNOWN).unlink()
        assert call(project, server, "--json") == 0
        assert told(capsys)["counts"]["known"] == 2
        assert len(server.calls) == 6
        assert call(project, server, "--again", "--answers", "1") == 0
        assert len(server.calls) == 8
    made = dollars.calls(past(project))
    assert [m.hypothesis for m, _ in made] == ["micro"] * 3 + ["wide"] * 3 + ["micro", "wide"]
    assert sum(r.usd for _, r in made[:6] if r) == pytest.approx(found["spent_usd"])
    assert found["spent_usd"] > 0
    assert KEY not in json.dumps([e.record for e in past(project).events])
    marks = load_known(folder)
    assert [(x.id, x.model, x.result) for x in marks] == [("micro", MODEL, "known"), ("wide", MODEL, "known")]
    # a mark is advice: the lesson is still read, and its file holds no lesson
    assert [x.id for x in load_lessons(folder, "mcore")] == ["micro", "wide", "silent"]
    assert KNOWN not in {f.name for f in lesson_files(folder)}
    capsys.readouterr()
    assert main(["--project", str(project), "lessons", "list"]) == 0
    assert f"known by {MODEL} {marks[0].at}" in capsys.readouterr().out


def test_what_it_does_not_know_or_gets_wrong_is_worth_keeping(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    brain = about(micro_batch_size={"outcome": "unknown"}, tensor_model_parallel_size={"outcome": "helps", "gain_low": 0.1})
    with serving(brain) as server:
        assert call(project, server) == 0
    said = capsys.readouterr().out
    assert "not known     micro: worth keeping; it claims helps; of 3 answers 3 unknown (unknown; unknown; unknown)" in said
    assert "contradicted  wide: worth keeping; it claims fails; of 3 answers 3 wrong (helps +10%; helps +10%; helps +10%)" in said
    assert "1 claim nothing" in said
    assert [x.result for x in load_known(project / "configs" / "lessons")] == ["not known", "contradicted"]


def test_garbage_is_asked_once_more_and_then_no_answer(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    turns = [say("Faster, I am sure."), {"outcome": "helps"}]
    brain = about(micro_batch_size=turns, tensor_model_parallel_size=say("hm"))
    with serving(brain) as server:
        assert call(project, server, "--json", "--answers", "1") == 0
        assert server.refused == []
    found = told(capsys)
    assert [(x["id"], x["result"]) for x in found["lessons"]] == [("micro", "known"), ("wide", "no answer")]
    assert len(server.calls) == 4


def test_an_overloaded_server_is_retried_and_one_that_stays_so_keeps_what_was_answered(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    busy = Failure(529, "overloaded_error", "busy")
    with serving(KNOWS, failures=[busy, busy]) as server:
        assert call(project, server, "--json", "--answers", "1") == 0
        assert told(capsys)["counts"]["known"] == 2
    (project / "configs" / "lessons" / KNOWN).unlink()
    lost = about(micro_batch_size={"outcome": "helps"}, tensor_model_parallel_size={"outcome": "fails"})
    with serving(lost) as server:
        brain = server.brain

        def then_busy(body: dict[str, Any]) -> list[Block]:
            server.failures.extend([busy] * 5)
            return brain(body)

        server.brain = then_busy
        assert call(project, server, "--again", "--answers", "1") == 5
        assert "the server answers 529: busy" in capsys.readouterr().err
    assert [x.id for x in load_known(project / "configs" / "lessons")] == ["micro"]
    assert [r.status for _, r in dollars.calls(past(project)) if r] == ["answered", "answered", "answered", "failed"]


def test_the_dollar_limit_stops_before_the_call_that_might_break_it(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    marks = project / "configs" / "lessons" / KNOWN
    with serving(KNOWS) as server:
        assert call(project, server, "--look", "--answers", "1") == 0
        limit = f"{max(m.bound_usd for m, _ in dollars.calls(past(project))) + 1e-6:.7f}"
        capsys.readouterr()
        assert call(project, server, "--json", "--again", "--answers", "1", "--max-usd", limit) == 0
        found = told(capsys)
        assert [x["id"] for x in found["lessons"]] == ["micro"]
        assert found["not_asked"] == ["wide"]
        assert "dollar limit" in found["stopped"]
        assert 0 < found["spent_usd"] < float(limit)
        assert [x.id for x in load_known(marks.parent)] == ["micro"]
        assert len(server.calls) == 3
        # each run has a limit of its own, and goes on where the last one ended: what is on record is not paid again
        assert call(project, server, "--json", "--answers", "1", "--max-usd", limit) == 0
        assert [x["id"] for x in told(capsys)["lessons"]] == ["wide"]
    assert len(dollars.calls(past(project))) == 3


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--max-usd", "0"], "--max-usd: 0 buys no answer"),
        (["--answers", "0"], "--answers: 0 is none"),
        (["--base-url", "https://ada:very-private@h/"], "--base-url: holds a user, a password or a key"),
        (["--model", "gpt"], "--model: gpt: its price is not known"),
    ],
)
def test_what_cannot_be_asked_is_said_in_one_line(
    project: Path, words: list[str], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(KNOWS) as server:
        assert call(project, server, *words) == 2
        assert server.calls == []
    assert line in capsys.readouterr().err


def test_without_a_key_nothing_is_asked(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("ANTHROPIC_API_KEY")
    with serving(KNOWS) as server:
        assert call(project, server) == 2
    assert "ANTHROPIC_API_KEY: is not set" in capsys.readouterr().err


def test_marks_of_several_models_stand_side_by_side_and_only_looking_writes_none(tmp_path: Path) -> None:
    def mark(model: str, outcome: Any, given: Lesson = HELPS) -> Any:
        return judged(given, model, [Belief(outcome=outcome)], at="2026-11-30")

    write_known(tmp_path, [mark("a", "helps"), mark("b", "unknown")])
    write_known(tmp_path, [mark("a", "hurts")])
    assert [(x.model, x.result) for x in load_known(tmp_path)] == [("a", "contradicted"), ("b", "not known")]


def test_only_looking_marks_nothing_and_pays_once(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with serving(KNOWS) as server:
        assert call(project, server, "--look", "--answers", "1") == 0
        assert "marks in no file" in capsys.readouterr().out
        assert load_known(project / "configs" / "lessons") == []
        assert call(project, server, "--answers", "1") == 0
        assert len(server.calls) == 2
