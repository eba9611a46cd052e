"""What people write: every mistake is one line that names the file, the key and how to mend it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from lab import BASE, ROOT, campaign, workload, write_rules

from attuner.config import load_campaign, load_levers, load_recipe, load_register, read_lock, register_lock, write_lock
from attuner.core.errors import UserError
from attuner.policy import budget
from attuner.settings import load_settings
from attuner.yamlfile import read_yaml

CLUSTER = {"name": "lab", "devices": 2, "devices_per_node": 2}


def body(**changes: Any) -> dict[str, Any]:
    given = {
        "name": "lab",
        "workload": workload(warmup_steps=2).data(),
        "baseline": {"stack": "mcore", "arguments": BASE},
        "stack": {"name": "mcore", "version": "0.16.1"},
        "launcher": {"name": "ray_jobs", "cluster": CLUSTER},
        "proposer": {"name": "catalog"},
    }
    return {k: v for k, v in {**given, **changes}.items() if v != "absent"}


def write(tmp_path: Path, data: Any) -> Path:
    file = tmp_path / "x.yaml"
    file.write_text(data if isinstance(data, str) else yaml.safe_dump(data))
    return file


def refusal(file: Path) -> str:
    with pytest.raises(UserError) as error:
        load_campaign(file)
    line = str(error.value)
    assert "\n" not in line
    return line


def test_a_campaign_file_is_read(tmp_path: Path) -> None:
    assert load_campaign(write(tmp_path, body())).workload == workload(warmup_steps=2)


def test_the_campaign_files_of_the_project_are_valid() -> None:
    for file in sorted((ROOT / "configs" / "campaigns").glob("*.yaml")):
        found = load_campaign(file)
        budget.check_at_birth(found, source=str(file))
        assert found.source_file == str(file)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"budgett": {"gpu_hours": 1}}, ["budgett: unknown key", "did you mean budget?"]),
        (
            {"workload": {**workload(warmup_steps=2).data(), "seqlen": 4}},
            ["workload.seqlen: unknown key", "did you mean seq_len?"],
        ),
        (
            {"launcher": {"name": "ray_jobs", "cluster": {**CLUSTER, "device": {"knd": "cpu"}}}},
            ["launcher.cluster.device.knd", "kind?"],
        ),
        ({"baseline": "absent"}, ["baseline: is missing"]),
        ({"workload": "absent"}, ["workload: is missing"]),
        ({"stack": "absent"}, ["stack: is missing"]),
        ({"launcher": "absent"}, ["launcher: is missing"]),
        ({"proposer": "absent"}, ["proposer: is missing"]),
        ({"name": "absent"}, ["name: is missing"]),
        ({"name": "Not A Label"}, ["name:"]),
        ({"workload": {**workload(warmup_steps=2).data(), "steps": "many"}}, ["workload.steps", "'many'"]),
        ({"workload": {**workload(warmup_steps=2).data(), "warmup_steps": 4}}, ["warmup_steps"]),
        ({"workload": {**workload(warmup_steps=2).data(), "gpus": 3}}, ["workload.gpus", "2 devices"]),
        ({"noise": {"calibration_runs": 4}}, ["noise.calibration_runs"]),
        ({"remeasure": {"pairs": 2}}, ["remeasure.pairs"]),
        ({"gate": {"step0_loss_tolerance": 0.06}}, ["gate.step0_loss_tolerance"]),
        ({"gate": {"review": "never"}}, ["gate.review", "'never'"]),
        ({"gate": {"probe": "optional"}}, ["gate.probe: optional is for replayed tables", "ray_jobs"]),
        ({"workload": workload().data()}, ["workload.warmup_steps: 1", "make it 2 or more"]),
        ({"baseline": {"stack": "other", "arguments": {}}}, ["baseline", "other", "mcore"]),
        ({"register_lock": "0"}, ["register_lock", "take it out"]),
        ({"id": "x"}, ["id: is set by attuner"]),
        ({"baseline": "recipes/none.yaml"}, ["recipes/none.yaml: no such file"]),
        ({"launcher": {"name": "ray_jobs", "cluster": "none.yaml"}}, ["none.yaml: no such file"]),
        ({"budget": {"gpu_hours": "lots"}}, ["budget.gpu_hours"]),
        ({"baseline": {"stack": "mcore", "arguments": {"x": {"y": 1}}}}, ["baseline.arguments.x"]),
    ],
)
def test_a_mistake_is_one_line_that_names_file_and_key(tmp_path: Path, changes: dict[str, Any], words: list[str]) -> None:
    file = write(tmp_path, body(**changes))
    line = refusal(file)
    assert str(file) in line
    for word in words:
        assert word in line


@pytest.mark.parametrize("hours", [float("nan"), float("inf"), 0, -1.0])
def test_a_budget_that_is_no_amount_is_refused(tmp_path: Path, hours: float) -> None:
    assert "budget.gpu_hours" in refusal(write(tmp_path, body(budget={"gpu_hours": hours})))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("name: a\nname: b\n", ["'name' stands twice", "line 2"]),
        ("workload: {steps: 1, steps: 2}\n", ["'steps' stands twice"]),
        ("[1, 2", ["not YAML"]),
        ("- 1\n- 2\n", ["expected keys and values"]),
        ("", ["expected keys and values"]),
        ("!!python/object/apply:os.system ['true']\n", ["not YAML"]),
    ],
)
def test_what_is_not_plain_yaml_is_one_line(tmp_path: Path, text: str, words: list[str]) -> None:
    line = refusal(write(tmp_path, text))
    for word in [*words, "x.yaml"]:
        assert word in line


def test_a_missing_file_is_one_line(tmp_path: Path) -> None:
    assert refusal(tmp_path / "none.yaml") == f"{tmp_path}/none.yaml: no such file"


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    assert "can't be read" in refusal(tmp_path)


def test_yaml_takes_no_value_from_the_environment(tmp_path: Path) -> None:
    assert read_yaml(write(tmp_path, "a: ${HOME}\nb: '{{ x }}'\n")) == {"a": "${HOME}", "b": "{{ x }}"}


def test_a_key_that_is_a_list_is_one_line_too(tmp_path: Path) -> None:
    refusal(write(tmp_path, "? [1, 2]\n: 3\n"))


def test_a_recipe_with_an_unknown_key_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="argumets: unknown key; did you mean arguments"):
        load_recipe(write(tmp_path, {"stack": "mcore", "argumets": {}}))


def test_a_budget_below_calibration_and_remeasurement_is_refused_with_its_sum() -> None:
    small = campaign(budget={"gpu_hours": 0.01})
    with pytest.raises(UserError, match=r"x\.yaml: budget\.gpu_hours: 0\.01 .* 11 launches"):
        budget.check_at_birth(small, source="x.yaml")


def test_a_budget_of_auto_is_never_too_small() -> None:
    budget.check_at_birth(campaign(budget={"gpu_hours": "auto"}), source="x.yaml")


def test_the_lock_moves_with_every_rules_file_and_only_with_them(tmp_path: Path) -> None:
    rules = write_rules(tmp_path / "rules")
    first = register_lock(rules, "mcore")
    assert register_lock(rules, "mcore") == first
    (rules / "README.md").write_text("no rule")
    (rules / "other").mkdir()
    (rules / "other" / "a.yaml").write_text("[]")
    assert register_lock(rules, "mcore") == first
    seen = {first}
    for name in ("mcore/lab.yaml", "mcore/levers.yaml", "common.yaml", "mcore/new.yaml"):
        file = rules / name
        file.write_text((file.read_text() if file.exists() else "[]") + "\n# changed\n")
        seen.add(register_lock(rules, "mcore"))
    assert len(seen) == 5


def test_the_lock_holds_the_judging_code(tmp_path: Path) -> None:
    from attuner.config import POLICY, file_digests

    held = {k for k in file_digests(write_rules(tmp_path / "rules")) if k.startswith("attuner/")}
    also = {"attuner/core/recipe.py", "attuner/steps/gate.py", "attuner/steps/score.py", "attuner/steps/ship.py"}
    assert held > {f"attuner/policy/{p.name}" for p in POLICY.glob("*.py")} | also


def test_a_written_lock_reads_back_and_a_missing_one_is_empty(tmp_path: Path) -> None:
    from attuner.config import file_digests

    rules = write_rules(tmp_path / "rules")
    assert read_lock(rules) == {}
    write_lock(rules)
    assert read_lock(rules) == file_digests(rules)


def test_a_stack_without_a_register_launches_nothing(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="has no register"):
        load_register(tmp_path, "mcore")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda x: x.pop("idea"), "idea: is missing"),
        (lambda x: x["options"][0]["set"].update(lr=1), "lr is set but not among"),
        (lambda x: x["options"][0].update(when=[{"arg": "x", "python": "1"}]), "a condition has one of"),
    ],
)
def test_a_malformed_lever_is_refused(tmp_path: Path, change: Any, words: str) -> None:
    option = {"title": "×2", "set": {"a": 2}}
    lever = {"id": "l", "changes": ["a"], "eases": {}, "idea": "i", "options": [option], "source": ["s"]}
    change(lever)
    rules = write_rules(tmp_path / "rules", [lever])
    with pytest.raises(UserError, match=words):
        load_levers(rules, "mcore")


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({"ATTUNER_HOM": "x"}, "ATTUNER_HOM: no such setting"),
        ({"ATTUNER_RAY_ADDRESS": "127.0.0.1:8265"}, "ATTUNER_RAY_ADDRESS: .*http://host:8265"),
        ({"ATTUNER_PROJECT": "/nowhere"}, "/nowhere: no flows/campaign.py"),
    ],
)
def test_a_wrong_setting_is_one_line(environ: dict[str, str], words: str) -> None:
    with pytest.raises(UserError, match=words):
        load_settings(environ)


def test_settings_come_from_the_environment_alone(tmp_path: Path) -> None:
    found = load_settings({"ATTUNER_HOME": str(tmp_path), "OTHER": "x"}, project=str(ROOT))
    assert found.ledger == tmp_path / "attuner.duckdb"
    assert found.rules_dir() == ROOT / "rules"


def test_the_same_request_is_the_same_campaign_and_another_one_is_not(tmp_path: Path) -> None:
    from attuner.wiring import read_campaign

    settings = load_settings({"ATTUNER_HOME": str(tmp_path)}, project=str(ROOT))
    file = str(ROOT / "configs" / "campaigns" / "replay-quickstart.yaml")
    first = read_campaign(file, settings, request="run-1").id
    assert read_campaign(file, settings, request="run-1").id == first
    assert read_campaign(file, settings, request="run-2").id != first
    (tmp_path / first / "born-by").unlink()
    assert read_campaign(file, settings, request="run-1").id != first, "a folder of somebody else is left alone"
