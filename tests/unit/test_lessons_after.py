"""What a shipped campaign leaves: summary and candidate lessons from its records, worded by its model if it has one."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from claude_lab import MICRO as MOVE
from claude_lab import STOP, born, laboratory
from lab import ID, LAYOUT, MICRO, Lab, PowerCut, begin, campaign, finish, play, search
from lessons_lab import FULL
from messages_server import Block, Brain, Failure, say, serving, use

from attuner.core.events import History
from attuner.core.lesson import Drafted
from attuner.launchers.replay import Row
from attuner.lessonfiles import read_lessons
from attuner.policy import dollars
from attuner.policy.lessons import live
from attuner.policy.tried import tried
from attuner.ports import Kit
from attuner.steps import lessons_write
from attuner.steps.lessons_write import draft, page

WORDS = "Fewer launches of small kernels leave the device less idle."


def shipped(folder: Path) -> tuple[Lab, Kit]:
    lab = Lab(folder, FULL)
    kit = lab.kit()
    play(kit, campaign(LAYOUT, MICRO))
    return lab, kit


def test_a_shipped_campaign_leaves_its_summary_and_a_draft_of_each_thing_it_showed(tmp_path: Path) -> None:
    lab, kit = shipped(tmp_path)
    text = page(kit, ID)
    found = draft(kit, ID)
    assert [(x.levers, x.effect, x.status, x.drafted) for x in found.lessons] == [
        (["layout"], "fails", "draft", "records"),
        (["micro-batch"], "helps", "draft", "records"),
    ]
    (file,) = (tmp_path / name for name in found.files)
    assert read_lessons(file) == found.lessons
    assert file.parent == tmp_path / "lessons" / "mcore"
    assert not any(live(x) for x in found.lessons)  # a person has yet to accept them
    assert (tmp_path / "lessons" / "mcore" / f"{ID}.md").read_text() == text
    assert "shipped +100.0%: `micro_batch_size` 4" in text
    assert "1. layout: tensor_model_parallel_size=1, predicted +0.0%, oom" in text
    assert all(f"**{x.id}**" in text and x.evidence[0] in text for x in found.lessons)
    # again is the same, and on record once
    before = len(lab.history().events)
    assert page(kit, ID) == text
    assert draft(kit, ID) == found
    assert len(lab.history().events) == before
    assert len(list((tmp_path / "lessons" / "mcore").iterdir())) == 2


def test_a_crash_before_the_record_drafts_nothing_twice(tmp_path: Path) -> None:
    lab, _ = shipped(tmp_path)
    with pytest.raises(PowerCut):
        draft(lab.kit(lives=0), ID)
    assert lab.history().find("drafted", "final", Drafted) is None
    found = draft(lab.kit(), ID)
    assert len(found.lessons) == 2
    assert len(found.files) == 1


def test_what_is_a_lesson_already_is_not_drafted_again(tmp_path: Path) -> None:
    lab, _ = shipped(tmp_path)
    with pytest.raises(PowerCut):
        draft(lab.kit(lives=0), ID)
    (tmp_path / "project").mkdir()
    (tmp_path / "lessons").rename(tmp_path / "project" / "lessons")
    found = draft(dataclasses.replace(lab.kit(), lessons_dir=tmp_path / "project" / "lessons"), ID)
    assert (found.lessons, found.files, found.known) == ([], [], 2)
    assert "0 drafted, 2 said already." in page(lab.kit(), ID)


def test_nothing_is_learnt_from_a_replay_table(tmp_path: Path) -> None:
    lab, kit = shipped(tmp_path)
    events = lab.history().events
    (birth,) = [e for e in events if e.kind == "campaign"]
    record = json.loads(json.dumps(birth.record))
    record["stack"]["name"] = record["baseline"]["stack"] = "replay"
    replayed = History([e.model_copy(update={"record": record}) if e.kind == "campaign" else e for e in events])
    assert len(tried(lab.history())) == 2
    assert tried(replayed) == []
    nothing = Lab(tmp_path / "2", [Row()])
    kit = nothing.kit()
    play(kit, campaign())
    assert "None. Nothing to learn from it: no search launch shows anything of its change." in page(kit, ID)
    assert not (tmp_path / "2" / "lessons" / "mcore").joinpath(f"{ID}-0.yaml").exists()


def test_a_secret_gets_neither_into_the_page_nor_into_a_question(tmp_path: Path) -> None:
    secret = "hf_" + "x" * 30
    with serving(worded(lambda _: WORDS)) as server:
        _, kit = searched(tmp_path, server, mechanism=f"as {secret} told")
        text = page(kit, ID)
        asked = json.dumps(server.calls[-1])
    assert "mechanism_supposed" in asked
    assert secret not in asked
    assert secret not in text


# ---------------------------------------------------------------------------- the model's words


def worded(words: Any, *, fail: bool = False) -> Brain:
    """A model that searches one move, and then words each draft by what `words` returns for its id."""

    def brain(body: dict[str, Any]) -> list[Block]:
        if [t["name"] for t in body["tools"]] == ["answer"]:
            if fail:
                return [say("It was faster.")]
            ids = [x["id"] for x in json.loads(body["messages"][0]["content"][0]["text"])]
            return [use("answer", words=[{"id": i, "words": words(i)} for i in ids])]
        done = sum(m["role"] == "assistant" for m in body["messages"])
        return [MOVE_WITH[0] if done == 0 else STOP]

    return brain


MOVE_WITH: list[Block] = [MOVE]


def searched(folder: Path, server: Any, *, mechanism: str = "fewer launches", **spec: Any) -> tuple[Lab, Kit]:
    MOVE_WITH[0] = {**MOVE, "input": {**MOVE["input"], "mechanism": mechanism}}
    lab = laboratory(folder)
    kit = lab.kit()
    begin(kit, born(server, **spec))
    search(kit)
    finish(kit)
    return lab, kit


def test_the_models_words_go_into_the_text_alone_and_say_whose_they_are(tmp_path: Path) -> None:
    with serving(worded(lambda _: WORDS)) as server:
        lab, kit = searched(tmp_path, server)
        (found,) = draft(kit, ID).lessons
        num = len(server.calls)
        page(kit, ID)
        assert len(server.calls) == num
        assert server.refused == []
    (plain,) = lessons_write.lessons_draft.drafts(tried(lab.history()))
    assert found.text == f"{plain.text} {WORDS}"
    assert found.drafted == "model"
    same = {"text": plain.text, "drafted": "records"}
    assert found.model_copy(update=same) == plain
    assert [m.hypothesis for m, _ in dollars.calls(lab.history())][-1] == "lessons"
    assert "The last words are the model's." in page(kit, ID)
    assert not live(found.model_copy(update={"status": "tentative"}))  # a person must accept it, whoever drafted it


@pytest.mark.parametrize(
    "words",
    ["", "x" * 401, "It gains 37% on any model.", "a\x00b", "It needs 1.5 GiB."],
    ids=["empty", "long", "a figure of its own", "not printable", "another figure"],
)
def test_words_that_may_not_stand_there_are_dropped(tmp_path: Path, words: str) -> None:
    with serving(worded(lambda _: words)) as server:
        _, kit = searched(tmp_path, server)
        (found,) = draft(kit, ID).lessons
    assert found.drafted == "records"


def test_words_for_what_was_not_drafted_are_dropped_and_figures_of_the_records_may_stand(tmp_path: Path) -> None:
    def brain(body: dict[str, Any]) -> list[Block]:
        given = worded(lambda _: "At micro batch 4 the band is 3.0%.")(body)
        if given[0]["name"] == "answer":
            given[0]["input"]["words"] += [{"id": "mcore-lr-helps-0", "words": WORDS}, {"id": 3}, "x"]
        return given

    with serving(brain) as server:
        _, kit = searched(tmp_path, server)
        (found,) = draft(kit, ID).lessons
    assert found.text.endswith(" At micro batch 4 the band is 3.0%.")


def test_the_fixed_wording_stands_if_the_model_says_nothing_fails_or_costs_too_much(tmp_path: Path) -> None:
    with serving(worded(None, fail=True)) as server:
        _, kit = searched(tmp_path / "1", server)
        silent = draft(kit, ID)
    assert silent.said == "the model added nothing: it filled in no form"
    with serving(worded(lambda _: WORDS)) as server:
        _, kit = searched(tmp_path / "2", server)
        server.failures.extend([Failure(529, "overloaded_error", "busy")] * 5)
        busy = draft(kit, ID)
    assert "the server answers 529: busy" in busy.said
    assert [x.drafted for x in (*silent.lessons, *busy.lessons)] == ["records", "records"]


def test_a_campaign_words_its_drafts_only_with_dollars_of_its_own_that_are_left(tmp_path: Path) -> None:
    dear = use("submit_stop", reason="nothing is left", evidence=["x" * 48_000])  # 12,000 tokens: 0.24 of the 0.45 dollars

    def brain(body: dict[str, Any]) -> list[Block]:
        return [dear if b is STOP else b for b in worded(lambda _: WORDS)(body)]

    with serving(brain) as server:
        lab, kit = searched(tmp_path, server, max_usd=0.45)
        found = draft(kit, ID)
    assert found.said.startswith("the model added nothing: dollar limit")
    assert [x.drafted for x in found.lessons] == ["records"]
    assert len(dollars.calls(lab.history())) == 2


def test_what_the_model_said_before_a_crash_is_not_paid_again(tmp_path: Path) -> None:
    with serving(worded(lambda _: WORDS)) as server:
        lab, _ = searched(tmp_path, server)
        num = len(server.calls)
        # prompt, message, reply are written; the record of the drafts isn't
        with pytest.raises(PowerCut):
            draft(lab.kit(lives=3), ID)
        assert len(server.calls) == num + 1
        for file in (tmp_path / "lessons").rglob("*.yaml"):
            file.unlink()
        (found,) = draft(lab.kit(), ID).lessons
        assert len(server.calls) == num + 1
    assert found.drafted == "model"
