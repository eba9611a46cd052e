"""The one decorator around a step: retried only on Transient, its result kept, found again by flow run, step and key.

Prefect's default cache key would answer a re-measurement from the first measurement, so the key is our own: within one flow
run a step with the same ids has one result, and a retry of the flow run finds it; another flow run computes anew, and the
step itself answers from the ledger.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from prefect import task
from prefect.cache_policies import CacheKeyFnPolicy
from prefect.context import TaskRunContext
from prefect.tasks import Task, exponential_backoff

from attuner.core.errors import Transient

P = ParamSpec("P")
R = TypeVar("R")
RETRY_BASE_S = 2


def only_transient(_task: Any, _run: Any, state: Any) -> bool:
    """Tell Prefect whether to retry: contact lost or a locked file, nothing else."""
    try:
        state.result()
    except Transient:
        return True
    except Exception:  # noqa: BLE001  (whatever else it was, it is not to be retried)
        return False
    return False


def step_task(*, name: str, retries: int = 3, timeout_s: float | None = None) -> Callable[[Callable[P, R]], Task[P, R]]:
    """Make a step a Prefect task.

    Args:
        name: run name with the parameters in braces, e.g. `launch {launch_id}`; its first word names the task.
        retries: how often a Transient is tried again.
        timeout_s: seconds after which Prefect gives the task up.
    """

    def key(context: TaskRunContext, parameters: dict[str, Any]) -> str:
        ids = ",".join(f"{k}={v}" for k, v in sorted(parameters.items()))
        return f"{context.task_run.flow_run_id}:{context.task.name}:{ids}"

    def wrap(function: Callable[P, R]) -> Task[P, R]:
        return task(
            name=name.split()[0],
            task_run_name=name,
            retries=retries,
            retry_delay_seconds=exponential_backoff(RETRY_BASE_S),
            retry_condition_fn=only_transient,
            persist_result=True,
            cache_policy=CacheKeyFnPolicy(cache_key_fn=key),
            timeout_seconds=timeout_s,
        )(function)

    return wrap
