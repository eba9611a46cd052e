"""The budget: reserved before, settled after, remaining computed from the records and never stored."""

from __future__ import annotations

import math
from typing import Any

import pytest
from book import Book
from lab import campaign

from attuner.core.campaign import Budget, Campaign
from attuner.core.errors import BudgetExceeded, UserError
from attuner.core.events import History
from attuner.core.judgement import Calibration
from attuner.core.run import Launch, Trial
from attuner.core.search import Stop
from attuner.policy import budget

ONE = 2 * 10 / 3600  # two devices, ten seconds: what the lab's campaign declares for one launch


def calibrated(book: Book, hours: float = 1.0) -> Book:
    given = {"round": 1, "launches": ["l01"], "mean": 64.0, "sigma": 0.0, "band": 0.03, "busy": False, "step0_loss": 5.0}
    book.put("calibration", "1", Calibration.model_validate({**given, "launch_gpu_hours": hours}))
    return book


def test_an_open_launch_holds_its_reserve_and_a_closed_one_its_charge() -> None:
    book = Book(campaign(budget={"gpu_hours": 100.0}))
    free = budget.remaining(book.history, for_remeasure=True)
    assert free == 100.0
    book.launch("l01", reserve_gpu_hours=3.0)
    assert budget.remaining(book.history, for_remeasure=True) == 97.0
    book.settle("l01", 2.0)
    book.trial("l01", hours=2.0)
    assert budget.reserved(book.history) == 0
    assert budget.remaining(book.history, for_remeasure=True) == 98.0


def test_lost_failed_and_check_attempts_are_all_spent() -> None:
    book = Book()
    book.launch("l01", kind="check")
    book.settle("l01", 1.0, lost=True, how="last_heartbeat")
    book.settle("l01", 2.0, number=2)
    book.trial("l01", "crash")
    book.ran("l02", status="oom", hours=0.5)
    assert budget.spent(book.history) == 3.5


def test_search_may_not_touch_the_share_of_the_remeasurement() -> None:
    book = calibrated(Book(campaign(budget={"gpu_hours": 10.0})))
    assert budget.remaining(book.history) == 10.0 - 6 * 1.5
    assert budget.remaining(book.history, for_remeasure=True) == 10.0
    book.launch("l01", kind="remeasure", reserve_gpu_hours=1.5)
    assert budget.remeasure_reserve(book.history) == 6 * 1.5, "the search is open: it may bring another leader"
    book.put("stop", "final", Stop(reason="done"))
    assert budget.remeasure_reserve(book.history) == 5 * 1.5


def test_a_launch_that_does_not_fit_is_refused_with_both_figures() -> None:
    book = calibrated(Book(campaign(budget={"gpu_hours": 10.0})))
    budget.require(book.history, 1.0)
    with pytest.raises(BudgetExceeded, match=r"reserves 1\.1000 device-hours, 1\.0000 are left"):
        budget.require(book.history, 1.1)


def test_what_is_over_spent_leaves_nothing_and_never_less_than_nothing_in_words() -> None:
    book = calibrated(Book(campaign(budget={"gpu_hours": 7.0})))
    book.ran("l01", hours=20.0)
    with pytest.raises(BudgetExceeded, match=r"0\.0000 are left"):
        budget.require(book.history, 1.0)


def test_auto_is_unlimited_until_the_first_measured_launch_then_thirty_of_it_rounded_up_to_ten() -> None:
    book = Book(campaign(budget={"gpu_hours": "auto"}))
    assert budget.total(book.history) == math.inf
    book.ran("l01", kind="calibrate", hours=0.7)
    assert budget.total(book.history) == 30.0
    book.ran("l02", kind="calibrate", hours=5.0)
    assert budget.total(book.history) == 30.0


def test_auto_does_not_count_a_profiled_launch() -> None:
    book = Book(campaign(budget={"gpu_hours": "auto"}))
    book.ran("l01", kind="calibrate", hours=0.7, profile_steps=1)
    assert budget.total(book.history) == math.inf


def test_the_expected_cost_is_measured_else_declared_else_the_limit() -> None:
    assert budget.launch_cost(Book().history) == pytest.approx(ONE)
    assert budget.launch_cost(Book(campaign(launch={"max_s": 90.0})).history) == pytest.approx(2 * 90 / 3600)
    assert budget.launch_cost(calibrated(Book(), 0.25).history) == 0.25
    assert budget.reserve(calibrated(Book(), 0.25).history) == pytest.approx(0.375)


def test_a_launch_may_run_four_times_as_long_as_a_measured_baseline() -> None:
    made = campaign(launch={"max_s": 600.0, "hang_s": 30.0})
    assert budget.time_limit_s(Book(made).history) == 600.0
    assert budget.time_limit_s(calibrated(Book(made), 2 * 20 / 3600).history) == pytest.approx(80.0)
    assert budget.time_limit_s(calibrated(Book(made), 2 * 1 / 3600).history) == 30.0
    assert budget.time_limit_s(calibrated(Book(made), 2 * 900 / 3600).history) == 600.0


def test_what_remains_is_no_field_of_any_record() -> None:
    for record in (Campaign, Launch, Trial, Calibration):
        assert not [name for name in record.model_fields if "remain" in name or "left" in name]


def test_what_remains_depends_on_the_records_alone() -> None:
    book = calibrated(Book())
    book.ran("l01", hours=2.5)
    assert budget.remaining(History(book.events)) == budget.remaining(History(list(book.events)))


def test_a_fresh_attempt_of_an_invalid_measurement_is_reserved_too() -> None:
    book = Book()
    book.ran("l01", hours=1.0)
    free = budget.remaining(book.history)
    attempt = book.history.attempts("l01")[0].model_copy(update={"number": 2, "submission_id": "l01#2"})
    book.put("attempt", "l01#2", attempt)
    assert budget.remaining(book.history) < free


@pytest.mark.parametrize(("prepare", "launches"), [({}, 11), ({"steps": 4}, 12), ({"checkpoint": "/a/folder"}, 11)])
def test_birth_asks_for_the_reserve_of_every_launch_that_is_made_in_any_case(prepare: dict[str, Any], launches: int) -> None:
    need = launches * budget.RESERVE * ONE
    made = campaign(prepare=prepare)
    assert budget.fixed_launches(made) == launches
    budget.check_at_birth(made.model_copy(update={"budget": Budget(gpu_hours=need)}), source="x.yaml")
    with pytest.raises(UserError, match=f"{launches} launches"):
        budget.check_at_birth(made.model_copy(update={"budget": Budget(gpu_hours=need * 0.999)}), source="x.yaml")


def test_an_attempt_may_hold_its_devices_for_as_long_as_the_budget_pays_and_no_longer() -> None:
    book = calibrated(Book(campaign(budget={"gpu_hours": 10.0})))
    book.launch("l01", kind="calibrate", time_limit_s=9e9)
    book.settle("l01", 1.0)
    book.trial("l01", hours=1.0)
    book.launch("l02", kind="remeasure", reserve_gpu_hours=1.5, time_limit_s=9e9)
    every = 9.0 * 3600 / 2 - budget.ENDING_S
    assert budget.attempt_limit_s(book.history, book.history.launches()[-1]) == pytest.approx(every)
    book.launch("l03", kind="remeasure", reserve_gpu_hours=1.5, time_limit_s=60.0)
    assert budget.attempt_limit_s(book.history, book.history.launches()[-1]) == 60.0


def test_a_search_attempt_leaves_the_share_of_the_remeasurement_alone() -> None:
    book = calibrated(Book(campaign(budget={"gpu_hours": 12.0})))
    book.launch("l01", reserve_gpu_hours=1.5, time_limit_s=9e9)
    share = 6 * 1.5
    launch = book.history.launches()[-1]
    assert budget.attempt_limit_s(book.history, launch) == pytest.approx((12.0 - share) * 3600 / 2 - budget.ENDING_S)
    assert budget.why_no_attempt(book.history, launch) == ""
    book.settle("l01", 2.5, lost=True, how="last_heartbeat")
    assert "0.5000 device-hours are left for it, one launch costs 1.0000" in budget.why_no_attempt(book.history, launch)


def test_calibration_stops_as_soon_as_the_measured_cost_shows_that_the_budget_cannot_do() -> None:
    book = Book(campaign(budget={"gpu_hours": 10.0}))
    for n in range(1, 6):
        book.launch(f"l0{n}", kind="calibrate", profile_steps=n // 5)
    first, second = book.history.launches()[:2]
    assert budget.why_no_attempt(book.history, first) == ""
    book.settle("l01", 0.9)
    book.trial("l01", hours=0.9)
    assert budget.why_no_attempt(book.history, second) == "", "4 + 6 launches at 0.9 are 9.0, and 9.1 are left"
    book = Book(campaign(budget={"gpu_hours": 10.0}))
    for n in range(1, 6):
        book.launch(f"l0{n}", kind="calibrate", profile_steps=n // 5)
    book.settle("l01", 1.0)
    book.trial("l01", hours=1.0)
    why = budget.why_no_attempt(book.history, second)
    assert why.startswith(budget.NO_MORE)
    assert "need 10.0000 more, 9.0000 are left" in why


def test_what_is_left_must_pay_for_ending_a_job_too() -> None:
    book = calibrated(Book(campaign(budget={"gpu_hours": 1.0})))
    book.ran("l01", hours=1.0 - 2 * 5 / 3600)
    book.launch("l02", kind="remeasure")
    assert "device-hours are spent" in budget.why_no_attempt(book.history, book.history.launches()[-1])


def test_a_check_while_the_remeasurement_runs_needs_no_second_remeasurement() -> None:
    book = calibrated(Book(campaign(budget={"gpu_hours": 11.0})))
    book.put("stop", "final", Stop(reason="done"))
    for n in range(1, 7):
        book.launch(f"l0{n}", kind="remeasure", reserve_gpu_hours=1.5)
    budget.require(book.history, 1.5, kind="check")
    with pytest.raises(BudgetExceeded):
        budget.require(book.history, 1.5, kind="search")


def test_a_crashed_run_sets_no_auto_budget() -> None:
    book = Book(campaign(budget={"gpu_hours": "auto"}))
    book.ran("l01", kind="calibrate", status="crash", hours=0.01)
    assert budget.total(book.history) == math.inf
    book.ran("l02", kind="calibrate", hours=0.7)
    assert budget.total(book.history) == 30.0
