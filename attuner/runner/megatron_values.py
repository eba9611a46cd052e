"""Final values of Megatron's namespace and configuration objects as flat data: one spelling for one meaning. Enums by name,
dtypes without `torch.`, lists of one element as that element, functions by their qualified name, deprecated arguments as
their successors; what only says which rank looks, or counts what happened so far, is left out. `None` and absent are the same
and are left out too."""

import dataclasses
import enum
import functools
import json
import math
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

DEPRECATED = {
    "enable_cuda_graph": "cuda_graph_impl",
    "external_cuda_graph": "cuda_graph_impl",
    "cuda_graph_scope_deprecated": "cuda_graph_modules",
    "recompute_activations": "recompute_granularity",
    "moe_layer_recompute": "recompute_modules",
    "use_rotary_position_embeddings": "position_embedding_type",
    "no_weight_decay_cond_type": "apply_wd_to_qk_layernorm",
    "hybrid_override_pattern": "hybrid_layer_pattern",
    "tiktoken_special_tokens": "tokenizer_special_tokens",
    "moe_enable_deepep": "moe_flex_dispatcher_backend",
    "moe_router_padding_for_fp8": "moe_router_padding_for_quantization",
    "moe_router_topk_limited_devices": "moe_router_group_topk",
    "moe_deepep_num_sms": "moe_flex_dispatcher_num_sms",
    "moe_hybridep_num_sms": "moe_flex_dispatcher_num_sms",
    "use_custom_fsdp": "use_megatron_fsdp",
    "disable_msc_deprecated": "enable_msc",
    "ckpt_fully_parallel_save_deprecated": "ckpt_fully_parallel_save",
    "use_dist_ckpt_deprecated": "ckpt_format",
    "dist_ckpt_format_deprecated": "ckpt_format",
    "deprecated_use_mcore_models": "",
}
"""Deprecated argument -> the one that holds its effect after validation; '' where it has none. An argument is left out only
if the version at hand has its successor. Source: megatron/training/arguments.py (validate_args, help texts) and
megatron/core/transformer/transformer_config.py (__post_init__) of core_v0.16.1 and 0.20.0."""

CONFIG_DECIDES = {
    *("moe_expert_capacity_factor", "num_query_groups", "cp_comm_type", "pipeline_model_parallel_layout"),
    *(successor for successor in DEPRECATED.values() if successor),
}
"""Arguments that the transformer's configuration overrules while it is made: a negative capacity is none, query groups
count only under group_query_attention, deprecated fields become their successors."""

NOT_A_SETTING = {
    *("rank", "local_rank", "world_size", "inprocess_active_world_size"),  # who looks; the last is read from WORLD_SIZE
    *("data_parallel_size", "padded_vocab_size"),  # facts of the same name
    *("transformer_pipeline_model_parallel_size", "use_dist_ckpt"),  # copies of one argument
    *("consumed_train_samples", "skipped_train_samples", "consumed_valid_samples", "consumed_train_bins"),  # counters
    *("start_time", "iteration", "model_type", "timers"),
    *("critic_num_gpus_per_node", "critic_num_nodes"),  # copies of slime's actor_*
    *("curr_iteration", "do_train", "do_valid", "do_test", "num_floating_point_operations_so_far"),  # a run under way
    # functions that the loop gives to the configuration when it begins
    *("finalize_model_grads_func", "grad_scale_func", "no_sync_func", "grad_sync_func", "param_sync_func"),
}

SET_BY_VALIDATION = {"params_dtype", "virtual_pipeline_model_parallel_size", "variable_seq_lengths"}
"""Values that no option sets and validation always does; they go by their own names, like arguments."""


def final_values(args: Any, dests: set[str], *, transformer: Any, ddp: Any, optimizer: Any) -> dict[str, Any]:
    """Return every final value under one name.

    args: the namespace after validation. dests: the arguments that the parser knows. An argument that was left open takes
    the value that a configuration object gave it. A field goes by `transformer.X`, `ddp.X` or `optimizer.X` only where no
    argument X says the same; a field that validation sometimes puts into the namespace too is a field.
    """
    parts = {"transformer": _fields(transformer), "ddp": _fields(ddp), "optimizer": _fields(optimizer)}
    own = dests | SET_BY_VALIDATION
    given = {k: v for k, v in vars(args).items() if k in own or not (k.startswith("_") or k in parts["transformer"])}
    known = given.keys() | parts["transformer"].keys()
    gone = NOT_A_SETTING | {name for name, successor in DEPRECATED.items() if not successor or successor in known}
    values = {name: plain(value) for name, value in given.items() if name not in gone}
    for part, fields in parts.items():
        for name in [n for n in fields if n not in gone]:
            value = plain(fields[name])
            if name in given and (given[name] is None or (part == "transformer" and name in CONFIG_DECIDES)):
                values[name] = values.get(name) if value is None and given[name] is None else value
            elif name not in given or not _same(values.get(name), value):
                values[f"{part}.{name}"] = "none" if value is None and name in given else value
    if given.get("virtual_pipeline_model_parallel_size") is None:  # one chunk a stage, however that was asked for
        for name in ("num_virtual_stages_per_pipeline_rank", "num_layers_per_virtual_pipeline_stage"):
            values.pop(name, None)
    if given.get("num_experts") is not None and "moe_layer_freq" in values:
        values["moe_layer_freq"] = _per_layer(values["moe_layer_freq"], given.get("num_layers"))
    return {name: value for name, value in sorted(values.items()) if value is not None}


def _fields(config: Any) -> dict[str, Any]:
    """Return the fields of a configuration object, and what its own code set beside them."""
    names = {field.name for field in dataclasses.fields(config)} | set(vars(config))
    return {name: getattr(config, name, None) for name in names if not name.startswith("_")}


def _same(a: Any, b: Any) -> bool:
    return type(a) is type(b) and bool(a == b) if isinstance(a, bool) or isinstance(b, bool) else bool(a == b)


def _per_layer(value: Any, num_layers: Any) -> Any:
    """Write a frequency N as the list of layers that it means, so that both spellings compare.

    Source: megatron/core/models/gpt/gpt_layer_specs.py:layer i has experts if i % N == 0.
    """
    if isinstance(value, int) and not isinstance(value, bool) and value > 0 and isinstance(num_layers, int):
        return plain([1 if i % value == 0 else 0 for i in range(num_layers)])
    return value


def plain(value: Any) -> Any:
    """Return a value as a scalar or a flat list of scalars; what nests becomes strict JSON in a string."""
    value = _data(value)
    if isinstance(value, list):
        if any(isinstance(item, list | dict) for item in value):
            return json.dumps(value, sort_keys=True, separators=(",", ":"))
        return value[0] if len(value) == 1 else value
    return json.dumps(value, sort_keys=True, separators=(",", ":")) if isinstance(value, dict) else value


def _data(value: Any) -> Any:
    """Return a value as JSON data, with stable strings for what is none."""
    if isinstance(value, enum.Enum):  # first: some of them are strings too
        return value.name
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, list | tuple | set | frozenset):
        items = sorted(value, key=str) if isinstance(value, set | frozenset) else value
        return [_data(item) for item in items]
    if isinstance(value, Mapping):
        return {str(key): _data(item) for key, item in value.items()}
    if isinstance(value, functools.partial):
        shown = [*(str(_data(a)) for a in value.args), *(f"{k}={_data(v)}" for k, v in sorted(value.keywords.items()))]
        return f"{_data(value.func)}({', '.join(shown)})"
    if hasattr(value, "layout") and hasattr(value, "pipeline_model_parallel_size"):
        return _stages(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: _data(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if type(value).__module__ == "torch":  # a dtype or a device
        return str(value).removeprefix("torch.")
    named = value if hasattr(value, "__qualname__") else type(value)
    return f"{named.__module__}.{named.__qualname__}"


def _stages(layout: Any) -> list[str]:
    """Return Megatron's pipeline layout as one word a stage in the order of the layers, however it was written."""
    virtual, stages = layout.virtual_pipeline_model_parallel_size, layout.pipeline_model_parallel_size
    chunks = [layout.layout[rank][v] for v in range(virtual) for rank in range(stages)]
    return ["".join(_LETTERS.get(layer.name, layer.name) for layer in chunk) for chunk in chunks]


_LETTERS = {"embedding": "E", "decoder": "t", "mtp": "m", "loss": "L"}


def reason(error: BaseException) -> str:
    """Return why code that isn't ours refused, in one line: its message, or the line that failed where it has none."""
    text = " ".join(str(error).split())
    if isinstance(error, KeyError):
        text = f"no such key or choice: {text}"
    if text:
        return text[:1000]
    found = traceback.extract_tb(error.__traceback__)
    if not found:
        return type(error).__name__
    where = "/".join(Path(found[-1].filename).parts[-3:])
    return f"{type(error).__name__} at {where}:{found[-1].lineno}: {found[-1].line}"
