"""The view model of the report: everything that any page shows, gathered once from a campaign's events.

The pages (markdown, html, board) hold no logic about the ledger; they set these facts in type. What is here is plain
data, still untrusted text: escaping happens where it is set.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from attuner.core.campaign import Campaign
from attuner.core.errors import Broken, UserError
from attuner.core.events import INVALIDATED, Event, History
from attuner.core.fingerprint import FAMILIES
from attuner.core.judgement import Calibration, ComponentTest, Decision, Finding, Remeasurement, Shipment, Verdict
from attuner.core.people import Invalidated
from attuner.core.recipe import Change, EffectiveConfig, Recipe, differences
from attuner.core.run import StepBreakdown
from attuner.core.search import Stop
from attuner.policy import dollars, people
from attuner.policy.zones import margin
from attuner.report.details import Context, Details, details
from attuner.report.retuned import Retuned, retuned
from attuner.report.rows import LaunchRow, launch_rows
from attuner.report.terminal import pct
from attuner.report.words import Units, clean, units_for

CONFIG_LOOK = "1 · final values"
State = Literal["calibrating", "searching", "remeasuring", "waiting for review", "shipped", "on paper", "baseline kept"]


@dataclass(frozen=True)
class ChangedValue:
    """One final value that differs between baseline and leader, with every rule that spoke about it."""

    change: Change
    findings: tuple[Finding, ...]


@dataclass(frozen=True)
class LookRow:
    """One thing that a look compared: what was measured, against which tolerance, and what was decided."""

    look: str
    subject: str
    what: str
    baseline: str
    candidate: str
    measured: str
    tolerance: str
    decision: Decision
    share: float = 0.0
    """How much of its limit the deviation uses; of several runs that are admitted, the one that uses most is shown."""


@dataclass(frozen=True)
class Spend:
    """What the launches of one kind were charged, device-hours."""

    kind: str
    num_launches: int
    num_attempts: int
    gpu_hours: float


@dataclass(frozen=True)
class Claim:
    """From what to what, tokens/s per device; gain and band are fractions."""

    before: float
    after: float
    gain: float
    band: float
    remeasured: bool


@dataclass(frozen=True)
class ReportFacts:
    """A campaign as its report tells it."""

    campaign: Campaign
    campaign_id: str
    units: Units
    state: State
    claim: Claim | None
    retuned: Retuned | None
    """What a re-tuning gained over what ran before it; None for any other campaign."""
    calibration: Calibration | None
    remeasurement: Remeasurement | None
    shipment: Shipment | None
    stop: Stop | None
    leader: LaunchRow | None
    """The launch that leads (or was shipped); None while the baseline leads."""
    recipe: Recipe
    """What is shipped, or leads now; the baseline if it was kept."""
    recipe_digest: str
    baseline_digest: str
    versions: tuple[tuple[str, str], ...]
    changes: tuple[ChangedValue, ...]
    looks: tuple[LookRow, ...]
    has_third_look: bool
    components: tuple[ComponentTest, ...]
    rows: tuple[LaunchRow, ...]
    spend: tuple[Spend, ...]
    total_gpu_hours: float
    model_usd: float
    """US dollars that went to a language model; a call without a reply at its bound."""
    num_model_calls: int
    before: StepBreakdown | None
    after: StepBreakdown | None
    reviews: tuple[str, ...]
    """What waits for a person about the leader's recipe."""
    other_reviews: tuple[str, ...]
    """Other candidates that ran and wait for a person: the fastest of them may beat what was shipped."""
    notes: tuple[str, ...]
    first_at: float
    last_at: float
    num_events: int
    last_hash: str
    details: Details

    @property
    def budget_gpu_hours(self) -> float | None:
        """Return what the campaign may spend; None while that isn't known."""
        return self.details.budget_gpu_hours


def gather(events: Sequence[Event], context: Context | None = None) -> ReportFacts:
    """Return the facts of one campaign from its events, in ledger order; a later event of a kind and key holds.

    context: the price table and the lever catalog; without them dollars and levers are not told.

    Raises:
        UserError: there is no campaign among the events.
        Broken: a record does not have the shape of its kind.
    """
    if not any(e.kind == "campaign" for e in events):
        raise UserError("report: these events hold no campaign; `attuner status` lists the campaigns of the ledger")
    history = History(list(events))
    try:
        return _gather(history, context or Context())
    except ValueError as error:  # pydantic's own error is one
        raise Broken(f"report: a record of {events[0].campaign_id} can't be read ({clean(error, limit=200)})") from error


def _gather(history: History, context: Context) -> ReportFacts:
    events, campaign = history.events, history.campaign()
    total = sum(s.gpu_hours for s in history.settlements())
    rows = launch_rows(history)
    leader = _leader(history, rows)
    baseline_digest = campaign.baseline.digest()
    kept = _kept(history)
    baseline = history.effective(baseline_digest)
    effective = history.effective(leader.recipe) if leader else baseline
    verdicts = _verdicts(history, leader)
    recipe = history.find("recipe", leader.recipe, Recipe) if leader and not kept else None
    units, claim, calibration = (
        units_for(campaign.launcher.cluster.device.kind, total),
        _claim(history, leader),
        history.calibration(),
    )
    before = claim.before if claim else calibration.mean if calibration else None
    after = claim.after if claim and not kept else None
    return ReportFacts(
        campaign=campaign,
        campaign_id=events[0].campaign_id,
        units=units,
        state=_state(history, leader),
        claim=claim,
        retuned=retuned(campaign, rows, baseline=before, after=after, recipe=leader.recipe if leader else ""),
        calibration=calibration,
        remeasurement=history.remeasurement(),
        shipment=history.shipment(),
        stop=history.stop(),
        leader=leader,
        recipe=recipe or campaign.baseline,
        recipe_digest=leader.recipe if leader and recipe else baseline_digest,
        baseline_digest=baseline_digest,
        versions=tuple(sorted(effective.versions.items())) if effective else (),
        changes=_changes(baseline, effective, verdicts),
        looks=_merged([row for v in verdicts for row in _look_rows(v, leader)]),
        has_third_look=any(v.look == "update" and not any(f.key == "third look" for f in v.findings) for v in verdicts),
        components=tuple(history.component_tests()),
        rows=rows,
        spend=_spend(history),
        total_gpu_hours=total,
        model_usd=dollars.spent_usd(history),
        num_model_calls=len(dollars.calls(history)),
        before=_breakdown(history, baseline_digest),
        after=_breakdown(history, leader.recipe) if leader else None,
        reviews=open_reviews(history, leader),
        other_reviews=_other_reviews(rows, leader),
        notes=_notes(events),
        first_at=min(e.at for e in events),
        last_at=max(e.at for e in events),
        num_events=len(events),
        last_hash=events[-1].hash,
        details=details(history, context, rows=rows, leader=leader, final=effective, speeds=(before, after), units=units),
    )


def _kept(history: History) -> bool:
    shipment, again = history.shipment(), history.remeasurement()
    return shipment.kept_baseline if shipment else bool(again and again.kept_baseline)


def _leader(history: History, rows: Sequence[LaunchRow]) -> LaunchRow | None:
    """Return the launch that was shipped, else the one that was measured again, else the one that leads."""
    shipment, again = history.shipment(), history.remeasurement()
    wanted = history.leader()
    if again:
        wanted = again.leader
    if shipment and not shipment.kept_baseline:
        wanted = shipment.launch_id
    # a leader may be named by its launch or by its recipe
    found = next((r for r in rows if r.id == wanted), None) or next(
        (r for r in rows if r.kind == "search" and r.recipe == wanted), None
    )
    return found if found and found.recipe != history.campaign().baseline.digest() else None


def _claim(history: History, leader: LaunchRow | None) -> Claim | None:
    again, calibration = history.remeasurement(), history.calibration()
    # a side without one valid run has a mean of zero: nothing to compare
    if again and again.baseline_mean > 0 and again.leader_mean > 0:
        return Claim(again.baseline_mean, again.leader_mean, again.gain, again.band, remeasured=True)
    if calibration is None or leader is None or leader.tokens_per_s is None:
        return None
    gain = leader.tokens_per_s / calibration.mean - 1.0
    return Claim(calibration.mean, leader.tokens_per_s, gain, calibration.band, remeasured=False)


def _state(history: History, leader: LaunchRow | None) -> State:
    shipment, again = history.shipment(), history.remeasurement()
    if shipment:
        return "baseline kept" if shipment.kept_baseline else "on paper" if shipment.on_paper else "shipped"
    if again:
        waits = history.campaign().gate.review == "before_ship" and open_reviews(history, leader)
        return "waiting for review" if waits else "remeasuring"
    if history.stop():
        return "remeasuring"
    return "searching" if history.calibration() else "calibrating"


def _verdicts(history: History, leader: LaunchRow | None) -> list[Verdict]:
    """Return what the looks said about the leader's recipe: the configuration first, then every run of it."""
    if leader is None:
        return []
    config = history.verdict(leader.hypothesis) if leader.hypothesis else None
    runs = [v for v in history.all("verdict", Verdict) if v.look != "config" and v.recipe == leader.recipe]
    return [*([config] if config else []), *runs]


def open_reviews(history: History, leader: LaunchRow | None) -> tuple[str, ...]:
    """Return what waits for a person before (or, once shipped, after) the leader's recipe is used."""
    shipment = history.shipment()
    if shipment:
        return tuple(dict.fromkeys(shipment.open_reviews))
    if leader is None:
        return ()
    answer = people.answer_to(history, leader.recipe)
    found = [(f, item) for v in _verdicts(history, leader) for f, item in zip(v.reviews(), people.items(v), strict=True)]
    return tuple(dict.fromkeys(f.line() for f, item in found if not f.waived and not people.covers(answer, item)))


def _other_reviews(rows: Sequence[LaunchRow], leader: LaunchRow | None) -> tuple[str, ...]:
    mine = leader.recipe if leader else ""
    waiting = [r for r in rows if r.kind == "search" and r.verdict == "review" and r.outcome == "ok" and r.recipe != mine]
    waiting.sort(key=lambda r: -(r.gain_over_baseline or 0.0))
    gains = [f", {pct(r.gain_over_baseline)} over the baseline" if r.gain_over_baseline is not None else "" for r in waiting]
    return tuple(f"{r.id} ({r.what}{gain}) {r.reason}" for r, gain in zip(waiting, gains, strict=True))


def _changes(
    baseline: EffectiveConfig | None, effective: EffectiveConfig | None, verdicts: Sequence[Verdict]
) -> tuple[ChangedValue, ...]:
    if baseline is None or effective is None:
        return ()
    spoken = [f for v in verdicts if v.look == "config" for f in v.findings]
    changes = differences(baseline, effective)
    # what a person set comes before what follows from it
    changes.sort(key=lambda c: (c.key.startswith("fact:"), c.key))
    return tuple(ChangedValue(c, tuple(f for f in spoken if f.key == c.key)) for c in changes)


def _look_rows(verdict: Verdict, leader: LaunchRow | None) -> list[LookRow]:
    if verdict.look == "config":
        counts = {d: sum(f.decision == d for f in verdict.findings) for d in ("admit", "review", "refuse")}
        measured = f"{counts['admit']} admitted, {counts['review']} to review, {counts['refuse']} refused"
        subject = f"{verdict.subject} ({leader.id})" if leader else verdict.subject
        what = "final values that differ"
        return [LookRow(CONFIG_LOOK, subject, what, "", "", measured, "a rule for each", verdict.decision)]
    name = "2 · forward" if verdict.look == "forward" else "3 · backward and update"
    return [_measured_row(name, verdict.subject, f) for f in verdict.findings]


def _measured_row(name: str, subject: str, f: Finding) -> LookRow:
    """Return what one finding compared: value beside value, how far apart, and both limits."""
    before, after = ("" if x is None else f"{x:.7g}" if isinstance(x, float) else clean(x) for x in (f.before, f.after))
    likely = f"; likely: {f.cause}" if f.cause else ""
    todo = f"; {f.todo}" if f.todo and f.decision != "admit" else ""
    limit = "exact" if (before or after) else ""
    if f.tolerance is not None:
        limit = f"{f.tolerance:.2g}" + (f", outer {f.outer:.2g}" if f.outer is not None and f.outer != f.tolerance else "")
    share = margin(f) if f.tolerance is not None else 0.0
    return LookRow(name, subject, f.key or f.rule, before, after, f"{f.reason}{likely}{todo}", limit, f.decision, share)


def _merged(rows: Sequence[LookRow]) -> tuple[LookRow, ...]:
    """Return one row for what several runs agree on, naming them all: equal findings, and what every one was admitted for."""
    same: dict[LookRow | tuple[str, str], list[LookRow]] = {}
    for r in rows:
        admitted = r.decision == "admit" and r.look != CONFIG_LOOK
        same.setdefault((r.look, _measurement(r.what)) if admitted else replace(r, subject=""), []).append(r)
    return tuple(
        replace(max(found, key=lambda r: r.share), subject=", ".join(dict.fromkeys(r.subject for r in found)))
        for found in same.values()
    )


def _measurement(what: str) -> str:
    """Return what was measured, without the family that came nearest to its limit."""
    words = what.split(" ")
    return " ".join(words[:-1]) if words[-1] in FAMILIES else what


def _spend(history: History) -> tuple[Spend, ...]:
    """Return the charges by kind of launch, in the order of a campaign; they add up to the total."""
    kinds = {x.id: x.kind for x in history.launches()}
    order = ("prepare", "calibrate", "search", "check", "remeasure", "unknown")
    settled = [(kinds.get(s.launch_id, "unknown"), s) for s in history.settlements()]
    return tuple(
        Spend(
            kind=kind,
            num_launches=len({s.launch_id for k, s in settled if k == kind}),
            num_attempts=sum(k == kind for k, _ in settled),
            gpu_hours=sum(s.gpu_hours for k, s in settled if k == kind),
        )
        for kind in order
        if any(k == kind for k, _ in settled)
    )


def _breakdown(history: History, recipe: str) -> StepBreakdown | None:
    """Return where the steps of this recipe went: of the last of its launches that was profiled."""
    found = [b for x in history.launches() if x.recipe == recipe and (b := history.breakdown(x.id)) and b.rank_steps]
    return found[-1] if found else None


def _notes(events: Sequence[Event]) -> tuple[str, ...]:
    """Return every note, without those that a rerun set aside."""
    held: dict[str, list[Event]] = {}
    for event in events:
        if event.kind == "note":
            held.setdefault(event.key, []).append(event)
        elif event.kind == INVALIDATED:
            for name in event.read(Invalidated).hides:
                if name.startswith("note "):
                    held.pop(name.removeprefix("note "), None)
    return tuple(_note(e) for e in sorted((e for found in held.values() for e in found), key=lambda e: e.n))


def _note(event: Event) -> str:
    text = next((event.record[k] for k in ("text", "note", "message") if isinstance(event.record.get(k), str)), None)
    return str(text) if text is not None else ", ".join(f"{k}: {v}" for k, v in event.record.items())
