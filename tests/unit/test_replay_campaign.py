"""A replayed campaign runs the real first look, conduct, budget, band and scoring; its other looks and its product say so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from lab import ROOT
from paper_cluster import CONFIGS, FORMULA, LAYOUT, LR, NO_RECOMPUTE, NOWHERE, OOM, born, played, table

from attuner.config import load_campaign
from attuner.core.campaign import Campaign
from attuner.core.errors import Refused, UserError
from attuner.core.events import attempt_key, update_key
from attuner.core.recipe import Recipe
from attuner.launchers.replay_table import breakdown
from attuner.policy import budget
from attuner.report import claims, html, markdown
from attuner.report.facts import gather
from attuner.stacks.replay.stack import ReplayStack
from attuner.steps.ship import recipe_name

CAMPAIGN = ROOT / "configs" / "campaigns" / "replay-formula.yaml"


def test_a_replayed_campaign_finds_measures_and_keeps_apart_what_it_found(tmp_path: Path) -> None:
    history = played(tmp_path, born(LAYOUT, NO_RECOMPUTE))
    shipment, again = history.shipment(), history.remeasurement()
    assert shipment is not None
    assert again is not None
    found = table()
    row = found.find({**found.about.baseline, **LAYOUT["arguments"], "recompute_granularity": None})
    assert row is not None
    true = found.speed(row) / found.speed(found.start()) - 1.0
    assert again.gain == pytest.approx(true, abs=0.03)
    assert not shipment.kept_baseline
    assert shipment.on_paper.startswith("replayed from formula-moe-16xgpu.yaml: nothing was trained")
    assert recipe_name(shipment) == "not-shippable.recipe.yaml"


def test_the_looks_after_a_launch_are_not_available(tmp_path: Path) -> None:
    history = played(tmp_path, born(LAYOUT))
    launch = next(x for x in history.launches() if x.kind == "search")
    for key in (attempt_key(launch.id, 1), update_key(launch.id, 1)):
        verdict = history.verdict(key)
        assert verdict is not None
        assert [f.reason for f in verdict.findings] == ["not available (replay): a table holds no losses, batches or gradients"]


def test_the_report_says_that_nothing_was_trained(tmp_path: Path) -> None:
    facts = gather(played(tmp_path, born(LAYOUT)).events)
    said = "Not shippable: replayed from formula-moe-16xgpu.yaml. Nothing was trained"
    assert claims.evidence(facts).startswith(said)
    assert said in markdown.render(facts)
    assert said in html.render(facts)
    assert facts.state == "on paper"


def test_every_launch_is_charged_by_the_tables_formula(tmp_path: Path) -> None:
    history = played(tmp_path, born(OOM, LAYOUT))
    found = table()
    failed = next(x for x in history.launches() if (t := history.trial(x.id)) and t.status == "oom")
    assert history.charge(failed.id) == pytest.approx(16 * (300 + 60) / 3600)
    for launch in history.launches():
        score = history.score(launch.id)
        if score is not None:
            assert history.charge(launch.id) == pytest.approx(16 * (300 + 20 * score.step_s) / 3600)
    calibration = history.calibration()
    assert calibration is not None
    assert calibration.launch_gpu_hours == pytest.approx(found.gpu_hours(found.start()), rel=0.01)  # profiled steps are free
    assert budget.spent(history) == pytest.approx(sum(history.charge(x.id) for x in history.launches()))


def test_what_is_not_in_the_table_and_what_changes_training_is_refused_for_nothing(tmp_path: Path) -> None:
    history = played(tmp_path, born(NOWHERE, LR, {"group": "open", "arguments": {"bucket_size": 1}}))
    rules = [history.verdict(f"h0{n}").findings[0] for n in (1, 2, 3)]  # type: ignore[union-attr]
    assert rules[0].reason.startswith("16 devices don't divide by tp·pp = 16·2")
    assert rules[1].rule == "RPL-OBJ-003"
    assert rules[2].reason.startswith("bucket_size: the table formula-moe-16xgpu has no column for it")
    assert not [x for x in history.launches() if x.kind == "search"]
    assert history.shipment().kept_baseline  # type: ignore[union-attr]


def test_the_same_seed_gives_the_same_campaign_and_another_one_other_noise(tmp_path: Path) -> None:
    def speeds(name: str, seed: int) -> list[float]:
        history = played(tmp_path / name, born(LAYOUT, seed=seed))
        return [s.tokens_per_s_per_gpu for s in history.scores()]

    first = speeds("a", 1)
    assert first == speeds("b", 1)
    assert first != speeds("c", 2)
    assert len(set(first)) == len(first)  # every launch draws its own


def test_a_breakdown_adds_up_and_names_its_groups() -> None:
    row = table().start()
    found = breakdown(row, step=20, step_s=row.step_s * 1.01)
    parts = found.compute_s + found.exposed_comm_s + found.host_s + found.idle_s + found.copy_s
    assert parts == pytest.approx(found.step_s)
    assert set(found.comm_by_group) == {"tensor_expert", "pipeline", "data"}
    assert sum(found.comm_by_group.values()) == pytest.approx(found.exposed_comm_s)
    assert found.detail["recompute"] == pytest.approx(row.parts["recompute_s"] * 1.01)
    assert found.idle_s == pytest.approx(found.detail["bubble"] + found.detail["straggler"], rel=1e-3)


def resolve(**arguments: Any) -> dict[str, Any]:
    made = born()
    recipe = Recipe(stack="replay", arguments={**made.baseline.arguments, **arguments})
    return dict(ReplayStack(table()).resolve(recipe, made).flat())


def test_final_values_are_what_the_framework_makes_of_them() -> None:
    final = resolve()
    assert (final["sequence_parallel"], final["recompute_method"], final["recompute_num_layers"]) == (True, "uniform", 1)
    assert (final["fact:data_parallel_size"], final["fact:num_microbatches"]) == (2, 128)
    assert final["num_experts"] == 16
    assert resolve(tensor_model_parallel_size=1, sequence_parallel=True)["sequence_parallel"] is False
    assert resolve(virtual_pipeline_model_parallel_size=1)["virtual_pipeline_model_parallel_size"] is None


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"micro_batch_size": 3}, "global batch 256 doesn't divide by dp·micro batch = 2·3"),
        ({"expert_model_parallel_size": 16}, "16 devices don't divide by pp·ep·etp = 2·16·1"),
        ({"sequence_parallel": False}, "sequence_parallel false with tensor parallelism: not in the table"),
        ({"recompute_method": "block"}, "full recompute: the table has recompute_method uniform"),
        ({"recompute_granularity": "selective", "recompute_method": "uniform"}, "the method is for full recompute"),
        ({"pipeline_model_parallel_size": 1, "virtual_pipeline_model_parallel_size": 2}, "virtual stages 2 need pipeline stages"),
        ({"decoder_first_pipeline_num_layers": 10}, "the table has None at this pipeline size"),
        ({"tensor_model_parallel_size": "two"}, "'two' is not a number"),
        (
            {"tensor_model_parallel_size": 1, "expert_model_parallel_size": 4, "expert_tensor_parallel_size": 2},
            "not in the table formula-moe-16xgpu",
        ),
    ],
)
def test_what_can_t_be_built_is_refused_with_the_formula(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(Refused, match=said):
        resolve(**arguments)


def test_the_campaign_files_are_whole_and_agree_with_their_tables() -> None:
    for path in sorted(CAMPAIGN.parent.glob("replay-*.yaml")):
        made = load_campaign(path, configs=CONFIGS)
        description = yaml.safe_load(Path(made.launcher.table).read_text())
        assert made.baseline.arguments == description["baseline"]
        assert (made.workload.gpus, made.workload.global_batch) == (description["gpus"], description["global_batch"])
    formula = load_campaign(CAMPAIGN, configs=CONFIGS)
    assert formula.proposer.space == table().space()
    assert Path(formula.launcher.table) == FORMULA


def file_with(tmp_path: Path, **changes: Any) -> Path:
    data = {**yaml.safe_load(CAMPAIGN.read_text()), **changes}
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(data))
    return tmp_path / "c.yaml"


def test_stack_and_launcher_replay_go_together_and_the_probe_is_optional(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"gate\.probe: a replayed table has no gradients"):
        load_campaign(file_with(tmp_path, gate={}), configs=CONFIGS)
    launcher = {"name": "ray_jobs", "cluster": "clusters/b200.yaml"}
    with pytest.raises(UserError, match=r"launcher\.name: stack replay and launcher replay play a table together"):
        load_campaign(file_with(tmp_path, launcher=launcher), configs=CONFIGS)
    launcher = {"name": "replay", "cluster": "clusters/b200.yaml", "table": "replay/none.yaml"}
    with pytest.raises(UserError, match=r"replay/none\.yaml: no such file"):
        load_campaign(file_with(tmp_path, launcher=launcher), configs=CONFIGS)


def test_a_workload_other_than_the_tables_is_one_line() -> None:
    made: Campaign = born()
    work = made.workload.model_copy(update={"steps": 30})
    with pytest.raises(UserError, match=r"workload\.steps: 30, but formula-moe-16xgpu\.yaml was made for 20"):
        ReplayStack(table()).resolve(made.baseline, made.model_copy(update={"workload": work}))
