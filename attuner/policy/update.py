"""The third look, backward and update: gradients and first updates per parameter family, loaded weights, optimizer groups,
dtypes, and what the first update did to the next step. It needs no launch of its own: the probe saw steps 0 and 1.

Differences are judged against the baseline, self-checks (`selfcheck`) against absolute limits. Updates hardly see a gradient's
scale (Adam divides by it), so gradients are judged themselves.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from attuner.core.fingerprint import Family, Fingerprint, FirstStep, Group
from attuner.core.judgement import Finding, Verdict, verdict_of
from attuner.core.run import Evidence
from attuner.policy.causes import explained
from attuner.policy.forward import observed, rounding
from attuner.policy.selfcheck import first_update, fit_scale, note, own_verdict, self_checks, without_carried
from attuner.policy.zones import Limits, Measure, Measured, judge, judge_families, relative

EXACT_WEIGHTS = 1.0e-9
"""Loaded weights are the same numbers in every layout, but their norm and projection are sums in another order: of the norm.
Source: summing in float64 differs by about 1e-12."""
NORM_DIGITS = 5.0e-4
"""Half of the last digit of a gradient norm that Megatron's log prints with three decimals, twice."""


def update_look(
    reference: Sequence[Evidence],
    candidate: Evidence,
    *,
    limits: Limits,
    subject: str,
    recipe: str,
    replayed: bool = False,
    own: bool = False,
) -> Verdict:
    """Judge the backward side and the first update of a finished run.

    Args:
        reference: the baseline's finished runs; the first is compared with. Empty for the baseline's first run.
        candidate: the run.
        limits: the stack's tolerances.
        subject: what the verdict is about, e.g. `l07#1`.
        recipe: digest of the candidate's recipe.
        replayed: the runs are rows of a replayed table, which holds no gradients.
        own: the run is the baseline's own: what it fails by itself is for a person, except what makes it worthless.
    """
    base = (list(reference) or [candidate])[0]
    if candidate.fingerprint is None:
        findings = _blind(base, candidate, limits, replayed)
    else:
        mine = self_checks(candidate, limits)
        findings = own_verdict(mine) if own else without_carried(mine, self_checks(base, limits))
        if base.fingerprint is None:
            why = base.unseen or "it left no fingerprint"
            findings.append(note("review", "third look", f"the baseline's run {base.label} has nothing to compare with: {why}"))
        else:
            findings += _differences(base, candidate, base.fingerprint, candidate.fingerprint, limits)
    return verdict_of("update", subject, recipe, explained(base, candidate, findings))


# ------------------------------------------------------------------------------------------------- without a fingerprint


def _blind(base: Evidence, candidate: Evidence, limits: Limits, replayed: bool) -> list[Finding]:
    """Return what can be said without a fingerprint: that the look was not taken, and what a log tells of it."""
    if replayed and base.fingerprint is None:
        return [note("admit", "third look", "not looked: a replayed table holds no gradients")]
    why = candidate.unseen or "the run left no fingerprint"
    todo = "attach the probe: `python -m attuner.runner.probe SCRIPT ARGS…`"
    out = [note("review", "third look", f"not taken: {why}; what acts at the update rests on the first look alone", todo=todo)]
    for step, measure in ((0, "grad_norm"), (1, "grad_norm_step1")):
        old, new = base.step(step), candidate.step(step)
        if old is None or new is None or not old.grad_norm or new.grad_norm is None or not math.isfinite(new.grad_norm):
            continue
        printed = 2 * NORM_DIGITS / old.grad_norm if base.printed or candidate.printed else 0.0
        found = judge(
            "gradient norm" if step == 0 else "step-1 gradient norm",
            Measured(old.grad_norm, new.grad_norm, relative(new.grad_norm, old.grad_norm)),
            limits=limits,
            measure=measure,  # type: ignore[arg-type]
            precision=candidate.precision,
            rounding=printed,
        )
        out += [found] if found else []
    return out + list(_step1_loss(base, candidate, limits))


# ------------------------------------------------------------------------------------------------- differences


def _differences(base: Evidence, candidate: Evidence, old: Fingerprint, new: Fingerprint, limits: Limits) -> list[Finding]:
    pairs = observed(base, candidate)
    if not pairs or pairs[0][0].step != 0:
        return [note("review", "third look", "the two runs have no observed step 0 in common")]
    first_old, first_new = pairs[0]
    out = [*_frame(old, new), *_first_bad([list(_families(a, b)) for a, b in pairs])]
    if old.precision != new.precision:
        return out  # nothing else can be the same
    out += _weights(first_old, first_new)
    out += _first_bad([list(_groups(a, b)) for a, b in pairs])
    out += _first_bad([list(_dtypes(a, b)) for a, b in pairs])
    out += _gradients(first_old, first_new, limits, candidate.precision)
    out += _clip_change(first_old, first_new, limits, candidate.precision)
    out += _updates(*pairs[min(first_update(old), len(pairs) - 1)], limits, candidate.precision)
    if len(pairs) > 1:
        out += _step1(pairs[1][0], pairs[1][1], limits, candidate.precision, moved=first_update(old) == 0)
    else:
        out.append(
            note("review", "step-1 gradient norm", "step 1 was not observed in both runs", todo="let the probe see two steps")
        )
    return out + list(_step1_loss(base, candidate, limits))


def _first_bad(steps: list[list[Finding]]) -> list[Finding]:
    """Return the findings of the first step that has something to object to; the later ones repeat it."""
    return next((found for found in steps if any(f.decision != "admit" for f in found)), steps[0])


def _frame(old: Fingerprint, new: Fingerprint) -> Iterator[Finding]:
    for what in ("precision", "vocab_size"):
        before, after = getattr(old, what), getattr(new, what)
        if before != after:
            yield note(
                "refuse", what.replace("vocab_size", "padded vocabulary"), "an exact fact: it is another one", before, after
            )
    for what in ("optimizer", "betas", "eps", "weight_decay", "clip_grad", "lr"):
        before, after = getattr(old.declared, what), getattr(new.declared, what)
        if before != after:
            reason = "an exact fact: the runs declare different optimizers"
            yield note("refuse", f"declared {what}", reason, _plain(before), _plain(after))


def _plain(value: object) -> str | float | int | None:
    return value if isinstance(value, str | float | int) or value is None else str(value)


def _families(old: FirstStep, new: FirstStep) -> Iterator[Finding]:
    for name in sorted(old.families.keys() ^ new.families.keys()):
        which = "baseline" if name in old.families else "candidate"
        before, after = (f.families[name].numel if name in f.families else None for f in (old, new))
        yield note("refuse", f"parameters of {name}", f"an exact fact: only the {which} has them", before, after)
    for name, a, b in _both(old, new):
        if a.numel != b.numel:
            yield note("refuse", f"parameters of {name}", "an exact fact: another number of them", a.numel, b.numel)


def _both(old: FirstStep, new: FirstStep) -> list[tuple[str, Family, Family]]:
    return [(name, f, new.families[name]) for name, f in sorted(old.families.items()) if name in new.families]


def _weights(old: FirstStep, new: FirstStep) -> list[Finding]:
    """Compare the weights that step 0's forward used: exact, but for the order of two sums."""
    out, compared = [], 0
    for name, a, b in _both(old, new):
        if None in (a.weight_norm, a.weight_projection, b.weight_norm, b.weight_projection):
            continue
        compared += 1
        norm = a.weight_norm or 0.0
        off = max(abs((b.weight_norm or 0.0) - norm), abs((b.weight_projection or 0.0) - (a.weight_projection or 0.0)))
        if off > EXACT_WEIGHTS * norm:
            reason = (
                f"an exact fact: the loaded weights are other ones, off by {off / norm if norm else math.inf:.2g} of their norm"
            )
            out.append(note("refuse", f"loaded weights {name}", reason, a.weight_projection, b.weight_projection))
    if compared < len(_both(old, new)):
        out.append(note("review", "loaded weights", f"seen in {compared} of {len(_both(old, new))} families"))
    elif not out:
        out.append(note("admit", "loaded weights", f"norm and projection of all {compared} families are the same"))
    return out


def _groups(old: FirstStep, new: FirstStep) -> Iterator[Finding]:
    if not old.groups or not new.groups:
        return  # the self-check names what was not seen
    before, after = _sorted_groups(old.groups), _sorted_groups(new.groups)
    if before == after:
        yield note("admit", "optimizer groups", f"{len(before)} groups, the same settings for the same number of parameters")
        return
    wrong = sorted(key for key in before.keys() | after.keys() if before.get(key) != after.get(key))
    texts = ("; ".join(f"{side[key]:,} parameters with {key}" for key in wrong if key in side) for side in (before, after))
    reason = f"an exact fact: other groups than the baseline's, as the optimizer had them in step {old.step}"
    yield note("refuse", "optimizer groups", reason, *texts)


def _sorted_groups(groups: Sequence[Group]) -> dict[str, int]:
    """Return parameters by setting: how many groups hold them, and in which order, is a matter of layout."""
    found: dict[str, int] = {}
    for g in groups:
        betas = ", ".join(f"{b:.9g}" for b in g.betas)
        eps = "" if g.eps is None else f" eps {g.eps:.9g}"
        key = f"lr {g.lr:.9g} weight decay {g.weight_decay:.9g} betas ({betas}){eps}"
        if g.numel:
            found[key] = found.get(key, 0) + g.numel
    return found


def _dtypes(old: FirstStep, new: FirstStep) -> Iterator[Finding]:
    """Compare the census. Kinds that only one run has are named; of kinds with several dtypes the shares count too."""
    if not old.census or not new.census:
        return
    before, after = _census(old.census), _census(new.census)
    wrong = False
    for kind in sorted(before.keys() | after.keys()):
        a, b = before.get(kind, {}), after.get(kind, {})
        if not a or not b:
            which = "baseline" if a else "candidate"
            wrong = True
            yield note("review", f"not seen: dtype of {kind}", f"only in the {which}'s run", _dtype_text(a), _dtype_text(b))
        elif a.keys() != b.keys() or any(abs(a[d] - b[d]) > 1e-6 for d in a):
            wrong = True
            reason = "an exact fact: other dtypes than the baseline's, as the run really had them"
            yield note("refuse", f"dtype of {kind}", reason, _dtype_text(a), _dtype_text(b))
    if not wrong:
        text = ", ".join(f"{kind} {_dtype_text(shares)}" for kind, shares in after.items())
        yield note("admit", "dtypes", f"the same census: {text}")


def _census(census: dict[str, int]) -> dict[str, dict[str, float]]:
    """Return shares of dtypes by kind; where nothing is counted, each dtype seen has the share 1."""
    counts: dict[str, dict[str, int]] = {}
    for name, count in census.items():
        kind, _, dtype = name.rpartition(" ")
        counts.setdefault(kind, {})[dtype] = count
    return {
        kind: {d: c / total for d, c in found.items() if c} if (total := sum(found.values())) else dict.fromkeys(found, 1.0)
        for kind, found in counts.items()
    }


def _dtype_text(shares: dict[str, float]) -> str:
    return ", ".join(d if len(shares) == 1 else f"{d} {share:.1%}" for d, share in sorted(shares.items())) or "none"


# ------------------------------------------------------------------------------------------------- measured


def _pairs(old: FirstStep, new: FirstStep, field: str, unit: str = "") -> tuple[list[Measured], list[str]]:
    """Return a field of every family beside the baseline's, and the families where it was not seen in either run.

    unit: the field whose baseline value the difference is a fraction of; '' for the field itself.
    """
    found, unseen = [], []
    for name, a, b in _both(old, new):
        before, after = getattr(a, field), getattr(b, field)
        if before is None or after is None:
            unseen.append(name)
            continue
        size = getattr(a, unit) if unit else before
        off = 0.0 if before == after else abs(after - before) / abs(size) if size else math.inf
        found.append(Measured(before, after, off, name))
    return found, unseen


def _measured(
    key: str, measure: Measure, values: tuple[list[Measured], list[str]], limits: Limits, precision: str, scale: float = 1.0
) -> list[Finding]:
    found, unseen = values
    out = judge_families(key, found, limits=limits, measure=measure, precision=precision, scale=scale)
    if unseen and any(limits.find(measure, precision, name).judged for name in unseen):
        out.append(note("review", f"not seen: {key}", f"not seen in both runs: {', '.join(unseen)}"))
    return out


def _gradients(old: FirstStep, new: FirstStep, limits: Limits, precision: str) -> list[Finding]:
    return [
        *_measured("gradient norm", "grad_norm", _pairs(old, new, "grad_norm"), limits, precision),
        *_measured("gradient projection", "grad_projection", _pairs(old, new, "grad_projection", "grad_norm"), limits, precision),
        *_measured("gradient zeros", "zeros", _pairs(old, new, "zeros", "numel"), limits, precision),
    ]


def _clip_change(old: FirstStep, new: FirstStep, limits: Limits, precision: str) -> list[Finding]:
    before = old.clip.coefficient_min if old.clip else None
    after = new.clip.coefficient_min if new.clip else None
    if before is None or after is None:
        return []  # the self-check names what was not seen
    key = "clip coefficient beside the baseline's"
    found = judge(
        key, Measured(before, after, relative(after, before)), limits=limits, measure="clip_change", precision=precision
    )
    return [found] if found else []


def _updates(old: FirstStep, new: FirstStep, limits: Limits, precision: str) -> list[Finding]:
    if all(f.update_norm is None for f in new.families.values()):
        return []  # the self-check names it
    rate = min((g.lr for g in old.groups if g.lr > 0), default=0.0)
    decay = limits.find("wd_fit", precision)
    fitted, _ = _pairs(old, new, "weight_decay")
    own = [Measured(m.before, m.after, abs(float(m.after) - float(m.before)), m.family) for m in fitted]  # type: ignore[arg-type]
    return [
        *_measured("update norm", "update_norm", _pairs(old, new, "update_norm"), limits, precision),
        *_measured(
            "update projection", "update_projection", _pairs(old, new, "update_projection", "update_norm"), limits, precision
        ),
        *(
            f.model_copy(update={"check": False})
            for f in judge_families(
                "weight decay fitted, beside the baseline's",
                own,
                limits=limits,
                measure="wd_fit",
                precision=precision,
                scale=fit_scale(decay, rate),
            )
        ),
    ]


def _step1(old: FirstStep, new: FirstStep, limits: Limits, precision: str, *, moved: bool) -> list[Finding]:
    """Compare the gradients after the first update, and the second update: betas and states show there first."""
    projection = _pairs(old, new, "grad_projection", "grad_norm")
    out = [
        *_measured("step-1 gradient norm", "grad_norm_step1", _pairs(old, new, "grad_norm"), limits, precision),
        *_measured("step-1 gradient projection", "grad_projection_step1", projection, limits, precision),
    ]
    if moved and any(f.update_norm is not None for f in new.families.values()):
        norm, direction = _pairs(old, new, "update_norm"), _pairs(old, new, "update_projection", "update_norm")
        out += _measured("step-1 update norm", "update_norm_step1", norm, limits, precision)
        out += _measured("step-1 update projection", "update_projection_step1", direction, limits, precision)
    return out


def _step1_loss(base: Evidence, candidate: Evidence, limits: Limits) -> Iterator[Finding]:
    before, after = base.losses().get(1), candidate.losses().get(1)
    if before is None or after is None:
        yield note("review", "step-1 loss", "no loss of step 1 in both runs", before, after, todo="run at least two steps")
    elif math.isfinite(before) and math.isfinite(after):  # the second look refuses what isn't finite
        found = judge(
            "step-1 loss",
            Measured(before, after, relative(after, before)),
            limits=limits,
            measure="loss_step1",
            precision=candidate.precision,
            rounding=rounding(base, candidate),
        )
        if found is not None:
            yield found
