"""From a recipe's flat arguments to megatron-core's configuration objects and back. The names of arguments are the
field names of megatron's TransformerConfig, DistributedDataParallelConfig and OptimizerConfig, and of
`TrainerArguments` for what megatron leaves to the training script. Nothing here needs a process group or a device."""

import dataclasses
import difflib
import enum
import functools
import json
import math
import types
import typing
import warnings
from collections.abc import Callable, Mapping
from typing import Any, Literal

import torch
from megatron.core.distributed.distributed_data_parallel_config import DistributedDataParallelConfig
from megatron.core.fusions.fused_bias_geglu import quick_gelu
from megatron.core.optimizer.optimizer_config import OptimizerConfig
from megatron.core.transformer.transformer_config import TransformerConfig

from .errors import ConfigError, LayoutError

_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16, "fp64": torch.float64}
_DTYPE_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
_ACTIVATIONS: dict[str, Callable[..., Any]] = {
    "gelu": torch.nn.functional.gelu,
    "silu": torch.nn.functional.silu,
    "relu": torch.nn.functional.relu,
    "quick_gelu": quick_gelu,
}


@dataclasses.dataclass(frozen=True)
class TrainerArguments:
    """What megatron leaves to the training script; Megatron-LM's names where it has them. Schedules count updates."""

    micro_batch_size: int = 1
    global_batch_size: int = 1
    seq_length: int = 0
    vocab_size: int = 0
    make_vocab_size_divisible_by: int = 1
    attention_implementation: Literal["local", "sdpa"] = "local"
    position_embedding_type: Literal["rope", "learned_absolute", "none"] = "rope"
    rotary_base: int = 10000
    rotary_percent: float = 1.0
    untie_embeddings_and_output_weights: bool = True
    lr_decay_style: Literal["constant", "linear", "cosine", "inverse-square-root", "WSD"] = "constant"
    lr_decay_steps: int | None = None
    lr_warmup_steps: int = 0
    lr_warmup_init: float = 0.0
    lr_wsd_decay_steps: int | None = None
    lr_wsd_decay_style: Literal["exponential", "linear", "cosine", "minus_sqrt"] = "exponential"
    start_weight_decay: float | None = None
    end_weight_decay: float | None = None
    weight_decay_incr_style: Literal["constant", "linear", "cosine"] = "constant"
    seed: int = 1234


@dataclasses.dataclass(frozen=True)
class Configs:
    """The objects a run is built from."""

    transformer: Any
    ddp: Any
    optimizer: Any
    trainer: TrainerArguments


_CLASSES: dict[str, Any] = {
    "transformer": TransformerConfig,
    "ddp": DistributedDataParallelConfig,
    "optimizer": OptimizerConfig,
    "trainer": TrainerArguments,
}

# What this trainer doesn't build on any device: name -> (values it accepts, why not others).
_NOT_BUILT: dict[str, tuple[tuple[Any, ...], str]] = {
    "transformer_impl": (("local",), "this trainer builds megatron's local modules"),
    "context_parallel_size": ((1,), "megatron's local attention has no context parallelism"),
    "multi_latent_attention": ((False,), "this trainer builds no multi-latent attention"),
    "mtp_num_layers": ((None, 0), "this trainer builds no multi-token prediction"),
    "experimental_attention_variant": ((None,), "this trainer builds no experimental attention"),
    "heterogeneous_block_specs": ((False,), "this trainer builds one kind of block"),
    "is_hybrid_model": ((False,), "this trainer builds no hybrid model"),
    "layernorm_zero_centered_gamma": ((False,), "torch's norms have no zero-centered gamma"),
    "fp16": ((False,), "this trainer has no loss scaling; use bf16"),
    "use_megatron_fsdp": ((False,), "this trainer wraps the model in megatron's DDP"),
    "use_custom_fsdp": ((False,), "this trainer wraps the model in megatron's DDP"),
}

_KERNEL = "needs a CUDA kernel"
_CPU_REFUSES: dict[str, tuple[tuple[Any, ...], str]] = {
    "gradient_accumulation_fusion": ((False,), _KERNEL),
    "masked_softmax_fusion": ((False,), _KERNEL),
    "persist_layer_norm": ((False,), _KERNEL),
    "memory_efficient_layer_norm": ((False,), _KERNEL),
    "apply_rope_fusion": ((False,), _KERNEL),
    "fused_single_qkv_rope": ((False,), _KERNEL),
    "moe_grouped_gemm": ((False,), _KERNEL),
    "moe_permute_fusion": ((False,), "needs Transformer Engine"),
    "moe_router_fusion": ((False,), "needs Transformer Engine"),
    "use_te_activation_func": ((False,), "needs Transformer Engine"),
    "tp_comm_overlap": ((False,), "needs Transformer Engine"),
    "fp8": ((None,), "needs Transformer Engine"),
    "fp4": ((None,), "needs Transformer Engine"),
    "moe_enable_deepep": ((False,), "needs a GPU"),
    "moe_token_dispatcher_type": (("allgather", "alltoall"), "needs DeepEP on a GPU"),
    "enable_cuda_graph": ((False,), "needs a GPU"),
    "external_cuda_graph": ((False,), "needs a GPU"),
    "cuda_graph_impl": (("none",), "needs a GPU"),
    "cpu_offloading": ((False,), "needs Transformer Engine"),
    "fine_grained_activation_offloading": ((False,), "needs a GPU"),
    "nccl_ub": ((False,), "needs NCCL"),
    "use_cpu_initialization": ((True,), "there is no other device to initialise on"),
    "batch_p2p_comm": ((False,), "gloo has no batched sends"),
    "hidden_dropout": ((0, 0.0), "the CPU has one random generator where megatron needs one for each tensor rank"),
    "attention_dropout": ((0, 0.0), "the CPU has one random generator where megatron needs one for each tensor rank"),
}
_CPU_DEFAULTS: dict[str, Any] = {
    "use_cpu_initialization": True,
    "batch_p2p_comm": False,
    "hidden_dropout": 0.0,
    "attention_dropout": 0.0,
}


@functools.cache
def _hints(part: str) -> dict[str, Any]:
    """Return the type of every field of one object."""
    hints = typing.get_type_hints(_CLASSES[part])
    return {field.name: hints[field.name] for field in dataclasses.fields(_CLASSES[part]) if field.init}


def apply_device_defaults(arguments: Mapping[str, Any], device_kind: str) -> dict[str, Any]:
    """Return the arguments with what the device and the training script force, where the recipe leaves it open.

    Raises: ConfigError when the recipe sets what this device or this trainer can't do.
    """
    _refuse(arguments, _NOT_BUILT, "this trainer")
    filled: dict[str, Any] = {"transformer_impl": "local", "min_lr": 0.0}
    if device_kind == "cpu":
        _refuse(arguments, _CPU_REFUSES, "a CPU")
        filled.update(_CPU_DEFAULTS)
    if arguments.get("bf16"):
        filled["params_dtype"] = "bf16"
    if arguments.get("overlap_p2p_comm"):
        filled["batch_p2p_comm"] = False
    filled.update(arguments)
    filled.setdefault("pipeline_dtype", filled.get("params_dtype", "fp32"))
    return filled


def _refuse(arguments: Mapping[str, Any], table: Mapping[str, tuple[tuple[Any, ...], str]], who: str) -> None:
    for name, (accepted, why) in table.items():
        if name in arguments and arguments[name] not in accepted:
            raise ConfigError(f"{name} = {arguments[name]!r} can't run on {who}: {why}")


def build_configs(arguments: Mapping[str, Any], device_kind: str) -> Configs:
    """Build megatron's configuration objects from a recipe's flat arguments.

    arguments: JSON values by field name; dtypes are 'fp32' or 'bf16'. A field that several objects have is fed to all.
    device_kind: 'cpu' or 'cuda'.
    Raises: ConfigError for an unknown name, a value of the wrong kind or an impossible combination; LayoutError when
        megatron says that the layout doesn't divide.
    """
    filled = apply_device_defaults(arguments, device_kind)
    fields: dict[str, dict[str, Any]] = {part: {} for part in _CLASSES}
    for name, value in filled.items():
        parts = [part for part in _CLASSES if name in _hints(part)]
        if not parts or name.startswith("_"):
            raise ConfigError(_unknown(name))
        for part in parts:
            fields[part][name] = _coerce(name, _hints(part)[name], value)
    trainer = TrainerArguments(**fields.pop("trainer"))
    _check_trainer(trainer, filled)
    return Configs(trainer=trainer, **{part: _construct(_CLASSES[part], given) for part, given in fields.items()})


def _unknown(name: str) -> str:
    known = sorted({field for part in _CLASSES for field in _hints(part) if not field.startswith("_")})
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.0)
    return f"unknown argument {name}: did you mean {near[0]}?"


def _construct(cls: Any, given: dict[str, Any]) -> Any:
    """Build one object, turning megatron's own complaint into one line."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return cls(**given)
    except (ValueError, AssertionError, RuntimeError, TypeError, ZeroDivisionError) as error:
        text = " ".join(str(error).split()) or type(error).__name__
        kind = LayoutError if "parallel" in text or "pipeline" in text else ConfigError
        raise kind(f"megatron's {cls.__name__} refuses: {text}") from error


def _check_trainer(trainer: TrainerArguments, filled: Mapping[str, Any]) -> None:
    for name in ("micro_batch_size", "global_batch_size", "seq_length", "vocab_size", "make_vocab_size_divisible_by"):
        if getattr(trainer, name) < 1:
            raise ConfigError(f"{name} must be at least 1, not {getattr(trainer, name)}")
    for name in ("num_layers", "hidden_size", "num_attention_heads"):
        if int(filled.get(name) or 0) < 1:
            raise ConfigError(f"{name} must be at least 1, not {filled.get(name)}")
    if filled.get("lr") is None:
        raise ConfigError("lr must be given")
    if trainer.lr_decay_style != "constant" and trainer.lr_decay_steps is None:
        raise ConfigError(f"lr_decay_style {trainer.lr_decay_style} needs lr_decay_steps")
    if trainer.lr_decay_steps is not None and trainer.lr_warmup_steps >= trainer.lr_decay_steps:
        raise ConfigError(f"lr_warmup_steps {trainer.lr_warmup_steps} must be below lr_decay_steps {trainer.lr_decay_steps}")
    if trainer.attention_implementation == "sdpa":
        for name, only in (("window_size", None), ("softmax_type", "vanilla")):
            if filled.get(name, only) != only:
                raise ConfigError(f"attention_implementation sdpa can't do {name} = {filled[name]!r}")


# ---------------------------------------------------------------------------------------------- values in


def _coerce(name: str, hint: Any, value: Any) -> Any:
    if name == "activation_func":
        if value not in _ACTIVATIONS:
            raise ConfigError(f"activation_func must be one of {', '.join(sorted(_ACTIVATIONS))}, not {value!r}")
        return _ACTIVATIONS[value]
    if not _is_data(hint):
        raise ConfigError(f"{name} isn't data: a recipe can't set it")
    matched, result = _convert(hint, value)
    if not matched:
        raise ConfigError(f"{name} = {value!r} isn't {_say(hint)}")
    return result


def _options(hint: Any) -> tuple[Any, ...]:
    """Return the members of a union, or the hint alone."""
    return typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)


def _is_data(hint: Any) -> bool:
    def one(option: Any) -> bool:
        origin = typing.get_origin(option) or option
        if origin in (bool, int, float, str, torch.dtype, list, tuple, Literal):
            return True
        return isinstance(origin, type) and issubclass(origin, enum.Enum)

    return any(one(option) for option in _options(hint))


def _convert(hint: Any, value: Any) -> tuple[bool, Any]:
    """Say whether a JSON value is of a type, and return it converted."""
    for option in _options(hint):
        matched, result = _convert_one(option, value)
        if matched:
            return True, result
    return False, None


def _convert_one(option: Any, value: Any) -> tuple[bool, Any]:
    origin = typing.get_origin(option) or option
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if origin is type(None):
        return value is None, None
    if origin is Literal:
        return value in typing.get_args(option), value
    if origin is torch.dtype:
        # megatron leaves pipeline_dtype at None though it isn't declared optional.
        return value is None or value in _DTYPES, _DTYPES.get(value)
    if origin is float:
        return number and math.isfinite(value), float(value) if number else None
    if origin is int:
        return number and value == int(value), int(value) if number and value == int(value) else None
    if origin in (bool, str):
        return isinstance(value, origin), value
    if origin in (list, tuple):
        return (True, origin(value)) if isinstance(value, list | tuple) else (False, None)
    if isinstance(origin, type) and issubclass(origin, enum.Enum):
        known = isinstance(value, str) and value in origin.__members__
        return known, origin[value] if known else None
    return False, None


def _say(hint: Any) -> str:
    """Describe a type in words."""
    said = []
    for option in _options(hint):
        if option is type(None):
            said.append("null")
        elif typing.get_origin(option) is Literal:
            said.extend(repr(choice) for choice in typing.get_args(option))
        elif option is torch.dtype:
            said.extend(repr(choice) for choice in _DTYPES)
        elif isinstance(option, type) and issubclass(option, enum.Enum):
            said.extend(repr(choice) for choice in option.__members__)
        else:
            said.append(getattr(option, "__name__", str(option)))
    return " or ".join(said)


# ---------------------------------------------------------------------------------------------- values out


def describe(configs: Configs) -> dict[str, Any]:
    """Return the final value of every field, after the objects' own derivations, as flat JSON.

    A transformer or trainer field goes by its own name; a DDP field by its own, or `ddp.NAME` where the transformer
    has that name; an optimizer field by its own, or `optimizer.NAME` where either of those has it. Call it before
    the model is built: megatron's DDP writes into its configuration.
    """
    described: dict[str, Any] = {}
    for part in ("transformer", "ddp", "optimizer", "trainer"):
        config = getattr(configs, part)
        for field in dataclasses.fields(config):
            if field.name.startswith("_"):
                continue
            name = f"{part}.{field.name}" if field.name in described else field.name
            described[name] = plain(getattr(config, field.name))
    return described


def plain(value: Any) -> Any:
    """Return a field's value as strict JSON; dtypes and functions become stable strings without addresses."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, torch.dtype):
        return _DTYPE_NAMES.get(value, str(value))
    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, functools.partial):
        given = [*(str(plain(a)) for a in value.args), *(f"{k}={plain(v)}" for k, v in value.keywords.items())]
        return f"{plain(value.func)}({', '.join(given)})"
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if hasattr(value, "layout"):  # megatron's PipelineParallelLayerLayout: lists in lists, which no rule could compare
        return json.dumps(plain(value.layout), separators=(",", ":"))
    named = value if hasattr(value, "__qualname__") else type(value)
    return f"{named.__module__}.{named.__qualname__}"
