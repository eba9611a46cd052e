"""How often a flow run goes on after a crash: automations start it again (attuner/cli/automations.py), and this ends that."""

from __future__ import annotations

from uuid import UUID

from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import State
from prefect.runtime import flow_run
from prefect.settings import PREFECT_API_URL

from attuner.core.errors import Refused

MOST = 5


def check_restarts() -> None:
    """Refuse to go on in a flow run that has crashed and was started again too often.

    Raises:
        Refused: what crashes it is to be mended first; the campaign itself can go on in a new flow run.
    """
    if not PREFECT_API_URL.value() or not flow_run.id:
        return
    with get_client(sync_client=True) as client:
        count = restarts(client.read_flow_run_states(UUID(flow_run.id)))
    if count > MOST:
        raise Refused(
            f"this flow run crashed and was started again {count} times; more than {MOST} is refused: look into its log, mend "
            "what ends it, then go on in a new run (campaign_id: the campaign, or `attuner resume`)"
        )


def restarts(states: list[State]) -> int:
    """Return how often a flow run was started again after a crash."""
    count, crashed = 0, False
    for state in sorted(states, key=lambda s: s.timestamp):
        if state.is_crashed():
            crashed = True
        elif state.is_running() and crashed:
            count, crashed = count + 1, False
    return count
