"""Task: ask the proposer for the next move, once nobody holds the campaign back."""

from __future__ import annotations

import time

from prefect.logging import get_run_logger

from attuner.core.search import Stop
from attuner.steps import hypothesize as step
from attuner.wiring import open_kit
from tasks._shell import step_task

PAUSE_POLL_S = 2.0


@step_task(name="hypothesize {hypothesis_id}")
def hypothesize(campaign_id: str, hypothesis_id: str) -> str:
    """Return `go`, or `stop` when the search ends; the reason is on record.

    A paused campaign waits here, and so does one whose moves people make; it keeps its lease, and nothing is charged.
    """
    with open_kit(campaign_id) as kit:
        said = ""
        while waits := step.waits_for(kit, campaign_id, hypothesis_id):
            if waits.partition(",")[0] != said:
                said = waits.partition(",")[0]
                get_run_logger().info("%s: %s", campaign_id, waits)
            kit.watch.progress(hypothesis_id, waits, 0)
            time.sleep(PAUSE_POLL_S)
        return "stop" if isinstance(step.hypothesize(kit, campaign_id, hypothesis_id), Stop) else "go"
