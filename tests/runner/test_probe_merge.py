"""The ranks' shares become one fingerprint: replicas are counted once, shards add up, and nothing is missed in silence."""

import json
import math
from typing import Any

import pytest

from attuner.core.fingerprint import Fingerprint
from attuner.runner.probe.columns import CODES, DTYPES, FLOATS, QUANTIZED
from attuner.runner.probe.merge import merge

HEADER = {
    "format": 1,
    "precision": "fp32",
    "world_size": 4,
    "layout": {"tp": 2, "pp": 2},
    "vocab_size": 256,
    "declared": {"optimizer": "adam", "lr": 1e-3},
}
OPTIONS = {"lr": 1e-3, "weight_decay": 0.1, "betas": [0.9, 0.95], "eps": 1e-8}
FLOAT32 = 1 + DTYPES.index("float32")


def piece(name: str, shard: tuple[int, int] = (0, 1), family: str = "qkv", twin: bool = False, **numbers: Any) -> dict[str, Any]:
    """One piece's key and numbers; `hashes`, `codes` and `differs` beside floats by name."""
    codes = {**dict.fromkeys(CODES[:-2], FLOAT32), "group": 1, "unseen": 0, **numbers.pop("codes", {})}
    return {
        "key": [name, *shard, family, 10, twin],
        "hashes": numbers.pop("hashes", [1, 1]),
        "differs": numbers.pop("differs", (False, False)),
        "codes": [codes[code] for code in CODES],
        "floats": [numbers.get(column, 0.0) for column in FLOATS],
    }


def share(*pieces: dict[str, Any], sharded: bool = False, missing: dict[str, str] | None = None, **said: Any) -> dict[str, Any]:
    """The share of one rank that speaks for two replicas."""
    group = {"ranks": 2, "copies": 1 if sharded else 2, "sharded": sharded, "keys": [p["key"] for p in pieces]}
    numbers = {
        "floats": [p["floats"] for p in pieces],
        "hashes": [p["hashes"] for p in pieces],
        "codes": [p["codes"] for p in pieces],
        "grad_differs": [p["differs"][0] for p in pieces],
        "weight_differs": [p["differs"][1] for p in pieces],
    }
    spoken = {"loss": None, "aux": {}, "batch": None, "used_norm": None, "updated": True, **said}
    step = {"step": 0, "said": spoken, "options": [OPTIONS], "census": ["logits float32"], "groups": [numbers]}
    return {"groups": [group], "steps": [step], "missing": missing or {}, "not_finite": []}


def merged(*shares: dict[str, Any], absent: list[int] | None = None) -> Fingerprint:
    travelled = json.loads(json.dumps(list(shares), allow_nan=False))
    return Fingerprint.model_validate(merge(HEADER, travelled, absent or []))


def test_shards_add_up_and_replicas_count_once() -> None:
    norm = piece("norm", family="layer_norm", grad_2=1.0, zeros=3)
    fp = merged(
        share(norm, piece("a", (0, 2), grad_2=9.0, grad_p=1.0)), share(norm, piece("a", (1, 2), grad_2=16.0, grad_p=-3.0))
    )
    step = fp.steps[0]
    assert step.families["qkv"].grad_norm == 5.0
    assert step.families["qkv"].grad_projection == -2.0
    assert step.families["qkv"].numel == 20
    assert (step.families["layer_norm"].grad_norm, step.families["layer_norm"].zeros) == (1.0, 3)
    assert step.families["layer_norm"].numel == 10
    assert step.clip is not None
    assert step.clip.norm == pytest.approx(math.sqrt(26))
    assert (step.grad_replicas, step.weight_replicas) == ([], [])
    assert step.replicas_compared == 2 * 2 * 2 + 2
    assert fp.missing == {}
    assert step.groups[0].numel == 30
    assert step.census["grad_buffer float32"] == 30
    assert step.census["logits float32"] == 0


def test_replicas_that_differ_are_named_wherever_they_are() -> None:
    inside = merged(share(piece("a", differs=(True, False)), piece("b", family="router", differs=(False, True))))
    assert (inside.steps[0].grad_replicas, inside.steps[0].weight_replicas) == (["qkv"], ["router"])
    across = merged(share(piece("a", hashes=[1, 5])), share(piece("a", hashes=[2, 6])))
    assert (across.steps[0].grad_replicas, across.steps[0].weight_replicas) == (["qkv"], ["qkv"])


@pytest.mark.parametrize(
    ("sharded", "off", "told"), [(False, 1e-12, True), (True, 1e-12, False), (True, 1e-6, True), (False, 0.0, True)]
)
def test_a_tied_copy_is_compared_and_never_counted(sharded: bool, off: float, told: bool) -> None:
    first = piece("e", family="embedding", grad_2=4.0, hashes=[1, 1])
    copy = piece("e", family="embedding", twin=True, grad_2=4.0 * (1 + off), hashes=[2, 1])
    for shares in ((first, copy), (copy, first)):
        fp = merged(*(share(one, sharded=sharded) for one in shares))
        assert fp.steps[0].families["embedding"].numel == 10
        assert fp.steps[0].families["embedding"].grad_norm == 2.0
        assert fp.steps[0].grad_replicas == (["embedding"] if told else [])


def test_a_shard_or_a_share_that_never_came_is_named() -> None:
    fp = merged(share(piece("a", (0, 2))))
    assert fp.missing["shards"] == "a: 1 of 2"
    assert "3" in merged(share(piece("a")), absent=[3]).missing["shares"]
    assert merged(share(missing={"probe": "rank 1: it broke"})).missing["probe"] == "rank 1: it broke"


def test_learning_rate_and_weight_decay_are_fitted() -> None:
    lr, decay, ss, sw, ww = 1e-3, 0.1, 7.0, 1.5, 30.0
    us, uw = -lr * ss - lr * decay * sw, -lr * sw - lr * decay * ww
    uu = -lr * us - lr * decay * uw
    found = merged(share(piece("a", us=us, uw=uw, ss=ss, sw=sw, ww=ww, update_2=uu))).steps[0].families["qkv"]
    assert found.lr == pytest.approx(lr, rel=1e-9)
    assert found.weight_decay == pytest.approx(decay, rel=1e-9)
    assert found.unexplained == pytest.approx(0.0, abs=1e-6)
    noisy = merged(share(piece("a", us=us, uw=uw, ss=ss, sw=sw, ww=ww, update_2=uu * 1.01))).steps[0].families["qkv"]
    assert noisy.unexplained == pytest.approx(math.sqrt(0.01 / 1.01), rel=1e-6)


def test_an_update_that_nobody_saw_is_absent_and_named() -> None:
    fp = merged(share(piece("a", ss=1.0, codes={"unseen": 1, "main_grad": 0}), piece("b")))
    assert fp.steps[0].families["qkv"].update_norm is None
    assert "1 of its 2" in fp.missing["update of qkv"]
    skipped = merged(share(piece("a", ss=1.0), updated=False))
    assert skipped.steps[0].families["qkv"].update_norm is None
    assert "step0 updates" in skipped.missing
    quantized = merged(share(piece("a", codes={"param": QUANTIZED})))
    assert quantized.steps[0].families["qkv"].weight_norm is None
    assert "weights of qkv" in quantized.missing


def test_what_is_not_finite_is_none_and_named() -> None:
    bad = share(piece("a", grad_2=math.nan, update_2=math.inf), loss="nan", aux={"z": "inf"}, used_norm="inf")
    bad["steps"][0]["groups"][0]["floats"] = [
        [None if not math.isfinite(x) else x for x in row] for row in bad["steps"][0]["groups"][0]["floats"]
    ]
    fp = merged(bad)
    assert fp.steps[0].loss is None
    assert fp.steps[0].aux == {"z": None}
    assert fp.steps[0].families["qkv"].grad_norm is None
    assert {"step0.loss", "step0.aux.z", "step0.qkv.grad_norm", "step0.qkv.update_norm", "step0.clip.norm"} <= set(fp.not_finite)


def test_the_first_rank_that_knows_the_loss_says_it() -> None:
    fp = merged(share(piece("a")), share(piece("a"), loss=2.5, aux={"z": 1.0}, used_norm=0.5))
    assert (fp.steps[0].loss, fp.steps[0].aux) == (2.5, {"z": 1.0})
    assert fp.steps[0].clip is not None
    assert fp.steps[0].clip.used_norm == 0.5


def test_clip_coefficients_are_read_off_the_gradients() -> None:
    fp = merged(share(piece("a", grad_2=4.0, clipped_2=1.0), piece("b", grad_2=4.0, clipped_2=4.0), piece("c", grad_2=1e-30)))
    assert fp.steps[0].clip is not None
    assert (fp.steps[0].clip.coefficient_min, fp.steps[0].clip.coefficient_max) == (0.5, 1.0)


def test_output_stays_small() -> None:
    fp = merged(share(missing={f"parameter {i}": "x" * 1000 for i in range(1000)}))
    assert len(fp.missing) == 100
    assert max(map(len, fp.missing.values())) == 200
