"""Wakes the suspended flow run that waits for a person's answer which was just given in the terminal."""

from __future__ import annotations

import importlib
import os
import sys

from attuner.settings import Settings


def wake(settings: Settings, campaign_id: str) -> str:
    """Return what was done, as a line, or '' if no run waits, or no Prefect server is known (PREFECT_API_URL)."""
    if not os.environ.get("PREFECT_API_URL") or settings.project is None:
        return ""
    root = str(settings.project)
    if root not in sys.path:
        sys.path.insert(0, root)  # as for the flow itself (cli/run.py): tasks/ is no part of the package
    woken = importlib.import_module("tasks._waiting").wake(campaign_id)
    return f"{campaign_id} goes on: {woken} waiting flow run{'s' if woken > 1 else ''} resumed" if woken else ""
