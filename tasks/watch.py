"""Tasks of the nightly flow: what is to be done about a watched recipe, its campaign's birth, and what went wrong."""

from __future__ import annotations

import tempfile
from pathlib import Path

from prefect.runtime import flow_run

from attuner.core.base import Value
from attuner.core.errors import AttunerError, Refused
from attuner.core.private import mask
from attuner.settings import load_settings
from attuner.steps import birth as birth_step
from attuner.steps import watch as step
from attuner.steps.tell import catch_up as tell_late
from attuner.steps.tell import until_down
from attuner.steps.watch import Plan
from attuner.watchfile import Watched, load_watch, pick
from attuner.wiring import build_kit, new_kit, open_kit, open_ledger, read_campaign
from tasks._shell import step_task
from tasks.tell import channels, tell


def watched(watch: str, only: str = "") -> list[str]:
    """Return the names of the recipes to look at, in the file's order. Raises UserError for a file that can't be meant."""
    path = _file(watch)
    return [x.name for x in pick(load_watch(path), only, path)]


@step_task(name="look {name}")
def look(watch: str, name: str) -> dict[str, object]:
    """Return the plan for one watched recipe; nothing is launched, recorded or held."""
    settings = load_settings()
    entry = _entry(watch, name)
    campaign = read_campaign(entry.campaign, settings, changes=entry.changes(budget=False))
    kit = build_kit(campaign, settings)
    try:
        with tempfile.TemporaryDirectory(prefix="attuner-watch-") as folder:
            return step.plan(kit, entry, campaign, folder=Path(folder)).data()
    finally:
        kit.stack.close()
        kit.ledger.close()


@step_task(name="birth {name}")
def born(watch: str, name: str, plan: dict[str, object]) -> str:
    """Bring the planned campaign into the world and return its id.

    Raises:
        UserError: it can't be born on this environment.
    """
    found, entry = Plan.model_validate(plan), _entry(watch, name)
    changes: dict[str, Value] = {**entry.changes(budget=found.act == "retune"), "stack.version": found.version}
    if found.commit:
        changes["stack.commit"] = found.commit
    # named by its flow run and entry: a retry after a crash in here goes on with the same campaign
    request = f"{flow_run.id} {name}" if flow_run.id else ""
    campaign = read_campaign(entry.campaign, load_settings(), changes=changes, request=request)
    campaign = campaign.model_copy(update={"retunes": found.retunes})
    with new_kit(campaign) as kit:
        campaign_id = birth_step.birth(kit, campaign)
    tell(campaign_id)
    return campaign_id


@step_task(name="catch-up {watch}")
def catch_up(watch: str, only: str = "") -> list[str]:
    """Tell people what earlier nights and campaigns left untold; return what could not be, a line each."""
    settings, left, names = load_settings(), [], [step.WATCH]
    ledger, ways = open_ledger(settings), until_down(channels())
    path = _file(watch)
    try:
        for entry in pick(load_watch(path), only, path):
            try:
                names += step.records(ledger, read_campaign(entry.campaign, settings).name)
            except AttunerError as error:  # the look at it says so too
                left.append(f"{entry.name}: {error}")
        for name in dict.fromkeys(names):
            try:
                tell_late(ledger, name, ways)
            except Refused:  # another process runs it, and tells by itself
                continue
            except AttunerError as error:
                left.append(f"{name}: {error}")
    finally:
        ledger.close()
    return [mask(x) for x in left]


def alarm(campaign_id: str, error: str) -> str:
    """Record and tell that a campaign ended with an error; return the alert's text."""
    with open_kit(campaign_id) as kit:
        text = step.alarm(kit, campaign_id, error).text
    tell(campaign_id)
    return text


def alarm_unborn(plan: Plan, error: str, *, lasting: bool = True) -> str:
    """Record and tell that a campaign could not begin; return the alert's text. What does not last is tried each night."""
    ledger = open_ledger(load_settings())
    try:
        return step.alarm_unborn(ledger, plan, error, channels(), lasting=lasting).text
    finally:
        ledger.close()


def alarm_wait(plan: Plan) -> str:
    """Record and tell that a recipe waits for people, if it does; return why it waits."""
    ledger = open_ledger(load_settings())
    try:
        step.alarm_wait(ledger, plan, channels())
        return plan.why
    finally:
        ledger.close()


def alarm_look(name: str, error: str) -> str:
    """Record and tell that a watched recipe could not be looked at; return the alert's text."""
    ledger = open_ledger(load_settings())
    try:
        return step.alarm_look(ledger, name, error, channels()).text
    finally:
        ledger.close()


def _file(watch: str) -> Path:
    settings = load_settings()
    path = Path(watch)
    return path if path.is_file() or settings.project is None else settings.project / watch


def _entry(watch: str, name: str) -> Watched:
    path = _file(watch)
    return pick(load_watch(path), name, path)[0]
