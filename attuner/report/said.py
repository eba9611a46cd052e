"""What both pages say about worth, diagnosis, predictions and people, as plain text: each page escapes it in its own way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from attuner.core.diagnosis import Diagnosis
from attuner.core.judgement import Decision
from attuner.report import claims
from attuner.report.economy import UNITS, Gap
from attuner.report.efficiency import MFU_MEANS
from attuner.report.facts import ReportFacts
from attuner.report.predictions import Accuracy
from attuner.report.terminal import DASH, MINUS, pct, rate, share_pct
from attuner.report.words import clean, number

BOUND_MEANS = (
    "At most: the gain if this part of the step vanished and nothing else grew, 1/(1−share)−1. "
    "No launch can gain more on that part alone; most gain far less."
)
VERDICTS_MEAN = (
    "Of the second and the third look the measurement that decided is shown, or the one that came nearest to its limit. "
    "The strictest look decides; nothing refused can ship."
)
ERRORS_MEAN = (
    "Error is measured minus predicted: of a gain in points of speed, of a time or of memory as a share of the measured value. "
    "Bias is its mean with the sign: above zero means that more was measured than predicted."
)
RERUNS_MEAN = "Nothing is erased: what was set aside stays in the ledger, and every attempt stays charged."


@dataclass(frozen=True)
class Worth:
    """One line of the table of what the new recipe is worth; plain text."""

    name: str
    published: str
    before: str
    after: str


def after(facts: ReportFacts) -> str:
    """Return what the new side is called: it ships, or it only leads."""
    if claims.kept(facts):
        return "Shipped: the baseline"
    return {"shipped": "Shipped", "on paper": "Found (on paper)"}.get(facts.state, "Leads now")


def worth(facts: ReportFacts) -> list[Worth]:
    """Return speed, efficiency and price before and after; a figure that nobody can tell is left out."""
    e, claim = facts.details.economy, facts.claim
    before = claim.before if claim else facts.calibration.mean if facts.calibration else None
    if before is None:
        return []
    now = claim.after if claim and not claims.kept(facts) else None
    gap = e.gap
    ours = gap if gap and gap.unit == "tokens" else None
    found = [Worth(facts.units.speed, rate(gap.published.value) if ours and gap else "", rate(before), _rate(now))]
    if gap is not None and ours is None:
        found.append(_published(gap))
    if e.mfu_before is not None or e.mfu_after is not None:
        found.append(Worth("MFU", "", _share(e.mfu_before), _share(e.mfu_after)))
    if e.usd_before is not None or e.usd_after is not None:
        found.append(Worth("US dollars per million tokens", "", _usd(e.usd_before), _usd(e.usd_after)))
    if gap is not None and (gap.gap_before is not None or gap.gap_after is not None):
        sides = [DASH if x is None else pct(x) for x in (gap.gap_before, gap.gap_after)]
        found.append(Worth("against the published figure", "", *sides))
    return found


def efficiency(facts: ReportFacts) -> str:
    """Return the model FLOPs utilisation before and after; '' where it isn't known."""
    e = facts.details.economy
    return _arrow(e.mfu_before, e.mfu_after, share_pct)


def dollars(facts: ReportFacts) -> str:
    """Return US dollars per million tokens before and after; '' where no price is stated."""
    e = facts.details.economy
    return _arrow(e.usd_before, e.usd_after, number)


def _arrow(before: float | None, now: float | None, words: Callable[[float], str]) -> str:
    return " → ".join(words(x) for x in (before, now) if x is not None)


def _published(gap: Gap) -> Worth:
    sides = [DASH if x is None else number(x) for x in (gap.before, gap.after)]
    unit = UNITS[gap.unit] if gap.unit else clean(gap.published.unit)
    return Worth(unit, number(gap.published.value), *sides)


def _rate(x: float | None) -> str:
    return DASH if x is None else rate(x)


def _share(x: float | None) -> str:
    return DASH if x is None else share_pct(x)


def _usd(x: float | None) -> str:
    return DASH if x is None else number(x)


def worth_notes(facts: ReportFacts) -> list[str]:
    """Return what the figures mean, what they rest on, and which of them can't be told and why."""
    e = facts.details.economy
    notes = []
    if e.why_no_mfu:
        notes.append(f"MFU is not told: {e.why_no_mfu}.")
    elif e.mfu_before is not None or e.mfu_after is not None:
        notes.append(f"{MFU_MEANS}.")
    if e.price is None:
        notes.append(f"US dollars are not told: {e.why_no_price}; state one in configs/device_prices.yaml.")
    else:
        read = f", read {clean(e.price.read)}" if e.price.read else ""
        notes.append(
            f"US dollars: {e.price.usd_per_hour:g} per {facts.units.device}-hour by configs/device_prices.yaml "
            f"({clean(e.price.source)}{read})."
        )
    if e.gap is not None:
        told = e.gap.published
        note = "; ".join(clean(x) for x in (told.note, e.gap.note) if x)
        notes.append(f"Published: {number(told.value)} {clean(told.unit)}, {clean(told.source)}{f' ({note})' if note else ''}.")
    return notes


def payback_lines(facts: ReportFacts) -> list[str]:
    """Return when the tuning is paid back, with the band and the sum behind it; nothing without a gain."""
    found = claims.paid(facts)
    if found is None:
        return claims.unpaid(facts)
    gpus, saved = facts.campaign.workload.gpus, 1 - found.hours / found.baseline_hours
    past, whose = (f"the recipe of {clean(facts.retuned.of)}", "its") if facts.retuned else ("the baseline", "the baseline's")
    high = claims.length(found.high) if found.high is not None else "never"
    return [
        f"The tuning has paid for itself after {claims.length(found.hours)} of training with the new recipe on "
        f"{facts.units.devices(gpus)}, which {past} needs {claims.length(found.baseline_hours)} for: "
        f"{facts.units.spent(facts.total_gpu_hours)} charged ÷ ({gpus:,} × {share_pct(saved)} of {whose} time saved). "
        f"With the gain at the edges of its noise band: {claims.length(found.low)} to {high}."
    ]


def part_name(name: str) -> str:
    """Return a part of the step as words: `exposed_comm:tensor` → 'exposed tensor communication'."""
    kind, _, group = name.partition(":")
    if kind == "exposed_comm" and group == "unknown":
        return "exposed communication, whose group isn't told"
    if kind == "exposed_comm":
        return f"exposed {group.replace('_', '-')} communication" if group else "exposed communication"
    return clean(name.replace("_", " "))


def diagnosed(facts: ReportFacts, name: str, launch_id: str) -> str:
    """Return whose step a diagnosis is of."""
    if name == "baseline":
        return f"The baseline ({launch_id})"
    who = "The best candidate" if claims.kept(facts) else "What ships" if facts.state == "shipped" else "What leads"
    return f"{who} ({launch_id})"


def diagnosis_notes(d: Diagnosis) -> list[str]:
    """Return what a diagnosis tells beside its parts, one line each."""
    notes = []
    if d.flat:
        notes.append(
            "Beside compute no bottleneck stands out: none exceeds the noise band, or the first two lie within it of each other."
        )
    if d.bubble:
        notes.append(f"Pipeline bubble by the schedule: {share_pct(d.bubble)} of the step.")
    if d.stage_imbalance:
        notes.append(f"The slowest pipeline stage has {share_pct(d.stage_imbalance)} more than the mean.")
    if d.launch_bound:
        notes.append("The devices wait for the host to launch work.")
    if d.mem_headroom_gib is not None:
        notes.append(f"Memory left on the fullest device: {number(d.mem_headroom_gib).replace('-', MINUS)} GiB.")
    return [*notes, *(f"{x[:1].upper()}{x[1:]}" for x in map(clean, (*d.stragglers, *d.notes)))]


def errors(a: Accuracy) -> tuple[str, str]:
    """Return mean error and bias as text, with their unit."""
    unit = " points" if a.what == "gain" else ""
    mean, bias = share_pct(a.mean_error), pct(a.bias)
    return (f"{mean.removesuffix('%')}{unit}", f"{bias.removesuffix('%')}{unit}") if unit else (mean, bias)


def verdict_counts(facts: ReportFacts) -> str:
    """Return how many candidates were admitted, wait for a person or were refused, by the strictest look and people's answers."""
    found = [r.decision for r in facts.details.verdicts]
    words: tuple[tuple[Decision, str], ...] = (("admit", "admitted"), ("review", "to review"), ("refuse", "refused"))
    counts = [f"{n} {said}" for decision, said in words if (n := found.count(decision))]
    return f"{len(found)} candidate{'' if len(found) == 1 else 's'}: {', '.join(counts)}"


def held(facts: ReportFacts) -> str:
    """Return how many hypotheses the estimate kept from being launched; '' for none."""
    n = facts.details.num_held
    if not n:
        return ""
    return f"The estimate held back {n} hypothes{'is' if n == 1 else 'es'}: not launched, so never measured."
