"""The gate against planted faults: a few in real runs, and the whole study's tables, which are kept in docs/gate_study."""

import ast
import csv
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from . import judge, plan, study, workload
from .farm import ROOT, Farm
from .faults import FAULTS

RESULTS = ROOT / "docs" / "gate_study"


def table(name: str) -> list[dict[str, str]]:
    with (RESULTS / name).open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


# ------------------------------------------------------------------------------------------------ the table of faults


def functions(module: str) -> set[str]:
    tree = ast.parse((Path(__file__).parent / f"plants_{module}.py").read_text())
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")}


def test_every_fault_says_where_it_is_known_from() -> None:
    assert [fault.name for fault in FAULTS.values() if not fault.source or not fault.says] == []


def test_every_fault_plants_a_mechanism_or_changes_the_recipe() -> None:
    known = {f"{module}.{name}" for module in ("batch", "model", "update") for name in functions(module)}
    planted = {fault.plant for fault in FAULTS.values() if fault.plant}
    assert planted - known == set()
    assert known - planted == {"batch.wrap"}  # a mechanism that nobody plants proves nothing
    assert [fault.name for fault in FAULTS.values() if bool(fault.plant) == bool(fault.change)] == []


def test_every_run_of_the_plan_has_a_name_of_its_own() -> None:
    cases = plan.whole()
    assert len({case.name for case in cases}) == len(cases)
    assert sum(case.kind == "healthy" for case in cases) >= 200


def test_the_papers_fourteen_kinds_are_planted() -> None:
    kinds = {
        *("capacity-argument", "lr-argument", "batch-argument", "bf16-reduction-argument", "per-token-argument", "aux-argument"),
        *("ep1-etp4", "pipeline-halves-aux", "labels-shifted", "sinks-ignored"),
        *("bucket-skipped", "aux-zero", "mask-shifted", "qk-norm-summed"),
    }
    assert len(kinds) == 14
    assert {name for name in kinds if "paper" in FAULTS[name].source} == kinds
    assert "uneven-split" in FAULTS


# ------------------------------------------------------------------------------------------------ what the study found


def test_the_study_refused_every_planted_fault() -> None:
    """The tables are those of the study's last run, made with the register and tolerances that study.json names.

    They are not made anew when the policy changes: `make gate-study ARGS=--judge-only` does that, from the runs in out/.
    """
    found = {line["fault"]: line for line in table("summary.csv") if line["fault"]}
    expected = {fault.name for fault in FAULTS.values() if fault.runs}
    assert set(found) == expected, "run `make gate-study`: the table and the faults have parted"
    missed = {name: line for name, line in found.items() if line["refused"] != line["runs"] and not line["limit"]}
    assert missed == {}


def test_the_study_turned_no_honest_run_away() -> None:
    honest = [line for line in table("verdicts.csv") if line["kind"] != "fault"]
    assert sum(line["kind"] == "healthy" for line in honest) >= 200
    assert [line["run"] for line in honest if line["decision"] == "refuse" or line["failed"]] == []
    assert {line["precision"] for line in honest} == {"fp32", "bf16"}
    assert len({line["batch"] for line in honest}) >= 4


def test_what_no_look_can_see_is_said_so() -> None:
    limits = {fault.name for fault in FAULTS.values() if fault.limit}
    assert {line["fault"] for line in table("summary.csv") if line["limit"]} == limits


@pytest.mark.slow
def test_a_fault_that_the_trainer_refuses_to_build_is_refused_before_launch() -> None:
    first = judge.FirstLook()
    unbuilt = [fault for fault in FAULTS.values() if not fault.runs]
    cases = [plan.Case("fault", *plan.split(f.where[0])[:2], f.precisions[0], 0, "", f.name) for f in unbuilt]
    decisions = {case.fault: first.judge(case).decision for case in cases}
    first.close()
    assert decisions == {fault.name: "refuse" for fault in unbuilt}


# ------------------------------------------------------------------------------------------------ real runs

PLANTED = {
    "bucket-skipped": "moe/dp2+buckets",
    "aux-gradient-zero": "moe/dp2",
    "mask-shifted": "moe/pp2",
    "lr-unseen": "moe/dp2",
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Baseline, one honest candidate and four faults, from a checkpoint trained a little."""
    work = tmp_path_factory.mktemp("study")
    with Farm() as farm:
        workload.prepare(work, farm, weights={"moe"}, steps=20)
        for case in [baseline(0), honest(), *(planted(name) for name in PLANTED)]:
            assert study.run(case, work, farm, "")[0] == "ok", (work / "runs" / case.name / "log.txt").read_text()[-3000:]
        yield work


def baseline(replicate: int) -> plan.Case:
    return plan.Case("baseline", "moe", "dp2", "fp32", 0, replicate=replicate)


def honest() -> plan.Case:
    return plan.Case("healthy", "moe", "pp2", "fp32", 0, "recompute-full")


def planted(name: str) -> plan.Case:
    variant, layout, lever = plan.split(PLANTED[name])
    return plan.Case("fault", variant, layout, "fp32", 0, lever, name)


@pytest.mark.slow
@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_fault_is_refused(made: Path, name: str) -> None:
    [found] = judge.judge_all([baseline(0), planted(name)], made)
    assert found.verdicts["config"].decision == "admit"  # the configuration shows nothing of it
    assert found.decision()[0] == "refuse", [f.line() for v in found.verdicts.values() for f in v.findings]


@pytest.mark.slow
def test_another_layout_is_admitted(made: Path) -> None:
    [found] = judge.judge_all([baseline(0), honest()], made)
    assert found.decision() == ("admit", ""), [f.line() for v in found.verdicts.values() for f in v.refusals() + v.reviews()]


@pytest.mark.slow
def test_a_forked_run_is_the_run_that_torchrun_makes(made: Path, tmp_path: Path) -> None:
    """Without a fault, `tests.faults.rank` under torchrun and the farm give the same steps, bit for bit."""
    (tmp_path / "job.json").write_text(json.dumps(baseline(0).job(made)))
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--max-restarts=0", "--nproc-per-node=2"]
    done = subprocess.run(
        [sys.executable, *torchrun, "-m", "tests.faults.rank", str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert losses(tmp_path) == losses(made / "runs" / baseline(0).name)


def losses(folder: Path) -> list[tuple[float, float, float]]:
    steps = [json.loads(line) for line in (folder / "steps.jsonl").read_text().splitlines()]
    return [(step["lm_loss"], step["grad_norm"], step["aux"]["load_balancing_loss"]) for step in steps]
