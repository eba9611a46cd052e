"""Lets megatron-core, which assumes CUDA and NCCL, run on CPU with gloo. `install()` is called once, before megatron
is imported: torch's factory functions read a cuda device as the CPU, torch.cuda's streams, events, generators and
statistics become harmless stand-ins, the collectives that gloo lacks are composed from ones it has, and torch.compile
returns its function unchanged. Nothing here touches numerics. Needed as of megatron-core 0.16.1; it may go when
megatron takes its device from the configuration."""

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.cuda.random
import torch.distributed as dist
from torch.utils._device import _device_constructors

_CPU = torch.device("cpu")
_installed = False


def install() -> None:
    """Redirect this process's CUDA calls to the CPU. Idempotent; must precede the first import of megatron."""
    global _installed
    if _installed:
        return
    _installed = True
    skip_compilation()
    _replace_cuda_namespace()
    _redirect_factories()
    _redirect_tensor_methods()
    _complete_gloo()


def skip_compilation() -> None:
    """Make torch.compile return its function unchanged.

    megatron compiles small fused functions at import: on a CPU that would cost a C++ compiler and 1.4 s of imports.
    """

    def compile_nothing(model: Any = None, **options: Any) -> Any:
        return model if model is not None else lambda function: function

    torch.compile = compile_nothing


# ---------------------------------------------------------------------------------------------- devices


def _host(device: Any) -> Any:
    """Read a cuda device, in any of torch's spellings, as the CPU; leave everything else."""
    if isinstance(device, int) and not isinstance(device, bool):
        return _CPU
    if isinstance(device, str | torch.device) and str(device).startswith("cuda"):
        return _CPU
    return device


def _on_host(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a factory so that its `device` is the CPU and nothing is pinned.

    Functions are wrapped in place since a TorchFunctionMode is off inside Tensor.backward, where megatron allocates
    its communication buffers.
    """

    @functools.wraps(function)
    def on_host(*args: Any, **kwargs: Any) -> Any:
        if "device" in kwargs:
            kwargs["device"] = _host(kwargs["device"])
        if kwargs.get("pin_memory"):
            kwargs["pin_memory"] = False
        return function(*args, **kwargs)

    return on_host


def _redirect_factories() -> None:
    for function in _device_constructors():
        name = function.__name__
        if hasattr(torch, name) and getattr(torch, name) is function:
            setattr(torch, name, _on_host(function))
    for name in ("new_empty", "new_zeros", "new_ones", "new_full", "new_tensor"):
        setattr(torch.Tensor, name, _on_host(getattr(torch.Tensor, name)))


def _redirect_tensor_methods() -> None:
    tensor: Any = torch.Tensor
    move, kind = tensor.to, tensor.type

    def to(self: Any, *args: Any, **kwargs: Any) -> Any:
        if "device" in kwargs:
            kwargs["device"] = _host(kwargs["device"])
        return move(self, *(_host(a) if i == 0 else a for i, a in enumerate(args)), **kwargs)

    def type_(self: Any, *args: Any, **kwargs: Any) -> Any:
        # megatron sorts parameters by type names such as 'torch.cuda.FloatTensor'.
        result = kind(self, *args, **kwargs)
        return result.replace("torch.", "torch.cuda.") if isinstance(result, str) else result

    def cpu(self: Any, *args: Any, **kwargs: Any) -> Any:
        # The optimizer offload tells its two copies apart by is_cuda, and needs a copy of its own.
        copy = self.clone()
        copy._attuner_host = True
        return copy

    def itself(self: Any, *args: Any, **kwargs: Any) -> Any:
        return self

    tensor.to, tensor.type, tensor.cpu = to, type_, cpu
    tensor.cuda = tensor.pin_memory = itself
    tensor.record_stream = lambda self, stream: None
    tensor.is_cuda = property(lambda self: not getattr(self, "_attuner_host", False))
    torch.nn.Module.cuda = itself  # type: ignore[method-assign]


# ---------------------------------------------------------------------------------------------- torch.cuda


class _Event:
    """An event of a device which has always finished."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def record(self, *args: Any) -> None:
        """Do nothing: work is done when it is issued."""

    wait = synchronize = record

    def query(self) -> bool:
        """Say that the event has happened."""
        return True

    def elapsed_time(self, other: Any) -> float:
        """Return no time, in milliseconds."""
        return 0.0


class _Stream(contextlib.AbstractContextManager[Any]):
    """A stream on which work is done when it is issued."""

    cuda_stream = 0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def __exit__(self, *exception: Any) -> None:
        pass

    def record_event(self, event: Any = None) -> Any:
        """Return an event that has happened."""
        return event or _Event()

    def wait_stream(self, *args: Any) -> None:
        """Do nothing: no work is ever pending."""

    wait_event = synchronize = wait_stream


def _legacy_tensor(dtype: torch.dtype) -> Callable[..., torch.Tensor]:
    """Stand in for torch.cuda.FloatTensor and its like: from a list of values, or of a shape."""

    def make(*args: Any) -> torch.Tensor:
        if args and isinstance(args[0], list | tuple):
            return torch.tensor(args[0], dtype=dtype)
        return torch.empty(*args, dtype=dtype)

    return make


def _replace_cuda_namespace() -> None:
    stream = _Stream()
    generator = torch.default_generator
    seed = generator.manual_seed
    stand_ins: dict[str, Any] = {
        "current_device": lambda: 0,
        "device_count": lambda: 1,
        "is_current_stream_capturing": lambda: False,
        "get_device_capability": lambda *args: (0, 0),
        "memory_stats": lambda *args: {},
        "Stream": _Stream,
        "Event": _Event,
        "stream": lambda stream: contextlib.nullcontext(),
        "current_stream": lambda *args: stream,
        "default_stream": lambda *args: stream,
        "default_generators": [generator],
        "get_rng_state": lambda *args, **kwargs: torch.get_rng_state(),
        "set_rng_state": lambda state, *args, **kwargs: torch.set_rng_state(state),
        "manual_seed": seed,
        "manual_seed_all": seed,
        "_lazy_call": lambda call, **kwargs: call(),
    }
    stand_ins.update(
        {
            n: lambda *args, **kwargs: None
            for n in ("set_device", "synchronize", "set_stream", "init", "_lazy_init", "empty_cache")
        }
    )
    stand_ins.update({n: lambda *args, **kwargs: 0 for n in ("memory_allocated", "max_memory_allocated", "memory_reserved")})
    for name, dtype in (
        ("Float", torch.float32),
        ("Double", torch.float64),
        ("Half", torch.float16),
        ("BFloat16", torch.bfloat16),
        ("Long", torch.int64),
        ("Int", torch.int32),
        ("Byte", torch.uint8),
    ):
        stand_ins[f"{name}Tensor"] = _legacy_tensor(dtype)
    for name, value in stand_ins.items():
        setattr(torch.cuda, name, value)
    torch.cuda.random.get_rng_state = stand_ins["get_rng_state"]
    torch.cuda.random.set_rng_state = stand_ins["set_rng_state"]


# ---------------------------------------------------------------------------------------------- gloo


def _complete_gloo() -> None:
    module: Any = dist
    module.all_reduce = _all_reduce_with_mean(module.all_reduce)
    module.all_gather = _all_gather_uneven(module.all_gather)
    module.reduce_scatter = _reduce_scatter_uneven(module.reduce_scatter)
    module.isend = _isend_copy(module.isend)
    module.distributed_c10d.isend = module.isend  # P2POp compares functions by identity


def _all_reduce_with_mean(real: Callable[..., Any]) -> Callable[..., Any]:
    """Add ReduceOp.AVG, which gloo refuses."""

    def all_reduce(tensor: Any, op: Any = dist.ReduceOp.SUM, group: Any = None, async_op: bool = False) -> Any:
        if op == dist.ReduceOp.AVG:
            tensor.div_(dist.get_world_size(group))
            op = dist.ReduceOp.SUM
        return real(tensor, op=op, group=group, async_op=async_op)

    return all_reduce


def _uneven(tensors: list[Any]) -> bool:
    return any(tensor.shape != tensors[0].shape for tensor in tensors)


def _all_gather_uneven(real: Callable[..., Any]) -> Callable[..., Any]:
    """Gather tensors of unequal lengths (experts split over tensor ranks), which gloo refuses, by an all-to-all."""

    def all_gather(outputs: list[Any], tensor: Any, group: Any = None, async_op: bool = False) -> Any:
        if not _uneven(outputs):
            return real(outputs, tensor, group=group, async_op=async_op)
        lengths = [len(output) for output in outputs]
        flat = tensor.new_empty((sum(lengths), *tensor.shape[1:]))
        copies = tensor.repeat(len(outputs), *[1] * (tensor.dim() - 1))
        dist.all_to_all_single(flat, copies, lengths, [len(tensor)] * len(outputs), group=group)
        for output, part in zip(outputs, flat.split(lengths), strict=True):
            output.copy_(part)
        return None

    return all_gather


def _reduce_scatter_uneven(real: Callable[..., Any]) -> Callable[..., Any]:
    """Reduce and scatter tensors of unequal lengths, which gloo refuses, by an all-to-all and a sum."""

    def reduce_scatter(
        output: Any, inputs: list[Any], op: Any = dist.ReduceOp.SUM, group: Any = None, async_op: bool = False
    ) -> Any:
        if not _uneven(inputs):
            return real(output, inputs, op=op, group=group, async_op=async_op)
        lengths = [len(part) for part in inputs]
        parts = output.new_empty((len(inputs) * len(output), *output.shape[1:]))
        dist.all_to_all_single(parts, torch.cat(inputs), [len(output)] * len(inputs), lengths, group=group)
        output.copy_(parts.view(len(inputs), *output.shape).sum(0))
        return None

    return reduce_scatter


def _isend_copy(real: Callable[..., Any]) -> Callable[..., Any]:
    """Send a copy.

    megatron frees a pipeline output right after its isend and relies on CUDA's stream order; gloo would go on reading
    the freed memory, which silently corrupts interleaved pipelines (seen with overlap_p2p_comm and
    deallocate_pipeline_outputs, megatron-core 0.16.1 and torch 2.13).
    """

    @functools.wraps(real)
    def isend(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        return real(tensor.detach().clone(), *args, **kwargs)

    return isend
