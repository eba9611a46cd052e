"""Megatron-Bridge's configuration of one recipe: its recipe function found by name, dotted overrides applied by Bridge's own
code, and the ConfigContainer as flat final values. Used by the job that trains and by the one that resolves. Not run inside an
image of Bridge yet: on this project's machines its packages are missing."""

import importlib
import importlib.util
import json
import os
import pkgutil
import sys
import typing
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from .errors import ConfigError
from .megatron_facts import divide

OWN = ("recipe", "step_func", "mode")
"""Names of a recipe that are attuner's, not fields of the ConfigContainer."""
PERF, LIBRARY = "megatron.bridge.perf_recipes", "megatron.bridge.recipes"
STEP = "megatron.bridge.training.gpt_step:forward_step"


def import_bridge(source: str) -> None:
    """Import Megatron-Bridge, from a checkout or as installed.

    Raises: ConfigError that names what is missing.
    """
    if source:
        folder = Path(source).resolve()
        if not (folder / "src" / "megatron" / "bridge").is_dir():
            raise ConfigError(f"{source}: no Megatron-Bridge checkout: it has no src/megatron/bridge")
        sys.path[:0] = [str(folder / "src"), str(folder / "3rdparty" / "Megatron-LM")]
    if not hasattr(typing, "override"):  # Bridge and its Megatron-LM are written for Python 3.12
        typing.override = lambda function: function  # type: ignore[attr-defined]
    try:
        found = importlib.util.find_spec("megatron.bridge")
    except ImportError:
        found = None
    if found is None:
        raise ConfigError("stack bridge: megatron.bridge isn't installed here, and no checkout of it is named")
    try:
        importlib.import_module("megatron.bridge.training.config")
    except ImportError as error:
        missing = f"{error.name} is missing" if isinstance(error, ModuleNotFoundError) and error.name else str(error)
        raise ConfigError(f"stack bridge: megatron.bridge can't be imported here: {missing}") from None


def versions() -> dict[str, str]:
    """Return the versions that bear on a run."""
    import torch

    core: Any = importlib.import_module("megatron.core.package_info")
    bridge: Any = importlib.import_module("megatron.bridge.package_info")
    return {
        "bridge": str(bridge.__version__),
        "megatron_core": str(core.__version__).partition("+")[0],
        "torch": torch.__version__.split("+")[0],
    }


def build(arguments: Mapping[str, Any]) -> Any:
    """Return the ConfigContainer of a recipe with its overrides.

    Raises: ConfigError when there is no such recipe, or Bridge refuses an override.
    """
    name = arguments.get("recipe")
    if not isinstance(name, str) or not name:
        raise ConfigError("recipe: is missing; name one of Bridge's recipe functions")
    config = recipe_function(name)()
    utils: Any = importlib.import_module("megatron.bridge.training.utils.omegaconf_utils")
    words = [override(key, value) for key, value in arguments.items() if key not in OWN]
    try:
        return utils.process_config_with_overrides(config, cli_overrides=words or None)
    except Exception as error:
        raise ConfigError(f"Bridge refuses an override of {name}: {' '.join(str(error).split())[:400]}") from error


def recipe_function(name: str) -> Callable[[], Any]:
    """Return a recipe function by its name, or by `module:name`. Benchmark recipes go before library ones of the same name.

    Raises: ConfigError when neither package has it.
    Source: scripts/training/recipe_runner.py:load_recipe.
    """
    module, _, function = name.rpartition(":")
    places = [module] if module else [*_inside(PERF), LIBRARY, *_inside(LIBRARY, below="h100")]
    for place in places:
        try:
            found = getattr(importlib.import_module(place), function, None)
        except ModuleNotFoundError as error:
            if error.name and not place.startswith(error.name):
                raise ConfigError(f"recipe {name}: {place} needs {error.name}, which isn't installed") from None
            continue
        if callable(found):
            return found
    raise ConfigError(f"recipe: {function}: no such function in {LIBRARY} or {PERF}")


def _inside(package: str, *, below: str = "") -> list[str]:
    """Return the families of a package of recipes, or the modules `below` them."""
    try:
        found: Any = importlib.import_module(package)
    except ModuleNotFoundError:
        return []
    names = [m.name for m in pkgutil.iter_modules(found.__path__) if m.ispkg and not m.name.startswith("_") and m.name != "utils"]
    return [f"{package}.{name}{f'.{below}' if below else ''}" for name in names]


def override(name: str, value: Any) -> str:
    """Return one override in Hydra's grammar; a name that the container has not is added where its section allows it."""
    if value is None:
        return f"{name}=null"
    if isinstance(value, bool):
        return f"{name}={'true' if value else 'false'}"
    if isinstance(value, list):
        return f"{name}=[{','.join(override('', item)[1:] for item in value)}]"
    return f"{name}={json.dumps(value, ensure_ascii=False)}"


def step_function(name: str) -> Any:
    """Return the forward step by `module:name`; '' is the one of language models."""
    module, _, function = (name or STEP).partition(":")
    return getattr(importlib.import_module(module), function)


# ---------------------------------------------------------------------------------------------- flat values


def flat(container: Any) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the container's values under dotted names, and its environment defaults apart."""
    tree = container.to_dict()
    tree.pop("_target_", None)
    env = {str(k): str(v) for k, v in (tree.pop("env_vars", None) or {}).items()}
    found: dict[str, Any] = {}
    _spread("", tree, found)
    return {name: value for name, value in sorted(found.items()) if value is not None}, env


def _spread(path: str, value: Any, found: dict[str, Any]) -> None:
    if isinstance(value, Mapping):
        if set(value) == {"_target_", "_call_"}:
            found[path] = str(value["_target_"])
            return
        for key, inner in value.items():
            _spread(f"{path}.{key}" if path else str(key), inner, found)
    elif isinstance(value, list | tuple):
        items = [_scalar(item) for item in value]
        if any(isinstance(item, Mapping | list | tuple) for item in value):
            found[path] = json.dumps(value, sort_keys=True, default=str)
        else:
            found[path] = items[0] if len(items) == 1 else items
    else:
        found[path] = _scalar(value)


def _scalar(value: Any) -> Any:
    """Return a value as data: enums by name, dtypes without `torch.`, functions by their qualified name."""
    if value is None or (isinstance(value, bool | int | str) and type(value).__module__ == "builtins"):
        return value
    if isinstance(value, float):
        return int(value) if value.is_integer() and abs(value) < 2**53 else value
    if hasattr(value, "name") and hasattr(type(value), "__members__"):
        return str(value.name)
    if type(value).__module__ == "torch":
        return str(value).removeprefix("torch.")
    named = value if hasattr(value, "__qualname__") else type(value)
    return f"{named.__module__}.{named.__qualname__}"


def facts(config: Any, world: int) -> dict[str, Any]:
    """Return what follows from a validated container on so many devices.

    Raises: LayoutError with the formula.
    """
    model, train = config.model, config.train
    tp, pp, cp = model.tensor_model_parallel_size, model.pipeline_model_parallel_size, model.context_parallel_size
    ep, etp = model.expert_model_parallel_size or 1, model.expert_tensor_parallel_size or tp
    dp = divide("world size", world, "tp·pp·cp", (tp, pp, cp))
    rows, micro = train.global_batch_size, train.micro_batch_size
    length = getattr(config.dataset, "seq_length", None) or model.seq_length
    scheduler = config.scheduler
    loads = config.checkpoint.load or config.checkpoint.pretrained_checkpoint
    found = {
        "world_size": world,
        "data_parallel_size": dp,
        "expert_data_parallel_size": divide("world size", world, "etp·ep·pp", (etp, ep, pp)),
        "num_microbatches": divide("global_batch_size", rows, "micro_batch_size·dp", (micro, dp)),
        "rows_per_update": rows,
        "global_batch_size": rows,
        "tokens_per_update": rows * length,
        "seq_length": length,
        "seed": config.rng.seed,
        "params_dtype": _scalar(model.params_dtype),
        "train_steps": train.train_iters,
        "loss_masks": _masks(config.dataset),
        "padded_vocab_size": _padded(model, tp),
        "layers_per_stage": _layers(model, pp),
        "initial_weights": "checkpoint" if loads else "random",
        "gradient_accumulation_dtype": "float32" if config.ddp.grad_reduce_in_fp32 else _scalar(model.params_dtype),
        "validator": "bridge",
    }
    for name in ("lr_decay_steps", "lr_warmup_steps", "wd_incr_steps", "wsd_decay_steps"):
        found[name] = getattr(scheduler, name, None)
    return {name: value for name, value in found.items() if value is not None}


def _masks(dataset: Any) -> str:
    """Say whether every row has the same number of loss tokens: even, uneven or unknown."""
    kind = type(dataset).__name__
    if "SFT" in kind or getattr(dataset, "eod_mask_loss", False):
        return "uneven"
    return "even" if kind in ("GPTDatasetConfig", "MockGPTDatasetConfig") else "unknown"


def _padded(model: Any, tp: int) -> Any:
    """Return the rows of the embedding. Source: models/gpt_provider.py (should_pad_vocab), utils/vocab_utils.py."""
    size = getattr(model, "vocab_size", None)
    if not size or not getattr(model, "should_pad_vocab", False):
        return size
    multiple = model.make_vocab_size_divisible_by * tp
    return -(-size // multiple) * multiple


def _layers(model: Any, pp: int) -> Any:
    """Return the layers of every chunk, stage by stage, or in words what they depend on.

    Source: megatron/core/transformer/transformer_block.py:get_num_layers_to_build.
    """
    if getattr(model, "pipeline_model_parallel_layout", None) or getattr(model, "account_for_embedding_in_pipeline_split", False):
        return "the layout's"
    first, last = (getattr(model, f"num_layers_in_{end}_pipeline_stage", None) or 0 for end in ("first", "last"))
    chunks, between = model.virtual_pipeline_model_parallel_size or 1, pp - bool(first) - bool(last)
    middle = (model.num_layers - first - last) // between if between > 0 else 0
    stages = [*([first] if first else []), *[middle] * between, *([last] if last else [])]
    return [stage // chunks for stage in stages for _ in range(chunks)]


def resolve(request: Mapping[str, Any]) -> dict[str, Any]:
    """Return {"arguments", "env", "facts"} of one recipe, by Bridge's own validation. Changes this process for good.

    Raises: ConfigError with what Bridge would refuse; LayoutError with the formula.
    """
    world = int(request["world_size"])
    wanted = {str(k): str(v) for k, v in (request.get("env") or {}).items()}
    os.environ.update({**wanted, "WORLD_SIZE": str(world), "RANK": "0", "LOCAL_RANK": "0"})
    config = build(request["arguments"])
    training: Any = importlib.import_module("megatron.bridge.training.config")
    try:
        training.runtime_config_update(config)
    except (AssertionError, ValueError, TypeError, ImportError) as error:
        raise ConfigError(f"Bridge refuses: {' '.join(str(error).split())[:400]}") from error
    arguments, env = flat(config)
    own = {name: request["arguments"][name] for name in OWN if request["arguments"].get(name)}
    return {"arguments": {**arguments, **own}, "env": {**env, **wanted}, "facts": facts(config, world)}
