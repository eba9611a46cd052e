"""Black-box proposers: they read history only, never ask twice, never ask for what can't be built, and search what data names."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from lab import ROOT
from paper_cluster import CONFIGS, born, played, table

from attuner.bench.play import cluster_of
from attuner.config import load_levers
from attuner.core.campaign import Campaign, ProposerSpec
from attuner.core.errors import UserError
from attuner.core.events import History
from attuner.core.search import Hypothesis, Stop
from attuner.policy import conduct
from attuner.ports import Brief, Proposer
from attuner.proposers.random_search import RandomSearch
from attuner.proposers.space import Space, end_layers, seen, unbuildable
from attuner.proposers.tpe import KNOBS, FixedKnobs, Tpe

MADE: dict[str, type[Tpe] | type[RandomSearch]] = {"random": RandomSearch, "tpe": Tpe, "fixed_knobs": FixedKnobs}


def searching(name: str, *, seed: int = 0, launches: int = 12) -> Campaign:
    made = born(launches=launches)
    return made.model_copy(update={"proposer": ProposerSpec(name=name, seed=seed, space=table().space())})


def brief(history: History, **changes: Any) -> Brief:
    campaign = history.campaign()
    spec = campaign.proposer.model_copy(update=changes)
    levers = load_levers(ROOT / "rules", "replay")
    return Brief(campaign.model_copy(update={"proposer": spec}), levers, 1.0, f"h{len(history.hypotheses()) + 1:02d}", history)


@pytest.fixture(scope="module")
def past(tmp_path_factory: pytest.TempPathFactory) -> History:
    return played(tmp_path_factory.mktemp("tpe"), searching("tpe"), Tpe())


@pytest.mark.parametrize("name", sorted(MADE))
def test_a_whole_campaign_asks_for_nothing_twice_and_for_nothing_unbuildable(tmp_path: Path, name: str) -> None:
    history = played(tmp_path, searching(name), MADE[name]())
    space = Space.of(brief(history))
    points = [space.key(space.point_of(conduct.candidate(history, h).arguments)) for h in history.hypotheses()]
    assert len(set(points)) == len(points) > 8
    refused = [v for h in history.hypotheses() if (v := history.verdict(h.id)) and v.decision == "refuse"]
    assert all(f.rule in ("RPL-DEF-001", "budget") or "not in the table" in f.reason for v in refused for f in v.refusals())
    assert {h.group for h in history.hypotheses()} == {"point"}
    assert history.stop().reason == "the budget is spent"  # type: ignore[union-attr]
    assert history.shipment().gain > 0.5  # type: ignore[union-attr]


@pytest.mark.parametrize("name", sorted(MADE))
def test_a_move_depends_on_the_record_and_the_seed_alone(past: History, name: str) -> None:
    first = MADE[name]().ask(brief(past))
    proposer = MADE[name]()
    proposer.ask(brief(History(past.events[: len(past.events) // 2])))  # whatever else it was asked before
    assert proposer.ask(brief(past)) == first
    assert proposer.ask(brief(past, seed=1)) != first


def test_what_failed_and_what_was_refused_is_seen(past: History) -> None:
    outcomes = [s.outcome for s in seen(brief(past), Space.of(brief(past)))]
    assert outcomes[0] == "ok"  # the baseline
    launches = [x for x in past.launches() if x.kind == "search"]
    assert outcomes.count("oom") == sum(1 for x in launches if past.trial(x.id).status == "oom") > 0  # type: ignore[union-attr]
    assert len(outcomes) == 1 + len(past.hypotheses())
    assert all(s.speed == 0.0 for s in seen(brief(past), Space.of(brief(past))) if s.outcome != "ok")


@pytest.mark.slow
def test_tpe_finds_more_than_chance_on_the_same_budget(tmp_path: Path) -> None:
    gains = {}
    for name in ("random", "tpe"):
        found = [played(tmp_path / f"{name}{s}", searching(name, seed=s), MADE[name]()) for s in range(4)]
        gains[name] = sum(h.shipment().gain for h in found)  # type: ignore[union-attr]
    assert gains["tpe"] > gains["random"]


def test_what_follows_a_value_is_set_with_it(past: History) -> None:
    space = Space.of(brief(past))
    base = space.point_of({})
    single = space.arguments({**base, "tensor_model_parallel_size": 1, "expert_model_parallel_size": 4})
    assert single["sequence_parallel"] is False
    light = space.arguments({**base, "recompute_granularity": None})
    assert light == {"recompute_granularity": None, "recompute_method": None, "recompute_num_layers": None}
    assert space.arguments(base) == {}


def test_a_point_passes_conduct_for_black_box_proposers_only(past: History) -> None:
    move = Tpe().ask(brief(past))
    assert isinstance(move, Hypothesis)
    conduct.check_group(move, load_levers(ROOT / "rules", "replay"), proposer="tpe")
    with pytest.raises(conduct.Refused, match="`point` is for black-box proposers"):
        conduct.check_group(move, load_levers(ROOT / "rules", "replay"), proposer="catalog")


def test_the_space_comes_from_the_campaign_else_from_the_catalog(past: History) -> None:
    given = Space.of(brief(past, space={"micro_batch_size": [1, 2], "recompute_granularity": ["full"]}))
    assert given.axes == {"micro_batch_size": [1, 2]}  # one value is no axis
    assert set(Space.of(brief(past, space={})).axes) == set(table().axes)
    asked = brief(past, space={"micro_batch_size": [1]})
    with pytest.raises(UserError, match=r"proposer\.space: nothing to search"):
        Space.of(asked)


def test_the_mcore_catalog_names_a_space_too(past: History) -> None:
    asked = Brief(past.campaign(), load_levers(ROOT / "rules", "mcore"), 1.0, "h01", past)
    axes = Space.of(asked.__class__(**{**asked.__dict__, "campaign": _spaceless(past)})).axes
    assert {"tensor_model_parallel_size", "attention_implementation", "moe_token_dispatcher_type"} <= set(axes)
    assert set(axes) - set(KNOBS) == {"attention_implementation", "optimizer_cpu_offload"}


def _spaceless(past: History) -> Campaign:
    return past.campaign().model_copy(update={"proposer": ProposerSpec(name="tpe")})


def test_an_exhausted_space_is_a_stop(past: History) -> None:
    for proposer in (RandomSearch(), Tpe()):
        asked: Proposer = proposer
        tried = sorted({str(s.point["micro_batch_size"]) for s in seen(brief(past), Space.of(brief(past)))})
        stop = asked.ask(brief(past, space={"micro_batch_size": [int(v) for v in tried]}))
        assert isinstance(stop, Stop)
        assert stop.reason == "no point of the space is left"
        assert stop.evidence[0].endswith(f"of {len(tried)} points seen")


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"tensor_model_parallel_size": 3}, "don't divide by tp·pp·cp"),
        ({"num_experts": 8, "expert_model_parallel_size": 16}, "8 experts don't divide"),
        ({"expert_model_parallel_size": 2}, "1 experts don't divide"),
        ({"num_experts": 16, "expert_model_parallel_size": 16, "expert_tensor_parallel_size": 2}, "don't divide by tp·pp·cp"),
        ({"micro_batch_size": 3}, "global batch 32 doesn't divide"),
        (
            {"pipeline_model_parallel_size": 4, "virtual_pipeline_model_parallel_size": 2, "num_layers": 12},
            "don't divide by pp·vp",
        ),
        ({"virtual_pipeline_model_parallel_size": 2, "num_layers": 12}, "virtual stages need stages"),
        ({"tensor_model_parallel_size": 8, "num_attention_heads": 12}, "12 attention heads don't divide"),
        ({"tensor_model_parallel_size": 2, "pipeline_model_parallel_size": 4, "num_layers": 12}, ""),
    ],
)
def test_what_the_framework_can_t_build_is_never_drawn(values: dict[str, Any], said: str) -> None:
    found = unbuildable({"global_batch_size": 32, **values}, gpus=16)
    assert (said in found) if said else not found


def test_layers_that_don_t_divide_are_split_over_the_end_stages() -> None:
    def ends(layers: int, stages: int) -> int | None:
        return end_layers({"num_layers": layers, "pipeline_model_parallel_size": stages})

    assert [ends(92, 8), ends(92, 16), ends(62, 4), ends(62, 8)] == [10, 4, 15, 7]  # as the simulator's tables have them
    assert ends(92, 4) is None
    assert ends(7, 2) is None  # no inner stage to fill up, and no even rest


@pytest.mark.slow
def test_with_the_prefilter_nothing_is_asked_for_that_the_gate_would_hold_back(tmp_path: Path) -> None:
    made = searching("tpe", launches=30)
    spec = made.proposer.model_copy(update={"prefilter": True})
    held = made.model_copy(update={"proposer": spec, "estimate": made.estimate.model_copy(update={"hold_back": True})})
    launcher = held.launcher.model_copy(update={"cluster": cluster_of(table(), CONFIGS)})
    history = played(tmp_path, held.model_copy(update={"launcher": launcher}), Tpe())
    assert len(history.hypotheses()) > 1
    forecasts = [f for h in history.hypotheses() if (f := history.forecast(h.id)) is not None]
    assert forecasts
    assert not any(f.held for f in forecasts)
    assert history.stop().reason == "nothing is left that the estimate lets pass"  # type: ignore[union-attr]
    assert history.shipment().gain > 0.5  # type: ignore[union-attr]


def test_what_no_lever_sets_is_left_as_the_recipe_spells_it() -> None:
    lever = {"id": "micro-batch", "changes": ["micro_batch_size", "recompute_method"], "eases": {}, "options": []}
    base = {"micro_batch_size": 1, "activation_func": "torch.nn.functional.silu", "recompute_method": "uniform"}
    written = {"micro_batch_size": 1, "activation_func": "silu", "recompute_method": "block"}
    space = Space({"micro_batch_size": [1, 2]}, [lever], base, written, 1, frozenset(lever["changes"]))
    # a value of a lever that the framework resolved otherwise is written out, so that the recipe says what runs
    assert space.arguments({"micro_batch_size": 2}) == {"micro_batch_size": 2, "recompute_method": "uniform"}


@pytest.mark.parametrize("name", sorted(MADE))
@pytest.mark.parametrize("space", [{}, None], ids=["the catalog's space", "the campaign's own"])
def test_a_lever_that_is_banned_half_way_leaves_the_rest_of_the_search(
    past: History, name: str, space: dict[str, Any] | None
) -> None:
    changes = {"space": {}} if space == {} else {}
    asked = brief(past, **changes)
    for gone in asked.levers:
        left = replace(asked, levers=[x for x in asked.levers if x["id"] != gone["id"]])
        move = MADE[name]().ask(left)
        assert isinstance(move, Hypothesis | Stop)
