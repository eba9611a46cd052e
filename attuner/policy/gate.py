"""The gate: pure functions that judge a candidate against the baseline.

First look (`config_look`): every final value that differs is looked up in the register. Second look (`forward_look`):
the first step's loss against the baseline's, and every loss finite. Nothing here reads a clock, a file or a proposer's
words: the same records give the same verdict for ever.
"""

from __future__ import annotations

import math

from attuner.core.base import Value
from attuner.core.judgement import ComponentTest, Decision, Finding, Verdict, worst
from attuner.core.recipe import Change, EffectiveConfig, differences, same_value
from attuner.core.run import Trial
from attuner.policy.register import Register, Rule, covers, decide, in_scope

UNCOVERED = "no rule covers this final value: it launches, must pass the later looks, and a person must review it"


def config_look(
    register: Register,
    baseline: EffectiveConfig,
    candidate: EffectiveConfig,
    *,
    subject: str,
    recipe: str,
    tests: list[ComponentTest],
    scope: str,
) -> Verdict:
    """Judge every final value that differs between baseline and candidate.

    Args:
        register: the stack's rules.
        baseline: final values of the campaign's baseline (never of the parent).
        candidate: final values of the candidate.
        subject: what the verdict is about, e.g. a hypothesis id.
        recipe: digest of the candidate's recipe.
        tests: component tests on record.
        scope: digest of shapes, precision and hardware; a test counts only at the same scope.
    """
    before, after = baseline.flat(), candidate.flat()
    rules = [rule for rule in register.rules if in_scope(rule, candidate.versions)]
    spoken = [(rule, d) for rule in rules if (d := decide(rule, before, after)) is not None]
    findings: list[Finding] = []
    changes = differences(baseline, candidate)
    for change in changes:
        own = [(rule, d) for rule, d in spoken if covers(rule, change.key)]
        if not own:
            findings.append(_finding(None, "review", change, UNCOVERED))
        for rule, decision in own:
            findings.append(_apply(rule, decision, change, tests, scope))
    keys = {c.key for c in changes}
    for rule, decision in spoken:  # a defect that fires on a derived condition although none of its own keys changed
        if not any(covers(rule, k) for k in keys):
            findings.append(Finding(rule=rule.id, decision=decision, reason=rule.reason, source=rule.source))
    return Verdict(
        look="config",
        subject=subject,
        recipe=recipe,
        decision=worst([f.decision for f in findings]),
        findings=sorted(findings, key=lambda f: (-["admit", "review", "refuse"].index(f.decision), f.key, f.rule)),
    )


def _apply(rule: Rule, decision: Decision, change: Change, tests: list[ComponentTest], scope: str) -> Finding:
    if rule.kind == "same-math" and decision == "admit":
        test = next((t for t in reversed(tests) if _matches(t, rule, change, scope)), None)
        if test is None:
            return _finding(rule, "review", change, f"{rule.reason}; no component test of `{rule.component}` on record")
        if not test.passed:
            return _finding(rule, "refuse", change, f"{rule.reason}; its component test failed: {test.why}")
        return _finding(rule, "admit", change, f"{rule.reason}; component test passed ({test.launch_id}: {test.why})")
    return _finding(rule, decision, change, rule.reason)


def _matches(test: ComponentTest, rule: Rule, change: Change, scope: str) -> bool:
    return (
        test.component == rule.component
        and test.argument == change.key
        and test.scope == scope
        and same_value(test.old, change.before)
        and same_value(test.new, change.after)
    )


def _finding(rule: Rule | None, decision: Decision, change: Change, reason: str) -> Finding:
    return Finding(
        rule=rule.id if rule else "uncovered",
        decision=decision,
        key=change.key,
        before=change.before,
        after=change.after,
        reason=reason,
        source=rule.source if rule else [],
    )


def missing_tests(register: Register, verdict: Verdict) -> list[tuple[str, str, Value, Value]]:
    """Return (component, argument, old, new) of every same-math swap that only lacks its test."""
    rules = {r.id: r for r in register.rules}
    return [
        (rules[f.rule].component, f.key, f.before, f.after)
        for f in verdict.findings
        if f.decision == "review" and f.rule in rules and rules[f.rule].kind == "same-math" and rules[f.rule].component
    ]


def forward_look(baseline_step0: float, trial: Trial, *, tolerance: float, recipe: str) -> Verdict:
    """Judge a finished run: step-0 loss within `tolerance` (relative) of the baseline's, every loss finite."""
    findings = []
    loss = trial.step0_loss()
    if loss is None:
        findings.append(_loss_finding("refuse", "step-0 loss", baseline_step0, None, "the run has no loss for step 0"))
    elif not math.isfinite(loss):
        findings.append(_loss_finding("refuse", "step-0 loss", baseline_step0, loss, "the first loss is not finite"))
    else:
        off = abs(loss - baseline_step0) / max(abs(baseline_step0), 1e-12)
        decision: Decision = "admit" if off <= tolerance else "refuse"
        why = f"step-0 loss off by {off:.2e} of the baseline's; tolerance {tolerance:g}"
        findings.append(_loss_finding(decision, "step-0 loss", baseline_step0, loss, why))
    bad = [s.step for s in trial.steps if not all(math.isfinite(v) for v in (s.lm_loss, s.grad_norm or 0.0, *s.aux.values()))]
    why = f"loss or gradient norm of steps {bad} is not finite" if bad else f"all {len(trial.steps)} losses are finite"
    findings.append(_loss_finding("refuse" if bad or not trial.steps else "admit", "finite losses", None, None, why))
    subject = f"{trial.launch_id}#{trial.attempt}"
    decision = worst([f.decision for f in findings])
    return Verdict(look="forward", subject=subject, recipe=recipe, decision=decision, findings=findings)


def _loss_finding(decision: Decision, key: str, before: float | None, after: float | None, reason: str) -> Finding:
    text = None if after is None else (after if math.isfinite(after) else str(after))
    return Finding(rule="forward-look", decision=decision, key=key, before=before, after=text, reason=reason)
