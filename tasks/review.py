"""A campaign asks a person before it ships: the flow run is suspended with a form in the Prefect UI, and ends its process.

Prefect fails a suspended run at its time-out. So it gets none: a run of the same deployment is scheduled for the deadline; it
puts on record that nobody answered (not admitted), cancels the suspended run and ships the best that needs no answer. A run
that can't be suspended (from a terminal, or inside another flow run) doesn't wait: what nobody was asked counts as unanswered.
"""

from __future__ import annotations

import datetime as dt
from typing import Literal
from uuid import UUID

from prefect.artifacts import create_markdown_artifact
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterState, FlowRunFilterStateType, FlowRunFilterTags
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.flow_runs import suspend_flow_run
from prefect.input import RunInput
from prefect.runtime import deployment, flow_run
from prefect.settings import PREFECT_API_URL
from prefect.states import Cancelled, Scheduled
from pydantic import Field

from attuner.cli.wake import waiting, waiting_key
from attuner.steps import people
from attuner.steps import review as step
from attuner.steps.common import past
from attuner.steps.review import Question
from attuner.wiring import open_kit
from tasks.tell import tell

DEADLINE = "review-deadline"
"""Tag of the run that goes on when nobody answered."""


class Answer(RunInput):
    """The form."""

    decision: Literal["admit", "refuse"] = Field(
        default="refuse", title="Decision", description="admit: it may ship; refuse: it may not"
    )
    by: str = Field(min_length=1, title="Your name", description="who decides; it goes on record and into the report")
    why: str = Field(min_length=1, title="Reason", description="it goes on record and into the report")


def reviewed(campaign_id: str) -> None:
    """Ask about everything that would ship if a person admitted it, fastest first, until nothing waits any more.

    Called by the flow itself: a task can't be suspended.
    """
    with open_kit(campaign_id) as kit:
        tell(campaign_id)
        asked, hours = step.question(kit, campaign_id), past(kit, campaign_id).campaign().gate.review_wait_h
        while asked is not None:
            why_not = unaskable() if hours else "gate.review_wait_h is 0: nobody is asked"
            if why_not:
                step.unanswered(kit, campaign_id, asked.launch_id, why=why_not)
            else:
                said = ask(asked, hours)
                if step.question(kit, campaign_id) == asked:  # else it was answered elsewhere meanwhile, or is another one now
                    people.answer(kit.ledger, campaign_id, asked.launch_id, said.decision, by=said.by, why=said.why)
            asked = step.question(kit, campaign_id)
    settled(campaign_id)


def unaskable() -> str:
    """Return why nobody can be asked in this run; '' if a form can be shown."""
    if not PREFECT_API_URL.value() or not deployment.id:
        return "run from a terminal, where nobody is asked; `attuner review` answers, `attuner rerun` then ships"
    if flow_run.parent_flow_run_id:
        return "run inside another flow run, which can't wait; `attuner review` answers, `attuner rerun` then ships"
    if DEADLINE in (flow_run.tags or []):
        return "nobody answered by the deadline"
    return ""


def ask(question: Question, hours: float) -> Answer:
    """Show the form and end this process, for so many hours; started again with an answer, return it."""
    campaign_id, key = question.campaign_id, waiting_key(question)
    until = dt.datetime.now(dt.UTC) + dt.timedelta(hours=hours)
    text = f"{question.text()} Without an answer by {until:%Y-%m-%d %H:%M} UTC it counts as not admitted."
    if first_time(key):
        wait_until(until, question, key)
        create_markdown_artifact(
            key=f"{campaign_id}-review", markdown=text, description=f"waits for a person: {question.launch_id}"
        )
    return suspend_flow_run(wait_for_input=Answer.with_initial_data(description=text), key=key)


def first_time(key: str) -> bool:
    """Tell whether this flow run has not asked this yet: it runs from the top again when it was answered."""
    with get_client(sync_client=True) as client:
        return key not in (client.read_flow_run(UUID(flow_run.id)).empirical_policy.pause_keys or set())


def wait_until(until: dt.datetime, question: Question, key: str) -> None:
    """Schedule the run that goes on with the campaign if nobody answers; the same question twice is one run.

    What was scheduled for an earlier question goes: its time is not this one's.
    """
    with get_client(sync_client=True) as client:
        for run in _deadlines(client, question.campaign_id):
            client.delete_flow_run(run.id)
        client.create_flow_run_from_deployment(
            UUID(deployment.id),
            parameters={"campaign_id": question.campaign_id},
            state=Scheduled(scheduled_time=until, message=f"nobody answered about {question.launch_id}"),
            name=f"deadline of {question.campaign_id}",
            tags=[DEADLINE],
            idempotency_key=f"{flow_run.id}-{key}",
        )


def settled(campaign_id: str) -> None:
    """Take back what waits for an answer that isn't needed any more: the deadline's run, or at the deadline the suspended one."""
    if not PREFECT_API_URL.value() or not flow_run.id:
        return
    with get_client(sync_client=True) as client:
        for run in waiting(client, campaign_id):
            if str(run.id) != flow_run.id:
                said = f"flow run {flow_run.id} went on with the campaign"
                client.set_flow_run_state(run.id, Cancelled(message=said), force=True)
        for run in _deadlines(client, campaign_id):
            client.delete_flow_run(run.id)


def _deadlines(client: SyncPrefectClient, campaign_id: str) -> list[FlowRun]:
    scheduled = FlowRunFilterState(type=FlowRunFilterStateType(any_=[StateType.SCHEDULED]))
    tagged = FlowRunFilter(state=scheduled, tags=FlowRunFilterTags(all_=[DEADLINE]))
    return [r for r in client.read_flow_runs(flow_run_filter=tagged, limit=200) if r.parameters.get("campaign_id") == campaign_id]
