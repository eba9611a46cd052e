"""Wakes the flow runs that wait for a person's answer: it was given elsewhere, in the terminal or by another form."""

from __future__ import annotations

import httpx
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterState, FlowRunFilterStateType
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.client.schemas.responses import SetStateStatus
from prefect.exceptions import ObjectNotFound
from prefect.settings import PREFECT_API_URL

from attuner.core.events import History
from attuner.settings import Settings
from attuner.wiring import open_ledger


def waiting_key(campaign_id: str, rest: str) -> str:
    """Return the key under which a campaign's flow run waits for an answer."""
    return f"{campaign_id}--{rest}"  # Prefect takes letters, digits and - only


def waiting(client: SyncPrefectClient, campaign_id: str) -> list[FlowRun]:
    """Return the suspended flow runs of a campaign."""
    paused = FlowRunFilterState(type=FlowRunFilterStateType(any_=[StateType.PAUSED]))
    found = client.read_flow_runs(flow_run_filter=FlowRunFilter(state=paused), limit=200)
    return [r for r in found if r.state and (r.state.state_details.pause_key or "").rpartition("--")[0] == campaign_id]


def wake(settings: Settings, campaign_id: str) -> str:
    """Resume the campaign's suspended flow runs with the answer that is on record; return what was done, '' for nothing.

    Without a shared server (PREFECT_API_URL), or with one that doesn't answer, nothing is: the answer holds all the same when
    the campaign goes on, at the latest at the deadline.
    """
    if not PREFECT_API_URL.value():
        return ""
    with open_ledger(settings) as ledger:
        given = History(ledger.history(campaign_id)).reviews()
    if not given:
        return ""
    said, woken = {"decision": given[-1].decision, "by": given[-1].by, "why": given[-1].why}, 0
    try:
        with get_client(sync_client=True) as client:
            for run in waiting(client, campaign_id):
                woken += client.resume_flow_run(run.id, said).status == SetStateStatus.ACCEPT
    except (httpx.HTTPError, ObjectNotFound):
        return ""
    return f"{campaign_id} goes on: {woken} waiting flow run{'s' if woken > 1 else ''} resumed" if woken else ""
