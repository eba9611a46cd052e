"""Drift: did the ground under a shipped recipe move, and what did a re-tuning find there. Pure functions over records.

`diff` compares environments, `shipped_move` is the first hypothesis of a re-tuning, `alerts` what people should look at. A
slowdown is measured against the speeds on record, with both campaigns' bands; all else is a fact of the new campaign.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator

from attuner.core.base import digest_of
from attuner.core.campaign import Campaign
from attuner.core.environment import DefectChange, Environment, Retunes, short
from attuner.core.events import History
from attuner.core.judgement import Finding
from attuner.core.news import Alert
from attuner.core.recipe import Change, EffectiveConfig, same_value
from attuner.core.run import Launch, Trial
from attuner.core.search import Hypothesis
from attuner.policy.conduct import RETUNER, SHIPPED
from attuner.policy.leader import refused_by_person
from attuner.policy.register import Register, Rule, carried_defects

IGNORED = ("kernel", "ray")
"""What a run reports of itself that trains nothing: the machine's kernel, and what only carries the job."""
PACKAGES = ("megatron_core", "megatron_bridge", "nemo_automodel", "slime")
"""What a run calls the package of a training framework; `framework` is its version as it resolved the baseline."""
NOT_FAULTS = ("held_back", "budget", "conduct", "citation")
"""Refusals that say nothing of the training."""


# ---------------------------------------------------------------------------------------------------- environments


def lived(history: History) -> Environment:
    """Return the environment of a campaign: as recorded at its birth, with what its last launch reported of itself.

    Of a campaign from before environments were recorded: what its file declared, and what its launches reported. What a birth
    did not record yet is read from the campaign as it was born.
    """
    campaign = history.campaign()
    born = history.find("environment", "birth", Environment)
    if born is None:
        work, stack = campaign.workload, campaign.stack
        declared = {"framework": stack.version, "commit": stack.commit, "patches": " ".join(stack.patches), "torch": stack.torch}
        declared |= {"hardware": work.hardware, "model": work.model, "data": work.dataset}
        born = Environment(declared={k: v for k, v in declared.items() if v}, blind="born before environments were recorded")
    return born.model_copy(update={"declared": {**settings(campaign), **born.declared}, "reported": reported(history)})


def settings(campaign: Campaign) -> dict[str, str]:
    """Return what a campaign's files set beside versions and data; '' where nothing is set, which is known as well.

    Of the script's words and of the jobs' environment only a digest: a record must not hold a secret.
    """
    stack, cluster = campaign.stack, campaign.launcher.cluster
    script = {"script": stack.script, "arguments": stack.script_arguments}
    env = {"env": cluster.env, "pods": cluster.kube.env if cluster.kube else {}}
    return {
        "patches": " ".join(stack.patches),
        "script": digest_of(script) if any(script.values()) else "",
        "cluster": cluster.name,
        "cluster_env": digest_of(env) if any(env.values()) else "",
    }


def reported(history: History) -> dict[str, str]:
    """Return what the campaign's last launch reported of its software; empty if none did.

    The baseline's last one, where any of it did: what a candidate sets in its environment may load other libraries.
    """
    baseline = history.campaign().baseline.digest()
    found = [(x, history.trial(x.id)) for x in history.launches()]
    trials = [(x.recipe == baseline, t.versions) for x, t in found if t is not None and t.versions]
    own = [versions for same, versions in trials if same] or [versions for _, versions in trials]
    return without_ignored(own[-1]) if own else {}


def without_ignored(versions: dict[str, str]) -> dict[str, str]:
    """Return what bears on a training run."""
    return {k: v for k, v in versions.items() if k not in IGNORED and v}


def diff(old: Environment, new: Environment, *, ignore: Collection[str] = ()) -> list[Change]:
    """Return what differs between two environments, sorted by field.

    Where somebody could look on the new side, what is seen decides, and what isn't installed counts as gone; what can only be
    declared is compared as declared. Without a look both are compared, each with its kind. What one side doesn't know at all
    is no change.
    """
    seen, found, was, now = old.measured(), {}, _declared(old), _declared(new)
    if new.looked and seen:
        found = _differing(seen, new.looked, every=True)
        declared = {k for k in was.keys() & now.keys() if k not in seen and k not in new.looked}
    else:
        declared = set(was.keys() & now.keys())
        found = _differing(old.reported, new.reported, every=bool(old.reported and new.reported))
    found |= _differing({k: was[k] for k in declared}, {k: now[k] for k in declared}, every=True)
    framework = found.get("framework")
    if framework is not None and any(_same(framework, found[k]) for k in PACKAGES if k in found):
        del found["framework"]  # the same package, seen and declared
    return [found[key] for key in sorted(found) if key not in ignore]


def _declared(environment: Environment) -> dict[str, str]:
    """Return what was declared; that nothing is patched was known to every record, and left out of the older ones."""
    return {"patches": "", **environment.declared} if environment.declared else {}


def _same(one: Change, other: Change) -> bool:
    return (one.before, one.after) == (other.before, other.after)


def _differing(old: dict[str, str], new: dict[str, str], *, every: bool) -> dict[str, Change]:
    if not every:
        return {}
    keys = (old.keys() | new.keys()) - set(IGNORED)
    return {k: Change(key=k, before=old.get(k), after=new.get(k)) for k in keys if old.get(k) != new.get(k)}


def in_vain(before: Iterable[History], now: Environment, changes: list[Change]) -> list[Change]:
    """Return the changes that one of these campaigns re-tuned for, and never saw: its own launches reported the old values.

    Where nodes differ, what another campaign's launches reported is no promise of where the next ones run.
    """
    if now.looked:
        return []
    tried = [(h.campaign().retunes, reported(h)) for h in before]
    seen = [(x.key, x.after, own.get(x.key)) for retunes, own in tried if retunes is not None for x in retunes.changes]
    return [c for c in changes if now.reported.get(c.key) == c.after and (c.key, c.after, c.before) in seen]


def said(changes: list[Change]) -> str:
    """Return changes as one line for a person."""
    return ", ".join(f"{c.key} {short(c.before)} → {short(c.after)}" for c in changes)


# ------------------------------------------------------------------------------------------------------ what changed


def defect_changes(
    register: Register, subject: str, old: EffectiveConfig | None, new: EffectiveConfig | None
) -> list[DefectChange]:
    """Return the known defects that a recipe is in now and was not, or the other way round, by the register as it is today."""
    if old is None or new is None:
        return []
    was, now = ({r.id: r for r in carried_defects(register, x)} for x in (old, new))
    brought = [_defect(now[x], subject, now=True) for x in sorted(now.keys() - was.keys())]
    return brought + [_defect(was[x], subject, now=False) for x in sorted(was.keys() - now.keys())]


def _defect(rule: Rule, subject: str, *, now: bool) -> DefectChange:
    return DefectChange.model_validate(
        {"rule": rule.id, "subject": subject, "now": now, "reason": rule.reason, "source": rule.source}
    )


def shipped_move(history: History, hypothesis_id: str) -> Hypothesis | None:
    """Return the first move of a re-tuning: the shipped recipe, all its changes at once; None where there is none to make.

    There is none in an ordinary campaign, after the first move, and where the baseline itself was shipped.
    """
    retunes, calibration = history.campaign().retunes, history.calibration()
    if retunes is None or calibration is None or any(h.group == SHIPPED for h in history.hypotheses()):
        return None
    before, after = history.campaign().baseline, retunes.recipe
    arguments = {k: v for k, v in after.arguments.items() if k not in before.arguments or not same_value(v, before.arguments[k])}
    env = {k: v for k, v in after.env.items() if before.env.get(k) != v}
    if not arguments and not env:
        return None
    gain = retunes.tokens_per_s_per_gpu / retunes.baseline_tokens_per_s_per_gpu - 1.0
    return Hypothesis(
        id=hypothesis_id,
        parent=calibration.launches[0],
        group=SHIPPED,
        arguments=arguments,
        env=env,
        title=f"the recipe that {retunes.of} shipped",
        bottleneck=f"changed since: {said(retunes.changes)}"[:400],
        mechanism=f"measured {gain:+.1%} over the baseline when it shipped",
        predicted_gain=round(gain, 4),
        predicted_error=round(2 * retunes.band, 4),
        by=RETUNER,
    )


# ------------------------------------------------------------------------------------------------------------- alerts


def alerts(history: History) -> list[Alert]:
    """Return what a re-tuning's records alarm about so far; nothing of an ordinary campaign."""
    retunes = history.campaign().retunes
    if retunes is None:
        return []
    return [
        *_defects(history, retunes),
        *_slower_baseline(history, retunes),
        *_shipped(history, retunes),
        *_unverified(history, retunes),
    ]


def _defects(history: History, retunes: Retunes) -> Iterator[Alert]:
    for change in retunes.defects:
        kind, word = ("defect_brought", "brings") if change.now else ("defect_cured", "cures")
        whose = "the baseline" if change.subject == "baseline" else "the shipped recipe"
        yield Alert.model_validate(
            {
                "kind": kind,
                "key": f"{kind}:{change.rule}:{change.subject}",
                "text": f"the new environment {word} a known defect for {whose}: {change.rule}: {change.reason}",
                "evidence": [change.rule, retunes.of, history.campaign().id, *change.source],
            }
        )


def allowed(retunes: Retunes, band: float) -> float:
    """Return the slowdown, a fraction, up to which two measurements count as equal: both bands, which are independent."""
    return retunes.slowdown if retunes.slowdown is not None else math.hypot(retunes.band, band)


def _slower_baseline(history: History, retunes: Retunes) -> Iterator[Alert]:
    calibration = history.calibration()
    if calibration is not None:
        launches = list(calibration.launches)
        before = retunes.baseline_tokens_per_s_per_gpu
        yield from _slower(history, retunes, "baseline", before, calibration.mean, launches)


def _slower(history: History, retunes: Retunes, subject: str, before: float, now: float, launches: list[str]) -> Iterator[Alert]:
    calibration, name = history.calibration(), history.campaign().id
    limit = allowed(retunes, calibration.band if calibration else 0.0)
    lost = 1.0 - now / before
    if lost > limit:
        whose = "the baseline" if subject == "baseline" else "the shipped recipe"
        yield Alert(
            kind="slowdown",
            key=f"slowdown:{subject}",
            text=f"{whose} is {lost:.1%} slower on the new environment: {before:,.0f} → {now:,.0f} tokens/s per device; both "
            f"bands allow {limit:.1%}; changed: {said(retunes.changes)}"
            if retunes.slowdown is None
            else f"{whose} is {lost:.1%} slower on the new environment: {before:,.0f} → {now:,.0f} tokens/s per device; the "
            f"limit is {limit:.1%}; changed: {said(retunes.changes)}",
            evidence=[retunes.of, *(f"{name}/{x}" for x in launches)],
            figures={"before_tokens_per_s_per_gpu": before, "now_tokens_per_s_per_gpu": now, "slower": lost, "allowed": limit},
        )


def shipped_hypothesis(history: History) -> Hypothesis | None:
    """Return the move that stands for the shipped recipe, if it was made."""
    return next((h for h in history.hypotheses() if h.group == SHIPPED), None)


def _shipped(history: History, retunes: Retunes) -> Iterator[Alert]:
    move, name = shipped_hypothesis(history), history.campaign().id
    if move is None:
        return
    first = history.verdict(move.id)
    if first is not None and first.decision == "refuse":
        against = next((f for f in first.refusals() if f.rule not in NOT_FAULTS), None)
        if against is not None:
            yield _refused(retunes, "first", against, f"{name}/{move.id}")
        return
    digest = retunes.recipe.digest()
    for launch in (x for x in history.launches() if x.recipe == digest and x.kind in ("search", "remeasure")):
        trial = history.trial(launch.id)
        if trial is None:
            continue
        if launch.kind == "search" and trial.status not in ("ok", "infrastructure"):
            yield _failed(name, retunes, launch, trial)
        yield from _looks_against(history, retunes, launch, trial)
    own = next((x.id for x in history.launches() if x.hypothesis == move.id and x.kind == "search"), "")
    score = history.score(own)
    if score is not None and score.valid:
        now = score.tokens_per_s_per_gpu
        yield from _slower(history, retunes, "shipped", retunes.tokens_per_s_per_gpu, now, [own])


def _unverified(history: History, retunes: Retunes) -> Iterator[Alert]:
    """Yield that the search is over and nobody knows whether the shipped recipe still holds: it may not be forgotten quietly."""
    why, move, name = unverified(history), shipped_hypothesis(history), history.campaign().id
    if why:
        yield Alert(
            kind="unverified",
            key="unverified",
            text=f"the shipped recipe could not be re-verified on the new environment: {why}; changed: {said(retunes.changes)}",
            evidence=[retunes.of, f"{name}/{move.id}" if move else name],
        )


def unverified(history: History) -> str:
    """Return why a re-tuning's search ended without a word on the shipped recipe: no look refused it, and it has no valid score.

    '' where there is a word, and where there is nothing to verify.
    """
    stop, move, campaign = history.stop(), shipped_hypothesis(history), history.campaign()
    if stop is None or campaign.retunes is None or campaign.retunes.recipe.digest() == campaign.baseline.digest():
        return ""
    if move is None:
        return stop.reason or "the search ended before its launch"
    verdict = history.verdict(move.id)
    launch = next((x for x in history.launches() if x.hypothesis == move.id and x.kind == "search"), None)
    trial, score = (history.trial(launch.id), history.score(launch.id)) if launch else (None, None)
    refused = verdict is not None and any(f.rule not in NOT_FAULTS for f in verdict.refusals())
    failed = trial is not None and trial.status not in ("ok", "infrastructure")
    if refused or failed or (score is not None and score.valid):
        return ""
    against = verdict.refusals()[0].line() if verdict is not None and verdict.refusals() else ""
    why = against or (score.why_invalid if score is not None else "") or (trial.cause if trial is not None else stop.reason)
    return why or "it was not launched"


def still_open(history: History) -> bool:
    """Tell whether a re-tuning that kept the baseline leaves the shipped recipe to the next one, as its first move again.

    It does where nobody knows, where a look refused it, which a later version may cure, and where it was faster and all the same
    could not ship (a review that nobody gave, no budget left to re-measure it). It does not where it was measured well and
    brought nothing, or a person refused it.
    """
    retunes, shipment, calibration = history.campaign().retunes, history.shipment(), history.calibration()
    if retunes is None or shipment is None or calibration is None or not shipment.kept_baseline:
        return False
    if retunes.recipe.digest() == history.campaign().baseline.digest():
        return False
    move = shipped_hypothesis(history)
    own = next((x.id for x in history.launches() if move and x.hypothesis == move.id and x.kind == "search"), "")
    score, again = history.score(own), history.remeasurement()
    if score is None or not score.valid or score.decision == "refuse":
        return True
    if refused_by_person(history, own) or score.tokens_per_s_per_gpu <= calibration.mean * (1 + calibration.band):
        return False
    disproved = again is not None and again.leader == own and again.kept_baseline and again.decision != "refuse"
    return not disproved


def _looks_against(history: History, retunes: Retunes, launch: Launch, trial: Trial) -> Iterator[Alert]:
    """Yield the first look that refuses a run of the shipped recipe."""
    for verdict in history.looks(launch.id, trial.attempt):
        if verdict.decision == "refuse":
            look = {"forward": "second", "update": "third"}[verdict.look]
            yield _refused(retunes, look, verdict.refusals()[0], f"{history.campaign().id}/{launch.id}")


def _refused(retunes: Retunes, look: str, finding: Finding, where: str) -> Alert:
    return Alert(
        kind="gate",
        key=f"gate:{look}",
        text=f"the {look} look refuses the shipped recipe on the new environment: {finding.line().removeprefix('refuse  ')}; "
        f"changed: {said(retunes.changes)}",
        evidence=[retunes.of, where, finding.rule],
        finding=finding,
    )


def _failed(name: str, retunes: Retunes, launch: Launch, trial: Trial) -> Alert:
    return Alert(
        kind="shipped_fails",
        key="shipped_fails",
        text=f"the shipped recipe fails on the new environment ({trial.status}: {trial.cause}); changed: {said(retunes.changes)}",
        evidence=[retunes.of, f"{name}/{launch.id}"],
    )


def failed_campaign(history: History, error: str) -> Alert:
    """Return the alert of a campaign that ended with an error: its baseline fails, or something else did."""
    name, retunes = history.campaign().id, history.campaign().retunes
    changed = f"; changed: {said(retunes.changes)}" if retunes else ""
    if history.calibration() is None:
        runs = [x.id for x in history.launches() if x.kind in ("calibrate", "prepare") and _not_well(history, x.id)]
        text = f"the baseline can't be measured{' on the new environment' if retunes else ''}: {error}{changed}"
        return Alert(kind="baseline_fails", key="baseline_fails", text=text, evidence=[f"{name}/{x}" for x in runs] or [name])
    return Alert(
        kind="campaign_failed", key="campaign_failed", text=f"the campaign ended with an error: {error}", evidence=[name]
    )


def _not_well(history: History, launch_id: str) -> bool:
    trial, score = history.trial(launch_id), history.score(launch_id)
    refused = score is not None and (not score.valid or score.decision == "refuse")
    return trial is not None and (trial.status != "ok" or refused)
