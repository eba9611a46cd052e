"""What the new recipe is worth: model FLOPs utilisation, dollars per million tokens, the gap to what its authors published, and
after how many hours of training the tuning has paid for itself. Each with what it rests on, or why it can't be said."""

from __future__ import annotations

import re
from dataclasses import dataclass

from attuner.core.campaign import Campaign, Published
from attuner.core.recipe import EffectiveConfig
from attuner.report.efficiency import mfu, operations, usd_per_million
from attuner.report.spend import DevicePrice
from attuner.report.words import clean

UNITS = {
    "tokens": "tokens/s per device",
    "flops": "TFLOP/s per device",
    "step": "seconds per step",
    "total": "tokens/s over all devices",
}
"""Units of a published figure that can be held against ours, and what they are called."""
_PER_DEVICE = r"(per|/)(gpu|device|chip)"


@dataclass(frozen=True)
class Economy:
    """Efficiency and price, before (baseline) and after (what is shipped or leads); None where it can't be said."""

    mfu_before: float | None
    mfu_after: float | None
    why_no_mfu: str
    price: DevicePrice | None
    why_no_price: str
    usd_before: float | None
    """US dollars per million tokens."""
    usd_after: float | None
    gap: Gap | None


@dataclass(frozen=True)
class Gap:
    """The published figure beside ours in its own unit; gaps are fractions of speed, above zero where ours is faster."""

    published: Published
    unit: str
    """One of UNITS, or '' for a unit that nothing here can be held against."""
    before: float | None
    after: float | None
    gap_before: float | None
    gap_after: float | None
    note: str


def economy(
    campaign: Campaign,
    final: EffectiveConfig | None,
    *,
    before: float | None,
    after: float | None,
    price: DevicePrice | None,
    no_price: str = "",
) -> Economy:
    """Return what the speeds (tokens/s per device) are worth.

    final: final values that say the model's shape. no_price: why there is no price, where that is more than that none is stated.
    """
    used_before, used_after = mfu(campaign, final, before), mfu(campaign, final, after)
    hourly = None if price is None else price.usd_per_hour
    return Economy(
        mfu_before=used_before,
        mfu_after=used_after,
        why_no_mfu="" if used_before or used_after or not (before or after) else _no_mfu(campaign),
        price=price,
        why_no_price="" if price else no_price or f"no price is stated for {clean(campaign.workload.hardware)}",
        usd_before=usd_per_million(hourly, before),
        usd_after=usd_per_million(hourly, after),
        gap=None if campaign.published is None else _gap(campaign, campaign.published, final, before, after),
    )


def _no_mfu(campaign: Campaign) -> str:
    if "slime" in (campaign.stack.name, campaign.stack.entry):
        return "a rollout's rows have lengths of their own"
    peak = "peak_fp32_tflops" if campaign.workload.precision == "fp32" else "peak_tflops"
    return f"the model's shape or the device's peak ({peak} in the cluster's file) isn't known"


def unit_of(words: str) -> str:
    """Return which of UNITS a published unit is, however it is spelled; '' for any other."""
    bare = re.sub(r"[\s_·-]+", "", words.lower()).replace("tokens", "tok").replace("token", "tok").replace("second", "sec")
    bare = bare.replace("seconds", "sec")
    if re.fullmatch(rf"tok(/|per)s(ec)?{_PER_DEVICE}|tok{_PER_DEVICE}(/|per)s(ec)?", bare):
        return "tokens"
    if re.fullmatch(rf"(model)?tflop(s|/s|/sec|s/s|s/sec)?{_PER_DEVICE}|(model)?tflop{_PER_DEVICE}/s", bare):
        return "flops"
    if re.fullmatch(r"(s|sec|secs)(/|per)(step|iteration|iter|update)", bare):
        return "step"
    return "total" if re.fullmatch(r"tok(/|per)s(ec)?", bare) else ""


def _gap(campaign: Campaign, told: Published, final: EffectiveConfig | None, before: float | None, after: float | None) -> Gap:
    unit, work = unit_of(told.unit), campaign.workload
    ours = [_in_unit(unit, campaign, final, speed) for speed in (before, after)]
    # of a time, less is faster
    gaps = [None if x is None else (told.value / x if unit == "step" else x / told.value) - 1.0 for x in ours]
    notes = {
        "": "another unit than this campaign's, so the gap is not stated",
        "flops": "operations as attuner counts them (causal attention half, recomputation not); their count may differ",
        "step": f"a step is {work.tokens_per_step():,} tokens here; theirs may be another",
        "total": f"over the {work.gpus:,} devices of this campaign; theirs may be another number",
    }
    note = notes.get(unit, "")
    if unit == "flops" and ours == [None, None]:
        unit, note = "", "the model's shape isn't known here, so the gap is not stated"
    return Gap(told, unit, ours[0], ours[1], gaps[0], gaps[1], note)


def _in_unit(unit: str, campaign: Campaign, final: EffectiveConfig | None, speed: float | None) -> float | None:
    if not speed:
        return None
    if unit == "flops":
        per_token = operations(campaign, final)
        return None if per_token is None else per_token * speed / 1e12
    if unit == "step":
        return campaign.workload.tokens_per_step() / speed / campaign.workload.gpus
    return {"tokens": speed, "total": speed * campaign.workload.gpus}.get(unit)


@dataclass(frozen=True)
class Payback:
    """After how much training the tuning has paid for itself, hours on the campaign's number of devices."""

    hours: float
    """Of training with the new recipe."""
    baseline_hours: float
    """The same work with the baseline."""
    low: float
    """With a gain at the upper edge of the noise band."""
    high: float | None
    """With a gain at its lower edge; None: that gain is none, and nothing is ever paid back."""


def payback(gpu_hours: float, gpus: int, *, gain: float, band: float) -> Payback | None:
    """Return when tuning that was charged `gpu_hours` is paid back; None without a gain.

    In T hours on N devices the new recipe does what takes the baseline T·(1+gain): it saves T·N·gain device-hours. In the
    baseline's hours B = T·(1+gain) that is B·N·s, where s = gain/(1+gain) is the share of time saved.
    """
    if gain <= 0 or gpus <= 0:
        return None
    hours = gpu_hours / (gpus * gain)
    high = gpu_hours / (gpus * (gain - band)) if gain > band else None
    return Payback(hours=hours, baseline_hours=hours * (1 + gain), low=gpu_hours / (gpus * (gain + band)), high=high)
