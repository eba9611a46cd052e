"""What the model is told when it is asked for a move: the campaign once, then what came of its last move and what is left."""

from __future__ import annotations

import json

from attuner.core.events import History
from attuner.core.search import Hypothesis
from attuner.policy import dollars
from attuner.ports import Brief
from attuner.proposers.claude.arms import KNOBS, Arm, prompt


def system(brief: Brief, arm: Arm) -> list[str]:
    """Return the system prompt: our code of practice, then the campaign. The same for every call of a campaign."""
    ours = [prompt("role")]
    if arm.practice:
        ours.append(prompt("practice"))
    if arm.knobs:
        ours.append("\n".join([prompt("fixed_knobs"), *(f"- {name}: {', '.join(a)}" for name, a in KNOBS.items())]))
    return ["\n\n".join(ours), facts(brief)]


def facts(brief: Brief) -> str:
    """Return what is fixed in the campaign."""
    c = brief.campaign
    cluster = c.launcher.cluster
    body = {
        "workload": c.workload.data(),
        "stack": c.stack.data(),
        "cluster": {k: v for k, v in cluster.data().items() if k != "figures"},
        "figures": {name: f.value for name, f in cluster.figures.items()},
        "baseline_arguments": c.baseline.arguments,
        "baseline_env": c.baseline.env,
        "budget_gpu_hours": c.budget.gpu_hours,
        "noise": c.noise.data(),
        "max_usd": c.proposer.max_usd,
    }
    return "The campaign, as it was born:\n" + json.dumps(body, sort_keys=True, ensure_ascii=False)


def opening(brief: Brief) -> str:
    """Return the first words of a conversation: everything that happened so far, in short."""
    history = brief.history
    moves = [line for h in history.hypotheses() for line in outcome(history, h)]
    return "\n".join([*_baseline(history), *(["Moves so far:", *moves] if moves else ["No move was made yet."]), *left(brief)])


def since(brief: Brief) -> str:
    """Return what came of the last move."""
    made = brief.history.hypotheses()
    return "\n".join([*(outcome(brief.history, made[-1]) if made else []), *left(brief)])


def left(brief: Brief) -> list[str]:
    """Return who leads and what may still be spent."""
    history = brief.history
    spec = brief.campaign.proposer
    leader = history.leader()
    speed = f", {history.leader_speed():.6g} tokens/s per device" if leader else ""
    return [
        f"Leader: {leader or 'none'}{speed}.",
        f"Left: {brief.remaining_gpu_hours:.4g} device-hours, {spec.max_usd - dollars.spent_usd(history):.4f} US dollars.",
        f"Make move {brief.next_id}.",
    ]


def _baseline(history: History) -> list[str]:
    calibration = history.calibration()
    if calibration is None:
        return ["The baseline is not calibrated."]
    runs = ", ".join(calibration.launches)
    return [f"Baseline ({runs}): {calibration.mean:.6g} tokens/s per device, noise band {calibration.band:.2%}."]


def outcome(history: History, move: Hypothesis) -> list[str]:
    """Return what became of one move, in a few lines."""
    changed = {**move.arguments, **{f"env:{k}": v for k, v in move.env.items()}}
    predicted = f"{move.predicted_gain:+.1%} ± {move.predicted_error:.1%}"
    lines = [
        f"{move.id} on {move.parent}, {move.group}: {move.title} {json.dumps(changed, ensure_ascii=False)}; predicted {predicted}"
    ]
    verdict = history.verdict(move.id)
    if verdict is not None and verdict.decision != "admit":
        spoke = verdict.refusals() if verdict.decision == "refuse" else verdict.reviews()
        lines += [f"  {verdict.decision}: {f.rule}: {f.reason}" for f in spoke[:6]]
    forecast = history.forecast(move.id)
    if forecast is not None:
        lines.append(
            f"  estimate: {forecast.gain:+.1%} ± {forecast.gain_error:.1%}, {forecast.peak_mem_gib:.3g} GiB {forecast.why}"
        )
    for launch in (x for x in history.launches() if x.hypothesis == move.id and x.kind == "search"):
        trial, score = history.trial(launch.id), history.score(launch.id)
        if trial is not None:
            memory = trial.peak_mem_gib()
            peak = f", peak {memory:.3g} GiB" if memory is not None else ""
            lines.append(f"  {launch.id}: {trial.status} {trial.phase} {trial.cause} ({trial.gpu_hours:.4g} device-hours{peak})")
            if trial.failure is not None:
                lines.append(f"  {launch.id}: diagnosis: {trial.failure.said()}; {trial.failure.action}")
        if score is not None and score.valid:
            lead = "; the new leader" if score.new_leader else ""
            lines.append(f"  {launch.id}: {score.gain:+.1%} over the leader of then, {score.decision}{lead}")
        elif score is not None:
            lines.append(f"  {launch.id}: not scored: {score.why_invalid}")
    return lines
