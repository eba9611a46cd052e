"""Wakes the flow runs that wait for a person's answer: it was given elsewhere, in the terminal or by another form."""

from __future__ import annotations

import httpx
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterState, FlowRunFilterStateType
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.client.schemas.responses import SetStateStatus
from prefect.exceptions import ObjectNotFound
from prefect.settings import PREFECT_API_URL

from attuner.core.base import digest_of
from attuner.core.events import History
from attuner.settings import Settings
from attuner.steps import review
from attuner.wiring import open_ledger

ELSEWHERE = {"decision": "refuse", "by": "attuner", "why": "answered elsewhere"}
"""What a run is resumed with whose question was answered elsewhere. It looks at the records, finds its question gone and never
reads this; a form wants an answer all the same, and this is the safe one."""


def waiting_key(question: review.Question) -> str:
    """Return the key under which a flow run waits for the answer to this very question: campaign, launch and items."""
    items = digest_of([question.launch_id, question.items])[:12]
    return f"{question.campaign_id}--{question.launch_id}-{items}"  # Prefect takes letters, digits and - only


def waiting(client: SyncPrefectClient, campaign_id: str) -> list[FlowRun]:
    """Return the suspended flow runs of a campaign."""
    paused = FlowRunFilterState(type=FlowRunFilterStateType(any_=[StateType.PAUSED]))
    found = client.read_flow_runs(flow_run_filter=FlowRunFilter(state=paused), limit=200)
    return [r for r in found if r.state and (r.state.state_details.pause_key or "").rpartition("--")[0] == campaign_id]


def wake(settings: Settings, campaign_id: str) -> str:
    """Resume the campaign's suspended flow runs whose question is answered on record; return what was done, '' for nothing.

    A run that asks about something else goes on waiting: what was said of one launch is no answer about another. Without a shared
    server (PREFECT_API_URL), or with one that doesn't answer, nothing is done: the answer holds all the same when the campaign
    goes on, at the latest at the deadline.
    """
    if not PREFECT_API_URL.value():
        return ""
    with open_ledger(settings) as ledger:
        asked = review.asked(History(ledger.history(campaign_id)))
    still, woken = waiting_key(asked) if asked else "", 0
    try:
        with get_client(sync_client=True) as client:
            for run in waiting(client, campaign_id):
                if run.state and run.state.state_details.pause_key != still:
                    woken += client.resume_flow_run(run.id, ELSEWHERE).status == SetStateStatus.ACCEPT
    except (httpx.HTTPError, ObjectNotFound):
        return ""
    return f"{campaign_id} goes on: {woken} waiting flow run{'s' if woken > 1 else ''} resumed" if woken else ""
