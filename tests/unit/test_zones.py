"""Laws of the three zones and of the tolerances: within the limit, between, beyond; what holds for which family and precision."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import yaml
from looks import ROOT, limits

from attuner.config import file_digests, load_register, load_tolerances, register_lock
from attuner.core.errors import UserError
from attuner.policy.zones import MEASURES, Measured, Tolerance, check_tolerance, judge, judge_families, margin, outcome, relative

STACKS = sorted({"mcore", *(p.parent.name for p in (ROOT / "rules").glob("*/tolerances.yaml"))})


def entry(**changes: Any) -> dict[str, Any]:
    given = {"id": "LAB-TOL-001", "measure": "grad_norm", "limit": 0.01, "outer": 0.1, "added": "2026-11-30"}
    said = {"reason": "written for a test, and long enough", "source": ["tests"]}
    return {**given, **said, **changes}


def tolerance(**changes: Any) -> Tolerance:
    return Tolerance.model_validate(entry(**changes))


@pytest.mark.parametrize(
    ("deviation", "zone"),
    [
        (0.0, "admit"),
        (0.01, "admit"),
        (0.0101, "between"),
        (0.1, "between"),
        (0.1001, "refuse"),
        (math.inf, "refuse"),
        (math.nan, "refuse"),
    ],
)
def test_a_deviation_is_in_one_of_three_zones(deviation: float, zone: str) -> None:
    assert outcome(deviation, tolerance()) == zone


def test_rounding_of_a_fit_or_of_print_widens_both_limits() -> None:
    assert outcome(0.02, tolerance(), scale=2.0) == "admit"
    assert outcome(0.21, tolerance(), scale=2.0) == "refuse"
    assert outcome(0.105, tolerance(), rounding=0.01) == "between"


@pytest.mark.parametrize(("precision", "check"), [("fp32", False), ("bf16", True), ("fp16", True), ("", False)])
def test_only_below_fp32_can_a_check_launch_decide(precision: str, check: bool) -> None:
    found = judge("gradient norm", Measured(1.0, 1.05, 0.05), limits=with_own(entry()), measure="grad_norm", precision=precision)
    assert found is not None
    assert (found.decision, found.check) == ("review", check)
    assert (found.tolerance, found.outer, found.deviation) == (0.01, 0.1, 0.05)


def with_own(*entries: dict[str, Any]) -> Any:
    own = [Tolerance.model_validate(e) for e in entries]
    return limits("other").model_copy(update={"own": own})


def test_a_stack_without_entries_of_its_own_has_outer_limits_only() -> None:
    for t in limits("other").general:
        if t.measure not in ("curve_trend", "clip", "lr_fit", "wd_fit", "unexplained"):  # self-checks need no baseline
            assert t.limit == t.outer


def test_the_more_exact_entry_holds() -> None:
    found = with_own(
        entry(id="LAB-TOL-001", limit=0.01),
        entry(id="LAB-TOL-002", limit=0.02, precision="bf16"),
        entry(id="LAB-TOL-003", limit=0.03, families="norms"),
        entry(id="LAB-TOL-004", limit=0.04, families=["router"]),
    )
    assert found.find("grad_norm", "fp32", "qkv").limit == 0.01
    assert found.find("grad_norm", "bf16", "qkv").limit == 0.02
    assert found.find("grad_norm", "bf16", "qk_norm").limit == 0.03
    assert found.find("grad_norm", "fp32", "router").limit == 0.04
    assert found.find("grad_projection", "fp32", "qkv").id.startswith("COM-")


def test_a_campaign_may_tighten_the_first_loss_never_widen_it() -> None:
    assert limits().capped(loss_step0=0.01).find("loss_step0", "fp32").outer == 0.01
    assert limits().capped(loss_step0=0.01).find("loss_step0", "fp32").limit == 1e-6
    assert limits().capped(loss_step0=0.9).find("loss_step0", "fp32").outer == 0.05


def test_what_is_not_judged_says_nothing() -> None:
    given = {"limits": limits(), "measure": "update_projection", "precision": "bf16"}
    assert judge("update projection", Measured(1.0, 9.0, 8.0, "qkv"), **given) is None  # type: ignore[arg-type]


def test_admitted_families_are_one_finding_and_the_others_one_each() -> None:
    values = [
        Measured(1.0, 1.0, d, name) for name, d in (("qkv", 1e-7), ("router", 1.9e-6), ("output", 1e-5), ("embedding", 1.0))
    ]
    found = judge_families("gradient norm", values, limits=limits(), measure="grad_norm", precision="fp32")
    assert {f.key: f.decision for f in found} == {
        "gradient norm router": "admit",
        "gradient norm output": "review",
        "gradient norm embedding": "refuse",
    }


def test_the_margin_is_the_share_of_the_limit_that_is_used() -> None:
    found = judge("gradient norm", Measured(1.0, 1.0, 0.005), limits=with_own(entry()), measure="grad_norm", precision="fp32")
    assert found is not None
    assert margin(found) == pytest.approx(0.5)
    endless = judge(
        "gradient norm", Measured(0.0, 1.0, math.inf), limits=with_own(entry()), measure="grad_norm", precision="fp32"
    )
    assert endless is not None
    assert margin(endless) == math.inf


def test_relative_to_nothing_is_infinite_unless_both_are_nothing() -> None:
    assert relative(0.0, 0.0) == 0.0
    assert relative(1.0, 0.0) == math.inf
    assert relative(1.5, -1.0) == 2.5


# ------------------------------------------------------------------------------------------------- the files


@pytest.mark.parametrize("stack", STACKS)
def test_every_example_of_a_tolerance_comes_out_and_every_entry_has_a_source(stack: str) -> None:
    found = limits(stack)
    assert [p for t in [*found.own, *found.general] for p in check_tolerance(t)] == []
    assert all(t.source and len(t.reason) >= 20 for t in [*found.own, *found.general])


def test_every_measure_has_a_limit_in_every_precision_and_family() -> None:
    for measure in MEASURES:
        for precision in ("fp32", "bf16", "fp16", "other", ""):
            for family in ("", "qkv", "qk_norm", "router", "mla"):
                assert limits().find(measure, precision, family).outer > 0  # type: ignore[arg-type]


def test_the_measured_rows_are_the_limits_of_mcore() -> None:
    rows = {
        ("loss_step0", "fp32", ""): 1e-6,
        ("loss_step0", "bf16", ""): 4e-4,
        ("loss_step1", "bf16", ""): 6e-4,
        ("aux", "fp32", ""): 2e-6,
        ("grad_norm", "fp32", "qkv"): 2e-6,
        ("grad_projection", "bf16", "qkv"): 0.15,
        ("update_norm", "fp32", "qk_norm"): 1e-5,
        ("update_projection", "fp32", "qkv"): 1e-3,
        ("grad_norm_step1", "bf16", "qkv"): 0.15,
        ("unexplained", "bf16", "qk_norm"): 1e-3,
    }
    for (measure, precision, family), limit in rows.items():
        assert limits().find(measure, precision, family).limit == limit  # type: ignore[arg-type]


def write(folder: Path, *own: dict[str, Any], general: bool = True) -> Path:
    (folder / "lab").mkdir(parents=True)
    (folder / "lab" / "tolerances.yaml").write_text(yaml.safe_dump(list(own)))
    if general:
        (folder / "tolerances.yaml").write_text((ROOT / "rules" / "tolerances.yaml").read_text())
    return folder


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"limmit": 1}, "lab/tolerances.yaml: LAB-TOL-001: limmit: unknown key; did you mean limit?"),
        ({"measure": "speed"}, "LAB-TOL-001: measure"),
        ({"outer": 0.001}, "outer 0.001 is below limit 0.01"),
        ({"families": []}, "name at least one family"),
        ({"source": []}, "source"),
        ({"limit": float("nan")}, "limit"),
        ({"id": "x"}, "id"),
        ({"reason": "short"}, "reason"),
    ],
)
def test_a_mistake_in_a_tolerance_is_one_line_that_names_it(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError) as told:
        load_tolerances(write(tmp_path, entry(**changes)), "lab")
    assert words in str(told.value)
    assert "\n" not in str(told.value)


def test_two_entries_for_one_thing_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="LAB-TOL-002 says again what LAB-TOL-001 says"):
        load_tolerances(write(tmp_path, entry(), entry(id="LAB-TOL-002")), "lab")
    with pytest.raises(UserError, match="LAB-TOL-001 says again"):
        load_tolerances(write(tmp_path / "b", entry(), entry(precision="bf16")), "lab")


def test_without_general_tolerances_nothing_is_judged(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="without tolerances no run can be judged"):
        load_tolerances(write(tmp_path, entry(), general=False), "lab")


def test_tolerances_are_no_rules_and_part_of_the_lock(tmp_path: Path) -> None:
    assert not [r for r in load_register(ROOT / "rules", "mcore").rules if "TOL" in r.id]
    digests = file_digests(ROOT / "rules")
    assert {
        "rules/tolerances.yaml",
        "rules/mcore/tolerances.yaml",
        "attuner/policy/zones.py",
        "attuner/steps/looks.py",
    } <= digests.keys()
    rules = write(tmp_path, entry())
    before = register_lock(rules, "lab")
    for file in (rules / "tolerances.yaml", rules / "lab" / "tolerances.yaml"):
        file.write_text(file.read_text() + "\n# moved\n")
        after = register_lock(rules, "lab")
        assert after != before
        before = after
