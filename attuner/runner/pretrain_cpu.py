"""Lets Megatron-LM's own training scripts (pretrain_gpt.py and its like), unedited, run on CPU with gloo: `cpu_shim` for
megatron-core, and here what the training loop around it needs beyond that. `install()` is called before the script runs, with
the Megatron-LM checkout first on the path. Run on tag core_v0.16.1; for checks of a recipe, not for its speed."""

import copy
import importlib
import importlib.metadata
import importlib.util
import multiprocessing.spawn
import sys
import types
import typing
from collections.abc import Callable
from typing import Any

GIB = 1 << 30


def install() -> None:
    """Redirect CUDA calls, stand in for triton and for compiled helpers, and import megatron.training once.

    Raises: ImportError when no Megatron-LM checkout is on the path.
    """
    from . import cpu_shim

    cpu_shim.install()
    if not hasattr(typing, "override"):  # Megatron-LM after 0.16 is written for Python 3.12
        typing.override = lambda function: function  # type: ignore[attr-defined]
    _complete_cuda()
    _without_compilers()
    _import_training()
    _mark_norms()
    _spawn_without_script()


def _complete_cuda() -> None:
    """Stand in for the device queries that only the training loop makes."""
    import torch

    properties = types.SimpleNamespace(name="cpu", major=0, minor=0, total_memory=16 * GIB, multi_processor_count=1)
    torch.cuda.is_available = lambda: True
    torch.cuda.get_device_properties = lambda *args: properties  # type: ignore[assignment]
    for name in ("max_memory_reserved", "reset_peak_memory_stats", "mem_get_info"):
        setattr(torch.cuda, name, lambda *args, **kwargs: 0)


class _Anything(types.ModuleType):
    """A module in which every public name is the same stand-in."""

    stand_in: Any = None

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self.stand_in


def _decorator(function: Any = None, *args: Any, **kwargs: Any) -> Any:
    """Stand in for triton.jit, autotune and heuristics: kernels are defined, never run."""
    return function if callable(function) else _decorator


def _import_training() -> None:
    """Import megatron.training with a stand-in for triton, which it imports unconditionally for kernels that need a GPU.

    The stand-in goes away afterwards: torch looks triton up by itself, and must find none.
    """
    present = importlib.util.find_spec("triton") is not None
    if not present:
        triton, language = _Anything("triton"), _Anything("triton.language")
        triton.stand_in, language.stand_in = _decorator, int
        triton.language, triton.__path__, triton.__version__ = language, [], "0"  # type: ignore[attr-defined]
        sys.modules.update({"triton": triton, "triton.language": language})
    importlib.import_module("megatron.training.training")
    if not present:
        del sys.modules["triton"], sys.modules["triton.language"]
    moe_utils: Any = importlib.import_module("megatron.core.transformer.moe.moe_utils")
    if not hasattr(moe_utils, "te_general_gemm"):
        moe_utils.te_general_gemm = None  # a name that 0.16.1 never binds without Transformer Engine
    module: Any = importlib.import_module("megatron.core.transformer.module")
    import torch

    # isinstance() is asked of these, and the shim's tensor constructors are functions
    module._FLOAT_TYPES, module._HALF_TYPES = (torch.FloatTensor,), (torch.HalfTensor,)
    module._BF16_TYPES = (torch.BFloat16Tensor,)


def _without_compilers() -> None:
    """Take the dataset's index helpers from the installed wheel, and skip the fused kernels that nvcc would build."""
    name = "megatron.core.datasets.helpers_cpp"
    found = [f for f in importlib.metadata.files("megatron-core") or [] if f.name.startswith("helpers_cpp")]
    if found:
        spec = importlib.util.spec_from_file_location(name, str(found[0].locate()))
        if spec is not None and spec.loader is not None:
            sys.modules[name] = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(sys.modules[name])
            utils: Any = importlib.import_module("megatron.core.datasets.utils")
            utils.compile_helpers = lambda: None
    fused: Any = types.ModuleType("megatron.legacy.fused_kernels")
    fused.load = lambda args: None
    sys.modules[fused.__name__] = fused


def _mark_norms() -> None:
    """Let torch's norms work under sequence parallelism: mark their weights, so that megatron sums their gradients.

    megatron's wrapper refuses the combination because torch's norms carry no such mark.
    """
    from megatron.core.transformer.torch_norm import WrappedTorchNorm

    build: Callable[..., Any] = WrappedTorchNorm.__new__

    def marked(cls: Any, config: Any, *args: Any, **kwargs: Any) -> Any:
        plain = copy.copy(config)
        plain.sequence_parallel = False
        norm = build(cls, plain, *args, **kwargs)
        for parameter in norm.parameters():
            parameter.sequence_parallel = config.sequence_parallel
        return norm

    WrappedTorchNorm.__new__ = marked


def _spawn_without_script() -> None:
    """Keep helper processes (the checkpoint writer's manager) from running the script again, without the shim."""
    prepare = multiprocessing.spawn.get_preparation_data

    def prepared(name: str) -> dict[str, Any]:
        return {key: value for key, value in prepare(name).items() if not key.startswith("init_main")}

    multiprocessing.spawn.get_preparation_data = prepared
