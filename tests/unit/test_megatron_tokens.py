"""A recipe's arguments become words of a command line by the parser's own actions; nothing is guessed."""

from __future__ import annotations

import argparse
import enum
from typing import Any

import pytest

from attuner.runner.errors import ConfigError
from attuner.runner.megatron_tokens import Vocabulary


class Backend(enum.Enum):
    flash = 1
    fused = 2


def pattern(text: str) -> list[int]:
    return [int(x) for x in text.strip("[]").split(",")]


@pytest.fixture
def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(allow_abbrev=False)
    made.add_argument("--num-layers", type=int)
    made.add_argument("--lr", type=float)
    made.add_argument("--swiglu", action="store_true")
    made.add_argument("--no-rope-fusion", action="store_false", dest="apply_rope_fusion")
    made.add_argument("--norm-epsilon", type=float, dest="layernorm_epsilon", default=1e-5)
    made.add_argument("--recompute-modules", nargs="*", type=str)
    made.add_argument("--moe-layer-freq", type=pattern, default=1)
    made.add_argument("--partial", action=argparse.BooleanOptionalAction, default=False)
    made.add_argument("--onnx-safe", type=bool)
    made.add_argument("--backend", type=lambda name: Backend[name], choices=list(Backend))
    made.add_argument("--threshold", type=int, default=-1)
    made.add_argument("--name", type=str)
    made.add_argument("--save-format", dest="save_format_deprecated", default=None)
    made.add_argument("--no-save", action="store_false", dest="save_format", default=True)
    return made


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"num_layers": 4}, ["--num-layers", "4"]),
        ({"num-layers": 4}, ["--num-layers", "4"]),
        ({"--num-layers": 4}, ["--num-layers", "4"]),
        ({"lr": 1e-06}, ["--lr", "1e-06"]),
        ({"swiglu": True}, ["--swiglu"]),
        ({"swiglu": False}, []),
        ({"apply_rope_fusion": False}, ["--no-rope-fusion"]),
        ({"apply_rope_fusion": True}, []),
        ({"no_rope_fusion": True}, ["--no-rope-fusion"]),
        ({"no_rope_fusion": False}, []),
        ({"layernorm_epsilon": 1e-6}, ["--norm-epsilon", "1e-06"]),
        ({"norm_epsilon": 1e-6}, ["--norm-epsilon", "1e-06"]),
        ({"recompute_modules": ["core_attn", "moe"]}, ["--recompute-modules", "core_attn", "moe"]),
        ({"recompute_modules": "moe"}, ["--recompute-modules", "moe"]),
        ({"moe_layer_freq": [0, 1, 1]}, ["--moe-layer-freq", "[0,1,1]"]),
        ({"partial": True}, ["--partial"]),
        ({"partial": False}, ["--no-partial"]),
        ({"onnx_safe": True}, ["--onnx-safe=1"]),
        ({"onnx_safe": False}, ["--onnx-safe="]),
        ({"backend": "flash"}, ["--backend", "flash"]),
        ({"threshold": -1}, ["--threshold", "-1"]),
        ({"name": "-x"}, ["--name=-x"]),
        ({"num_layers": None}, []),
        ({"num_layers": 4, "argv": ["--lr", 0.1]}, ["--num-layers", "4", "--lr", "0.1"]),
        ({"save_format": True}, []),  # a destination before an option of the same name
    ],
    ids=lambda x: str(x),
)
def test_an_argument_is_written_as_the_parser_wants_it(
    parser: argparse.ArgumentParser, arguments: dict[str, Any], words: list[str]
) -> None:
    assert Vocabulary(parser).words(arguments) == words
    parser.parse_args(words)


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"num_layer": 4}, "unknown argument num_layer: did you mean num_layers?"),
        ({"swiglu": 1}, "must be true, false or null"),
        ({"no_rope_fusion": "yes"}, "--no-rope-fusion takes no value"),
        ({"num_layers": True}, "num_layers = true: takes a value"),
        ({"num_layers": [1, 2]}, "takes one value"),
        ({"backend": "flas"}, "must be one of flash, fused"),
        ({"argv": "--lr 1"}, "must be a list of words"),
        ({"recompute_modules": ["-x"]}, "starts with a dash"),
    ],
    ids=lambda x: str(x),
)
def test_what_no_option_can_express_is_refused(parser: argparse.ArgumentParser, arguments: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError) as refused:
        Vocabulary(parser).words(arguments)
    assert why in str(refused.value)


def test_an_unknown_name_is_passed_on_to_a_parser_that_ignores_it(parser: argparse.ArgumentParser) -> None:
    arguments = {"sglang_ep_size": 32, "sglang_flag": True, "sglang_off": False}
    assert Vocabulary(parser).words(arguments, strict=False) == ["--sglang-ep-size", "32", "--sglang-flag"]


def test_destinations_set_twice_are_named(parser: argparse.ArgumentParser) -> None:
    words = ["--lr", "1", "--lr=2", "--swiglu", "--num-layers", "3"]
    assert Vocabulary(parser).duplicated(words) == ["lr"]


def test_the_catalogue_names_every_argument(parser: argparse.ArgumentParser) -> None:
    known = {entry["name"]: entry for entry in Vocabulary(parser).catalogue()}
    assert known["apply_rope_fusion"] == {
        "name": "apply_rope_fusion",
        "options": ["--no-rope-fusion"],
        "default": "True",
        "takes": "flag",
    }
    assert "help" not in known
    assert len(known) == 14
