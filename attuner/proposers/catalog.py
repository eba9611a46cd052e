"""The proposer `catalog`: no language model; looks where the step goes, looks ahead, and launches what should pay best.

For everything that the lever catalog offers it asks the estimate, which has learnt from every launch of this campaign, what
gain to expect and whether it fits; where the estimate doesn't see a lever, the share of the step that the lever eases says it.
It plans up to three moves ahead (`catalog_plan`), because levers are worth more together, and makes the first of them. A launch
that ran out of memory is gone on from with something that needs less. It stops when nothing within reach is worth its cost.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from attuner.core.base import Value
from attuner.core.errors import AttunerError
from attuner.core.events import History
from attuner.core.recipe import same_value
from attuner.core.run import Launch, Trial
from attuner.core.search import Hypothesis, Stop
from attuner.estimate.forecast import Forecaster
from attuner.estimate.model import Estimate
from attuner.policy import lessons
from attuner.ports import Brief
from attuner.proposers.catalog_moves import Move, facts_of, moves
from attuner.proposers.catalog_plan import DEPTH, Place, Planner, Root
from attuner.proposers.catalog_value import HALF_WIDTH_SIGMAS, Outlook, combined, fit_probability
from attuner.traces.diagnosis import diagnose_launch, launch_parts
from attuner.traces.parts import Parts, eased

LOST_WEIGHT = 0.5
"""How much one failed or slower try of a group lowers its later predictions by shares."""
SCALE_LIMITS = (0.25, 2.0)
OOM_ANYWHERE = "oom.device"
"""The class of a failure whose logs do not tell in which phase the memory ran out."""
RECENT = 2
"""Launches beside the leader that a move may start from."""
WORTH_IT = 0.0015
"""The least expected gain per launch, a fraction of speed, that is worth going on for."""
TIGHT = 0.9
"""Least probability of fitting for a launch to be made; what fits is made first, and teaches where the limit is."""
MEM_SIGMA = 0.04
"""Least standard deviation of a predicted peak, a fraction: the largest error over published rows was 5.5% (docs/estimate.md)."""


class Catalog:
    """Implements ports.Proposer over the lever catalog and the estimate."""

    def close(self) -> None:
        """Nothing to end; see ports.Proposer."""

    def ask(self, brief: Brief) -> Hypothesis | Stop:
        """Return the first move towards the best place within reach, or a Stop with its evidence; see ports.Proposer."""
        view = View.of(brief)
        # shares say nothing of two levers together, so without an estimate there is no looking ahead
        depth = DEPTH if view.forecaster is not None else 1
        planner = Planner(options=view.options, value=view.outlook, band=view.band, depth=depth)
        places = planner.places(view.roots())
        for place in places:
            if not self._worth_it(place, view):
                break
            for step in planner.first_steps(place):
                if view.open(step):
                    return _hypothesis(brief, view, step, place)
        fitting = [p for p in places if p.outlook.fits >= TIGHT] or places
        best = max(fitting, key=lambda p: p.outlook.gain + p.outlook.error, default=None)
        return Stop(reason="nothing left is predicted to clear the band", evidence=_evidence(view, best))

    @staticmethod
    def _worth_it(place: Place, view: View) -> bool:
        return place.outlook.hopeful(view.band) and place.score > WORTH_IT


@dataclass
class View:
    """One campaign as the proposer sees it at one moment, with what it works out once per move."""

    brief: Brief
    forecaster: Forecaster | None
    why_blind: str
    leader: str
    band: float
    tried: set[str]
    _parts: dict[str, Parts | None] = field(default_factory=dict)
    _estimates: dict[str, Estimate | None] = field(default_factory=dict)

    @classmethod
    def of(cls, brief: Brief) -> View:
        """Read the past."""
        history = brief.history
        calibration = history.calibration()
        forecaster, why = None, ""
        try:
            forecaster = Forecaster.of(history, brief.campaign)
        except AttunerError as error:
            why = str(error)
        return cls(
            brief=brief,
            forecaster=forecaster,
            why_blind=why,
            leader=history.leader(),
            band=calibration.band if calibration else brief.campaign.noise.floor,
            tried={x.recipe for x in history.launches() if x.kind in ("calibrate", "search")} | _refused(history),
        )

    # ---- where a move may start
    def roots(self) -> list[Root]:
        """Return the leader and the last launches beside it; one that ran out of memory asks for less of it."""
        history = self.brief.history
        ended = [x for x in history.launches() if x.kind == "search" and (t := history.trial(x.id)) and t.status in ("ok", "oom")]
        names = [self.leader, *(x.id for x in reversed(ended[-RECENT:]) if x.id != self.leader)]
        found = []
        for name in dict.fromkeys(n for n in names if n):
            launch, trial = history.launch(name), history.trial(name)
            effective = history.effective(launch.recipe) if launch else None
            if effective is not None:
                only = self._when_oom(launch, trial) if launch and trial is not None and trial.status == "oom" else None
                found.append(Root(name, effective.arguments, effective.facts, only))
        return found

    def _when_oom(self, launch: Launch, trial: Trial) -> frozenset[str]:
        """Return the groups that may need less memory: where its logs tell the phase those for that phase, else the lever's own.

        The first optimizer step runs out for other reasons than a forward pass, and nothing that a forward keeps helps it.
        """
        failure = trial.failure
        if failure is not None and failure.kind.startswith("oom.") and failure.kind != OOM_ANYWHERE and failure.levers:
            return frozenset(failure.levers)
        asked = self.brief.history.hypothesis(launch.hypothesis)
        lever = next((x for x in self.brief.levers if asked is not None and x["id"] == asked.group), {})
        return frozenset(lever.get("when_oom", []))

    def options(self, place: Place, without: frozenset[str]) -> list[Move]:
        """Return the catalog's moves from a place."""
        world, space = self.brief.campaign.workload.gpus, self.brief.campaign.proposer.space
        facts = place.root.facts if not place.moves else facts_of(place.arguments, world)
        points = self.forecaster is not None
        return moves(self.brief.levers, place.arguments, facts, world=world, space=space, points=points, without=without)

    def open(self, step: Place) -> bool:
        """Tell whether a single move may be launched: not tried, not refused before, and likely to fit."""
        return step.outlook.fits >= TIGHT and self.recipe_of(step) not in self.tried

    def recipe_of(self, step: Place) -> str:
        """Return the digest of the recipe that a single move makes."""
        history = self.brief.history
        launch = history.launch(step.root.launch)
        return history.recipe(launch.recipe).changed(self.changes(step)).digest() if launch else ""

    def changes(self, step: Place) -> dict[str, Value]:
        """Return what a single move writes into its parent's recipe."""
        history, before = self.brief.history, step.root.arguments
        launch = history.launch(step.root.launch)
        written = history.recipe(launch.recipe).arguments if launch else {}
        wanted = step.moves[-1].arguments
        return {k: v for k, v in wanted.items() if not same_value(v, before.get(k)) or k in written}

    # ---- what a place is worth
    def outlook(self, root: Root, path: tuple[Move, ...], arguments: Mapping[str, Value]) -> Outlook | None:
        """Return what a place promises over the leader; None if it can't be built."""
        unseen = list(path)
        told = Outlook(0.0, 0.0, seen=False)
        if self.forecaster is not None:
            estimate = self._estimate(arguments)
            if estimate is None:
                return None
            told = self._told(estimate, arguments)
            unseen = [m for m in path if self._blind_to(m, arguments, root)]
        elif root.only is not None and not any(m.option.get("memory", 0) < 0 for m in path):
            return None
        for move in unseen:
            told = combined(told, self._by_shares(root, move, arguments))
        if self.forecaster is None and root.launch != self.leader:
            told = combined(told, self._before(root))
        return told

    def _told(self, estimate: Estimate, arguments: Mapping[str, Value]) -> Outlook:
        assert self.forecaster is not None
        gain, error = self.forecaster.gain(arguments, self.leader)
        limit = self.forecaster.machine.mem_gib
        fits = 1.0 if limit is None else fit_probability(estimate.peak_mem_gib, _mem_sigma(estimate), limit)
        return Outlook(gain=gain, error=error, fits=fits)

    def _estimate(self, arguments: Mapping[str, Value]) -> Estimate | None:
        key = repr(sorted(arguments.items(), key=str))
        if key not in self._estimates:
            try:
                self._estimates[key] = self.forecaster.predict(arguments) if self.forecaster else None
            except AttunerError:
                self._estimates[key] = None
        return self._estimates[key]

    def _blind_to(self, move: Move, arguments: Mapping[str, Value], root: Root) -> bool:
        """Tell whether the estimate says the same with and without a move, so that only its shares can speak."""
        if not move.option:
            return False
        without = {**arguments, **{k: root.arguments.get(k) for k in move.arguments}}
        a, b = self._estimate(arguments), self._estimate(without)
        return a is not None and b is not None and a.step_s == b.step_s

    def _by_shares(self, root: Root, move: Move, arguments: Mapping[str, Value]) -> Outlook:
        parts = self._shares(root.launch)
        scale = group_scale(self.brief.history, move.group) * lessons.apply(self.brief.lessons, move.group, arguments)
        eases = {**move.lever["eases"], **move.option.get("eases", {})}
        saved = min(max(eased(eases, parts) * scale, -0.9), 0.9) if parts else 0.0
        gain = 1.0 / (1.0 - saved) - 1.0
        return Outlook(gain=gain, error=max(0.02, abs(gain) * 0.5), seen=False)

    def _shares(self, launch: str) -> Parts | None:
        if launch not in self._parts:
            self._parts[launch] = launch_parts(self.brief.history, launch)[1]
        return self._parts[launch]

    def _before(self, root: Root) -> Outlook:
        """Return what a launch beside the leader stands at: its score, or for one that failed what it was expected to give."""
        score = self.brief.history.score(root.launch)
        if score is not None and score.valid:
            speed = self.brief.history.leader_speed()
            return Outlook(score.tokens_per_s_per_gpu / speed - 1.0 if speed else 0.0, 0.0, seen=False)
        launch = self.brief.history.launch(root.launch)
        asked = self.brief.history.hypothesis(launch.hypothesis) if launch else None
        if asked is None:
            return Outlook(-0.5, 0.1, seen=False)
        # what saves memory costs some of what the failed launch promised
        return Outlook(asked.predicted_gain - 0.05, max(asked.predicted_error, 0.1), seen=False)


def _mem_sigma(estimate: Estimate) -> float:
    half_width = (estimate.mem_high_gib - estimate.mem_low_gib) / 2
    return max(half_width / HALF_WIDTH_SIGMAS, MEM_SIGMA * estimate.peak_mem_gib)


def _refused(history: History) -> set[str]:
    verdicts = [history.verdict(h.id) for h in history.hypotheses()]
    return {v.recipe for v in verdicts if v is not None and v.decision == "refuse"}


def group_scale(history: History, group: str) -> float:
    """Return what this campaign taught about a group: measured over predicted, and a half for every try that lost."""
    scale = 1.0
    for launch in history.launches():
        hypothesis = history.hypothesis(launch.hypothesis) if launch.hypothesis else None
        trial, score = history.trial(launch.id), history.score(launch.id)
        if hypothesis is None or hypothesis.group != group or trial is None or launch.kind != "search":
            continue
        if score is None or not score.valid or score.gain <= 0:
            scale *= LOST_WEIGHT
        elif hypothesis.predicted_gain > 0:
            ratio = score.gain / hypothesis.predicted_gain
            scale *= min(max(ratio, SCALE_LIMITS[0]), SCALE_LIMITS[1]) ** 0.5
    return scale


def _hypothesis(brief: Brief, view: View, step: Place, goal: Place) -> Hypothesis:
    move, outlook = step.moves[-1], step.outlook
    ahead = [m.title for m in goal.moves if m is not move and len(goal.moves) > 1]
    why = str(move.lever["idea"])
    if ahead:
        why += f"; on the way to {goal.outlook.gain:+.0%} with {' and '.join(ahead)}"
    return Hypothesis(
        id=brief.next_id,
        parent=step.root.launch,
        group=move.group,
        arguments=view.changes(step),
        title=move.title,
        bottleneck=_bottleneck(brief, step.root.launch, move),
        mechanism=why,
        predicted_gain=round(outlook.gain, 4),
        predicted_error=round(max(outlook.error, 0.0001), 4),
        lessons=[x.id for x in lessons.speaking(brief.lessons, move.group, step.arguments)],
    )


def _bottleneck(brief: Brief, launch: str, move: Move) -> str:
    """Return the largest bottleneck that the move's lever eases."""
    found = diagnose_launch(brief.history, launch, brief.levers).bottlenecks
    return next((b.name for b in found if move.group in b.levers), found[0].name if found else "")


def _evidence(view: View, best: Place | None) -> list[str]:
    out = ["no option of the catalog is left", f"band {view.band:.1%}"]
    if best is not None:
        titles = " and ".join(m.title for m in best.moves)
        out[0] = f"best left: {titles}, {best.outlook.gain:+.1%} ± {best.outlook.error:.1%}"
    if best is not None and best.outlook.fits < TIGHT:
        out.append(f"it fits the device with probability {best.outlook.fits:.0%}")
    if view.why_blind:
        out.append(f"no estimate: {view.why_blind}")
    return out
