"""What a change is worth before it is launched: expected gain over the band, how likely it fits, and what it costs.

The gain is taken as normally distributed: the estimate's prediction in the middle, its half width as the 95% point. Worth is
the expected gain that counts, the mean of the gain where it exceeds the band: below the band nothing changes the leader.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

HALF_WIDTH_SIGMAS = 1.96
"""A band holds 95% of outcomes: its half width is so many standard deviations."""


@dataclass(frozen=True)
class Outlook:
    """What is expected of one set of final arguments."""

    gain: float
    """Over the leader, a fraction of speed."""
    error: float
    """Half width of the gain's band."""
    fits: float = 1.0
    """Probability that it doesn't run out of memory."""
    cost: float = 1.0
    """Device-hours of its launch, in launches of the baseline."""
    seen: bool = True
    """The estimate told it; otherwise the catalog's own shares did."""

    def worth(self, band: float) -> float:
        """Return the expected gain that counts, a fraction of speed."""
        return self.fits * expected_beyond(self.gain, self.error, band)

    def hopeful(self, band: float) -> bool:
        """Tell whether the upper end of the gain's band exceeds the noise band."""
        return self.gain + self.error > band


def expected_beyond(gain: float, error: float, band: float) -> float:
    """Return the mean of max(gain, 0) over the part of its distribution that exceeds the band."""
    sigma = error / HALF_WIDTH_SIGMAS
    if sigma <= 0:
        return gain if gain > band else 0.0
    z = (gain - band) / sigma
    return gain * _cdf(z) + sigma * _pdf(z)


def fit_probability(peak_gib: float, sigma_gib: float, limit_gib: float) -> float:
    """Return the probability that a launch stays within a device's memory, from its predicted peak and that one's error."""
    return _cdf((limit_gib - peak_gib) / max(sigma_gib, 1e-9))


def combined(a: Outlook, b: Outlook) -> Outlook:
    """Return the outlook of two changes together, whose gains multiply."""
    gain = (1 + a.gain) * (1 + b.gain) - 1
    error = math.hypot(a.error * (1 + b.gain), b.error * (1 + a.gain))
    return Outlook(gain=gain, error=error, fits=min(a.fits, b.fits), cost=max(a.cost, b.cost), seen=a.seen and b.seen)


def _cdf(z: float) -> float:
    return 0.5 * (1.0 + math.erf(z / math.sqrt(2.0)))


def _pdf(z: float) -> float:
    return math.exp(-0.5 * z * z) / math.sqrt(2.0 * math.pi)
