"""One candidate, in a process of its own: from a recipe's arguments to what Megatron would finally train with. Parses and
validates as the job's entry would (pretrain_gpt.py, or slime's train.py), builds the configuration objects, and derives facts
and environment. Changes this process for good: Megatron keeps its arguments in globals and writes into the environment."""

import ast
import dataclasses
import importlib
import inspect
import json
import os
import sys
import textwrap
import types
from collections import Counter
from typing import Any

from . import megatron_facts
from .errors import ConfigError
from .megatron_import import CAPABILITY, Framework, aim, job_environment
from .megatron_tokens import Unknown, Vocabulary
from .megatron_values import final_values, reason

ENTRY = "pretrain_gpt.py"
SLIME = "slime"
DEFAULTS = {"tokenizer_type": "GPT2BPETokenizer"}
"""What pretrain_gpt.py hands to validate_args."""
SERVING = ("--sglang-", "--router-", "--prefill-num-servers")
"""Options of slime's serving side, which a parser of its own reads."""
CACHES = ("TORCHINDUCTOR_", "TRITON_", "PYTHON")
"""Variables that torch sets for its own folders."""


def resolve(framework: Framework, vocabulary: Vocabulary, request: dict[str, Any]) -> dict[str, Any]:
    """Return {"arguments", "env", "facts"} of one request.

    vocabulary: of the framework's parser. request: "arguments", "world_size", and optionally "env", "entry", "capability",
        "torch", "transformer_engine".
    Raises: ConfigError and LayoutError, with one line that says what Megatron would refuse, and where.
    """
    entry = str(request.get("entry") or ENTRY)
    if (entry == SLIME) != (framework.slime is not None):
        raise ConfigError(f"entry {entry}: this resolver was started {'with' if framework.slime else 'without'} slime's checkout")
    wanted = {str(k): str(v) for k, v in (request.get("env") or {}).items()}
    job_environment(wanted, world_size=int(request["world_size"]))
    aim(
        capability=tuple(request.get("capability") or CAPABILITY),
        torch_version=str(request.get("torch") or ""),
        engine_version=str(request.get("transformer_engine") or ""),
    )
    words = vocabulary.words(request["arguments"], strict=entry != SLIME)
    _refuse_files(set(vocabulary.given(words)))
    sys.argv = [entry, *words]
    before = dict(os.environ)
    args, unknown = _slime(framework, request) if framework.slime else _megatron(framework, entry)
    transformer, optimizer, ddp = configs(args, framework)
    facts = megatron_facts.derive(args, transformer, ddp, framework, entry=entry)
    if framework.slime:
        _slime_environment(args)
    _build_environment(args, transformer)
    facts |= {"unparsed_arguments": unknown, "duplicated_arguments": vocabulary.duplicated(words)}
    return {
        "arguments": final_values(args, vocabulary.dests(), transformer=transformer, ddp=ddp, optimizer=optimizer),
        "env": {**wanted, **{k: v for k, v in os.environ.items() if before.get(k) != v and not k.startswith(CACHES)}},
        "facts": facts,
    }


def _refuse_files(given: set[str]) -> None:
    """Refuse arguments that let a file replace final values: what they would be can't be said from here."""
    for name, why in (
        ("yaml_cfg", "another validator (yaml_arguments.validate_yaml) would run, with none of these checks"),
        ("use_checkpoint_args", "the checkpoint's arguments would replace these before validation"),
        ("custom_config_path", "slime lets this file override any argument"),
        ("megatron_config_path", "slime lets this file override arguments for each role"),
    ):
        if name in given:
            raise ConfigError(f"{name}: {why}; write the arguments out in the recipe")


# ---------------------------------------------------------------------------------------------- parse and validate


def _megatron(framework: Framework, entry: str) -> tuple[Any, list[str]]:
    """Parse and validate as megatron/training/initialize.py does for pretrain_gpt.py."""
    Unknown().watch()
    args = _attempt(framework.arguments.parse_args)
    if args.ckpt_convert_format is not None:
        raise ConfigError("ckpt_convert_format: converts a checkpoint and ends; that is no training run")
    _attempt(framework.arguments.validate_args, args, dict(DEFAULTS) if entry == ENTRY else {})
    return args, []


def _slime(framework: Framework, request: dict[str, Any]) -> tuple[Any, list[str]]:
    """Parse and validate as slime's parse_args does for its training side.

    Source: slime/utils/arguments.py:parse_args and slime_validate_args, slime/backends/megatron_utils/arguments.py. The
    check against the HuggingFace checkpoint and everything about serving is left out.
    """
    slime = framework.slime
    if slime is None:
        raise ConfigError("slime's checkout is missing")
    unknown = Unknown()
    unknown.watch()
    mode = _attempt(slime.mode)
    left_by_mode = Counter(unknown.words)
    args = _attempt(slime.arguments.megatron_parse_args, slime.provider, skip_hf_validate=True)
    rest = [word for word in _without_serving(unknown.words) if left_by_mode[word]]
    for name, value in vars(mode).items():
        setattr(args, name, value)
    _slime_training(args, int(request["world_size"]))
    _attempt(slime.arguments.validate_args, args)
    args.train_iters = args.num_rollout * args.rollout_batch_size * args.n_samples_per_prompt // args.global_batch_size
    return args, rest


def _slime_training(args: Any, world_size: int) -> None:
    """Apply what slime_validate_args derives for training (624b824a): batch, offload, and where the weights come from.

    Raises: ConfigError when the batch is stated twice and differs, or the devices differ from the job's.
    """
    nodes, each = args.actor_num_nodes, args.actor_num_gpus_per_node
    if nodes * each != world_size:
        raise ConfigError(f"actor_num_nodes·actor_num_gpus_per_node = {nodes}·{each} = {nodes * each}, the job has {world_size}")
    if args.num_rollout is None or args.rollout_batch_size is None:
        raise ConfigError("num_rollout and rollout_batch_size must be given: slime's number of updates follows from them")
    if args.num_steps_per_rollout is not None:
        rows = args.rollout_batch_size * args.n_samples_per_prompt // args.num_steps_per_rollout
        if args.global_batch_size not in (None, rows):
            numbers = f"{args.rollout_batch_size}·{args.n_samples_per_prompt}/{args.num_steps_per_rollout} = {rows}"
            raise ConfigError(
                f"global_batch_size {args.global_batch_size} is not "
                f"rollout_batch_size·n_samples_per_prompt/num_steps_per_rollout = {numbers}"
            )
        args.global_batch_size = rows
    if args.use_dynamic_batch_size and args.max_tokens_per_gpu is None:
        raise ConfigError("use_dynamic_batch_size needs max_tokens_per_gpu")
    if args.load is None:
        args.no_load_optim = args.no_load_rng = args.finetune = True
        args.load = args.ref_load
        args.ckpt_step = args.ckpt_step if args.ref_ckpt_step is None else args.ref_ckpt_step
    if args.colocate and args.offload_train is None and not args.release_train:
        args.offload_train = True
    args.offload_train = bool(args.offload_train or args.offload or args.advantage_estimator == "ppo")
    args.disable_grad_buffers_cpu_backup = args.disable_param_buffers_cpu_backup = args.offload_train


def _without_serving(words: list[str]) -> list[str]:
    """Leave out options of the serving side with their values."""
    kept, skip = [], False
    for word in words:
        if word.startswith("--"):
            skip = word.startswith(SERVING)
        if not skip:
            kept.append(word)
    return kept


def _attempt(call: Any, *args: Any, **kwargs: Any) -> Any:
    """Call Megatron's code, and say in one line where and why it refuses."""
    try:
        return call(*args, **kwargs)
    except ConfigError:
        raise
    except SystemExit as error:
        raise ConfigError(f"Megatron would end here (exit {error.code}); the last lines above say why") from error
    except Exception as error:
        raise ConfigError(f"Megatron refuses: {reason(error)}") from error


# ---------------------------------------------------------------------------------------------- configuration objects


def configs(args: Any, framework: Framework) -> tuple[Any, Any, Any]:
    """Build Megatron's configuration objects of transformer, optimizer and DDP by its own functions."""
    training: Any = framework.training
    convert = getattr(framework.arguments, "core_transformer_config_from_args", None)
    if convert is None:  # it moved after 0.16
        convert = importlib.import_module("megatron.training.argument_utils").core_transformer_config_from_args
    transformer = _attempt(convert, args)
    optimizer = _attempt(_optimizer, args, training)
    own = getattr(training, "get_megatron_ddp_config", None)
    ddp = _attempt(own, args) if own else _attempt(_ddp, args, training)
    return transformer, optimizer, ddp


def _optimizer(args: Any, training: Any) -> Any:
    found = training.get_megatron_optimizer_config(args)
    return found[0] if isinstance(found, tuple) else found


def _ddp(args: Any, training: Any) -> Any:
    """Build the DDP configuration as get_model does where that has no function of its own (0.16.1).

    The mapping is read from get_model's text: every `kwargs['field'] = args.argument` in it.
    """
    module: Any = importlib.import_module("megatron.core.distributed")
    if getattr(args, "use_torch_fsdp2", False):
        reshard = getattr(args, "torch_fsdp2_reshard_after_forward", True)
        return module.TorchFullyShardedDataParallelConfig(reshard_after_forward=reshard)
    made = module.DistributedDataParallelConfig
    if args.ddp_num_buckets is not None and args.ddp_bucket_size is not None:
        raise ConfigError("ddp_num_buckets and ddp_bucket_size are both given")
    given = {field.name: getattr(args, field.name) for field in dataclasses.fields(made) if hasattr(args, field.name)}
    renamed = {field: getattr(args, name) for field, name in ddp_mapping(training.get_model).items()}
    config = made(**{**given, **renamed})
    config.num_buckets = args.ddp_num_buckets  # a field of its own in later versions
    return config


def ddp_mapping(get_model: Any) -> dict[str, str]:
    """Return {field: argument} of the assignments `kwargs['field'] = args.argument` in a function's source."""
    found = {}
    for node in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(get_model)))):
        if not isinstance(node, ast.Assign) or not isinstance(node.targets[0], ast.Subscript):
            continue
        target, value = node.targets[0], node.value
        named = isinstance(target.value, ast.Name) and target.value.id == "kwargs" and isinstance(target.slice, ast.Constant)
        if named and isinstance(value, ast.Attribute) and isinstance(value.value, ast.Name) and value.value.id == "args":
            found[str(target.slice.value)] = value.attr  # type: ignore[attr-defined]
    return found


# ---------------------------------------------------------------------------------------------- environment


def _build_environment(args: Any, transformer: Any) -> None:
    """Set the variables that Megatron sets after validation, while it builds process groups and model.

    Source: core/models/common/language_module (NVTE_* by attention_backend), core/nccl_allocator.py:init,
    core/parallel_state.py (UCC), training/initialize.py (flight recorder). SHARP's NCCL_COLLNET_ENABLE lives only while one
    group is made, so it isn't a final value.
    """
    language: Any = importlib.import_module("megatron.core.models.common.language_module.language_module")
    _attempt(language.LanguageModule._set_attention_backend, types.SimpleNamespace(config=transformer))
    if getattr(args, "nccl_ub", False):
        os.environ.update({"NCCL_NVLS_ENABLE": "1", "TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK": "0"})
    if getattr(args, "pipeline_model_parallel_comm_backend", None) == "ucc":
        if os.environ.get("CUDA_DEVICE_MAX_CONNECTIONS") == "1":
            raise ConfigError("pipeline_model_parallel_comm_backend ucc needs CUDA_DEVICE_MAX_CONNECTIONS above 1")
        for name, value in _UCC_DEFAULTS.items():
            os.environ.setdefault(name, value)
        os.environ.update(_UCC)
    path = getattr(args, "flight_recorder_dump_path", None) or os.environ.get("TORCH_FR_DUMP_TEMP_FILE")
    if path and hasattr(args, "flight_recorder_dump_path"):
        for name, value in _flight_recorder(args, path).items():
            os.environ.setdefault(name, value)


_UCC_DEFAULTS = {"TORCH_UCC_BLOCKING_WAIT": "none", "UCC_EC_CUDA_STREAM_TASK_MODE": "driver", "UCX_TLS": "ib,cuda_copy"}
_UCC = {"NSYS_UCP_COMM_PARAMS": "1", "UCX_RNDV_THRESH": "0", "UCX_NET_DEVICES": "all", "UCC_CL_BASIC_TLS": "^sharp,nccl"}


def _flight_recorder(args: Any, path: str) -> dict[str, str]:
    return {
        "TORCH_FR_DUMP_TEMP_FILE": path,
        "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": path,
        "TORCH_NCCL_TRACE_BUFFER_SIZE": str(args.flight_recorder_trace_buffer_size),
        "TORCH_NCCL_DUMP_ON_TIMEOUT": str(int(args.flight_recorder_dump_on_timeout)),
        "TORCH_INCLUDE_STACK_TRACE": str(int(args.flight_recorder_include_stack_trace)),
        "TORCH_INCLUDE_ONLY_ACTIVE": str(int(args.flight_recorder_include_only_active)),
        "TORCH_NCCL_EXTRA_DUMP_ON_EXEC": str(int(args.flight_recorder_extra_dump_on_exec)),
    }


def _slime_environment(args: Any) -> None:
    """Set what slime's actor group gives to every training process, its second channel of variables last.

    Source: slime/ray/actor_group.py:_allocate_gpus_for_actor. The library that it preloads for offload is named by the image.
    """
    os.environ.setdefault("NCCL_CUMEM_ENABLE", "0")
    os.environ.setdefault("NVTE_FP8_BLOCK_SCALING_FP32_SCALES", "1")
    extra = args.train_env_vars
    for name, value in (json.loads(extra) if isinstance(extra, str) else extra).items():
        os.environ[str(name)] = str(value)
    if args.offload_train:
        os.environ.update({"TMS_INIT_ENABLE": "1", "TMS_INIT_ENABLE_CPU_BACKUP": "1"})
    if getattr(args, "use_routing_replay", False) or getattr(args, "use_rollout_routing_replay", False):
        os.environ["ENABLE_ROUTING_REPLAY"] = "1"
