"""Imports Megatron-LM's own forms: the argument dump in a log, YAML of its test recipes, and the tree of `--yaml-cfg`."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from typing import Any

from attuner.core.base import Scalar, Value
from attuner.core.errors import UserError
from attuner.importing.defaults import same_as_text
from attuner.importing.files import Source
from attuner.importing.flags import Vocabulary, read_flags
from attuner.importing.model import Imported, Notes, plain
from attuner.importing.private import kept_arguments, kept_env
from attuner.importing.trees import flat
from attuner.logs.arguments import read_arguments

NOT_GIVEN = {
    *("world_size", "rank", "local_rank", "data_parallel_size", "params_dtype", "padded_vocab_size", "iteration", "start_time"),
    *(
        "consumed_train_samples",
        "consumed_valid_samples",
        "skipped_train_samples",
        "model_parallel_size",
        "transformer_pipeline_model_parallel_size",
    ),
    *("virtual_pipeline_model_parallel_size", "yaml_cfg", "all_ranks_same_node"),
}
"""What a dump holds beside options: set by Megatron itself."""
FOLLOWS = {
    "encoder_num_layers": "num_layers",
    "encoder_seq_length": "seq_length",
    "start_weight_decay": "weight_decay",
    "end_weight_decay": "weight_decay",
}
"""Final values that validate_args copies from others, and refuses beside them. Source: core_v0.16.1, training/arguments.py."""
DTYPES = {"torch.float32": "fp32", "torch.float16": "fp16", "torch.bfloat16": "bf16", "torch.uint8": "fp8"}
RENAMED = {"num_moe_experts": "num_experts", "num_layers_in_first_pipeline_stage": "decoder_first_pipeline_num_layers"}
LIST_CHARS = 20_000
"""Longest printed list that is read."""


def from_dump(source: Source, vocabulary: Mapping[str, Vocabulary]) -> Imported:
    """Return the recipe whose final arguments a log dumps.

    Raises:
        UserError: the log holds no dump.
    """
    notes = Notes()
    printed = read_arguments(source.text.split("\n"))
    if not printed:
        raise UserError(
            f"{source.name}: holds no dump of Megatron's arguments (a rule line `---- arguments ----` and its entries)"
        )
    stack = "slime" if "actor_num_nodes" in printed else "megatron"
    words = vocabulary[stack]
    arguments: dict[str, Value] = {}
    own = []
    for name, text in printed.items():
        value = _printed(text, name)
        if name in NOT_GIVEN or value is None or value == []:
            continue
        if words.whole and words.names and name not in words.names:
            own.append(name)
            continue
        if value is False and name not in words.names:
            continue
        if name in words.defaults and same_as_text(value, words.defaults[name]):
            continue
        arguments[name] = value
    for name, source_name in FOLLOWS.items():
        if printed.get(source_name) == printed.get(name):
            arguments.pop(name, None)
    if own:
        notes.add("left_out", f"no options, Megatron's own or another entry's: {', '.join(sorted(own)[:40])}")
    notes.add("note", "a dump holds final values, defaults and what Megatron derived among them: None may also be the text None")
    world = printed.get("world_size", "")
    kept = kept_arguments(arguments, notes)
    gpus = int(world) if world.isdigit() and len(world) < 7 else 0
    return Imported(source=source.name, format="dump", stack=stack, arguments=kept, gpus=gpus, notices=notes.all())


def _printed(text: str, name: str) -> Value:
    """Return a printed Python value: a list, an enum, a dtype, a number, a word."""
    if text in ("None", ""):
        return None
    if text in ("True", "False"):
        return text == "True"
    if text in DTYPES:
        return DTYPES[text]
    if re.fullmatch(r"(AttnBackend|AttnMaskType|CudaGraphScope|\w+Type|\w+Backend)\.\w+", text):
        return text.rsplit(".", 1)[-1]
    listed = _listed(text) if text.startswith("[") and len(text) < LIST_CHARS else None
    return listed if listed is not None else plain(text, name)


def _listed(text: str) -> list[Scalar] | None:
    """Return a printed list of plain values, None if it is none."""
    try:
        found = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return None
    if not isinstance(found, list) or not all(v is None or isinstance(v, bool | int | float | str) for v in found):
        return None
    return found


def from_test_yaml(tree: dict[str, Any], source: Source, vocabulary: Mapping[str, Vocabulary], notes: Notes) -> Imported:
    """Return a recipe from Megatron-LM's test recipes: MODEL_ARGS by flags, ENV_VARS."""
    flags = tree.get("MODEL_ARGS", tree)
    if not isinstance(flags, dict):
        raise UserError(f"{source.name}: MODEL_ARGS: must be flags with their values")
    words: list[str] = []
    for flag, value in flags.items():
        if not str(flag).startswith("--"):
            notes.add("unparsed", f"{flag}: is no flag")
        elif value is False or value is None:
            notes.add("note", f"{flag}: {str(value).lower()}: not given")
        elif value is True:
            words.append(str(flag))
        else:
            words += [str(flag), *_test_words(value)]
    stack = "slime" if "--actor-num-nodes" in words else "megatron"
    env = tree.get("ENV_VARS") or {}
    arguments = kept_arguments(read_flags(words, vocabulary[stack], notes), notes)
    variables = kept_env({str(k): str(v) for k, v in env.items()} if isinstance(env, dict) else {}, notes)
    others = sorted(str(k) for k in tree if k not in ("MODEL_ARGS", "ENV_VARS") and tree is not flags)
    if others:
        notes.add("left_out", f"what the test's runner reads: {', '.join(others)}")
    return Imported(
        source=source.name, format="megatron-yaml", stack=stack, arguments=arguments, env=variables, notices=notes.all()
    )


def _test_words(value: Any) -> list[str]:
    """Return the words that Megatron-LM's test runner makes of a value: those in brackets apart, everything else one word.

    Source: Megatron-LM d98e8a64, tests/functional_tests/shell_test_utils/_run_training.sh.
    """
    text = " ".join(map(str, value)) if isinstance(value, list) else str(value).strip()
    inside = re.fullmatch(r"\[([^\]]+)\]", text)
    words = (inside[1] if inside else text).split() if inside or isinstance(value, list) else [text]
    return [_quoted(w) for w in words]


def _quoted(word: str) -> str:
    return word[1:-1] if len(word) > 1 and word[0] == word[-1] and word[0] in "'\"" else word


def from_yaml_cfg(tree: dict[str, Any], source: Source, vocabulary: Mapping[str, Vocabulary], notes: Notes) -> Imported:
    """Return a recipe from the tree that Megatron-LM reads with --yaml-cfg: its sections are one namespace."""
    words = vocabulary["megatron"]
    found: dict[str, Value] = {}
    strange = []
    for path, value in flat(tree, source.name, notes).items():
        name = path.rsplit(".", 1)[-1]
        name = RENAMED.get(name, name)
        if value is None:
            continue
        if words.names and name not in words.names:
            if name == "activation_func" and value in ("swiglu", "squaredrelu"):
                found["swiglu" if value == "swiglu" else "squared_relu"] = True
            else:
                strange.append(f"{path} = {value}")
            continue
        if name in found and found[name] != value:
            notes.add("overridden", f"{path} = {value} comes later than {found[name]} and wins")
        found[name] = value
    for line in strange:
        notes.add("unknown", f"{line}: no option of that name in {words.said}; not carried over")
    arguments = kept_arguments(found, notes)
    return Imported(source=source.name, format="megatron-yaml", stack="megatron", arguments=arguments, notices=notes.all())
