"""The second look, forward: step-0 loss, auxiliary losses, the number of loss tokens, the batch really consumed, finite losses,
and the whole curve. Pure: the same evidence gives the same verdict for ever.

Tokens and batch are exact facts: whatever differs is refused. Losses have three zones (`zones`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from attuner.core.fingerprint import Batch, FirstStep
from attuner.core.judgement import Decision, Finding, Verdict, verdict_of
from attuner.core.run import Evidence
from attuner.policy.causes import explained
from attuner.policy.curve import curve_look
from attuner.policy.zones import Limits, Measured, judge, relative

RULE = "forward-look"
PAPER_TOLERANCE = 0.05
"""Source: ATTUNE (October 2026), section 3.2: step-0 loss within 5%."""
LOG_ROUNDING = 1.0e-6
"""Two losses printed with seven digits differ by this much at most though they are equal."""
DIGESTS = {
    "inputs": "token ids",
    "labels": "labels",
    "loss_mask": "loss mask",
    "positions": "position ids",
    "targets": "labels with their loss mask",
    "rows_digest": "whole rows, inputs with their targets",
}


def forward_look(
    reference: Sequence[Evidence],
    candidate: Evidence,
    *,
    limits: Limits,
    subject: str,
    recipe: str,
    replayed: bool = False,
) -> Verdict:
    """Judge the forward side of a finished run.

    Args:
        reference: the baseline's finished runs; the first is the one compared with, all give the replicates' spread. Empty
            for the baseline's first run, which is compared with itself: then only what needs no comparison can speak.
        candidate: the run.
        limits: the stack's tolerances.
        subject: what the verdict is about, e.g. `l07#1`.
        recipe: digest of the candidate's recipe.
        replayed: the runs are rows of a replayed table: what a table can't hold is not held against them.
    """
    runs = list(reference) or [candidate]
    base = runs[0]
    findings = [
        *_step0(base, candidate, limits),
        _finite(candidate),
        *_aux(base, candidate, limits),
        *_tokens(base, candidate),
        *_batches(base, candidate, replayed),
        *curve_look(runs, candidate, limits=limits, excused=_excuse(base, candidate, replayed)),
    ]
    return verdict_of("forward", subject, recipe, explained(base, candidate, findings))


def paper_gate(reference: Sequence[Evidence], candidate: Evidence) -> Verdict:
    """Return what the paper's gate alone says of a run, besides the first look: step-0 loss within 5%, losses finite."""
    base = (list(reference) or [candidate])[0]
    before, after = _loss0(base), _loss0(candidate)
    usable = before is not None and after is not None and math.isfinite(before) and math.isfinite(after)
    off = relative(after, before) if usable and before is not None and after is not None else math.inf
    decision: Decision = "admit" if off <= PAPER_TOLERANCE else "refuse"
    step0 = _finding(decision, "step-0 loss", f"off by {off:.2e}; the paper's tolerance {PAPER_TOLERANCE:g}", before, after)
    return verdict_of("forward", candidate.label, candidate.recipe, [step0, _finite(candidate)])


def _loss0(run: Evidence) -> float | None:
    first = run.step(0)
    return first.lm_loss if first else None


def _finding(
    decision: Decision,
    key: str,
    reason: str,
    before: float | int | str | None = None,
    after: float | int | str | None = None,
    *,
    todo: str = "",
) -> Finding:
    values = [x if not isinstance(x, float) or math.isfinite(x) else str(x) for x in (before, after)]
    return Finding(rule=RULE, decision=decision, key=key, before=values[0], after=values[1], reason=reason, todo=todo)


def _step0(base: Evidence, candidate: Evidence, limits: Limits) -> list[Finding]:
    before, after = _loss0(base), _loss0(candidate)
    if after is None:
        todo = "see the run's log; a look needs the loss of step 0"
        return [_finding("refuse", "step-0 loss", "the run has no loss for step 0", before, None, todo=todo)]
    if not math.isfinite(after):
        return [_finding("refuse", "step-0 loss", "the first loss is not finite", before, after)]
    if before is None or not math.isfinite(before) or before == 0.0:
        return [_finding("refuse", "step-0 loss", "the baseline's first loss is no number to compare with", before, after)]
    found = judge(
        "step-0 loss",
        Measured(before, after, relative(after, before)),
        limits=limits,
        measure="loss_step0",
        precision=candidate.precision,
        rounding=rounding(base, candidate),
    )
    return [found] if found else []


def rounding(*runs: Evidence) -> float:
    """Return what printing hides of a loss: nothing, unless a run is read from a log."""
    return LOG_ROUNDING if any(r.printed for r in runs) else 0.0


def _finite(run: Evidence) -> Finding:
    bad = [s.step for s in run.steps if not all(math.isfinite(v) for v in (s.lm_loss, s.grad_norm or 0.0, *s.aux.values()))]
    if bad:
        return _finding(
            "refuse", "finite losses", f"loss or gradient norm of steps {bad} is not finite", len(run.steps), len(bad)
        )
    if not run.steps:
        return _finding("refuse", "finite losses", "the run has no step", todo="see the run's log")
    return _finding("admit", "finite losses", f"all {len(run.steps)} losses are finite")


def _aux(base: Evidence, candidate: Evidence, limits: Limits) -> list[Finding]:
    """Compare every auxiliary loss of step 0; one that only one run has is another objective."""
    old, new = (dict(first.aux) if (first := run.step(0)) else {} for run in (base, candidate))
    if not old and not new and (seen := observed(base, candidate)):  # a trainer that writes none: the probe's word for both
        old, new = ({k: v for k, v in s.aux.items() if v is not None} for s in seen[0])
    out = []
    for name in sorted(old.keys() | new.keys()):
        key = f"auxiliary loss {name}"
        if name not in old or name not in new:
            which = "baseline" if name in old else "candidate"
            out.append(_finding("refuse", key, f"only the {which} has this loss", old.get(name), new.get(name)))
        elif math.isfinite(new[name]):  # `finite losses` speaks about the others
            found = judge(
                key,
                Measured(old[name], new[name], relative(new[name], old[name])),
                limits=limits,
                measure="aux",
                precision=candidate.precision,
                rounding=rounding(base, candidate),
            )
            out += [found] if found else []
    return out


def _tokens(base: Evidence, candidate: Evidence) -> list[Finding]:
    """Compare the exact number of loss tokens of every step that both runs tell."""
    old = {s.step: s.loss_tokens for s in base.steps if s.loss_tokens is not None}
    new = {s.step: s.loss_tokens for s in candidate.steps if s.loss_tokens is not None}
    common = [t for t in sorted(old.keys() & new.keys()) if old[t] or new[t]]  # 0 in both: this trainer doesn't count them
    wrong = [t for t in common if old[t] != new[t]]
    if wrong:
        reason = f"an exact fact: the loss of steps {wrong[:8]} is a mean over another number of tokens"
        return [_finding("refuse", f"loss tokens of step {wrong[0]}", reason, _whole(old[wrong[0]]), _whole(new[wrong[0]]))]
    if common:
        count = _whole(old[common[0]])
        return [_finding("admit", "loss tokens", f"the same number in all {len(common)} steps", count, count)]
    return []  # logs don't say it; the batch's finding names what was not seen


def _whole(count: float | None) -> float | int | None:
    return int(count) if count is not None and count == int(count) else count


def _batches(base: Evidence, candidate: Evidence, replayed: bool) -> list[Finding]:
    """Compare the rows that the observed steps really consumed."""
    seen = [(own, theirs) for own, theirs in observed(base, candidate) if own.batch and theirs.batch]
    if not seen:
        why = candidate.unseen or base.unseen or "no fingerprint of it"
        if candidate.fingerprint and base.fingerprint:
            why = candidate.fingerprint.missing.get("batch") or base.fingerprint.missing.get("batch") or "the probe saw no batch"
        if replayed:
            return [_finding("admit", "batch", f"not looked: a replayed table holds no batch ({why})")]
        todo = "attach the probe to both runs: `python -m attuner.runner.probe SCRIPT ARGS…`"
        return [_finding("review", "batch", f"the batch really consumed was not compared: {why}", todo=todo)]
    out: list[Finding] = []
    half = [own.step for own, theirs in observed(base, candidate) if bool(own.batch) != bool(theirs.batch)]
    if half:
        out.append(_finding("review", f"batch of step {half[0]}", "the probe saw it in one of the two runs only"))
    for own, theirs in seen:
        if own.batch and theirs.batch:
            out += _batch(own.step, own.batch, theirs.batch)
    if not out:
        digest = seen[0][0].batch.rows_digest[:12] if seen[0][0].batch else ""
        reason = f"tokens, labels, mask and positions of steps {[s.step for s, _ in seen]} are the same, bit for bit"
        out.append(_finding("admit", "batch", reason, digest, digest))
    return out


def observed(base: Evidence, candidate: Evidence) -> list[tuple[FirstStep, FirstStep]]:
    """Return the steps that the probe saw in both runs, baseline first."""
    if base.fingerprint is None or candidate.fingerprint is None:
        return []
    theirs = {s.step: s for s in candidate.fingerprint.steps}
    return [(s, theirs[s.step]) for s in base.fingerprint.steps if s.step in theirs]


def _batch(step: int, old: Batch, new: Batch) -> list[Finding]:
    out = []
    for name, what in (("rows", "rows"), ("loss_tokens", "loss tokens")):
        before, after = getattr(old, name), getattr(new, name)
        if before != after:
            out.append(
                _finding("refuse", f"batch {what} of step {step}", f"an exact fact: another number of {what}", before, after)
            )
    for name, what in DIGESTS.items():
        before, after = getattr(old, name), getattr(new, name)
        if before == after or (name == "rows_digest" and not (before and after)):
            continue
        if name in ("targets", "rows_digest") and out:
            continue  # a sum of what was said already
        reason = f"an exact fact: the {what} consumed are not the baseline's"
        out.append(_finding("refuse", f"batch {what} of step {step}", reason, before[:12], after[:12]))
    return out


def _excuse(base: Evidence, candidate: Evidence, replayed: bool) -> str:
    """Return why a curve that is too flat to tell needs no person."""
    if replayed:
        return "a replayed table's losses are made up"
    updates = [f.update_norm for _, s in observed(base, candidate)[:1] for f in s.families.values()]
    return "the third look saw the update itself" if updates and None not in updates else ""
