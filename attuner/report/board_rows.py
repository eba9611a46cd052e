"""What the board's site knows of one campaign: the board's row, and beside it efficiency, dollars, looks and final values."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from attuner.core.base import Value
from attuner.core.events import Event, History
from attuner.core.judgement import Decision, worst
from attuner.core.recipe import EffectiveConfig
from attuner.report import board, claims
from attuner.report.details import Context
from attuner.report.efficiency import mfu, usd_per_million
from attuner.report.facts import ReportFacts, gather
from attuner.report.spend import DevicePrice, price_of

_PLAIN = re.compile(r"[a-z0-9][a-z0-9-]{0,63}")


@dataclass(frozen=True)
class BoardEntry:
    """One campaign on the board; fractions, device-hours, US dollars, tokens/s per device. Text in it is untrusted."""

    facts: ReportFacts
    row: dict[str, Any]
    """The row that `attuner board --json` prints."""
    slug: str
    """Name of its files: safe in a path, one a campaign."""
    framework: str
    """Stack and version, as the campaign states them."""
    mfu_before: float | None
    mfu_after: float | None
    usd_before: float | None
    """Per million tokens, with the baseline."""
    usd_after: float | None
    usd: float | None
    """What the device-hours cost; without a language model's dollars (`facts.model_usd`)."""
    price: DevicePrice | None
    looks: tuple[tuple[str, Decision], ...]
    """Each look that was taken at what is shipped or leads, with its worst decision; none for a baseline that was kept."""
    final: Mapping[str, Value]
    """Flat final values of what is shipped or leads."""
    final_is_resolved: bool
    """False: no resolved values are on record, `final` has the recipe's own."""

    @property
    def not_shipped(self) -> str:
        """Return why the recipe must not pass for one that ships; '' for one that did, and for a kept baseline."""
        state = self.facts.state
        if claims.on_paper(self.facts):
            return claims.on_paper(self.facts)
        return "" if state in ("shipped", "baseline kept") else f"the campaign is {state}: nothing was shipped yet"

    @property
    def recipe_file(self) -> str:
        """Return where the recipe lies in the site; '' while nothing was shipped."""
        if self.facts.shipment is None:
            return ""
        return f"recipes/{self.slug}{'.not-shippable' if self.not_shipped else ''}.recipe.yaml"

    @property
    def page(self) -> str:
        """Return where the recipe's page lies in the site."""
        return f"recipes/{self.slug}.html"

    @property
    def report(self) -> str:
        """Return where the campaign's report lies in the site."""
        return f"reports/{self.slug}.html"


def entries(campaigns: Iterable[Sequence[Event]], prices: Mapping[str, DevicePrice]) -> list[BoardEntry]:
    """Return the campaigns, the one that moved last first, as `board.rows` orders them. Raises what `gather` raises."""
    return ordered(entry(events, prices) for events in campaigns)


def ordered(found: Iterable[BoardEntry]) -> list[BoardEntry]:
    """Return the campaigns, the one that moved last first."""
    return sorted(found, key=lambda e: (-e.row["updated_at"], e.row["campaign"]))


def entry(events: Sequence[Event], prices: Mapping[str, DevicePrice]) -> BoardEntry:
    """Return one campaign. prices: US dollars per device-hour, by cluster name or by a word of the workload's hardware."""
    facts, history = gather(events, Context(prices=prices)), History(list(events))
    row = board.row(facts)
    price = price_of(facts.campaign, dict(prices))
    hourly = None if price is None else price.usd_per_hour
    resolved = history.effective(facts.recipe_digest)
    shape = resolved or history.effective(facts.baseline_digest)  # the model is one in a campaign
    before, after = row["before_tokens_per_s_per_gpu"], row["after_tokens_per_s_per_gpu"]
    final = resolved or EffectiveConfig(arguments=facts.recipe.arguments, env=facts.recipe.env, facts={}, versions={})
    return BoardEntry(
        facts=facts,
        row=row,
        slug=slug(facts.campaign_id),
        framework=_framework(facts),
        mfu_before=mfu(facts.campaign, shape, before),
        mfu_after=mfu(facts.campaign, shape, after),
        usd_before=usd_per_million(hourly, before),
        usd_after=usd_per_million(hourly, after),
        usd=None if hourly is None else hourly * facts.total_gpu_hours,
        price=price,
        looks=_looks(facts),
        final=final.flat(),
        final_is_resolved=resolved is not None,
    )


def slug(campaign_id: str) -> str:
    """Return a file name for a campaign: its id where that is plain, else a digest. Two campaigns never share one."""
    if _PLAIN.fullmatch(campaign_id):
        return campaign_id
    # an underscore is in no plain id
    return "c_" + hashlib.sha256(campaign_id.encode("utf-8", "surrogatepass")).hexdigest()[:24]


def _framework(facts: ReportFacts) -> str:
    stack = facts.campaign.stack
    return f"{stack.name} {stack.version}".strip()


def _looks(facts: ReportFacts) -> tuple[tuple[str, Decision], ...]:
    if claims.kept(facts):
        return ()
    found: dict[str, list[Decision]] = {}
    for look in facts.looks:
        if look.look.startswith("3") and not facts.has_third_look:
            continue  # on record that it could not be taken
        found.setdefault(look.look, []).append(look.decision)
    return tuple((name, worst(decisions)) for name, decisions in sorted(found.items()))
