"""What a run's fingerprint says by itself, without a baseline: did the probe see anything, is the model alive, do replicas
agree, are the weights in use the optimizer's own, did clipping, learning rate and weight decay do what they declare.

Two dead models match each other perfectly, so each run must first show that it is worth comparing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from attuner.core.fingerprint import Clip, Family, Fingerprint, FirstStep
from attuner.core.judgement import Decision, Finding
from attuner.core.run import Evidence
from attuner.policy.zones import MAX_SCALE, Limits, Measure, Measured, Tolerance, judge, judge_families, relative

RULE = "update-look"
FATAL = ("probe", "model alive", "finite fingerprint")
"""Beginnings of the keys that refuse whoever shows them; a baseline that only shows others is for a person to look at."""
FROZEN = "not seen: frozen parameters"
DEAD_LOSS = 1.0e-5
"""Relative distance from ln(vocabulary) below which every token is predicted alike; no trained or random model is so near."""
CLIP_EPSILON = 1.0e-6
"""Added to the norm before dividing. Source: megatron-core 0.16.1 optimizer/clip_grads.py."""


def note(
    decision: Decision,
    key: str,
    reason: str,
    before: float | int | str | None = None,
    after: float | int | str | None = None,
    *,
    todo: str = "",
) -> Finding:
    """Return a finding of the third look that no tolerance decides."""
    return Finding(rule=RULE, decision=decision, key=key, before=before, after=after, reason=reason, todo=todo)


def self_checks(run: Evidence, limits: Limits) -> list[Finding]:
    """Return the findings about one run alone; empty for a run without a fingerprint."""
    seen = run.fingerprint
    if seen is None:
        return []
    nothing = _saw_nothing(seen)
    if nothing:
        return [nothing]
    first = seen.steps[0]
    return [
        *_alive(run, seen, first),
        *_replicas(seen),
        *_stale(seen),
        *(f for step in seen.steps for f in _clip(seen, step, limits, run.precision)),
        *_fits(seen, limits, run.precision),
        *_missing(seen),
    ]


def first_update(seen: Fingerprint) -> int:
    """Return the index of the first observed step with an update to look at: with a warm-up, step 0 has a rate of 0."""
    return next((i for i, s in enumerate(seen.steps) if any(g.lr > 0 for g in s.groups)), 0)


def own_verdict(findings: list[Finding]) -> list[Finding]:
    """Return the self-checks of the baseline itself: what isn't fatal is for a person, since candidates are held against it."""
    return [
        f.model_copy(update={"decision": "review", "check": False, "todo": f.todo or "mend the baseline, or sign for it"})
        if f.decision == "refuse" and not f.key.startswith(FATAL)
        else f
        for f in findings
    ]


def without_carried(findings: list[Finding], baseline: list[Finding]) -> list[Finding]:
    """Return a candidate's self-checks; what the baseline fails as well is said and admitted, unless it is fatal.

    What was not seen in either run is no fault that both have: nobody knows, so it stays for a person. Frozen parameters have
    nothing to see.
    """
    failed = (f for f in baseline if f.decision == "refuse" or (f.decision == "review" and f.tolerance is not None))
    carried = {*(f.key for f in failed), *(f.key for f in baseline if f.key == FROZEN)}
    return [
        f.model_copy(
            update={
                "decision": "admit",
                "check": False,
                "reason": f"as in the baseline's own run, whose verdict says so: {f.reason}",
            }
        )
        if f.decision != "admit" and f.key in carried and not f.key.startswith(FATAL)
        else f
        for f in findings
    ]


def _saw_nothing(seen: Fingerprint) -> Finding | None:
    todo = "see what `missing` of fingerprint.json says, and the run's log"
    why = "; ".join(f"{k}: {v}" for k, v in seen.missing.items())[:300]
    if not seen.steps or not seen.steps[0].families:
        what = "no step" if not seen.steps else "no parameter family"
        return note("refuse", "probe", f"the probe saw {what}: nothing to match" + (f" ({why})" if why else ""), todo=todo)
    if seen.steps[0].step != 0:
        reason = f"the first step that the probe saw is {seen.steps[0].step}, not 0"
        return note("refuse", "probe", reason, 0, seen.steps[0].step, todo="attach the probe before training begins")
    return None


def _alive(run: Evidence, seen: Fingerprint, first: FirstStep) -> Iterator[Finding]:
    if seen.not_finite:
        shown = ", ".join(seen.not_finite[:6]) + ("…" if len(seen.not_finite) > 6 else "")
        yield note("refuse", "finite fingerprint", f"an exact fact: not finite: {shown}", 0, len(seen.not_finite))
    todo = "compare from a checkpoint that has been trained a little, and see that the loss reaches the weights"
    total = math.sqrt(sum((f.grad_norm or 0.0) ** 2 for f in first.families.values()))
    if total == 0.0:
        yield note(
            "refuse", "model alive: gradient", "the gradient is zero: a dead model matches any other", None, 0.0, todo=todo
        )
    record = run.step(0)
    loss = first.loss if first.loss is not None else record.lm_loss if record else None
    flat = math.log(seen.vocab_size) if seen.vocab_size > 1 else math.nan
    if loss is not None and abs(loss - flat) <= DEAD_LOSS * flat:
        reason = f"the loss is ln({seen.vocab_size}) = {flat:.6f}: every token is predicted alike, so nothing can be compared"
        yield note("refuse", "model alive: loss", reason, None, loss, todo=todo)
    if total and not (loss is not None and abs(loss - flat) <= DEAD_LOSS * flat):
        count = len(first.families)
        yield note("admit", "model alive", f"gradient norm {total:.6g} over {count} families, loss away from ln(vocabulary)")


def _replicas(seen: Fingerprint) -> Iterator[Finding]:
    bad = False
    for step in seen.steps:
        for what, names in (("gradient", step.grad_replicas), ("weight", step.weight_replicas)):
            if names:
                bad = True
                reason = f"an exact fact: {what}s of {', '.join(names)} are not the same on all their replicas"
                yield note("refuse", f"{what} replicas of step {step.step}", reason, "same", ", ".join(names))
        if step.batch is not None and step.batch.replicas_differ:
            bad = True
            reason = "an exact fact: ranks that share one model replica saw different rows"
            yield note("refuse", f"batch replicas of step {step.step}", reason, "same", "different")
    compared = max((s.replicas_compared for s in seen.steps), default=0)
    copies = seen.layout.get("dp", 1) * seen.layout.get("cp", 1)
    if copies > 1 and not compared:
        yield note("review", "replicas", f"nothing was compared although weights have {copies} copies", copies, 0)
    elif not bad:
        text = f"{compared} pairs of replicas agree bit for bit" if compared else "no parameter has a replica in this layout"
        yield note("admit", "replicas", text)


def _stale(seen: Fingerprint) -> Iterator[Finding]:
    for step in seen.steps:
        for name, family in sorted(step.families.items()):
            if family.stale:
                reason = f"an exact fact: {family.stale} weights in use are not the optimizer's own"
                yield note("refuse", f"stale weights of step {step.step}: {name}", reason, 0, family.stale)


def _clip(seen: Fingerprint, step: FirstStep, limits: Limits, precision: str) -> Iterator[Finding]:
    clip, limit, after = step.clip, seen.declared.clip_grad, f", step {step.step}" if step.step else ""
    if clip is None or clip.norm is None or clip.coefficient_min is None or clip.coefficient_max is None:
        yield note("review", f"clip{after}", f"what clipping did was not seen: {seen.missing.get('clip', 'no figures')}")
        return
    expected = min(1.0, limit / (clip.norm + CLIP_EPSILON)) if limit else 1.0
    applied = _farther(expected, clip)
    for key, measured in (
        ("clip coefficient", Measured(expected, applied, relative(applied, expected))),
        (
            "clip norm",
            None if clip.used_norm is None else Measured(clip.norm, clip.used_norm, relative(clip.used_norm, clip.norm)),
        ),
    ):
        found = judge(key + after, measured, limits=limits, measure="clip", precision=precision) if measured else None
        if found is not None:
            yield _absolute(found)


def _farther(expected: float, clip: Clip) -> float:
    low, high = clip.coefficient_min or 0.0, clip.coefficient_max or 0.0
    return low if abs(low - expected) > abs(high - expected) else high


def _absolute(found: Finding) -> Finding:
    """Return a self-check: what lies between its limits is for a person, for a check launch would do the same thing."""
    return found.model_copy(update={"check": False})


def _fits(seen: Fingerprint, limits: Limits, precision: str) -> Iterator[Finding]:
    """Fit every observed update: the first one sees rate, decay and epsilon, the second one betas and what became of states."""
    first = first_update(seen)
    for n, step in enumerate(seen.steps[first:]):
        yield from _fits_of(seen, step, limits, precision, after=f", step {step.step}" if n else "")


def _fits_of(seen: Fingerprint, step: FirstStep, limits: Limits, precision: str, *, after: str) -> Iterator[Finding]:
    families = [(n, f) for n, f in sorted(step.families.items()) if f.update_norm is not None]
    rates = sorted({g.lr for g in step.groups if g.lr > 0})
    if not rates and not step.groups and seen.declared.lr:
        rates = [seen.declared.lr]
    if not families:
        why = seen.missing.get("update", "no figures")
        yield note("review", f"first update{after}", f"the update of step {step.step} was not seen: {why}")
        return
    if not rates:
        yield note(
            "admit", f"first update{after}", f"the learning rate of step {step.step} is 0: there is no update to fit", 0.0, 0.0
        )
        return
    for name, family in families:
        if family.update_norm == 0.0 and family.grad_norm:
            reason = f"its weights did not move at a learning rate of {rates[-1]:g}"
            yield note("refuse", f"update of step {step.step}: {name}", reason, None, 0.0)
    decays = sorted({g.weight_decay for g in step.groups}) or [0.0, seen.declared.weight_decay or 0.0]
    fitted = [_nearest(n, f.lr, rates, share=True) for n, f in families if f.lr is not None]
    decayed = [_nearest(n, f.weight_decay, decays, share=False) for n, f in families if f.weight_decay is not None]
    rest = [_share(n, f) for n, f in families if f.unexplained is not None]
    measured: tuple[tuple[str, Measure, list[Measured]], ...] = (
        ("learning rate fitted", "lr_fit", fitted),
        ("weight decay fitted", "wd_fit", decayed),
        ("unexplained update", "unexplained", rest),
    )
    for key, measure, values in measured:
        if values:
            yield from _fit(key + after, measure, values, limits, precision, rate=rates[0])
        if len(values) < len(families) and not seen.missing:
            unfitted = sorted({n for n, _ in families} - {m.family for m in values})
            yield note("review", f"not seen: {key}{after}", f"no figure for {', '.join(unfitted)}")


def _fit(key: str, measure: Measure, values: list[Measured], limits: Limits, precision: str, *, rate: float) -> Iterator[Finding]:
    scale = fit_scale(limits.find(measure, precision), rate)
    if scale > MAX_SCALE:
        yield note("admit", key, f"not judged: at a learning rate of {rate:g} it drowns in rounding; groups are compared instead")
        return
    for found in judge_families(key, values, limits=limits, measure=measure, precision=precision, scale=scale):
        yield _absolute(found)


def fit_scale(tolerance: Tolerance, rate: float) -> float:
    """Return by how much rounding widens a fit's limit: an update of half the size is rounded twice as coarsely."""
    return max(1.0, tolerance.at_lr / rate) if tolerance.at_lr and rate > 0 else 1.0


def _nearest(name: str, fitted: float, declared: list[float], *, share: bool) -> Measured:
    near = min(declared, key=lambda x: abs(x - fitted))
    off = relative(fitted, near) if share else abs(fitted - near)
    return Measured(near, fitted, off if math.isfinite(off) else math.inf, name)


def _share(name: str, family: Family) -> Measured:
    share = family.unexplained or 0.0
    return Measured(0.0, share, abs(share), name)


def _missing(seen: Fingerprint) -> Iterator[Finding]:
    for what, why in sorted(seen.missing.items()):
        yield note("review", f"not seen: {what}", f"the probe could not see {what}: {why}")
    for what, field in (("optimizer groups", "groups"), ("census of dtypes", "census")):
        blind = [s.step for s in seen.steps if not getattr(s, field)]
        if blind and what not in seen.missing:
            yield note("review", f"not seen: {what}", f"the probe could not see {what} in steps {blind}")
