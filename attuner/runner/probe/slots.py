"""Where an optimizer keeps what belongs to a parameter of this rank: main weights, main gradient, states, group. Covers
megatron's FP32Optimizer, Float16OptimizerWithFloat16Params and DistributedOptimizer, alone or chained, on torch's, Apex's
or Transformer Engine's inner optimizers and on the CPU-offloading one."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import torch


@dataclasses.dataclass(frozen=True)
class Slot:
    """One parameter (or this rank's shard of it) in its optimizer."""

    holder: Any
    """What the inner optimizer's groups and state name: the parameter, its fp32 copy, or its shard."""
    inner: Any
    """torch's optimizer."""
    group: int
    """Index among the groups of all chained optimizers."""
    place: int
    """Index among the groups of its own optimizer."""
    decoupled: bool
    """The optimizer takes its gradient from `decoupled_grad` and keeps main weights itself."""

    def main(self) -> Any | None:
        """Return the optimizer's own weights, flat; None where they can't be reached."""
        if self.decoupled and self.holder.dtype != torch.float32:
            found = self._state().get("master_param")
        else:
            found = getattr(self.inner, "param_to_inner_param", {}).get(self.holder, self.holder)
        return None if found is None else found.detach().reshape(-1)

    def gradient(self) -> Any | None:
        """Return the main gradient, flat; clipped once the optimizer has clipped."""
        found = getattr(self.holder, "decoupled_grad" if self.decoupled else "grad", None)
        return None if found is None else found.detach().reshape(-1)

    def state(self, name: str) -> Any | None:
        """Return a state tensor such as 'exp_avg', flat; None when there is none yet."""
        found = self._state().get(name)
        return found.detach().reshape(-1) if isinstance(found, torch.Tensor) else None

    def steps(self) -> int:
        """Return how many steps the optimizer has taken."""
        for place in (self._state(), self.options()):
            if "step" in place:
                return int(place["step"])
        return 0

    def options(self) -> dict[str, Any]:
        """Return the inner optimizer's group: learning rate, weight decay and so on, as they are now."""
        return dict(self.inner.param_groups[self.place])

    def _state(self) -> dict[str, Any]:
        # .get on purpose: the state is a defaultdict, and asking it would change it
        return self.inner.state.get(self.holder) or {}


def slots(optimizer: Any) -> dict[Any, Slot]:
    """Return the slot of every model parameter of which this rank's optimizer keeps something."""
    found: dict[Any, Slot] = {}
    first = 0
    for part in parts(optimizer):
        inner = getattr(part, "optimizer", None)
        if inner is None or getattr(part, "is_stub_optimizer", False):
            continue
        index = {id(holder): i for i, group in enumerate(inner.param_groups) for holder in group["params"]}
        decoupled = bool(getattr(part.config, "use_precision_aware_optimizer_no_fp8_or_ds_fp8", False))
        for parameter, holder in _pairs(part, inner, decoupled):
            if holder is not None and id(holder) in index:
                place = index[id(holder)]
                found[parameter] = Slot(holder, inner, first + place, place, decoupled)
        first += len(inner.param_groups)
    return found


def parts(optimizer: Any) -> list[Any]:
    """Return the chained optimizers, or the optimizer alone."""
    return list(getattr(optimizer, "chained_optimizers", [optimizer]))


def groups(optimizer: Any) -> list[dict[str, Any]]:
    """Return plain facts of the groups of all chained optimizers, as they are now."""
    return [
        {
            "lr": float(group.get("lr", 0.0)),
            "weight_decay": float(group.get("weight_decay", 0.0)),
            "betas": [float(beta) for beta in group.get("betas", ())],
            "eps": float(group["eps"]) if "eps" in group else None,
        }
        for part in parts(optimizer)
        if getattr(part, "optimizer", None) is not None and not getattr(part, "is_stub_optimizer", False)
        for group in part.optimizer.param_groups
    ]


def _pairs(part: Any, inner: Any, decoupled: bool) -> Iterator[tuple[Any, Any]]:
    """Yield (model parameter, what the inner optimizer holds for it)."""
    lists: tuple[tuple[Any, Any], ...]
    if hasattr(part, "model_fp32_groups"):  # distributed optimizer: this rank's shards
        shards = part.shard_float16_groups if decoupled else part.shard_fp32_from_float16_groups
        lists = ((part.model_float16_groups, shards), (part.model_fp32_groups, part.shard_fp32_groups))
    elif hasattr(part, "float16_groups"):
        lists = (
            (part.float16_groups, part.fp32_from_float16_groups),
            (part.fp32_from_fp32_groups, part.fp32_from_fp32_groups),
        )
    else:
        own = [group["params"] for group in inner.param_groups]
        lists = ((own, own),)
    for models, holders in lists:
        for model_group, holder_group in zip(models, holders, strict=True):
            yield from zip(model_group, holder_group, strict=True)
