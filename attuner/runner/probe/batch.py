"""Watches which rows a step really consumes: tokens, positions and labels as the model is given them, and the loss mask as
the loss takes it. Each row is hashed with the places of its values and then mixed once more, so that values exchanged between
rows or places are seen; rows are added up, so that neither their order nor the layout is.

Shapes: B rows of a micro-batch, S this rank's part of the sequence, N rows of this rank in the step."""

import inspect
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state

from .numbers import hexadecimal, mixed
from .piece import unwrapped

_INPUTS = ("inputs", "positions")
_TARGETS = ("targets", "labels", "loss_mask", "tokens")
_SUMS = ("input_rows", *_INPUTS, "target_rows", *_TARGETS, "rows_digest", "replicas_differ", "unseen_masks")


class BatchWatch:
    """The rows of one step on this rank: forward pre-hooks call `see_forward`, the trainer's loss calls `see_loss`."""

    def __init__(self, device: Any) -> None:
        self.mask_seen = True
        self._inputs = [torch.zeros(len(_INPUTS), 0, dtype=torch.int64, device=device)]
        self._targets = [torch.zeros(len(_TARGETS), 0, dtype=torch.int64, device=device)]
        self._labels: dict[int, Any] = {}

    def see_forward(self, core: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Hash what a model chunk is called with: tokens and positions on the first stage, labels on the last."""
        names = list(inspect.signature(core.forward).parameters)
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        tokens, labels = given.get("input_ids"), given.get("labels")
        if core.pre_process and tokens is not None:
            places = _places(tokens)
            positions = _positions(given.get("position_ids"), places)
            columns = (mixed(places, positions, tokens), mixed(places, positions))
            self._inputs.append(torch.stack([column.sum(1) for column in columns]))
        if core.post_process and labels is not None:
            self._without_mask(id(core))
            self._labels[id(core)] = labels

    def see_loss(self, mask: Any, chunk: Any) -> None:
        """Hash the loss mask together with the labels of the chunk's latest forward."""
        labels = self._labels.pop(id(unwrapped(chunk)), None)
        if labels is None:
            return
        mask = mask.detach().reshape(labels.shape).float().contiguous()
        places, bits = _places(labels), mask.view(torch.int32)
        columns = (mixed(places, labels, bits), mixed(places, labels), mixed(places, bits), (mask > 0).long())
        self._targets.append(torch.stack([column.sum(1) for column in columns]))

    def _without_mask(self, chunk: int) -> None:
        """Hash labels whose mask nobody showed."""
        labels = self._labels.pop(chunk, None)
        if labels is None:
            return
        self.mask_seen = False
        hashed = mixed(_places(labels), labels).sum(1)
        nothing = torch.zeros_like(hashed)
        self._targets.append(torch.stack([nothing, hashed, nothing, nothing]))

    def rows(self) -> tuple[Any, Any]:
        """Return this rank's row hashes: inputs (2, N) and targets (4, N), int64; N is 0 on stages that have none."""
        for chunk in list(self._labels):
            self._without_mask(chunk)
        return torch.cat(self._inputs, 1), torch.cat(self._targets, 1)


def agree(inputs: Any, targets: Any) -> str:
    """Return why the ranks' rows don't fit together, or nothing. A collective of fixed size.

    After it, tensors of `exchange` have equal sizes in every group.
    """
    counts = torch.tensor([inputs.size(1), targets.size(1)], dtype=torch.int64, device=inputs.device)
    both = torch.cat([counts, -counts])
    dist.all_reduce(both, op=dist.ReduceOp.MAX, group=parallel_state.get_tensor_and_context_parallel_group())
    if not torch.equal(both[:2], -both[2:]):
        return "tensor- or context-parallel ranks saw different numbers of rows"
    dist.all_reduce(counts, op=dist.ReduceOp.MAX, group=parallel_state.get_pipeline_model_parallel_group())
    if counts[0] != counts[1] and counts.min() > 0:
        return "first and last stage saw different numbers of rows"
    return ""


def exchange(inputs: Any, targets: Any, *, mask_seen: bool) -> dict[str, int]:
    """Add up the rows of the whole global batch. A collective over all ranks; every rank gets the sums, modulo 2**64."""
    if parallel_state.get_context_parallel_world_size() > 1:
        for part in (part for part in (inputs, targets) if part.numel()):
            dist.all_reduce(part, group=parallel_state.get_context_parallel_group())
    tokens = targets[-1].clone()
    inputs, targets = mixed(inputs), mixed(targets)
    differ = _replicas_differ(inputs, targets)
    rows = _over_stages(inputs, targets)
    sums = dict.fromkeys(_SUMS, torch.zeros((), dtype=torch.int64, device=inputs.device))
    if parallel_state.get_tensor_model_parallel_rank() == 0 and parallel_state.get_context_parallel_rank() == 0:
        sums["input_rows"], sums["target_rows"] = (torch.full_like(differ, part.size(1)) for part in (inputs, targets))
        sums.update(zip(_INPUTS, inputs.sum(1), strict=True))
        sums.update(zip(_TARGETS, targets.sum(1), strict=True))
        sums["tokens"] = tokens.sum()
        last = parallel_state.is_pipeline_last_stage(ignore_virtual=True)
        if last and rows is not None and rows.size(1):
            sums["rows_digest"] = mixed(rows[0], rows[len(_INPUTS)]).sum()
        sums["replicas_differ"], sums["unseen_masks"] = differ, torch.full_like(differ, not mask_seen)
    packed = torch.stack(list(sums.values()))
    dist.all_reduce(packed)
    return dict(zip(_SUMS, packed.tolist(), strict=True))


def describe(sums: dict[str, int], loss_tokens: int | None) -> tuple[dict[str, Any] | None, dict[str, str]]:
    """Return the fingerprint's `batch`, and what is missing from it and why.

    loss_tokens: what the trainer says, taken where the loss shows no mask.
    """
    missing, mask_seen = {}, not sums["unseen_masks"]
    if not sums["input_rows"]:
        missing["batch inputs"] = "the model wasn't called with tokens"
    if not sums["target_rows"]:
        missing["batch targets"] = "the model wasn't called with labels"
    elif not mask_seen:
        missing["loss mask"] = "the trainer's loss shows no mask"
    rows = max(sums["input_rows"], sums["target_rows"])
    if not rows:
        return None, missing

    def shown(name: str, there: bool) -> str:
        return hexadecimal(sums[name]) if there else ""

    ins, outs = bool(sums["input_rows"]), bool(sums["target_rows"])
    found = {name: shown(name, ins) for name in _INPUTS}
    found |= {name: shown(name, outs and mask_seen) for name in ("targets", "loss_mask")}
    found |= {"labels": shown("labels", outs), "rows_digest": shown("rows_digest", ins and outs and mask_seen)}
    tokens = sums["tokens"] if mask_seen else loss_tokens or 0
    return {**found, "rows": rows, "loss_tokens": tokens, "replicas_differ": bool(sums["replicas_differ"])}, missing


def _places(values: Any) -> Any:
    """Return the places of this rank's values in the whole sequence, shaped like them (B, S).

    Context parallelism gives rank r of n the parts r and 2n - 1 - r of 2n (megatron's get_batch_on_this_cp_rank).
    """
    length, ranks = values.size(1), parallel_state.get_context_parallel_world_size()
    places = torch.arange(length, device=values.device)
    if ranks > 1:
        rank, half = parallel_state.get_context_parallel_rank(), length // 2
        places = torch.where(places < half, places + rank * half, places - half + (2 * ranks - 1 - rank) * half)
    return places.expand(values.shape)


def _positions(given: Any, places: Any) -> Any:
    """Return one position a value; where the model isn't told positions, it takes places."""
    if given is None:
        return places
    if given.dim() > places.dim():  # multimodal rotary embeddings have three
        return mixed(*(part.expand(places.shape) for part in given))
    return given.expand(places.shape)


def _replicas_differ(inputs: Any, targets: Any) -> Any:
    """Say whether tensor-parallel ranks saw other rows; an int64 without dimensions."""
    digest = torch.stack([mixed(part).sum() for part in (inputs, targets)])
    both = torch.cat([digest, ~digest])
    dist.all_reduce(both, op=dist.ReduceOp.MAX, group=parallel_state.get_tensor_model_parallel_group())
    return (both[:2] != ~both[2:]).any().long()


def _over_stages(inputs: Any, targets: Any) -> Any | None:
    """Bring the first stage's inputs and the last stage's targets together: (6, N) on every stage, if their N agree."""
    if parallel_state.get_pipeline_model_parallel_world_size() == 1:
        return torch.cat([inputs, targets]) if inputs.size(1) == targets.size(1) else None
    group = parallel_state.get_pipeline_model_parallel_group()
    counts = torch.tensor([inputs.size(1), targets.size(1)], dtype=torch.int64, device=inputs.device)
    dist.all_reduce(counts, op=dist.ReduceOp.MAX, group=group)
    if counts[0] != counts[1] or not counts[0]:
        return None
    rows = torch.zeros(len(inputs) + len(targets), int(counts[0]), dtype=torch.int64, device=inputs.device)
    rows[: len(inputs), : inputs.size(1)] = inputs
    rows[len(inputs) :, : targets.size(1)] = targets
    dist.all_reduce(rows, group=group)
    return rows
