"""One update of the model by megatron's own schedule and optimizer, and the statistics of it that every rank agrees on."""

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.pipeline_parallel.schedules import get_forward_backward_func
from megatron.core.transformer.moe.moe_utils import track_moe_metrics

from .mcore_config import Configs
from .mcore_model import Built

_AUX_NAMES = {
    "aux_loss": "load_balancing_loss",
    "seq_aux_loss": "seq_load_balancing_loss",
    "global_aux_loss": "global_load_balancing_loss",
}


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What an update left on this rank: sums over its micro-batches (on last stages only) and the gradients' norm."""

    loss_sum: float
    loss_tokens: float
    grad_norm: float | None
    updated: bool


def update(
    configs: Configs,
    facts: dict[str, Any],
    built: Built,
    batches: Any,
    enter: Callable[[str], None],
    show: Callable[[Any, Any], None] | None = None,
) -> Outcome:
    """Run forward and backward over all micro-batches and one optimizer step.

    batches: what `rows.iterators` returns.
    enter: told the phase: 'forward', 'backward' or 'optimizer'.
    show: is shown each loss mask as the loss takes it, and the chunk that it belongs to.
    """
    for part in built.model:
        part.zero_grad_buffer()
    built.optimizer.zero_grad()

    def loss(mask: Any, part: Any, output: Any) -> tuple[Any, Any, dict[str, Any]]:
        enter("forward")
        if show is not None:
            show(mask, part)
        weights = mask.view(-1).float()
        total = (output.view(-1).float() * weights).sum()
        count = weights.sum().to(torch.int)
        enter("backward")
        return total, count, {"sums": torch.stack([total.detach().double(), count.double()])}

    def forward(iterator: Any, part: Any) -> tuple[Any, Callable[[Any], Any]]:
        enter("forward")
        batch = next(iterator)
        output = part(batch["tokens"], batch["position_ids"], None, labels=batch["labels"])
        enter("backward")
        return output, lambda result: loss(batch["loss_mask"], part, result)

    reports = get_forward_backward_func()(
        forward_step_func=forward,
        data_iterator=batches,
        model=built.model,
        num_microbatches=facts["num_microbatches"],
        seq_length=configs.trainer.seq_length,
        micro_batch_size=configs.trainer.micro_batch_size,
        forward_only=False,
    )
    enter("optimizer")
    updated, grad_norm, _zeros = built.optimizer.step()
    built.scheduler.step(increment=1)
    sums = torch.stack([report["sums"] for report in reports]).sum(0).tolist() if reports else [0.0, 0.0]
    clipped = configs.optimizer.clip_grad > 0  # megatron computes the norm only in order to clip
    return Outcome(sums[0], sums[1], float(grad_norm) if clipped else None, bool(updated))


def gather(
    configs: Configs, facts: dict[str, Any], outcome: Outcome, seconds: float, peak_gib: float | None, device: Any
) -> dict[str, Any]:
    """Return the update's statistics, alike on every rank. A collective over all ranks.

    The loss is the mean over all tokens of the global batch; seconds and memory are the worst rank's.
    """
    mine = torch.zeros(4, dtype=torch.float64, device=device)
    if parallel_state.is_pipeline_last_stage(ignore_virtual=True) and parallel_state.get_tensor_model_parallel_rank() == 0:
        mine[0], mine[1] = outcome.loss_sum, outcome.loss_tokens
    mine[2], mine[3] = seconds, float("nan") if peak_gib is None else peak_gib
    ranks = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(ranks, mine)
    table = [rank.tolist() for rank in ranks]
    tokens = sum(row[1] for row in table)
    return {
        "lm_loss": sum(row[0] for row in table) / tokens,
        "loss_tokens": int(tokens),
        "aux": _auxiliary(configs, facts),
        "grad_norm": outcome.grad_norm,
        "updated": outcome.updated,
        "step_s": max(row[2] for row in table),
        "rank_step_s": [row[2] for row in table],
        "peak_mem_gib": None if peak_gib is None else max(row[3] for row in table),
    }


def _auxiliary(configs: Configs, facts: dict[str, Any]) -> dict[str, float]:
    """Collect the router's losses, averaged over layers and micro-batches; empties megatron's tracker."""
    config = configs.transformer
    if not config.num_moe_experts:
        return {}
    kinds = config.moe_router_load_balancing_type
    names = [_AUX_NAMES[kind] for kind in (kinds if isinstance(kinds, list) else [kinds]) if kind in _AUX_NAMES]
    coefficients = config.moe_aux_loss_coeff
    if not any(coefficients if isinstance(coefficients, list) else [coefficients]):
        names = []
    if config.moe_z_loss_coeff is not None:
        names.append("z_loss")
    losses: dict[str, Any] = {}
    # Every rank must name the same losses: a pipeline stage without experts has tracked none.
    track_moe_metrics(
        1.0 / facts["num_microbatches"],
        iteration=0,
        total_loss_dict=losses,
        force_initialize=True,
        track_names=names,
        num_layers=config.num_layers,
        moe_layer_freq=config.moe_layer_freq,
    )
    return {name: float(losses[name]) for name in names}
