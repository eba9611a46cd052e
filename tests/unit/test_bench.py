"""A comparison pays every arm alike, tells what came of each, tests it honestly, and fits on one page and in CSV files."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from paper_cluster import CONFIGS, FORMULA, LAYOUT, NO_RECOMPUTE, OOM, RULES, born, played, table

from attuner.bench.arms import arm
from attuner.bench.curves import bands, best_at, picture
from attuner.bench.local import rounds
from attuner.bench.outcome import Outcome, outcome_of
from attuner.bench.page import page
from attuner.bench.play import Entry, Protocol, campaign, play, search_budget
from attuner.bench.runner import play_all
from attuner.bench.stats import tests as permutation_tests
from attuner.bench.table import as_csv, lines, read_csv, text
from attuner.cli.main import main
from attuner.core.errors import UserError
from attuner.policy import budget

ROOT = FORMULA.parents[2]


def entry(name: str = "random", seed: int = 0, **protocol: Any) -> Entry:
    return Entry(FORMULA, arm(name), seed, Protocol(**{"launches": 8, **protocol}))


def outcome(arm_name: str, seed: int, gain: float, **more: Any) -> Outcome:
    given = {"table": "t", "arm": arm_name, "seed": seed, "gain": gain, "measured_gain": gain, "best_gain": 1.0}
    rest = {"near_best": gain > 0.9, "kept_baseline": gain == 0.0, "shipped": "x", "stop": "s", "gpu_hours": 100.0}
    counts = {"search_gpu_hours": 80.0, "launches": 10, "failed": 1, "failed_gpu_hours": 5.0, "refused": 2, "real_s": 0.1}
    ends = {"hours_to_target": 20.0 if gain >= 0.2 else None, "wall_clock_h": 3.0, "curve": [(10.0, 0.0), (50.0, gain)]}
    return Outcome.model_validate({**given, **rest, **counts, **ends, **more})


def test_arms_say_what_fixed_code_does_for_them() -> None:
    assert [arm(n).hold_back for n in ("random", "tpe", "tpe+prefilter", "catalog", "catalog-hold")] == [
        *(False, False, True, True, False)
    ]
    assert arm("tpe+prefilter").spec(3, {}).model_dump(include={"name", "seed", "prefilter"}) == {
        **{"name": "tpe", "seed": 3, "prefilter": True}
    }
    for wrong in ("nobody", "catalog+prefilter", "random-hold"):
        with pytest.raises(UserError, match=f"arm {re.escape(wrong)}"):
            arm(wrong)


def test_the_search_has_the_budget_and_the_rest_comes_on_top_or_out_of_it() -> None:
    found = table()
    hours = found.gpu_hours(found.start())
    assert search_budget(found, 30) == 90.0  # 30 × 2.916, rounded up to 10
    for all_in, total in ((True, 90.0), (False, 90.0 + (5 + 6 * budget.RESERVE) * hours)):
        made = campaign(found, entry(launches=30, all_in=all_in), configs=CONFIGS)
        assert made.budget.gpu_hours == pytest.approx(total)


def test_an_outcome_is_what_the_records_say(tmp_path: Path) -> None:
    found = table()
    history = played(tmp_path, born(OOM, LAYOUT, NO_RECOMPUTE, launches=8))
    got = outcome_of(found, history, arm="x", seed=0, real_s=1.0)
    row = found.find({**found.about.baseline, **LAYOUT["arguments"], "recompute_granularity": None})
    assert row is not None
    assert got.gain == pytest.approx(found.speed(row) / found.speed(found.start()) - 1)  # the table's truth
    assert got.measured_gain != got.gain
    assert got.measured_gain == pytest.approx(got.gain, abs=0.03)  # the noisy re-measurement
    assert (got.launches, got.failed, got.refused, got.launches_to_best) == (3, 1, 0, 3)
    assert got.failed_gpu_hours == pytest.approx(16 * 360 / 3600)
    assert got.gpu_hours == pytest.approx(budget.spent(history))
    assert got.near_best == (found.speed(row) >= 0.97 * found.speed(found.best()))
    assert [g for _, g in got.curve] == sorted(g for _, g in got.curve)
    assert got.hours_to_target == pytest.approx(got.curve[-2][0])  # halving tp gained 20% already
    calibrations = sum(history.charge(x.id) for x in history.launches() if x.kind == "calibrate")
    assert got.curve[-1][0] == pytest.approx(calibrations + got.search_gpu_hours)


def test_a_campaign_that_finds_nothing_keeps_the_baseline_and_gains_nothing(tmp_path: Path) -> None:
    got = outcome_of(table(), played(tmp_path, born(OOM)), arm="x", seed=0, real_s=1.0)
    assert (got.gain, got.measured_gain, got.kept_baseline, got.hours_to_target, got.shipped) == (0.0, 0.0, True, None, "")


def test_processes_give_what_one_process_gives() -> None:
    entries = [entry(seed=s, launches=6) for s in (0, 1)]
    alone, _ = play_all(entries, rules=RULES, configs=CONFIGS)
    together, failed = play_all(entries, rules=RULES, configs=CONFIGS, jobs=2)
    assert failed == []
    same = {"real_s": 0.0}
    assert [o.model_copy(update=same) for o in together] == [o.model_copy(update=same) for o in alone]


def test_a_campaign_that_fails_is_named_and_the_others_go_on(tmp_path: Path) -> None:
    wrong = FORMULA.read_text().replace("tensor_model_parallel_size: 4", "tensor_model_parallel_size: 3")
    file = tmp_path / "bad.yaml"
    file.write_text(wrong)
    (tmp_path / "bad.csv").write_text(FORMULA.with_suffix(".csv").read_text())
    broken = Entry(file, arm("random"), 7, Protocol())
    found, failed = play_all([broken, entry(launches=2)], rules=RULES, configs=CONFIGS)
    assert len(found) == 1
    assert failed == [f"bad random seed 7: {file}: baseline: it is not a row that ends well; mend the description"]


def test_another_machine_is_another_table() -> None:
    got = play(entry(launches=4, perturb={"compute": 0.85}), rules=RULES, configs=CONFIGS)
    assert got.table == "formula-moe-16xgpu+compute=0.85"


def test_figures_are_means_medians_and_counts_over_campaigns() -> None:
    group = [outcome("a", 0, 0.5), outcome("a", 1, 1.0, launches=30, failed=9), outcome("a", 2, 0.0), outcome("b", 0, 0.2)]
    first, second = lines(group)
    assert (first.arm, first.campaigns, first.gain, first.gain_low, first.gain_high) == ("a", 3, 0.5, 0.0, 1.0)
    assert (first.near_best, first.kept_baseline, first.launches) == (1, 1, 10)
    assert first.failed_share == pytest.approx(11 / 50)
    assert (first.hours_to_target, first.reached_target) == (20.0, 2)
    assert second.gain == 0.2
    assert "+50.0% (+0.0% – +100.0%)" in text([first])


def test_outcomes_come_back_from_csv_as_they_went() -> None:
    group = [outcome("a", 0, 0.5), outcome("a", 1, 0.0, near_best=None, best_gain=None)]
    assert read_csv(as_csv(group)) == group


def p_of(mine: list[float], theirs: list[float], kind: str) -> float:
    group = [*(outcome("a", i, g) for i, g in enumerate(mine)), *(outcome("b", i, g) for i, g in enumerate(theirs))]
    return next(t.p for t in permutation_tests(group, "a") if t.kind == kind)


def test_permutation_tests_give_the_papers_lowest_p() -> None:
    mine, theirs = [0.22, 0.55, 0.25], [0.0, 0.02, 0.08]  # three campaigns each, as in its table 2
    assert p_of(mine, theirs, "exact") == pytest.approx(0.05)
    assert p_of(mine, theirs, "blocks") == pytest.approx(0.125)
    assert p_of(theirs, mine, "exact") == pytest.approx(1.0)
    assert p_of([0.1] * 3, [0.1] * 3, "exact") == pytest.approx(1.0)


def test_blocks_see_a_small_gain_that_the_blocks_own_spread_hides() -> None:
    hard = [0.1, 0.5, 0.9, 1.3, 1.7]
    assert p_of([x + 0.02 for x in hard], hard, "blocks") == pytest.approx(1 / 32)
    assert p_of([x + 0.02 for x in hard], hard, "exact") > 0.3


def test_too_many_permutations_are_drawn_with_a_fixed_seed_and_said() -> None:
    group = [*(outcome("a", i, i / 20) for i in range(20)), *(outcome("b", i, i / 25) for i in range(20))]
    one, two = permutation_tests(group, "a"), permutation_tests(group, "a")
    assert one == two
    assert [t.counted for t in one] == [False, False]
    assert {t.permutations for t in one} == {200_000}


def test_a_curve_is_flat_after_its_end_and_bands_hold_mean_and_range() -> None:
    assert [best_at([(10.0, 0.0), (50.0, 0.4)], h) for h in (0, 10, 49, 50, 900)] == [0.0, 0.0, 0.0, 0.4, 0.4]
    (band,) = bands([outcome("a", 0, 0.2), outcome("a", 1, 0.6)])
    assert (band.mean[-1], band.low[-1], band.high[-1], band.ends) == (pytest.approx(0.4), 0.2, 0.6, [50.0, 50.0])


def test_the_page_is_whole_escaped_and_alone() -> None:
    group = [outcome(a, s, g) for a, g in (("<b>arm</b>", 0.5), ("other", 0.1)) for s in (0, 1)]
    found = page("<script>", ["the budget & the rest"], group, permutation_tests(group, "other"), {"t": "a simulator"})
    assert "<b>arm</b>" not in found
    assert "<script>" not in found
    assert "the budget &amp; the rest" in found
    assert "Figures: a simulator" in found
    assert "http" not in re.sub(r"https?-equiv", "", found).replace("http-equiv", "")
    assert permutation_tests(group[::2], "other") == []  # one campaign an arm
    assert picture(group).count("<polyline") == 2
    assert picture([outcome("a", 0, 0.0, best_gain=0.0)]) == ""


def test_arms_take_turns_and_the_order_turns_around() -> None:
    turns = [(r.arm.name, r.number) for r in rounds([arm("catalog"), arm("tpe")], 2)]
    assert turns == [("catalog", 0), ("tpe", 0), ("tpe", 1), ("catalog", 1)]


def test_the_command_writes_page_and_csv(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["--project", str(ROOT), "bench", "formula-moe-16xgpu", "--arms", "random", "--seeds", "2", "--launches", "4"]
    assert main([*asked, "--out", str(tmp_path / "b"), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["figures"][0]["campaigns"] == 2
    assert sorted(p.name for p in (tmp_path / "b").iterdir()) == ["bench.html", "campaigns.csv", "figures.csv", "tests.csv"]
    again = ["--project", str(ROOT), "bench", "--arms", "random", "--add", str(tmp_path / "b" / "campaigns.csv")]
    assert main([*again, "--out", str(tmp_path / "c")]) == 0
    assert "formula-moe-16xgpu  random" in capsys.readouterr().out
    assert (tmp_path / "b" / "campaigns.csv").read_text() == (tmp_path / "c" / "campaigns.csv").read_text()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nowhere"], "nowhere: no such table"),
        ([], "name a table of configs/replay/"),
        (["formula-moe-16xgpu", "--perturb", "compute"], "--perturb compute: is NAME=FACTOR"),
        (["formula-moe-16xgpu", "--perturb", "sun=2"], "perturbation sun: unknown"),
        (["--local", "nowhere.yaml"], "--local nowhere.yaml: no such campaign file"),
        (["--add", "nowhere.csv"], "--add nowhere.csv: not a campaigns.csv"),
    ],
)
def test_a_wrong_word_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], said: str) -> None:
    assert main(["--project", str(ROOT), "bench", *words, "--arms", "random", "--out", str(tmp_path)]) == 2
    assert said in capsys.readouterr().err


def test_real_campaigns_go_through_the_ledger_the_report_and_a_proposer_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ATTUNER_HOME", str(tmp_path / "home"))
    file = str(CONFIGS / "campaigns" / "replay-formula.yaml")
    asked = ["--project", str(ROOT), "bench", "--local", file, "--arms", "tpe", "--seeds", "1", "--gpu-hours", "50"]
    assert main([*asked, "--out", str(tmp_path / "b")]) == 0
    (got,) = read_csv((tmp_path / "b" / "campaigns.csv").read_text())
    assert (got.table, got.arm, got.best_gain, got.near_best) == ("replay-formula", "tpe", None, None)
    assert got.gain == got.measured_gain > 0.2
    assert got.gpu_hours < 50
    (folder,) = (tmp_path / "home").glob("replay-formula-*")
    assert {"report.html", "report.md", "not-shippable.recipe.yaml"} <= {p.name for p in folder.iterdir()}
    assert (folder / "not-shippable.recipe.yaml").read_text().startswith("# NOT SHIPPABLE: replayed from")
    capsys.readouterr()
    assert main(["--project", str(ROOT), "status"]) == 0
    assert "on paper" in capsys.readouterr().out
