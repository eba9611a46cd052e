"""One campaign: calibrate → loop(hypothesize → gate → launch → profile → score) → remeasure → ship.

Trigger it from the Prefect UI, by `prefect deployment run`, or by `attuner run FILE`. Every step is a task whose result is
kept: a retry of the flow run re-executes the failed task and what follows it, nothing else.
"""

from __future__ import annotations

from pathlib import Path

from prefect import flow
from prefect.runtime import flow_run

from attuner.wiring import kit_session, open_kit
from tasks.birth import birth
from tasks.calibrate import calibrate, plan_calibration, plan_prepare
from tasks.gate import gate
from tasks.hypothesize import hypothesize
from tasks.launch import launch
from tasks.profile import profile
from tasks.remeasure import plan_remeasure, remeasure
from tasks.score import score
from tasks.ship import ship


def run_name() -> str:
    """Return the flow run's name: the campaign's id, or the name of its file."""
    given = flow_run.parameters
    return f"campaign {given.get('campaign_id') or Path(given.get('file', '')).stem}"


@flow(name="campaign", flow_run_name=run_name, persist_result=True)
def campaign(file: str = "", campaign_id: str = "") -> str:
    """Run a campaign from its file, or go on with one that is on record; return the folder of what it shipped.

    Args:
        file: a campaign file, e.g. configs/campaigns/quickstart.yaml.
        campaign_id: a campaign on record to go on with; `file` is not read then.
    """
    with kit_session():
        name = campaign_id or birth(file)
        with open_kit(name):
            prepare(name)
            if calibrated(name, 1) == "busy":
                calibrated(name, 2)
            search(name)
            for launch_id in plan_remeasure(name):
                measured(name, launch_id)
            remeasure(name)
            return ship(name)


def prepare(name: str) -> None:
    """Make the common checkpoint that every launch starts from."""
    launch_id = plan_prepare(name)
    if launch_id:
        launch(name, launch_id)


def calibrated(name: str, number: int) -> str:
    """Run one round of baseline runs; return `quiet` or `busy`."""
    launches = plan_calibration(name, number)
    for launch_id in launches:
        if measured(name, launch_id) in ("failed", "invalid", "refuse"):
            break  # a baseline that can't be measured has no campaign, and its other runs would only cost
    return calibrate(name, number) if launches else "busy"


def measured(name: str, launch_id: str) -> str:
    """Launch, profile and score; an invalid measurement gets one fresh attempt."""
    launch(name, launch_id)
    profile(name, launch_id)
    outcome = score(name, launch_id)
    if outcome == "invalid":
        launch(name, launch_id, again=True)
        profile(name, launch_id, again=True)
        outcome = score(name, launch_id, again=True)
    return outcome


def search(name: str) -> None:
    """Try one change at a time until the proposer or the budget says stop."""
    number = 1
    while hypothesize(name, f"h{number:02d}") == "go":
        launch_id = gate(name, f"h{number:02d}")
        if launch_id:
            measured(name, launch_id)
        number += 1
