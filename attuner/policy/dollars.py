"""What calls to a model cost, in US dollars: a bound before the call, the price after it, and the sum so far. A call whose reply
never came counts as its bound."""

from __future__ import annotations

from attuner.core.errors import BudgetExceeded
from attuner.core.events import History
from attuner.core.message import Message, ModelPrice, Reply, Usage

MILLION = 1_000_000


def cost_usd(usage: Usage, price: ModelPrice) -> float:
    """Return what a call cost."""
    usd = (
        usage.input_tokens * price.input_usd
        + usage.output_tokens * price.output_usd
        + usage.cache_write_tokens * price.cache_write_usd
        + usage.cache_read_tokens * price.cache_read_usd
    )
    return usd * _times(usage.prompt_tokens(), price) / MILLION


def bound_usd(input_tokens: int, max_tokens: int, price: ModelPrice) -> float:
    """Return the most that a call can cost: all of its prompt at the dearer input price, and every token it may answer."""
    dearest = max(price.input_usd, price.cache_write_usd, price.cache_read_usd)
    usd = input_tokens * dearest + max_tokens * price.output_usd
    return usd * _times(input_tokens, price) / MILLION


def _times(prompt_tokens: int, price: ModelPrice) -> float:
    long = price.long_prompt_tokens is not None and prompt_tokens > price.long_prompt_tokens
    return price.long_prompt_times if long else 1.0


def calls(history: History) -> list[tuple[Message, Reply | None]]:
    """Return the campaign's calls in order, each with its reply if one is on record."""
    return [(m, history.find("reply", m.key(), Reply)) for m in history.all("message", Message)]


def spent_usd(history: History, *, since: int = 1) -> float:
    """Return the dollars spent on the calls from number `since` on, calls without a reply at their bound."""
    return sum(m.bound_usd if reply is None else reply.usd for m, reply in calls(history) if m.number >= since)


def require(history: History, bound: float, max_usd: float, *, since: int = 1) -> None:
    """Raise BudgetExceeded unless a call of this bound fits what the calls from number `since` on left of `max_usd`."""
    spent = spent_usd(history, since=since)
    if spent + bound > max_usd:
        raise BudgetExceeded(f"dollar limit: {spent:.4f} of {max_usd:g} US dollars are spent, the next call may cost {bound:.4f}")
