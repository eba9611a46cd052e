"""Faults between gradient and update: reduction, clipping, accumulation, and what the optimizer makes of a gradient.
Conventions as in `plants_batch`."""

import sys
from collections.abc import Callable
from typing import Any

import megatron.core.distributed.finalize_model_grads
import torch
from megatron.core import parallel_state
from megatron.core.distributed.param_and_grad_buffer import _ParamAndGradBucketGroup
from megatron.core.optimizer import optimizer as optimizers
from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler
from megatron.core.pipeline_parallel.p2p_communication import P2PCommunicator

from attuner.runner import mcore_model

from .plants_batch import wrap

# megatron's package gives the function's name to the module too
_finalize = sys.modules[megatron.core.distributed.finalize_model_grads.__module__]


def _after_build(change: Callable[[Any, Any], None]) -> None:
    """Call change(configs, built) once model and optimizer stand."""

    def around(real: Any, configs: Any, chunks: list[Any], steps: int) -> Any:
        built = real(configs, chunks, steps)
        change(configs, built)
        return built

    wrap(mcore_model, "prepare", around)


def _named(chunks: list[Any]) -> Any:
    for chunk in chunks:
        yield from chunk.named_parameters()


# ------------------------------------------------------------------------------------------------ reduction


class _Done:
    def wait(self) -> None:
        """Nothing was started."""


def _never_reduced(group: Any) -> None:
    def scale_only(force_all_reduce: bool = False) -> None:
        for bucket in group.buckets:
            if bucket.gradient_scaling_factor != 1.0:
                bucket.grad_data *= bucket.gradient_scaling_factor
        if group.ddp_config.overlap_grad_reduce:
            group.grad_reduce_handle = _Done()

    group.start_grad_sync = scale_only


def bucket_skipped(job: dict[str, Any]) -> None:
    _after_build(lambda configs, built: _never_reduced(built.model[0].bucket_groups[1]))


def expert_bucket_skipped(job: dict[str, Any]) -> None:
    _after_build(lambda configs, built: _never_reduced(built.model[0].expert_parallel_bucket_groups[0]))


def reduction_rounded(job: dict[str, Any]) -> None:
    """Gradients travel in bf16; the buffers stay fp32."""

    def around(real: Any, self: Any, *args: Any, **keys: Any) -> Any:
        for bucket in self.buckets:
            bucket.grad_data.copy_(bucket.grad_data.bfloat16().float())
        return real(self, *args, **keys)

    wrap(_ParamAndGradBucketGroup, "start_grad_sync", around)


def accumulation_bf16(job: dict[str, Any]) -> None:
    def around(real: Any, configs: Any, chunks: list[Any], steps: int) -> Any:
        configs.ddp.grad_reduce_in_fp32 = False
        return real(configs, chunks, steps)

    wrap(mcore_model, "prepare", around)


def _qk_reduction(change: Callable[[Any, Any], Any]) -> None:
    """Set each QK norm's gradient to change(before the sum over tensor ranks, after it)."""

    def around(real: Any, model: list[Any], *args: Any, **keys: Any) -> None:
        mine = {n: p for n, p in _named(model) if "q_layernorm" in n or "k_layernorm" in n}
        before = {name: parameter.main_grad.clone() for name, parameter in mine.items()}
        real(model, *args, **keys)
        for name, parameter in mine.items():
            parameter.main_grad.copy_(change(before[name], parameter.main_grad))

    wrap(_finalize, "_allreduce_non_tensor_model_parallel_grads", around)


def qk_norm_averaged(job: dict[str, Any]) -> None:
    _qk_reduction(lambda before, after: after / parallel_state.get_tensor_model_parallel_world_size())


def qk_norm_summed_again(job: dict[str, Any]) -> None:
    _qk_reduction(lambda before, after: after * parallel_state.get_tensor_model_parallel_world_size())


def qk_norm_not_reduced(job: dict[str, Any]) -> None:
    _qk_reduction(lambda before, after: before)


def norms_not_reduced(job: dict[str, Any]) -> None:
    """Layer norms lack the mark by which sequence parallelism sums their gradients."""
    wrap(mcore_model, "_mark", lambda real, parameter, config: setattr(parameter, "sequence_parallel", False))


def router_not_reduced(job: dict[str, Any]) -> None:
    def unmark(configs: Any, built: Any) -> None:
        for name, parameter in _named(built.chunks):
            if name.endswith("router.weight"):
                parameter.sequence_parallel = False

    _after_build(unmark)


def tied_not_reduced(job: dict[str, Any]) -> None:
    wrap(_finalize, "_allreduce_word_embedding_grads", lambda real, *args, **keys: None)


def _after_finalize(change: Callable[[Any], None]) -> None:
    def install(configs: Any, built: Any) -> None:
        real = configs.transformer.finalize_model_grads_func

        def finalize(model: list[Any], *args: Any, **keys: Any) -> None:
            real(model, *args, **keys)
            for part in model:
                change(part)

        configs.transformer.finalize_model_grads_func = finalize

    _after_build(install)


def divided_by_dp_twice(job: dict[str, Any]) -> None:
    _after_finalize(lambda part: part.scale_gradients(1.0 / parallel_state.get_data_parallel_world_size()))


def experts_scaled_by_ep(job: dict[str, Any]) -> None:
    """Expert gradients are averaged over the ranks that hold an expert, not over all that sent it tokens."""

    def scale(part: Any) -> None:
        for buffer in part.expert_parallel_buffers:
            buffer.scale_gradients(float(parallel_state.get_expert_model_parallel_world_size()))

    _after_finalize(scale)


def not_zeroed(job: dict[str, Any]) -> None:
    """The second update adds to the first one's gradient."""

    def keep(configs: Any, built: Any) -> None:
        for part in built.model:
            buffers, real = part.buffers + part.expert_parallel_buffers, part.zero_grad_buffer

            def zero(buffers: Any = buffers, real: Any = real) -> None:
                old = [buffer.grad_data.clone() for buffer in buffers]
                real()
                for buffer, values in zip(buffers, old, strict=True):
                    buffer.grad_data.copy_(values)

            part.zero_grad_buffer = zero

    _after_build(keep)


def stage_gradient_halved(job: dict[str, Any]) -> None:
    """The gradient that a stage gets from the next one is half of it."""

    def halve(gradient: Any) -> Any:
        if isinstance(gradient, list):
            return [halve(one) for one in gradient]
        return None if gradient is None else gradient * 0.5

    for name in ("recv_backward", "send_forward_recv_backward"):
        wrap(P2PCommunicator, name, lambda real, *args, **keys: halve(real(*args, **keys)))


# ------------------------------------------------------------------------------------------------ clipping


def clip_off(job: dict[str, Any]) -> None:
    wrap(optimizers, "clip_grad_by_total_norm_fp32", lambda real, *args, **keys: None)


def clip_by_local_norm(job: dict[str, Any]) -> None:
    """Each rank clips by the norm of its own part of the model."""

    def around(real: Any, grads: Any, *args: Any, **keys: Any) -> float:
        real(grads, *args, **keys)  # the others wait for this collective
        return float(torch.stack([g.float().norm() for g in grads]).norm())

    wrap(optimizers, "get_grad_norm_fp32", around)


def clip_without_experts(job: dict[str, Any]) -> None:
    """The norm leaves the experts out, as megatron-core does for some of them when EP and TP are above 1."""
    experts: set[int] = set()

    def find(configs: Any, built: Any) -> None:
        for name, parameter in _named(built.chunks):
            if ".experts." in name:
                experts.update({id(parameter), id(getattr(parameter, "main_param", parameter))})

    def around(real: Any, self: Any) -> list[Any]:
        kept = [p.grad.data_ptr() for p in self.get_parameters() if id(p) not in experts and p.grad is not None]
        return [grad for grad in real(self) if grad.data_ptr() in kept]

    _after_build(find)
    wrap(optimizers.MegatronOptimizer, "get_main_grads_for_grad_norm", around)


# ------------------------------------------------------------------------------------------------ optimizer


def _in_adam(change: Callable[[dict[str, Any]], None]) -> None:
    """Change Adam's groups for the moment of the step; whoever looks before or after sees the right values."""

    def around(real: Any, self: Any, *args: Any, **keys: Any) -> Any:
        saved = [{k: v for k, v in group.items() if k != "params"} for group in self.param_groups]
        for group in self.param_groups:
            change(group)
        result = real(self, *args, **keys)
        for group, values in zip(self.param_groups, saved, strict=True):
            group.update(values)
        return result

    wrap(torch.optim.AdamW, "step", around)


def lr_times_10(job: dict[str, Any]) -> None:
    wrap(OptimizerParamScheduler, "get_lr", lambda real, *args: 10.0 * real(*args))


def lr_times_10_unseen(job: dict[str, Any]) -> None:
    _in_adam(lambda group: group.update(lr=group["lr"] * 10.0))


def decay_on_norms(job: dict[str, Any]) -> None:
    """What a trainer gets that builds megatron's optimizer without its schedule."""

    def around(real: Any, self: Any, increment: int) -> None:
        real(self, increment)
        for group in self.optimizer.param_groups:
            group["weight_decay"] = self.get_wd(group)

    wrap(OptimizerParamScheduler, "step", around)


def decay_on_norms_unseen(job: dict[str, Any]) -> None:
    _in_adam(lambda group: group.update(weight_decay=0.1))


def decay_off(job: dict[str, Any]) -> None:
    _in_adam(lambda group: group.update(weight_decay=0.0))


def decay_in_gradient(job: dict[str, Any]) -> None:
    """L2 regularisation instead of decoupled decay."""

    def couple(group: dict[str, Any]) -> None:
        for parameter in group["params"]:
            if parameter.grad is not None:
                parameter.grad.add_(parameter.detach(), alpha=group["weight_decay"])
        group["weight_decay"] = 0.0

    _in_adam(couple)


def epsilon(job: dict[str, Any]) -> None:
    _in_adam(lambda group: group.update(eps=1e-5))


def beta2(job: dict[str, Any]) -> None:
    _in_adam(lambda group: group.update(betas=(group["betas"][0], 0.999)))


def beta1(job: dict[str, Any]) -> None:
    _in_adam(lambda group: group.update(betas=(0.5, group["betas"][1])))


def bias_correction_off(job: dict[str, Any]) -> None:
    def around(real: Any, self: Any, *args: Any, **keys: Any) -> Any:
        for state in self.state.values():
            state["step"] += 10_000
        result = real(self, *args, **keys)
        for state in self.state.values():
            state["step"] -= 10_000 * (state["step"] > 9_999)
        return result

    def start(configs: Any, built: Any) -> None:
        """Make Adam's state before its first step, which would else make it at step 0."""
        for inner in _adams(built.optimizer):
            for group in inner.param_groups:
                for parameter in group["params"]:
                    zeros = torch.zeros_like(parameter)
                    inner.state[parameter] |= {"step": torch.tensor(0.0), "exp_avg": zeros, "exp_avg_sq": zeros.clone()}

    _after_build(start)
    wrap(torch.optim.AdamW, "step", around)


def moments_forgotten(job: dict[str, Any]) -> None:
    """Adam starts afresh with every update."""

    def around(real: Any, self: Any, *args: Any, **keys: Any) -> Any:
        self.state.clear()
        return real(self, *args, **keys)

    wrap(torch.optim.AdamW, "step", around)


def _adams(optimizer: Any) -> list[Any]:
    return [part.optimizer for part in getattr(optimizer, "chained_optimizers", [optimizer]) if part.optimizer is not None]


def rank_not_updated(job: dict[str, Any]) -> None:
    """One data-parallel rank misses the update of the first half of its parameters."""

    def around(real: Any, self: Any, *args: Any, **keys: Any) -> Any:
        params = [p for group in self.param_groups for p in group["params"]]
        lagging = params[: len(params) // 2] if parallel_state.get_data_parallel_rank() == 1 else []
        old = [p.detach().clone() for p in lagging]
        result = real(self, *args, **keys)
        with torch.no_grad():
            for parameter, values in zip(lagging, old, strict=True):
                parameter.copy_(values)
        return result

    wrap(torch.optim.AdamW, "step", around)


def embedding_not_updated(job: dict[str, Any]) -> None:
    def around(real: Any, self: Any, *args: Any, **keys: Any) -> Any:
        # the word embedding is the only matrix of this many rows and this width, sharded or not it comes first
        params = [p for group in self.param_groups for p in group["params"] if tuple(p.shape) == (256, 128)][:1]
        old = [p.detach().clone() for p in params]
        result = real(self, *args, **keys)
        with torch.no_grad():
            for parameter, values in zip(params, old, strict=True):
                parameter.copy_(values)
        return result

    wrap(torch.optim.AdamW, "step", around)


def masters_rounded(job: dict[str, Any]) -> None:
    """The optimizer's fp32 weights hold no more than bf16 can."""

    def around(real: Any, self: Any, *args: Any, **keys: Any) -> Any:
        result = real(self, *args, **keys)
        with torch.no_grad():
            for group in self.param_groups:
                for parameter in group["params"]:
                    parameter.copy_(parameter.bfloat16().float())
        return result

    wrap(torch.optim.AdamW, "step", around)


def gather_skipped(job: dict[str, Any]) -> None:
    """One bucket's updated weights are never gathered: the forward goes on with half-old ones."""

    def install(configs: Any, built: Any) -> None:
        group = built.model[0].bucket_groups[1]

        def pretend(force_sync: bool = False) -> None:
            group.param_gather_dispatched = True

        group.start_param_sync = pretend

    _after_build(install)


def late_lr(job: dict[str, Any]) -> None:
    """From the fourth update on the learning rate is three times what the schedule says."""
    wrap(OptimizerParamScheduler, "get_lr", lambda real, self, group: real(self, group) * (3.0 if self.num_steps >= 3 else 1.0))
