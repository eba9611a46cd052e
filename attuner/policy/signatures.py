"""Signatures of faults up to the loss: what each moves and leaves alone, as functions of a Scene that return a Cause or None.

Source: what 27 planted faults moved on megatron-core 0.16.1 (docs/adr/0011-looks.md, the faults).
"""

from __future__ import annotations

import math
from collections.abc import Callable

from attuner.core.fingerprint import Batch
from attuner.policy.scene import DATA, EXPERTS, FORWARD, MICRO, TIED, WEIGHTS, Cause, Scene
from attuner.policy.scene import said as _said
from attuner.policy.signatures_backward import BACKWARD

# ------------------------------------------------------------------------------------------------- data


def _batch(s: Scene) -> Cause | None:
    found = s.batches
    if found is None or s.same_batch:
        return None
    old, new = found
    if new.rows != old.rows:
        fewer = "a micro-batch is dropped" if new.rows < old.rows else "rows are consumed twice"
        return Cause(DATA, f"{abs(new.rows - old.rows)} rows {'fewer' if new.rows < old.rows else 'more'}: {fewer}", _DATA_TODO)
    labels, mask = new.labels != old.labels, new.loss_mask != old.loss_mask
    inputs, positions = new.inputs != old.inputs, new.positions != old.positions
    if mask and not labels and not inputs:
        return _mask(old, new)
    if positions and not labels and not mask:
        return Cause(DATA, "position ids are other ones: reset at document ends, or offset by a context rank", _DATA_TODO)
    if labels and not inputs:
        return Cause(
            DATA, "labels are shifted or replaced: token ids are the same, labels are not", "compare how labels are made"
        )
    if inputs:
        text = "other rows: the data order moved (seed, sampler, sharding, or an offset by a batch), or another tokenizer"
        return Cause(DATA, text, "compare the sampler, its seed, and the position that data begin at")
    return Cause(DATA, "inputs are paired with other rows' targets", _DATA_TODO)


_DATA_TODO = "compare the rows of step 0 of both runs, and what cuts and masks them"


def _mask(old: Batch, new: Batch) -> Cause:
    delta = new.loss_tokens - old.loss_tokens
    if delta == 0:
        text = "the loss mask is rolled: the same number of tokens, at other places"
    elif delta > 0 and delta > old.loss_tokens // 4:
        text = f"the loss mask is ignored: {delta} tokens more take part in the loss"
    elif old.rows and abs(delta) <= old.rows:
        each = "one token per row" if abs(delta) == old.rows else f"at most one token per row ({old.rows} rows)"
        text = f"the loss mask is shifted by one token: {delta:+d} loss tokens, {each}"
    else:
        text = f"another loss mask: {delta:+d} loss tokens"
    return Cause(DATA, text, "compare how the loss mask is made and shifted")


def _tokens(s: Scene) -> Cause | None:
    if not any(k.startswith("loss tokens") for k in s.keys) or (s.batches is not None and not s.same_batch):
        return None
    if s.same_batch:
        text = "the rows were read and not all of their tokens reach the loss: a micro-batch is dropped, or the loss masks again"
        return Cause(DATA, text, "compare what the loss function counts with what the batch holds", ("loss tokens",))
    return Cause(DATA, "another loss mask, or other rows: the number of loss tokens differs", _DATA_TODO, ("loss tokens",))


# ------------------------------------------------------------------------------------------------- weights


def _weights(s: Scene) -> Cause | None:
    wrong = {k.rsplit(" ", 1)[1] for k in s.keys if k.startswith("loaded weights ")} or {
        name
        for name, (a, b) in s.families().items()
        if None not in (a.weight_projection, b.weight_projection, a.weight_norm)
        and abs((a.weight_projection or 0.0) - (b.weight_projection or 0.0)) > 1e-6 * (a.weight_norm or 1.0)
    }
    if not wrong:
        return None
    todo = "compare how the checkpoint is cut for this layout: layers per stage, experts per rank, shards of a matrix"
    if wrong <= EXPERTS:
        return Cause(WEIGHTS, "wrong experts are loaded: only expert weights are other ones", todo, ("loaded weights",))
    if wrong == {"router"}:
        return Cause(WEIGHTS, "the router's rows are loaded for other experts", todo, ("loaded weights",))
    if {"qkv", "attn_proj"} <= wrong and not wrong & TIED:
        text = "wrong layers are loaded: every family inside the layers is another one, the embedding is the same"
        return Cause(WEIGHTS, text, todo, ("loaded weights",))
    if len(wrong) == len(s.families()):
        text = "another checkpoint, or random weights of another seed or layout"
        return Cause(WEIGHTS, text, "load the same checkpoint in both runs", ("loaded weights",))
    return Cause(WEIGHTS, f"{_said(wrong)}: another part of the checkpoint is loaded", todo, ("loaded weights",))


def _frozen(s: Scene) -> Cause | None:
    gone = {k.removeprefix("parameters of ") for k in s.keys if k.startswith("parameters of ")} - set(s.new.families)
    if not gone:
        return None
    seen = s.candidate.fingerprint
    if seen and any(k.startswith("frozen") for k in seen.missing):
        text = f"{_said(gone)} parameters are frozen: they take no gradient"
        return Cause(WEIGHTS, text, "see what sets requires_grad", ("parameters of", "not seen: frozen"))
    return Cause(WEIGHTS, f"the candidate has no {_said(gone)} parameters", "compare the model's arguments", ("parameters of",))


# ------------------------------------------------------------------------------------------------- forward


def _log_of_a_group(s: Scene) -> Cause | None:
    first, second = s.base.step(0), s.candidate.step(0)
    if first is None or second is None or not s.loss_moved:
        return None
    offset = second.lm_loss - first.lm_loss
    for size, name in s.factors("TP").items():
        if name != MICRO and abs(abs(offset) - math.log(size)) < 0.005 + 0.002 * abs(first.lm_loss):
            sign = "above" if offset > 0 else "below"
            text = f"the loss is log({name.split(' = ')[0]}) = {math.log(size):.3f} {sign} the baseline's: the softmax over the "
            text += "vocabulary sums its shards wrongly"
            return Cause(FORWARD, text, "compare the vocabulary-parallel cross entropy of both layouts")
    return None


def _forward(s: Scene) -> Cause | None:
    if not s.loss_moved or not s.same_batch or s.rounded:
        return None
    text = "same rows, same weights, another loss: the forward pass computes something else (dropout left on, softmax scale, "
    text += "RoPE base, router top-k, a kernel or its precision)"
    return Cause(FORWARD, text, "compare the final values of both runs; swap one kernel at a time in a component test")


def _auxiliary(s: Scene) -> Cause | None:
    if s.loss_moved or not any(k.startswith("auxiliary loss") for k in s.keys):
        return None
    text = "the auxiliary loss is another one, the loss is not: another micro batch (it is taken over one micro-batch's tokens), "
    text += "another coefficient, scale or balancing type"
    return Cause(FORWARD, text, "keep micro batch and balancing as in the baseline, or set the coefficient to 0 in both")


def _dtypes(s: Scene) -> Cause | None:
    kinds = sorted({k.removeprefix("dtype of ") for k in s.keys if k.startswith("dtype of ")})
    if not kinds:
        return None
    what = {
        "grad_buffer": "gradients are accumulated and reduced in another precision",
        "main_grad": "the optimizer gets gradients of another precision",
        "main_param": "the optimizer keeps weights in another precision",
        "router_logits": "the router computes its logits in another precision",
        "logits": "the output layer computes its logits in another precision",
    }
    text = "; ".join(what.get(k, f"{k} has another precision") for k in kinds)
    return Cause(FORWARD, text, "find the argument that sets this precision; final values alone may not show it", ("dtype of",))


RULES: tuple[Callable[[Scene], Cause | None], ...] = (
    *(_batch, _tokens, _weights, _frozen, _log_of_a_group, _forward, _auxiliary, _dtypes),
    *BACKWARD,
)
"""In the order of a step; of one stage, the more telling signature first."""
