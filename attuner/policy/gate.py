"""The gate: pure functions that judge a candidate against the baseline.

First look (`config_look`, here): every final value that differs is looked up in the register. The second (`forward_look`) and
the third (`update_look`) judge what a run left; they have modules of their own and are named here too. Nothing in policy reads
a clock, a file or a proposer's words: the same records give the same verdict for ever.
"""

from __future__ import annotations

from attuner.core.base import Value
from attuner.core.judgement import ComponentTest, Decision, Finding, Verdict, worst
from attuner.core.recipe import Change, EffectiveConfig, differences, same_value
from attuner.policy.forward import forward_look, paper_gate
from attuner.policy.register import Register, Rule
from attuner.policy.update import update_look

__all__ = ["config_look", "forward_look", "missing_tests", "paper_gate", "update_look"]

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
    spoken = register.speaking(before, after, candidate.versions)
    said = {rule.id: decision for rule, decision in spoken}
    findings: list[Finding] = []
    changes = differences(baseline, candidate)
    for change in changes:
        own = [rule for rule in register.covering(change.key) if rule.id in said]
        if not own:
            findings.append(_finding(None, "review", change, UNCOVERED))
        for rule in own:
            findings.append(_apply(rule, said[rule.id], change, tests, scope))
    heard = {f.rule for f in findings}
    for rule, decision in spoken:  # a defect that fires on a derived condition although none of its own keys changed
        if rule.id not in heard:
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
