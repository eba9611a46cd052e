"""tell: hand over what is new in a campaign's records, each piece once through each channel.

What was handed over is put on record after it was: a crash in between tells a thing twice, never not at all. A channel that fails
is noted once and tried again with the next step; it stops no campaign.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from attuner.core.errors import Transient, UserError
from attuner.core.events import History
from attuner.core.judgement import Note
from attuner.core.news import Alert, News, Told
from attuner.policy import drift
from attuner.policy import news as policy
from attuner.ports import Kit, Ledger
from attuner.steps.common import past, put

Channel = Callable[[News], None]
"""Hands one piece of news over. Raises Transient or UserError when it can't."""


def tell(kit: Kit, campaign_id: str, channels: Mapping[str, Channel]) -> list[str]:
    """Record the alerts that are new, and hand over what nobody was told yet; return the keys that were handed over."""
    history = past(kit, campaign_id)
    known = {a.key for a in history.all("alert", Alert)}
    for alert in drift.alerts(history):
        if alert.key not in known:
            put(kit, campaign_id, "alert", alert.key, alert)
    return hand_over(kit.ledger, campaign_id, policy.news(past(kit, campaign_id)), channels)


def hand_over(ledger: Ledger, record_id: str, news: list[News], channels: Mapping[str, Channel]) -> list[str]:
    """Hand over what `record_id` has no record of; its lease must be held."""
    history = History(ledger.history(record_id))
    done = []
    for name, channel in channels.items():
        for item in news:
            if history.find("told", f"{name} {item.key}", Told) is not None:
                continue
            try:
                channel(item)
            except (Transient, UserError) as error:
                _note(ledger, record_id, history, name, error)
                break  # what can't be told now waits in order
            ledger.append(record_id, "told", f"{name} {item.key}", Told(key=item.key, channel=name))
            done.append(item.key)
    return done


def _note(ledger: Ledger, record_id: str, history: History, channel: str, error: Exception) -> None:
    key = f"told {channel}"
    if history.find("note", key, Note) is None:
        text = f"news could not be handed over ({error}); tried again with each step"
        ledger.append(record_id, "note", key, Note(text=text))
