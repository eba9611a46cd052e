"""The audit of lessons: planted ones (right, too broad, wrong, unsupported, of one campaign) are told for what they are."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import yaml
from book import Book, trial
from lab import Lab, begin, campaign
from lessons_lab import lesson, three

from attuner.config import load_lessons
from attuner.core.errors import UserError
from attuner.core.events import History
from attuner.core.judgement import Calibration, Score
from attuner.core.lesson import Lesson, LessonAudit, LessonReview
from attuner.launchers.replay import Row
from attuner.lessonfiles import load_audits, read_lessons, write_audits
from attuner.policy import lessons as policy
from attuner.policy.lessons_audit import audit, judge, kept
from attuner.policy.tried import Tried, tried
from attuner.steps.lessons import taught

CLAIM = {"outcome": "helps", "sets": {"micro_batch_size": 4}}
AT_FULL = {"micro_batch_size": 4, "recompute_granularity": "full"}


@pytest.fixture(scope="module")
def pasts(tmp_path_factory: pytest.TempPathFactory) -> list[History]:
    return three(tmp_path_factory.mktemp("campaigns"))


@pytest.fixture(scope="module")
def records(pasts: list[History]) -> list[Tried]:
    return [t for h in pasts for t in tried(h)]


def result(given: Lesson, records: list[Tried]) -> tuple[str, str]:
    (found,) = audit([given], records)
    return found.audit.result, found.audit.why


# ---------------------------------------------------------------------------- the planted lessons

PLANTED = {
    "right": (lesson(when=AT_FULL), "correct"),
    "right, with a claim": (lesson(when=AT_FULL, claim={**CLAIM, "gain_low": 0.9, "gain_high": 1.1}), "correct"),
    "right of one model, and says so": (
        lesson(scope={"models": ["lab", "other"]}, when=AT_FULL, evidence=["a-1/l09", "b-1:l08#1"]),
        "correct",
    ),
    "too broad": (lesson(), "too broad"),
    "too broad, with a claim": (lesson(claim=CLAIM), "too broad"),
    "wrong by its own evidence": (lesson(effect="hurts", when=AT_FULL, evidence=["b-1/OWN"]), "wrong"),
    "wrong by later records": (lesson(effect="hurts", when=AT_FULL), "wrong"),
    "wrong, it fails": (lesson(levers=["layout"], when={"tensor_model_parallel_size": 1}), "wrong"),
    "wrong figure": (lesson(when=AT_FULL, claim={**CLAIM, "gain_low": 0.1, "gain_high": 0.2}), "wrong"),
    "unsupported, no such record": (
        lesson(levers=["attention"], when={"attention_implementation": "sdpa"}, evidence=["z-9/l07"]),
        "unsupported",
    ),
    "unsupported, without any source": (
        lesson(levers=["attention"], when={"attention_implementation": "sdpa"}, source=[]),
        "unsupported",
    ),
    "one campaign": (lesson(levers=["recompute"], when={"recompute_granularity": None}), "one campaign"),
    "one campaign, a failure": (
        lesson(levers=["layout"], effect="fails", when={"tensor_model_parallel_size": 1}),
        "one campaign",
    ),
    "claims nothing": (lesson(effect="condition", when={}), "not checkable"),
    "names no values": (lesson(when={}), "not checkable"),
    "rests on its source alone": (
        lesson(levers=["attention"], when={"attention_implementation": "sdpa"}),
        "not checkable",
    ),
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_lesson_is_told_for_what_it_is(name: str, records: list[Tried]) -> None:
    given, wanted = PLANTED[name]
    own = next(t.evidence for t in records if t.campaign.id == "b-1")
    given = given.model_copy(update={"evidence": [e.replace("b-1/OWN", own) for e in given.evidence]})
    found, why = result(given, records)
    assert found == wanted, why
    assert why


def test_the_campaigns_show_what_was_planted(records: list[Tried]) -> None:
    assert [(t.campaign.id, t.group, t.outcome) for t in records] == [
        ("a-1", "layout", "fails"),
        ("a-1", "micro-batch", "helps"),
        ("b-1", "micro-batch", "helps"),
        ("c-1", "recompute", "helps"),
        ("c-1", "micro-batch", "hurts"),
    ]
    last = records[-1]
    assert last.gain == pytest.approx(0.5 / 0.9 - 1)  # over its parent, the leader without recompute
    assert last.before == {"micro_batch_size": 1}


def test_a_too_broad_lesson_comes_with_what_its_records_share(records: list[Tried]) -> None:
    (found,) = audit([lesson()], records)
    assert found.audit.supports == [t.evidence for t in records[1:3]]
    assert found.audit.contradicts == [records[4].evidence]
    assert found.narrower is not None
    assert found.narrower.when == AT_FULL
    assert found.narrower.scope == lesson().scope
    assert found.narrower.text == "Micro batch 4 is faster. On record only with recompute_granularity full."
    assert "recompute_granularity full" in found.audit.why
    # a person has yet to accept it; against the same records it stands
    assert not policy.live(found.narrower)
    assert result(found.narrower, records)[0] == "correct"


def test_a_lesson_is_bounded_by_model_machine_or_size_where_only_these_part_the_records(records: list[Tried]) -> None:
    def elsewhere(one: Tried, **work: Any) -> Tried:
        made = one.campaign.model_copy(update={"workload": one.campaign.workload.model_copy(update=work), "id": "d-1"})
        return dataclasses.replace(one, campaign=made, outcome="hurts", gain=-0.5)

    good = records[1:3]
    for work, key, value in (
        ({"model": "huge"}, "models", ["lab", "other"]),
        ({"hardware": "b200"}, "hardware", ["cpu"]),
        ({"gpus": 64}, "gpus", "==2"),
    ):
        (found,) = audit([lesson()], [*good, elsewhere(good[0], **work)])
        assert found.audit.result == "too broad"
        assert found.narrower is not None
        assert found.narrower.scope.data() == {**lesson().scope.data(), key: value}
        assert found.narrower.when == lesson().when


def test_records_that_disagree_under_the_same_conditions_leave_nothing_standing(records: list[Tried]) -> None:
    again = dataclasses.replace(records[1], launch="l99", outcome="hurts", gain=-0.2)
    found, why = result(lesson(when=AT_FULL), [*records, again])
    assert found == "wrong"
    assert "under the same conditions" in why


def test_two_campaigns_of_one_model_are_one_model_unless_the_lesson_says_so(records: list[Tried]) -> None:
    twice = [records[1], dataclasses.replace(records[1], campaign=records[1].campaign.model_copy(update={"id": "a-2"}))]
    assert result(lesson(), twice) == ("one campaign", "2 trials of 2 campaigns, all of the one model lab")
    assert result(lesson(scope={"models": ["lab"]}), twice)[0] == "correct"
    assert result(lesson(scope={"models": ["lab*"]}), twice)[0] == "one campaign"


def test_what_a_lesson_cites_outside_its_scope_is_not_held_against_it(records: list[Tried]) -> None:
    cites_all = lesson(when=AT_FULL, evidence=[t.evidence for t in records])
    assert result(cites_all, records)[0] == "correct"
    assert result(lesson(when=AT_FULL, evidence=[records[4].evidence]), records)[0] == "correct"


def test_a_lesson_whose_own_evidence_contradicts_it_is_wrong_whatever_others_say(records: list[Tried]) -> None:
    found, why = result(lesson(evidence=[records[4].evidence]), records)
    assert found == "wrong"
    assert "its own evidence shows otherwise" in why


def test_a_lesson_is_held_against_trials_of_its_own_lever_groups(records: list[Tried]) -> None:
    assert result(lesson(levers=["layout"]), records)[0] == "not checkable"
    assert result(lesson(levers=["layout", "micro-batch"]), records)[0] == "too broad"


def test_a_launch_that_the_looks_refuse_is_lost_too(records: list[Tried]) -> None:
    refused = dataclasses.replace(records[1], outcome="refused", gain=0.5)
    assert judge(lesson(effect="fails"), refused) == "supports"
    assert judge(lesson(effect="fails", claim={**CLAIM, "outcome": "fails"}), refused) == "contradicts"


@pytest.mark.parametrize(
    ("claim", "outcome", "gain", "said"),
    [
        ({"outcome": "helps"}, "helps", 0.3, "supports"),
        ({"outcome": "helps"}, "ties", 0.01, "neither"),
        ({"outcome": "helps"}, "hurts", -0.2, "contradicts"),
        ({"outcome": "helps"}, "fails", None, "contradicts"),
        ({"outcome": "helps"}, "refused", 0.5, "contradicts"),
        ({"outcome": "helps", "gain_low": 0.2}, "ties", 0.01, "contradicts"),
        ({"outcome": "helps", "gain_low": 0.2}, "helps", 0.18, "supports"),
        ({"outcome": "helps", "gain_high": 0.2}, "helps", 0.4, "contradicts"),
        ({"outcome": "hurts"}, "hurts", None, "supports"),
        ({"outcome": "hurts"}, "fails", None, "neither"),
        ({"outcome": "hurts"}, "helps", 0.2, "contradicts"),
        ({"outcome": "ties"}, "ties", 0.0, "supports"),
        ({"outcome": "ties"}, "helps", 0.2, "contradicts"),
        ({"outcome": "fails", "failure": "oom"}, "fails", None, "supports"),
        ({"outcome": "fails", "failure": "oom.optimizer_step"}, "fails", None, "neither"),
        ({"outcome": "fails", "failure": "oo"}, "fails", None, "neither"),
        ({"outcome": "fails"}, "ties", 0.0, "contradicts"),
        ({"outcome": "refused"}, "refused", 0.2, "supports"),
        ({"outcome": "refused"}, "helps", 0.2, "contradicts"),
    ],
)
def test_one_trial_says_what_it_says(
    claim: dict[str, Any], outcome: Any, gain: float | None, said: str, records: list[Tried]
) -> None:
    one = dataclasses.replace(records[1], outcome=outcome, gain=gain, failure="oom.forward" if outcome == "fails" else "")
    effect = policy.EFFECTS[claim["outcome"]]
    assert judge(lesson(effect=effect, claim={**CLAIM, **claim}), one) == said


def test_a_tie_supports_nothing(records: list[Tried]) -> None:
    tie = dataclasses.replace(records[1], outcome="ties", gain=0.01)
    found, why = result(lesson(), [tie])
    assert found == "unsupported"
    assert "1 trial of this move on record" in why


def test_another_move_says_nothing_of_a_claim(records: list[Tried]) -> None:
    both = dataclasses.replace(records[1], sets={**records[1].sets, "lr": 1}, before={**records[1].before, "lr": 2})
    assert result(lesson(claim=CLAIM, source=[]), [both])[0] == "unsupported"
    from_two = lesson(claim={**CLAIM, "before": {"micro_batch_size": 2}}, source=[])
    assert result(from_two, records)[0] == "unsupported"


# ---------------------------------------------------------------------------- what a trial shows


def book(
    *, status: str = "ok", cause: str = "", failure: dict[str, Any] | None = None, score: dict[str, Any] | None = None
) -> Book:
    """A baseline of 64 tokens/s and one search launch from it."""
    made = Book(campaign())
    made.ran("l01", kind="calibrate")
    given = {"round": 1, "launches": ["l01"], "mean": 64.0, "sigma": 0.01, "band": 0.03, "busy": False}
    made.put("calibration", "1", Calibration.model_validate({**given, "launch_gpu_hours": 1.0, "step0_loss": 5.0}))
    made.suppose("h01")
    made.launch("l02", recipe=made.recipe(micro_batch_size=4), hypothesis="h01")
    made.put("trial", "l02", trial(launch_id="l02", status=status, cause=cause, failure=failure))
    if score:
        made.put(
            "score", "l02", Score.model_validate({"launch_id": "l02", "attempt": 1, "valid": True, "decision": "admit", **score})
        )
    return made


BROKE = {"kind": "oom.forward", "why": "as the test says", "phase": "forward"}


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ({"score": {"tokens_per_s_per_gpu": 80.0}}, ("helps", 0.25, "")),
        ({"score": {"tokens_per_s_per_gpu": 65.0}}, ("ties", 0.015625, "")),
        ({"score": {"tokens_per_s_per_gpu": 80.0, "decision": "refuse"}}, ("refused", 0.25, "")),
        ({"score": {"valid": False}}, None),
        ({"score": {"tokens_per_s_per_gpu": 80.0, "attempt": 2}}, None),
        ({}, None),
        ({"status": "oom", "failure": BROKE}, ("fails", None, "oom.forward")),
        ({"status": "crash", "failure": {**BROKE, "kind": "undetermined"}}, ("fails", None, "crash")),
        ({"status": "crash"}, ("fails", None, "crash")),
        ({"status": "crash", "failure": {**BROKE, "retry": "may_help"}}, None),
        ({"status": "infrastructure"}, None),
        ({"status": "stopped_early", "cause": "slower than the leader l01: 2 s a step"}, ("hurts", None, "")),
        ({"status": "stopped_early", "cause": "slower than the leader l07: 2 s a step"}, None),
        ({"status": "stopped_early", "cause": "its own abort condition: median step_s 2"}, None),
    ],
)
def test_a_trial_shows_no_more_than_it_measured(given: dict[str, Any], shown: tuple[Any, ...] | None) -> None:
    found = [(t.outcome, t.gain, t.failure) for t in tried(book(**given).history)]
    assert found == ([shown] if shown else [])


# ---------------------------------------------------------------------------- who reads what


def audited(given: Lesson, result: Any, **more: Any) -> LessonAudit:
    return LessonAudit(id=given.id, claimed=policy.claim_digest(given), result=result, why="as the test says", **more)


def test_only_lessons_that_stand_are_read_and_one_campaign_is_never_sure() -> None:
    given = lesson()
    for told in ("wrong", "too broad", "unsupported"):
        assert policy.standing([given], {given.id: audited(given, told)}) == []
    for told in ("correct", "not checkable"):
        assert policy.standing([given], {given.id: audited(given, told)}) == [given]
    drafted = lesson(source=[], evidence=["a-1:l07#1"])
    (weaker,) = policy.standing([drafted], {drafted.id: audited(drafted, "one campaign")})
    assert (given.status, weaker.status) == ("confirmed", "tentative")
    # a campaign that bears out what a source says makes it no weaker
    assert policy.standing([given], {given.id: audited(given, "one campaign")}) == [given]
    assert policy.standing([given], {}) == [given]


def test_a_rejected_lesson_is_not_read_whatever_its_status_says() -> None:
    rejected = {"by": "Ada", "at": "2026-11-30", "decision": "rejected", "why": "no"}
    assert policy.live(lesson())
    assert not policy.live(lesson(reviews=[rejected]))
    assert policy.live(lesson(reviews=[rejected, {**rejected, "decision": "accepted"}]))


def test_an_audit_holds_for_what_the_lesson_claims_not_for_its_wording() -> None:
    given = lesson()
    known = {given.id: audited(given, "wrong")}
    assert policy.standing([given.model_copy(update={"text": "said otherwise", "status": "tentative"})], known) == []
    narrower = given.model_copy(update={"when": AT_FULL})
    assert policy.standing([narrower], known) == [narrower]


def test_a_ledger_without_records_brings_no_lesson_back(records: list[Tried]) -> None:
    given = lesson(effect="hurts", when=AT_FULL)
    (first,) = audit([given], records, at="2026-11-30")
    assert first.audit.result == "wrong"
    (empty,) = audit([given], [], at="2026-12-01")
    assert kept({given.id: first.audit}, [empty]) == [first.audit]
    assert kept({}, [empty])[0].result == "not checkable"
    edited = given.model_copy(update={"effect": "helps"})
    assert kept({given.id: first.audit}, audit([edited], []))[0].result == "not checkable"


def again(records: list[Tried], outcome: str) -> list[Tried]:
    """Every trial as if a person had it measured again, with another outcome."""
    return [dataclasses.replace(t, attempt=t.attempt + 1, outcome=outcome, gain=0.0) for t in records]


def test_records_that_were_measured_again_and_tie_take_a_lesson_back(records: list[Tried]) -> None:
    given = lesson(when=AT_FULL, status="confirmed")
    (first,) = audit([given], records, at="2026-11-30")
    assert first.audit.result == "correct"
    (second,) = audit([given], again(records, "ties"), at="2026-12-01")
    ids = {t.campaign.id for t in records}
    (held,) = kept({given.id: first.audit}, [second], ids)
    assert held.result == "unsupported"
    assert policy.standing([given], {given.id: held}) == []


def test_records_that_were_set_aside_hold_no_lesson_those_of_another_ledger_do(records: list[Tried]) -> None:
    given = lesson(when=AT_FULL, status="confirmed", source=[])
    (first,) = audit([given], records, at="2026-11-30")
    (none,) = audit([given], [], at="2026-12-01")
    cited = {e.partition(":")[0] for e in first.audit.supports}
    assert len(cited) > 1
    assert kept({given.id: first.audit}, [none], cited) == [none.audit]
    assert kept({given.id: first.audit}, [none], sorted(cited)[:1]) == [none.audit]
    assert kept({given.id: first.audit}, [none], {"elsewhere-1"}) == [first.audit]


def test_what_spoke_against_a_lesson_in_another_ledger_still_does(records: list[Tried]) -> None:
    given = lesson(effect="hurts", when=AT_FULL)
    (first,) = audit([given], records, at="2026-11-30")
    (none,) = audit([given], [], at="2026-12-01")
    cited = sorted({e.partition(":")[0] for e in first.audit.contradicts})
    assert len(cited) > 1
    assert kept({given.id: first.audit}, [none], cited[:1]) == [first.audit]
    assert kept({given.id: first.audit}, [none], cited) == [none.audit]


def test_the_record_of_audits_is_read_back_and_is_no_lesson(tmp_path: Path) -> None:
    given = lesson()
    told = audited(given, "wrong", contradicts=["a-1:l07#1"], at="2026-11-30")
    assert load_audits(tmp_path) == {}
    file = write_audits(tmp_path, [told])
    assert load_audits(tmp_path) == {given.id: told}
    assert load_lessons(tmp_path, "mcore") == []
    file.write_text("- {id: x, result: fine}\n")
    with pytest.raises(UserError, match=r"AUDIT\.yaml: x: "):
        load_audits(tmp_path)


def test_a_campaign_is_taught_only_what_stands_and_was_accepted(tmp_path: Path) -> None:
    folder = tmp_path / "lessons"
    (folder / "mcore").mkdir(parents=True)
    accepted = LessonReview(by="Ada", at="2026-11-30", decision="accepted")
    given = [
        lesson(id="stands"),
        lesson(id="fell"),
        lesson(id="draft", drafted="records", status="draft"),
        lesson(id="edited-by-hand", drafted="records", status="tentative"),
        lesson(id="accepted", drafted="records", status="tentative", reviews=[accepted.data()]),
    ]
    file = folder / "mcore" / "a.yaml"
    file.write_text(yaml.safe_dump([x.data() for x in given]))
    assert read_lessons(file) == given
    write_audits(folder, [audited(given[1], "too broad")])
    found = Lab(tmp_path, [Row()])
    begin(found.kit(), campaign())
    read = taught(dataclasses.replace(found.kit(), lessons_dir=folder), campaign().id)
    assert [x.id for x in read.lessons] == ["stands", "accepted"]
    assert [x.reviews for x in read.lessons] == [[], []]  # who accepted it is nothing for a proposer
