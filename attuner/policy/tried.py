"""What each search launch of a campaign showed: one change against its parent, where it ran, and what came of it.

The facts that lessons are drafted from and checked against. Nothing is read into a record that it doesn't hold: a trial without a
valid measurement, or one that failed by its machine, shows nothing of its change.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from attuner.core.base import Value
from attuner.core.campaign import Campaign
from attuner.core.events import History, attempt_key
from attuner.core.lesson import Outcome
from attuner.core.recipe import same_value
from attuner.core.run import Launch, Trial
from attuner.core.search import Hypothesis
from attuner.policy.conduct import SHIPPED

ENV = "env:"
REPLAY = "replay"
"""The stack of replay tables: what they play was never trained, so it shows nothing of a change."""
SLOWER = "slower than the leader {parent}:"
"""How `early.surely_slower` begins: said of the leader, so it says something of the change only if the parent led."""


@dataclass(frozen=True)
class Tried:
    """One change that was run, and its outcome."""

    campaign: Campaign
    launch: str
    attempt: int
    group: str
    sets: dict[str, Value]
    """What the move set, by argument or env:NAME, with its final values."""
    before: dict[str, Value]
    """The parent's final values of the same."""
    final: dict[str, Value]
    """All final arguments and env:NAME after the move."""
    outcome: Outcome
    band: float
    gain: float | None = None
    """Over the parent, a fraction; None: none was measured."""
    failure: str = ""
    """Class of the failure; where its logs establish none, the status."""
    phase: str = ""
    rules: tuple[str, ...] = ()
    """Of a refused one: the findings that refused."""
    searched: frozenset[str] = field(default_factory=frozenset)
    """Every argument that the campaign's search set at any time."""

    @property
    def evidence(self) -> str:
        """Return the trial's id among all campaigns."""
        return f"{self.campaign.id}:{attempt_key(self.launch, self.attempt)}"


def tried(history: History) -> list[Tried]:
    """Return what a campaign's search launches showed, in order; nothing of a replayed one."""
    if not history.all("campaign", Campaign) or history.campaign().stack.name == REPLAY:
        return []
    calibration = history.calibration()
    if calibration is None:
        return []
    searched = frozenset(k for h in history.hypotheses() for k in _named(h))
    found = (_one(history, launch, calibration.band, searched) for launch in history.launches() if launch.kind == "search")
    return [x for x in found if x is not None]


def _named(hypothesis: Hypothesis) -> dict[str, Value]:
    return {**hypothesis.arguments, **{f"{ENV}{k}": v for k, v in hypothesis.env.items()}}


def _one(history: History, launch: Launch, band: float, searched: frozenset[str]) -> Tried | None:
    trial, hypothesis = history.trial(launch.id), history.hypothesis(launch.hypothesis)
    parent = history.launch(hypothesis.parent) if hypothesis else None
    if trial is None or hypothesis is None or parent is None or hypothesis.group == SHIPPED:
        return None  # a shipped recipe, measured again as a whole, shows nothing of a single change
    after, start = _final(history, launch.recipe), _final(history, parent.recipe)
    wanted = _named(hypothesis)
    sets = {k: after.get(k) for k in wanted if k not in start or not same_value(after.get(k), start[k])}
    came = _outcome(history, trial, parent, band)
    if not sets or came is None:
        return None
    outcome, gain = came
    failure, phase = ("", "") if outcome != "fails" else _failure(trial)
    refused = outcome == "refused"
    looks = history.looks(launch.id, trial.attempt) if refused else []
    return Tried(
        campaign=history.campaign(),
        launch=launch.id,
        attempt=trial.attempt,
        group=hypothesis.group,
        sets=sets,
        before={k: start.get(k) for k in sets},
        final=after,
        outcome=outcome,
        band=band,
        gain=gain,
        failure=failure,
        phase=phase,
        rules=tuple(dict.fromkeys(f.rule for v in looks for f in v.refusals())),
        searched=searched,
    )


def _final(history: History, recipe: str) -> dict[str, Value]:
    """Return the final values of a recipe: resolved ones, else what the recipe says."""
    held = history.effective(recipe) or history.recipe(recipe)
    return {**held.arguments, **{f"{ENV}{k}": v for k, v in held.env.items()}}


def _outcome(history: History, trial: Trial, parent: Launch, band: float) -> tuple[Outcome, float | None] | None:
    """Return what came of a trial against its parent; None where it shows nothing."""
    if trial.status == "infrastructure":
        return None
    if trial.status == "stopped_early":
        return ("hurts", None) if trial.cause.startswith(SLOWER.format(parent=parent.id)) else None
    if trial.status != "ok":
        # what may come through if it is run again is no property of the recipe
        return None if trial.failure is not None and trial.failure.retry == "may_help" else ("fails", None)
    score, reference = history.score(trial.launch_id), _speed(history, parent)
    if score is None or not score.valid or score.attempt != trial.attempt:
        return None
    gain = score.tokens_per_s_per_gpu / reference - 1.0 if reference else None
    if score.decision == "refuse":
        return "refused", gain
    if gain is None:
        return None
    return ("ties" if abs(gain) <= band else "helps" if gain > 0 else "hurts"), gain


def _speed(history: History, launch: Launch) -> float | None:
    """Return a parent's tokens/s per device: the calibration's mean for the baseline."""
    if launch.kind == "calibrate":
        calibration = history.calibration()
        return calibration.mean if calibration else None
    score = history.score(launch.id)
    return score.tokens_per_s_per_gpu if score is not None and score.valid else None


def _failure(trial: Trial) -> tuple[str, str]:
    found = trial.failure
    if found is None or found.undetermined:
        return trial.status, ""
    return found.kind, found.phase


def num_ended(history: History) -> int:
    """Return how many search launches ended, whether or not they show something of their change."""
    return sum(1 for x in history.launches() if x.kind == "search" and history.trial(x.id) is not None)
