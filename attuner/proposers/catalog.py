"""The proposer `catalog`: reads where the leader's step goes and picks, from levers.yaml, what should ease it most.

For every option that fits the leader it predicts the gain: the share of the step that the option's lever eases, times the
fraction of it that the catalog expects to go. What a group really gave in this campaign scales its later predictions. A
layout that ran out of memory is tried again with less memory (parent: that trial) before it is given up. When no option's
upper bound clears the band, it stops and says what the best one would have been.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from attuner.core.base import Value
from attuner.core.events import History
from attuner.core.recipe import EffectiveConfig, Recipe, same_value
from attuner.core.run import StepBreakdown
from attuner.core.search import Hypothesis, Stop
from attuner.policy.conditions import holds
from attuner.ports import Brief

LOST_WEIGHT = 0.5
"""How much one failed or slower try of a group lowers its later predictions."""
SCALE_LIMITS = (0.25, 2.0)


@dataclass(frozen=True)
class Option:
    """One applicable option of one lever group, with its prediction."""

    lever: dict[str, Any]
    title: str
    arguments: dict[str, Value]
    bottleneck: str
    gain: float
    error: float


class Catalog:
    """Implements ports.Proposer over the lever catalog."""

    def close(self) -> None:
        """Nothing to end; see ports.Proposer."""

    def ask(self, brief: Brief) -> Hypothesis | Stop:
        """Return the most promising untried option, or a Stop with its evidence; see ports.Proposer."""
        history = brief.history
        again = self._after_oom(brief)
        if again is not None:
            return again
        leader = history.leader()
        options = self._options(brief, leader)
        calibration = history.calibration()
        band = calibration.band if calibration else 0.03
        options.sort(key=lambda o: -(o.gain + o.error / 4))
        hopeful = [o for o in options if o.gain + o.error > band]
        if not hopeful:
            best = max(options, key=lambda o: o.gain, default=None)
            said = f"best left: {best.title}, {best.gain:+.1%} ± {best.error:.1%}" if best else "no option of the catalog is left"
            return Stop(reason="nothing left is predicted to clear the band", evidence=[said, f"band {band:.1%}"])
        best = hopeful[0]
        return _hypothesis(brief, best, parent=leader)

    def _after_oom(self, brief: Brief) -> Hypothesis | None:
        """Return the less hungry variant of the last launch, if that ran out of memory and is worth another try."""
        history = brief.history
        searched = [x for x in history.launches() if x.kind == "search"]
        trial = history.trial(searched[-1].id) if searched else None
        if trial is None or trial.status != "oom":
            return None
        failed = next((h for h in history.hypotheses() if h.id == searched[-1].hypothesis), None)
        lever = next((x for x in brief.levers if failed and x["id"] == failed.group), None)
        groups = (lever or {}).get("when_oom", [])
        options = [o for o in self._options(brief, searched[-1].id, saving=True) if o.lever["id"] in groups]
        if not options or failed is None:
            return None
        best = max(options, key=lambda o: o.gain)
        leader_gain = failed.predicted_gain - 0.05  # recompute costs some of what the layout promised
        fixed = Option(
            lever=best.lever,
            title=f"{failed.title}, with {best.title}",
            arguments=best.arguments,
            bottleneck=failed.bottleneck,
            gain=leader_gain,
            error=max(failed.predicted_error, 0.1),
        )
        return _hypothesis(brief, fixed, parent=searched[-1].id)

    def _options(self, brief: Brief, parent: str, *, saving: bool = False) -> list[Option]:
        """Return every applicable, untried option on top of a parent; `saving` keeps those that need less memory."""
        history = brief.history
        launch = history.launch(parent)
        effective = history.effective(launch.recipe) if launch else None
        if launch is None or effective is None:
            return []
        recipe = history.recipe(launch.recipe)
        tried = {x.recipe for x in history.launches()} | _refused(history)
        shares = bottlenecks(history, parent)
        found = []
        for lever in brief.levers:
            for option in lever["options"]:
                if saving and option.get("memory", 0) >= 0:
                    continue
                built = _built(lever, option, recipe, effective, brief.campaign.workload.gpus)
                if built is None or recipe.changed(built).digest() in tried:
                    continue
                found.append(_predicted(lever, option, built, effective, shares, group_scale(history, lever["id"])))
        return found


def _refused(history: History) -> set[str]:
    verdicts = [history.verdict(h.id) for h in history.hypotheses()]
    return {v.recipe for v in verdicts if v is not None and v.decision == "refuse"}


def _built(
    lever: dict[str, Any], option: dict[str, Any], recipe: Recipe, effective: EffectiveConfig, world: int
) -> dict[str, Value] | None:
    """Return the arguments that an option sets on this recipe, or None where it does not apply or changes nothing."""
    values = effective.flat()
    if not all(holds(c, values, values) for c in option.get("when", [])):
        return None
    arguments = {name: _value(spec, effective.arguments.get(name), world) for name, spec in option["set"].items()}
    changed = {k: v for k, v in arguments.items() if not same_value(v, effective.arguments.get(k))}
    return {k: v for k, v in arguments.items() if k in changed or k in recipe.arguments} if changed else None


def _value(spec: Any, current: Value, world: int) -> Value:
    if isinstance(spec, dict):
        if "times" in spec and isinstance(current, int):
            return int(current * spec["times"])
        if "world" in spec:
            return world
    return spec if isinstance(spec, bool | int | float | str | list) else None


def bottlenecks(history: History, launch_id: str) -> dict[str, float]:
    """Return the step's shares of the launch, or of the nearest ancestor that was profiled.

    Keys: compute, exposed_comm, exposed_comm:KIND, host, idle; values are fractions of the step.
    """
    seen = launch_id
    for _ in range(len(history.launches()) + 1):
        breakdown = history.breakdown(seen)
        if breakdown is not None:
            return _shares(breakdown)
        launch = history.launch(seen)
        parent = history.hypothesis(launch.hypothesis) if launch and launch.hypothesis else None
        if parent is None:
            break
        seen = parent.parent
    profiled = [b for x in history.launches() if x.kind == "calibrate" and (b := history.breakdown(x.id))]
    return _shares(profiled[-1]) if profiled else {}


def _shares(breakdown: StepBreakdown) -> dict[str, float]:
    return {**breakdown.shares(), **{f"exposed_comm:{k}": v for k, v in breakdown.comm_shares().items()}}


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


def _predicted(
    lever: dict[str, Any],
    option: dict[str, Any],
    built: dict[str, Value],
    effective: EffectiveConfig,
    shares: dict[str, float],
    scale: float,
) -> Option:
    eases = {**lever["eases"], **option.get("eases", {})}
    saved = sum(shares.get(name, 0.0) * fraction for name, fraction in eases.items()) * scale
    saved = min(max(saved, -0.9), 0.9)
    gain = 1.0 / (1.0 - saved) - 1.0
    top = max(eases, key=lambda name: shares.get(name, 0.0) * abs(eases[name]), default="")
    title = option.get("title") or ", ".join(
        f"{k} {effective.arguments.get(k)}→{v}" for k, v in built.items() if not same_value(v, effective.arguments.get(k))
    )
    return Option(lever=lever, title=title, arguments=built, bottleneck=top, gain=gain, error=max(0.02, abs(gain) * 0.5))


def _hypothesis(brief: Brief, option: Option, *, parent: str) -> Hypothesis:
    return Hypothesis(
        id=brief.next_id,
        parent=parent,
        group=str(option.lever["id"]),
        arguments=option.arguments,
        title=option.title,
        bottleneck=option.bottleneck,
        mechanism=str(option.lever["idea"]),
        predicted_gain=round(option.gain, 4),
        predicted_error=round(option.error, 4),
    )
