"""What a re-tuning gained over what ran before it: the recipe that an earlier campaign shipped, measured again in this one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from attuner.core.campaign import Campaign
from attuner.core.environment import short
from attuner.report.rows import LaunchRow


@dataclass(frozen=True)
class Retuned:
    """A re-tuning beside its past; speeds in tokens/s per device, gains as fractions."""

    of: str
    """Campaign that shipped what ran before."""
    changes: str
    """What changed since, in a line."""
    launch: str
    """The search launch that measured what ran before; '' where it is the baseline, or was not measured here."""
    before: float | None
    """Speed of what ran before, on what this campaign ran on; None: not measured here."""
    gain: float | None
    """Of this campaign's recipe over it; None without one, or without its speed."""
    same: bool
    """This campaign's recipe is what ran before."""
    from_baseline: bool
    """What ran before is this campaign's baseline."""


def retuned(
    campaign: Campaign, rows: Sequence[LaunchRow], *, baseline: float | None, after: float | None, recipe: str
) -> Retuned | None:
    """Return a re-tuning beside its past; None for any other campaign.

    Args:
        campaign: as it was born.
        rows: its launches.
        baseline: speed of its baseline.
        after: speed of what it shipped or what leads; None while nothing does, or the baseline was kept.
        recipe: digest of that.
    """
    if campaign.retunes is None:
        return None
    past = campaign.retunes.recipe.digest()
    from_baseline = past == campaign.baseline.digest()
    row = next((r for r in rows if r.kind == "search" and r.recipe == past and r.tokens_per_s is not None), None)
    before = baseline if from_baseline else row.tokens_per_s if row else None
    same = after is not None and recipe == past
    gain = None if after is None else 0.0 if same else after / before - 1.0 if before else None
    return Retuned(
        of=campaign.retunes.of,
        changes=", ".join(f"{c.key} {short(c.before)} → {short(c.after)}" for c in campaign.retunes.changes),
        launch=row.id if row and not from_baseline else "",
        before=before,
        gain=gain,
        same=same,
        from_baseline=from_baseline,
    )
