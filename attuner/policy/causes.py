"""The most likely cause of what a look found, from its signature: a loss offset of log(TP), a family's norm × TP, one loss
token less per row, a rate ten times the declared one. A cause is a hint for a person and decides nothing.

A fault shows where it acts and in everything that follows: data, weights, forward, gradients, clipping, update, later steps.
So a finding gets the earliest cause that is seen at or before its own stage; what needs no baseline (clip, fits, replicas)
gets only a cause that names it.
"""

from __future__ import annotations

from collections.abc import Sequence

from attuner.core.fingerprint import FAMILIES
from attuner.core.judgement import Finding
from attuner.core.run import Evidence
from attuner.policy.scene import Cause, Scene
from attuner.policy.signatures import RULES
from attuner.policy.zones import margin

MAX_FAMILIES = 3

STAGES = (
    ("loss tokens", "batch"),
    ("loaded weights", "parameters"),
    ("step-0 loss", "auxiliary loss"),
    ("gradient norm", "gradient projection", "gradient zeros"),
    ("clip coefficient beside",),
    ("update norm", "update projection"),
    ("step-1", "curve"),
)
"""Where a finding stands in the course of a step, by the beginning of its key."""


def explained(base: Evidence, candidate: Evidence, findings: Sequence[Finding]) -> list[Finding]:
    """Return the findings, each that doesn't admit with its most likely cause and what to do, where there is a signature."""
    if all(f.decision == "admit" for f in findings):
        return list(findings)
    scene = Scene.of(base, candidate, findings)
    causes = sorted((c for rule in RULES if (c := rule(scene)) is not None), key=lambda c: c.stage)
    return _shortened([_with_cause(f, causes) for f in findings])


def _shortened(findings: Sequence[Finding]) -> list[Finding]:
    """Return the findings with at most MAX_FAMILIES families of one measurement and decision; the worst name the others."""
    alike: dict[tuple[str, str, str], list[Finding]] = {}
    for f in findings:
        measurement, family = family_of(f)
        key = (measurement, f.rule, f.decision) if family and f.decision != "admit" else (f.key, f.rule, f.reason)
        alike.setdefault(key, []).append(f)
    out: list[Finding] = []
    for same in alike.values():
        shown = sorted(same, key=margin, reverse=True)[:MAX_FAMILIES]
        rest = sorted(name for f in same if f not in shown and (name := family_of(f)[1]))
        if rest:
            last = shown[-1]
            shown[-1] = last.model_copy(update={"reason": f"{last.reason}; so {_are(len(rest))} {', '.join(rest)}"})
        out += shown
    return out


def _are(count: int) -> str:
    return "is" if count == 1 else "are"


def family_of(finding: Finding) -> tuple[str, str]:
    """Return what was measured and the parameter family it is about, '' for none."""
    measurement, _, last = finding.key.rpartition(" ")
    return (measurement, last) if last in FAMILIES else (finding.key, "")


def _with_cause(finding: Finding, causes: Sequence[Cause]) -> Finding:
    if finding.decision == "admit" or finding.cause:
        return finding
    named = next((c for c in causes if any(finding.key.startswith(p) for p in c.names)), None)
    stage = stage_of(finding)
    cause = named or next((c for c in causes if stage is not None and c.stage <= stage), None)
    if cause is None:
        return finding
    return finding.model_copy(update={"cause": cause.text, "todo": finding.todo or cause.todo})


def stage_of(finding: Finding) -> int | None:
    """Return the stage of a finding, or None for one that follows from nothing else."""
    return next((i for i, keys in enumerate(STAGES) if any(finding.key.startswith(k) for k in keys)), None)
