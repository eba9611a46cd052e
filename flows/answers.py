"""A person's word to a campaign by a form: an answer to what waits for review, or a directive (pause, budget, ban, cancel …)."""

from __future__ import annotations

from typing import Literal

from prefect import flow

from attuner.cli.wake import wake
from attuner.core.errors import UserError
from attuner.settings import load_settings
from attuner.steps import people
from attuner.wiring import open_ledger

Act = Literal["pause", "go on", "set budget", "ban", "unban", "finish", "cancel"]


@flow(name="review", flow_run_name="{decision} {launch} of {campaign}", persist_result=True)
def review(campaign: str, launch: str, decision: Literal["admit", "refuse"], by: str, why: str) -> str:
    """Answer what waits for a person before a campaign ships; return what was put on record.

    Args:
        campaign: The campaign's id.
        launch: The launch that waits, e.g. l09; `attuner review CAMPAIGN` shows its items.
        decision: admit: it may ship; refuse: it may not.
        by: Who decides; it goes on record, and into the report.
        why: The reason; it goes on record, and into the report.
    """
    settings = load_settings()
    ledger = open_ledger(settings)
    try:
        name = ledger.find(campaign)
        people.answer(ledger, name, launch, decision, by=by, why=why)
    finally:
        ledger.close()
    said = f"{name}: {launch}: {decision}, {by}"
    return "; ".join(x for x in (said, wake(settings, name)) if x)


@flow(name="direct", flow_run_name="{act} {campaign}", persist_result=True)
def direct(campaign: str, act: Act, lever: str = "", budget_gpu_hours: float | None = None, *, by: str, why: str) -> str:
    """Say something to a campaign that runs; it acts on it at its next step. Return what was put on record.

    Args:
        campaign: The campaign's id.
        act: pause, go on; set budget; ban, unban a lever; finish: end the search and ship the best; cancel: keep the baseline.
        lever: For ban and unban: the lever group.
        budget_gpu_hours: For set budget: the campaign's new total, in device-hours.
        by: Who says so; it goes on record.
        why: The reason; it goes on record.
    """
    settings = load_settings()
    ledger = open_ledger(settings)
    try:
        name = ledger.find(campaign)
        if act == "set budget":
            if budget_gpu_hours is None:
                raise UserError("direct: budget_gpu_hours: state the new total, in device-hours")
            people.set_budget(ledger, name, budget_gpu_hours, by=by, why=why)
        elif act in ("ban", "unban"):
            people.check_lever(ledger, name, lever, settings.rules_dir())
            (people.ban if act == "ban" else people.unban)(ledger, name, lever, by=by, why=why)
        else:
            acts = {"pause": people.pause, "go on": people.go_on, "finish": people.finish, "cancel": people.cancel}
            acts[act](ledger, name, by=by, why=why)
    finally:
        ledger.close()
    return f"{name}: {act}, {by}"
