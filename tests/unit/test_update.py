"""Laws of the third look: identical is admitted, exact facts refuse, measured ones have their zones, blindness is said."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
from looks import FAMILIES, NORMS, Data, base, blind, evidence, families_of, limits, objections, reclip, scale, steps, update

from attuner.core.judgement import Finding
from attuner.policy.gate import update_look


def step(data: Data, number: int = 0) -> Data:
    found: Data = data["steps"][number]
    return found


def put(*path: Any) -> Callable[[Data], None]:
    """Set what the path leads to, in the fingerprint's plain data."""

    def spoil(data: Data) -> None:
        at: Any = data
        for key in path[:-2]:
            at = at[key]
        at[path[-2]] = path[-1]

    return spoil


def test_the_same_run_is_admitted_in_every_precision() -> None:
    for precision in ("fp32", "bf16"):
        verdict = update(evidence(precision=precision))
        assert (verdict.decision, verdict.look) == ("admit", "update")
        assert objections(verdict) == {}


def test_another_layout_of_the_same_numbers_is_admitted() -> None:
    assert update(evidence(tp=2, dp=1, edp=1)).decision == "admit"


EXACT: dict[str, tuple[Callable[[Data], None], str]] = {
    "gradient replicas": (put("steps", 0, "grad_replicas", ["qkv"]), "gradient replicas of step 0"),
    "gradient replicas later": (put("steps", 1, "grad_replicas", ["qkv"]), "gradient replicas of step 1"),
    "weight replicas": (put("steps", 1, "weight_replicas", ["qkv"]), "weight replicas of step 1"),
    "rows of tensor ranks": (put("steps", 0, "batch", "replicas_differ", True), "batch replicas of step 0"),
    "stale weights": (put("steps", 1, "families", "qkv", "stale", 3), "stale weights of step 1: qkv"),
    "loaded weights": (put("steps", 0, "families", "qkv", "weight_projection", 2.22), "loaded weights qkv"),
    "loaded weights' norm": (put("steps", 0, "families", "qkv", "weight_norm", 4.5), "loaded weights qkv"),
    "group's rate": (put("steps", 0, "groups", 1, "lr", 1e-3), "optimizer groups"),
    "group's decay": (put("steps", 0, "groups", 0, "weight_decay", 0.1), "optimizer groups"),
    "group's betas": (put("steps", 1, "groups", 0, "betas", [0.9, 0.99]), "optimizer groups"),
    "group's epsilon": (put("steps", 0, "groups", 0, "eps", 1e-6), "optimizer groups"),
    "group's size": (put("steps", 0, "groups", 0, "numel", 7), "optimizer groups"),
    "dtype": (put("steps", 0, "census", {"grad_buffer bfloat16": 9}), "dtype of grad_buffer"),
    "router's dtype": (put("steps", 0, "census", {"router_logits bfloat16": 0}), "dtype of router_logits"),
    "not finite": (put("not_finite", ["step0.qkv.grad_norm"]), "finite fingerprint"),
    "precision": (put("precision", "bf16"), "precision"),
    "vocabulary": (put("vocab_size", 512), "padded vocabulary"),
    "declared epsilon": (put("declared", "eps", 1e-6), "declared eps"),
    "number of parameters": (put("steps", 0, "families", "qkv", "numel", 1), "parameters of qkv"),
}


@pytest.mark.parametrize("name", EXACT)
def test_every_exact_fact_refuses(name: str) -> None:
    spoil, key = EXACT[name]
    found = objections(update(evidence(spoil)))
    assert found[key].decision == "refuse", found
    assert not found[key].check


def test_a_family_that_one_run_has_alone_refuses() -> None:
    def less(data: Data) -> None:
        for s in data["steps"]:
            del s["families"]["router"]

    assert objections(update(evidence(less)))["parameters of router"].decision == "refuse"
    assert objections(update(evidence(), base(less)))["parameters of router"].decision == "refuse"


def test_a_loaded_weight_is_the_same_up_to_the_order_of_a_sum() -> None:
    assert update(evidence(lambda d: scale(d, 1 + 1e-12, fields=("weight_norm", "weight_projection")))).decision == "admit"
    assert update(evidence(lambda d: scale(d, 1 + 1e-8, fields=("weight_norm", "weight_projection")))).decision == "refuse"


MEASURED = [
    # what, families, fields, precision → limit and outer limit of that measure
    ("gradient norm", ("qkv",), ("grad_norm",), "fp32", 2e-6, 1e-4),
    ("gradient norm", ("qk_norm",), ("grad_norm",), "bf16", 5e-2, 0.25),
    ("update norm", ("qkv",), ("update_norm",), "fp32", 2e-6, 1e-4),
    ("update norm", ("qk_norm",), ("update_norm",), "fp32", 1e-5, 5e-4),
    ("update norm", ("qkv",), ("update_norm",), "bf16", 2.5e-3, 5e-2),
    ("update norm", ("layer_norm",), ("update_norm",), "bf16", 5e-3, 0.1),
]


@pytest.mark.parametrize(("key", "names", "fields", "precision", "limit", "outer"), MEASURED)
@pytest.mark.parametrize("sign", [1, -1])
def test_a_measured_size_has_its_three_zones(
    key: str, names: tuple[str, ...], fields: tuple[str, ...], precision: str, limit: float, outer: float, sign: int
) -> None:
    for share, decision in ((0.9 * limit, "admit"), (1.1 * limit, "review"), (0.9 * outer, "review"), (1.1 * outer, "refuse")):

        def spoil(data: Data, share: float = share) -> None:
            scale(data, 1 + sign * share, *names, fields=fields)
            reclip(data)

        found = judged(evidence(spoil, precision=precision), f"{key} {names[0]}")
        assert (found.decision if found else "admit") == decision
        if found is not None:
            assert found.check is (decision == "review" and precision == "bf16")
            assert (found.tolerance, found.outer) == (limit, outer)
            assert found.source


def judged(candidate: Any, key: str) -> Finding | None:
    return objections(update(candidate)).get(key)


@pytest.mark.parametrize(
    ("key", "field", "unit", "precision", "limit", "outer"),
    [
        ("gradient projection qkv", "grad_projection", "grad_norm", "fp32", 6e-6, 5e-4),
        ("gradient projection qkv", "grad_projection", "grad_norm", "bf16", 0.15, 0.5),
        ("update projection qkv", "update_projection", "update_norm", "fp32", 1e-3, 5e-2),
        ("update projection qk_norm", "update_projection", "update_norm", "fp32", 5e-3, 0.2),
    ],
)
def test_a_projection_is_measured_in_the_familys_norm(
    key: str, field: str, unit: str, precision: str, limit: float, outer: float
) -> None:
    for share, decision in ((0.9 * limit, "admit"), (1.1 * limit, "review"), (1.1 * outer, "refuse")):

        def spoil(data: Data, share: float = share) -> None:
            f = families_of(data, key.split()[-1])[0]
            f[field] += share * f[unit]

        found = judged(evidence(spoil, precision=precision), key)
        assert (found.decision if found else "admit") == decision


def test_the_updates_direction_is_not_judged_in_bf16() -> None:
    assert update(evidence(lambda d: scale(d, -1.0, fields=("update_projection",)), precision="bf16")).decision == "admit"


@pytest.mark.parametrize(("share", "decision"), [(0.9e-3, "admit"), (2e-3, "review"), (0.06, "refuse")])
def test_zeros_are_a_share_of_the_familys_elements(share: float, decision: str) -> None:
    def spoil(data: Data) -> None:
        step(data)["families"]["output"]["zeros"] += int(share * FAMILIES["output"])

    found = judged(evidence(spoil), "gradient zeros output")
    assert (found.decision if found else "admit") == decision


@pytest.mark.parametrize(
    ("precision", "share", "decision"), [("fp32", 6e-6, "review"), ("fp32", 3e-4, "refuse"), ("bf16", 0.2, "review")]
)
def test_the_gradients_after_the_first_update_are_judged(precision: str, share: float, decision: str) -> None:
    def spoil(data: Data) -> None:
        scale(data, 1 + share, "router", step=1)
        reclip(data, 1)

    found = judged(evidence(spoil, precision=precision), "step-1 gradient norm router")
    assert found is not None
    assert found.decision == decision


@pytest.mark.parametrize(("factor", "decision"), [(1 + 9e-7, "admit"), (1.001, "review"), (1.06, "refuse")])
def test_the_loss_after_the_first_update_is_judged(factor: float, decision: str) -> None:
    def spoil(data: Data) -> None:
        data["lines"][1] = data["lines"][1].model_copy(update={"lm_loss": 2.85 * factor})

    found = judged(evidence(spoil), "step-1 loss")
    assert (found.decision if found else "admit") == decision


# ------------------------------------------------------------------------------------------------- self-checks


@pytest.mark.parametrize("both", [False, True])
def test_a_dead_model_refuses_even_where_the_baseline_is_as_dead(both: bool) -> None:
    def dead(data: Data) -> None:
        scale(data, 0.0)
        reclip(data)

    def flat(data: Data) -> None:
        step(data)["loss"] = math.log(256)
        data["lines"] = steps((math.log(256),) * 6)

    for spoil, key in ((dead, "model alive: gradient"), (flat, "model alive: loss")):
        found = objections(update(evidence(spoil), *([base(spoil)] if both else [])))
        assert found[key].decision == "refuse"
        own = update_look([], base(spoil), limits=limits(), subject="l01#1", recipe="r", own=True)
        assert objections(own)[key].decision == "refuse"


def test_a_probe_that_saw_nothing_is_a_refusal_not_a_match() -> None:
    def nothing(data: Data) -> None:
        data["steps"] = []
        data["missing"] = {"steps": "the optimizer is of an unknown kind"}

    def no_families(data: Data) -> None:
        for s in data["steps"]:
            s["families"] = {}

    def too_late(data: Data) -> None:
        data["steps"] = data["steps"][1:]

    for spoil in (nothing, no_families, too_late):
        verdict = update(evidence(spoil), base(spoil))
        assert objections(verdict)["probe"].decision == "refuse"


UNCLIPPED = {"norm": 1.06, "used_norm": 1.06, "coefficient_min": 1.0, "coefficient_max": 1.0}


def decayed(data: Data) -> None:
    for f in families_of(data, *NORMS):
        f["weight_decay"] = 0.1


SELF: dict[str, tuple[Callable[[Data], None], str, str]] = {
    "clip off": (put("steps", 0, "clip", UNCLIPPED), "clip coefficient", "refuse"),
    "clip's norm": (put("steps", 0, "clip", "used_norm", 2.0), "clip norm", "refuse"),
    "rate × 10": (lambda d: scale(d, 10.0, "qkv", fields=("lr",)), "learning rate fitted qkv", "refuse"),
    "rate a little": (lambda d: scale(d, 1 + 2e-5, "qkv", fields=("lr",)), "learning rate fitted qkv", "review"),
    "norms decayed": (decayed, "weight decay fitted, beside the baseline's qk_norm", "refuse"),
    "decay twice": (put("steps", 0, "families", "qkv", "weight_decay", 0.2), "weight decay fitted qkv", "refuse"),
    "unexplained": (put("steps", 0, "families", "qkv", "unexplained", 0.07), "unexplained update qkv", "refuse"),
    "unexplained a little": (put("steps", 0, "families", "qkv", "unexplained", 2e-4), "unexplained update qkv", "review"),
    "did not move": (put("steps", 0, "families", "qkv", "update_norm", 0.0), "update of step 0: qkv", "refuse"),
}


@pytest.mark.parametrize("name", SELF)
def test_a_self_check_needs_no_baseline(name: str) -> None:
    spoil, key, decision = SELF[name]
    found = objections(update(evidence(spoil)))
    assert key in found, found
    assert found[key].decision == decision
    assert not found[key].check  # a check launch would do the same thing


def test_the_fits_allow_for_the_rounding_of_small_steps() -> None:
    def slow(rate: float, off: float) -> Callable[[Data], None]:
        def spoil(data: Data) -> None:
            data["declared"]["lr"] = rate
            for s in data["steps"]:
                for g in s["groups"]:
                    g["lr"] = rate
            scale(data, rate / 1e-4, fields=("lr",))
            scale(data, 1 + off, "qkv", fields=("lr",))

        return spoil

    assert "learning rate fitted qkv" not in objections(update(evidence(slow(1e-5, 5e-5)), base(slow(1e-5, 5e-5))))
    assert "learning rate fitted qkv" in objections(update(evidence(slow(1e-5, 5e-4)), base(slow(1e-5, 0.0))))
    verdict = update(evidence(slow(1e-7, 0.5)), base(slow(1e-7, 0.0)))
    said = {f.key: f for f in verdict.findings}["learning rate fitted"]
    assert said.decision == "admit"
    assert "drowns in rounding" in said.reason


def test_without_an_update_in_the_first_step_of_a_warm_up_there_is_nothing_to_fit() -> None:
    def warm(data: Data) -> None:
        for number in (0, 1):
            for g in step(data, number)["groups"]:
                g["lr"] = 0.0
            for f in families_of(data, step=number):
                f.update(update_norm=0.0, update_projection=0.0, lr=0.0, weight_decay=None, unexplained=0.0)

    verdict = update(evidence(warm), base(warm))
    assert verdict.decision == "admit", objections(verdict)


def test_after_a_step_of_warm_up_without_a_rate_the_next_update_is_the_first() -> None:
    def warm(data: Data) -> None:
        for g in step(data)["groups"]:
            g["lr"] = 0.0

    def tenfold(data: Data) -> None:
        warm(data)
        scale(data, 10.0, "qkv", fields=("lr", "update_norm"), step=1)

    assert update(evidence(warm), base(warm)).decision == "admit"
    assert {"learning rate fitted qkv", "update norm qkv"} <= objections(update(evidence(tenfold), base(warm))).keys()


# ------------------------------------------------------------------------------------------------- the baseline's own defects


@pytest.mark.parametrize(
    "spoil",
    [EXACT["gradient replicas"][0], EXACT["stale weights"][0], SELF["clip's norm"][0], SELF["unexplained"][0]],
    ids=["replicas", "stale", "clip norm", "unexplained"],
)
def test_what_the_baseline_fails_by_itself_is_its_own_review_and_not_held_against_candidates(
    spoil: Callable[[Data], None],
) -> None:
    own = update_look([], base(spoil), limits=limits(), subject="l01#1", recipe="r", own=True)
    assert own.decision == "review"
    assert all(f.todo for f in objections(own).values())
    both = update(evidence(spoil), base(spoil))
    assert both.decision == "admit"
    assert any("as in the baseline's own run" in f.reason for f in both.findings)


def test_what_neither_run_shows_is_still_for_a_person() -> None:
    def unseen(data: Data) -> None:
        data["missing"] = {"update": "the optimizer keeps no weights of its own"}
        for f in families_of(data):
            f.update(update_norm=None, update_projection=None, lr=None, weight_decay=None, unexplained=None)

    found = objections(update(evidence(unseen), base(unseen)))
    assert found["not seen: update"].decision == "review"
    assert "keeps no weights" in found["not seen: update"].reason


def test_frozen_parameters_that_both_runs_have_are_no_gap() -> None:
    frozen = put("missing", {"frozen parameters": "3 on rank 0 take no gradient"})
    assert update(evidence(frozen), base(frozen)).decision == "admit"
    assert update(evidence(frozen)).decision == "review"


# ------------------------------------------------------------------------------------------------- what was not seen


@pytest.mark.parametrize(
    ("spoil", "key"),
    [
        (put("steps", 0, "clip", None), "clip"),
        (put("steps", 0, "groups", []), "not seen: optimizer groups"),
        (put("steps", 0, "census", {}), "not seen: census of dtypes"),
        (put("steps", 0, "families", "qkv", "grad_norm", None), "not seen: gradient norm"),
        (put("steps", 0, "families", "qkv", "weight_projection", None), "loaded weights"),
        (put("missing", {"shares": "of ranks 3: what they hold is left out"}), "not seen: shares"),
        (lambda d: d["steps"].pop(), "step-1 gradient norm"),
        (lambda d: [s.update(replicas_compared=0) for s in d["steps"]], "replicas"),
    ],
)
def test_a_part_that_was_not_seen_is_named_and_left_to_a_person(spoil: Callable[[Data], Any], key: str) -> None:
    found = objections(update(evidence(spoil)))
    assert found[key].decision == "review"


def test_a_run_without_a_fingerprint_is_never_admitted() -> None:
    for candidate, reference in ((blind(), base()), (evidence(), blind("l01#1"))):
        verdict = update(candidate, reference)
        assert verdict.decision == "review"
        assert objections(verdict)["third look"].decision == "review"


def test_of_a_replayed_table_no_third_look_is_asked() -> None:
    verdict = update(blind(), blind("l01#1"), replayed=True)
    assert verdict.decision == "admit"
    assert "not looked" in verdict.findings[0].reason


def test_without_gradients_the_figures_of_a_log_still_refuse() -> None:
    old, new = blind("l01#1", steps(grad_norm=1.06), printed=True), blind(lines=steps(grad_norm=2.12), printed=True)
    assert objections(update(new, old, limits=limits("other")))["gradient norm"].decision == "refuse"
    same = blind(lines=steps(grad_norm=1.061), printed=True)
    assert set(objections(update(same, old, limits=limits("other")))) == {"third look"}


def test_many_families_are_told_by_their_worst() -> None:
    def spoil(data: Data) -> None:
        scale(data, 1.5)
        reclip(data)

    told = [f for f in update(evidence(spoil)).refusals() if f.key.startswith("gradient norm")]
    assert len(told) == 3
    named = {f.key.split()[-1] for f in told} | {n for n in FAMILIES if n in told[-1].reason}
    assert named == set(FAMILIES)


def test_the_look_is_pure() -> None:
    assert update(evidence()).digest() == update(evidence()).digest()
