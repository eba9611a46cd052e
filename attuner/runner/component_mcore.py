"""Compares two implementations of one component side by side, on the same inputs and weights, with megatron-core's own
modules at the recipe's shapes, forward and backward, each against a float64 reference. Reads RUN_DIR/job.json, leaves
RUN_DIR/component.json. Run it as `python -m torch.distributed.run --nproc-per-node N -m
attuner_runner.component_mcore RUN_DIR`; attention also runs as a single process."""

import dataclasses
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from . import files
from .errors import ConfigError
from .rank import Rank, leave

_ULPS = 2
"""How many units in the last place an error may have whatever the old implementation's error is."""


def main(run_dir: str) -> None:
    """Compare what the job of a run directory names; ends the process with status 1 when that fails."""
    from .train_mcore import import_megatron

    with Rank(run_dir) as rank:
        job = files.read_json(rank.run_dir / files.JOB)
        with rank.timed("imports"):
            import_megatron(job["device"])
        known = {"attention": _attention, "dispatcher": _dispatcher, "cross_entropy": _cross_entropy}
        compare = known.get(job["component"])
        if compare is None:
            raise ConfigError(f"component must be one of {', '.join(known)}, not {job['component']}")
        with rank.timed("init"):
            base = _start(rank, job)
        with rank.timed(job["component"]):
            result = compare(job, base)
        if rank.index == 0:
            files.write_json(rank.run_dir / files.COMPONENT, result)
        leave(0)


def _start(rank: Rank, job: dict[str, Any]) -> Any:
    """Bring up process groups for the recipe and return its configs."""
    import torch
    import torch.distributed as dist

    from . import mcore_config, mcore_layout, mcore_model

    configs = mcore_config.build_configs(job["arguments"], job["device"]["kind"])
    mcore_layout.derive(configs, rank.world_size)
    cuda = job["device"]["kind"] == "cuda"
    if cuda:
        torch.cuda.set_device(rank.local)
    backend = "nccl" if cuda else "gloo"
    if rank.world_size == 1:
        dist.init_process_group(backend, store=torch._C._distributed_c10d.HashStore(), rank=0, world_size=1)
    else:
        dist.init_process_group(backend)
    mcore_model.start_parallel(configs)
    return configs


@dataclasses.dataclass
class _Result:
    """Outputs and gradients of one run, by name, in float64 on the CPU."""

    output: Any
    gradients: dict[str, Any]


def _errors(result: _Result, reference: _Result) -> tuple[float, float]:
    """Return forward and backward errors relative to the reference's norms; backward is the worst gradient's."""

    def relative(value: Any, wanted: Any) -> float:
        norm = float(wanted.norm())
        return float((value - wanted).norm()) / (norm or 1.0)

    backward = max(relative(result.gradients[name], wanted) for name, wanted in reference.gradients.items())
    return relative(result.output, reference.output), backward


def _report(job: dict[str, Any], dtype: Any, old: tuple[float, float], new: tuple[float, float]) -> dict[str, Any]:
    """Judge: new must err at most twice as much as old, or by a few units in the last place."""
    import torch

    from .mcore_config import plain
    from .rank import finite

    floor = _ULPS * float(torch.finfo(dtype).eps)
    tolerances = [max(2 * error, floor) for error in old]
    within = [error <= limit for error, limit in zip(new, tolerances, strict=True)]
    why = "; ".join(
        f"{name} error {error:.3g} is {'within' if good else 'above'} {limit:.3g} (old: {reference:.3g})"
        for name, error, good, limit, reference in zip(("forward", "backward"), new, within, tolerances, old, strict=True)
    )
    return {
        "component": job["component"],
        "old": job["old"],
        "new": job["new"],
        "dtype": plain(dtype),
        "forward_error_old": finite(old[0]),
        "forward_error_new": finite(new[0]),
        "backward_error_old": finite(old[1]),
        "backward_error_new": finite(new[1]),
        "tolerance": {"forward": finite(tolerances[0]), "backward": finite(tolerances[1])},
        "passed": all(within),
        "why": why,
    }


def _run(function: Callable[..., Any], inputs: dict[str, Any], weights: dict[str, Any], probe: Any) -> _Result:
    """Run forward, then backward from the gradient `probe`, and collect all gradients."""
    leaves = {name: value.detach().clone().requires_grad_() for name, value in inputs.items()}
    for weight in weights.values():
        weight.grad = None
    output = function(**leaves)
    output.backward(probe.to(output.dtype))
    gradients = {name: leaf.grad for name, leaf in leaves.items()} | {n: w.grad for n, w in weights.items()}
    return _Result(output.detach().double(), {n: g.detach().double() for n, g in gradients.items() if g is not None})


# ---------------------------------------------------------------------------------------------- attention


def _attention(job: dict[str, Any], configs: Any) -> dict[str, Any]:
    """Compare core attentions on random queries, keys and values of the recipe's micro-batch."""
    import torch
    from megatron.core.transformer.dot_product_attention import DotProductAttention
    from megatron.core.transformer.enums import AttnMaskType

    from .mcore_model import SdpaAttention

    config, trainer = configs.transformer, configs.trainer
    modules = {"local": DotProductAttention, "sdpa": SdpaAttention}
    for value in (job["old"], job["new"]):
        if value not in modules:
            raise ConfigError(f"attention must be local or sdpa, not {value}")
    device = _device(job)
    tensor_ranks = config.tensor_model_parallel_size
    shape = (trainer.seq_length, trainer.micro_batch_size)
    heads, groups = config.num_attention_heads // tensor_ranks, config.num_query_groups // tensor_ranks
    inputs = {
        name: torch.randn(*shape, width, config.kv_channels, device=device).to(config.params_dtype)
        for name, width in (("query", heads), ("key", groups), ("value", groups))
    }
    probe = torch.randn(*shape, heads * config.kv_channels, device=device)

    def run(value: str) -> _Result:
        module = modules[value](config=config, layer_number=1, attn_mask_type=AttnMaskType.causal, attention_type="self")
        return _run(lambda **qkv: module(attention_mask=None, **qkv), inputs, {}, probe)

    scale = config.softmax_scale if config.softmax_scale is not None else config.kv_channels**-0.5
    exact = {name: value.double() for name, value in inputs.items()}
    reference = _run(lambda **qkv: _exact_attention(scale=scale, **qkv), exact, {}, probe.double())
    old, new = (_errors(run(value), reference) for value in (job["old"], job["new"]))
    return _report(job, config.params_dtype, old, new)


def _exact_attention(query: Any, key: Any, value: Any, scale: float) -> Any:
    """Compute causal attention by its definition. Shapes as in SdpaAttention.forward."""
    import torch

    length, batch, heads, _channels = query.shape
    key, value = (part.repeat_interleave(heads // part.size(2), dim=2) for part in (key, value))
    scores = torch.einsum("sbhc,tbhc->bhst", query, key) * scale
    future = torch.ones(length, length, dtype=torch.bool, device=query.device).triu(1)
    weights = scores.masked_fill(future, float("-inf")).softmax(-1)
    return torch.einsum("bhst,tbhc->sbhc", weights, value).reshape(length, batch, -1)


# ---------------------------------------------------------------------------------------------- cross entropy


def _cross_entropy(job: dict[str, Any], configs: Any) -> dict[str, Any]:
    """Compare megatron's cross entropies on random logits of the recipe's micro-batch, split over tensor ranks."""
    import torch
    from megatron.core import parallel_state
    from megatron.core.fusions.fused_cross_entropy import fused_vocab_parallel_cross_entropy
    from megatron.core.tensor_parallel import vocab_parallel_cross_entropy

    from . import mcore_layout

    config, trainer = configs.transformer, configs.trainer
    for value in (job["old"], job["new"]):
        if value not in ("True", "False"):
            raise ConfigError(f"cross_entropy_loss_fusion must be true or false, not {value}")
    device, group = _device(job), parallel_state.get_tensor_model_parallel_group()
    vocabulary = mcore_layout.derive(configs, torch.distributed.get_world_size())["padded_vocab_size"]
    generator = torch.Generator().manual_seed(trainer.seed)
    shape = (trainer.seq_length, trainer.micro_batch_size)
    whole = torch.randn(*shape, vocabulary, generator=generator).mul_(3).to(device, config.params_dtype)
    target = torch.randint(trainer.vocab_size, shape, generator=generator).to(device)
    probe = torch.rand(shape, generator=generator).to(device)
    width = vocabulary // config.tensor_model_parallel_size
    mine = slice(width * group.rank(), width * (group.rank() + 1))

    def run(fused: bool) -> _Result:
        def loss(logits: Any) -> Any:
            if fused:
                return fused_vocab_parallel_cross_entropy(logits.clone(), target, group)
            return vocab_parallel_cross_entropy(logits.clone(), target)  # both overwrite what they are given

        return _run(loss, {"logits": whole[..., mine].contiguous()}, {}, probe)

    def exact(logits: Any) -> Any:
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), target.flatten(), reduction="none").view(shape)

    reference = _run(exact, {"logits": whole.double()}, {}, probe.double())
    reference.gradients["logits"] = reference.gradients["logits"][..., mine]
    old, new = (_worst(_errors(run(job[side] == "True"), reference), device) for side in ("old", "new"))
    return _report(job, config.params_dtype, old, new)


# ---------------------------------------------------------------------------------------------- dispatcher


def _dispatcher(job: dict[str, Any], configs: Any) -> dict[str, Any]:
    """Compare token dispatchers inside the whole MoE layer, so that tokens really travel between expert ranks."""
    import torch
    import torch.distributed as dist

    from . import mcore_config, mcore_layout, mcore_model

    config, trainer = configs.transformer, configs.trainer
    if not config.num_moe_experts:
        raise ConfigError("dispatcher needs a recipe with num_moe_experts")
    device, dtype = _device(job), config.params_dtype
    split = config.tensor_model_parallel_size if config.sequence_parallel else 1
    mcore_layout.derive(configs, dist.get_world_size())
    # Every rank has tokens of its own, as data-parallel ranks have.
    generator = torch.Generator().manual_seed(trainer.seed + dist.get_rank())
    shape = (trainer.seq_length // split, trainer.micro_batch_size, config.hidden_size)
    hidden = torch.randn(shape, generator=generator).to(device, dtype)
    probe = torch.randn(shape, generator=generator).to(device)

    def layer(value: str, exact: bool) -> Any:
        changes: dict[str, Any] = {"moe_token_dispatcher_type": value}
        if exact:
            changes |= {"params_dtype": "fp64", "pipeline_dtype": "fp64", "bf16": False, "moe_router_dtype": "fp64"}
        varied = mcore_config.build_configs({**job["arguments"], **changes}, job["device"]["kind"])
        return _moe_layer(mcore_model.block_spec(varied, None), varied.transformer, device)

    weights = layer(job["old"], False).to(dtype).state_dict()

    def run(value: str, exact: bool) -> _Result:
        kind = torch.float64 if exact else dtype
        module = layer(value, exact).to(kind)
        module.load_state_dict(weights)
        named = dict(module.named_parameters())
        return _run(lambda hidden: module(hidden)[0], {"hidden": hidden.to(kind)}, named, probe)

    reference = run(job["old"], True)
    old, new = (_worst(_errors(run(value, False), reference), device) for value in (job["old"], job["new"]))
    return _report(job, dtype, old, new)


def _moe_layer(spec: Any, config: Any, device: Any) -> Any:
    """Build the first MoE layer of a block specification, as TransformerLayer would."""
    from megatron.core.process_groups_config import ProcessGroupCollection
    from megatron.core.transformer.moe.moe_layer import MoELayer
    from megatron.core.transformer.spec_utils import build_module

    for layer in spec.layer_specs:
        part = layer.submodules.mlp
        if part.module is MoELayer:
            groups = ProcessGroupCollection.use_mpu_process_groups()
            module = build_module(part, config=config, pg_collection=groups)
            module.set_layer_number(1)
            return module.to(device)
    raise ConfigError("no layer of the first pipeline stage has experts")


def _worst(errors: tuple[float, float], device: Any) -> tuple[float, float]:
    """Return the largest errors over all ranks."""
    import torch
    import torch.distributed as dist

    worst = torch.tensor(errors, dtype=torch.float64, device=device)
    dist.all_reduce(worst, op=dist.ReduceOp.MAX)
    forward, backward = worst.tolist()
    return forward, backward


def _device(job: dict[str, Any]) -> Any:
    import torch

    return torch.device("cuda", torch.cuda.current_device()) if job["device"]["kind"] == "cuda" else torch.device("cpu")


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main(str(Path(sys.argv[1]).resolve()))
