"""Lessons, write side: drafts state no more than their records, a person's word is kept, and three verbs on a real ledger."""

from __future__ import annotations

import dataclasses
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from lab import ROOT
from lessons_lab import lesson, three, write_ledger

sys.path.insert(0, str(ROOT))  # flows/ and tasks/ are run from the checkout, never installed

from prefect import State

from attuner.cli.lessons_write import audit_lessons
from attuner.cli.main import main
from attuner.core.errors import UserError
from attuner.core.events import History
from attuner.core.lesson import LessonReview
from attuner.lessonfiles import as_yaml, load_audits, note_reviews, read_lessons, write_drafts
from attuner.policy import lessons as policy
from attuner.policy.conduct import SHIPPED
from attuner.policy.lessons_audit import audit
from attuner.policy.lessons_draft import drafts, said_already
from attuner.policy.tried import Tried, tried
from attuner.settings import load_settings
from flows import lessons_audit as deployed

ACCEPTED = LessonReview(by="Ada", at="2026-11-30", decision="accepted")


@pytest.fixture(scope="module")
def pasts(tmp_path_factory: pytest.TempPathFactory) -> list[History]:
    return three(tmp_path_factory.mktemp("campaigns"))


@pytest.fixture(scope="module")
def records(pasts: list[History]) -> list[Tried]:
    return [t for h in pasts for t in tried(h)]


# ---------------------------------------------------------------------------- drafts


def test_what_two_campaigns_say_alike_is_one_draft_and_what_came_otherwise_another(records: list[Tried]) -> None:
    found = drafts(records)
    assert [(x.levers, x.claim.outcome if x.claim else "", x.scope.models, len(x.evidence)) for x in found] == [
        (["layout"], "fails", ["lab"], 1),
        (["micro-batch"], "helps", ["lab"], 1),
        (["micro-batch"], "helps", ["other"], 1),
        (["recompute"], "helps", ["lab"], 1),
        (["micro-batch"], "hurts", ["lab"], 1),
    ]
    twin = dataclasses.replace(records[1], campaign=records[2].campaign)
    (same,) = [x for x in drafts([records[1], twin]) if x.effect == "helps"]
    assert same.scope.models == ["lab", "other"]
    assert same.evidence == [records[1].evidence, twin.evidence]
    assert "2 trials of 2 campaigns" in same.text


def test_a_draft_holds_its_move_its_place_and_the_arguments_that_were_searched(records: list[Tried]) -> None:
    slow = drafts(records)[-1]
    assert slow.status == "draft"
    assert slow.drafted == "records"
    assert slow.scope.data() == {
        **{"stack": "mcore", "versions": "==0.16.1", "models": ["lab"]},
        **{"hardware": ["cpu"], "gpus": "==2"},
    }
    assert slow.when == {"micro_batch_size": 4, "recompute_granularity": None, "tensor_model_parallel_size": 2}
    assert slow.text == (
        "micro_batch_size 1 → 4: -44.4% (band 3.0%); 1 trial of 1 campaign. "
        "Seen only with recompute_granularity=none, tensor_model_parallel_size=2."
    )
    assert slow.claim is not None
    assert slow.claim.before == {"micro_batch_size": 1}
    assert slow.evidence == [records[-1].evidence]
    assert drafts(records)[0].text.startswith("tensor_model_parallel_size 2 → 1: failed, oom")


def test_every_draft_stands_against_the_records_it_was_drafted_from(records: list[Tried]) -> None:
    mixed = dataclasses.replace(records[1], launch="l99", outcome="hurts", gain=-0.2)
    for known in (records, [*records, mixed]):
        for checked in audit(drafts(known), known):
            wanted = ("correct", "one campaign") if checked.lesson.claim else ("not checkable",)
            assert checked.audit.result in wanted, checked.audit.why
            assert policy.problems(checked.lesson) == []


def test_records_that_disagree_make_a_draft_that_expects_nothing(records: list[Tried]) -> None:
    other = dataclasses.replace(records[1], launch="l99", outcome="hurts", gain=-0.2)
    (found,) = drafts([records[1], other])
    assert found.effect == "condition"
    assert found.claim is None
    assert "went either way: +100.0% (band 3.0%)" in found.text
    assert found.evidence == [records[1].evidence, other.evidence]


def test_values_between_which_another_outcome_was_seen_are_not_spanned(records: list[Tried]) -> None:
    def at(launch: str, outcome: Any, **final: Any) -> Tried:
        one = dataclasses.replace(records[1], launch=launch, outcome=outcome, gain={"helps": 0.3, "hurts": -0.3}[outcome])
        return dataclasses.replace(one, final={**one.final, **final}, searched=frozenset({"micro_batch_size", *final}))

    apart = [at("l07", "helps", a=1, b=1), at("l08", "helps", a=2, b=2), at("l09", "hurts", a=1, b=2)]
    whens = [(x.effect, x.when["a"], x.when["b"]) for x in drafts(apart)]
    assert whens == [("helps", 1, 1), ("helps", 2, 2), ("hurts", 1, 2)]
    spanned = drafts(apart[:2])
    assert [(x.when["a"], x.when["b"]) for x in spanned] == [([1, 2], [1, 2])]


def test_the_same_records_make_the_same_drafts_in_any_order(records: list[Tried]) -> None:
    assert {x.id for x in drafts(records)} == {x.id for x in drafts(records[::-1])}
    assert drafts([]) == []


def test_what_was_rejected_is_drafted_again_only_with_a_trial_more(records: list[Tried]) -> None:
    (first,) = drafts(records[1:2])
    known = [first.model_copy(update={"status": "rejected", "id": "renamed", "when": {}})]
    assert said_already(first, known)
    again = dataclasses.replace(records[1], launch="l99")
    (more,) = drafts([records[1], again])
    assert not said_already(more, known)
    assert not said_already(drafts(records[2:3])[0], known)


def test_a_refused_or_early_ended_trial_is_told_as_that(records: list[Tried]) -> None:
    refused = dataclasses.replace(records[1], outcome="refused", rules=("FWD-LOSS",))
    (found,) = drafts([refused])
    assert found.effect == "fails"
    assert "ran at +100.0% and was refused by the looks (FWD-LOSS)" in found.text
    (slower,) = drafts([dataclasses.replace(records[1], outcome="hurts", gain=None)])
    assert "surely slower than what it started from, and ended early" in slower.text
    assert slower.claim is not None
    assert (slower.claim.gain_low, slower.claim.gain_high) == (None, None)


def test_nothing_is_drafted_from_a_shipped_recipe_that_is_verified_again(records: list[Tried]) -> None:
    assert drafts([dataclasses.replace(records[1], group=SHIPPED)]) == []


# ---------------------------------------------------------------------------- a claim that can't be meant


@pytest.mark.parametrize(
    ("claim", "words"),
    [
        ({"outcome": "hurts"}, "claim.outcome: hurts doesn't go with effect helps"),
        ({"sets": {}}, "claim.sets: is empty"),
        ({"before": {"other": 1}}, "claim.before: speaks of more than claim.sets"),
        ({"gain_low": 0.3, "gain_high": 0.1}, "claim.gain_low: 0.3 is above"),
        ({"failure": "oom"}, "claim.failure: nothing fails"),
    ],
)
def test_a_claim_that_cannot_be_meant_is_a_problem(claim: dict[str, Any], words: str) -> None:
    given = {"outcome": "helps", "sets": {"micro_batch_size": 4}}
    assert policy.problems(lesson(claim=given)) == []
    assert policy.problems(lesson(claim={**given, **claim}))[0].startswith(words)


def test_a_lesson_without_the_later_keys_is_spelled_as_before() -> None:
    assert not {"claim", "reviews", "drafted"} & lesson().data().keys()


# ---------------------------------------------------------------------------- a person's word

WRITTEN = """\
# why these stand here
- id: one  # first
  text: "a: b"
  source: [s]
  # beside the status
  status: draft
  drafted: records

- text: two
  id: two
  source:
  - s
  reviews:
  - by: Bo
    at: '2026-11-01'
    decision: rejected
    why: no
  # the end
"""


def test_a_review_changes_its_entry_alone_and_keeps_every_comment(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text(WRITTEN.replace("why: no", "why: 'no'"))
    done = note_reviews(file, {"one": ACCEPTED, "two": ACCEPTED.model_copy(update={"why": "seen: again"})})
    assert [(x.id, x.status, [r.by for r in x.reviews]) for x in done] == [
        ("one", "tentative", ["Ada"]),
        ("two", "tentative", ["Bo", "Ada"]),
    ]
    assert all(policy.live(x) for x in done)
    assert read_lessons(file) == done
    text = file.read_text()
    for comment in ("# why these stand here", "# first", "# beside the status"):
        assert comment in text
    note_reviews(file, {"one": ACCEPTED.model_copy(update={"decision": "rejected", "why": "not so"})})
    one, two = read_lessons(file)
    assert (one.status, [r.decision for r in one.reviews]) == ("rejected", ["accepted", "rejected"])
    assert not policy.live(one)
    assert two == done[1]


def test_an_entry_in_braces_is_left_as_it_was(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text("- {id: x, text: t, source: [s]}\n")
    with pytest.raises(UserError, match="lesson x: is written in braces"):
        note_reviews(file, {"x": ACCEPTED})
    assert file.read_text() == "- {id: x, text: t, source: [s]}\n"


def test_drafts_are_read_back_as_written_and_never_written_over(tmp_path: Path, records: list[Tried]) -> None:
    found = drafts(records)
    file = tmp_path / "sub" / "a.yaml"
    write_drafts(file, found)
    assert read_lessons(file) == found
    done = note_reviews(file, {x.id: ACCEPTED for x in found})
    assert read_lessons(file) == done
    with pytest.raises(UserError, match="is there already"):
        write_drafts(file, found)
    assert as_yaml(found[0]).startswith(f"- id: {found[0].id}\n")


# ---------------------------------------------------------------------------- the verbs, on a ledger


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory, pasts: list[History]) -> Path:
    made = tmp_path_factory.mktemp("home")
    write_ledger(made, pasts)
    return made


@pytest.fixture
def project(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout with planted lessons, and a home whose ledger holds three campaigns."""
    monkeypatch.setenv("ATTUNER_HOME", str(tmp_path / "home"))
    shutil.copytree(home, tmp_path / "home")
    made = tmp_path / "project"
    (made / "flows").mkdir(parents=True)
    (made / "flows" / "campaign.py").write_text("")
    (made / "rules").symlink_to(ROOT / "rules")
    planted = [
        lesson(id="broad"),
        lesson(id="wrong", effect="hurts", when={"micro_batch_size": 4, "recompute_granularity": "full"}),
    ]
    folder = made / "configs" / "lessons" / "mcore"
    folder.mkdir(parents=True)
    (folder / "planted.yaml").write_text("".join(as_yaml(x) for x in planted))
    return made


def call(project: Path, *words: str) -> int:
    return main(["--project", str(project), "lessons", *words])


def test_export_review_and_audit_go_hand_in_hand(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(project, "export", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert (len(told["drafts"]), told["search_launches"], told["that_show_something"]) == (5, 5, 5)
    (file,) = map(Path, told["files"])
    assert file.parent == project.parent / "home" / "lessons" / "mcore"
    good, bad = (x["id"] for x in told["drafts"][:2])
    assert call(project, "review", str(file), "--accept", good) == 2
    assert call(project, "review", str(file), "--as", "Ada", "--reject", bad) == 2
    assert call(project, "review", str(file), "--as", "Ada", "--accept", "nothing") == 2
    said = capsys.readouterr().err
    assert all(x in said for x in ("--as: say who reviews", "--why: a rejection needs its reason", "nothing: no such lesson"))
    assert call(project, "review", str(file), "--as", "Ada", "--accept", good, "--reject", bad, "--why", "too narrow") == 0
    assert f"accepted {good}, now tentative" in capsys.readouterr().out
    by = {x.id: x for x in read_lessons(file)}
    assert [(r.by, r.decision, r.why) for r in by[bad].reviews] == [("Ada", "rejected", "too narrow")]
    assert call(project, "review", str(file)) == 0
    assert "3 wait for a person" in capsys.readouterr().out
    # what is known, rejected ones too, isn't drafted again
    assert call(project, "export") == 0
    assert "0 drafts from 5 of 5 search launches (5 known already)" in capsys.readouterr().out


def test_export_of_one_campaign_holds_what_rests_on_it(project: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(project, "export", "c-1", "-o", str(tmp_path / "here"), "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert [x["levers"] for x in told["drafts"]] == [["recompute"], ["micro-batch"]]
    assert told["search_launches"] == 2
    assert Path(told["files"][0]).name.startswith("c-1-")


def test_audit_puts_on_record_what_stands(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = project / "configs" / "lessons"
    assert call(project, "export") == 0
    assert call(project, "audit", "--look") == 0
    assert load_audits(folder) == {}
    capsys.readouterr()
    assert call(project, "audit") == 0
    said = capsys.readouterr().out
    assert "wrong         wrong: " in said
    assert "On record only with recompute_granularity full." in said
    assert "7 lessons against 3 campaigns: 0 correct, 5 one campaign, 0 not checkable, 1 too broad, 1 wrong, 0 uns" in said
    found = load_audits(folder)
    assert {x.id: x.result for x in found.values()} == {"broad": "too broad", "wrong": "wrong"}  # drafts are none of it
    assert call(project, "list") == 0
    assert "not read: the audit of " in capsys.readouterr().out
    assert call(project, "list", "--json") == 0
    assert [x["read"] for x in json.loads(capsys.readouterr().out)] == [False, False]
    assert call(project, "audit", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert told["counts"]["too broad"] == 1
    assert next(x for x in told["lessons"] if x["id"] == "broad")["narrower"]["when"]["recompute_granularity"] == "full"


def test_an_audit_against_an_empty_ledger_keeps_what_records_said(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(project, "audit") == 0
    write_ledger(project.parent / "other", [])
    monkeypatch.setenv("ATTUNER_HOME", str(project.parent / "other"))
    capsys.readouterr()
    assert call(project, "audit") == 0
    assert "this ledger has no record of it" in capsys.readouterr().out
    assert load_audits(project / "configs" / "lessons")["wrong"].result == "wrong"


def test_an_audit_that_may_not_write_its_record_still_says_what_stands(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A worker's user can't write the checkout; the deployment `lessons-audit` shows its table all the same."""
    (project / "configs" / "lessons" / ".AUDIT.yaml.new").mkdir()  # what can't be written, also for root
    found = audit_lessons(load_settings(project=str(project)))
    assert (found.record, found.counts()["wrong"]) == (None, 1)
    assert "can't be written" in found.unwritten
    assert found.still_read == ("broad", "wrong")
    assert call(project, "audit") == 2
    said = capsys.readouterr()
    assert "2 lessons against 3 campaigns" in said.out
    assert "AUDIT.yaml: can't be written" in said.err


def test_the_deployment_fails_where_lessons_that_do_not_stand_stay_in_use(project: Path) -> None:
    file = project / "configs" / "lessons" / ".AUDIT.yaml.new"
    file.mkdir()
    lost = audit_lessons(load_settings(project=str(project)))
    state = deployed.outcome(lost)
    assert isinstance(state, State)
    assert (state.is_failed(), state.name) == (True, "NotOnRecord")
    assert "2 lessons that do not stand stay in use (broad, wrong): " in str(state.message)
    assert "AUDIT.yaml: can't be written" in str(state.message)
    assert "not on record: " in deployed.description(lost)
    assert [x["result"] for x in deployed.rows(lost) if x["lesson"] == "wrong"] == ["wrong, still read"]
    file.rmdir()
    kept = audit_lessons(load_settings(project=str(project)))
    assert deployed.outcome(kept) == kept.counts()
    assert deployed.description(kept) == "lessons against 3 campaigns"
    file.mkdir()  # the next one can't be written either, but what fell is out of use by then
    again = audit_lessons(load_settings(project=str(project)))
    assert again.unwritten
    assert deployed.outcome(again) == again.counts()


def test_the_starter_set_stands_where_nothing_was_tried_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ATTUNER_HOME", str(tmp_path / "home"))
    write_ledger(tmp_path / "home", [])
    assert main(["--project", str(ROOT), "lessons", "audit", "--look", "--json"]) == 0
    counts = json.loads(capsys.readouterr().out)["counts"]
    assert counts.pop("not checkable") >= 33
    assert set(counts.values()) == {0}
