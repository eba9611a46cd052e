"""Wakes the flow runs that wait for a person's answer: it was given elsewhere, in the terminal or by another form."""

from __future__ import annotations

import httpx
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterState, FlowRunFilterStateType
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.client.schemas.responses import SetStateStatus
from prefect.exceptions import ObjectNotFound
from prefect.settings import PREFECT_API_URL


def waiting_key(campaign_id: str, rest: str) -> str:
    """Return the key under which a campaign's flow run waits for an answer."""
    return f"{campaign_id}--{rest}"  # Prefect takes letters, digits and - only


def waiting(client: SyncPrefectClient, campaign_id: str) -> list[FlowRun]:
    """Return the suspended flow runs of a campaign."""
    paused = FlowRunFilterState(type=FlowRunFilterStateType(any_=[StateType.PAUSED]))
    found = client.read_flow_runs(flow_run_filter=FlowRunFilter(state=paused), limit=200)
    return [r for r in found if r.state and (r.state.state_details.pause_key or "").rpartition("--")[0] == campaign_id]


def wake(campaign_id: str, decision: str, *, by: str, why: str) -> int:
    """Resume the campaign's suspended flow runs with an answer that is on record; return how many went on.

    Without a shared server, or with one that doesn't answer, none does: the answer is on record all the same, and holds when
    the campaign goes on, at the latest at the deadline.
    """
    if not PREFECT_API_URL.value():
        return 0
    given, woken = {"decision": decision, "by": by, "why": why}, 0
    try:
        with get_client(sync_client=True) as client:
            for run in waiting(client, campaign_id):
                woken += client.resume_flow_run(run.id, given).status == SetStateStatus.ACCEPT
    except (httpx.HTTPError, ObjectNotFound):
        return woken
    return woken
