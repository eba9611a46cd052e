"""The sentences of the report, as plain text: the claim, how it was measured, what no look sees, how to do it again.

Both pages, Markdown and HTML, say the same words; each escapes them in its own way.
"""

from __future__ import annotations

import shlex

from attuner.config import REPLAY
from attuner.report import economy
from attuner.report.economy import Payback
from attuner.report.facts import Claim, ReportFacts
from attuner.report.retuned import Retuned
from attuner.report.terminal import pct, rate, share_pct
from attuner.report.words import clean, number, span

NO_LOOK_SEES = (
    "Buffers that training changes outside the optimizer, such as a router's expert bias.",
    "Schedules after step 2: learning rate, batch size or loss coefficients that change later.",
    "Resumed state: optimizer moments, data position and random numbers after a restart.",
    "Data beyond this trial's rows: other lengths, other languages, rows that were never drawn.",
)
NO_THIRD_LOOK = (
    "Gradients and the first update: no third look is on record here. What acts only when weights are updated "
    "rests on the register alone."
)
REVIEW_MEANS = "No rule of the register decides these, or a look after launch could not tell. Nothing refuses them."


def review_lines(facts: ReportFacts) -> tuple[str, ...]:
    """Return what waits about the leader's recipe, one line each, without the word that says so."""
    return tuple(line.removeprefix("review  ") for line in facts.reviews)


def subject(facts: ReportFacts) -> str:
    """Return what was tuned, on what: model, hardware, number of devices."""
    work = facts.campaign.workload
    return f"{work.model} · {work.hardware} · {facts.units.devices(work.gpus)}"


def headline(facts: ReportFacts) -> str:
    """Return the claim in a few words."""
    claim, again = facts.claim, facts.retuned
    if kept(facts):
        said = "Baseline kept"
    elif claim is None:
        said = {"calibrating": "Calibrating", "searching": "Nothing faster yet"}.get(facts.state, "No faster recipe")
    else:
        said = f"{pct(claim.gain)} {facts.units.speed}"
        if again is not None:
            return f"Re-tuning: {_over_before(facts, again, claim)}"
    return said if again is None else f"Re-tuning: {said[0].lower()}{said[1:]}"


def _over_before(facts: ReportFacts, again: Retuned, claim: Claim) -> str:
    """Return a re-tuning's gain over what ran before it, and beside it the gain over the baseline."""
    baseline, past = f"{pct(claim.gain)} {facts.units.speed}", f"what {clean(again.of)} shipped"
    if again.same:
        return f"{past} {'ships again' if facts.shipment else 'leads'}, {baseline} over the baseline"
    if again.from_baseline:
        return f"{baseline} over the baseline, which {clean(again.of)} kept"
    if again.gain is None:
        return f"{baseline} over the baseline; {past} was not measured here"
    return f"{pct(again.gain)} {facts.units.speed} over {past}, {pct(claim.gain)} over the baseline"


def from_to(facts: ReportFacts) -> str:
    """Return the two speeds, or an empty text if there is nothing to compare."""
    return "" if kept(facts) else _speeds(facts)


def kept(facts: ReportFacts) -> bool:
    """Tell whether the baseline was kept."""
    again = facts.remeasurement
    return facts.state == "baseline kept" or (again is not None and again.kept_baseline)


def _speeds(facts: ReportFacts) -> str:
    claim = facts.claim
    return f"{rate(claim.before)} → {rate(claim.after)} {facts.units.speed}" if claim else ""


def on_paper(facts: ReportFacts) -> str:
    """Return the warning of a campaign that was played on a replay table; '' for one that trained."""
    if facts.campaign.stack.name != REPLAY:
        return ""
    table = clean(facts.campaign.launcher.table.rpartition("/")[2])
    return f"Not shippable: replayed from {table}. Nothing was trained; the second and the third look are not available (replay)."


def evidence(facts: ReportFacts) -> str:
    """Return how the claim was measured, or why the baseline was kept; first of all whether anything was measured."""
    return " ".join(x for x in (on_paper(facts), _measured(facts), _past(facts)) if x)


def _past(facts: ReportFacts) -> str:
    """Return what a re-tuning starts from, and how fast that was here; '' for any other campaign."""
    again = facts.retuned
    if again is None:
        return ""
    why = f", because of {clean(again.changes)}" if again.changes else ""
    ran = f"What it shipped {'was this baseline' if again.from_baseline else 'was not measured here'}."
    if again.launch and again.before is not None:
        ran = f"What it shipped ran at {rate(again.before)} {facts.units.speed} here ({clean(again.launch)}, one launch)."
    return f"A re-tuning of {clean(again.of)}{why}. {ran}"


def _measured(facts: ReportFacts) -> str:
    claim, again = facts.claim, facts.remeasurement
    reason = facts.shipment.reason if facts.shipment else again.reason if again else ""
    if kept(facts):
        best = f" Best candidate: {_speeds(facts)}, {pct(claim.gain)} (noise band ±{share_pct(claim.band)})." if claim else ""
        return f"Because {clean(reason) or 'no candidate cleared the band'}.{best}"
    if claim is None:
        return ""
    band = f"noise band ±{share_pct(claim.band)}"
    if again and claim.remeasured:
        runs = f"{len(again.leader_launches)} fresh launches of the leader and {len(again.baseline_launches)}"
        return f"Remeasured after the search: {runs} of the baseline, interleaved; {band}."
    return f"Not remeasured yet: one launch against the calibrated baseline; {band}."


def status(facts: ReportFacts) -> str:
    """Return the state of the campaign and its span, with the zone."""
    return f"{facts.state} · {span(facts.first_at, facts.last_at)}"


def noise(facts: ReportFacts) -> str:
    """Return the calibrated baseline with its noise, and a warning if the machine was too busy to measure well."""
    c = facts.calibration
    if c is None:
        return ""
    text = f"{rate(c.mean)} {facts.units.speed}, {len(c.launches)} runs, σ {share_pct(c.sigma)}, band ±{share_pct(c.band)}"
    return f"{text}; the machine was too busy to measure well" if c.busy else text


def cost(facts: ReportFacts) -> str:
    """Return what the campaign was charged, and of which budget; with the dollars of a language model that searched."""
    budget, spec = facts.budget_gpu_hours, facts.campaign.proposer
    of = "" if budget is None else f" of {facts.units.amount(budget)}"
    charged = f"{facts.units.amount(facts.total_gpu_hours)}{of} {facts.units.time}"
    if not facts.num_model_calls:
        return charged
    calls = f"{facts.num_model_calls} call{'' if facts.num_model_calls == 1 else 's'} to {spec.model}"
    return f"{charged}, and {facts.model_usd:.2f} of {spec.max_usd:.2f} US dollars for {calls}"


def payback(facts: ReportFacts) -> str:
    """Return after how much training with the new recipe the campaign has paid for itself; empty without a gain."""
    found = paid(facts)
    if found is None:
        return ""
    edge = f"{length(found.low)} to {length(found.high)}" if found.high is not None else f"{length(found.low)} or more"
    over = f", over what {clean(facts.retuned.of)} shipped" if facts.retuned else ""
    devices = facts.units.devices(facts.campaign.workload.gpus)
    return f"{length(found.hours)} of training on {devices}{over} ({edge} within the band)"


def length(hours: float) -> str:
    """Return a length of time in hours, below one in minutes, below a minute in seconds."""
    if hours >= 1:
        return f"{number(hours)} hours"
    return f"{number(hours * 60)} minutes" if hours * 60 >= 1 else f"{number(hours * 3600)} seconds"


def paid(facts: ReportFacts) -> Payback | None:
    """Return when the campaign has paid for itself; None without a gain.

    A re-tuning is paid by what it gained over what ran before it, and only by a gain outside the band: one launch measured that.
    """
    claim, again = facts.claim, facts.retuned
    if claim is None or kept(facts):
        return None
    gain = claim.gain if again is None else again.gain
    if gain is None or (again is not None and gain <= claim.band):
        return None
    return economy.payback(facts.total_gpu_hours, facts.campaign.workload.gpus, gain=gain, band=claim.band)


def unpaid(facts: ReportFacts) -> list[str]:
    """Return why a re-tuning with a claim is never paid back; nothing for any other campaign."""
    again = facts.retuned
    if again is None or facts.claim is None or kept(facts):
        return []
    if again.same:
        return ["What ran before ships again: the re-tuning brought its proof on what is new, and no speed that pays it back."]
    if again.gain is None:
        return ["What ran before was not measured here: after how much training the re-tuning is paid back can't be told."]
    where = "inside the noise band" if again.gain >= -facts.claim.band else "slower"
    return [f"{pct(again.gain)} over what ran before is {where}: it pays nothing back."]


def blind_spots(facts: ReportFacts) -> tuple[str, ...]:
    """Return what the looks that were taken can't see."""
    return NO_LOOK_SEES if facts.has_third_look else (NO_THIRD_LOOK, *NO_LOOK_SEES)


def changed(facts: ReportFacts) -> str:
    """Return how many final values differ, and how many facts follow from them."""
    derived = sum(c.change.key.startswith("fact:") for c in facts.changes)
    count = len(facts.changes) - derived
    text = f"{count} final value{' differs' if count == 1 else 's differ'} from the baseline"
    if derived:
        text += f", with {derived} derived fact{'' if derived == 1 else 's'}"
    return f"{text}. Final means after the framework's own derivations."


def predictions(facts: ReportFacts) -> str:
    """Return how good the predictions were, over every launch that has both; empty if none has."""
    pairs = [(r, miss) for r in facts.rows if (miss := r.miss()) is not None]
    failed = sum(r.failed and r.predicted_gain is not None for r in facts.rows)
    said = []
    if pairs:
        inside = sum(abs(miss) <= (r.predicted_error or 0.0) for r, miss in pairs)
        mean = sum(abs(miss) for _, miss in pairs) / len(pairs)
        said.append(f"{inside} of {len(pairs)} measured gains lay within their predicted ±; mean miss {share_pct(mean)}")
    if failed:
        said.append(f"{failed} prediction{' ended in a failed launch' if failed == 1 else 's ended in failed launches'}")
    return "; ".join(said) + "." if said else ""


def stop_line(facts: ReportFacts) -> str:
    """Return why the search ended, as the proposer said it."""
    return clean(facts.stop.reason) if facts.stop else ""


def pinned(facts: ReportFacts) -> tuple[tuple[str, str], ...]:
    """Return what must be equal for the same campaign to run again: name and value."""
    c, w = facts.campaign, facts.campaign.workload
    rows = [
        ("campaign", facts.campaign_id),
        ("stack", f"{c.stack.name} {c.stack.version}"),
        ("framework commit", c.stack.commit),
        ("patches", ", ".join(c.stack.patches)),
        *facts.versions,
        ("set by the run form instead of the file", "; ".join(map(str, c.changed))),
        ("dataset", w.dataset),
        ("rows per update × row length", f"{w.global_batch:,} × {w.seq_len:,} tokens"),
        ("precision", w.precision),
        ("seed", str(w.seed)),
        ("steps per launch", f"{w.steps} ({w.warmup_steps} warm-up, not scored)"),
        ("cluster", f"{c.launcher.cluster.name}, {facts.units.devices(w.gpus)}, {w.hardware}"),
        ("register lock", c.register_lock),
        ("recipe digest", facts.recipe_digest),
        ("baseline digest", facts.baseline_digest),
        ("ledger", f"{facts.num_events:,} events, last hash {facts.last_hash}"),
    ]
    return tuple((clean(k), clean(v)) for k, v in rows if v)


def commands(facts: ReportFacts) -> tuple[tuple[str, str], ...]:
    """Return the commands that check and repeat the campaign: command and purpose."""
    campaign = shlex.quote(clean(facts.campaign_id))
    source = shlex.quote(clean(facts.campaign.source_file)) if facts.campaign.source_file else "campaign.yaml"
    form = "; first set in the file what the run form set (pinned below)" if facts.campaign.changed else ""
    return (
        (f"attuner ledger verify {campaign}", "no event was altered or lost"),
        ("attuner ledger export ledger.duckdb", "the file that the queries on this page read"),
        (f"attuner report {campaign}", "this page again, from the ledger"),
        (f"attuner check {source}", "what the campaign would cost and whether it fits; nothing is launched"),
        (f"attuner run {source}", f"the campaign again, in a new ledger entry{form}"),
    )
