"""Nightly re-tuning: each watched recipe whose environment changed is re-verified on the new one and re-tuned from there.

Where nothing changed it says so: nothing is launched, spent or recorded. Trigger it from the Prefect UI, on a schedule, or by
`prefect deployment run nightly/nightly`; docs/nightly.md says how it is set up and how to read its alerts.
"""

from __future__ import annotations

from typing import Any

from prefect import flow, tags
from prefect.artifacts import create_table_artifact
from prefect.client.schemas.objects import State
from prefect.logging import get_run_logger

from attuner.cli.automations import TAG
from attuner.core.environment import short
from attuner.core.errors import AttunerError, Refused, Transient
from attuner.core.private import mask
from attuner.steps.watch import Plan
from flows.campaign import campaign
from tasks.watch import alarm, alarm_look, alarm_unborn, alarm_wait, born, catch_up, look, watched

SAID = {
    "nothing": "nothing to do",
    "wait": "waits",
    "resume": "goes on",
    "first": "begins",
    "retune": "re-tunes",
    "broken": "can't begin",
}


@flow(name="nightly", persist_result=True)
def nightly(watch: str = "configs/watch.yaml", only: str = "", dry_run: bool = False) -> list[str]:
    """Look at every watched recipe in order, and do what is due; return one line for each.

    Args:
        watch: the list of watched recipes.
        only: one recipe by its name, even if it is not enabled; default: all that are enabled.
        dry_run: say what would be done, and do nothing.
    """
    log, rows, names = get_run_logger(), [], watched(watch, only)
    if names and not dry_run:
        late = catch_up(watch, only, return_state=True)
        for line in late.result() if late.is_completed() else [told(late)]:
            log.warning("could not be told late: %s", line)
    for name in names:
        row = one(watch, name, dry_run=dry_run)
        rows.append(row)
        log.info("%s: %s: %s", name, row["outcome"], row["why"])
    if not rows:
        log.info("%s: nothing is watched", watch)
    create_table_artifact(key="nightly", table=rows, description="what was due about each watched recipe, and why")
    return [f"{row['recipe']}: {row['outcome']}: {row['why']}" for row in rows]


def one(watch: str, name: str, *, dry_run: bool) -> dict[str, Any]:
    """Do what is due about one recipe; whatever goes wrong with it stays with it."""
    looked = look(watch, name, return_state=True)
    if not looked.is_completed():
        row = {"recipe": name, "outcome": "could not be looked at", "why": told(looked), "changes": "", "campaign": ""}
        return row if dry_run else {**row, "why": blind(name, row["why"])}
    plan = Plan.model_validate(looked.result())
    row = {
        "recipe": name,
        "outcome": SAID[plan.act],
        "why": plan.why,
        "changes": "; ".join(f"{c.key}: {short(c.before)} → {short(c.after)}" for c in plan.changes),
        "campaign": plan.campaign_id,
    }
    if dry_run or (plan.act in ("nothing", "wait") and plan.alarm is None):
        return row
    try:
        return {**row, **done(watch, name, plan)}
    except AttunerError as error:  # on the way to record or tell what went wrong
        return {**row, "outcome": "broke off", "why": f"{plan.why}; {error}"}


def blind(name: str, why: str) -> str:
    """Tell people, once, that a recipe can't be looked at: nobody knows what changed until it is mended."""
    try:
        alarm_look(name, why)
    except AttunerError as error:
        return f"{why}; {error}"
    return why


def done(watch: str, name: str, plan: Plan) -> dict[str, str]:
    """Run the campaign that is due, and say how it ended."""
    if plan.act == "broken":
        return {"why": alarm_unborn(plan, plan.why)}
    if plan.act == "wait":
        return {"why": alarm_wait(plan)}
    campaign_id = plan.campaign_id
    if plan.act != "resume":
        birth = born(watch, name, plan.data(), return_state=True)
        if later(birth):
            return {"outcome": "begins later", "why": told(birth)}
        if not birth.is_completed():
            lasting = isinstance(birth.result(raise_on_failure=False), AttunerError)  # a full disk says nothing of the recipe
            return {"outcome": SAID["broken"], "why": alarm_unborn(plan, told(birth), lasting=lasting)}
        campaign_id = birth.result()
    with tags(TAG):  # a flow run inside another inherits no tag by itself
        state = campaign(campaign_id=campaign_id, return_state=True)
    row = {"campaign": campaign_id}
    if state.is_completed():
        return {**row, "outcome": f"{SAID[plan.act]}: {campaign_id} ended"}
    if later(state):
        return {**row, "outcome": f"{campaign_id} goes on later", "why": told(state)}
    return {**row, "outcome": f"{campaign_id} failed", "why": alarm(campaign_id, told(state))}


def later(state: State[Any]) -> bool:
    """Tell whether the next night may simply go on: contact was lost, or somebody else is at it."""
    return not state.is_completed() and type(state.result(raise_on_failure=False)) in (Transient, Refused)


def told(state: State[Any]) -> str:
    """Return what went wrong, as one line."""
    failed = state.result(raise_on_failure=False)
    return mask(" ".join(str(failed or state.message or state.name).split()))
