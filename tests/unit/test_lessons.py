"""Lessons, read side: scope, what they make of an expected gain, strict files, and what a campaign leaves behind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from lab import BASE, ID, LAYOUT, MICRO, ROOT, Lab, begin, campaign, play, workload

from attuner.cli.main import main
from attuner.config import load_arguments, load_lessons, load_levers
from attuner.core.campaign import Campaign
from attuner.core.errors import UserError
from attuner.core.lesson import CampaignSummary, Lesson, Taught
from attuner.core.search import Stop
from attuner.launchers.replay import Row
from attuner.policy import lessons as policy
from attuner.ports import Brief
from attuner.steps.hypothesize import hypothesize
from attuner.steps.lessons import taught

FOLDER = ROOT / "configs" / "lessons"
STACKS = ("megatron", "mcore")


def lesson(**changes: Any) -> Lesson:
    given = {
        "id": "x",
        "text": "tensor parallelism pays least where operators are small",
        "levers": ["layout"],
        "effect": "helps",
    }
    return Lesson.model_validate({**given, "status": "confirmed", "source": ["tests"], **changes})


def born(*, gpus: int = 2, model: str = "lab", hardware: str = "cpu", version: str = "0.16.1", **changes: Any) -> Campaign:
    made = campaign(**changes)
    work = workload(model=model, hardware=hardware)
    return made.model_copy(
        update={
            "workload": work.model_copy(update={"gpus": gpus}),
            "stack": made.stack.model_copy(update={"version": version}),
        }
    )


# ---------------------------------------------------------------------------- scope


@pytest.mark.parametrize(
    ("scope", "given", "holds"),
    [
        ({}, {}, True),
        ({"stack": "mcore"}, {}, True),
        ({"stack": "megatron"}, {}, False),
        ({"versions": "<0.17"}, {}, True),
        ({"versions": "<0.16"}, {}, False),
        ({"versions": ">=0.17"}, {"version": "0.17.0rc1"}, False),
        ({"versions": "<0.16"}, {"version": "of our own"}, True),  # what can't be read leaves it in force
        ({"gpus": ">=16"}, {"gpus": 16}, True),
        ({"gpus": ">=16"}, {"gpus": 8}, False),
        ({"models": ["glm*"]}, {"model": "GLM-4.5"}, True),
        ({"models": ["glm*", "mini*"]}, {"model": "llama3"}, False),
        ({"models": ["moe"]}, {}, True),
        ({"models": ["dense"]}, {}, False),
        ({"hardware": ["*b200*"]}, {"hardware": "8xB200"}, True),
        ({"hardware": ["*b200*"]}, {}, False),
        ({"hardware": ["cpu"], "models": ["dense"]}, {}, False),
    ],
)
def test_a_lesson_holds_where_its_whole_scope_does(scope: dict[str, Any], given: dict[str, Any], holds: bool) -> None:
    assert policy.in_scope(lesson(scope=scope).scope, born(**given)) is holds


def test_a_model_without_experts_is_dense() -> None:
    plain = {"stack": "mcore", "arguments": {k: v for k, v in BASE.items() if k != "num_moe_experts"}}
    assert policy.in_scope(lesson(scope={"models": ["dense"]}).scope, born(baseline=plain))
    assert policy.kind_of({"num_experts": 8}) == "moe"
    assert policy.kind_of({"num_experts": None, "num_moe_experts": 1}) == "dense"


@pytest.mark.parametrize(
    ("status", "read"), [("confirmed", True), ("tentative", True), ("contradicted", False), ("retired", False)]
)
def test_what_was_contradicted_or_retired_is_not_read(status: str, read: bool) -> None:
    assert bool(policy.select([lesson(status=status)], born())) is read


# ---------------------------------------------------------------------------- what it makes of an expected gain


def test_a_lesson_moves_the_expected_gain_of_its_groups_only() -> None:
    assert policy.apply([], "layout", {}) == 1.0
    assert policy.apply([lesson()], "layout", {}) > 1.0
    assert policy.apply([lesson()], "recompute", {}) == 1.0
    assert policy.apply([lesson(effect="condition")], "layout", {}) == 1.0
    assert policy.apply([lesson(effect="hurts")], "layout", {}) < 1.0


def test_a_surer_lesson_weighs_more_and_a_failure_most() -> None:
    weight = {(e, s): policy.apply([lesson(effect=e, status=s)], "layout", {}) for e, s in policy.WEIGHTS}
    assert weight["helps", "confirmed"] > weight["helps", "tentative"] > 1.0
    assert weight["hurts", "confirmed"] < weight["hurts", "tentative"] < 1.0
    for status in ("confirmed", "tentative"):
        assert weight["fails", status] < weight["hurts", status]


def test_many_lessons_never_forbid_a_move_nor_make_it_certain() -> None:
    assert policy.apply([lesson(effect="fails")] * 9, "layout", {}) == policy.LIMITS[0] > 0
    assert policy.apply([lesson()] * 99, "layout", {}) == policy.LIMITS[1]


def test_a_narrow_lesson_speaks_at_its_final_arguments() -> None:
    narrow = lesson(when={"tensor_model_parallel_size": [1, 2], "recompute_granularity": None})
    at = {"tensor_model_parallel_size": 1, "recompute_granularity": None}
    assert policy.apply([narrow], "layout", at) > 1.0
    assert policy.apply([narrow], "layout", {**at, "tensor_model_parallel_size": 4}) == 1.0
    assert policy.apply([narrow], "layout", {**at, "recompute_granularity": "full"}) == 1.0
    assert policy.apply([lesson(when={"flag": 1})], "layout", {"flag": True}) == 1.0
    listed = lesson(when={"recompute_modules": ["moe_act"]})
    assert policy.apply([listed], "layout", {"recompute_modules": ["moe_act"]}) > 1.0
    assert policy.apply([listed], "layout", {"recompute_modules": ["core_attn", "moe_act"]}) == 1.0


# ---------------------------------------------------------------------------- files


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ({"efect": "helps"}, "efect: unknown key; did you mean effect?"),
        ({"effect": "wonders"}, "effect: "),
        ({"scope": {"versions": "new"}}, "scope.versions: 'new' is no specifier"),
        ({"scope": {"gpus": "many"}}, "scope.gpus: 'many' is no specifier"),
        ({"scope": {"stak": "mcore"}}, "scope.stak: unknown key"),
        ({"source": []}, "neither evidence nor source"),
        ({"levers": []}, "a lesson that helps names the lever groups"),
        ({"when": {"x": {"y": 1}}}, "when"),
    ],
)
def test_a_malformed_lesson_is_one_line_that_names_file_lesson_and_key(tmp_path: Path, entry: dict[str, Any], words: str) -> None:
    given = {"id": "odd", "text": "t", "levers": ["layout"], "effect": "helps", "source": ["s"]}
    (tmp_path / "lab").mkdir()
    (tmp_path / "lab" / "a.yaml").write_text(yaml.safe_dump([{**given, **entry}]))
    with pytest.raises(UserError) as caught:
        load_lessons(tmp_path, "lab")
    said = str(caught.value)
    assert said.startswith(str(tmp_path / "lab" / "a.yaml"))
    assert "lesson odd" in said
    assert words in said
    assert "\n" not in said


def test_general_lessons_come_first_and_no_id_stands_twice(tmp_path: Path) -> None:
    given = {"text": "t", "source": ["s"]}
    (tmp_path / "lab").mkdir()
    assert load_lessons(tmp_path, "lab") == []
    assert load_lessons(tmp_path / "nowhere", "lab") == []
    (tmp_path / "lab" / "b.yaml").write_text(yaml.safe_dump([{"id": "own", **given}]))
    (tmp_path / "all.yaml").write_text(yaml.safe_dump([{"id": "general", **given}]))
    assert [x.id for x in load_lessons(tmp_path, "lab")] == ["general", "own"]
    assert [x.id for x in load_lessons(tmp_path, "other")] == ["general"]
    (tmp_path / "lab" / "c.yaml").write_text(yaml.safe_dump([{"id": "general", **given}]))
    with pytest.raises(UserError, match="lesson general stands twice"):
        load_lessons(tmp_path, "lab")
    (tmp_path / "lab" / "c.yaml").write_text("a: b\n")
    with pytest.raises(UserError, match="expected a list of lessons"):
        load_lessons(tmp_path, "lab")


# ---------------------------------------------------------------------------- the starter set


@pytest.mark.parametrize("stack", STACKS)
def test_the_starter_set_speaks_of_levers_and_arguments_that_exist(stack: str) -> None:
    levers = load_levers(ROOT / "rules", stack)
    groups = {x["id"]: set(x["changes"]) for x in levers}
    found = load_lessons(FOLDER, stack)
    known = {*load_arguments(ROOT / "rules", stack), *(name for names in groups.values() for name in names), "params_dtype"}
    assert len(found) >= 6
    for entry in found:
        assert entry.source, entry.id
        assert set(entry.levers) <= set(groups), entry.id
        assert set(entry.when) <= known, entry.id
        assert entry.scope.stack == stack, entry.id
        # what a lesson expects of a move is said of a value that the move can set
        if entry.effect == "helps" and entry.when:
            assert any(set(entry.when) & groups[g] for g in entry.levers), entry.id


def test_the_starter_set_says_what_the_paper_found_of_glm() -> None:
    made = born(model="glm-4.5", hardware="b200", gpus=128, version="0.16.1")
    made = made.model_copy(update={"stack": made.stack.model_copy(update={"name": "megatron"})})
    found = policy.select(load_lessons(FOLDER, "megatron"), made)
    at: dict[str, Any] = {"tensor_model_parallel_size": 1, "recompute_granularity": "selective"}
    assert policy.apply(found, "tensor-parallel", at) < 0.5
    assert policy.apply(found, "tensor-parallel", {**at, "recompute_granularity": "full"}) > 1.0
    elsewhere = made.model_copy(update={"workload": made.workload.model_copy(update={"model": "llama3-70b"})})
    assert policy.apply(policy.select(load_lessons(FOLDER, "megatron"), elsewhere), "tensor-parallel", at) == 1.0


def test_lessons_are_listed_for_people_and_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--project", str(ROOT), "lessons", "list", "--stack", "mcore", "--lever", "layout"]) == 0
    said = capsys.readouterr().out
    assert "+ mcore-carried-over-recipe  confirmed  layout" in said
    assert "mcore-offload" not in said
    assert main(["--project", str(ROOT), "lessons", "list", "--model", "glm-4.5", "--json"]) == 0
    listed = {x["id"] for x in json.loads(capsys.readouterr().out)}
    assert "megatron-tp-one-selective-oom" in listed
    assert "megatron-offload-off" not in listed  # said of minimax alone


# ---------------------------------------------------------------------------- what a campaign leaves, and who reads it


def summary(**changes: Any) -> CampaignSummary:
    place = {"campaign_id": "a-1", "model": "glm-4.5", "hardware": "b200", "gpus": 128, "stack": "mcore", "version": "0.16.1"}
    figures = {"baseline_tokens_per_s_per_gpu": 700.0, "gain": 0.3, "spent_gpu_hours": 100.0}
    return CampaignSummary.model_validate({**place, **figures, **changes})


def test_nearest_campaigns_are_of_the_same_stack_and_family_and_few() -> None:
    made = born(model="glm4.6-air", hardware="b200")
    many = [summary(campaign_id=f"a-{i}") for i in range(9)]
    other = [summary(stack="megatron"), summary(model="llama3"), summary(campaign_id=made.id)]
    same = summary(campaign_id="same", model="glm4.6-air", hardware="h100")
    elsewhere = summary(campaign_id="far", hardware="h100")
    found = policy.nearest([same, elsewhere, *other, *many], made)
    assert [x.campaign_id for x in found] == ["same", "a-8", "a-7", "a-6", "a-5"]
    assert policy.family_of("GLM-4.5") == policy.family_of("glm4.5-355b") == "glm"


def test_a_finished_campaign_is_told_in_a_few_lines(tmp_path: Path) -> None:
    table = [
        Row(match={"micro_batch_size": 4}, step_s=0.5),
        Row(match={"tensor_model_parallel_size": 1}, outcome="oom", detail="no room"),
        Row(step_s=1.0),
    ]
    found = Lab(tmp_path, table)
    kit = found.kit()
    begin(kit, campaign(LAYOUT, MICRO))
    assert policy.summary(found.history()) is None
    assert taught(kit, ID) == Taught()
    fresh = Lab(tmp_path / "2", table)
    play(fresh.kit(), campaign(LAYOUT, MICRO))
    told = policy.summary(fresh.history())
    assert told is not None
    assert told.leader == {"micro_batch_size": 4}
    assert told.gain == pytest.approx(1.0)
    assert told.moves[0] == "layout: tensor_model_parallel_size=1, predicted +0.0%, oom"
    assert told.moves[1] == "micro-batch: micro_batch_size=4, predicted +0.0%, measured +100.0%, new leader"
    assert told.spent_gpu_hours > 0


class Asker:
    """A proposer that keeps what it was given and stops."""

    def __init__(self) -> None:
        self.briefs: list[Brief] = []

    def ask(self, brief: Brief) -> Stop:
        self.briefs.append(brief)
        return Stop(reason="seen enough")

    def close(self) -> None:
        pass


def with_lessons(found: Lab, folder: Path, *texts: str) -> Any:
    """A kit of a campaign that is taught what stands in a folder."""
    import dataclasses

    (folder / "mcore").mkdir(parents=True, exist_ok=True)
    entries = [lesson(id=f"n{i}", text=text).data() for i, text in enumerate(texts)]
    (folder / "mcore" / "a.yaml").write_text(yaml.safe_dump(entries))
    return dataclasses.replace(found.kit(), lessons_dir=folder)


def test_a_campaign_reads_its_lessons_once_and_a_resume_reads_the_same(tmp_path: Path) -> None:
    asker = Asker()
    found = Lab(tmp_path, [Row()], proposer=asker)
    begin(found.kit(), campaign())
    kit = with_lessons(found, tmp_path / "lessons", "first edition")
    read = taught(kit, ID)
    assert [x.text for x in read.lessons] == ["first edition"]
    again = with_lessons(found, tmp_path / "lessons", "second edition", "and more")
    assert isinstance(hypothesize(again, ID, "h01"), Stop)
    assert asker.briefs
    assert all(brief.lessons == read.lessons for brief in asker.briefs)
    assert sum(1 for e in found.history().events if e.kind == "taught") == 1


def test_a_malformed_lesson_stops_the_search_before_it_begins(tmp_path: Path) -> None:
    found = Lab(tmp_path, [Row()], proposer=Asker())
    begin(found.kit(), campaign())
    kit = with_lessons(found, tmp_path / "lessons", "fine")
    (tmp_path / "lessons" / "mcore" / "b.yaml").write_text("[{id: x}]\n")
    with pytest.raises(UserError, match="text: is missing"):
        hypothesize(kit, ID, "h01")
    assert found.history().stop() is None


def test_a_later_campaign_of_the_ledger_reads_what_an_earlier_one_left(tmp_path: Path) -> None:
    found = Lab(tmp_path, [Row(match={"micro_batch_size": 4}, step_s=0.5), Row(step_s=1.0)])
    play(found.kit(), campaign(MICRO))
    later = campaign().model_copy(update={"id": "lab-0002"})
    kit = with_lessons(found, tmp_path / "lessons", "fine")
    from attuner.steps.birth import birth

    birth(kit, later)
    read = taught(kit, "lab-0002")
    assert [(x.campaign_id, x.leader) for x in read.summaries] == [(ID, {"micro_batch_size": 4})]
    assert taught(with_lessons(found, tmp_path / "lessons", "fine"), ID).summaries == []
