"""The register's fast look-up means what its rules mean one by one, and what `attuner rules` says of an argument."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from lab import ROOT, register, rule

from attuner.cli.main import main
from attuner.config import load_arguments
from attuner.core.errors import UserError
from attuner.core.recipe import EffectiveConfig
from attuner.policy.gate import UNCOVERED, config_look
from attuner.policy.register import covers, decide, in_scope

NAMES = ["a", "b", "ab", "abc", "transformer.a", "ddp.b", "optimizer.abc", "fact:f", "fact:g", "env:E", "env:EX"]
COVERS = ["a", "b", "ab", "a*", "ab*", "transformer.a", "transformer.*", "fact:f", "fact:f*", "env:E", "env:E*"]
VALUES = [None, 0, 1, 1.0, 2, True, False, "x", "1", [1], [2], [1, 2], ["x"], []]


def drawn_condition(draw: random.Random, depth: int = 0) -> dict[str, Any]:
    if depth < 2 and draw.random() < 0.4:
        return {draw.choice(["all", "any"]): [drawn_condition(draw, depth + 1) for _ in range(draw.randint(1, 3))]}
    subject, names = draw.choice([("arg", NAMES[:7]), ("fact", ["f", "g"]), ("env", ["E", "EX"])])
    operator = draw.choice(["changed", "eq", "ne", "one_of", "ge", "le", "same_product"])
    operand = {
        "changed": draw.choice([True, False]),
        "one_of": draw.sample([None, 1, 2, "x"], 2),
        "ge": 1,
        "le": 1,
        "same_product": draw.sample(names, 2),
    }.get(operator, draw.choice(VALUES))
    side = {"side": "before"} if draw.random() < 0.2 else {}
    return {subject: draw.choice(names), operator: operand, **side}


@pytest.mark.parametrize("seed", range(150))
def test_the_fast_look_up_says_what_each_rule_says(seed: int) -> None:
    """Every rule read alone by `decide`, and all of them through the index, agree on random rules and values."""
    draw = random.Random(seed)
    entries = []
    for number in range(40):
        kind, decision = draw.choice(
            [("placement", "admit"), ("objective", "refuse"), ("defect", "refuse"), ("defect", "review")]
        )
        made = rule(number, draw.sample(COVERS, draw.randint(1, 3)), kind=kind, decision=decision)
        if kind == "defect" or draw.random() < 0.5:
            made["when"] = drawn_condition(draw)
        if draw.random() < 0.2:
            made["scope"] = draw.choice([{"megatron-core": "<0.19.0"}, {"model": ["glm*"]}, {"commit": ["aa"]}])
        entries.append(made)
    made_register = register(*entries)
    before = {name: draw.choice(VALUES) for name in NAMES if draw.random() < 0.8}
    after = {**before, **{name: draw.choice(VALUES) for name in NAMES if draw.random() < 0.3}}
    for name in draw.sample(NAMES, 2):
        after.pop(name, None)
    versions = draw.choice([{}, {"megatron_core": "0.20.0", "model": "glm-4.5"}, {"model": "llama", "megatron_lm_commit": "ab"}])
    alone = [(r.id, d) for r in made_register.rules if in_scope(r, versions) and (d := decide(r, before, after)) is not None]
    assert [(r.id, d) for r, d in made_register.speaking(before, after, versions)] == alone
    split = [
        EffectiveConfig(
            arguments={k: v for k, v in values.items() if ":" not in k},
            env={k[4:]: v for k, v in values.items() if k.startswith("env:") and isinstance(v, str)},
            facts={k[5:]: v for k, v in values.items() if k.startswith("fact:")},
            versions=versions,
        )
        for values in (before, after)
    ]
    verdict = config_look(made_register, *split, subject="h", recipe="r", tests=[], scope="s")
    flat = [x.flat() for x in split]
    heard = {r.id for r in made_register.rules if in_scope(r, versions) and decide(r, *flat) is not None}
    assert {f.rule for f in verdict.findings} - {"uncovered"} == heard
    changed = {k for k in flat[0].keys() | flat[1].keys() if k not in flat[0] or k not in flat[1]}
    for key in changed:
        own = any(r.id in heard and covers(r, key) for r in made_register.rules)
        assert own or any(f.key == key and f.reason == UNCOVERED and f.decision == "review" for f in verdict.findings)


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ("tensor_model_parallel_size", ["MEG-CND-010", "MCO-PLC-001"]),
        ("--tensor-model-parallel-size", ["megatron: --tensor-model-parallel-size is tensor_model_parallel_size", "MEG-CND-010"]),
        ("--no-gradient-reduce-div-fusion", ["is gradient_reduce_div_fusion", "MEG-MTH-042"]),
        ("env:NCCL_DEBUG", ["automodel, bridge, mcore, megatron, replay, slime: COM-ENV-005"]),
        ("fact:padded_vocab_size", ["MEG-CND-053"]),
    ],
)
def test_explain_answers_for_a_name_a_flag_and_a_variable(
    capsys: pytest.CaptureFixture[str], asked: str, words: list[str]
) -> None:
    assert main(["rules", "explain", asked]) == 0
    said = capsys.readouterr().out
    assert [w for w in words if w not in said] == []


@pytest.mark.parametrize(
    ("asked", "near"), [("tensor_model_paralel_size", "tensor_model_parallel_size"), ("--micro-batch-sise", "micro_batch_size")]
)
def test_explain_names_the_nearest_argument_of_an_unknown_one(capsys: pytest.CaptureFixture[str], asked: str, near: str) -> None:
    assert main(["rules", "explain", asked]) == 0
    said = capsys.readouterr().out
    assert f"{asked}: no rule covers it: `review`" in said
    assert near in said.split("nearest:")[1]


def test_check_counts_the_arguments_that_a_rule_covers(capsys: pytest.CaptureFixture[str]) -> None:
    main(["rules", "check", "--stack", "megatron"])
    assert "megatron: 864 of 864 arguments covered" in capsys.readouterr().out


def test_a_line_of_the_argument_list_is_three_columns(tmp_path: Path) -> None:
    (tmp_path / "megatron").mkdir()
    (tmp_path / "megatron" / "arguments.txt").write_text("# a comment\nlr\t--lr\t0.16.1\nbroken --broken\n")
    with pytest.raises(UserError, match=r"arguments\.txt: each line"):
        load_arguments(tmp_path, "megatron")
    assert load_arguments(ROOT / "rules", "mcore") == {}
    assert load_arguments(ROOT / "rules", "megatron")["bf16"] == ["--bf16"]
