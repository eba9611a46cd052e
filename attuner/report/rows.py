"""One row per launch, and one per hypothesis that never launched: prediction, outcome, verdict, charge, in order.

A row is what the table shows and what the curve marks, so both always tell the same story.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from attuner.core.events import History
from attuner.core.judgement import Decision, Finding, Score, Verdict, worst
from attuner.core.run import Attempt, Launch, Trial
from attuner.core.search import Hypothesis
from attuner.policy import people

Outcome = Literal[
    "ok", "oom", "hang", "crash", "infrastructure", "stopped_early", "running", "set aside", "refused", "not launched"
]

OUTCOME_WORDS: dict[str, str] = {
    "ok": "ran",
    "oom": "out of memory",
    "hang": "hang",
    "crash": "crash",
    "infrastructure": "lost machine",
    "stopped_early": "stopped early",
    "running": "running",
    "set aside": "set aside, not run again yet",
    "refused": "refused, not launched",
    "not launched": "not launched",
}
FAILED = frozenset({"oom", "hang", "crash", "infrastructure"})


@dataclass(frozen=True)
class LaunchRow:
    """One launch, or a hypothesis that was not launched; device time in device-hours, gains as fractions."""

    id: str
    kind: str
    what: str
    hypothesis: str
    parent: str
    recipe: str
    mechanism: str
    predicted_gain: float | None
    predicted_error: float | None
    outcome: Outcome
    tokens_per_s: float | None
    """Tokens/s per device over the scored steps; None if nothing valid was measured."""
    gain: float | None
    """Over the leader at that time."""
    gain_over_baseline: float | None
    verdict: Decision | None
    reason: str
    new_leader: bool
    peak_mem_gib: float | None
    num_attempts: int
    gpu_hours: float
    spent_after: float
    """What the whole campaign had been charged when this launch was settled."""
    by: str = ""
    """The person who asked for it; '' for the proposer's own."""

    @property
    def failed(self) -> bool:
        """Tell whether the launch ran and brought no measurement by its own or the machine's doing."""
        return self.outcome in FAILED

    def miss(self) -> float | None:
        """Return outcome minus prediction, a fraction, where there are both."""
        return None if self.gain is None or self.predicted_gain is None else self.gain - self.predicted_gain


def launch_rows(history: History) -> tuple[LaunchRow, ...]:
    """Return the rows of a campaign in the order in which they were decided."""
    first = {(e.kind, e.key): e.n for e in reversed(history.events)}
    account = _account(history)
    launches = history.launches()
    launched = {x.hypothesis for x in launches}
    rows = [(first[("launch", x.id)], _launch(history, x, account.get(x.id, Account()))) for x in launches]
    rows += [(first[("hypothesis", h.id)], _unlaunched(history, h)) for h in history.hypotheses() if h.id not in launched]
    return tuple(row for _, row in sorted(rows, key=lambda pair: pair[0]))


@dataclass
class Account:
    """What one launch was charged, and what the whole campaign had been when its last attempt was settled."""

    attempts: int = 0
    gpu_hours: float = 0.0
    spent_after: float = 0.0


def _account(history: History) -> dict[str, Account]:
    """Return every launch's account in one pass: a year's campaign has thousands of attempts."""
    found: dict[str, Account] = {}
    for a in history.all("attempt", Attempt):
        found.setdefault(a.launch_id, Account()).attempts += 1
    total = 0.0
    for s in history.settlements():
        total += s.gpu_hours
        mine = found.setdefault(s.launch_id, Account())
        mine.gpu_hours += s.gpu_hours
        mine.spent_after = total
    return found


def _launch(history: History, launch: Launch, account: Account) -> LaunchRow:
    trial, score = history.trial(launch.id), history.score(launch.id)
    hypothesis = history.hypothesis(launch.hypothesis) if launch.hypothesis else None
    config = history.verdict(launch.hypothesis) if launch.hypothesis else None
    verdicts = [*([config] if config else []), *(history.looks(launch.id, trial.attempt) if trial else [])]
    decision = worst([v.decision for v in verdicts]) if verdicts else None
    decision, answered = _answered(history, launch, decision)
    measured = score is not None and score.valid and score.tokens_per_s_per_gpu > 0
    compared = launch.kind == "search" and measured and score is not None
    return LaunchRow(
        id=launch.id,
        kind=launch.kind,
        what=hypothesis.title if hypothesis else launch.purpose,
        hypothesis=launch.hypothesis,
        parent=hypothesis.parent if hypothesis else "",
        recipe=launch.recipe,
        mechanism=hypothesis.mechanism if hypothesis else "",
        predicted_gain=hypothesis.predicted_gain if hypothesis else None,
        predicted_error=hypothesis.predicted_error if hypothesis else None,
        outcome=trial.status if trial else "set aside" if 0 < account.attempts <= history.rerun_after(launch.id) else "running",
        tokens_per_s=(score.tokens_per_s_per_gpu if measured else None) if score else _speed(history, launch, trial),
        gain=score.gain if compared and score else None,
        gain_over_baseline=score.gain_over_baseline if compared and score else None,
        verdict=decision,
        reason=answered or _reason(trial, score, verdicts, launch.kind),
        new_leader=bool(score and score.new_leader),
        peak_mem_gib=trial.peak_mem_gib() if trial else None,
        num_attempts=account.attempts,
        gpu_hours=account.gpu_hours,
        spent_after=account.spent_after,
        by=hypothesis.by if hypothesis else "",
    )


def _answered(history: History, launch: Launch, decision: Decision | None) -> tuple[Decision | None, str]:
    """Return the decision after a person's answer to what the looks left open, and who answered; a refusal stays one."""
    answer = people.answer_to(history, launch.recipe) if decision == "review" and launch.kind == "search" else None
    if answer is None or (answer.decision == "admit" and people.open_items(history, launch.id)):
        return decision, ""
    why = f": {answer.why}" if answer.why else ""
    if answer.decision == "unanswered":
        return decision, f"to review: nobody answered in time, so it is not admitted{why}"
    said: Decision = "admit" if answer.decision == "admit" else "refuse"
    return said, f"{'admitted' if said == 'admit' else 'refused'} by {answer.by}{why}"


def _unlaunched(history: History, hypothesis: Hypothesis) -> LaunchRow:
    verdict = history.verdict(hypothesis.id)
    refused = verdict is not None and verdict.decision == "refuse"
    return LaunchRow(
        id=hypothesis.id,
        kind="search",
        what=hypothesis.title,
        hypothesis=hypothesis.id,
        parent=hypothesis.parent,
        recipe=verdict.recipe if verdict else "",
        mechanism=hypothesis.mechanism,
        predicted_gain=hypothesis.predicted_gain,
        predicted_error=hypothesis.predicted_error,
        outcome="refused" if refused else "not launched",
        tokens_per_s=None,
        gain=None,
        gain_over_baseline=None,
        verdict=verdict.decision if verdict else None,
        reason=_said(verdict.refusals() or verdict.reviews()) if verdict else "",
        new_leader=False,
        peak_mem_gib=None,
        num_attempts=0,
        gpu_hours=0.0,
        spent_after=0.0,
        by=hypothesis.by,
    )


def _speed(history: History, launch: Launch, trial: Trial | None) -> float | None:
    """Return the speed of a run that needs no score: all scored tokens over all their time."""
    if launch.kind not in ("calibrate", "remeasure") or trial is None or trial.status != "ok":
        return None
    scored = [s for s in trial.steps if s.kind == "scored"]
    time_s = sum(s.step_s for s in scored)
    return sum(s.tokens for s in scored) / time_s / history.campaign().workload.gpus if time_s > 0 else None


def _reason(trial: Trial | None, score: Score | None, verdicts: Sequence[Verdict], kind: str) -> str:
    """Return the one thing a person should know about this row, the gravest first."""
    if trial is not None and trial.status != "ok":
        told = trial.cause + (f" (in {trial.phase})" if trial.phase and trial.phase not in trial.cause else "")
        return f"{told}; {trial.failure.said()}" if trial.failure is not None else told
    refusals = [f for v in verdicts for f in v.refusals()]
    if refusals:
        return _said(refusals)
    if score is not None and not score.valid:
        return f"not a valid measurement: {score.why_invalid}"
    reviews = [f for v in verdicts for f in v.reviews() if not f.waived]
    if reviews:
        return f"to review: {_said(reviews)}"
    if score is not None and kind == "search" and not score.new_leader:
        return "not above the leader by more than the band"
    return ""


def _said(findings: Sequence[Finding]) -> str:
    """Return what the findings say, each rule and reason once with all the values that it is about."""
    about: dict[tuple[str, str], list[str]] = {}
    for f in findings:
        keys = about.setdefault((f.rule, f.reason), [])
        if f.key and not f.reason.startswith(f.key):
            keys.append(f.key)
    return "; ".join(" ".join(x for x in (rule, ", ".join(keys)) if x) + f": {why}" for (rule, why), keys in about.items())
