"""Triage inside a campaign: every failed trial has its diagnosis, no log can stop a trial, and the next move follows it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from book import Book
from lab import ROOT, Lab, begin, campaign, rank_step, resolved, search

from attuner.cli.read import detail, one
from attuner.core.failure import Failure
from attuner.core.judgement import Calibration
from attuner.core.recipe import EffectiveConfig
from attuner.core.run import Attempt, StepBreakdown, Trial
from attuner.core.search import Hypothesis
from attuner.launchers.replay import Replay, Row
from attuner.ports import JobSpec, RunFiles, Stamp
from attuner.proposers.catalog import Catalog
from attuner.report.rows import launch_rows
from attuner.steps.triage import HEAD_BYTES, TAIL_BYTES, triaged

RULES = ROOT / "rules"
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.00 GiB."
STACK = [
    "[rank1]: Traceback (most recent call last):",
    '[rank1]:   File "training.py", line 1, in train_step',
    "[rank1]:     ok = optimizer.step()",
    f"[rank1]: {OOM}",
]
TIMEOUT = "[rank0]:[E321 00:00:00 ProcessGroupNCCL.cpp:607] [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(x)"


def run(tmp_path: Path, files: dict[str, str], **told: str) -> Failure:
    """Return the diagnosis of a run that left these files."""
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    given = {"status": "crash", "cause": "exit code 1", "phase": "", **told}
    found = triaged(RunFiles(folder=str(tmp_path), stamp=Stamp()), RULES, "mcore", **given)
    assert found is not None
    return found


def said(rank: int, kind: str, phase: str, message: str) -> dict[str, str]:
    told = {"kind": kind, "phase": phase, "step": 0, "message": message, "t": 1.0}
    return {f"failure.rank{rank}.json": json.dumps(told)}


def test_the_logs_of_all_nodes_are_read_together(tmp_path: Path) -> None:
    found = run(tmp_path, {"log.txt": TIMEOUT, "node1.log.txt": "\n".join(STACK)})
    assert (found.kind, found.rank, found.evidence[0].file) == ("oom.optimizer_step", 1, "node1.log.txt")
    assert found.levers == ["optimizer-placement", "layout", "recompute"]


@pytest.mark.parametrize(
    ("phase", "kind", "levers"),
    [
        ("optimizer", "oom.optimizer_step", ["optimizer-placement", "layout"]),
        ("forward", "oom.forward", ["recompute", "micro-batch", "attention"]),
        ("backward", "oom.backward", ["recompute", "micro-batch", "attention"]),
    ],
)
def test_what_a_rank_said_last_tells_the_phase(tmp_path: Path, phase: str, kind: str, levers: list[str]) -> None:
    found = run(tmp_path, said(3, "oom", phase, f"device memory limit 1.50 GiB exceeded: 1.62 GiB in {phase}, step 0"))
    assert (found.kind, found.rank, found.levers) == (kind, 3, levers)


def test_a_refused_configuration_is_one_and_a_retry_does_not_help(tmp_path: Path) -> None:
    found = run(tmp_path, said(0, "config", "imports", "rows changed"))
    assert (found.kind, found.retry) == ("config.assertion", "no")


def test_a_hang_and_a_node_that_could_not_be_had_are_told_by_the_driver(tmp_path: Path) -> None:
    assert run(tmp_path, {}, status="hang", cause="no step for 60 s; 3 steps done").kind == "hang.no_progress"
    cause = "pod x-worker-0: ImagePullBackOff: not found"
    assert run(tmp_path, {}, status="infrastructure", cause=cause).kind == "k8s.image_pull"


def test_a_healthy_trial_has_no_diagnosis(tmp_path: Path) -> None:
    for status in ("ok", "stopped_early"):
        given = {"status": status, "cause": "", "phase": ""}
        assert triaged(RunFiles(folder=str(tmp_path), stamp=Stamp()), RULES, "mcore", **given) is None


@pytest.mark.parametrize(
    "files",
    [
        {"log.txt": "\x00\x1b[31m" * 1000 + "\ud800".encode("utf-8", "surrogatepass").decode("latin-1")},
        {"failure.rank0.json": "[1, 2"},
        {"failure.rank0.json": '{"kind": 1}'},
        {"failure.rankX.json": "{}"},
        {"failure.rank1.json": json.dumps({"kind": "oom", "phase": "x" * 10000, "message": "y\n" * 10000})},
    ],
)
def test_nothing_that_a_run_leaves_keeps_its_trial_from_being_recorded(tmp_path: Path, files: dict[str, str]) -> None:
    assert Failure.model_validate(run(tmp_path, files).data()).kind


def test_missing_signatures_are_said_and_no_more(tmp_path: Path) -> None:
    given = {"status": "crash", "cause": "", "phase": ""}
    found = triaged(RunFiles(folder=str(tmp_path), stamp=Stamp()), tmp_path, "", **given)
    assert found is not None
    assert found.undetermined
    assert "failures.yaml" in found.why


def test_of_a_very_long_log_beginning_and_end_are_read_with_right_line_numbers(tmp_path: Path) -> None:
    path = tmp_path / "log.txt"
    line = b"x" * 1023 + b"\n"
    num = (HEAD_BYTES + TAIL_BYTES) // len(line) + 5000
    with path.open("wb") as file:
        for _ in range(num // 1000):
            file.write(line * 1000)
        file.write(f"{OOM}\n".encode())
    found = run(tmp_path, {})
    assert found.evidence[0].line == num // 1000 * 1000 + 1


class Talking(Replay):
    """A replayed cluster whose failed runs leave the logs that a real one leaves."""

    def submit(self, attempt: Attempt, job: JobSpec) -> Attempt:
        made = super().submit(attempt, job)
        if job.job["arguments"].get("micro_batch_size") == 4:
            (Path(attempt.folder) / "log.txt").write_text("\n".join([TIMEOUT, *STACK]))
        return made


def campaign_with_a_failure(tmp_path: Path) -> Lab:
    made = Lab(tmp_path, [Row(match={"micro_batch_size": 4}, outcome="oom", detail="no room"), Row()])
    (made.rules / "failures.yaml").write_text((RULES / "failures.yaml").read_text())
    talking = Talking(made.table, made.clock)
    made.stack.replay = made.replay = talking
    kit = made.kit()
    begin(kit, campaign({"group": "micro-batch", "arguments": {"micro_batch_size": 4}}))
    search(kit)
    return made


def failed(made: Lab) -> Trial:
    history = made.history()
    return next(t for x in history.launches() if (t := history.trial(x.id)) and t.status == "oom")


def test_a_failed_trial_is_recorded_with_its_diagnosis_and_shown(tmp_path: Path) -> None:
    made = campaign_with_a_failure(tmp_path)
    failure = failed(made).failure
    assert failure is not None
    assert (failure.kind, failure.rank) == ("oom.optimizer_step", 1)
    history = made.history()
    others = [t.failure for x in history.launches() if (t := history.trial(x.id)) and t.status == "ok"]
    assert set(others) == {None}
    line = "oom.optimizer_step in optimizer step, rank 1; next: layout, recompute"
    assert line in detail(one(history), history)
    assert any(line in r.reason for r in launch_rows(history))


LEVERS: list[dict[str, Any]] = [
    {
        "id": "micro-batch",
        "changes": ["micro_batch_size"],
        "eases": {"host": 0.8},
        "idea": "fewer operators",
        "when_oom": ["recompute"],
        "options": [{"when": [{"arg": "micro_batch_size", "eq": 1}], "set": {"micro_batch_size": 4}, "memory": 1}],
    },
    {
        "id": "recompute",
        "changes": ["recompute_granularity"],
        "eases": {},
        "idea": "less is kept",
        "options": [{"set": {"recompute_granularity": "selective"}, "memory": -1}],
    },
    {
        "id": "optimizer-placement",
        "changes": ["optimizer_cpu_offload"],
        "eases": {},
        "idea": "states on the host",
        "options": [{"set": {"optimizer_cpu_offload": True}, "memory": -1}],
    },
]


def next_group(failure: Failure | None) -> str:
    """Return the group that the catalog tries after its first move ran out of memory."""
    book = Book()
    base = book.campaign.baseline.digest()
    made = resolved(book.campaign.baseline)
    book.put("effective", base, EffectiveConfig(arguments=made.arguments, env={}, facts=made.facts))
    names = [f"l{n:02d}" for n in range(1, 6)]
    for name in names:
        book.ran(name, kind="calibrate", recipe=base)
    shares = {"compute_s": 0.1, "host_s": 0.9}
    book.put("breakdown", "l05", StepBreakdown(launch_id="l05", rank_steps=[rank_step(**shares)]))
    given = {"round": 1, "launches": names, "mean": 100.0, "sigma": 0.0, "band": 0.03, "busy": False}
    book.put("calibration", "1", Calibration.model_validate({**given, "launch_gpu_hours": 1.0, "step0_loss": 5.0}))
    first = Catalog().ask(book.brief(LEVERS, "h01"))
    assert isinstance(first, Hypothesis)
    assert first.group == "micro-batch"
    book.put("hypothesis", "h01", first)
    recipe = book.recipe(**first.arguments)
    book.launch("l06", recipe=recipe, hypothesis="h01")
    book.settle("l06", 1.0)
    book.put("trial", "l06", Trial(launch_id="l06", attempt=1, status="oom", gpu_hours=1.0, failure=failure))
    second = Catalog().ask(book.brief(LEVERS, "h02"))
    assert isinstance(second, Hypothesis)
    assert second.parent == "l06"
    return second.group


@pytest.mark.parametrize(
    ("kind", "levers", "group"),
    [
        ("oom.optimizer_step", ["optimizer-placement", "layout"], "optimizer-placement"),
        ("oom.forward", ["recompute", "micro-batch"], "recompute"),
        ("oom.device", ["optimizer-placement"], "recompute"),
        ("oom.optimizer_step", [], "recompute"),
    ],
)
def test_the_phase_that_ran_out_of_memory_decides_what_is_tried_next(kind: str, levers: list[str], group: str) -> None:
    assert next_group(Failure(kind=kind, why="as the test says", levers=levers)) == group


def test_without_a_diagnosis_the_levers_own_word_holds() -> None:
    assert next_group(None) == "recompute"
