"""Faults in what is trained on: rows, labels, masks, positions, and how the micro-batches' losses are weighed.

Each function is called in every rank before the trainer builds anything, and changes megatron, torch or the trainer for this
process alone. None of them leaves a trace in the run's own configuration.
"""

from collections.abc import Callable
from typing import Any

import torch

from attuner.runner import mcore_step, rows


def wrap(owner: Any, name: str, around: Callable[..., Any]) -> None:
    """Replace owner.name by a function that is given the real one first."""
    real = getattr(owner, name)

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        return around(real, *args, **kwargs)

    setattr(owner, name, wrapped)


def _in_batch(change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    def around(real: Any, self: Any, first: int, count: int) -> dict[str, Any]:
        batch: dict[str, Any] = real(self, first, count)
        return {**batch, **change(batch)}

    wrap(rows.Rows, "_microbatch", around)


def labels_shifted(job: dict[str, Any]) -> None:
    _in_batch(lambda b: {"labels": torch.roll(b["labels"], -1, 1)})


def mask_shifted(job: dict[str, Any]) -> None:
    _in_batch(lambda b: {"loss_mask": torch.cat([b["loss_mask"][:, 1:], b["loss_mask"][:, -1:]], 1)})


def mask_rolled(job: dict[str, Any]) -> None:
    _in_batch(lambda b: {"loss_mask": torch.roll(b["loss_mask"], -1, 1)})


def mask_ignored(job: dict[str, Any]) -> None:
    _in_batch(lambda b: {"loss_mask": torch.ones_like(b["loss_mask"])})


def positions_off(job: dict[str, Any]) -> None:
    _in_batch(lambda b: {"position_ids": (b["position_ids"] + 1).clamp(max=b["position_ids"].size(1) - 1)})


def rows_truncated(job: dict[str, Any]) -> None:
    def cut(batch: dict[str, Any]) -> dict[str, Any]:
        tokens, keep = batch["tokens"].clone(), batch["tokens"].size(1) - 16
        tokens[:, keep:] = 0
        mask = batch["loss_mask"].clone()
        mask[:, keep:] = 0
        return {"tokens": tokens, "loss_mask": mask}

    _in_batch(cut)


def data_shifted(job: dict[str, Any]) -> None:
    """One batch later: the rows of step n are those of step n + 1."""

    def around(real: Any, self: Any, first: int, global_batch: int, *rest: Any) -> Any:
        return real(self, first + global_batch, global_batch, *rest)

    wrap(rows.Rows, "update", around)


def rows_not_sharded(job: dict[str, Any]) -> None:
    """Every data-parallel rank reads the first rank's rows."""

    def around(real: Any, self: Any, first: int, global_batch: int, micro_batch: int, dp: int, dp_rank: int) -> Any:
        return real(self, first, global_batch, micro_batch, dp, 0)

    wrap(rows.Rows, "update", around)


def half_batch(job: dict[str, Any]) -> None:
    """Only the first half of an update's micro-batches is run."""

    def around(real: Any, configs: Any, facts: dict[str, Any], *rest: Any) -> Any:
        return real(configs, {**facts, "num_microbatches": facts["num_microbatches"] // 2}, *rest)

    wrap(mcore_step, "update", around)


# ------------------------------------------------------------------------------------------------ between model and schedule


def _in_loss(change: Callable[[Any, Any, Any, dict[str, Any], int], tuple[Any, Any, dict[str, Any]]]) -> None:
    """Change what the schedule is given of each micro-batch: change(per-token losses, total, tokens, report, index)."""

    def schedules(real_get: Any) -> Any:
        schedule = real_get()

        def run(*, forward_step_func: Any, **keys: Any) -> Any:
            index = [0]

            def forward(iterator: Any, part: Any) -> Any:
                output, real_loss = forward_step_func(iterator, part)

                def loss(result: Any) -> Any:
                    index[0] += 1
                    return change(result, *real_loss(result), index[0] - 1)

                return output, loss

            return schedule(forward_step_func=forward, **keys)

        return run

    wrap(mcore_step, "get_forward_backward_func", schedules)


def _silent(report: dict[str, Any]) -> dict[str, Any]:
    return {name: value * 0 for name, value in report.items()}


def gradient_lost(job: dict[str, Any]) -> None:
    _in_loss(lambda result, total, count, report, index: (total * (index != 1), count, report))


def gradient_twice(job: dict[str, Any]) -> None:
    _in_loss(lambda result, total, count, report, index: (total * (1 + (index == 1)), count, report))


def microbatch_dropped(job: dict[str, Any]) -> None:
    _in_loss(
        lambda result, total, count, report, index: (
            (total, count, report) if index != 1 else (total * 0, count * 0, _silent(report))
        )
    )


def loss_not_averaged(job: dict[str, Any]) -> None:
    _in_loss(lambda result, total, count, report, index: (total * 4, count, report))


def mask_ignored_by_loss(job: dict[str, Any]) -> None:
    """The batch carries its mask and the report heeds it; the gradient doesn't."""
    _in_loss(lambda result, total, count, report, index: (result.float().sum(), torch.full_like(count, result.numel()), report))


def mean_of_microbatches(job: dict[str, Any]) -> None:
    """Every micro-batch weighs the same, however many of its tokens count; the report stays per token."""
    _in_loss(lambda result, total, count, report, index: (total * 68.0 / count.clamp(min=1), count, report))
