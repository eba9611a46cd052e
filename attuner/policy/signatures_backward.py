"""Signatures of faults after the loss: gradients, clipping, the update and what it does to later steps.

Source: what planted faults moved on megatron-core 0.16.1 (docs/adr/0011-looks.md, docs/gate_study).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from attuner.core.fingerprint import Group
from attuner.policy.scene import CLIP, CLOSE, EXPERTS, GRADIENT, LATER, TIED, UPDATE, Cause, Scene
from attuner.policy.scene import said as _said
from attuner.policy.zones import NORM_FAMILIES


def _replicas(s: Scene) -> Cause | None:
    differ = set(s.new.grad_replicas) - set(s.old.grad_replicas)
    if not differ:
        return None
    if differ <= EXPERTS:
        text, todo = "the reduction of an expert bucket is skipped", "compare the expert-data-parallel groups and buckets"
    elif differ <= TIED:
        text = "the tied embedding's gradient is not reduced between first and last stage"
        todo = "see that finalize_model_grads runs, and the embedding's process group"
    elif differ <= NORM_FAMILIES:
        text = "norm gradients are not reduced over tensor-parallel ranks"
        todo = "see the sequence_parallel mark of these weights"
    else:
        text, todo = f"a bucket's reduction is skipped ({_said(differ)})", "compare buckets and overlap of the gradient reduction"
    return Cause(GRADIENT, text, todo, ("gradient replicas",))


def _one_ratio(s: Scene) -> Cause | None:
    """All families are off by one factor: the whole gradient is scaled."""
    ratios = s.ratios()
    if not s.off or len(ratios) < 2 or set(s.off) != set(ratios):
        return None
    low, high = min(ratios.values()), max(ratios.values())
    if low <= 0 or high / low - 1 > CLOSE or abs(math.sqrt(low * high) - 1) < CLOSE:
        return None
    mean = math.sqrt(low * high)
    found = s.clean(mean, "DP")
    factor = f"{found[0]} = {found[1]}" if found and found[1] else f"{mean:.3g}"
    dp = s.candidate.fingerprint.layout.get("dp", 1) if s.candidate.fingerprint else 1
    if dp > 1 and abs(mean * dp - 1) < CLOSE:
        text = f"all gradients are {factor} × the baseline's: divided by DP twice"
    elif dp > 1 and abs(mean / dp - 1) < CLOSE:
        text = f"all gradients are {factor} × the baseline's: summed over data-parallel ranks and not divided"
    else:
        text = f"all gradients are {factor} × the baseline's: scaled once too often or too rarely"
    return Cause(GRADIENT, text, "compare gradient scaling: average_in_collective, per-token loss, gradient_scaling_factor")


def _family_ratio(s: Scene) -> Cause | None:
    """Some families are off by one clean factor."""
    ratios = {name: r for name, r in s.ratios().items() if name in s.off}
    if not ratios or len(ratios) == len(s.ratios()):
        return None
    name, ratio = max(ratios.items(), key=lambda x: abs(math.log(x[1])) if x[1] > 0 else math.inf)
    first = "TP" if set(ratios) <= NORM_FAMILIES else "EP" if set(ratios) <= EXPERTS else "DP"
    found = s.clean(ratio, first) if ratio > 0 else None
    if found is None:
        return None
    equals = f" = {found[1]}" if found[1] else f" = {found[0]}"
    start = f"{_said(ratios)} gradients are {ratio:.2f} × the baseline's{equals}: "
    if set(ratios) <= NORM_FAMILIES:
        text = start + "summed over tensor-parallel ranks where they should be averaged, or the reverse"
        return Cause(GRADIENT, text, "see the sequence_parallel mark of these weights, and finalize_model_grads")
    if set(ratios) <= EXPERTS:
        text = start + "expert gradients are divided by another group than they are summed over"
        return Cause(GRADIENT, text, "compare expert-data-parallel size and gradient_scaling_factor of expert buckets")
    text = start + f"these gradients ({name} most) are reduced over another group than the rest, or lost between stages"
    return Cause(GRADIENT, text, "compare the process group that reduces these families, and what pipeline stages send back")


def _mainly(s: Scene) -> Cause | None:
    """Families of one kind are off far more than the others, by no clean factor."""
    off = set(s.off)
    if s.mainly(frozenset({"router"}), 2.5):
        layout = s.candidate.fingerprint.layout if s.candidate.fingerprint else {}
        text = "the router's gradient moved most, the loss hardly: the gradient of an auxiliary loss changed (coefficient, "
        text += "scale, z-loss), which the logged auxiliary loss need not show"
        if layout.get("tp", 1) * layout.get("cp", 1) > 1:
            text += "; per-token loss divides it by TP·CP in megatron-core before 0.19"
        return Cause(GRADIENT, text, "compare moe_aux_loss_coeff, its scale, and calculate_per_token_loss")
    if s.mainly(NORM_FAMILIES, 30):
        text = f"{_said(off & NORM_FAMILIES)} gradients alone moved: their reduction over tensor ranks is missing or partial"
        return Cause(GRADIENT, text, "see the sequence_parallel mark of these weights, and finalize_model_grads")
    if s.mainly(EXPERTS, 30):
        text = "expert gradients alone moved: an expert bucket or the dispatcher's backward"
        return Cause(GRADIENT, text, "compare dispatchers and expert buckets")
    if s.mainly(TIED, 30):
        text = "embedding and output gradients alone moved: tied weights not reduced between stages, or the vocabulary's shards"
        return Cause(GRADIENT, text, "compare the embedding's process group, and the padded vocabulary")
    return None


def _rounded(s: Scene) -> Cause | None:
    if not s.rounded or not s.same_batch:
        return None
    text = f"every gradient is off a little (up to {max(s.deviations().values()):.1e}) in an fp32 run: something is computed or "
    text += "reduced in a lower precision"
    names = ("gradient norm", "gradient projection", "step-0 loss")
    return Cause(GRADIENT, text, "compare kernels and the types of what is communicated; the census shows what is stored", names)


def _all(s: Scene) -> Cause | None:
    if not s.off or len(s.off) < len(s.ratios()) or not s.same_batch or s.loss_moved:
        return None
    text = "every gradient moved, the loss did not: a micro-batch's gradient is lost or accumulated twice, or micro-batches are "
    text += "averaged where tokens should be"
    return Cause(GRADIENT, text, "compare zero_grad_buffer, no_sync, and calculate_per_token_loss with uneven masks")


def _some(s: Scene) -> Cause | None:
    if not s.off or not s.same_batch or s.loss_moved:
        return None
    text = (
        f"rows, weights and loss are the same, gradients of {_said(s.off)} are not: the backward pass, an auxiliary loss, or how "
    )
    text += "micro-batches and ranks are summed"
    return Cause(GRADIENT, text, "run both in fp32, where rounding hides less, and see which families move")


# ------------------------------------------------------------------------------------------------- clip, update, later


def _clip(s: Scene) -> Cause | None:
    clip = s.new.clip
    if clip is None or not {"clip coefficient", "clip norm"} & set(s.keys):
        return None
    declared = s.candidate.fingerprint.declared.clip_grad if s.candidate.fingerprint else None
    names = ("clip coefficient", "clip norm")
    low, high, norm = clip.coefficient_min, clip.coefficient_max, clip.norm
    if high is not None and high > 1.01:
        text = (
            f"gradients grow between reduction and update (up to {high:.3g} ×): something is added to them, such as an L2 decay"
        )
        return Cause(CLIP, text, "compare decoupled_weight_decay, and what touches gradients after their norm is taken", names)
    if low is not None and high is not None and high / max(low, 1e-30) - 1 > 1e-4:
        text = f"parts of the model are clipped by other factors ({low:.4g} to {high:.4g}): each optimizer takes its own norm"
        return Cause(
            CLIP, text, "megatron-core before 0.19.0 does so with experts and TP > 1: keep TP or EP as in the baseline", names
        )
    if declared and norm and norm > declared and high is not None and abs(high - 1) < 1e-4:
        return Cause(
            CLIP, "gradients are not clipped although their norm is above the limit", "find what turns clipping off", names
        )
    if clip.used_norm is not None and norm and abs(clip.used_norm / norm - 1) > 1e-4:
        found = s.clean(clip.used_norm / norm)
        factor = f"{found[0]} × the true one" if found else f"{clip.used_norm / norm:.4g} × the true one"
        text = f"the norm that clipping takes is {factor}: some gradients count twice, or not at all"
        return Cause(CLIP, text, "compare what is counted: shared, tensor-parallel duplicate and expert parameters", names)
    return Cause(CLIP, "clipping applies another factor than limit / norm", "compare clip_grad and the optimizer's norm", names)


def _rate(s: Scene) -> Cause | None:
    if not any(k.startswith("learning rate fitted") for k in s.keys) or any(k.startswith("unexplained") for k in s.keys):
        return None  # where the direction isn't the declared optimizer's, a fit of the rate means nothing
    declared = max((g.lr for g in s.new.groups), default=0.0) or (
        (s.candidate.fingerprint.declared.lr or 0.0) if s.candidate.fingerprint else 0.0
    )
    fitted = [f.lr for f in s.new.families.values() if f.lr]
    ratio = sorted(fitted)[len(fitted) // 2] / declared if fitted and declared else 1.0
    if abs(ratio - 1) < CLOSE:
        return None  # as declared on the whole: a family's fit alone says nothing of the rate
    text = f"the learning rate applied is {ratio:.3g} × the one that the optimizer's groups declare"
    return Cause(
        UPDATE,
        text,
        "find what scales the step: schedule, group multipliers, a fused optimizer",
        ("learning rate", "update norm"),
    )


def _decay(s: Scene) -> Cause | None:
    if not any(k.startswith("weight decay fitted") for k in s.keys) or any(k.startswith("unexplained") for k in s.keys):
        return None  # where the direction isn't the declared optimizer's, a fit of the decay means nothing
    decayed = {n for n, f in s.new.families.items() if n in NORM_FAMILIES and f.weight_decay and abs(f.weight_decay) > 1e-3}
    before = {n for n, f in s.old.families.items() if n in NORM_FAMILIES and f.weight_decay and abs(f.weight_decay) > 1e-3}
    names = ("weight decay fitted",)
    if decayed - before:
        text = f"norm weights are decayed ({_said(decayed - before)}): the groups' wd_mult is not applied"
        return Cause(UPDATE, text, "step an OptimizerParamScheduler, which applies wd_mult to the groups", names)
    return Cause(
        UPDATE, "another weight decay is applied than declared", "compare weight_decay, its schedule, and the groups", names
    )


def _groups(s: Scene) -> Cause | None:
    old, new = s.old.groups, s.new.groups
    if not old or not new:
        return None
    fields: dict[str, Callable[[Group], object]] = {
        "learning rate": lambda g: g.lr,
        "weight decay": lambda g: g.weight_decay,
        "betas": lambda g: tuple(g.betas),
        "epsilon": lambda g: g.eps,
    }
    sides = {name: ({read(g) for g in old}, {read(g) for g in new}) for name, read in fields.items()}
    moved = [f"{name} ({_set(a)} → {_set(b)})" for name, (a, b) in sides.items() if a != b]
    if not moved and "optimizer groups" not in s.keys:
        return None
    text = (
        f"the optimizer's groups have another {' and another '.join(moved)}"
        if moved
        else "parameters moved between the optimizer's groups"
    )
    return Cause(UPDATE, text, "compare the optimizer's arguments and what sorts parameters into groups", ("optimizer groups",))


def _set(values: Iterable[object]) -> str:
    return ", ".join(sorted(str(v) for v in values))


def _arithmetic(s: Scene) -> Cause | None:
    keys = [k for k in s.keys if k.startswith("unexplained update")]
    if not keys:
        return None
    if all(", step" in k for k in keys):
        text = "the first update is the declared optimizer's and the next one is not: other betas, or its states are lost between"
    else:
        text = "the update is not that of the declared optimizer: another epsilon or betas, states from before, or low precision"
    names = ("unexplained update", "learning rate fitted", "weight decay fitted", "step-1 update")
    return Cause(UPDATE, text, "compare the optimizer's implementation, its epsilon and betas", names)


def _stale(s: Scene) -> Cause | None:
    names = ("stale weights", "weight replicas", "step-1")
    if any(k.startswith("stale weights of step 0") for k in s.keys):
        text = "before any update the weights in use are not the optimizer's own: loaded or copied apart from its masters"
        return Cause(UPDATE, text, "see who copies loaded weights to the optimizer (reload_model_params)", names)
    if any(k.startswith("stale weights") for k in s.keys):
        text = "weights in use are not the optimizer's own: a parameter gather is missing, late or partial"
        return Cause(UPDATE, text, "turn overlap_param_gather off; see who gathers parameters before the forward pass", names)
    if any(k.startswith("weight replicas") for k in s.keys):
        text = "copies of one weight drift apart: a rank misses its update, or a parameter gather is partial"
        return Cause(UPDATE, text, "compare what each rank's optimizer steps and gathers", names)
    return None


def _still(s: Scene) -> Cause | None:
    still = {k.rpartition(": ")[2] for k in s.keys if k.startswith("update of step ")}
    if not still:
        return None
    if still <= NORM_FAMILIES:
        text = f"{_said(still)}: small steps on weights near 1 are rounded away: the optimizer holds them in low precision"
        return Cause(
            UPDATE, text, "compare the optimizer's own weights: main_param in the census, and what it rounds", ("update of step",)
        )
    text = f"{_said(still)}: these weights are in no optimizer group, or their update is thrown away"
    return Cause(UPDATE, text, "compare the optimizer's parameters, and what copies them back", ("update of step",))


def _later(s: Scene) -> Cause | None:
    later = [k for k in s.keys if k.startswith(("step-1", "curve"))]
    if not later or s.off or s.loss_moved:
        return None
    if later and all(k.startswith("step-1 gradient") or k.startswith("step-1 update") for k in later):
        text = (
            "step 0, its update and the next loss are the same, the next gradients are not: gradients of the step before are kept"
        )
        return Cause(LATER, text, "see that zero_grad_buffer runs before every step")
    text = (
        "step 0 is the same and later ones are not: what is applied at the update differs (rate, decay, clipping, a gather), or "
    )
    text += "something changes between steps"
    return Cause(LATER, text, "read the third look's fits of the first updates; compare schedules")


BACKWARD: tuple[Callable[[Scene], Cause | None], ...] = (
    *(_replicas, _rounded, _one_ratio, _family_ratio, _mainly, _all, _some),
    *(_clip, _rate, _groups, _arithmetic, _decay, _still, _stale, _later),
)
"""In the order of a step; of one stage, the more telling signature first."""
