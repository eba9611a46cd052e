"""Wakes the suspended flow run that waits for a person's answer which was just given in the terminal."""

from __future__ import annotations

import os

from attuner.core.events import History
from attuner.core.people import FlowRun
from attuner.settings import Settings


def wake(settings: Settings, history: History) -> str:
    """Return what was done, as a line, or '' if no run is known to wait."""
    runs = history.all("flow_run", FlowRun)
    if not runs or not os.environ.get("PREFECT_API_URL"):
        return ""
    return ""
