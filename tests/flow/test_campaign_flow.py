"""The laws of the shell around a step, on a real Prefect server: what is retried, what is cached, what a retry re-executes."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator

import pytest
from lab import ROOT

sys.path.insert(0, str(ROOT))  # flows/ and tasks/ are run from the checkout, never installed

from prefect import flow, get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId
from prefect.client.schemas.objects import TaskRun
from prefect.testing.utilities import prefect_test_harness

from attuner.core.errors import Refused, Transient, UserError
from tasks._shell import step_task

pytestmark = pytest.mark.slow
CALLS: Counter[str] = Counter()
FAILS: dict[str, list[Exception]] = {}


@pytest.fixture(scope="module", autouse=True)
def server() -> Iterator[None]:
    with prefect_test_harness():
        yield


@pytest.fixture(autouse=True)
def clean() -> None:
    CALLS.clear()
    FAILS.clear()


@step_task(name="launch {launch_id}", retries=3)
def work(campaign_id: str, launch_id: str, again: bool = False) -> str:
    """Count the call; fail as FAILS says, oldest first."""
    CALLS[f"{launch_id} again" if again else launch_id] += 1
    if FAILS.get(launch_id):
        raise FAILS[launch_id].pop(0)
    return f"{launch_id} {again}"


quick = work.with_options(retry_delay_seconds=0)


@flow(name="one")
def one(launch_id: str) -> str:
    return quick("c", launch_id)


@flow(name="many")
def many() -> list[str]:
    return [quick("c", "l01"), quick("c", "l02"), quick("c", "l01"), quick("c", "l01", again=True), quick("c", "l01", again=True)]


@flow(name="chain", retries=1)
def chain() -> str:
    return " ".join(quick("c", f"l0{n}") for n in (1, 2, 3))


def task_runs(name: str) -> list[TaskRun]:
    """Return the task runs of the last run of a flow, by start."""
    with get_client(sync_client=True) as client:
        last = max(
            (
                r
                for r in client.read_flow_runs()
                if r.state_name and r.parameters is not None and named(client, r.flow_id) == name
            ),
            key=lambda r: r.created,
        )
        found = client.read_task_runs(flow_run_filter=FlowRunFilter(id=FlowRunFilterId(any_=[last.id])))
    return sorted(found, key=lambda r: (r.start_time is None, r.start_time, r.name))


def named(client: object, flow_id: object) -> str:
    return str(client.read_flow(flow_id).name)  # type: ignore[attr-defined]


def test_transient_is_retried_on_the_same_task_run() -> None:
    FAILS["l01"] = [Transient("contact lost"), Transient("contact lost")]
    assert one("l01") == "l01 False"
    assert CALLS["l01"] == 3
    runs = task_runs("one")
    assert [(r.name, r.state_name, r.run_count) for r in runs] == [("launch l01", "Completed", 3)]


@pytest.mark.parametrize("error", [UserError("x"), Refused("x"), ValueError("x"), KeyError("x")])
def test_nothing_else_is_retried(error: Exception) -> None:
    FAILS["l01"] = [error]
    with pytest.raises(type(error)):
        one("l01")
    assert CALLS["l01"] == 1


def test_transient_is_given_up_after_three_retries() -> None:
    FAILS["l01"] = [Transient("contact lost")] * 9
    with pytest.raises(Transient):
        one("l01")
    assert CALLS["l01"] == 4


def test_the_cache_key_distinguishes_launches_and_again_and_nothing_is_done_twice_in_a_run() -> None:
    assert many() == ["l01 False", "l02 False", "l01 False", "l01 True", "l01 True"]
    assert CALLS == {"l01": 1, "l02": 1, "l01 again": 1}


def test_another_flow_run_is_never_answered_from_the_first_ones_results() -> None:
    many()
    many()
    assert CALLS == {"l01": 2, "l02": 2, "l01 again": 2}


def test_a_retried_flow_run_re_executes_the_failed_task_and_what_follows_only() -> None:
    FAILS["l02"] = [UserError("mend me")]
    assert chain() == "l01 False l02 False l03 False"
    assert CALLS == {"l01": 1, "l02": 2, "l03": 1}
    states = Counter((r.name, r.state_name) for r in task_runs("chain"))
    assert states[("launch l03", "Completed")] == 1
    assert states[("launch l01", "Completed")] + states[("launch l01", "Cached")] >= 1
    assert sum(r.run_count for r in task_runs("chain") if r.name == "launch l03") == 1


def test_a_task_is_named_after_its_key_and_keeps_its_result() -> None:
    one("l07")
    assert task_runs("one")[0].name == "launch l07"
    assert work.name == "launch"
    assert work.persist_result
