"""What a campaign shows in the Prefect UI: a markdown of the calibration, a table of launches, a bar of budget, the report."""

from __future__ import annotations

import math
from typing import Any

from prefect.artifacts import create_markdown_artifact, create_progress_artifact, create_table_artifact

from attuner.core.events import History
from attuner.core.judgement import Calibration
from attuner.policy import budget
from attuner.report import markdown
from attuner.report.details import Context
from attuner.report.facts import gather
from attuner.report.markdown_parts import esc


def _artifact(create: Any, **content: Any) -> None:
    create(**content)


def calibration(campaign_id: str, result: Calibration) -> None:
    """Show the baseline's speed and band."""
    busy = " The machine is busy: σ is above the limit." if result.busy else ""
    text = (
        f"**{result.mean:,.0f} tokens/s per device**, {len(result.launches)} runs, σ {result.sigma:.1%}, band {result.band:.1%}, "
        f"step-0 loss {result.step0_loss:.6f}.{busy}"
    )
    _artifact(create_markdown_artifact, key=f"{campaign_id}-calibration-{result.round}", markdown=text, description="calibration")


def dry_run(name: str, source: str, rows: list[tuple[str, str]]) -> None:
    """Show what a campaign would do, as `attuner check` says it."""
    said = "\n".join(f"{label:12}{text}" if label else text for label, text in rows)
    text = f"**{esc(source)}** is valid. Nothing was launched, recorded or spent.\n\n```text\n{said}\n```\n"
    _artifact(create_markdown_artifact, key=f"{name}-dry-run", markdown=text, description="dry run")


def rerun(campaign_id: str, step: str, key: str, rows: list[dict[str, Any]]) -> None:
    """Show what a person's rerun did again, and what it left alone."""
    what = " ".join(x for x in ("rerun of", step, key) if x)
    _artifact(create_table_artifact, key=f"{campaign_id}-rerun", table=rows, description=what)


def search(campaign_id: str, history: History) -> None:
    """Show every launch so far, and how much of the budget is spent."""
    _artifact(create_table_artifact, key=f"{campaign_id}-launches", table=launch_rows(history), description="launches")
    total = budget.total(history)
    share = 100.0 * budget.spent(history) / total if math.isfinite(total) and total else 0.0
    _artifact(create_progress_artifact, progress=min(share, 100.0), key=f"{campaign_id}-budget", description="budget spent")


def launch_rows(history: History) -> list[dict[str, Any]]:
    """Return one row per launch: prediction and outcome side by side."""
    rows = []
    for launch in history.launches():
        trial, score = history.trial(launch.id), history.score(launch.id)
        hypothesis = history.hypothesis(launch.hypothesis) if launch.hypothesis else None
        predicted = f"{hypothesis.predicted_gain:+.0%} ±{hypothesis.predicted_error:.0%}" if hypothesis else ""
        rows.append(
            {
                "launch": launch.id,
                "kind": launch.kind,
                "change": hypothesis.title if hypothesis else launch.purpose,
                "predicted": predicted,
                "outcome": trial.status if trial else "running",
                "tokens/s per device": round(score.tokens_per_s_per_gpu) if score and score.valid else "",
                "gain over leader": f"{score.gain:+.1%}" if score and score.valid and hypothesis else "",
                "leads": "yes" if score and score.new_leader else "",
                "device-hours": round(trial.gpu_hours, 5) if trial else "",
            }
        )
    return rows


def report(campaign_id: str, history: History, context: Context | None = None) -> None:
    """Show the report."""
    _artifact(
        create_markdown_artifact,
        key=f"{campaign_id}-report",
        markdown=markdown.render(gather(history.events, context)),
        description="report",
    )
