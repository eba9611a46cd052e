"""watch: what a night has to do about one watched recipe: nothing, wait, go on, begin, or re-tune what was shipped.

It reads the ledger, and the environment as it is now, without holding a device. Nothing is recorded unless something is to be
done.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal

from pydantic import Field

from attuner.config import REPLAY, load_register, register_lock
from attuner.core.base import Record, digest_of
from attuner.core.campaign import Campaign
from attuner.core.environment import Environment, Retunes
from attuner.core.errors import Broken, Refused, UserError
from attuner.core.events import History
from attuner.core.judgement import Shipment
from attuner.core.news import ENDS, Alert, AlertKind
from attuner.core.private import mask
from attuner.core.recipe import Change, EffectiveConfig, Recipe
from attuner.policy import budget, drift, people
from attuner.ports import Kit, Ledger
from attuner.source import head_commit
from attuner.steps.common import past, put
from attuner.steps.environment import read_environment
from attuner.steps.tell import Channel, catch_up
from attuner.watchfile import Watched

WATCH = "watch"
"""Under this id stand alerts of campaigns that could not be born; it was never born itself, so no list of campaigns shows it."""
TRIES = 2
"""So often a shipped recipe is tried on one environment before people must see to it."""
LATE = 3
"""So many of the newest campaigns of a watched recipe are told late of, where telling failed."""
Act = Literal["nothing", "wait", "resume", "first", "retune", "broken"]


class Plan(Record):
    """What is to be done about one watched recipe, and why."""

    name: str
    act: Act
    why: str
    alarm: AlertKind | None = Field(default=None, description="a wait that people must hear of, once")
    campaign_id: str = Field(default="", description="that was compared with, or is to go on")
    environment: Environment
    asked: str = Field(default="", description="digest of the watched entry and of what its campaign file says")
    broken: bool = Field(default=False, description="baseline or data can't be read as things are")
    version: str = Field(default="", description="of the framework, as it is installed")
    commit: str = Field(default="", description="that the checkout is at, where the campaign file states one")
    retunes: Retunes | None = None

    @property
    def changes(self) -> list[Change]:
        """Return what changed since the recipe was shipped."""
        return self.retunes.changes if self.retunes else []


def plan(kit: Kit, entry: Watched, campaign: Campaign, *, folder: Path) -> Plan:
    """Return what is to be done about a watched recipe.

    Args:
        kit: of the campaign as its file says it; no lease is taken.
        entry: of watch.yaml.
        campaign: as its file says it.
        folder: an empty one, where its data are put to know their digest.

    Raises:
        UserError: a replayed table can't be watched.
    """
    if campaign.stack.name == REPLAY:
        raise UserError(
            f"{campaign.source_file}: stack.name: {REPLAY} plays a table: there is nothing that could change; take it out"
        )
    asked = digest_of({"entry": entry.data(), "campaign": {**campaign.data(), "id": ""}})
    campaign = _at_head(campaign)
    effective, broken = _resolved(kit, campaign, campaign.baseline)
    if not broken:
        campaign, broken = _frozen(kit, campaign, folder)
    now = read_environment(kit, campaign, effective)
    seen = {"name": entry.name, "environment": now, "version": now.declared["framework"], "commit": campaign.stack.commit}
    seen |= {"asked": asked, "broken": bool(broken)}
    mine = list(_mine(kit.ledger, campaign))
    held = _unfinished(kit, mine, now, entry) if mine else None
    if held is not None:
        return Plan.model_validate({**seen, **held})
    if why := _tried_in_vain(kit.ledger, entry, mine, Plan.model_validate({**seen, "act": "wait", "why": ""})):
        return Plan.model_validate({**seen, "act": "wait", "why": why})
    last = next((h for h in mine if _finished(h)), None)
    if last is None:
        why = "never run before" if not mine else "no finished campaign has this baseline and this workload"
        return Plan.model_validate({**seen, "act": "broken" if broken else "first", "why": broken or why})
    name = last.campaign().id
    if broken:
        return Plan.model_validate({**seen, "act": "broken", "why": broken, "campaign_id": name})
    due = _due(mine, last, now, entry)
    retunes = _retunes(kit, entry, campaign, last, now, effective) if due["act"] == "retune" else None
    return Plan.model_validate({**seen, **due, "campaign_id": name, "retunes": retunes})


def _due(mine: list[History], last: History, now: Environment, entry: Watched) -> dict[str, str]:
    """Return what a finished campaign's environment, as it is now, gives reason for."""
    name, changes = last.campaign().id, _moved(last, mine, now, entry)
    if changes:
        return {"act": "retune", "why": f"changed since {name}: {drift.said(changes)}"}
    vain, retunes = drift.in_vain(mine, now, drift.diff(drift.lived(last), now, ignore=entry.ignore)), last.campaign().retunes
    unknown = drift.unverified(last) if drift.still_open(last) and people.finished(last) is None else ""
    if retunes is not None and unknown:
        tried = [h for h in mine if _tried(h, retunes.of, entry) and not _moved(h, mine, now, entry)]
        said = (
            f"what {retunes.of} shipped could not be re-verified by {', '.join(h.campaign().id for h in reversed(tried)) or name}"
        )
        if len(tried) < TRIES:
            return {"act": "retune", "why": f"{said}: {unknown}; tried again"}
        why = f"{said}, and nothing changed since: {unknown}; raise gpu_hours or mend the cause (docs/nightly.md)"
        return {"act": "wait", "alarm": "unverified", "why": why}
    if vain:
        why = f"{name} was re-tuned for {drift.said(vain)}, and its own launches did not see it: nodes differ; make them alike"
        return {"act": "wait", "alarm": "nodes_differ", "why": why}
    return {"act": "nothing", "why": f"nothing changed since {name}"}


def _moved(since: History, mine: list[History], now: Environment, entry: Watched) -> list[Change]:
    """Return what changed since a campaign, without what was re-tuned for already and not seen."""
    changes = drift.diff(drift.lived(since), now, ignore=entry.ignore)
    vain = drift.in_vain(mine, now, changes)
    return [c for c in changes if c not in vain]


def _tried(history: History, shipped_by: str, entry: Watched) -> bool:
    """Tell whether a campaign tried, with what a re-tuning may cost today, to re-verify what another one shipped, in vain."""
    retunes = history.campaign().retunes
    if retunes is None or retunes.of != shipped_by or not _finished(history):
        return False
    return bool(drift.unverified(history)) and budget.total(history) >= entry.gpu_hours


def _at_head(campaign: Campaign) -> Campaign:
    """Return the campaign with the commit that its checkout is at now, where its file states one: an upgrade moves it."""
    stack, head = campaign.stack, head_commit(campaign.stack.source)
    if not stack.commit or not head or head.startswith(stack.commit):
        return campaign
    return campaign.model_copy(update={"stack": stack.model_copy(update={"commit": head})})


def _resolved(kit: Kit, campaign: Campaign, recipe: Recipe) -> tuple[EffectiveConfig | None, str]:
    try:
        return kit.stack.resolve(recipe, campaign), ""
    except (Refused, UserError, Broken) as error:  # broken: the framework does not even start
        return None, mask(f"the baseline can't be resolved: {error}")


def _frozen(kit: Kit, campaign: Campaign, folder: Path) -> tuple[Campaign, str]:
    """Return the campaign with the digest of its data as they are now."""
    stated = campaign.workload.dataset.partition("@sha256:")[0]
    work = campaign.workload.model_copy(update={"dataset": stated})
    try:
        dataset = kit.stack.freeze(campaign.model_copy(update={"workload": work}), folder)
    except (Refused, UserError, Broken) as error:
        return campaign, mask(f"its data can't be read: {error}")
    return campaign.model_copy(update={"workload": work.model_copy(update={"dataset": dataset})}), ""


def _mine(ledger: Ledger, campaign: Campaign) -> Iterator[History]:
    """Yield the campaigns of this name with the same baseline and the same work, newest first."""
    ours = _named(campaign.name)
    for name in reversed(ledger.campaigns()):
        if not ours.fullmatch(name):
            continue
        try:
            history = History(ledger.history(name))
            same = history.campaign().baseline.digest() == campaign.baseline.digest()
            if same and _work(history.campaign()) == _work(campaign):
                yield history
        except (ValueError, KeyError, IndexError):
            continue  # written by another version of attuner


def _named(name: str) -> re.Pattern[str]:
    """Return what fits the ids of campaigns of this name."""
    return re.compile(re.escape(name) + r"-[0-9a-f]{4,}")


def _work(campaign: Campaign) -> dict[str, object]:
    """Return what must be equal for two speeds to be comparable; model, data and hardware are part of the environment."""
    data = campaign.workload.data()
    return {k: v for k, v in data.items() if k not in ("model", "dataset", "hardware")}


def _finished(history: History) -> bool:
    shipment = history.shipment()
    return shipment is not None and not shipment.on_paper and people.cancelled(history) is None


def _unfinished(kit: Kit, mine: list[History], now: Environment, entry: Watched) -> dict[str, str] | None:
    """Return what to do about the newest campaign if it did not finish on this very environment; None: go on comparing.

    One whose judging code was upgraded meanwhile can't go on: a campaign never changes its judge.
    """
    newest = mine[0]
    name, said = newest.campaign().id, people.cancelled(newest)
    if _finished(newest) or _moved(newest, mine, now, entry):
        return None
    if said is not None:
        return {"act": "wait", "why": f"{name} was cancelled by {said.by}, and nothing changed since", "campaign_id": name}
    if newest.campaign().register_lock != register_lock(kit.rules_dir, newest.campaign().stack.name):
        return None
    ended = [a for a in newest.all("alert", Alert) if a.kind in ENDS]
    if ended:
        why = f"{name} ended without a shipment, and nothing changed since: {ended[-1].text}"
        return {"act": "wait", "why": why, "campaign_id": name}
    return {"act": "resume", "why": f"{name} was cut off", "campaign_id": name}


def _tried_in_vain(ledger: Ledger, entry: Watched, mine: list[History], found: Plan) -> str:
    """Return why a campaign could not be born on this very environment, if that was found out before and nobody did anything.

    An edited entry or campaign file, a baseline that resolves again, or a campaign that finished here since are reasons to try.
    """
    here = [h for h in mine if _finished(h) and not drift.diff(drift.lived(h), found.environment, ignore=entry.ignore)]
    since = max((e.seq for h in here for e in h.events if e.kind == "shipment"), default=0)
    for event in reversed(ledger.history(WATCH)):
        if event.seq < since:
            break
        if event.kind != "alert" or not event.key.startswith(f"{entry.name}:"):
            continue
        alert = event.read(Alert)
        if alert.environment is None or not event.key.endswith(f":{_cause(found)}"):
            continue
        if not drift.diff(alert.environment, found.environment, ignore=entry.ignore):
            return f"it could not begin, and nothing changed since: {alert.text}"
    return ""


def _cause(found: Plan) -> str:
    """Return what an alert about a campaign that could not begin is bound to beside its environment: the end of its key."""
    return f"{found.asked[:12]}:{'resolve' if found.broken else 'birth'}"


def _origin(ledger: Ledger, last: History) -> History:
    """Return the campaign that shipped what is to be re-verified: the last one, or the one that it could not settle about."""
    retunes = last.campaign().retunes
    if retunes is None or not drift.still_open(last):
        return last
    origin = History(ledger.history(retunes.of))
    return origin if origin.shipment() is not None and origin.calibration() is not None else last


def _retunes(
    kit: Kit, entry: Watched, campaign: Campaign, newest: History, now: Environment, effective: EffectiveConfig | None
) -> Retunes | None:
    last = _origin(kit.ledger, newest)
    shipment, calibration, again = last.shipment(), last.calibration(), last.remeasurement()
    if shipment is None or calibration is None:
        return None
    baseline = again.baseline_mean if again and again.baseline_mean else calibration.mean
    recipe = _shipped(last, shipment)
    register = load_register(kit.rules_dir, campaign.stack.name)
    old = last.campaign().baseline.digest()
    defects = drift.defect_changes(register, "baseline", last.effective(old), effective)
    if not shipment.kept_baseline:
        shipped, _ = _resolved(kit, campaign, recipe)
        defects += drift.defect_changes(register, "shipped", last.effective(shipment.recipe), shipped)
    before = drift.lived(last)
    changes = drift.diff(before, now, ignore=entry.ignore)
    return Retunes(
        of=last.campaign().id,
        recipe=recipe,
        tokens_per_s_per_gpu=again.leader_mean if again and not shipment.kept_baseline else baseline,
        baseline_tokens_per_s_per_gpu=baseline,
        band=again.band if again else calibration.band,
        slowdown=entry.alerts.slowdown,
        before=before,
        changes=changes or drift.diff(drift.lived(newest), now, ignore=entry.ignore),
        defects=defects,
    )


def _shipped(last: History, shipment: Shipment) -> Recipe:
    return last.campaign().baseline if shipment.kept_baseline else last.recipe(shipment.recipe)


# ------------------------------------------------------------------------------------------- what went wrong


def alarm(kit: Kit, campaign_id: str, error: str) -> Alert:
    """Record that a campaign ended with an error; it is not taken up again by itself until its environment changes."""
    alert = drift.failed_campaign(past(kit, campaign_id), mask(error))
    if past(kit, campaign_id).find("alert", alert.key, Alert) is None:
        put(kit, campaign_id, "alert", alert.key, alert)
    return alert


def alarm_unborn(ledger: Ledger, found: Plan, error: str, channels: Mapping[str, Channel], *, lasting: bool = True) -> Alert:
    """Record and tell that a campaign could not begin on this environment.

    Args:
        lasting: it is not tried again until environment, entry or campaign file change; else each night tries, and tells no more.

    Raises:
        Refused: another nightly run is at it.
    """
    since = f" (shipped by {found.campaign_id}; changed: {drift.said(found.changes)})" if found.campaign_id else ""
    alert = Alert(
        kind="baseline_fails",
        key=f"{found.name}:{found.environment.digest()[:12]}:{_cause(found)}{'' if lasting else ':passing'}",
        text=f"{found.name} can't begin on the environment as it is: {mask(error)}{since}",
        evidence=[found.campaign_id] if found.campaign_id else [],
        environment=found.environment if lasting else None,
    )
    return _raised(ledger, alert, channels)


def alarm_look(ledger: Ledger, name: str, error: str, channels: Mapping[str, Channel]) -> Alert:
    """Record and tell that a watched recipe could not be looked at: once for each error; every night looks again.

    Raises:
        Refused: another nightly run is at it.
    """
    said = mask(error)
    key = f"{name}:look_fails:{digest_of(said)[:12]}"
    alert = Alert(kind="look_fails", key=key, text=f"{name} could not be looked at, so nobody knows what changed: {said}")
    return _raised(ledger, alert, channels)


def alarm_wait(ledger: Ledger, found: Plan, channels: Mapping[str, Channel]) -> Alert | None:
    """Record and tell, once, that a recipe waits for something that only people can mend; None: it doesn't.

    Raises:
        Refused: another nightly run is at it.
    """
    if found.alarm is None:
        return None
    key = f"{found.name}:{found.alarm}:{digest_of(found.why)[:12]}"
    alert = Alert(kind=found.alarm, key=key, text=f"{found.name} waits: {found.why}", evidence=[found.campaign_id])
    return _raised(ledger, alert, channels)


def _raised(ledger: Ledger, alert: Alert, channels: Mapping[str, Channel]) -> Alert:
    """Record an alert of the watch itself once, and hand over what it left untold. Takes and returns the watch's own lease."""
    try:
        if History(ledger.history(WATCH)).find("alert", alert.key, Alert) is None:
            ledger.claim(WATCH)
            ledger.append(WATCH, "alert", alert.key, alert)
        catch_up(ledger, WATCH, channels)
    finally:
        ledger.release(WATCH)
    return alert


def records(ledger: Ledger, name: str) -> list[str]:
    """Return the newest campaigns of this name, oldest of them first: what they left untold is told late."""
    ours = _named(name)
    return [x for x in ledger.campaigns() if ours.fullmatch(x)][-LATE:]
