"""One step of a campaign again, asked for by a form: the third door beside Retry in the UI and `attuner rerun`.

The records that no longer hold are set aside in one event (attuner/steps/rerun.py, idempotent by this flow run's id), and the
campaign flow goes on as a subflow: it does again what is missing, and nothing else. An artifact shows what ran again.
"""

from __future__ import annotations

from typing import Literal

from prefect import flow
from prefect.runtime import flow_run

from attuner.core.events import Event, History
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
    ledger = open_ledger(load_settings())
    try:
        name = ledger.find(campaign)
        rerun(ledger, name, step, key, by=by, why=why, request=flow_run.id or "")
        folder = campaign_flow(campaign_id=name)
        _artifacts.rerun(name, step, key, again(ledger.history(name), flow_run.id or ""))
    finally:
        ledger.close()
    return str(folder)


RECORDS = {
    **{"trial": "launch", "breakdown": "profile", "verdict": "look", "score": "score", "calibration": "calibrate"},
    **{"remeasurement": "remeasure", "shipment": "ship"},
}
"""What a step leaves on record, and the step."""


def again(events: list[Event], request: str) -> list[dict[str, str]]:
    """Return one row per step's record: what ran again, what is new, what stands as it was and what is set aside."""
    at = next(i for i, e in enumerate(events) if e.kind == "invalidated" and e.record.get("request") == request)
    before, now = History(events[:at]), History(events)
    rows = []
    for kind, step in RECORDS.items():
        held, since = before.keys(kind), {e.key for e in events[at:] if e.kind == kind}
        for key in [*held, *sorted(since - set(held))]:
            done = "ran again" if key in held else "new"
            left = "stands" if key in now.keys(kind) else "set aside"
            rows.append({"step": step, "of": key, "this rerun": done if key in since else left})
    return rows
