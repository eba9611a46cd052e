"""A register that takes another stack's rules over, in its own names: nothing is admitted that couldn't be read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from attuner.config import load_arguments, load_inherits, load_register, register_lock
from attuner.core.errors import UserError
from attuner.policy.inherit import Inherits, inherited
from attuner.policy.register import decide, uncovered

ROOT = Path(__file__).resolve().parents[2]
RULES = ROOT / "rules"
COMMON: dict[str, Any] = {"reason": "a reason that is long enough", "source": ["here"], "added": "2026-11-30"}
NAMES = Inherits(
    stack="there",
    fields={"model": ["tp", "fp8", "fp8_margin"], "ddp": ["overlap", "both"], "optimizer": ["both"]},
    names={"experts": ["model.num_experts"]},
    sections=["model"],
    absent=["rl"],
    source=["here"],
)


def told(**entry: Any) -> list[dict[str, Any]]:
    rule = {"id": "TST-TST-001", "kind": "placement", "decision": "admit", **COMMON, **entry}
    return [e for _, e in inherited([("f.yaml", rule)], NAMES)]


def test_a_covered_name_goes_by_all_its_names_here() -> None:
    assert told(covers=["tp", "both", "experts", "nowhere"])[0]["covers"] == [
        "model.tp",
        "ddp.both",
        "optimizer.both",
        "model.num_experts",
    ]


def test_a_rule_about_nothing_here_is_left_out() -> None:
    assert told(covers=["nowhere"]) == []


def test_a_condition_reads_the_first_of_a_names_fields() -> None:
    found = told(covers=["tp"], when={"all": [{"arg": "both", "eq": True}, {"arg": "experts", "ge": 2}]})
    assert found[0]["when"] == {"all": [{"arg": "ddp.both", "eq": True}, {"arg": "model.num_experts", "ge": 2}]}


def test_a_rule_that_admits_on_what_cannot_be_read_is_left_out() -> None:
    assert told(covers=["tp"], when={"arg": "unknown", "eq": None}) == []
    assert told(covers=["tp"], when={"any": [{"arg": "tp", "ge": 2}, {"arg": "unknown", "eq": 1}]}) == []


@pytest.mark.parametrize("decision", ["review", "refuse"])
def test_what_cannot_be_read_counts_as_met_where_a_rule_forbids(decision: str) -> None:
    both = {"all": [{"arg": "tp", "ge": 2}, {"arg": "unknown", "eq": 1}]}
    assert told(covers=["tp"], decision=decision, when=both)[0]["when"] == {"arg": "model.tp", "ge": 2}
    either = {"any": [{"arg": "tp", "ge": 2}, {"arg": "unknown", "eq": 1}]}
    assert told(covers=["tp"], decision=decision, when=either)[0]["when"] is None


def test_a_name_that_this_stack_cannot_set_has_no_value() -> None:
    assert told(covers=["tp"], when={"arg": "rl", "ne": True})[0]["when"] == {"arg": "rl", "ne": True}


def test_a_beginning_refuses_what_nobody_listed_and_admits_only_what_is_listed() -> None:
    assert told(covers=["fp8*"])[0]["covers"] == ["model.fp8", "model.fp8_margin"]
    assert told(covers=["fp8*"], decision="refuse")[0]["covers"] == ["model.fp8", "model.fp8_margin", "model.fp8*"]


def test_facts_and_environment_are_the_same_in_every_stack() -> None:
    found = told(covers=["env:NCCL_ALGO", "fact:world_size"], when={"fact": "world_size", "ge": 2})
    assert found[0]["covers"] == ["env:NCCL_ALGO", "fact:world_size"]
    assert found[0]["when"] == {"fact": "world_size", "ge": 2}


def test_without_names_every_rule_holds_as_it_is() -> None:
    rule = {"id": "TST-TST-001", "covers": ["x"], "when": {"arg": "y", "eq": 1}}
    assert inherited([("f.yaml", rule)], Inherits(stack="there", source=["here"])) == [("f.yaml", rule)]


def test_a_rule_named_in_without_is_left_out() -> None:
    some = NAMES.model_copy(update={"without": {"TST-TST-001": "told otherwise"}})
    assert inherited([("f.yaml", {"id": "TST-TST-001", "covers": ["tp"]})], some) == []


def test_slime_has_every_rule_of_megatron() -> None:
    megatron, slime = ({r.id for r in load_register(RULES, s).rules} for s in ("megatron", "slime"))
    assert megatron <= slime


def test_bridge_refuses_in_its_own_names_what_megatron_refuses() -> None:
    rules = {r.id: r for r in load_register(RULES, "bridge").rules}
    lr = next(r for r in rules.values() if "optimizer.lr" in r.covers)
    assert decide(lr, {"optimizer.lr": 0.1}, {"optimizer.lr": 0.2}) == "refuse"
    assert not any(c in ("lr", "tensor_model_parallel_size") for r in rules.values() for c in r.covers)


def write(folder: Path, text: str) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.write_text(text)


def test_the_lock_of_a_register_moves_with_what_it_inherits(tmp_path: Path) -> None:
    write(tmp_path / "tolerances.yaml", "[]")
    write(tmp_path / "a" / "rules.yaml", "[]")
    write(tmp_path / "b" / "inherits.yaml", "{stack: a, source: [here]}")
    write(tmp_path / "c" / "rules.yaml", "[]")
    before = {s: register_lock(tmp_path, s) for s in "abc"}
    write(tmp_path / "a" / "rules.yaml", "[] # moved")
    after = {s: register_lock(tmp_path, s) for s in "abc"}
    assert [s for s in "abc" if before[s] != after[s]] == ["a", "b"]


def test_a_register_that_inherits_is_inherited_by_nobody(tmp_path: Path) -> None:
    write(tmp_path / "a" / "inherits.yaml", "{stack: z, source: [here]}")
    write(tmp_path / "b" / "inherits.yaml", "{stack: a, source: [here]}")
    with pytest.raises(UserError, match=r"b/inherits.yaml: stack: a inherits too"):
        load_register(tmp_path, "b")


@pytest.mark.parametrize("stack", ["slime", "bridge", "automodel"])
def test_the_register_has_a_word_on_every_listed_argument(stack: str) -> None:
    known = load_arguments(RULES, stack)
    assert len(known) > 100
    assert uncovered(load_register(RULES, stack), list(known)) == []


def test_what_bridge_says_of_megatrons_register_is_there() -> None:
    inherits = load_inherits(RULES, "bridge")
    assert inherits is not None
    megatron = load_register(RULES, "megatron")
    assert set(inherits.without) <= {r.id for r in megatron.rules}
    assert [name for name in inherits.names if not megatron.covering(name)] == []
    assert [a for a in inherits.absent if a in inherits.here] == []
