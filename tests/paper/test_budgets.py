"""Table D1 of the paper: budgets exactly, bands within the rounding of the printed σ, and the leader's rule on them."""

from __future__ import annotations

import math

import pytest
from book import Book
from lab import campaign

from attuner.core.campaign import Noise
from attuner.core.run import Trial
from attuner.policy import budget, measure

MODELS = {
    "llama-3.1-405b / 128 x b200": (399.36, 1.29, 3.88, 61.38, 1850),
    "mixtral-8x22b / 128 x h100": (1091.69, 0.95, 3.00, 24.57, 740),
    "glm-4.5 / 128 x b200": (728.19, 0.49, 3.00, 62.58, 1880),
    "minimax-m2 / 64 x b200": (893.18, 0.95, 3.00, 17.58, 530),
}
"""Calibration mean (tokens/s per GPU), σ (%), band (%), unprofiled launch and budget (GPU-hours)."""
ROWS = pytest.mark.parametrize(("mean", "sigma", "band", "launch", "total"), MODELS.values(), ids=MODELS)
ROUNDING = 0.005
"""σ and band are printed to two decimals of a per cent."""


@ROWS
def test_the_budget_is_thirty_unprofiled_launches_rounded_up_to_ten(
    mean: float, sigma: float, band: float, launch: float, total: int
) -> None:
    book = Book(campaign(budget={"gpu_hours": "auto"}))
    book.ran("l01", kind="calibrate", hours=launch, profile_steps=0)
    book.ran("l05", kind="calibrate", hours=launch * 1.4, profile_steps=1)  # a profiled one costs more, and doesn't count
    assert budget.total(book.history) == total


@ROWS
def test_a_budget_is_not_rounded_where_it_is_a_multiple_of_ten(
    mean: float, sigma: float, band: float, launch: float, total: int
) -> None:
    book = Book(campaign(budget={"gpu_hours": "auto"}))
    book.ran("l01", kind="calibrate", hours=total / 30)
    assert budget.total(book.history) == pytest.approx(total)
    assert budget.AUTO_LAUNCHES * launch <= total < budget.AUTO_LAUNCHES * launch + budget.AUTO_ROUND


def runs(mean: float, sigma: float) -> list[Trial]:
    """Five calibration runs with exactly this mean and relative standard deviation (n-1)."""
    work = campaign().workload
    spread = [-2.0, -1.0, 0.0, 1.0, 2.0]
    scale = sigma / 100 * mean / math.sqrt(sum(x * x for x in spread) / 4)
    made = []
    for number, x in enumerate(spread):
        step_s = work.tokens_per_step() / ((mean + scale * x) * work.gpus)
        steps = [{"step": n, "kind": "scored" if n else "warmup", "t": float(n), "step_s": step_s} for n in range(work.steps)]
        told = [{**s, "lm_loss": 5.0, "loss_tokens": None, "tokens": work.tokens_per_step()} for s in steps]
        given = {"launch_id": f"l{number:02d}", "attempt": 1, "status": "ok", "gpu_hours": 1.0, "gpus": work.gpus}
        made.append(Trial.model_validate({**given, "steps": told}))
    return made


@ROWS
def test_the_band_is_that_of_the_paper_within_the_rounding_of_its_sigma(
    mean: float, sigma: float, band: float, launch: float, total: int
) -> None:
    found = measure.calibrate(runs(mean, sigma), campaign(), number=1)
    assert found.mean == pytest.approx(mean)
    assert found.sigma == pytest.approx(sigma / 100)
    # three times the rounding of σ, and the band's own
    slack = (3 * ROUNDING + ROUNDING) / 100
    assert abs(found.band - band / 100) <= slack
    if band == 3.00:
        assert found.band == Noise().floor == 0.03
    else:
        assert found.band > Noise().floor


def test_the_printed_bands_follow_from_no_other_rule() -> None:
    sigma, band = MODELS["llama-3.1-405b / 128 x b200"][1:3]
    assert abs(2 * sigma - band) > 1.0
    assert abs(4 * sigma - band) > 1.0


def test_the_glm_launches_of_the_paper_lead_and_tie_by_this_band() -> None:
    """Table F1: 707.6 is a tie with 728.2, and 1,072.7 a win (+47.3%)."""
    band = MODELS["glm-4.5 / 128 x b200"][2] / 100
    assert not measure.leads(707.6, 728.2, band)
    assert measure.leads(1072.7, 728.2, band)
    gain = 1072.7 / 728.2 - 1
    assert gain == pytest.approx(0.473, abs=0.0005)
