"""`attuner gate --runs`: the campaign's verdicts on two finished runs, and what plain logs can and cannot say."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from looks import LOSSES, Data, evidence, fingerprint, limits, reclip, scale, steps
from test_megatron_log import line

from attuner.cli.gate_runs import Judged, judge_runs
from attuner.cli.main import main
from attuner.core.errors import UserError
from attuner.policy.gate import forward_look, update_look
from attuner.settings import load_settings

FINAL: dict[str, Any] = {"lr": 1e-4, "tensor_model_parallel_size": 1, "micro_batch_size": 1}
FACTS: dict[str, Any] = {"data_parallel_size": 2, "expert_tensor_parallel_size": 1}


def run(folder: Path, spoil: Callable[[Data], object] | None = None, *, without: tuple[str, ...] = (), **final: Any) -> Path:
    """Write the folder of a finished launch."""
    folder.mkdir()
    data = fingerprint()
    if spoil is not None:
        spoil(data)
    job = {"stack": "mcore", "device": {"kind": "cpu"}, "load": "/somewhere", "arguments": {}}
    config = {"arguments": {**FINAL, **final}, "facts": FACTS, "env": {"OMP_NUM_THREADS": "1"}, "versions": {"torch": "2.9"}}
    for name, value in (("job.json", job), ("config.json", config), ("fingerprint.json", data)):
        if name not in without:
            (folder / name).write_text(json.dumps(value))
    if "steps.jsonl" not in without:
        (folder / "steps.jsonl").write_text("".join(s.model_dump_json() + "\n" for s in steps()))
    return folder


def log(file: Path, *losses: float, batch: int = 8) -> Path:
    file.write_text("\n".join(line(n, x, batch=batch) for n, x in enumerate(losses or LOSSES, 1)))
    return file


def judged(base: Path, candidate: Path, **more: Any) -> Judged:
    return judge_runs(base, candidate, load_settings({}), **more)


def unreduced(data: Data) -> None:
    scale(data, 2.0, "qk_norm")
    reclip(data)
    data["layout"].update(tp=2, dp=1)


def test_two_runs_of_the_same_are_admitted_by_three_looks(tmp_path: Path) -> None:
    found = judged(run(tmp_path / "a"), run(tmp_path / "b"))
    assert found.decision == "admit"
    assert [v.look for v in found.verdicts] == ["config", "forward", "update"]
    assert found.impossible == {}


@pytest.mark.parametrize("spoil", [None, unreduced, lambda d: d["steps"][0]["batch"].update(labels="other")])
def test_the_verdicts_are_those_of_a_campaign(tmp_path: Path, spoil: Callable[[Data], object] | None) -> None:
    found = judged(run(tmp_path / "a"), run(tmp_path / "b", spoil))
    given: dict[str, Any] = {"limits": limits(), "subject": "s", "recipe": "r"}
    reference, candidate = [evidence(label="a")], evidence(spoil, label="b")
    for mine, theirs in ((found.verdicts[1], forward_look), (found.verdicts[2], update_look)):
        wanted = theirs(reference, candidate, **given)
        assert [f.data() for f in mine.findings] == [f.data() for f in wanted.findings]


def test_the_first_look_reads_what_both_runs_reported_as_final(tmp_path: Path) -> None:
    found = judged(run(tmp_path / "a"), run(tmp_path / "b", lr=1e-3))
    assert found.verdicts[0].decision == "refuse"
    assert found.verdicts[0].refusals()[0].key == "lr"
    assert judged(run(tmp_path / "c"), run(tmp_path / "d", micro_batch_size=2)).verdicts[0].findings[0].key == "micro_batch_size"


@pytest.mark.parametrize(
    ("without", "look"), [("config.json", "config"), ("fingerprint.json", "update")], ids=["no final values", "no fingerprint"]
)
def test_a_look_that_was_not_possible_is_named_and_nothing_is_admitted(tmp_path: Path, without: str, look: str) -> None:
    found = judged(run(tmp_path / "a"), run(tmp_path / "b", without=(without,)))
    assert found.decision == "review"
    assert list(found.impossible) == [look]
    assert str(tmp_path / "b") in found.impossible[look]


def test_a_dead_baseline_is_matched_by_nobody(tmp_path: Path) -> None:
    def dead(data: Data) -> None:
        scale(data, 0.0)
        reclip(data)

    found = judged(run(tmp_path / "a", dead), run(tmp_path / "b"))
    assert found.decision == "refuse"
    assert found.baseline is not None
    assert "the gradient is zero" in found.baseline.findings[0].reason


def test_a_folder_that_a_probe_left_alone_is_judged_too(tmp_path: Path) -> None:
    without = ("job.json", "config.json", "steps.jsonl")
    found = judged(run(tmp_path / "a", without=without), run(tmp_path / "b", without=without))
    assert found.stack == "megatron"
    assert list(found.impossible) == ["config"]
    assert {v.look: v.decision for v in found.verdicts}["update"] == "admit"


def test_a_probes_folder_with_its_log_has_the_whole_curve(tmp_path: Path) -> None:
    without = ("job.json", "config.json", "steps.jsonl")
    for name in "ab":
        log(run(tmp_path / name, without=without) / "log.txt")
    curve = {f.key: f for f in judged(tmp_path / "a", tmp_path / "b").verdicts[0].findings}["curve"]
    assert "over 6 steps" in curve.reason


# ------------------------------------------------------------------------------------------------- plain logs


def test_plain_logs_say_curve_losses_and_norm_and_never_admit(tmp_path: Path) -> None:
    found = judged(log(tmp_path / "a.log"), log(tmp_path / "b.log"))
    assert found.decision == "review"
    assert set(found.impossible) == {"config", "update"}
    said = {f.key: f.decision for v in found.verdicts for f in v.findings}
    admitted = {"step-0 loss", "finite losses", "curve", "gradient norm", "step-1 loss", "rows per update"}
    assert {k for k in admitted if said[k] == "admit"} == admitted
    assert (said["batch"], said["third look"]) == ("review", "review")


@pytest.mark.parametrize(
    ("losses", "batch", "key"),
    [
        ((3.1, *LOSSES[1:]), 8, "step-0 loss"),
        ((*LOSSES[:3], 2.5, 2.4, 2.2), 8, "curve"),
        (LOSSES, 16, "rows per update"),
    ],
)
def test_plain_logs_refuse_what_they_show(tmp_path: Path, losses: tuple[float, ...], batch: int, key: str) -> None:
    found = judged(log(tmp_path / "a.log"), log(tmp_path / "b.log", *losses, batch=batch))
    assert found.decision == "refuse"
    assert key in {f.key for v in found.verdicts for f in v.refusals()}


# ------------------------------------------------------------------------------------------------- the command


@pytest.mark.parametrize(
    ("spoil", "without", "code"), [(None, (), 0), (None, ("fingerprint.json",), 3), (unreduced, (), 4)], ids=["0", "3", "4"]
)
def test_exit_codes_fit_a_pull_requests_check(
    tmp_path: Path,
    spoil: Callable[[Data], object] | None,
    without: tuple[str, ...],
    code: int,
    capsys: pytest.CaptureFixture[str],
) -> None:
    base, candidate = str(run(tmp_path / "a")), str(run(tmp_path / "b", spoil, without=without))
    assert main(["gate", "--runs", base, candidate]) == code
    said = capsys.readouterr().out
    assert said.startswith({0: "admit", 3: "review", 4: "refuse"}[code])
    assert ("third look, backward and update: not possible" in said) is (code == 3)
    assert main(["gate", "--runs", "--json", base, candidate]) == code
    data = json.loads(capsys.readouterr().out)
    assert data["decision"] == {0: "admit", 3: "review", 4: "refuse"}[code]
    assert list(data["not_possible"]) == (["update"] if code == 3 else [])


def test_a_refusal_names_measurement_values_tolerance_cause_and_what_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["gate", "--runs", str(run(tmp_path / "a")), str(run(tmp_path / "b", unreduced))])
    lines = capsys.readouterr().out.splitlines()
    at = next(i for i, x in enumerate(lines) if "gradient norm qk_norm" in x)
    assert lines[at] == "refuse  MCO-TOL-007  gradient norm qk_norm 0.01 → 0.02"
    assert lines[at + 1].strip() == "deviation 1, beyond the outer limit 0.0001"
    assert lines[at + 2].strip().startswith("likely: qk_norm gradients are 2.00 × the baseline's = TP: summed over")
    assert lines[at + 3].strip().startswith("do: see the sequence_parallel mark")
    assert lines[at + 4].strip().startswith("source: ")


@pytest.mark.parametrize("name", ["absent", "empty", "other.txt", "broken"])
def test_what_is_no_run_is_one_line(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "other.txt").write_text("hello")
    run(tmp_path / "broken")
    (tmp_path / "broken" / "config.json").write_text("{")
    with pytest.raises(UserError) as told:
        judged(run(tmp_path / "a"), tmp_path / name)
    assert str(tmp_path / name) in str(told.value)
    assert "\n" not in str(told.value)


def test_runs_of_different_stacks_need_one_named(tmp_path: Path) -> None:
    base = run(tmp_path / "a")
    (base / "job.json").write_text(json.dumps({"stack": "megatron"}))
    with pytest.raises(UserError, match="different stacks"):
        judged(base, run(tmp_path / "b"))
    assert judged(base, tmp_path / "b", stack="mcore").stack == "mcore"
