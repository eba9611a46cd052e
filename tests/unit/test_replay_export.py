"""A recorded campaign becomes a table, and the table plays what the campaign measured."""

from __future__ import annotations

from pathlib import Path

import pytest
from lab import ID, LR, MICRO, Lab, Row, campaign, play, rank_step

from attuner.bench.arms import arm
from attuner.bench.play import Entry, Protocol, run
from attuner.bench.play import campaign as bench_campaign
from attuner.core.campaign import ProposerSpec
from attuner.core.errors import UserError
from attuner.core.events import History
from attuner.core.run import StepBreakdown
from attuner.proposers.scripted import Scripted
from attuner.tables import Table, load_table, recorded
from attuner.tables.recorded import mean_step

ROWS = [
    Row(match={"micro_batch_size": 8}, outcome="oom", detail="1.2 GiB asked, 1.0 GiB allowed"),
    Row(match={"micro_batch_size": 4}, step_s=0.5, losses=[5.0], peak_mem_gib=0.3),
    Row(step_s=1.0, jitter=0.01, losses=[5.0], peak_mem_gib=0.2),
]
OOM = {"group": "micro-batch", "arguments": {"micro_batch_size": 8}}
ODD = {"group": "layout", "arguments": {"tensor_model_parallel_size": 3}}


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    made = Lab(tmp_path_factory.mktemp("lab"), ROWS)
    made.stack.shares = {"compute_s": 0.6, "comm:all_reduce": 0.4}
    play(made.kit(), campaign(MICRO, OOM, ODD, LR))
    return made


def written(lab: Lab, folder: Path) -> Table:
    made = recorded(lab.history())
    (folder / "lab.csv").write_text(made.rows)
    (folder / "lab.yaml").write_text(made.about)
    return load_table(folder / "lab.csv")


def test_rows_are_what_was_measured_failed_or_was_refused_by_the_framework(lab: Lab, tmp_path: Path) -> None:
    found = written(lab, tmp_path)
    assert found.axes == ("micro_batch_size", "tensor_model_parallel_size")
    outcomes = {(r.arguments["micro_batch_size"], r.arguments["tensor_model_parallel_size"]): r for r in found.rows.values()}
    assert {k: r.outcome for k, r in outcomes.items()} == {(1, 2): "ok", (4, 2): "ok", (8, 2): "oom", (4, 3): "invalid"}
    assert outcomes[4, 2].step_s == pytest.approx(0.5)
    assert outcomes[4, 2].peak_mem_gib == 0.3
    assert outcomes[4, 3].note.startswith("world size 2 does not divide")
    assert found.about.kind == "recorded"
    assert found.about.startup_s == pytest.approx(5.0)  # what the lab's cluster takes to start
    assert ID in found.about.source


def test_the_table_plays_the_campaign_again(lab: Lab, tmp_path: Path) -> None:
    found = written(lab, tmp_path)
    entry = Entry(found.path, arm("random"), 0, Protocol())
    script = ProposerSpec(name="scripted", script=[dict(m) for m in (MICRO, OOM, ODD)])
    made = bench_campaign(found, entry, configs=tmp_path).model_copy(update={"proposer": script})
    rules = Path(__file__).resolve().parents[2] / "rules"
    history: History = run(found, made, Scripted(), folder=tmp_path / "run", rules=rules)
    assert history.remeasurement().gain == pytest.approx(1.0, abs=0.05)  # type: ignore[union-attr]
    searched = [x for x in history.launches() if x.kind == "search"]
    assert [history.trial(x.id).status for x in searched] == ["ok", "oom"]  # type: ignore[union-attr]
    oom = lab.history()
    recorded_oom = next(t for x in oom.launches() if (t := oom.trial(x.id)) and t.status == "oom")
    assert history.charge(searched[1].id) == pytest.approx(recorded_oom.gpu_hours)
    step = history.breakdown(searched[0].id).rank_steps[0]  # type: ignore[union-attr]
    assert step.comm_by_kind["all_reduce"] / step.step_s == pytest.approx(0.4)


def test_what_has_no_baseline_or_is_a_replay_is_no_table(tmp_path: Path) -> None:
    lab = Lab(tmp_path, ROWS)
    kit = lab.kit()
    from attuner.steps.birth import birth

    birth(kit, campaign(MICRO))
    with pytest.raises(UserError, match="was not calibrated"):
        recorded(lab.history())


def test_the_mean_of_a_breakdown_is_over_ranks_and_steps() -> None:
    made = StepBreakdown(
        launch_id="l01", rank_steps=[rank_step(compute_s=0.6, **{"comm:a": 0.4}), rank_step(compute_s=0.8, **{"comm:b": 0.2})]
    )
    mean = mean_step(made)
    assert (mean.compute_s, mean.exposed_comm_s) == (pytest.approx(0.7), pytest.approx(0.3))
    assert mean.comm_by_kind == {"a": pytest.approx(0.2), "b": pytest.approx(0.1)}
