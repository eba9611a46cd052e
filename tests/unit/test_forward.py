"""Laws of the second look: losses have zones, tokens and batch are exact, what was not seen is named."""

from __future__ import annotations

import math
from typing import Any

import pytest
from looks import Data, base, blind, evidence, forward, limits, objections, steps

from attuner.policy.gate import forward_look, paper_gate


def test_the_same_run_is_admitted_and_every_finding_says_what_it_compared() -> None:
    verdict = forward(evidence())
    assert verdict.decision == "admit"
    assert verdict.look == "forward"
    assert {"step-0 loss", "finite losses", "loss tokens", "batch", "curve", "curve trend"} <= {f.key for f in verdict.findings}
    assert all(f.reason for f in verdict.findings)


@pytest.mark.parametrize(
    ("precision", "factor", "decision"),
    [
        ("fp32", 1 + 9e-7, "admit"),
        ("fp32", 1 - 9e-7, "admit"),
        ("fp32", 1 + 2e-6, "review"),
        ("fp32", 1.049, "review"),
        ("fp32", 1.051, "refuse"),
        ("fp32", 0.949, "refuse"),
        ("fp32", -1.0, "refuse"),
        ("fp32", 0.0, "refuse"),
        ("bf16", 1 + 3.9e-4, "admit"),
        ("bf16", 1 + 4.1e-4, "review"),
        ("bf16", 1.051, "refuse"),
    ],
)
def test_the_first_loss_has_three_zones(precision: str, factor: float, decision: str) -> None:
    def spoil(data: Data) -> None:
        data["lines"][0] = data["lines"][0].model_copy(update={"lm_loss": 2.93 * factor})

    found = {f.key: f for f in forward(evidence(spoil, precision=precision)).findings}["step-0 loss"]
    assert found.decision == decision
    assert found.before == 2.93
    assert found.check is (decision == "review" and precision == "bf16")


@pytest.mark.parametrize(
    ("loss", "decision"), [(5.0, "admit"), (5.25, "admit"), (4.75, "admit"), (5.2501, "refuse"), (4.7499, "refuse")]
)
def test_a_stack_without_measurements_of_its_own_has_the_papers_five_percent(loss: float, decision: str) -> None:
    verdict = forward(blind(lines=steps((loss,))), blind("l01#1", steps((5.0,))), limits=limits("other"))
    assert {f.key: f for f in verdict.findings}["step-0 loss"].decision == decision


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
def test_a_first_loss_that_is_no_number_is_refused(loss: float) -> None:
    assert forward(blind(lines=steps((loss, 2.0)))).decision == "refuse"


@pytest.mark.parametrize("loss", [math.nan, math.inf, 0.0])
def test_a_baseline_without_a_usable_loss_admits_nothing(loss: float) -> None:
    assert forward(evidence(), blind("l01#1", steps((loss, 2.0)))).decision == "refuse"


def test_a_run_without_a_step_zero_is_refused() -> None:
    assert forward(blind(lines=steps()[1:])).decision == "refuse"
    assert forward(blind(lines=[])).decision == "refuse"


@pytest.mark.parametrize(
    "spoil", [{"lm_loss": math.nan}, {"lm_loss": -math.inf}, {"aux": {"load": math.nan}}, {"grad_norm": math.inf}]
)
def test_one_loss_that_is_no_number_refuses_wherever_it_stands(spoil: dict[str, Any]) -> None:
    for at in range(6):
        lines = steps()
        lines[at] = lines[at].model_copy(update=spoil)
        assert "finite losses" in objections(forward(blind(lines=lines)))


@pytest.mark.parametrize(
    ("aux", "decision"),
    [
        ({"load_balancing_loss": 1.0277 * (1 + 1e-6)}, "admit"),
        ({"load_balancing_loss": 1.0277 * 1.006}, "review"),
        ({"load_balancing_loss": 1.0277 * 1.06}, "refuse"),
        ({}, "refuse"),
        ({"load_balancing_loss": 1.0277, "z_loss": 0.02}, "refuse"),
    ],
)
def test_every_auxiliary_loss_is_compared_and_none_may_come_or_go(aux: dict[str, float], decision: str) -> None:
    def spoil(data: Data) -> None:
        data["lines"] = steps(aux=aux)
        for step in data["steps"]:
            step["aux"] = aux

    assert forward(evidence(spoil)).decision == decision


@pytest.mark.parametrize("at", range(6))
def test_the_number_of_loss_tokens_is_exact_in_every_step(at: int) -> None:
    def spoil(data: Data) -> None:
        data["lines"][at] = data["lines"][at].model_copy(update={"loss_tokens": 507})

    found = objections(forward(evidence(spoil)))
    assert list(found) == [f"loss tokens of step {at}"]
    assert found[f"loss tokens of step {at}"].decision == "refuse"
    assert (found[f"loss tokens of step {at}"].before, found[f"loss tokens of step {at}"].after) == (506, 507)


@pytest.mark.parametrize("what", ["rows", "loss_tokens", "inputs", "labels", "loss_mask", "positions", "targets", "rows_digest"])
@pytest.mark.parametrize("step", [0, 1])
def test_every_part_of_the_batch_is_exact_in_every_observed_step(what: str, step: int) -> None:
    def spoil(data: Data) -> None:
        old = data["steps"][step]["batch"][what]
        data["steps"][step]["batch"][what] = old - 1 if isinstance(old, int) else "other"

    verdict = forward(evidence(spoil))
    assert verdict.decision == "refuse"
    assert all(k.startswith("batch") and k.endswith(str(step)) for k in objections(verdict))
    assert all(f.cause for f in objections(verdict).values()) or step == 1


def test_rows_that_only_one_trainer_pairs_up_are_no_difference() -> None:
    def spoil(data: Data) -> None:
        for step in data["steps"]:
            step["batch"]["rows_digest"] = ""

    assert forward(evidence(spoil)).decision == "admit"


def test_a_batch_that_was_not_seen_is_for_a_person_and_says_why() -> None:
    def spoil(data: Data) -> None:
        data["missing"] = {"batch": "the loss mask is hidden in a closure"}
        for step in data["steps"]:
            step["batch"] = None

    found = objections(forward(evidence(spoil)))["batch"]
    assert found.decision == "review"
    assert "hidden in a closure" in found.reason
    assert objections(forward(blind()))["batch"].decision == "review"


def test_a_batch_that_was_seen_in_one_run_only_is_for_a_person() -> None:
    def spoil(data: Data) -> None:
        data["steps"][1]["batch"] = None

    assert objections(forward(evidence(spoil)))["batch of step 1"].decision == "review"


def test_a_replayed_table_is_not_held_against_what_it_cannot_hold() -> None:
    table = blind(lines=steps((5.0,) * 4))
    verdict = forward(table, blind("l01#1", steps((5.0,) * 4)), replayed=True)
    assert verdict.decision == "admit"
    assert "not looked" in {f.key: f for f in verdict.findings}["batch"].reason


def test_the_baselines_first_run_is_compared_with_itself() -> None:
    verdict = forward_look([], base(), limits=limits(), subject="l01#1", recipe="r")
    assert verdict.decision == "admit"


def test_figures_of_a_log_are_compared_up_to_what_was_printed() -> None:
    lines = steps((2.930001, *(2.85, 2.78, 2.72, 2.66, 2.61)))
    log = blind(lines=lines, printed=True)
    assert {f.key: f for f in forward(log).findings}["step-0 loss"].decision == "admit"


def test_the_papers_gate_alone_sees_the_first_loss_and_nothing_else() -> None:
    def spoil(data: Data) -> None:
        data["steps"][0]["batch"]["labels"] = "other"
        data["lines"][0] = data["lines"][0].model_copy(update={"lm_loss": 2.93 * 1.04})

    assert forward(evidence(spoil)).decision == "refuse"
    assert paper_gate([base()], evidence(spoil)).decision == "admit"
    assert paper_gate([base()], blind(lines=steps((2.93 * 1.06, 2.0)))).decision == "refuse"
    assert paper_gate([base()], blind(lines=steps((2.93, math.nan)))).decision == "refuse"
    assert paper_gate([base()], blind(lines=[])).decision == "refuse"


def test_the_look_is_pure() -> None:
    assert forward(evidence()).digest() == forward(evidence()).digest()
