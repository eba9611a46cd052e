"""Final values of a Bridge recipe from a dumped configuration, where Bridge isn't installed: the dump of its ConfigContainer with
the recipe's overrides on top. What Bridge copies from mixed_precision is copied here too; what it works out when it starts isn't
known, so every override that such a thing follows from is listed in `fact:unresolved`, which the register reviews."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Any

from attuner.benchmarking import divide
from attuner.core.base import Value
from attuner.core.errors import Refused, UserError
from attuner.core.recipe import same_value
from attuner.importing.model import Notes
from attuner.importing.trees import flat, read_documents

BACKENDS: dict[str, Value] = {
    f"AttnBackend.{number}": name for number, name in enumerate(("flash", "fused", "unfused", "local", "auto"), start=1)
}
"""Source: megatron/core/transformer/enums.py:AttnBackend, which a dump holds by value."""
OWN = ("recipe", "step_func", "mode")
SECTIONS = ("model", "train", "optimizer", "ddp")
COPIED_TO = ("model", "optimizer", "ddp")
LAYOUT = ("tensor", "pipeline", "context", "expert", "virtual", "micro_batch", "sequence_parallel", "global_batch")
"""Beginnings of fields that Bridge's CommOverlapConfig derives overlaps from, and so its own defaults."""
DERIVED = (
    *("comm_overlap", "mixed_precision", "env_vars", "ddp.use_megatron_fsdp", "dist.use_megatron_fsdp", "rng.te_rng_tracker"),
    *("model.cuda_graph", "model.fp8", "model.fp4", "model.pipeline_model_parallel_layout", "tokenizer"),
)
"""Beginnings of names from which Bridge works out others when it starts. Source: training/config.py:runtime_config_update."""


def read_dump(source: str) -> dict[str, Value]:
    """Return a dumped ConfigContainer under dotted names.

    Raises:
        UserError: the file is no such dump.
    """
    path, notes = Path(source), Notes()
    if not path.is_file():
        raise UserError(f"stack.source: {source}: neither a Megatron-Bridge checkout nor a dumped configuration")
    documents = read_documents(path.read_text(encoding="utf-8"), str(path))
    tree = documents[0] if documents else None
    if not isinstance(tree, dict) or not all(isinstance(tree.get(name), dict) for name in SECTIONS):
        raise UserError(f"{path}: no dump of Bridge's ConfigContainer: it lacks {', '.join(SECTIONS)}; see docs/stacks.md")
    found = flat(tree, str(path), notes)
    found.pop("_target_", None)
    return {name: _spelled(value) for name, value in found.items()}


def _spelled(value: Value) -> Value:
    """Return a dtype or an attention backend in the spelling of Megatron's final values, which its rules compare with."""
    if isinstance(value, str) and value.startswith("torch.") and value.count(".") == 1:
        return value.removeprefix("torch.")
    return BACKENDS.get(value, value) if isinstance(value, str) else value


def overridden(dump: dict[str, Value], given: dict[str, Value]) -> tuple[dict[str, Value], dict[str, str], list[str]]:
    """Return final arguments, the recipe's environment defaults, and what Bridge would derive further values from.

    Raises:
        Refused: a name that the container has not, as Bridge would refuse it.
    """
    unknown = [name for name in given if name not in OWN and not _known(name, dump)]
    if unknown:
        near = difflib.get_close_matches(unknown[0], sorted(dump), n=1)
        raise Refused(f"{unknown[0]}: the dumped configuration has no such field{f': did you mean {near[0]}?' if near else ''}")
    changed = [name for name, value in given.items() if name not in OWN and not same_value(dump.get(name), value)]
    whole = {**dump, **given}
    for name, value in list(whole.items()):
        section, _, field = name.partition(".")
        if section == "mixed_precision" and field and "." not in field:
            whole |= {f"{to}.{field}": value for to in COPIED_TO if f"{to}.{field}" in dump}
    overlaps = any(name.startswith("comm_overlap.") for name in dump) or dump.get("comm_overlap") is not None
    causes = [n for n in changed if n.startswith(DERIVED) or (overlaps and n.startswith(tuple(f"model.{x}" for x in LAYOUT)))]
    env = {name.removeprefix("env_vars."): str(value) for name, value in whole.items() if name.startswith("env_vars.")}
    arguments: dict[str, Value] = {n: v for n, v in sorted(whole.items()) if v is not None and not n.startswith("env_vars.")}
    return arguments, env, sorted(f"{name}={_shown(given[name])}" for name in causes)


def _known(name: str, dump: dict[str, Value]) -> bool:
    """Tell whether the container has a field; below one that is null, or a mapping, any name may stand."""
    if name in dump or any(other.startswith(f"{name}.") for other in dump):
        return True
    parts = name.split(".")
    above = [".".join(parts[:i]) for i in range(1, len(parts))]
    return any(path in dump and dump[path] is None for path in above) or parts[0] == "env_vars"


def _shown(value: Value) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def facts_of(arguments: dict[str, Value], world: int) -> dict[str, Value]:
    """Return what follows from the arguments on so many devices, by megatron-core's formulas.

    Raises:
        Refused: something doesn't divide, with the formula.
    Source: megatron/core/parallel_state.py:initialize_model_parallel, core/num_microbatches_calculator.py.
    """
    tp, pp, cp = (_count(arguments, f"model.{n}_parallel_size") for n in ("tensor_model", "pipeline_model", "context"))
    ep = _count(arguments, "model.expert_model_parallel_size")
    etp = _count(arguments, "model.expert_tensor_parallel_size", tp)
    rows, micro = _count(arguments, "train.global_batch_size"), _count(arguments, "train.micro_batch_size")
    length = _count(arguments, "dataset.seq_length", 0) or _count(arguments, "dataset.sequence_length", 0)
    length = length or _count(arguments, "model.seq_length")
    dp = divide("world size", world, "tp·pp·cp", (tp, pp, cp))
    divide("model.num_attention_heads", _count(arguments, "model.num_attention_heads", tp), "tp", (tp,))
    if experts := _count(arguments, "model.num_moe_experts", 0):
        divide("model.num_moe_experts", experts, "ep", (ep,))
    if not any(arguments.get(f"model.{n}") for n in ("pipeline_model_parallel_layout", *_UNEVEN)):
        virtual = _count(arguments, "model.virtual_pipeline_model_parallel_size")
        divide("model.num_layers", _count(arguments, "model.num_layers", pp * virtual), "pp·vpp", (pp, virtual))
    if cp > 1:
        divide("seq_length", length, "2·cp", (2, cp))
    steps = _count(arguments, "train.train_iters", 0)
    decay = _count(arguments, "scheduler.max_steps", 0) or _count(arguments, "scheduler.lr_decay_iters", 0) or steps
    found: dict[str, Value] = {
        "world_size": world,
        "data_parallel_size": dp,
        "expert_data_parallel_size": divide("world size", world, "etp·ep·pp", (etp, ep, pp)),
        "num_microbatches": divide("global_batch_size", rows, "micro_batch_size·dp", (micro, dp)),
        "rows_per_update": rows,
        "global_batch_size": rows,
        "tokens_per_update": rows * length,
        "seq_length": length,
        "seed": arguments.get("rng.seed"),
        "params_dtype": _dtype(arguments.get("model.params_dtype")),
        "train_steps": steps or None,
        "lr_decay_steps": decay * rows or None,
        "loss_masks": _masks(arguments),
        "padded_vocab_size": _padded(arguments, tp),
        "layers_per_stage": _layers(arguments, pp),
        "initial_weights": _weights(arguments),
        "gradient_accumulation_dtype": "float32" if arguments.get("ddp.grad_reduce_in_fp32") else "the parameters'",
        "validator": "dump",
    }
    return {name: value for name, value in found.items() if value is not None}


_UNEVEN = ("num_layers_in_first_pipeline_stage", "num_layers_in_last_pipeline_stage", "account_for_embedding_in_pipeline_split")


def _masks(arguments: dict[str, Value]) -> str:
    """Say whether every row has the same number of loss tokens: even, uneven or unknown."""
    kind = str(arguments.get("dataset._target_", "")).rpartition(".")[2]
    if "SFT" in kind or arguments.get("dataset.eod_mask_loss"):
        return "uneven"
    return "even" if kind in ("GPTDatasetConfig", "MockGPTDatasetConfig") else "unknown"


def _padded(arguments: dict[str, Value], tp: int) -> Value:
    """Return the rows of the embedding. Source: models/gpt_provider.py (should_pad_vocab), utils/vocab_utils.py."""
    size = _count(arguments, "model.vocab_size", 0)
    if not size or not arguments.get("model.should_pad_vocab"):
        return size or None
    multiple = _count(arguments, "model.make_vocab_size_divisible_by") * tp
    return -(-size // multiple) * multiple


def _layers(arguments: dict[str, Value], pp: int) -> Value:
    """Return the layers of every chunk, stage by stage, or in words what they depend on.

    Source: megatron/core/transformer/transformer_block.py:get_num_layers_to_build.
    """
    if any(
        arguments.get(f"model.{name}") for name in ("pipeline_model_parallel_layout", "account_for_embedding_in_pipeline_split")
    ):
        return "the layout's"
    layers, chunks = _count(arguments, "model.num_layers", 0), _count(arguments, "model.virtual_pipeline_model_parallel_size")
    first, last = (_count(arguments, f"model.num_layers_in_{end}_pipeline_stage", 0) for end in ("first", "last"))
    between = pp - bool(first) - bool(last)
    middle = (layers - first - last) // between if between > 0 else 0
    stages = [*([first] if first else []), *[middle] * between, *([last] if last else [])]
    return [stage // chunks for stage in stages for _ in range(chunks)] if layers else None


def _weights(arguments: dict[str, Value]) -> str:
    return "checkpoint" if arguments.get("checkpoint.load") or arguments.get("checkpoint.pretrained_checkpoint") else "random"


def _dtype(value: Value) -> Value:
    return value.rpartition(".")[2] if isinstance(value, str) else value


def _count(arguments: dict[str, Value], name: str, default: int = 1) -> int:
    value: Any = arguments.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise Refused(f"{name} = {value!r}: must be a whole number above 0")
    return value
