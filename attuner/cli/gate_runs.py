"""`attuner gate --runs BASE CANDIDATE`: the looks on two finished runs, without a campaign: a pull request's check.

Each run is the folder of a launch, a folder that an attached probe left, or a plain Megatron log. The verdicts are those of a
campaign: the same functions, limits and rules. A look that was not possible is named, and then the best answer is `review`.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attuner.config import load_register, load_tolerances
from attuner.core.errors import UserError
from attuner.core.judgement import Decision, Finding, Verdict, verdict_of, worst
from attuner.core.recipe import EffectiveConfig
from attuner.policy.forward import forward_look
from attuner.policy.gate import config_look
from attuner.policy.update import update_look
from attuner.settings import Settings, load_settings

if TYPE_CHECKING:
    from attuner.stacks.finished import FinishedRun

LOOKS = {"config": "first look, final values", "forward": "second look, forward", "update": "third look, backward and update"}


@dataclass(frozen=True)
class Judged:
    """What the looks say of two runs."""

    base: str
    candidate: str
    stack: str
    verdicts: list[Verdict]
    impossible: dict[str, str] = field(default_factory=dict)
    """Look → why it was not possible."""
    baseline: Verdict | None = None
    """What the baseline's run shows by itself, if that isn't in order."""
    notes: list[str] = field(default_factory=list)

    @property
    def decision(self) -> Decision:
        """Return the strictest answer; without all three looks it is `review` at best."""
        said: list[Decision] = [v.decision for v in self.verdicts]
        if self.impossible:
            said.append("review")
        if self.baseline is not None and self.baseline.decision == "refuse":
            said.append("refuse")  # a dead baseline is matched by any dead candidate
        return worst(said)

    def data(self) -> dict[str, Any]:
        """Return plain data for `--json`."""
        return {
            "decision": self.decision,
            "base": self.base,
            "candidate": self.candidate,
            "stack": self.stack,
            "looks": {v.look: v.data() for v in self.verdicts},
            "not_possible": self.impossible,
            "baseline": self.baseline.data() if self.baseline else None,
            "notes": self.notes,
        }


def gate_runs(arguments: argparse.Namespace) -> int:
    """Judge a candidate's run against a baseline's; the exit code tells the decision."""
    from attuner.cli.gate import EXIT, print_finding

    settings = load_settings(project=arguments.project)
    found = judge_runs(Path(arguments.base), Path(arguments.candidate), settings, stack=arguments.stack)
    if arguments.json:
        print(json.dumps(found.data(), indent=1, ensure_ascii=False))
        return EXIT[found.decision]
    print(f"{found.decision:7} {found.candidate} against {found.base}")
    for look, title in LOOKS.items():
        verdict = next((v for v in found.verdicts if v.look == look), None)
        text = f"not possible: {found.impossible[look]}" if look in found.impossible else _summary(verdict)
        print(f"        {title}: {text}")
    for note in found.notes:
        print(f"        note: {note}")
    for verdict in [*found.verdicts, *([found.baseline] if found.baseline else [])]:
        if verdict is found.baseline:
            print(f"        the baseline's own run, by itself: {verdict.decision}")
        said = ""
        for finding in verdict.findings:
            again = finding.cause == said and bool(said)
            shown = finding.model_copy(update={"cause": "the same", "todo": ""}) if again else finding
            print_finding(shown, short=finding.decision == "admit")
            said = finding.cause
    return EXIT[found.decision]


def _summary(verdict: Verdict | None) -> str:
    if verdict is None or not verdict.findings:
        return "admit, nothing differs"
    counts = [f"{n} {word}" for word in ("refuse", "review", "admit") if (n := sum(f.decision == word for f in verdict.findings))]
    return f"{verdict.decision} ({', '.join(counts)})"


def judge_runs(base: Path, candidate: Path, settings: Settings, *, stack: str = "") -> Judged:
    """Return what the looks say of two finished runs.

    Raises:
        UserError: a run can't be read, or they are of different stacks.
    """
    from attuner.wiring import finished_run

    old, new = finished_run(base), finished_run(candidate)
    name = stack or _stack(old, new)
    limits = load_tolerances(settings.rules_dir(), name)
    reference, digest = [old.evidence], _digest(new)
    verdicts, impossible = [], {}
    if old.config is not None and new.config is not None:
        verdicts.append(_config(settings, name, old.config, new.config, recipe=digest))
    else:
        which = base if old.config is None else candidate
        impossible["config"] = f"{which}: {old.no_config or new.no_config}"
    subject = str(candidate)
    forward = forward_look(reference, new.evidence, limits=limits, subject=subject, recipe=digest)
    verdicts.append(verdict_of("forward", subject, digest, [*forward.findings, *_rows(old, new)]))
    update = update_look(reference, new.evidence, limits=limits, subject=subject, recipe=digest)
    own = update_look([], old.evidence, limits=limits, subject=str(base), recipe=_digest(old), own=True)
    if old.evidence.fingerprint is None or new.evidence.fingerprint is None:
        blind = base if old.evidence.fingerprint is None else candidate
        why = old.evidence.unseen or new.evidence.unseen or "no fingerprint"
        impossible["update"] = f"{blind}: {why}; of it, a log shows the gradient's norm and step 1's loss alone"
        own = own.model_copy(update={"decision": "admit"})
    verdicts.append(update)
    notes = [f"{path}: {note}" for path, run in ((base, old), (candidate, new)) for note in run.notes]
    mine = (
        None
        if own.decision == "admit"
        else own.model_copy(update={"findings": [f for f in own.findings if f.decision != "admit"]})
    )
    return Judged(str(base), str(candidate), name, verdicts, impossible, mine, notes)


def _stack(old: FinishedRun, new: FinishedRun) -> str:
    names = {run.stack for run in (old, new) if run.stack}
    if len(names) > 1:
        raise UserError(f"the runs are of different stacks ({', '.join(sorted(names))}); name the rules with --stack")
    return next(iter(names), "megatron")  # a probe attached by hand says no stack: it watches Megatron-LM's own loop


def _digest(run: FinishedRun) -> str:
    return run.config.argument_digest() if run.config is not None else ""


def _config(settings: Settings, stack: str, old: EffectiveConfig, new: EffectiveConfig, *, recipe: str) -> Verdict:
    """Return the first look at what both runs reported as final. Component tests are a campaign's, so none counts here."""
    register = load_register(settings.rules_dir(), stack)
    return config_look(register, old, new, subject="candidate", recipe=recipe, tests=[], scope="")


def _rows(old: FinishedRun, new: FinishedRun) -> list[Finding]:
    """Compare the rows of every update, where logs say them: an exact fact."""
    common = sorted(old.global_batch.keys() & new.global_batch.keys())
    wrong = [t for t in common if old.global_batch[t] != new.global_batch[t]]
    if not common:
        return []
    before, after = (run.global_batch[(wrong or common)[0]] for run in (old, new))
    reason = (
        f"an exact fact: updates of steps {wrong[:8]} take another number of rows" if wrong else "the same in every printed step"
    )
    decision: Decision = "refuse" if wrong else "admit"
    return [Finding(rule="forward-look", decision=decision, key="rows per update", before=before, after=after, reason=reason)]
