"""What the automations may touch: attuner's own runs, and of those only what they are for; and how often a run goes on."""

from __future__ import annotations

import ast
import datetime as dt
import sys
from typing import Any
from uuid import uuid4

import pytest
import yaml
from lab import ROOT

sys.path.insert(0, str(ROOT))  # flows/ and tasks/ are run from the checkout, never installed

from prefect import flow
from prefect.client.schemas.objects import FlowRun
from prefect.flow_engine import FlowRunEngine
from prefect.server.events.schemas.automations import AutomationCore
from prefect.server.events.schemas.events import ReceivedEvent
from prefect.states import Crashed, Pending, Running

from attuner.cli.automations import HEARTBEAT_EVENT, RESUMES, automations, crashed_runs, dead_runs, lost_retries, stuck_runs
from attuner.cli.doctor import DEPLOYMENTS
from tasks._restarts import MOST, restarts

LATE = "Flow run infrastructure exited with non-zero status code -9. It was killed."
FIRST = "Process exited with status code: -9. It was killed."


def crash(message: str, *, tag: str = "attuner", deployment: str = "campaign") -> ReceivedEvent:
    now = dt.datetime.now(dt.UTC)
    run = "prefect.flow-run.4b1a4ea0-7c3b-4b39-9b39-0f6f4c1d3b11"
    related = [
        {"prefect.resource.id": f"prefect.tag.{tag}", "prefect.resource.role": "tag"},
        {
            "prefect.resource.id": "prefect.deployment.4b1a4ea0-7c3b-4b39-9b39-0f6f4c1d3b12",
            "prefect.resource.role": "deployment",
            "prefect.resource.name": deployment,
        },
    ]
    resource = {"prefect.resource.id": run, "prefect.state-message": message}
    body = {"occurred": now, "received": now, "event": "prefect.flow-run.Crashed", "resource": resource, "related": related}
    return ReceivedEvent.model_validate({**body, "id": "4b1a4ea0-7c3b-4b39-9b39-0f6f4c1d3b13"})


def heeds(automation: dict[str, Any], event: ReceivedEvent) -> bool:
    """Tell whether Prefect's own trigger takes an event for this automation's."""
    trigger = AutomationCore.model_validate(automation).trigger
    return bool(trigger.covers_resources(event.resource, event.related))


def test_prefect_accepts_them() -> None:
    assert [AutomationCore.model_validate(x).name for x in automations().values()] == [x["name"] for x in automations().values()]


@pytest.mark.parametrize(("message", "tag", "heeded"), [(LATE, "attuner", True), (FIRST, "attuner", False), (LATE, "x", False)])
def test_only_the_late_report_about_our_runs_brings_a_retry_back(message: str, tag: str, *, heeded: bool) -> None:
    assert heeds(lost_retries(), crash(message, tag=tag)) is heeded


@pytest.mark.parametrize(
    ("tag", "deployment", "heeded"), [("attuner", "campaign", True), ("attuner", "nightly", False), ("x", "campaign", False)]
)
def test_only_our_campaigns_go_on_by_themselves(tag: str, deployment: str, *, heeded: bool) -> None:
    assert heeds(crashed_runs(), crash(FIRST, tag=tag, deployment=deployment)) is heeded


def heartbeat(*tags: str) -> ReceivedEvent:
    """A heartbeat as Prefect's engine makes it of a run with these tags."""
    run = FlowRun(flow_id=uuid4(), tags=list(tags), name="a run")
    resource, related = FlowRunEngine(flow=flow(name="a-flow")(lambda: None), flow_run=run)._build_heartbeat_event_template()
    now = dt.datetime.now(dt.UTC)
    body = {"occurred": now, "received": now, "event": HEARTBEAT_EVENT, "id": uuid4(), "resource": resource}
    return ReceivedEvent.model_validate({**body, "related": [x.model_dump() for x in related]})


def test_only_a_dead_run_of_ours_is_crashed() -> None:
    assert heeds(dead_runs(), heartbeat("attuner", "nightly"))
    assert heeds(dead_runs(), crash(FIRST))
    assert not heeds(dead_runs(), heartbeat())
    assert not heeds(dead_runs(), heartbeat("x"))
    assert not heeds(dead_runs(), crash(FIRST, tag="x", deployment="campaign"))


def test_a_campaign_inside_another_flow_bears_the_tag() -> None:
    """Prefect hands no tag down by itself, and the dead campaign of a dead night would stay running."""
    inside = set()
    for file in sorted((ROOT / "flows").glob("*.py")):
        tree = ast.parse(file.read_text())
        names = {
            a.asname or a.name
            for x in ast.walk(tree)
            if isinstance(x, ast.ImportFrom) and x.module == "flows.campaign"
            for a in x.names
        }
        calls = {x for x in ast.walk(tree) if isinstance(x, ast.Call) and isinstance(x.func, ast.Name) and x.func.id in names}
        tagged = [x for x in ast.walk(tree) if isinstance(x, ast.With) and ast.unparse(x.items[0]) == "tags(TAG)"]
        assert calls <= {x for block in tagged for x in ast.walk(block)}, file.name
        inside |= {file.stem} if calls else set()
    assert inside == {"nightly", "rerun_step"}


def test_only_our_runs_are_called_stuck() -> None:
    assert heeds(stuck_runs(), crash(FIRST, tag="attuner"))
    assert not heeds(stuck_runs(), crash(FIRST, tag="x"))


def test_every_deployment_bears_the_tag_the_heartbeat_and_is_known_to_the_doctor() -> None:
    found = yaml.safe_load((ROOT / "prefect.yaml").read_text())["deployments"]
    assert {x["entrypoint"].partition(":")[2].replace("_", "-") + "/" + x["name"] for x in found} == set(DEPLOYMENTS)
    assert set(RESUMES) < {x["name"] for x in found}
    for deployment in found:
        assert deployment["tags"] == ["attuner"]
        assert deployment["work_pool"]["job_variables"]["env"]["PREFECT_FLOWS_HEARTBEAT_FREQUENCY"] == "30"
        assert (ROOT / deployment["entrypoint"].partition(":")[0]).is_file()
        assert all("timezone" in x for x in deployment.get("schedules", []))


def test_restarts_count_what_went_on_after_a_crash_and_nothing_else() -> None:
    one = [Pending(), Running(), Running(name="AwaitingCluster"), Running(), Crashed(), Crashed(), Pending(), Running()]
    assert restarts(stamped(one)) == 1
    assert restarts(stamped([Pending(), Running(), Crashed()])) == 0
    assert restarts(stamped([Running(), Crashed()] * (MOST + 1) + [Running()])) == MOST + 1


def stamped(states: list[Any]) -> list[Any]:
    start = dt.datetime(2026, 11, 30, tzinfo=dt.UTC)
    return [s.model_copy(update={"timestamp": start + dt.timedelta(seconds=n)}) for n, s in enumerate(states)][::-1]
