"""The estimate of one campaign: learns from every finished trial of its history and says what a candidate takes.

`Forecaster.of(history, campaign)`, then `predict`, `gain`, `surely_oom` on arguments (recipe or final ones), and `forecast` for
the record that the gate step writes before a launch.
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean

from attuner.core.base import Value
from attuner.core.campaign import Campaign
from attuner.core.errors import UserError
from attuner.core.events import History
from attuner.core.recipe import Recipe
from attuner.core.run import RankStep, StepBreakdown, Trial
from attuner.core.search import Forecast
from attuner.estimate.hardware import Hardware
from attuner.estimate.learning import Learnt, Observation, learn
from attuner.estimate.memory_learning import surely_above
from attuner.estimate.model import Estimate, Model, model_of
from attuner.estimate.reading import read
from attuner.estimate.shape import Layout, Shape

Arguments = Mapping[str, Value]


class Forecaster:
    """Predicts candidates of one campaign as far as its history has taught."""

    def __init__(self, campaign: Campaign, shape: Shape, machine: Hardware, observations: Mapping[str, Observation]) -> None:
        self.campaign, self.shape, self.machine = campaign, shape, machine
        self.observations = dict(observations)
        self.learnt: Learnt = learn(shape, machine, list(observations.values()))
        self._model: Model = model_of(shape, machine)
        self._layout_of: dict[str, Layout] = {}
        self._band = 0.0

    @classmethod
    def of(cls, history: History, campaign: Campaign) -> Forecaster:
        """Return the forecaster of a campaign after all its finished trials.

        Raises:
            UserError: why no estimate is possible (a figure or an argument is missing).
        """
        machine = Hardware.of(campaign.launcher.cluster)
        stack = campaign.stack.name
        shape, _ = read(_final(history, campaign.baseline), workload=campaign.workload, stack=stack)
        layouts: dict[str, Layout] = {}
        seen: dict[str, list[Trial]] = {}
        recipe_of: dict[str, str] = {}
        for launch in history.launches():
            if launch.kind not in ("calibrate", "search", "remeasure"):
                continue
            try:
                recipe = history.recipe(launch.recipe)
                found, layout = read(_final(history, recipe), workload=campaign.workload, stack=stack)
            except (KeyError, UserError):
                continue
            if found != shape:
                continue
            layouts[launch.id] = layout
            recipe_of[launch.id] = launch.recipe
            trial = history.trial(launch.id)
            if trial is not None:
                seen.setdefault(launch.recipe, []).append(trial)
        observations = {}
        for digest, trials in seen.items():
            layout = next(layouts[i] for i, d in recipe_of.items() if d == digest)
            parts = [b for t in trials if (b := history.breakdown(t.launch_id)) is not None]
            observation = observe(layout, trials, parts[-1] if parts else None)
            if observation is not None:
                observations[digest] = observation
        self = cls(campaign, shape, machine, observations)
        self._layout_of = layouts
        calibration = history.calibration()
        self._band = calibration.band if calibration else campaign.noise.floor
        return self

    def layout(self, arguments: Arguments) -> Layout:
        """Return the layout that arguments ask for. Raises UserError or Refused."""
        shape, layout = read(arguments, workload=self.campaign.workload, stack=self.campaign.stack.name)
        if shape != self.shape:
            raise UserError("the arguments are of another model than the campaign's baseline")
        layout.check(shape)
        return layout

    def predict(self, arguments: Arguments) -> Estimate:
        """Return the estimate of a candidate.

        Raises:
            Refused: it can't be built, with the formula.
            UserError: an argument can't be read.
        """
        return self.learnt.estimate(self._model, self.layout(arguments))

    def gain(self, arguments: Arguments, over_launch_id: str) -> tuple[float, float]:
        """Return the predicted gain over a launch (0.2 = +20%) and the half width of its band."""
        return self.learnt.gain(self._model, self.layout(arguments), self._known(over_launch_id))

    def _known(self, launch_id: str) -> Layout:
        """Return the layout of a launch. Raises UserError for one whose arguments could not be read."""
        if launch_id not in self._layout_of:
            raise UserError(f"{launch_id}: no launch whose layout the estimate can read")
        return self._layout_of[launch_id]

    def surely_oom(self, arguments: Arguments) -> str:
        """Return why a candidate surely runs out of memory, in figures, or ''."""
        return self._oom(self.predict(arguments))

    def _oom(self, estimate: Estimate) -> str:
        limit = self.machine.mem_gib
        if limit is None or not surely_above(estimate.peak_mem_gib, estimate.mem_low_gib, limit):
            return ""
        return (
            f"needs {estimate.mem_low_gib:.1f} to {estimate.mem_high_gib:.1f} GiB on its fullest device, which has {limit:g} GiB"
        )

    def forecast(self, hypothesis_id: str, recipe: Recipe, arguments: Arguments, leader: str) -> Forecast:
        """Return the record of what is expected of a candidate, and whether it is better not launched.

        Args:
            hypothesis_id: whose forecast it is.
            recipe: the candidate; its digest goes on record.
            arguments: its final values.
            leader: launch id of the leader that it must beat by more than the noise band.
        """
        layout = self.layout(arguments)
        estimate = self.learnt.estimate(self._model, layout)
        gain, error = self.learnt.gain(self._model, layout, self._known(leader))
        why = self._oom(estimate)
        if not why and gain + error < self._band:
            why = (
                f"at best {gain + error:+.1%} over the leader ({gain:+.1%} ± {error:.1%}), "
                f"within the noise band of {self._band:.1%}: it can't become leader"
            )
        return Forecast(
            hypothesis=hypothesis_id,
            recipe=recipe.digest(),
            step_s=estimate.step_s,
            step_low_s=estimate.step_low_s,
            step_high_s=estimate.step_high_s,
            peak_mem_gib=estimate.peak_mem_gib,
            mem_low_gib=estimate.mem_low_gib,
            mem_high_gib=estimate.mem_high_gib,
            gain=gain,
            gain_error=error,
            device_mem_gib=self.machine.mem_gib,
            held=bool(why),
            why=why,
            num_learnt=len(self.observations),
        )


def _final(history: History, recipe: Recipe) -> Arguments:
    effective = history.effective(recipe.digest())
    return {**recipe.arguments, **(effective.arguments if effective else {})}


def observe(layout: Layout, trials: list[Trial], breakdown: StepBreakdown | None) -> Observation | None:
    """Return what the trials of one recipe say together: mean step, largest peak, where the step went; None: nothing."""
    timed = [t for t in trials if t.status in ("ok", "stopped_early") and any(s.kind == "scored" for s in t.steps)]
    good = [t for t in timed if t.status == "ok"] or timed
    if not good:
        stopped = any(t.status == "oom" for t in trials)
        return Observation(layout=layout, outcome="oom") if stopped else None
    step_s = fmean(fmean(s.step_s for s in t.steps if s.kind == "scored") for t in good)
    peaks = [p for t in good if (p := t.peak_mem_gib()) is not None]
    parts, stage = parts_of(breakdown, layout, step_s) if breakdown and breakdown.rank_steps else ({}, None)
    return Observation(layout=layout, step_s=step_s, parts=parts, peak_mem_gib=max(peaks, default=None), stage=stage)


def parts_of(breakdown: StepBreakdown, layout: Layout, step_s: float) -> tuple[dict[str, float], int | None]:
    """Return the breakdown's parts by the learner's names, scaled to the scored step, and the stage that its ranks are of."""
    ranks = breakdown.rank_steps
    stages = {r.rank // max(1, layout.gpus // layout.pp) for r in ranks}
    whole = fmean(r.step_s for r in ranks) or 1.0
    scale = step_s / whole

    def mean(of: list[float]) -> float:
        return scale * sum(of) / len(ranks)

    parts = _told(ranks, mean) if all(r.detail for r in ranks) else _seen(ranks, mean, layout)
    return parts, stages.pop() if len(stages) == 1 else None


def _told(ranks: list[RankStep], mean: object) -> dict[str, float]:
    """Return parts of a source that tells phases apart."""
    assert callable(mean)
    parts = {n: mean([r.detail.get(n, 0.0) for r in ranks]) for n in ("forward", "backward", "recompute", "optimizer")}
    parts |= {n: mean([r.detail.get(n, 0.0) for r in ranks]) for n in ("bubble", "straggler")}
    parts["host"] = mean([r.host_s for r in ranks])
    for group in sorted({g for r in ranks for g in r.comm_by_group}):
        parts[f"comm:{group}"] = mean([r.comm_by_group.get(group, 0.0) for r in ranks])
    return parts


def _seen(ranks: list[RankStep], mean: object, layout: Layout) -> dict[str, float]:
    """Return parts of a profiler's trace, in which a wait for a peer looks like communication."""
    assert callable(mean)
    parts = {"busy": mean([r.compute_s + r.copy_s for r in ranks]), "host": mean([r.host_s for r in ranks])}
    groups = {g for r in ranks for g in r.comm_by_group if g != "unknown"}
    told = sum(r.comm_by_group.get(g, 0.0) for r in ranks for g in groups)
    if told < 0.8 * sum(r.exposed_comm_s for r in ranks):
        groups = set()  # too much of it is of no known group
    if not groups:
        parts["comm" if layout.pp == 1 else "comm_and_wait"] = mean(
            [r.exposed_comm_s + (r.idle_s if layout.pp > 1 else 0) for r in ranks]
        )
        return parts
    for group in sorted(groups):
        parts[f"comm:{group}"] = mean([r.comm_by_group.get(group, 0.0) for r in ranks])
    wait = parts.pop("comm:pipeline", 0.0) + mean([r.idle_s for r in ranks])
    if layout.pp > 1:
        parts["pipeline_wait"] = wait
    return parts
