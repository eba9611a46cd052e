"""Final values of an AutoModel recipe, worked out by attuner: the YAML tree with the declared defaults filled in, and what
follows from it for a number of devices. What the tree hands to a constructor by name is final as it is written; a default inside
such a constructor isn't known, so stating it counts as a change. What AutoModel would refuse is refused with the formula."""

from __future__ import annotations

import difflib
from typing import Any

from attuner.benchmarking import divide
from attuner.core.base import Value
from attuner.core.errors import Refused
from attuner.stacks.automodel.defaults import ELSEWHERE, RUNTIME, STRATEGIES, defaults

NOTHING = (None, "none", "None", "null")
DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
DISPATCHERS = ("deepep", "hybridep", "uccl_ep", "mok")
CLOSED = ("step_scheduler", "lr_scheduler", "checkpoint", "dataloader")
"""Sections whose unknown names AutoModel refuses."""
ALSO = {
    "step_scheduler": {"local_batch_size"},
    "dataloader": {"_target_", "collate_fn", "dataloader_type", "dataset", "batch_size"},
    "checkpoint": {"restore_from", *RUNTIME},
    "lr_scheduler": {"_target_"},
    "distributed": {"strategy", "pipeline", "moe", "mp_policy", "multimodal", "_target_", "_recursive_", "_convert_"},
}
ROW_LENGTHS = ("packed_sequence.packed_sequence_size", "dataset.seq_len", "dataset.seq_length", "dataset.max_length")


def final_arguments(given: dict[str, Value], fields: dict[str, dict[str, Value]]) -> dict[str, Value]:
    """Return every final value under its dotted name; what is null is left out.

    Raises:
        Refused: a name that AutoModel would refuse.
    """
    _check_names(given, fields)
    whole = {**defaults(given, fields), **{k: v for k, v in given.items() if not _is_null(v)}}
    strategy = str(whole["distributed.strategy"]).lower()
    whole["distributed.strategy"] = STRATEGIES.get(strategy, strategy)
    found = {name: _plain(name, value) for name, value in sorted(whole.items()) if not _is_null(value)}
    return {**found, **_backend(found)}


def _backend(arguments: dict[str, Value]) -> dict[str, Value]:
    """Return what AutoModel makes of a backend, whatever is written: no fused RoPE, grouped experts only with a dispatcher.

    Source: components/models/common/utils.py:BackendConfig.__post_init__ (36044ad3).
    """
    found: dict[str, Value] = {"model.backend.rope_fusion": False} if "model.backend.rope_fusion" in arguments else {}
    experts, dispatcher = arguments.get("model.backend.experts"), arguments.get("model.backend.dispatcher")
    if experts in ("te", "gmm") and dispatcher is not None and dispatcher not in DISPATCHERS:
        found |= {"model.backend.experts": "torch_mm", "model.backend.dispatcher": "torch"}
    return found


def _is_null(value: Value) -> bool:
    return not isinstance(value, list) and value in NOTHING and not isinstance(value, bool | int | float)


def _plain(name: str, value: Value) -> Value:
    """Return one spelling of one meaning: dtypes without `torch.` and in full."""
    if isinstance(value, str) and (name.endswith("dtype") or name.endswith("_precision")):
        bare = value.removeprefix("torch.")
        return DTYPES.get(bare, bare)
    return value


def _check_names(given: dict[str, Value], fields: dict[str, dict[str, Value]]) -> None:
    strategy = STRATEGIES.get(str(given.get("distributed.strategy") or "fsdp2").lower())
    if strategy is None:
        raise Refused(f"distributed.strategy {given['distributed.strategy']}: unknown; known: {', '.join(sorted(STRATEGIES))}")
    closed = {section: set(fields[section]) | ALSO.get(section, set()) for section in CLOSED}
    sizes = {name.partition(".")[2] for name in ELSEWHERE if name.startswith("distributed.")}
    closed["distributed"] = set(fields[strategy]) | sizes | ALSO["distributed"]
    for name in given:
        section, _, rest = name.partition(".")
        field = rest.partition(".")[0]
        if section in closed and field and field not in closed[section]:
            near = difflib.get_close_matches(field, sorted(closed[section]), n=1)
            hint = f": did you mean {section}.{near[0]}?" if near else ""
            raise Refused(
                f"{name}: AutoModel knows no such field{f' of strategy {strategy}' if section == 'distributed' else ''}{hint}"
            )


def facts_of(arguments: dict[str, Value], world: int) -> dict[str, Value]:
    """Return what follows from the arguments on so many devices.

    Raises:
        Refused: something doesn't divide, with the formula.
    Source: components/distributed/mesh_utils.py:_create_fsdp2_device_mesh, components/training/step_scheduler.py, recipes/llm/
    train_ft.py:setup.
    """
    tp, pp, cp, ep = (_count(arguments, f"distributed.{name}_size") for name in ("tp", "pp", "cp", "ep"))
    _check_strategy(arguments, tp=tp, pp=pp, cp=cp, ep=ep)
    stated = _count(arguments, "distributed.dp_size", 0)
    dp = stated or divide("world size", world, "tp·pp·cp", (tp, pp, cp))
    if dp * tp * pp * cp != world:
        raise Refused(f"dp·tp·pp·cp = {dp}·{tp}·{pp}·{cp} = {dp * tp * pp * cp}, the job has {world} devices")
    replicas = _count(arguments, "distributed.dp_replicate_size")
    divide("dp", dp, "dp_replicate_size", (replicas,))
    divide("dp·cp·tp", dp * cp * tp, "ep_size", (ep,))
    rows, local = _count(arguments, "step_scheduler.global_batch_size"), _count(arguments, "step_scheduler.local_batch_size")
    steps = divide("global_batch_size", rows, "local_batch_size·dp", (local, dp))
    if pp > 1:
        _check_pipeline(arguments, local=local, pp=pp)
    length = next((n for name in ROW_LENGTHS if (n := _count(arguments, name, 0))), 0)
    found: dict[str, Value] = {
        "world_size": world,
        "data_parallel_size": dp,
        "num_microbatches": steps,
        "rows_per_update": rows,
        "global_batch_size": rows,
        "seed": arguments.get("seed"),
        "seq_length": length or "the dataset's",
        "tokens_per_update": rows * length if length else "the dataset's",
        "initial_weights": _weights(arguments),
    }
    return {name: value for name, value in found.items() if value is not None}


def _check_strategy(arguments: dict[str, Value], **sizes: int) -> None:
    strategy = str(arguments["distributed.strategy"])
    forbidden = {"megatron_fsdp": ("pp", "ep"), "ddp": ("tp", "pp", "cp", "ep")}.get(strategy, ())
    for name in forbidden:
        if sizes[name] > 1:
            raise Refused(f"distributed.{name}_size {sizes[name]}: strategy {strategy} does not support it")
    if strategy != "fsdp2" and _count(arguments, "distributed.dp_replicate_size") > 1:
        raise Refused(f"distributed.dp_replicate_size: strategy {strategy} does not support it")


def _check_pipeline(arguments: dict[str, Value], *, local: int, pp: int) -> None:
    if not any(name.startswith("distributed.pipeline.") for name in arguments):
        raise Refused(f"distributed.pp_size {pp} needs a distributed.pipeline section")
    micro = _count(arguments, "distributed.pipeline.pp_microbatch_size")
    divide("local_batch_size", local, "pp_microbatch_size", (micro,))
    if local // micro < pp:
        raise Refused(f"local_batch_size / pp_microbatch_size = {local}/{micro} = {local // micro} is less than pp_size {pp}")


def _weights(arguments: dict[str, Value]) -> str:
    loaded = arguments.get("checkpoint.restore_from") or str(arguments.get("model._target_", "")).endswith("from_pretrained")
    return "checkpoint" if loaded else "random"


def _count(arguments: dict[str, Value], name: str, default: int = 1) -> int:
    value: Any = arguments.get(name)
    if isinstance(value, str) and value.isdigit():
        value = int(value)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise Refused(f"{name} = {value!r}: must be a whole number")
    return value or default
