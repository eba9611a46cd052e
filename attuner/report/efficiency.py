"""Two figures that make campaigns on different machines comparable: model FLOPs utilisation, and dollars per million tokens."""

from __future__ import annotations

from attuner.core.campaign import Campaign
from attuner.core.errors import UserError
from attuner.core.recipe import EffectiveConfig
from attuner.estimate.hardware import Hardware
from attuner.estimate.reading import read

MFU_MEANS = (
    "MFU: the model's floating-point operations per token (forward and backward, causal attention counted half, recomputation "
    "not counted) × tokens/s per device, over the peak that the cluster's file states for the training precision"
)


def mfu(campaign: Campaign, final: EffectiveConfig | None, tokens_per_s_per_gpu: float | None) -> float | None:
    """Return the model FLOPs utilisation, a fraction; None where the model's shape or the cluster's peak isn't known.

    final: final values that say the model's shape. A rollout's rows have lengths of their own: no figure for slime.
    """
    per_token = operations(campaign, final)
    if per_token is None or tokens_per_s_per_gpu is None:
        return None
    try:
        peak = Hardware.of(campaign.launcher.cluster).peak(campaign.workload.precision)
    except (UserError, ValueError, ZeroDivisionError):
        return None  # a cluster without figures
    return per_token * tokens_per_s_per_gpu / peak if peak > 0 else None


def operations(campaign: Campaign, final: EffectiveConfig | None) -> float | None:
    """Return the model's floating-point operations per token; None where its shape isn't known, and for slime."""
    if final is None or "slime" in (campaign.stack.name, campaign.stack.entry):
        return None
    work = campaign.workload
    try:
        shape, _ = read(final.arguments, workload=work, stack=campaign.stack.name)
    except (UserError, ValueError, ZeroDivisionError):
        return None  # another framework's names
    return shape.flops_per_token(work.seq_len)


def usd_per_million(usd_per_hour: float | None, tokens_per_s_per_gpu: float | None) -> float | None:
    """Return US dollars for a million tokens at this speed and price of one device; None where either isn't known."""
    if usd_per_hour is None or not tokens_per_s_per_gpu:
        return None
    return usd_per_hour / 3600.0 / tokens_per_s_per_gpu * 1e6
