"""Laws of environments and of the alerts of a re-tuning: what counts as a change, and what people must hear of."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from lab import ID, LAYOUT, MICRO, SDPA, Lab, begin, campaign, play, register, rule, search

from attuner.core.base import Value
from attuner.core.environment import Environment, Retunes
from attuner.core.errors import Refused
from attuner.core.events import History
from attuner.core.judgement import Finding, Verdict
from attuner.core.news import Alert
from attuner.core.people import Directive
from attuner.core.recipe import Change, EffectiveConfig
from attuner.core.search import Hypothesis
from attuner.launchers.replay import Row
from attuner.policy import budget, drift
from attuner.policy.conduct import RETUNER, SHIPPED, check_shipped
from attuner.steps.birth import birth
from attuner.steps.gate import gate, launch_of
from attuner.steps.hypothesize import hypothesize
from attuner.steps.tell import tell

FAST = Row(match={"micro_batch_size": 4}, step_s=0.5)
REST = Row(step_s=1.0, jitter=0.002)
OLD = Environment(
    looked={"megatron_core": "0.16.1", "torch": "2.13.0"}, declared={"framework": "0.16.1", "data": "rows@sha256:0"}
)


def environment(*, looked: dict[str, str] | None = None, **declared: str) -> Environment:
    return Environment(looked=looked or {}, declared=declared)


def retunes(*, shipped: dict[str, Value] | None = None, speed: float = 128.0, **more: Any) -> Retunes:
    """What an earlier campaign of the lab shipped: micro batch 4, at twice the baseline's 64 tokens/s per device."""
    recipe = campaign().baseline.changed({"micro_batch_size": 4} if shipped is None else shipped)
    given = {"of": "lab-0000", "recipe": recipe, "tokens_per_s_per_gpu": speed, "baseline_tokens_per_s_per_gpu": 64.0}
    changes = [Change(key="megatron_core", before="0.16.1", after="0.17.0")]
    return Retunes.model_validate({**given, "band": 0.03, "before": OLD, "changes": changes, **more})


def played(tmp_path: Path, *rows: Row, script: tuple[dict[str, Any], ...] = (), **more: Any) -> History:
    made = Lab(tmp_path, [*rows, REST])
    play(made.kit(), campaign(*script).model_copy(update={"retunes": retunes(**more)}))
    return made.history()


# ------------------------------------------------------------------------------------------------------ environments


def test_equal_environments_do_not_differ() -> None:
    assert drift.diff(OLD, OLD) == []


def test_an_upgrade_is_one_change_though_the_package_is_seen_and_declared() -> None:
    new = Environment(looked={**OLD.looked, "megatron_core": "0.17.0"}, declared={**OLD.declared, "framework": "0.17.0"})
    assert [str(c) for c in drift.diff(OLD, new)] == ["megatron_core 0.16.1 → 0.17.0"]


def test_what_was_installed_or_removed_is_a_change_where_somebody_looked() -> None:
    new = Environment(looked={"megatron_core": "0.16.1", "transformer_engine": "2.5"}, declared=OLD.declared)
    assert [c.key for c in drift.diff(OLD, new)] == ["torch", "transformer_engine"]


def test_what_one_side_does_not_know_is_no_change() -> None:
    assert drift.diff(environment(framework="1"), environment(framework="1", rules="abc")) == []
    assert drift.diff(environment(looked={"torch": "2.13"}), environment(torch="2.13.0")) == []


@pytest.mark.parametrize("key", ["data", "model", "hardware", "rules", "image", "commit"])
def test_each_declared_field_counts(key: str) -> None:
    found = drift.diff(environment(**{key: "one"}), environment(**{key: "two"}))
    assert found == [Change(key=key, before="one", after="two")]


def test_without_a_look_declared_and_reported_both_count() -> None:
    old = Environment(reported={"torch": "2.13"}, declared={"image": "a@sha256:1"})
    assert drift.diff(old, old.model_copy(update={"declared": {"image": "a@sha256:2"}}))[0].key == "image"
    assert drift.diff(old, old.model_copy(update={"reported": {"torch": "2.14"}}))[0].key == "torch"


def test_a_look_is_compared_with_what_launches_reported_before_looks_were_recorded() -> None:
    old = Environment(reported={"torch": "2.13", "kernel": "6"}, declared={"torch": "2.12"})
    assert drift.diff(old, Environment(looked={"torch": "2.13"}, declared={})) == []
    assert [c.key for c in drift.diff(old, Environment(looked={"torch": "2.14"}))] == ["torch"]


def test_what_is_ignored_is_no_change() -> None:
    assert drift.diff(environment(attuner="0.1"), environment(attuner="0.2"), ignore=["attuner"]) == []


def test_every_campaign_records_its_environment_at_birth_and_says_what_was_seen(tmp_path: Path) -> None:
    made = Lab(tmp_path, [REST])
    kit = replace(made.kit(), versions=lambda: {"torch": "2.13.0", "kernel": "6.1"})
    birth(kit, campaign())
    found = made.history().find("environment", "birth", Environment)
    assert found is not None
    assert found.looked == {"torch": "2.13.0"}
    assert found.declared["data"] == "rows@sha256:0"
    assert found.declared["framework"] == "0.16.1"
    assert len(found.declared["rules"]) == 64
    assert not found.blind


def test_of_a_cluster_elsewhere_the_record_says_that_nobody_could_look(tmp_path: Path) -> None:
    made = Lab(tmp_path, [REST])
    birth(made.kit(), campaign())
    found = made.history().find("environment", "birth", Environment)
    assert found is not None
    assert found.looked == {}
    assert "elsewhere" in found.blind


# ------------------------------------------------------------------------------------------------ the shipped recipe


def test_the_first_move_of_a_re_tuning_is_the_shipped_recipe_and_the_search_goes_on_from_it(tmp_path: Path) -> None:
    both = Row(match={"micro_batch_size": 4, "tensor_model_parallel_size": 1}, step_s=0.4)
    history = played(tmp_path, both, FAST, script=(LAYOUT,))
    first, second = history.hypotheses()
    assert (first.group, first.arguments, first.by) == (SHIPPED, {"micro_batch_size": 4}, RETUNER)
    assert history.hypothesis(second.id) is not None
    assert second.parent == launch_of(history, first.id)  # it leads, and the script's own first move starts there
    shipment = history.shipment()
    assert shipment is not None
    assert history.recipe(shipment.recipe).arguments["micro_batch_size"] == 4
    assert history.recipe(shipment.recipe).arguments["tensor_model_parallel_size"] == 1
    assert drift.alerts(history) == []


def test_the_shipped_recipe_is_looked_at_three_times_against_the_original_baseline(tmp_path: Path) -> None:
    history = played(tmp_path, FAST)
    launch = launch_of(history, "h01")
    assert history.verdict("h01") is not None
    assert [v.look for v in history.looks(launch, 1)] == ["forward", "update"]
    assert history.campaign().baseline == campaign().baseline


def test_a_kept_baseline_leaves_the_first_move_to_the_proposer(tmp_path: Path) -> None:
    history = played(tmp_path, FAST, script=(MICRO,), shipped={})
    assert [h.group for h in history.hypotheses()] == ["micro-batch"]


def test_what_shipped_with_several_changes_is_one_move(tmp_path: Path) -> None:
    shipped: dict[str, Value] = {"micro_batch_size": 4, "tensor_model_parallel_size": 1}
    history = played(tmp_path, Row(match=shipped, step_s=0.5), shipped=shipped)
    assert history.hypotheses()[0].arguments == shipped
    assert history.score(launch_of(history, "h01")) is not None


def move(**changes: Any) -> Hypothesis:
    given = {"id": "h01", "parent": "l01", "group": SHIPPED, "arguments": {"micro_batch_size": 4}, "title": "t"}
    more = {"bottleneck": "b", "mechanism": "m", "predicted_gain": 0.0, "predicted_error": 0.1, "by": RETUNER}
    return Hypothesis.model_validate({**given, **more, **changes})


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"arguments": {"micro_batch_size": 8}}, "and no other one"),
        ({"arguments": {"micro_batch_size": 4, "lr": 1.0}}, "and no other one"),
        ({"by": ""}, "fixed code alone"),
        ({"by": "ada"}, "fixed code alone"),
    ],
)
def test_conduct_allows_the_group_for_exactly_that_recipe_asked_for_by_fixed_code(
    tmp_path: Path, changes: dict[str, Any], says: str
) -> None:
    made = Lab(tmp_path, [FAST, REST])
    begin(made.kit(), campaign().model_copy(update={"retunes": retunes()}))
    check_shipped(made.history(), move())
    with pytest.raises(Refused, match=says):
        check_shipped(made.history(), move(**changes))


def test_a_proposer_may_not_use_the_group(tmp_path: Path) -> None:
    script = {"group": SHIPPED, "arguments": {"micro_batch_size": 4}}
    made = Lab(tmp_path, [FAST, REST])
    play(made.kit(), campaign(script))
    verdict = made.history().verdict("h01")
    assert verdict is not None
    assert verdict.decision == "refuse"
    assert "starts from no shipped recipe" in verdict.findings[0].reason
    other = Lab(tmp_path / "retuned", [FAST, REST])
    play(other.kit(), campaign(script).model_copy(update={"retunes": retunes()}))
    verdict = other.history().verdict("h02")
    assert verdict is not None
    assert verdict.findings[0].rule == "conduct"


def test_a_slow_shipped_recipe_is_measured_to_its_end(tmp_path: Path) -> None:
    history = played(tmp_path, Row(match={"micro_batch_size": 4}, step_s=9.0))
    trial = history.trial(launch_of(history, "h01"))
    assert trial is not None
    assert trial.status == "ok"


# ------------------------------------------------------------------------------------------------------------ alerts


def test_a_shipped_recipe_slower_than_both_bands_allow_is_an_alert_with_its_evidence(tmp_path: Path) -> None:
    history = played(tmp_path, Row(match={"micro_batch_size": 4}, step_s=0.6))
    (alert,) = drift.alerts(history)
    assert (alert.kind, alert.key) == ("slowdown", "slowdown:shipped")
    assert alert.evidence == ["lab-0000", f"{ID}/{launch_of(history, 'h01')}"]
    assert alert.figures["slower"] == pytest.approx(1 - 0.5 / 0.6, abs=0.01)
    assert "megatron_core 0.16.1 → 0.17.0" in alert.text


@pytest.mark.parametrize(("step_s", "alarms"), [(0.515, 0), (0.53, 1)])
def test_what_the_bands_allow_is_no_alert(tmp_path: Path, step_s: float, alarms: int) -> None:
    # both bands are 3%: 4.2% together; 0.515 is 2.9% slower, 0.53 5.7%
    history = played(tmp_path, Row(match={"micro_batch_size": 4}, step_s=step_s))
    assert len(drift.alerts(history)) == alarms


def test_a_stated_limit_holds_in_place_of_the_bands(tmp_path: Path) -> None:
    assert drift.alerts(played(tmp_path, Row(match={"micro_batch_size": 4}, step_s=0.6), slowdown=0.2)) == []


def test_a_slower_baseline_is_an_alert_of_its_own(tmp_path: Path) -> None:
    made = Lab(tmp_path, [Row(match={"micro_batch_size": 4}, step_s=0.5), Row(step_s=1.3)])
    play(made.kit(), campaign().model_copy(update={"retunes": retunes()}))
    (alert,) = drift.alerts(made.history())
    assert alert.key == "slowdown:baseline"
    assert len(alert.evidence) == 6


def test_a_first_look_that_refuses_the_shipped_recipe_is_an_alert_with_its_finding(tmp_path: Path) -> None:
    history = played(tmp_path, shipped={"micro_batch_size": 4, "lr": 0.01})
    (alert,) = drift.alerts(history)
    assert (alert.kind, alert.key) == ("gate", "gate:first")
    assert alert.finding is not None
    assert alert.finding.key == "lr"
    assert alert.evidence[1:] == [f"{ID}/h01", "LAB-TST-001"]


def test_a_second_look_that_refuses_the_shipped_recipe_is_an_alert(tmp_path: Path) -> None:
    history = played(tmp_path, Row(match={"micro_batch_size": 4}, step_s=0.5, losses=[5.6]))
    (alert,) = drift.alerts(history)
    assert (alert.kind, alert.key) == ("gate", "gate:second")
    assert history.shipment() is not None


def test_a_shipped_recipe_that_fails_is_an_alert(tmp_path: Path) -> None:
    history = played(tmp_path, Row(match={"micro_batch_size": 4}, outcome="oom"))
    assert [a.kind for a in drift.alerts(history)] == ["shipped_fails"]


def test_a_shipped_recipe_that_could_not_be_measured_is_not_forgotten(tmp_path: Path) -> None:
    history = played(tmp_path / "lost", Row(match={"micro_batch_size": 4}, outcome="never_allocated"))
    assert [a.key for a in drift.alerts(history)] == ["unverified"]
    poor = Lab(tmp_path / "poor", [FAST, REST])
    kit = poor.kit()
    begin(kit, campaign().model_copy(update={"retunes": retunes()}))
    kit.ledger.append(ID, "directive", "d1", Directive(act="budget", by="ada", gpu_hours=budget.spent(poor.history())))
    assert drift.alerts(poor.history()) == []
    search(kit)
    (alert,) = drift.alerts(poor.history())
    assert alert.key == "unverified"
    assert "the budget is spent" in alert.text


def test_refusals_that_say_nothing_of_the_training_are_no_gate_failure(tmp_path: Path) -> None:
    made = Lab(tmp_path, [FAST, REST])
    kit = made.kit()
    begin(kit, campaign().model_copy(update={"retunes": retunes()}))
    hypothesize(kit, ID, "h01")
    finding = Finding(rule="budget", decision="refuse", reason="not enough left")
    kit.ledger.append(
        ID, "verdict", "h01", Verdict(look="config", subject="h01", recipe="", decision="refuse", findings=[finding])
    )
    assert drift.alerts(made.history()) == []
    search(kit)
    assert [a.key for a in drift.alerts(made.history())] == ["unverified"]


def test_a_failed_baseline_is_told_apart_from_another_failure(tmp_path: Path) -> None:
    made = Lab(tmp_path, [Row(outcome="crash")])
    with pytest.raises(Exception, match="failed"):
        begin(made.kit(), campaign())
    alert = drift.failed_campaign(made.history(), "it crashed")
    assert (alert.kind, alert.evidence[0]) == ("baseline_fails", f"{ID}/l01")
    ran = Lab(tmp_path / "ran", [REST])
    begin(ran.kit(), campaign())
    assert drift.failed_campaign(ran.history(), "lost").kind == "campaign_failed"


DEFECT = rule(
    7,
    ["moe_dispatch"],
    kind="defect",
    decision="refuse",
    when={"all": [{"arg": "tensor_model_parallel_size", "eq": 1}]},
    scope={"megatron-core": ">=0.17,<0.18"},
    examples=[
        {"before": {"tensor_model_parallel_size": 2}, "after": {"tensor_model_parallel_size": 1}, "expect": "refuse"},
        {"after": {"tensor_model_parallel_size": 2}, "expect": "silent"},
    ],
)


def effective(version: str, tp: int) -> EffectiveConfig:
    return EffectiveConfig(arguments={"tensor_model_parallel_size": tp}, env={}, facts={}, versions={"megatron_core": version})


@pytest.mark.parametrize(
    ("old", "new", "found"),
    [
        ("0.16.1", "0.17.0", [True]),
        ("0.17.0", "0.18.0", [False]),
        ("0.17.0", "0.17.1", []),
        ("0.15.0", "0.16.1", []),
    ],
)
def test_a_defect_is_brought_or_cured_by_a_version_that_enters_or_leaves_its_scope(old: str, new: str, found: list[bool]) -> None:
    rules = register(DEFECT)
    assert [d.now for d in drift.defect_changes(rules, "shipped", effective(old, 1), effective(new, 1))] == found
    assert drift.defect_changes(rules, "shipped", effective(old, 2), effective(new, 2)) == []


def test_defects_become_alerts_with_rule_and_source(tmp_path: Path) -> None:
    brought = drift.defect_changes(register(DEFECT), "baseline", effective("0.16.1", 1), effective("0.17.0", 1))
    cured = drift.defect_changes(register(DEFECT), "shipped", effective("0.17.0", 1), effective("0.18.0", 1))
    history = played(tmp_path, FAST, defects=[x.data() for x in [*brought, *cured]])
    found = drift.alerts(history)
    assert [a.kind for a in found] == ["defect_brought", "defect_cured"]
    assert "brings a known defect for the baseline: LAB-TST-007" in found[0].text
    assert found[1].evidence == ["LAB-TST-007", "lab-0000", ID, "tests/lab.py"]


def test_an_ordinary_campaign_alarms_about_nothing(tmp_path: Path) -> None:
    made = Lab(tmp_path, [Row(match={"micro_batch_size": 4}, outcome="oom"), REST])
    play(made.kit(), campaign(MICRO, SDPA))
    assert drift.alerts(made.history()) == []


def test_an_alert_is_on_record_once(tmp_path: Path) -> None:
    made = Lab(tmp_path, [Row(match={"micro_batch_size": 4}, step_s=0.6), REST])
    kit = made.kit()
    begin(kit, campaign().model_copy(update={"retunes": retunes()}))
    search(kit)
    tell(kit, ID, {})
    tell(kit, ID, {})
    assert [e.key for e in made.history().events if e.kind == "alert"] == ["slowdown:shipped"]
    assert made.history().all("alert", Alert)[0].figures["allowed"] == pytest.approx(0.0424, abs=0.001)


def test_a_gate_step_judges_the_first_move_by_its_own_law(tmp_path: Path) -> None:
    made = Lab(tmp_path, [FAST, REST])
    kit = made.kit()
    begin(kit, campaign().model_copy(update={"retunes": retunes()}))
    hypothesize(kit, ID, "h01")
    assert gate(kit, ID, "h01").decision == "admit"
