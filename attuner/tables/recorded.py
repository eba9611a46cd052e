"""Makes a replay table of a recorded campaign: one row per recipe that was measured, failed, or was refused before its launch."""

from __future__ import annotations

import csv
import io
import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import yaml

from attuner.config import REPLAY
from attuner.core.base import Value
from attuner.core.errors import Refused, UserError
from attuner.core.events import History
from attuner.core.recipe import Recipe, same_value
from attuner.core.run import Launch, RankStep, StepBreakdown, Trial
from attuner.policy import conduct
from attuner.tables.table import About

COLUMNS = ("outcome", "step_time_s", "tokens_per_s_per_gpu", "peak_mem_gib", "duration_s", "rank_step", "note")


@dataclass(frozen=True)
class Recorded:
    """A table as it is written to disk, and what was left out of it."""

    rows: str
    about: str
    num_rows: int
    left_out: list[str]


def recorded(history: History) -> Recorded:
    """Return the table of a campaign.

    Only what the looks admitted is a row: what trained something else has no speed worth replaying.

    Raises:
        UserError: the campaign was never calibrated, or is a replay itself.
    """
    campaign, calibration = history.campaign(), history.calibration()
    if calibration is None:
        raise UserError(f"{campaign.id}: was not calibrated: there is no baseline to start a table from")
    if campaign.stack.name == REPLAY:
        raise UserError(f"{campaign.id}: was replayed itself: {campaign.launcher.table} is its table")
    baseline = campaign.baseline
    groups: dict[str, list[Launch]] = {}
    for launch in history.launches():
        if launch.kind in ("calibrate", "search", "remeasure"):
            groups.setdefault(launch.recipe, []).append(launch)
    lines: dict[str, tuple[Recipe, dict[str, Value]]] = {}
    left_out = []
    for digest, launches in groups.items():
        recipe = history.recipe(digest)
        row = _row(history, launches)
        if recipe.env != baseline.env:
            left_out.append(f"{launches[0].id}: its environment differs; a table has arguments only")
        elif isinstance(row, str):
            left_out.append(f"{launches[0].id}: {row}")
        else:
            lines[digest] = (recipe, row)
    for recipe, why in _refusals(history):
        if recipe.env == baseline.env:
            lines.setdefault(recipe.digest(), (recipe, {"outcome": "invalid", "note": why}))
    axes = _axes([recipe for recipe, _ in lines.values()])
    text = _csv(axes, list(lines.values()))
    about = _about(history).model_dump(mode="json", exclude_defaults=True)
    return Recorded(text, yaml.safe_dump(about, sort_keys=False, width=130), len(lines), left_out)


def _row(history: History, launches: Sequence[Launch]) -> dict[str, Value] | str:
    """Return what came of a recipe, or why it is no row."""
    trials = [t for x in launches if (t := history.trial(x.id)) is not None]
    scores = [s for x in launches if (s := history.score(x.id)) is not None and s.valid]
    good = [s for s in scores if s.decision in ("admit", "review")]
    if good:
        peaks = [p for t in trials if (p := t.peak_mem_gib()) is not None]
        breakdowns = [b for x in launches if (b := history.breakdown(x.id)) is not None]
        return {
            "outcome": "ok",
            "step_time_s": _rounded(statistics.fmean(s.step_s for s in good)),
            "tokens_per_s_per_gpu": _rounded(statistics.fmean(s.tokens_per_s_per_gpu for s in good)),
            "peak_mem_gib": _rounded(max(peaks)) if peaks else None,
            "rank_step": json.dumps(_told(mean_step(breakdowns[-1])), sort_keys=True) if breakdowns else None,
        }
    failed = [t for t in trials if t.status in ("oom", "hang", "crash")]
    if failed:
        return {"outcome": failed[-1].status, "duration_s": _rounded(failed[-1].duration_s), "note": failed[-1].cause}
    if scores:
        return "the looks refused it"
    return f"it has no measurement ({trials[-1].status if trials else 'not finished'})"


def _rounded(x: float) -> float:
    return round(x, 6)


def _told(step: RankStep) -> dict[str, object]:
    """Return what a breakdown tells, to the microsecond."""
    found: dict[str, object] = {}
    for name, value in step.model_dump(exclude_defaults=True).items():
        found[name] = {k: _rounded(v) for k, v in value.items()} if isinstance(value, dict) else value
        if isinstance(value, float):
            found[name] = _rounded(value)
    return found


def mean_step(breakdown: StepBreakdown) -> RankStep:
    """Return the mean over ranks and profiled steps."""
    steps = breakdown.rank_steps
    mean: dict[str, object] = {"rank": 0, "step": 0}
    for name, field in RankStep.model_fields.items():
        values = [getattr(s, name) for s in steps]
        if field.annotation is float:
            mean[name] = statistics.fmean(values)
        elif name not in ("rank", "step"):
            keys = sorted({k for v in values for k in v})
            mean[name] = {k: statistics.fmean(v.get(k, 0.0) for v in values) for k in keys}
    return RankStep.model_validate(mean)


def _refusals(history: History) -> list[tuple[Recipe, str]]:
    """Return the recipes that the framework refused before their launch, with its words."""
    found = []
    for hypothesis in history.hypotheses():
        verdict = history.verdict(hypothesis.id)
        layout = [f.reason for f in verdict.findings if f.rule == "layout"] if verdict else []
        if not layout:
            continue
        try:
            found.append((conduct.candidate(history, hypothesis), layout[0]))
        except Refused:
            continue
    return found


def _axes(recipes: Sequence[Recipe]) -> list[str]:
    """Return the arguments in which the recipes differ; one that is not stated counts as null."""
    names = sorted({k for r in recipes for k in r.arguments})
    return [n for n in names if any(not same_value(r.arguments.get(n), recipes[0].arguments.get(n)) for r in recipes)]


def _csv(axes: Sequence[str], lines: Sequence[tuple[Recipe, dict[str, Value]]]) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([*axes, *COLUMNS])
    seen = set()
    for recipe, row in lines:
        key = tuple(json.dumps(recipe.arguments.get(a)) for a in axes)
        if key not in seen:  # two spellings of one recipe: what was measured stands first
            seen.add(key)
            writer.writerow([*key, *("" if row.get(c) is None else row[c] for c in COLUMNS)])
    return out.getvalue()


def _about(history: History) -> About:
    campaign, calibration = history.campaign(), history.calibration()
    work, cluster = campaign.workload, campaign.launcher.cluster
    trials = [t for x in history.launches() if x.kind == "calibrate" and (t := history.trial(x.id)) and t.status == "ok"]
    stack = f"{campaign.stack.name} {campaign.stack.version}"
    return About(
        source=f"recorded by attuner campaign {campaign.id}, stack {stack}, on {work.hardware}",
        kind="recorded",
        model=work.model,
        hardware=work.hardware,
        device_kind=cluster.device.kind,
        device_mem_gib=cluster.device.mem_gib,
        gpus=work.gpus,
        gpus_per_node=cluster.devices_per_node,
        global_batch=work.global_batch,
        seq_len=work.seq_len,
        precision=work.precision,
        seed=work.seed,
        steps=work.steps,
        warmup_steps=work.warmup_steps,
        startup_s=round(statistics.fmean(_startup_s(t) for t in trials), 3),
        noise=round(calibration.sigma, 4) if calibration else 0.007,
        baseline=campaign.baseline.arguments,
    )


def _startup_s(trial: Trial) -> float:
    """Return what a launch took beside its steps, seconds; profiled steps count as steps."""
    return max(trial.duration_s - sum(s.step_s for s in trial.steps), 0.001)
