"""The 52 silent changes of silent_changes.yaml, judged by the gate: the first look with the shipped register, and, where no
configuration shows a change, the second and the third look on what a run would have left.

A gate fault becomes a row there for ever. A case on a condition has rows on both sides of it.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import pytest
from lab import ROOT

from attuner.config import load_register, load_tolerances
from attuner.core.fingerprint import Fingerprint
from attuner.core.judgement import ComponentTest, Verdict
from attuner.core.recipe import EffectiveConfig
from attuner.core.run import Evidence, StepRecord
from attuner.policy.gate import config_look, forward_look, update_look
from attuner.policy.register import Register
from attuner.yamlfile import read_yaml

DATA = read_yaml(ROOT / "tests" / "paper" / "silent_changes.yaml")
CASES = {case["id"]: case for case in DATA["cases"]}
ROWS = [(case["id"], number) for case in DATA["cases"] for number in range(len(case.get("rows", [])))]
VERSIONS = {"megatron_core": "0.16.1", "transformer_engine": "2.8.0", "torch": "2.7.0"}
COUNT, REJECTED, PASSED = 52, 23, 7
FAMILIES = {"embedding": 0.4, "qkv": 0.5, "router": 0.1, "expert_fc1": 0.6, "expert_fc2": 0.5, "layer_norm": 0.05, "output": 0.3}
LR, WEIGHT_DECAY, CLIP = 1e-4, 0.1, 0.25


@functools.cache
def rules() -> Register:
    return load_register(ROOT / "rules", "megatron")


def config(values: dict[str, Any], versions: dict[str, str]) -> EffectiveConfig:
    return EffectiveConfig(
        arguments={k: v for k, v in values.items() if ":" not in k},
        env={k.removeprefix("env:"): v for k, v in values.items() if k.startswith("env:")},
        facts={k.removeprefix("fact:"): v for k, v in values.items() if k.startswith("fact:")},
        versions={**VERSIONS, **versions},
    )


def first_look(row: dict[str, Any]) -> Verdict:
    base = {**DATA["base"]["dense"], **(DATA["base"]["moe"] if row.get("model") == "moe" else {}), **row.get("given", {})}
    before, after = config(base, row.get("versions", {})), config({**base, **row["to"]}, row.get("versions", {}))
    tests = []
    if "tested" in row:
        ((argument, new),) = row["to"].items()
        figures = {k: 1e-6 for k, f in ComponentTest.model_fields.items() if f.annotation is float}
        said = {"passed": True, "dtype": "bf16", "why": "close", "launch_id": "l07", "scope": "here", "component": row["tested"]}
        tests = [ComponentTest.model_validate({**said, **figures, "argument": argument, "old": base[argument], "new": new})]
    return config_look(rules(), before, after, subject="h01", recipe="r", tests=tests, scope="here")


def run(row: dict[str, Any]) -> Evidence:
    """Return what a small run left, with what a row says went wrong; an empty row is the baseline's."""
    scale = {name: row.get("gradient", 1.0) if row.get("family") in (name, "all") else 1.0 for name in FAMILIES}
    norms = {name: norm * scale[name] for name, norm in FAMILIES.items()}
    norm = math.sqrt(sum(n * n for n in norms.values()))
    clip = row.get("clip") or [min(1.0, CLIP / norm)] * 2
    decayed = {name: row.get("decayed") == "all" or name != "layer_norm" for name in FAMILIES}
    drift = 1.01 if row.get("weights") == "other" else 1.0
    families = {
        name: {
            **{"numel": 1000, "zeros": 0, "grad_norm": norms[name], "grad_projection": -0.6 * norms[name]},
            **{"weight_norm": 10.0 * drift, "weight_projection": 3.0 * drift, "update_norm": 3e-3, "update_projection": 1e-3},
            **{"lr": LR, "weight_decay": WEIGHT_DECAY if decayed[name] else 0.0, "unexplained": 0.0},
        }
        for name in FAMILIES
    }
    plain = 1000 * sum(decayed.values())
    setting = {"lr": LR, "betas": [0.9, 0.95], "eps": 1e-8}
    groups = [{**setting, "weight_decay": WEIGHT_DECAY, "numel": plain}]
    groups += [{**setting, "weight_decay": 0.0, "numel": 7000 - plain}] if plain < 7000 else []
    seen = "b" if row.get("batch") == "other rows" else "a"
    tokens = 480 if row.get("batch") == "fewer loss tokens" else 512
    marks = {k: seen * 16 for k in ("inputs", "targets", "labels", "positions", "rows_digest")}
    batch = {"rows": 4, "loss_tokens": tokens, "loss_mask": ("c" if tokens < 512 else seen) * 16, **marks}
    dtypes = ("param", "grad_buffer", "main_grad", "main_param", "exp_avg", "exp_avg_sq")
    step = {
        **{"families": families, "batch": batch, "groups": groups, "replicas_compared": 2},
        **{"clip": {"norm": norm, "used_norm": norm, "coefficient_min": clip[0], "coefficient_max": clip[1]}},
        **{"census": {**{f"{what} float32": 7000 for what in dtypes}, "logits float32": 0, "activation float32": 0}},
    }
    fingerprint = {
        **{"format": 1, "precision": "fp32", "world_size": 2, "vocab_size": 256, "layout": {"dp": 2}},
        "declared": {**setting, "optimizer": "adam", "weight_decay": WEIGHT_DECAY, "clip_grad": CLIP},
        "steps": [{"step": t, "loss": 5.0 - 0.1 * t, "aux": {"load_balancing": 1.01}, **step} for t in (0, 1)],
    }
    aux = {"load_balancing": 1.01}
    more = {"kind": "scored", "t": 0.0, "step_s": 1.0, "tokens": 512, "grad_norm": norm, "aux": aux, "loss_tokens": tokens}
    steps = [StepRecord.model_validate({"step": t, "lm_loss": 5.0 - 0.1 * t, **more}) for t in range(6)]
    return Evidence(label="l01#1", steps=steps, fingerprint=Fingerprint.model_validate(fingerprint), precision="fp32")


def look(row: dict[str, Any]) -> Verdict:
    """Return the verdict of the look that a row names."""
    if "look" not in row:
        return first_look(row)
    judge = {"forward": forward_look, "update": update_look}[row["look"]]
    limits = load_tolerances(ROOT / "rules", "mcore")
    return judge([run({})], run(row), limits=limits, subject="l02#1", recipe="r")


def say(verdict: Verdict) -> str:
    return "\n".join(f.line() for f in verdict.findings)


@pytest.mark.parametrize(("name", "number"), ROWS, ids=[f"{name}-{number + 1}" for name, number in ROWS])
def test_a_silent_change_is_judged_as_its_case_says(name: str, number: int) -> None:
    row = CASES[name]["rows"][number]
    verdict = look(row)
    assert verdict.decision == row["expect"], say(verdict)
    if "sees" in row:
        assert any(f.key.startswith(row["sees"]) for f in verdict.findings if f.decision == "refuse"), say(verdict)
    if "rule" in row:
        assert row["rule"] in {f.rule for f in verdict.findings if f.decision == row["expect"]}, say(verdict)


@pytest.mark.parametrize("name", [n for n, case in CASES.items() if "skip" in case])
def test_a_case_of_another_stack_is_left_out_by_name(name: str) -> None:
    pytest.skip(f"{name}: {CASES[name]['skip']}")


def test_the_looks_pass_a_run_that_is_the_baseline_again() -> None:
    for name in ("forward", "update"):
        verdict = look({"look": name})
        assert verdict.decision == "admit", say(verdict)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_case_is_judged_on_both_sides_of_its_condition_or_says_why_not(case: dict[str, Any]) -> None:
    assert {"id", "source", "verdict", "change", "decides"} <= set(case)
    said = {row["expect"] for row in case.get("rows", [])}
    if "skip" in case:
        assert len(case["skip"]) > 40
    elif case["verdict"] == "conditional":
        assert len(said) > 1, "a condition has two sides"
    elif case["verdict"] == "reject":
        assert "refuse" in said
        assert "note" in case or said <= {"refuse"} or any("versions" in row or "given" in row for row in case["rows"])
    else:
        assert "admit" in said
        assert "note" in case or all(row["expect"] == "admit" or "given" in row for row in case["rows"])


def test_every_case_is_there() -> None:
    verdicts = [case["verdict"] for case in CASES.values()]
    assert len(CASES) == COUNT
    assert (verdicts.count("reject"), verdicts.count("pass")) == (REJECTED, PASSED)


def test_every_rule_that_a_case_names_exists() -> None:
    known = {rule.id for rule in rules().rules}
    assert {row["rule"] for case in CASES.values() for row in case.get("rows", []) if "rule" in row} - known == set()
