"""tell: hand over what is new in a campaign's records, each piece once through each channel.

What was handed over is put on record after it was: a crash in between tells a thing twice, never not at all. A channel that fails
is noted once and tried again with the next step, and by the next night (`catch_up`); it stops no campaign.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from attuner.core.errors import Refused, Transient, UserError
from attuner.core.events import History
from attuner.core.judgement import Note
from attuner.core.news import Alert, News, Told
from attuner.policy import drift
from attuner.policy import news as policy
from attuner.ports import Kit, Ledger
from attuner.steps.common import past, put

Channel = Callable[[News], None]
"""Hands one piece of news over. Raises Transient or UserError when it can't, Refused when this piece will never be taken."""


def tell(kit: Kit, campaign_id: str, channels: Mapping[str, Channel]) -> list[str]:
    """Record the alerts that are new, and hand over what nobody was told yet; return the keys that were handed over."""
    for alert in _fresh(past(kit, campaign_id)):
        put(kit, campaign_id, "alert", alert.key, alert)
    return hand_over(kit.ledger, campaign_id, policy.news(past(kit, campaign_id)), channels)


def hand_over(ledger: Ledger, record_id: str, news: list[News], channels: Mapping[str, Channel]) -> list[str]:
    """Hand over what `record_id` has no record of, and return its keys; its lease must be held.

    A piece that is refused for good holds up no other. Once a later piece was taken it is on record as undeliverable; before, the
    whole channel may be at fault (an address that was taken back refuses everything), so it is tried again.
    """
    history = History(ledger.history(record_id))
    done = []
    for name, channel in channels.items():
        refused: dict[str, Exception] = {}
        for item in news:
            if history.find("told", f"{name} {item.key}", Told) is not None:
                continue
            try:
                channel(item)
            except Refused as error:
                refused[item.key] = error
                continue
            except (Transient, UserError) as error:
                _note(ledger, record_id, history, name, error)
                break  # what can't be told now waits in order
            ledger.append(record_id, "told", f"{name} {item.key}", Told(key=item.key, channel=name))
            done.append(item.key)
            for key, why in refused.items():
                ledger.append(record_id, "told", f"{name} {key}", Told(key=key, channel=name, undeliverable=str(why)))
            refused.clear()
        for why in refused.values():
            _note(ledger, record_id, history, name, why)
    return done


def catch_up(ledger: Ledger, record_id: str, channels: Mapping[str, Channel]) -> list[str]:
    """Hand over what was left untold: who should have told it died first, or a channel was down at the last step.

    Takes and returns the lease; where nothing is due, nothing is recorded. A channel that this record never spoke through, one
    that was set up later, is told no old stories: only alerts that reached nobody.

    Raises:
        Refused: another process is at it; it tells by itself.
    """
    history = History(ledger.history(record_id))
    if not _fresh(history) and not _due(record_id, history, channels):
        return []
    ledger.claim(record_id)
    try:
        for alert in _fresh(History(ledger.history(record_id))):
            ledger.append(record_id, "alert", alert.key, alert)
        due = _due(record_id, History(ledger.history(record_id)), channels)
        return [key for name, news in due.items() for key in hand_over(ledger, record_id, news, {name: channels[name]})]
    finally:
        ledger.release(record_id)


def _fresh(history: History) -> list[Alert]:
    """Return the alerts of a re-tuning that are not on record yet."""
    known = set(history.keys("alert"))
    return [a for a in drift.alerts(history) if a.key not in known] if history.keys("campaign") else []


def _due(record_id: str, history: History, channels: Mapping[str, Channel]) -> dict[str, list[News]]:
    """Return what is to be told late, by channel."""
    told = history.all("told", Told)
    spoken = {t.channel for t in told} | {x for x in channels if history.find("note", _failing(x), Note) is not None}
    reached, known = {t.key for t in told}, {(t.channel, t.key) for t in told}
    pieces = policy.news(history) or [policy.of_alert(record_id, a) for a in history.all("alert", Alert)]
    unheard = [x for x in pieces if x.kind.startswith("alert.") and x.key not in reached]
    found = {name: [x for x in (pieces if name in spoken else unheard) if (name, x.key) not in known] for name in channels}
    return {name: news for name, news in found.items() if news}


def until_down(channels: Mapping[str, Channel]) -> dict[str, Channel]:
    """Return the channels so that one which failed is not waited for again: for whoever tells many records in a row."""
    return {name: _until_down(channel) for name, channel in channels.items()}


def _until_down(channel: Channel) -> Channel:
    down: list[Transient | UserError] = []

    def call(news: News) -> None:
        if down:
            raise down[0]
        try:
            channel(news)
        except (Transient, UserError) as error:
            down.append(error)
            raise

    return call


def _failing(channel: str) -> str:
    return f"told {channel}"


def _note(ledger: Ledger, record_id: str, history: History, channel: str, error: Exception) -> None:
    key = _failing(channel)
    if history.find("note", key, Note) is None:
        text = f"news could not be handed over ({error}); tried again with each step"
        ledger.append(record_id, "note", key, Note(text=text))
