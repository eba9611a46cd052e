"""One step of a campaign again, asked for by a form: the third door beside Retry in the UI and `attuner rerun`.

The records that no longer hold are set aside in one event (attuner/steps/rerun.py, idempotent by this flow run's id), and the
campaign flow goes on as a subflow: it does again what is missing, and nothing else. An artifact shows what ran again.
"""

from __future__ import annotations

from typing import Literal

from prefect import flow, tags
from prefect.runtime import flow_run

from attuner.cli.automations import TAG
from attuner.core.events import INVALIDATED, History
from attuner.report.reruns import rerun_rows
from attuner.settings import load_settings
from attuner.steps.rerun import rerun
from attuner.wiring import open_ledger
from flows.campaign import campaign as campaign_flow
from tasks import _artifacts
from tasks._restarts import check_restarts

Step = Literal["launch", "profile", "score", "gate", "calibrate", "hypothesize", "remeasure", "ship"]


def run_name() -> str:
    """Return the flow run's name: the step, its key and the campaign."""
    given = flow_run.parameters
    return " ".join(x for x in ("rerun", given.get("step", ""), given.get("key", ""), "of", given.get("campaign", "")) if x)


@flow(name="rerun-step", flow_run_name=run_name, persist_result=True)
def rerun_step(campaign: str, step: Step, key: str = "", *, by: str, why: str) -> str:
    """Do one step of a campaign again; return the folder of what the campaign ships then.

    Args:
        campaign: The campaign's id, as `attuner status` or the board shows it.
        step: Which step. A launch is a new attempt, charged to the campaign's budget; what follows from it is computed anew.
        key: Which one. launch, profile, score: a launch id (l07); gate: a hypothesis id (h03); calibrate: the round; else empty.
        by: Who asks for it; it goes on record.
        why: The reason; it goes on record.
    """
    check_restarts()
    settings = load_settings()
    ledger = open_ledger(settings)
    try:
        name = ledger.find(campaign)
        rerun(ledger, name, step, key, by=by, why=why, rules_dir=settings.rules_dir(), request=flow_run.id or "")
        try:
            with tags(TAG):  # a flow run inside another inherits no tag by itself
                return str(campaign_flow(campaign_id=name))
        finally:
            show(name, step, key, History(ledger.history(name)))
    finally:
        ledger.close()


def show(name: str, step: str, key: str, history: History) -> None:
    """Show what ran again and what was kept, however the campaign ended."""
    since = next(e.n for e in history.events if e.kind == INVALIDATED and e.record.get("request") == (flow_run.id or ""))
    _artifacts.rerun(name, step, key, [{"step": x.step, "what": x.what, "of": x.key} for x in rerun_rows(history, since=since)])
