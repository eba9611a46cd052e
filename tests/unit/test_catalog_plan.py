"""The catalog with an estimate: looks ahead, couples moves, goes on from what ran out of memory, stops with evidence."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from paper_cluster import CONFIGS, FORMULA, RULES, table

from attuner.bench.arms import arm
from attuner.bench.outcome import Outcome, outcome_of
from attuner.bench.play import Entry, Protocol, campaign, run
from attuner.core.base import Value
from attuner.core.events import History
from attuner.core.search import Hypothesis, Stop
from attuner.ports import Brief, Proposer
from attuner.proposers.catalog import Catalog
from attuner.proposers.catalog_moves import Move, moves, titled
from attuner.proposers.catalog_plan import Place, Planner, Root
from attuner.proposers.catalog_value import Outlook, combined, expected_beyond, fit_probability

BAND = 0.03
TWO: dict[str, Any] = {"id": "pipeline", "changes": ["pipeline_model_parallel_size"], "eases": {}, "options": [], "idea": "x"}
AGAIN: dict[str, Any] = {"id": "recompute", "changes": ["recompute_granularity"], "eases": {}, "options": [], "idea": "x"}


def move(lever: dict[str, Any], **arguments: Value) -> Move:
    return Move(lever=lever, option={}, title=titled({}, arguments), arguments=arguments)


def planner(worth: dict[tuple[Value, Value], Outlook]) -> Planner:
    """Two levers, stages and recompute; `worth` says what each pair promises."""

    def options(place: Place, without: frozenset[str]) -> list[Move]:
        stages = [move(TWO, pipeline_model_parallel_size=n) for n in (1, 2, 4)]
        again = [move(AGAIN, recompute_granularity=v) for v in (None, "full")]
        return [
            m
            for m in (*stages, *again)
            if m.group not in without and any(place.arguments.get(k) != v for k, v in m.arguments.items())
        ]

    def value(root: Root, path: tuple[Move, ...], arguments: Mapping[str, Value]) -> Outlook | None:
        return worth.get((arguments["pipeline_model_parallel_size"], arguments["recompute_granularity"]))

    return Planner(options=options, value=value, band=BAND)


def root(stages: int = 2, again: Value = "full", **more: Any) -> Root:
    return Root("l01", {"pipeline_model_parallel_size": stages, "recompute_granularity": again}, **more)


def test_levers_that_pay_only_together_are_made_one_after_the_other_the_one_that_fits_first() -> None:
    plan = planner(
        {
            (2, None): Outlook(0.3, 0.05, fits=0.01),  # out of memory: the pipeline isn't deep enough
            (4, "full"): Outlook(-0.02, 0.02),
            (4, None): Outlook(0.28, 0.05),
            (1, "full"): Outlook(0.01, 0.02),
        }
    )
    best = plan.places([root()])[0]
    assert {m.group for m in best.moves} == {"pipeline", "recompute"}
    first = plan.first_steps(best)[0]
    assert (first.moves[0].group, first.arguments["pipeline_model_parallel_size"]) == ("pipeline", 4)


def test_one_launch_that_gives_as_much_is_made_before_two() -> None:
    plan = planner({(4, "full"): Outlook(0.2, 0.05), (4, None): Outlook(0.2, 0.05), (2, None): Outlook(0.0, 0.05)})
    assert [m.group for m in plan.places([root()])[0].moves] == ["pipeline"]


def test_only_what_needs_less_memory_starts_from_a_launch_that_ran_out_of_it() -> None:
    plan = planner({(4, None): Outlook(0.3, 0.05), (2, "full"): Outlook(0.2, 0.05), (4, "full"): Outlook(0.1, 0.05)})
    failed = root(again=None, only=frozenset({"recompute"}))
    assert {p.moves[0].group for p in plan.places([failed])} == {"recompute"}


def test_what_cant_be_built_is_no_place() -> None:
    assert planner({}).places([root()]) == []


@pytest.mark.parametrize(("gain", "error"), [(0.10, 0.04), (0.02, 0.05), (-0.05, 0.2), (0.5, 0.0)])
def test_worth_is_the_mean_gain_beyond_the_band(gain: float, error: float) -> None:
    sigma, total, n = error / 1.96, 0.0, 40_000
    for i in range(n):  # the middle of each of n equally likely slices, by a table of the normal distribution
        from statistics import NormalDist

        x = NormalDist(gain, sigma).inv_cdf((i + 0.5) / n) if sigma else gain
        total += x if x > BAND else 0.0
    assert expected_beyond(gain, error, BAND) == pytest.approx(total / n, abs=2e-5)


def test_a_launch_in_the_middle_of_its_limit_fits_half_of_the_time() -> None:
    assert fit_probability(80.0, 4.0, 80.0) == pytest.approx(0.5)
    assert fit_probability(80.0, 4.0, 88.0) == pytest.approx(0.977, abs=1e-3)


def test_two_changes_multiply() -> None:
    both = combined(Outlook(0.1, 0.03, fits=0.9), Outlook(0.2, 0.0, seen=False))
    assert both.gain == pytest.approx(0.32)
    assert (both.fits, both.seen) == (0.9, False)


def test_points_of_a_space_are_buildable_and_set_what_follows() -> None:
    lever = {
        **{"id": "layout", "changes": ["tensor_model_parallel_size", "sequence_parallel"], "options": []},
        "space": {"tensor_model_parallel_size": [1, 2, 3, 4]},
        "follows": [{"when": {"arg": "tensor_model_parallel_size", "ge": 2}, "set": {"sequence_parallel": True}}],
    }
    final: dict[str, Value] = {
        "tensor_model_parallel_size": 1,
        "sequence_parallel": False,
        "num_attention_heads": 4,
        "global_batch_size": 4,
    }
    found = moves([lever], final, {}, world=4)
    assert [m.arguments for m in found] == [{"tensor_model_parallel_size": n, "sequence_parallel": True} for n in (2, 4)]
    assert found[0].title == "tp1→2"


def played(folder: Path, proposer: Proposer | None = None) -> tuple[History, Outcome]:
    """The catalog on the formula table, whose machine its estimate knows by a data sheet alone."""
    found = table()
    made = campaign(found, Entry(FORMULA, arm("catalog" if proposer is None else "catalog-hold"), 0, Protocol()), configs=CONFIGS)
    history = run(found, made, proposer or Catalog(), folder=folder, rules=RULES)
    return history, outcome_of(found, history, arm="catalog", seed=0, real_s=0.0)


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> tuple[History, Outcome]:
    return played(tmp_path_factory.mktemp("one"))


def test_it_finds_a_table_s_best_in_few_launches(one: tuple[History, Outcome]) -> None:
    history, outcome = one
    assert outcome.near_best
    assert outcome.launches <= 6
    assert outcome.failed == 0
    stop = history.stop()
    assert stop is not None
    assert "band 3.0%" in stop.evidence


def test_every_move_is_one_group_with_a_forecast_on_record(one: tuple[History, Outcome]) -> None:
    history, _ = one
    for hypothesis in history.hypotheses():
        forecast, verdict = history.forecast(hypothesis.id), history.verdict(hypothesis.id)
        assert hypothesis.group in ("layout", "recompute", "micro-batch")
        if forecast is None:  # only what the framework itself refuses is not weighed
            assert verdict is not None
            assert verdict.findings[0].rule == "layout"
            continue
        assert hypothesis.predicted_gain == pytest.approx(forecast.gain, abs=0.02)
        assert not forecast.held


class Once:
    """A proposer that starts with a move of the test's own and leaves the rest to the catalog."""

    def __init__(self, first: Hypothesis) -> None:
        self.first, self.asked, self.rest = first, 0, Catalog()

    def ask(self, brief: Brief) -> Hypothesis | Stop:
        self.asked += 1
        return self.first if self.asked == 1 else self.rest.ask(brief)

    def close(self) -> None:
        self.rest.close()


def test_a_layout_out_of_memory_teaches_where_the_limit_is(tmp_path: Path) -> None:
    big: dict[str, Value] = {"pipeline_model_parallel_size": 1, "expert_model_parallel_size": 1}
    says = {"title": "too big", "bottleneck": "idle", "mechanism": "x", "predicted_gain": 0.5, "predicted_error": 0.2}
    first = Hypothesis.model_validate({"id": "h01", "parent": "l01", "group": "layout", "arguments": big, **says})
    history, _ = played(tmp_path, Once(first))
    trials = {x.id: t for x in history.launches() if x.kind == "search" and (t := history.trial(x.id))}
    assert [t.status for t in trials.values()].count("oom") == 1
    gained = history.remeasurement()
    assert gained is not None
    assert gained.gain > 1.5
