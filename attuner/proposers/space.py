"""The space that black-box proposers search: values per argument, from the campaign file or from the lever catalog.

A point sets every argument of the space at once. What follows from it (`follows` of a lever, an uneven split of layers over
stages) is set along with it. Points that the framework can't build are told apart here, before they cost a hypothesis.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from attuner.core.base import Value, canonical_json
from attuner.core.errors import Refused, UserError
from attuner.core.recipe import same_value
from attuner.core.search import Hypothesis, Stop
from attuner.policy import conduct, hold_back, measure
from attuner.policy.conditions import holds
from attuner.ports import Brief

Point = dict[str, Value]
SPLITS = (
    ("decoder_first_pipeline_num_layers", "decoder_last_pipeline_num_layers"),
    ("num_layers_in_first_pipeline_stage", "num_layers_in_last_pipeline_stage"),
)
"""Layers of the end stages, as Megatron-LM and megatron-core name them."""


LISTED, DRAWS = 200_000, 20_000
"""Up to so many points are listed; from a larger space so many are drawn, axis by axis."""


@dataclass(frozen=True)
class Seen:
    """What came of a point that was asked for before."""

    point: Point
    outcome: str
    """ok, refused, or the status of a trial that did not end well."""
    speed: float = 0.0
    """tokens/s per device; 0 where there is none."""


@dataclass(frozen=True)
class Space:
    """The axes of a search with what belongs to them."""

    axes: dict[str, list[Value]]
    levers: list[dict[str, Any]]
    base: dict[str, Value]
    """Final values of the baseline."""
    recipe: dict[str, Value]
    """What the baseline's recipe states."""
    gpus: int
    changes: frozenset[str] = field(default_factory=frozenset)

    @classmethod
    def of(cls, brief: Brief, *, only: Collection[str] | None = None) -> Space:
        """Return the campaign's space, or the part of it that is named.

        Raises:
            UserError: there is nothing to search.
        """
        catalog = {k: v for lever in brief.levers for k, v in lever.get("space", {}).items()}
        given = brief.campaign.proposer.space or catalog
        base = brief.history.effective(brief.campaign.baseline.digest())
        values = dict(base.arguments) if base else dict(brief.campaign.baseline.arguments)
        axes = {k: list(v) for k, v in sorted(given.items()) if (only is None or k in only) and len(v) > 1}
        if not axes:
            raise UserError(
                f"{brief.campaign.source_file}: proposer.space: nothing to search; name arguments with their values, or give "
                f"rules/{brief.campaign.stack.name}/levers.yaml a `space`"
            )
        changes = frozenset(name for lever in brief.levers for name in lever["changes"])
        return cls(axes, brief.levers, values, dict(brief.campaign.baseline.arguments), brief.campaign.workload.gpus, changes)

    def size(self) -> int:
        """Return how many points there are, buildable or not."""
        count = 1
        for values in self.axes.values():
            count *= len(values)
        return count

    def points(self) -> Iterator[Point]:
        """Yield every point, in a fixed order."""
        for values in itertools.product(*self.axes.values()):
            yield dict(zip(self.axes, values, strict=True))

    def key(self, values: Mapping[str, Value]) -> str:
        """Return a point's name: equal for equal points."""
        return canonical_json([values.get(axis) for axis in self.axes])

    def final(self, point: Point) -> dict[str, Value]:
        """Return the values of a point on top of the baseline's, with what follows from it."""
        values = {**self.base, **point}
        for names in SPLITS:
            if set(names) <= self.changes:
                values |= dict.fromkeys(names, end_layers(values))
        for lever in self.levers:
            for entry in lever.get("follows", []):
                if holds(entry["when"], self.base, values):
                    values |= entry["set"]
        return values

    def arguments(self, point: Point) -> dict[str, Value]:
        """Return what a point changes of the baseline's recipe."""
        final = self.final(point)
        # a recipe may spell a value in its own way (`silu` for torch's function): what no lever sets is left as written
        return {
            k: v
            for k, v in final.items()
            if k in self.changes
            and (not same_value(v, self.base.get(k)) or (k in self.recipe and not same_value(v, self.recipe[k])))
        }

    def point_of(self, arguments: Mapping[str, Value]) -> Point:
        """Return the point at which a recipe lies."""
        values = {**self.base, **arguments}
        return {axis: values.get(axis) for axis in self.axes}

    def unbuildable(self, point: Point) -> str:
        """Return why the framework can't build a point, or ''."""
        return unbuildable(self.final(point), gpus=self.gpus)


def drawn(space: Space, chance: random.Random) -> Iterable[Point]:
    """Return points in a random order: all of a small space, many draws of a large one."""
    if space.size() <= LISTED:
        points = list(space.points())
        chance.shuffle(points)
        return points
    return ({axis: chance.choice(values) for axis, values in space.axes.items()} for _ in range(DRAWS))


def end_layers(values: Mapping[str, Value]) -> int | None:
    """Return the layers of the first and of the last stage where they don't divide evenly: the inner stages are filled up."""
    layers, stages = _count(values, "num_layers"), _count(values, "pipeline_model_parallel_size")
    if layers % stages == 0:
        return None
    left = layers - (stages - 2) * -(-layers // stages)
    return left // 2 if left > 0 and left % 2 == 0 else None


def _count(values: Mapping[str, Value], name: str, other: str = "") -> int:
    value = values.get(name, values.get(other) if other else None)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 1


def unbuildable(values: Mapping[str, Value], *, gpus: int) -> str:
    """Return why Megatron can't build these final values, or ''. Source: Megatron-LM arguments.py and parallel_state.py."""
    names = ("tensor", "pipeline", "virtual_pipeline", "context", "expert")
    tp, pp, vp, cp, ep = (_count(values, f"{name}_model_parallel_size") for name in names)
    cp = _count(values, "context_parallel_size")
    etp = _count(values, "expert_tensor_parallel_size") if values.get("expert_tensor_parallel_size") else tp
    experts, rows, batch = (
        _count(values, "num_experts", "num_moe_experts"),
        _count(values, "micro_batch_size"),
        _count(values, "global_batch_size"),
    )
    if gpus % (tp * pp * cp) or (experts > 1 and gpus % (pp * ep * etp)):
        return f"{gpus} devices don't divide by tp·pp·cp = {tp}·{pp}·{cp}, or by pp·ep·etp = {pp}·{ep}·{etp}"
    if (experts == 1 and ep > 1) or experts % ep:
        return f"{experts} experts don't divide by ep = {ep}"
    dp = gpus // tp // pp // cp
    if batch % (dp * rows):
        return f"global batch {batch} doesn't divide by dp·micro batch = {dp}·{rows}"
    layers, stages = _count(values, "num_layers"), pp * vp
    if (layers % stages and end_layers(values) is None) or (vp > 1 and layers % stages):
        return f"{layers} layers don't divide by pp·vp = {pp}·{vp}"
    if vp > 1 and (pp == 1 or (batch // dp // rows) % pp):
        return f"virtual stages need stages, and micro-batches that divide by them ({pp})"
    heads = _count(values, "num_attention_heads")
    if heads > 1 and heads % tp:
        return f"{heads} attention heads don't divide by tp = {tp}"
    return ""


def seen(brief: Brief, space: Space) -> list[Seen]:
    """Return what came of the baseline and of every hypothesis so far, in order; a trial that still runs is left out."""
    history = brief.history
    calibration = history.calibration()
    found = [Seen(space.point_of({}), "ok", calibration.mean)] if calibration else []
    launched = {x.hypothesis: x for x in history.launches() if x.kind == "search"}
    for hypothesis in history.hypotheses():
        try:
            point = space.point_of(conduct.candidate(history, hypothesis).arguments)
        except Refused:
            continue
        launch = launched.get(hypothesis.id)
        trial = history.trial(launch.id) if launch else None
        score = history.score(launch.id) if launch else None
        if launch is None:
            found.append(Seen(point, "refused"))
        elif trial is not None and trial.status == "stopped_early" and any(s.kind == "scored" for s in trial.steps):
            # slow, not broken: what it did until it was ended says how slow
            found.append(Seen(point, trial.status, measure.speed(trial, brief.campaign.workload)))
        elif trial is not None and trial.status != "ok":
            found.append(Seen(point, trial.status))
        elif score is not None and score.valid:
            found.append(Seen(point, "ok" if score.decision != "refuse" else "refused", score.tokens_per_s_per_gpu))
    return found


def move(brief: Brief, space: Space, point: Point, *, why: str) -> Hypothesis:
    """Return the hypothesis that stands for a point: it starts from the baseline, and nobody predicted its gain."""
    calibration = brief.history.calibration()
    arguments = space.arguments(point)
    shown = {k: v for k, v in arguments.items() if k in space.axes}
    return Hypothesis(
        id=brief.next_id,
        parent=calibration.launches[0] if calibration else brief.history.leader(),
        group=conduct.POINT,
        arguments=arguments,
        title=", ".join(f"{short(k)} {space.base.get(k)}→{v}" for k, v in shown.items()),
        bottleneck="not looked at",
        mechanism=why,
        predicted_gain=0.0,
        predicted_error=1.0,
    )


def exhausted(space: Space, known: Collection[str], prefilter: Prefilter | None) -> Stop:
    """Return the stop of a search that has no point left, and why it has none."""
    reason = "nothing is left that the estimate lets pass" if prefilter else "no point of the space is left"
    return Stop(reason=reason, evidence=[f"{len(known)} of {space.size()} points seen"])


def short(name: str) -> str:
    """Return an argument's name as short as people say it."""
    return name.removesuffix("_size").replace("_model_parallel", "").replace("_parallel", "")


class Prefilter:
    """Skips points that the gate would hold back: they surely run out of memory, or can't pay for themselves."""

    def __init__(self, brief: Brief) -> None:
        # imported when it is asked for: the estimate is no part of a plain black-box search
        from attuner.estimate.forecast import Forecaster

        self._brief, history = brief, brief.history
        launch = history.launch(history.leader())
        self._leader = history.recipe(launch.recipe) if launch else brief.campaign.baseline
        calibration = history.calibration()
        self._parent = history.trial(calibration.launches[0]) if calibration else None
        try:
            self._forecaster: Forecaster | None = Forecaster.of(history, brief.campaign)
        except UserError:
            self._forecaster = None  # fixed code notes once per campaign why there is no estimate

    def skips(self, space: Space, point: Point) -> bool:
        """Tell whether the estimate holds this point back."""
        if self._forecaster is None:
            return False
        recipe = self._brief.campaign.baseline.changed(space.arguments(point))
        final = space.final(point)
        try:
            said = self._forecaster.forecast(self._brief.next_id, recipe, final, self._brief.history.leader())
            memory = self._forecaster.surely_oom(final) if said.held else ""
        except Refused:
            return True
        except UserError:
            return False
        unknown = hold_back.unmodelled(self._leader, recipe)
        return hold_back.weighed(said, memory=memory, parent=self._parent, unknown=unknown).held
