"""Each planted fault's signature is recognised: the cause that a person reads is the one that was planted."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
from looks import (
    FAMILIES,
    LOSSES,
    ROWS,
    Data,
    base,
    blind,
    evidence,
    families_of,
    forward,
    objections,
    reclip,
    scale,
    steps,
    update,
)

from attuner.core.judgement import Finding
from attuner.policy.causes import STAGES, stage_of


def told(spoil: Callable[[Data], Any], *, layout: dict[str, int] | None = None, precision: str = "fp32") -> dict[str, Finding]:
    """Everything that the two looks have against a spoiled run, by key."""
    candidate = evidence(spoil, precision=precision, **(layout or {}))
    return {**objections(forward(candidate)), **objections(update(candidate))}


def causes(spoil: Callable[[Data], Any], key: str) -> str:
    """The cause of the first finding whose key begins so."""
    return next(f.cause for k, f in told(spoil).items() if k.startswith(key))


def loss(data: Data, factor: float = 1.0, offset: float = 0.0) -> None:
    data["lines"] = steps(tuple(x * factor + offset for x in LOSSES))


def gradients(factor: float, *names: str) -> Callable[[Data], None]:
    def spoil(data: Data) -> None:
        scale(data, factor, *names)
        reclip(data)

    return spoil


def batch(data: Data, **changes: Any) -> None:
    for s in data["steps"]:
        s["batch"].update(changes)


def mask(tokens: int) -> Callable[[Data], None]:
    def spoil(data: Data) -> None:
        batch(data, loss_mask="other", targets="other", loss_tokens=tokens)
        data["lines"] = steps(loss_tokens=tokens)

    return spoil


def labels(data: Data) -> None:
    batch(data, labels="other", targets="other", rows_digest="other")
    loss(data, 1.28)
    gradients(1.3)(data)


def order(data: Data) -> None:
    batch(data, inputs="other", labels="other", targets="other", rows_digest="other", loss_mask="other", loss_tokens=511)
    data["lines"] = steps(loss_tokens=511)


def replicas(*names: str) -> Callable[[Data], None]:
    def spoil(data: Data) -> None:
        data["steps"][0]["grad_replicas"] = list(names)
        gradients(0.73, *names)(data)

    return spoil


def weights(*names: str) -> Callable[[Data], None]:
    def spoil(data: Data) -> None:
        for name in names:
            families_of(data, name)[0]["weight_projection"] *= 1.5
        loss(data, 1.01)

    return spoil


def census(**changes: str) -> Callable[[Data], None]:
    def spoil(data: Data) -> None:
        for kind, dtype in changes.items():
            counts = data["steps"][0]["census"]
            data["steps"][0]["census"] = {**{k: v for k, v in counts.items() if not k.startswith(kind)}, f"{kind} {dtype}": 1}

    return spoil


def groups(**changes: Any) -> Callable[[Data], None]:
    def spoil(data: Data) -> None:
        for s in data["steps"]:
            for g in s["groups"]:
                g.update(changes)

    return spoil


def clip(**changes: float) -> Callable[[Data], None]:
    return lambda data: data["steps"][0]["clip"].update(changes)


def rate(data: Data) -> None:
    scale(data, 10.0, fields=("lr", "update_norm"))
    loss(data)
    data["lines"][1] = data["lines"][1].model_copy(update={"lm_loss": 2.85 * 1.01})


def decay(data: Data) -> None:
    for f in families_of(data, "qk_norm", "layer_norm", "final_norm"):
        f["weight_decay"] = 0.1


def stale(data: Data) -> None:
    data["steps"][1]["families"]["qkv"]["stale"] = 9
    data["steps"][1]["weight_replicas"] = ["qkv"]


def dropped(data: Data) -> None:
    batch(data, rows=7)


def positions(data: Data) -> None:
    batch(data, positions="other", inputs="other", rows_digest="other")


def uncounted(data: Data) -> None:
    data["lines"] = steps(loss_tokens=440)


def frozen(data: Data) -> None:
    data["missing"] = {"frozen parameters": "1 on rank 0 take no gradient"}
    for s in data["steps"]:
        del s["families"]["router"]


def rounded(data: Data) -> None:
    for n, f in enumerate(families_of(data)):
        f["grad_norm"] *= 1 + 1e-4 * (n + 1)
    reclip(data)


def aux_inside(data: Data) -> None:
    for f in families_of(data):
        f["grad_norm"] *= 1.001
    gradients(1.06, "router")(data)


def l2(data: Data) -> None:
    data["steps"][0]["clip"]["coefficient_max"] = 178.0


def forgotten(data: Data) -> None:
    scale(data, 1e4, "qkv", fields=("unexplained",), step=1)
    scale(data, 1.16, "qkv", fields=("lr",), step=1)


def kept(data: Data) -> None:
    scale(data, 1.9, step=1)
    reclip(data, 1)


def never(*names: str) -> Callable[[Data], None]:
    return lambda data: scale(data, 0.0, *names, fields=("update_norm",))


def apart(data: Data) -> None:
    data["steps"][0]["families"]["expert_fc1"]["stale"] = 9


def drifting(data: Data) -> None:
    data["steps"][1]["weight_replicas"] = ["qkv"]


def pairing(data: Data) -> None:
    batch(data, rows_digest="other")


def above_by_log_two(data: Data) -> None:
    loss(data, offset=math.log(2))


def softmax(data: Data) -> None:
    loss(data, 1.003)


def auxiliary(data: Data) -> None:
    data["lines"] = steps(aux={"load_balancing_loss": 1.02})


def moved(data: Data) -> None:
    for s in data["steps"]:
        s["groups"][0]["numel"] += 1


def epsilon_inside(data: Data) -> None:
    scale(data, 1e4, "qkv", fields=("unexplained",))


def counted_twice(data: Data) -> None:
    data["steps"][0]["clip"]["used_norm"] *= math.sqrt(2)


TP2 = {"tp": 2, "dp": 1, "edp": 1}
PP2 = {"pp": 2, "dp": 1, "edp": 1}
EXPERTS = ("expert_fc1", "expert_fc2")
LAYERS = ("qkv", "attn_proj", "router", "expert_fc1")
CASES: list[tuple[str, Callable[[Data], Any], dict[str, int], str, str]] = [
    # fault, how it is planted, layout, beginning of the key → words of the cause
    ("mask shifted", mask(506 - ROWS), {}, "loss tokens", "shifted by one token: -8 loss tokens, one token per row"),
    ("mask shifted, partly", mask(506 - 3), {}, "loss tokens", "shifted by one token: -3 loss tokens, at most one"),
    ("mask rolled", mask(506), {}, "batch loss mask", "the loss mask is rolled"),
    ("mask ignored", mask(1024), {}, "loss tokens", "the loss mask is ignored: 518 tokens more"),
    ("mask another", mask(400), {}, "batch loss mask", "another loss mask: -106 loss tokens"),
    ("labels shifted", labels, {}, "step-0 loss", "labels are shifted or replaced"),
    ("labels, in the gradients", labels, {}, "gradient norm", "labels are shifted or replaced"),
    ("data order", order, {}, "batch token ids", "the data order moved"),
    ("positions", positions, {}, "batch position ids", "position ids are other ones"),
    ("micro-batch not counted", uncounted, {}, "loss tokens", "not all of their tokens reach the loss"),
    ("router frozen", frozen, {}, "parameters of router", "router parameters are frozen"),
    ("rounded to bf16", rounded, {}, "gradient norm", "computed or reduced in a lower precision"),
    ("aux inside, felt by all", aux_inside, {}, "gradient norm router", "the gradient of an auxiliary loss changed"),
    ("L2 in the gradient", l2, {}, "clip coefficient", "something is added to them, such as an L2 decay"),
    ("states forgotten", forgotten, {}, "unexplained update, step 1", "its states are lost between"),
    ("states forgotten, in the fit", forgotten, {}, "learning rate fitted, step 1", "its states are lost between"),
    ("gradients kept", kept, {}, "step-1 gradient norm", "gradients of the step before are kept"),
    ("embedding not updated", never("embedding"), {}, "update of step 0", "in no optimizer group"),
    ("masters rounded", never("qk_norm"), {}, "update of step 0", "rounded away: the optimizer holds them in low"),
    ("experts beside masters", apart, {}, "stale weights of step 0", "before any update the weights in use"),
    ("a rank not updated", drifting, {}, "weight replicas", "copies of one weight drift apart"),
    ("micro-batch dropped", dropped, {}, "batch rows", "1 rows fewer: a micro-batch is dropped"),
    ("pairing", pairing, {}, "batch whole rows", "paired with other rows' targets"),
    ("log(TP)", above_by_log_two, TP2, "step-0 loss", "the loss is log(TP) = 0.693 above"),
    ("softmax scale", softmax, {}, "step-0 loss", "the forward pass computes something else"),
    ("aux by micro-batch", auxiliary, {}, "auxiliary loss", "another micro batch"),
    ("wrong experts", weights(*EXPERTS), {}, "loaded weights", "wrong experts are loaded"),
    ("wrong experts, in the loss", weights(*EXPERTS), {}, "step-0 loss", "wrong experts are loaded"),
    ("wrong layers", weights(*LAYERS), {}, "loaded weights", "wrong layers are loaded"),
    ("another checkpoint", weights(*FAMILIES), {}, "loaded weights", "another checkpoint"),
    ("bf16 accumulation", census(grad_buffer="bfloat16"), {}, "dtype of grad_buffer", "reduced in another precision"),
    ("bf16 router", census(router_logits="bfloat16"), {}, "dtype of router_logits", "router computes its logits in another"),
    ("dense bucket", replicas("qkv", "attn_proj"), {}, "gradient norm", "a bucket's reduction is skipped (attn_proj, qkv)"),
    ("expert bucket", replicas(*EXPERTS), {}, "gradient replicas", "the reduction of an expert bucket is skipped"),
    ("tied embedding", replicas("embedding"), PP2, "gradient norm", "not reduced between first and last stage"),
    ("norms not reduced", replicas("qk_norm"), TP2, "gradient replicas", "not reduced over tensor-parallel ranks"),
    ("divided by DP twice", gradients(0.5), {}, "gradient norm", "1/2 = 1/DP × the baseline's: divided by DP twice"),
    ("not divided", gradients(2.0), {}, "gradient norm", "2 = DP × the baseline's: summed over data-parallel ranks"),
    ("scaled", gradients(3.0), {}, "gradient norm", "3 × the baseline's: scaled once too often"),
    (
        "QK norm summed",
        gradients(2.0, "qk_norm"),
        TP2,
        "gradient norm",
        "qk_norm gradients are 2.00 × the baseline's = TP: summed",
    ),
    ("QK norm averaged", gradients(0.5, "qk_norm"), TP2, "gradient norm", "0.50 × the baseline's = 1/TP: summed over"),
    ("norms partly", gradients(0.63, "qk_norm"), TP2, "gradient norm", "qk_norm gradients alone moved: their reduction"),
    ("experts by EP", gradients(4.0, *EXPERTS), {"ep": 4}, "gradient norm", "= EP: expert gradients are divided by"),
    ("experts alone", gradients(1.3, *EXPERTS), {}, "gradient norm", "expert gradients alone moved"),
    ("another group", gradients(2.0, "qkv", "router"), {}, "gradient norm", "reduced over another group than the rest"),
    ("aux inside", gradients(1.06, "router"), {}, "gradient norm", "the gradient of an auxiliary loss changed"),
    ("aux and per-token loss", gradients(1.042, "router"), TP2, "gradient norm", "per-token loss divides it by TP·CP"),
    ("embedding alone", gradients(0.62, "embedding"), {}, "gradient norm", "embedding and output gradients alone moved"),
    ("clip off", clip(coefficient_min=1.0, coefficient_max=1.0), {}, "clip coefficient", "not clipped although their norm"),
    ("clip by parts", clip(coefficient_min=0.1), {}, "clip coefficient", "clipped by other factors"),
    ("clip's norm", counted_twice, {}, "clip norm", "√2 × the true one"),
    ("rate × 10", rate, {}, "learning rate fitted", "the learning rate applied is 10 × the one"),
    ("rate × 10, later", rate, {}, "step-1 loss", "the learning rate applied is 10 ×"),
    ("norms decayed", decay, {}, "weight decay fitted, beside", "norm weights are decayed (final_norm, layer_norm, qk_norm)"),
    ("epsilon", groups(eps=1e-6), {}, "optimizer groups", "another epsilon (1e-08 → 1e-06)"),
    ("betas", groups(betas=[0.9, 0.99]), {}, "optimizer groups", "another betas ((0.9, 0.95) → (0.9, 0.99))"),
    ("moved between groups", moved, {}, "optimizer groups", "moved between the optimizer's groups"),
    ("unexplained", epsilon_inside, {}, "unexplained update", "not that of the declared optimizer"),
    ("stale", stale, {}, "stale weights", "a parameter gather is missing, late or partial"),
]


@pytest.mark.parametrize(("spoil", "layout", "key", "words"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_a_planted_signature_is_recognised(spoil: Callable[[Data], Any], layout: dict[str, int], key: str, words: str) -> None:
    found = [f for k, f in told(spoil, layout=layout).items() if k.startswith(key)]
    assert found
    assert words in found[0].cause, found[0].cause
    assert all(f.todo for f in found)


def test_every_gradient_moved_by_its_own_factor_is_a_micro_batch() -> None:
    def spoil(data: Data) -> None:
        for n, f in enumerate(families_of(data)):
            f["grad_norm"] *= 0.6 + 0.03 * n
        reclip(data)

    assert "a micro-batch's gradient is lost or accumulated twice" in causes(spoil, "gradient norm")


def test_what_moved_later_only_acts_at_the_update() -> None:
    def spoil(data: Data) -> None:
        data["lines"] = [s.model_copy(update={"lm_loss": s.lm_loss * 1.06}) if s.step else s for s in steps()]

    found = told(spoil)
    assert "what is applied at the update differs" in found["curve"].cause


def test_tokens_of_runs_without_a_fingerprint_have_a_cause_too() -> None:
    found = objections(forward(blind(lines=steps(loss_tokens=498)), blind("l01#1")))
    assert "another loss mask, or other rows" in found["loss tokens of step 0"].cause


def test_a_self_check_is_not_explained_by_what_came_before_it() -> None:
    def both(data: Data) -> None:
        labels(data)
        clip(used_norm=9.0)(data)

    assert "labels" in causes(both, "gradient norm")
    assert "labels" not in causes(both, "clip norm")


def test_what_is_admitted_needs_no_cause() -> None:
    candidate = evidence()
    assert not [f for f in [*forward(candidate).findings, *update(candidate, base()).findings] if f.cause]


def test_stages_follow_the_course_of_a_step() -> None:
    keys = ["loss tokens of step 0", "loaded weights qkv", "step-0 loss", "gradient norm qkv", "update norm qkv", "step-1 loss"]
    order_ = [stage_of(Finding(rule="r", decision="refuse", key=k, reason="x")) for k in keys]
    assert order_ == sorted(order_, key=lambda s: -1 if s is None else s)
    assert stage_of(Finding(rule="r", decision="refuse", key="clip coefficient", reason="x")) is None
    assert len(STAGES) == 7
