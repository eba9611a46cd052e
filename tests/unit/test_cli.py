"""The command line: every bad input is one line on stderr that names the place, and reading verbs speak JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from lab import BASE, ROOT, workload

from attuner.cli.main import main

# Resolver.close leaves its pipes to the garbage collector (see tests/unit/test_resolver.py)
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
CLUSTER = {"name": "lab", "devices": 2, "devices_per_node": 2}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home and a project of the test's own; the environment is the command line's input, not our code."""
    monkeypatch.setenv("ATTUNER_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("ATTUNER_PROJECT", str(ROOT))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "home"


def write(path: Path, data: Any) -> str:
    path.write_text(yaml.safe_dump(data))
    return str(path)


def campaign_file(tmp_path: Path, **changes: Any) -> str:
    given = {
        "name": "lab",
        "workload": workload(warmup_steps=2).data(),
        "baseline": {"stack": "mcore", "arguments": BASE},
        "stack": {"name": "mcore", "version": "0.16.1"},
        "launcher": {"name": "ray_jobs", "cluster": CLUSTER},
        "proposer": {"name": "catalog"},
        "budget": {"gpu_hours": 50},
    }
    return write(tmp_path / "x.yaml", {**given, **changes})


def refused(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    """Run a command that must fail; return its one line."""
    code = main(argv)
    said = capsys.readouterr()
    assert code != 0
    assert said.err.startswith("attuner: ")
    assert said.err.count("\n") == 1, said.err
    return said.err


@pytest.mark.parametrize("verb", ["run", "check"])
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"budgett": 1}, "budgett: unknown key; did you mean budget?"),
        ({"budget": {"gpu_hours": 0.01}}, "budget.gpu_hours: 0.01"),
        ({"budget": {"gpu_hours": "lots"}}, "budget.gpu_hours"),
        ({"baseline": "none.yaml"}, "none.yaml: no such file"),
        ({"launcher": {"name": "ray_jobs", "cluster": "none.yaml"}}, "none.yaml: no such file"),
        ({"stack": {"name": "nemo", "version": "1"}, "baseline": {"stack": "nemo", "arguments": {}}}, "nemo"),
        ({"workload": {**workload(warmup_steps=2).data(), "gpus": 3}}, "workload.gpus"),
    ],
)
def test_a_bad_campaign_file_is_one_line_with_file_and_key(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], verb: str, changes: dict[str, Any], words: str
) -> None:
    line = refused(capsys, verb, campaign_file(tmp_path, **changes))
    assert words in line
    assert "x.yaml" in line


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"launcher": {"name": "slurm", "cluster": CLUSTER}}, "launcher.name: slurm: unknown; known: ray_jobs"),
        (
            {"proposer": {"name": "oracle"}},
            "proposer.name: oracle: unknown; known: catalog, claude, fixed_knobs, manual, random, scripted, tpe",
        ),
    ],
)
def test_an_adapter_that_does_not_exist_is_named_before_anything_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], changes: dict[str, Any], words: str
) -> None:
    assert words in refused(capsys, "run", campaign_file(tmp_path, **changes))


@pytest.mark.slow
def test_check_names_an_adapter_that_does_not_exist_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    quick = yaml.safe_load((ROOT / "configs" / "campaigns" / "quickstart.yaml").read_text())
    assert "oracle" in refused(capsys, "check", write(tmp_path / "x.yaml", {**quick, "proposer": {"name": "oracle"}}))


@pytest.mark.parametrize("argv", [["run", "none.yaml"], ["check", "none.yaml"], ["gate", "none.yaml", "none.yaml"]])
def test_a_missing_file_is_one_line(capsys: pytest.CaptureFixture[str], argv: list[str]) -> None:
    assert "none.yaml: no such file" in refused(capsys, *argv)


def test_a_file_that_is_not_yaml_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "x.yaml").write_text("a: [1\nb: }")
    assert "x.yaml: not YAML" in refused(capsys, "run", "x.yaml")


@pytest.mark.parametrize("argv", [["status", "none-0000"], ["resume", "none-0000"], ["report", "none-0000"]])
def test_an_unknown_campaign_is_one_line_with_its_name(capsys: pytest.CaptureFixture[str], argv: list[str]) -> None:
    assert "none-0000" in refused(capsys, *argv)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("ATTUNER_HOEM", "x", "ATTUNER_HOEM: no such setting; known: ATTUNER_HOME"),
        ("ATTUNER_RAY_ADDRESS", "127.0.0.1", "ATTUNER_RAY_ADDRESS: 127.0.0.1"),
        ("ATTUNER_PROJECT", "/nowhere", "/nowhere: no flows/campaign.py"),
    ],
)
@pytest.mark.parametrize("argv", [["status"], ["rules", "check"], ["run", "x.yaml"], ["board"]])
def test_a_bad_setting_is_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, name: str, value: str, words: str, argv: list[str]
) -> None:
    monkeypatch.setenv(name, value)
    assert words in refused(capsys, *argv)


@pytest.mark.parametrize("argv", [[], ["fly"], ["run"], ["rules"], ["rules", "burn"], ["status", "--jsn"], ["gate", "one.yaml"]])
def test_a_wrong_command_is_one_line_that_names_the_help(capsys: pytest.CaptureFixture[str], argv: list[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(argv)
    said = capsys.readouterr().err
    assert end.value.code == 2
    assert said.count("\n") == 1
    assert "--help" in said


def test_status_of_an_empty_home_says_how_to_begin(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status"]) == 0
    assert "attuner run FILE" in capsys.readouterr().out


@pytest.mark.parametrize(("argv", "empty"), [(["status", "--json"], []), (["board", "--json"], [])])
def test_reading_verbs_speak_json_on_an_empty_home(capsys: pytest.CaptureFixture[str], argv: list[str], empty: list[Any]) -> None:
    assert main(argv) == 0
    assert json.loads(capsys.readouterr().out) == empty


def test_a_ledger_that_is_not_there_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert "no ledger there" in refused(capsys, "ledger", "verify")


def test_rules_list_speaks_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rules", "list", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {"id", "kind", "decision", "covers", "reason", "source", "examples"} <= set(found["mcore"][0])


def test_rules_check_speaks_json_and_finds_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rules", "check", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["problems"] == []
    assert found["rules"]["mcore"] > 30


def test_rules_check_fails_when_a_rule_moved_from_its_lock(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import shutil

    project = tmp_path / "project"
    (project / "flows").mkdir(parents=True)
    (project / "flows" / "campaign.py").write_text("")
    shutil.copytree(ROOT / "rules", project / "rules")
    monkeypatch.setenv("ATTUNER_PROJECT", str(project))
    assert main(["rules", "check"]) == 0
    file = project / "rules" / "mcore" / "objective.yaml"
    file.write_text(file.read_text() + "\n# moved\n")
    assert main(["rules", "check", "--json"]) == 1
    found = capsys.readouterr().out
    assert "rules/mcore/objective.yaml is not as locked" in found


@pytest.mark.parametrize(
    ("argument", "rule"), [("lr", "MCO-OBJ-003"), ("env:LD_PRELOAD", "COM-ENV-002"), ("fact:padded_vocab_size", "MCO-OBJ-013")]
)
def test_rules_explain_names_the_rule(capsys: pytest.CaptureFixture[str], argument: str, rule: str) -> None:
    assert main(["rules", "explain", argument, "--json"]) == 0
    assert rule in {r["id"] for r in json.loads(capsys.readouterr().out)["mcore"]}


def test_rules_explain_says_that_an_uncovered_argument_is_review(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rules", "explain", "no_such_argument"]) == 0
    assert "`review`" in capsys.readouterr().out


def test_an_unknown_stack_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert "nemo has no register" in refused(capsys, "rules", "list", "--stack", "nemo")


def test_a_candidate_of_another_stack_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base = write(tmp_path / "base.yaml", {"stack": "mcore", "arguments": {}})
    other = write(tmp_path / "other.yaml", {"stack": "nemo", "arguments": {}})
    assert "other.yaml: stack: nemo" in refused(capsys, "gate", base, other)


def test_the_version_and_the_help_are_no_errors(capsys: pytest.CaptureFixture[str]) -> None:
    for flag in ("--version", "--help"):
        with pytest.raises(SystemExit) as end:
            main([flag])
        assert end.value.code == 0
    assert "attuner" in capsys.readouterr().out


QUICK = ROOT / "configs" / "recipes" / "mcore" / "tiny-moe-carried-over.yaml"
LAYOUT = {
    "tensor_model_parallel_size": 1,
    "sequence_parallel": False,
    "expert_model_parallel_size": 2,
    "expert_tensor_parallel_size": 1,
}


def judged(tmp_path: Path, *argv: str, base: str = str(QUICK), **changes: Any) -> int:
    recipe = yaml.safe_load(QUICK.read_text())
    candidate = write(tmp_path / "candidate.yaml", {**recipe, "arguments": {**recipe["arguments"], **changes}})
    return main(["gate", base, candidate, *argv])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({}, 0),
        ({"micro_batch_size": 2}, 0),
        ({"attention_implementation": "sdpa"}, 3),
        ({"lr": 0.1}, 4),
        ({"micro_batch_size": 3}, 4),
    ],
)
def test_the_exit_code_of_gate_is_its_decision(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], changes: dict[str, Any], code: int
) -> None:
    assert judged(tmp_path, "--gpus", "2", "--json", **changes) == code
    said = json.loads(capsys.readouterr().out)
    assert said["decision"] == {0: "admit", 3: "review", 4: "refuse"}[code]


@pytest.mark.slow
def test_gate_takes_a_campaign_file_for_its_base(tmp_path: Path) -> None:
    assert judged(tmp_path, base=str(ROOT / "configs" / "campaigns" / "quickstart.yaml"), **LAYOUT) == 0


@pytest.mark.slow
def test_gate_admits_another_layout_between_two_recipe_files(tmp_path: Path) -> None:
    assert judged(tmp_path, "--gpus", "2", **LAYOUT) == 0


@pytest.mark.parametrize("before", [[], ["--project", str(ROOT)]])
def test_the_register_explains_a_framework_flag(before: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*before, "rules", "explain", "--stack", "megatron", "--hidden-dropout"]) == 0
    assert "MEG-OBJ-027" in capsys.readouterr().out


def test_rules_that_may_not_be_written_are_said_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A worker's user reads the checkout and writes nothing in it (docs/year.md)."""
    project = tmp_path / "checkout"
    (project / "flows").mkdir(parents=True)
    (project / "flows" / "campaign.py").write_text("")
    (project / "rules" / "LOCK").mkdir(parents=True)  # what can't be written, also for root
    assert main(["--project", str(project), "rules", "lock"]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"attuner: {project}/rules/LOCK: ")
    assert said.count("\n") == 1
