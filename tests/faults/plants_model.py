"""Faults in the function that is computed: configuration that the model has and the record denies, attention, positions,
experts, and weights that are not those of the checkpoint. Conventions as in `plants_batch`."""

import functools
import math
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from megatron.core import dist_checkpointing, parallel_state
from megatron.core.fusions.fused_softmax import FusedScaleMaskSoftmax
from megatron.core.tensor_parallel.cross_entropy import VocabParallelCrossEntropy
from megatron.core.transformer.enums import AttnMaskType
from megatron.core.transformer.moe import router
from megatron.core.transformer.moe.shared_experts import SharedExpertMLP
from megatron.core.transformer.transformer_layer import TransformerLayer

from attuner.runner import mcore_model

from .plants_batch import wrap

_UNCHECKED = {"validate_access_integrity": False}
"""megatron would see that two stages load one layer, and refuse; loaders of other formats don't look."""


def _configured(**fields: Any) -> None:
    """Build the model from other values than those the run has written down."""

    def around(real: Any, configs: Any, *rest: Any) -> Any:
        for name, value in fields.items():
            assert hasattr(configs.transformer, name)
            setattr(configs.transformer, name, value)
        return real(configs, *rest)

    wrap(mcore_model, "build_chunks", around)


def capacity_1(job: dict[str, Any]) -> None:
    _configured(moe_expert_capacity_factor=1.0)


def per_token_off(job: dict[str, Any]) -> None:
    _configured(calculate_per_token_loss=False)


def aux_times_10(job: dict[str, Any]) -> None:
    _configured(moe_aux_loss_coeff=0.1)


def aux_tenth(job: dict[str, Any]) -> None:
    _configured(moe_aux_loss_coeff=0.001)


def topk_1(job: dict[str, Any]) -> None:
    _configured(moe_router_topk=1)


def dropout(job: dict[str, Any]) -> None:
    _configured(hidden_dropout=0.1)


def softmax_scale(job: dict[str, Any]) -> None:
    _configured(softmax_scale=1.2 / math.sqrt(32))


def router_low_precision(job: dict[str, Any]) -> None:
    _configured(moe_router_dtype=None)


def norm_epsilon(job: dict[str, Any]) -> None:
    def around(real: Any, self: Any, config: Any, hidden_size: int, eps: float = 1e-5, **rest: Any) -> None:
        real(self, config, hidden_size, eps=1e-3, **rest)

    wrap(mcore_model.RMSNorm, "__init__", around)


def z_loss(job: dict[str, Any]) -> None:
    """The router's logits are pushed towards zero by a loss that nothing logs."""

    def around(real: Any, self: Any, logits: Any, *rest: Any, **keys: Any) -> Any:
        if self.training and torch.is_grad_enabled():
            penalty = 1e-3 * torch.logsumexp(logits.float(), dim=-1).square().mean()
            logits = router.MoEAuxLossAutoScaler.apply(logits, penalty)
        return real(self, logits, *rest, **keys)

    wrap(router.TopKRouter, "apply_z_loss", around)


# ------------------------------------------------------------------------------------------------ auxiliary loss


def _aux_gradient(factor: float) -> None:
    """Scale the auxiliary loss's gradient and leave its logged value alone."""
    real = router.MoEAuxLossAutoScaler.set_loss_scale
    router.MoEAuxLossAutoScaler.set_loss_scale = staticmethod(lambda scale: real(scale * factor))


def aux_gradient_zero(job: dict[str, Any]) -> None:
    _aux_gradient(0.0)


def aux_gradient_times_10(job: dict[str, Any]) -> None:
    _aux_gradient(10.0)


def aux_zero(job: dict[str, Any]) -> None:
    """The loss itself is zero, in the log too."""
    wrap(router, "switch_load_balancing_loss_func", lambda real, *args, **keys: real(*args, **keys) * 0.0)


def aux_halved_by_pipeline(job: dict[str, Any]) -> None:
    """As the stack defect at PP 32 does it: value and gradient of the balancing loss are half of what they should be."""

    def around(real: Any, *args: Any, **keys: Any) -> Any:
        split = parallel_state.get_pipeline_model_parallel_world_size() > 1
        return real(*args, **keys) * (0.5 if split else 1.0)

    wrap(router, "switch_load_balancing_loss_func", around)


# ------------------------------------------------------------------------------------------------ attention and positions


def sinks_ignored(job: dict[str, Any]) -> None:
    wrap(FusedScaleMaskSoftmax, "forward", lambda real, self, scores, mask, offset=None: real(self, scores, mask, None))


def future_seen(job: dict[str, Any]) -> None:
    def around(real: Any, self: Any, *args: Any, **keys: Any) -> None:
        real(self, *args, **keys)
        self.attn_mask_type = AttnMaskType.padding

    wrap(FusedScaleMaskSoftmax, "__init__", around)


def _model_keys(**changed: Any) -> None:
    wrap(mcore_model, "GPTModel", lambda real, *args, **keys: real(*args, **{**keys, **changed}))


def rope_base(job: dict[str, Any]) -> None:
    _model_keys(rotary_base=500_000)


def rope_interpolated(job: dict[str, Any]) -> None:
    _model_keys(seq_len_interpolation_factor=2.0)


def vocabulary_counted_twice(job: dict[str, Any]) -> None:
    """The softmax over a split vocabulary sums its denominator once too often: the loss is off by log(TP)."""
    real = VocabParallelCrossEntropy.calculate_cross_entropy_loss

    def counted(exp_logits: Any, predicted: Any, total: Any) -> Any:
        return real(exp_logits, predicted, total * parallel_state.get_tensor_model_parallel_world_size())

    VocabParallelCrossEntropy.calculate_cross_entropy_loss = staticmethod(counted)


def logits_rounded(job: dict[str, Any]) -> None:
    """Logits go through bf16 although everything around them is fp32."""

    def around(real: Any, logits: Any) -> Any:
        return real(logits.bfloat16().float())

    real_max = VocabParallelCrossEntropy.calculate_logits_max
    VocabParallelCrossEntropy.calculate_logits_max = staticmethod(lambda logits: around(real_max, logits))


def shared_expert_dropped(job: dict[str, Any]) -> None:
    wrap(SharedExpertMLP, "forward", lambda real, self, hidden: real(self, hidden) * 0.0)


# ------------------------------------------------------------------------------------------------ weights


def _after_load(change: Any) -> None:
    def around(real: Any, chunks: list[Any], path: str) -> None:
        real(chunks, path)
        with torch.no_grad():
            change(chunks)

    wrap(mcore_model, "load_weights", around)


def _next_experts(chunks: list[Any]) -> None:
    """Give this rank the experts of the next expert-parallel rank."""
    group = parallel_state.get_expert_model_parallel_group()
    other = (group.rank() + 1) % group.size()
    for chunk in chunks:
        for name, parameter in chunk.named_parameters():
            if ".experts." in name:
                everyone = [torch.empty_like(parameter.data) for _ in range(group.size())]
                dist.all_gather(everyone, parameter.data.contiguous(), group=group)
                parameter.data.copy_(everyone[other])


def wrong_experts(job: dict[str, Any]) -> None:
    _after_load(_next_experts)


def wrong_experts_beside_masters(job: dict[str, Any]) -> None:
    """The optimizer's copies are right; the weights that the forward uses are another rank's."""

    def around(real: Any, configs: Any, chunks: list[Any], steps: int) -> Any:
        built = real(configs, chunks, steps)
        with torch.no_grad():
            _next_experts(chunks)
        return built

    wrap(mcore_model, "prepare", around)


def wrong_layers(job: dict[str, Any]) -> None:
    """The second stage's layers are each other's."""

    def rotate(chunks: list[Any]) -> None:
        if parallel_state.get_pipeline_model_parallel_rank() != 1:
            return
        layers = list(chunks[0].decoder.layers)
        states = [{key: value.clone() for key, value in x.state_dict().items() if torch.is_tensor(value)} for x in layers]
        for index, layer in enumerate(layers):
            layer.load_state_dict(states[(index + 1) % len(layers)], strict=False)

    _after_load(rotate)


def uneven_split_loads_even(job: dict[str, Any]) -> None:
    """Stages of uneven size load what even stages would hold, so one layer comes twice and another never."""

    def around(real: Any, chunks: list[Any], path: str) -> None:
        moved: list[tuple[TransformerLayer, int]] = []
        even = 4 // parallel_state.get_pipeline_model_parallel_world_size()
        for layer in chunks[0].decoder.layers if parallel_state.get_pipeline_model_parallel_rank() else []:
            moved.append((layer, layer.layer_number))
            layer.layer_number = even + len(moved)
        offset = moved[0][1] - 1 if moved else 0
        block = chunks[0].decoder
        real_dict = block.sharded_state_dict

        def renamed(prefix: str = "", *args: Any, **keys: Any) -> Any:
            # megatron names a module by its layer number less the stage's offset; the number is wrong, the module is not
            wrong = real_dict(prefix, *args, **keys)
            return {_renumber(key, f"{prefix}layers.", offset - even): value for key, value in wrong.items()}

        if moved:
            block.sharded_state_dict = renamed
        with mock.patch.object(dist_checkpointing, "load", functools.partial(dist_checkpointing.load, **_UNCHECKED)):
            real(chunks, path)
        for layer, number in moved:
            layer.layer_number = number

    wrap(mcore_model, "load_weights", around)


def _renumber(key: str, prefix: str, by: int) -> str:
    if not key.startswith(prefix):
        return key
    number, _, rest = key.removeprefix(prefix).partition(".")
    return f"{prefix}{int(number) + by}.{rest}"


def other_checkpoint(job: dict[str, Any]) -> None:
    wrap(mcore_model, "load_weights", lambda real, chunks, path: real(chunks, path.removesuffix("-b") + _other(path)))


def _other(path: str) -> str:
    return "" if path.endswith("-b") else "-b"


def router_not_loaded(job: dict[str, Any]) -> None:
    def renew(chunks: list[Any]) -> None:
        torch.manual_seed(11)
        for chunk in chunks:
            for name, parameter in chunk.named_parameters():
                if name.endswith("router.weight"):
                    parameter.data.normal_(std=0.02)

    _after_load(renew)


def router_frozen(job: dict[str, Any]) -> None:
    def freeze(chunks: list[Any]) -> None:
        for chunk in chunks:
            for name, parameter in chunk.named_parameters():
                if name.endswith("router.weight"):
                    parameter.requires_grad_(False)

    _after_load(freeze)
