"""One campaign: calibrate → loop(hypothesize → gate → launch → profile → score) → remeasure → ship.

Trigger it from the Prefect UI, by `prefect deployment run`, or by `attuner run FILE`. Every step is a task whose result is
kept: a retry of the flow run re-executes the failed task and what follows it, nothing else.
"""

from __future__ import annotations

import itertools
from pathlib import Path

from prefect import flow
from prefect.client.schemas.objects import State
from prefect.runtime import flow_run
from prefect.states import Completed

from attuner.settings import load_settings
from attuner.wiring import kit_session, open_kit
from flows.request import CampaignFields, Launchers, Proposers, changes_of, check_request, fields_of, request_file
from tasks._cluster import cluster_of, cluster_turn
from tasks._restarts import check_restarts
from tasks.birth import birth
from tasks.calibrate import calibrate, plan_calibration, plan_prepare
from tasks.check import check
from tasks.gate import gate
from tasks.hypothesize import hypothesize
from tasks.launch import launch
from tasks.lessons import lessons
from tasks.profile import profile
from tasks.remeasure import plan_remeasure, remeasure
from tasks.review import reviewed
from tasks.score import score
from tasks.ship import ship


def run_name() -> str:
    """Return the flow run's name: the campaign's id, or the name of its file."""
    given = flow_run.parameters
    fields = given.get("fields")
    asked = getattr(fields, "name", "") or (fields.get("name", "") if isinstance(fields, dict) else "")
    name = given.get("campaign_id") or asked or Path(given.get("file", "")).stem
    return f"{'check' if given.get('dry_run') else 'campaign'} {name}"


@flow(name="campaign", flow_run_name=run_name, persist_result=True)
def campaign(
    file: str = "",
    campaign_id: str = "",
    fields: CampaignFields | None = None,
    budget_gpu_hours: float | None = None,
    proposer: Proposers | None = None,
    launcher: Launchers | None = None,
    seed: int | None = None,
    dry_run: bool = False,
) -> str | State[str]:
    """Run a campaign from its file or from fields, or go on with one that is on record; return the folder of what it shipped.

    Args:
        file: A campaign file, e.g. configs/campaigns/quickstart.yaml; not read if `fields` or `campaign_id` is given.
        campaign_id: A campaign on record to go on with, as it is; leave everything else alone then.
        fields: The campaign itself, in fields instead of a file.
        budget_gpu_hours: Device-hours that the campaign may spend, instead of what the file says.
        proposer: What searches, instead of what the file says.
        launcher: What launches, instead of what the file says.
        seed: Seed of the search (random, tpe, fixed_knobs) and of a replay's noise, instead of what the file says.
        dry_run: Only check: validate, resolve and judge the baseline, show cost, fit and budget. Nothing is spent.
    """
    check_restarts()
    asked = fields_of(fields)
    changes = changes_of(budget_gpu_hours=budget_gpu_hours, proposer=proposer, launcher=launcher, seed=seed)
    check_request(file, campaign_id, asked, changes, dry_run=dry_run)
    if not campaign_id:
        file = request_file(file, asked, load_settings())
    if dry_run:
        said = check(file, changes)
        return Completed(name="DryRun", message=said, data=said)
    with kit_session():
        name = campaign_id or birth(file, changes)
        with open_kit(name) as kit, cluster_turn(cluster_of(kit, name), name):
            prepare(name)
            if calibrated(name, 1) == "busy":
                calibrated(name, 2)
            search(name)
            reviewed(name)
            remeasured(name)
            folder = ship(name)
            lessons(name)  # what was learnt waits for a person's review; it never fails the campaign
            return folder


def prepare(name: str) -> None:
    """Make the common checkpoint that every launch starts from; a failure gets one fresh attempt."""
    launch_id = plan_prepare(name)
    if launch_id and launch(name, launch_id) != "ok":
        launch(name, launch_id, again=True)


def calibrated(name: str, number: int) -> str:
    """Run one round of baseline runs; return `quiet` or `busy`. A failed one gets a fresh attempt: the recipe is known to run."""
    launches = plan_calibration(name, number)
    for launch_id in launches:
        if measured(name, launch_id, repeated=("invalid", "failed")) in ("failed", "invalid", "refuse"):
            break  # a baseline that can't be measured has no campaign, and its other runs would only cost
    return calibrate(name, number) if launches else "busy"


def measured(name: str, launch_id: str, *, repeated: tuple[str, ...] = ("invalid",)) -> str:
    """Launch, profile and score; an invalid measurement gets one fresh attempt.

    Args:
        name: the campaign.
        launch_id: the launch.
        repeated: outcomes after which the fresh attempt is made.
    """
    launch(name, launch_id)
    profile(name, launch_id)
    outcome = score(name, launch_id)
    if outcome in repeated:
        launch(name, launch_id, again=True)
        profile(name, launch_id, again=True)
        outcome = score(name, launch_id, again=True)
    return outcome


def remeasured(name: str) -> None:
    """Measure leader and baseline again; anew if a person's word changed the leader meanwhile."""
    for turn in itertools.count(1):
        for launch_id in plan_remeasure(name, turn):
            measured(name, launch_id)
        if remeasure(name, turn) != "again":
            return


def search(name: str) -> None:
    """Try one change at a time until the proposer or the budget says stop."""
    number = 1
    while hypothesize(name, f"h{number:02d}") == "go":
        launch_id = gate(name, f"h{number:02d}")
        if launch_id:
            measured(name, launch_id)
        number += 1
