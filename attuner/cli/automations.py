"""The automations that an unattended Prefect server needs, as `attuner doctor --mend` makes them: runs that died are seen and
go on by themselves, and a Retry that a person pressed is not lost.

Source: Prefect 3.9.1. A process worker reports a crash twice: its executor, and again the worker once the flow's hooks have run
(`runner/_flow_run_executor.py`, `workers/base.py`), a second or more later, with another message. In between the run may have
been retried, and the second report crashes it again: only then does that message become a state.
"""

from __future__ import annotations

from typing import Any

HEARTBEAT_EVENT = "prefect.flow-run.heartbeat"
DEAD_RUNS = "attuner: runs without a heartbeat are crashed"
STUCK_RUNS = "attuner: runs that never started are crashed"
LOST_RETRIES = "attuner: a retry that a late crash report undid is made again"
RESUMED = "attuner: crashed runs go on by themselves"
SILENT_S = 90
"""How long a flow run may be silent; Prefect's shortest heartbeat is 30 s."""
PENDING_S = 300
"""How long a run may be pending: a worker that takes one up starts it within seconds, on a busy machine in a minute or two."""
UNTOUCHED_S = 15
"""How long a crashed run is left alone before it goes on: the worker's second report comes meanwhile, and a person may act."""
LATE_REPORT = "Flow run infrastructure exited with non-zero status code*"
TAG = "attuner"
"""Of every deployment in prefect.yaml, and of the campaigns that run inside other flows: automations touch nobody else's runs."""
RESUMES = ("campaign", "rerun-step")
"""Deployments whose crashed runs go on; their flows refuse after a few times (tasks/_restarts.py)."""


def automations() -> dict[str, dict[str, Any]]:
    """Return the automations by what they are for."""
    return {"dead runs": dead_runs(), "stuck runs": stuck_runs(), "lost retries": lost_retries(), "crashed runs": crashed_runs()}


def dead_runs() -> dict[str, Any]:
    """A run that has sent a heartbeat and is silent for SILENT_S is crashed: process and worker are gone.

    A heartbeat carries the run's tags (Prefect 3.9.1, `flow_engine.py`), those of its deployment or of `prefect.tags`.
    """
    trigger = {
        "posture": "Proactive",
        "after": [HEARTBEAT_EVENT],
        "expect": ["prefect.flow-run.*"],
        "within": SILENT_S,
        "match_related": [_tagged()],
    }
    action = {"type": "change-flow-run-state", "state": "CRASHED", "message": "no heartbeat"}
    return _automation(DEAD_RUNS, f"after a heartbeat, nothing for {SILENT_S} s: process and worker are gone", trigger, action)


def stuck_runs() -> dict[str, Any]:
    """A run whose worker died after it took it up and before it started it stays pending, and never sent a heartbeat."""
    trigger = {
        "posture": "Proactive",
        "after": ["prefect.flow-run.Pending"],
        "expect": ["prefect.flow-run.*"],
        "within": PENDING_S,
        "match_related": [_tagged()],
    }
    action = {"type": "change-flow-run-state", "state": "CRASHED", "message": "never started"}
    return _automation(STUCK_RUNS, f"pending for {PENDING_S} s: its worker died before it started it", trigger, action)


def lost_retries() -> dict[str, Any]:
    """A run that the worker's second report crashed has been retried since the first: it is retried again."""
    trigger = {
        "posture": "Reactive",
        "expect": ["prefect.flow-run.Crashed"],
        "within": 0,
        "match": {"prefect.resource.id": ["prefect.flow-run.*"], "prefect.state-message": [LATE_REPORT]},
        "match_related": [_tagged()],
    }
    return _automation(LOST_RETRIES, "Prefect 3.9: the worker's second report of a crash undoes a Retry", trigger, _again())


def crashed_runs() -> dict[str, Any]:
    """A crashed run that nobody has touched for UNTOUCHED_S is retried."""
    touched = ["AwaitingRetry", "Scheduled", "Pending", "Running", "Cancelled", "Completed", "Failed"]
    trigger = {
        "posture": "Proactive",
        "after": ["prefect.flow-run.Crashed"],
        "expect": [f"prefect.flow-run.{name}" for name in touched],
        "within": UNTOUCHED_S,
        "match_related": [
            _tagged(),
            {"prefect.resource.role": ["deployment"], "prefect.resource.name": list(RESUMES)},
        ],
    }
    return _automation(RESUMED, f"of {', '.join(RESUMES)}; the flow itself refuses after a few times", trigger, _again())


def _tagged() -> dict[str, list[str]]:
    return {"prefect.resource.role": ["tag"], "prefect.resource.id": [f"prefect.tag.{TAG}"]}


def _again() -> dict[str, Any]:
    return {"type": "change-flow-run-state", "state": "SCHEDULED", "name": "AwaitingRetry", "message": "crashed; goes on"}


def _automation(name: str, description: str, trigger: dict[str, Any], action: dict[str, Any]) -> dict[str, Any]:
    common = {"type": "event", "match": {"prefect.resource.id": ["prefect.flow-run.*"]}, "for_each": ["prefect.resource.id"]}
    return {
        **{"name": name, "description": description, "enabled": True},
        **{"trigger": {**common, "threshold": 1, **trigger}, "actions": [action]},
    }
