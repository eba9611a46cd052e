"""Laws of a whole campaign, on the replayed cluster: what ships, what never leads, what stops the search."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from lab import ID, LAYOUT, LR, MICRO, SDPA, UNCOVERED, Lab, begin, campaign, finish, measured, play, search

from attuner.core.errors import Broken
from attuner.launchers.replay import Row
from attuner.policy import budget
from attuner.steps.launch import launch

FASTER = Row(match={"micro_batch_size": 4}, step_s=0.5)
SDPA_FASTER = Row(match={"attention_implementation": "sdpa"}, step_s=0.5)
REST = Row(step_s=1.0, jitter=0.005)


def lab(tmp_path: Path, *rows: Row, **more: Any) -> Lab:
    return Lab(tmp_path, [*rows, REST], **more)


def test_the_faster_recipe_ships_with_its_remeasured_gain(tmp_path: Path) -> None:
    made = lab(tmp_path, FASTER)
    shipment = play(made.kit(), campaign(LR, MICRO))
    again = made.history().remeasurement()
    assert not shipment.kept_baseline
    assert again is not None
    assert shipment.gain == again.gain == pytest.approx(1.0, abs=0.02)
    assert made.history().recipe(shipment.recipe).arguments["micro_batch_size"] == 4
    assert {p.name for p in (tmp_path / ID).glob("re*.*")} == {"recipe.yaml", "report.md", "report.html"}


def test_a_refused_hypothesis_launches_nothing_and_costs_nothing(tmp_path: Path) -> None:
    made = lab(tmp_path)
    play(made.kit(), campaign(LR))
    assert [x.kind for x in made.history().launches()] == ["calibrate"] * 5
    verdict = made.history().verdict("h01")
    assert verdict is not None
    assert verdict.decision == "refuse"


def test_every_launch_was_reserved_before_and_settled_after(tmp_path: Path) -> None:
    made = lab(tmp_path, FASTER)
    play(made.kit(), campaign(MICRO))
    history = made.history()
    order = [(e.kind, e.key.split("#")[0]) for e in history.events if e.kind in ("launch", "attempt", "settled", "trial")]
    for launch_ in history.launches():
        kinds = [kind for kind, key in order if key == launch_.id]
        assert kinds == ["launch", "attempt", "attempt", "settled", "trial"]
        assert launch_.reserve_gpu_hours > 0
    assert budget.spent(history) == pytest.approx(sum(t.gpu_hours for x in history.launches() if (t := history.trial(x.id))))
    assert budget.reserved(history) == 0


def test_a_gain_inside_the_band_keeps_the_baseline(tmp_path: Path) -> None:
    made = lab(tmp_path, Row(match={"micro_batch_size": 4}, step_s=0.98))
    shipment = play(made.kit(), campaign(MICRO))
    assert shipment.kept_baseline
    assert shipment.gain == 0
    assert made.history().recipe(shipment.recipe) == campaign().baseline


def test_an_open_review_keeps_a_recipe_from_shipping_before_ship(tmp_path: Path) -> None:
    made = lab(tmp_path, Row(match={"bucket_size": 1000}, step_s=0.5))
    shipment = play(made.kit(), campaign(UNCOVERED))
    assert shipment.kept_baseline
    assert "review" in shipment.reason
    assert shipment.open_reviews
    assert made.history().scores()[-1].new_leader


def test_an_open_review_ships_and_is_listed_under_report_only(tmp_path: Path) -> None:
    made = lab(tmp_path, Row(match={"bucket_size": 1000}, step_s=0.5))
    shipment = play(made.kit(), campaign(UNCOVERED, gate={"review": "report_only"}))
    assert not shipment.kept_baseline
    assert "bucket_size" in shipment.open_reviews[0]


def test_before_ship_passes_over_a_leader_with_a_review_for_the_next_best(tmp_path: Path) -> None:
    both = {"micro_batch_size": 4, "bucket_size": 1000}
    made = lab(tmp_path, Row(match=both, step_s=0.25), FASTER)
    shipment = play(made.kit(), campaign(MICRO, UNCOVERED))
    assert made.history().recipe(shipment.recipe) == campaign().baseline.changed({"micro_batch_size": 4})
    assert not shipment.kept_baseline


@pytest.mark.parametrize("losses", [[5.3], [4.7]])
def test_a_forward_look_refusal_never_leads_however_fast(tmp_path: Path, losses: list[float]) -> None:
    made = lab(tmp_path, Row(match={"micro_batch_size": 4}, step_s=0.1, losses=losses))
    shipment = play(made.kit(), campaign(MICRO))
    found = made.history().scores()[-1]
    assert found.valid
    assert found.decision == "refuse"
    assert not found.new_leader
    assert shipment.kept_baseline
    assert [x.kind for x in made.history().launches()].count("remeasure") == 0


def test_a_loss_that_turns_nan_is_refused_by_the_forward_look(tmp_path: Path) -> None:
    made = lab(tmp_path, FASTER)
    kit = made.kit()
    begin(kit, campaign(MICRO))
    made.stack.spoiled = True
    search(kit)
    assert [s.decision for s in made.history().scores()] == ["admit"] * 5 + ["refuse"]
    assert finish(kit).kept_baseline


def test_the_replayed_cluster_can_play_a_loss_that_turns_nan(tmp_path: Path) -> None:
    made = lab(tmp_path, Row(match={"micro_batch_size": 4}, step_s=0.1, losses=[5.0, float("nan")]))
    assert play(made.kit(), campaign(MICRO)).kept_baseline


def test_same_math_without_a_component_test_is_tested_and_then_admitted(tmp_path: Path) -> None:
    made = lab(tmp_path, SDPA_FASTER)
    shipment = play(made.kit(), campaign(SDPA))
    assert not shipment.kept_baseline
    assert shipment.open_reviews == []
    assert [x.kind for x in made.history().launches()].count("check") == 1
    assert made.history().charge("l06") > 0


def test_a_failed_component_test_refuses(tmp_path: Path) -> None:
    made = lab(tmp_path, SDPA_FASTER)
    made.stack.component_passes = False
    assert play(made.kit(), campaign(SDPA)).kept_baseline
    verdict = made.history().verdict("h01")
    assert verdict is not None
    assert verdict.decision == "refuse"


def test_manual_component_tests_leave_same_math_to_a_person(tmp_path: Path) -> None:
    made = lab(tmp_path, SDPA_FASTER)
    assert play(made.kit(), campaign(SDPA, gate={"component_tests": "manual"})).kept_baseline
    assert [x.kind for x in made.history().launches()].count("check") == 0


@pytest.mark.parametrize("outcome", ["oom", "hang", "crash", "time_limit"])
def test_a_failed_run_becomes_a_trial_and_the_search_goes_on(tmp_path: Path, outcome: str) -> None:
    made = lab(tmp_path, Row(match={"tensor_model_parallel_size": 1}, outcome=outcome, detail="as rehearsed"), FASTER)
    shipment = play(made.kit(), campaign(LAYOUT, MICRO))
    failed = made.history().trial("l06")
    assert failed is not None
    assert failed.status == {"time_limit": "hang"}.get(outcome, outcome)
    assert failed.cause == "as rehearsed"
    assert failed.gpu_hours > 0
    assert made.history().score("l06") is None
    assert not shipment.kept_baseline


def test_a_recipe_that_failed_is_refused_unchanged(tmp_path: Path) -> None:
    made = lab(tmp_path, Row(match={"tensor_model_parallel_size": 1}, outcome="oom"))
    play(made.kit(), campaign(LAYOUT, LAYOUT))
    verdict = made.history().verdict("h02")
    assert verdict is not None
    assert "failed in l06" in verdict.findings[0].reason
    assert [x.kind for x in made.history().launches()].count("search") == 1


def test_a_layout_that_does_not_divide_is_refused_with_its_formula(tmp_path: Path) -> None:
    made = lab(tmp_path)
    play(made.kit(), campaign({"group": "layout", "arguments": {"pipeline_model_parallel_size": 3}}))
    verdict = made.history().verdict("h01")
    assert verdict is not None
    assert verdict.findings[0].rule == "layout"
    assert "tp·pp = 6" in verdict.findings[0].reason


class Uneven(Lab):
    """A lab in which the candidate's own report of its arguments is not what was judged, for its first `bad` attempts."""

    bad = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        honest = self.stack.resolve
        count = iter(range(99))

        class Liar(type(self.stack)):  # type: ignore[misc]
            def command(self, recipe: Any, campaign: Any, **more: Any) -> Any:
                job = super().command(recipe, campaign, **more)
                if recipe.arguments["micro_batch_size"] == 4 and next(count) < bad:
                    self.replay.final_arguments(recipe.arguments, {**honest(recipe, campaign).arguments, "lr": 1})
                return job

        bad = self.bad
        self.stack = Liar(self.replay)


class Hopeless(Uneven):
    bad = 99


def test_an_invalid_measurement_gets_one_fresh_attempt_and_that_one_counts(tmp_path: Path) -> None:
    made = Uneven(tmp_path, [FASTER, REST])
    shipment = play(made.kit(), campaign(MICRO))
    assert [a.number for a in made.history().attempts("l06")] == [1, 2]
    assert made.history().scores()[5].attempt == 2
    assert not shipment.kept_baseline


def test_a_run_with_other_arguments_than_judged_is_invalid_and_never_leads(tmp_path: Path) -> None:
    made = Hopeless(tmp_path, [FASTER, REST])
    shipment = play(made.kit(), campaign(MICRO))
    found = made.history().score("l06")
    assert found is not None
    assert "not those that were judged" in found.why_invalid
    assert [a.number for a in made.history().attempts("l06")] == [1, 2]
    assert shipment.kept_baseline


def test_a_resumed_campaign_pays_no_third_attempt_of_an_invalid_measurement(tmp_path: Path) -> None:
    made = Hopeless(tmp_path, [FASTER, REST])
    play(made.kit(), campaign(MICRO))
    kit = made.kit()  # `attuner resume`: another flow run, so Prefect's cache knows nothing
    measured(kit, "l06")
    assert [a.number for a in made.history().attempts("l06")] == [1, 2]


def test_the_breakdown_is_that_of_the_attempt_that_counts(tmp_path: Path) -> None:
    made = Uneven(tmp_path, [FASTER, REST])
    made.stack.shares = {"compute_s": 1.0}
    play(made.kit(), campaign(MICRO))
    found = made.history().breakdown("l06")
    assert found is not None
    assert found.attempt == 2


def test_a_fresh_attempt_that_the_budget_does_not_pay_is_not_made(tmp_path: Path) -> None:
    least = 11 * budget.RESERVE * 2 * 10 / 3600 + 1e-9
    made = Hopeless(tmp_path, [FASTER.model_copy(update={"step_s": 4.0}), REST])
    play(made.kit(), campaign(MICRO, budget={"gpu_hours": least}))
    found = made.history().score("l06")
    assert found is not None
    assert not found.valid
    assert [a.number for a in made.history().attempts("l06")] == [1]


class Telling(Lab):
    """A lab in which every run reports an environment: `told[launch id]`, else `told['']`."""

    told: dict[str, dict[str, str]] = {}

    def __post_init__(self) -> None:
        super().__post_init__()
        told = self.told

        class Teller(type(self.stack)):  # type: ignore[misc]
            def read(self, files: Any) -> Any:
                env = told.get(Path(files.folder).name.split("-")[0], told.get("", {}))
                return super().read(files).model_copy(update={"env": env})

        self.stack = Teller(self.replay)


def told_env(tmp_path: Path, told: dict[str, dict[str, str]], *script: dict[str, Any]) -> Telling:
    made = type("Told", (Telling,), {"told": told})(tmp_path, [FASTER, REST])
    play(made.kit(), campaign(*(script or (MICRO,))))
    return made  # type: ignore[no-any-return]


OWN = {"OMP_NUM_THREADS": "1", "NCCL_DEBUG": "INFO"}


def test_an_environment_that_every_run_reports_is_no_difference(tmp_path: Path) -> None:
    made = told_env(tmp_path, {"": OWN})
    shipment = made.history().shipment()
    assert shipment is not None
    assert not shipment.kept_baseline
    assert all(t.env == OWN for x in made.history().launches() if (t := made.history().trial(x.id)))


@pytest.mark.parametrize(
    "env",
    [{**OWN, "NCCL_ALGO": "Tree"}, {**OWN, "OMP_NUM_THREADS": "2"}, {"OMP_NUM_THREADS": "1"}, {}],
    ids=["one more", "another value", "one less", "none"],
)
def test_a_run_in_another_environment_than_the_baselines_is_invalid_and_never_leads(tmp_path: Path, env: dict[str, str]) -> None:
    made = told_env(tmp_path, {"": OWN, "l06": env})
    found, shipment = made.history().score("l06"), made.history().shipment()
    assert found is not None
    assert shipment is not None
    assert (found.valid, found.new_leader, found.attempt) == (False, False, 2)
    assert "environment" in found.why_invalid
    for name in OWN.keys() ^ env.keys():
        assert name in found.why_invalid
    assert shipment.kept_baseline


@pytest.mark.parametrize(("value", "valid"), [("Tree", True), ("Ring", False)])
def test_a_judged_variable_must_have_the_value_that_was_judged(tmp_path: Path, value: str, valid: bool) -> None:
    move = {"group": "open", "env": {"NCCL_ALGO": "Tree"}}
    made = told_env(tmp_path, {"": OWN, "l06": {**OWN, "NCCL_ALGO": value}}, move)
    found = made.history().score("l06")
    assert found is not None
    assert found.valid is valid


def test_a_variable_that_no_baseline_run_had_is_noticed_when_they_had_none(tmp_path: Path) -> None:
    made = told_env(tmp_path, {"": {}, "l06": {"NCCL_ALGO": "Tree"}})
    found = made.history().score("l06")
    assert found is not None
    assert not found.valid


def test_a_judged_variable_that_never_reached_the_run_is_noticed(tmp_path: Path) -> None:
    move = {"group": "open", "env": {"NCCL_ALGO": "Tree"}}
    found = told_env(tmp_path, {"": OWN}, move).history().score("l06")
    assert found is not None
    assert not found.valid


def test_both_attempts_of_an_invalid_measurement_are_charged(tmp_path: Path) -> None:
    made = Uneven(tmp_path, [FASTER, REST])
    play(made.kit(), campaign(MICRO))
    found = made.history().trial("l06")
    assert found is not None
    assert found.gpu_hours == pytest.approx(sum(s.gpu_hours for s in made.history().settlements() if s.launch_id == "l06"))


def test_a_launch_that_was_never_decided_is_a_broken_record(tmp_path: Path) -> None:
    made = lab(tmp_path)
    kit = made.kit()
    begin(kit, campaign())
    with pytest.raises(Broken, match="l99"):
        launch(kit, ID, "l99")


def test_again_without_an_invalid_score_pays_nothing(tmp_path: Path) -> None:
    made = lab(tmp_path, FASTER)
    kit = made.kit()
    begin(kit, campaign())
    before = list(made.replay.submitted)
    launch(kit, ID, "l01", again=True)
    assert made.replay.submitted == before
