"""The proposers `tpe` and `fixed_knobs`: Bayesian optimization by Optuna's multivariate tree-structured Parzen estimator.

The study is made anew for every move from what is on record, so nothing is lost in a crash: the baseline and every run with
its speed; 0 for a run that failed and for a point that was refused, which cost nothing. What the framework can't build, and
what was asked before, is drawn again at no cost. A value is its place in the list that names the values, in their order: of
the variants that we played on the replay tables this one is the strongest; docs/bench.md has the figures.

`fixed_knobs` searches only the knobs below that the stack has. The paper's fixed-knobs arm has eleven and names six, those of
its Table E1 (tensor, pipeline, expert and expert-tensor parallelism, virtual stages, pipeline split). The other five are our
reading of it: micro batch, recompute, data-parallel overlaps, the experts' dispatcher, cross-entropy fusion.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Collection

import optuna
from optuna.distributions import BaseDistribution, IntDistribution
from optuna.trial import TrialState, create_trial

from attuner.core.base import Value
from attuner.core.recipe import same_value
from attuner.core.search import Hypothesis, Stop
from attuner.ports import Brief
from attuner.proposers.space import Point, Prefilter, Seen, Space, drawn, exhausted, move, seen

REDRAWS = 200
STARTUP = 10
"""Runs (the baseline counts) before the model speaks; until then points are drawn by chance. Optuna's default."""
KNOBS = (
    *("tensor_model_parallel_size", "pipeline_model_parallel_size", "virtual_pipeline_model_parallel_size"),
    *("expert_model_parallel_size", "expert_tensor_parallel_size"),
    *("decoder_first_pipeline_num_layers", "decoder_last_pipeline_num_layers"),
    *("num_layers_in_first_pipeline_stage", "num_layers_in_last_pipeline_stage"),
    *("micro_batch_size", "recompute_granularity", "overlap_grad_reduce", "overlap_param_gather"),
    *("moe_token_dispatcher_type", "cross_entropy_loss_fusion"),
)
"""Eleven knobs; the pipeline split is two arguments, and the data-parallel overlaps are two."""


class Tpe:
    """Implements ports.Proposer by TPE over the campaign's space."""

    only: Collection[str] | None = None

    def close(self) -> None:
        """Nothing to end; see ports.Proposer."""

    def ask(self, brief: Brief) -> Hypothesis | Stop:
        """Return the next point; see ports.Proposer."""
        space = Space.of(brief, only=self.only)
        past = seen(brief, space)
        known = {space.key(s.point) for s in past}
        seed = random.Random(f"{brief.campaign.proposer.seed} {len(brief.history.hypotheses())}").getrandbits(31)
        prefilter = Prefilter(brief) if brief.campaign.proposer.prefilter else None

        def passes(point: Point) -> bool:
            if space.key(point) in known or space.unbuildable(point):
                return False
            return prefilter is None or not prefilter.skips(space, point)

        point = _suggested(space, past, passes, seed=seed)
        if point is None:
            return exhausted(space, known, prefilter)
        return move(brief, space, point, why="multivariate TPE over what was measured")


class FixedKnobs(Tpe):
    """TPE over the eleven knobs of the paper's fixed-knobs arm, as we read it."""

    only = KNOBS


def _suggested(space: Space, past: list[Seen], passes: Callable[[Point], bool], *, seed: int) -> Point | None:
    """Return a point that passes: TPE's, or after many redraws one drawn by chance; None if there is none."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # `multivariate` is marked experimental
        sampler = optuna.samplers.TPESampler(multivariate=True, seed=seed, n_startup_trials=STARTUP)
        study = optuna.create_study(direction="maximize", sampler=sampler)
    axes: dict[str, BaseDistribution] = {k: IntDistribution(0, len(v) - 1) for k, v in space.axes.items()}
    scale = max((s.speed for s in past), default=0.0) or 1.0
    for was in past:
        at = {axis: _index(space, axis, was.point[axis]) for axis in axes}
        if None not in at.values():
            study.add_trial(create_trial(params=at, distributions=axes, value=was.speed / scale))
    for _ in range(REDRAWS):
        trial = study.ask(axes)
        point = {axis: values[trial.params[axis]] for axis, values in space.axes.items()}
        if passes(point):
            return point
        study.tell(trial, state=TrialState.FAIL)
    return next((p for p in drawn(space, random.Random(seed)) if passes(p)), None)


def _index(space: Space, axis: str, value: Value) -> int | None:
    return next((i for i, x in enumerate(space.axes[axis]) if same_value(x, value)), None)
