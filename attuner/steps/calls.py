"""Calls to a model, put on record before they are made and again before their answer is acted on, within a limit of dollars.

The fixed code behind a proposer's `message` and `reply` (steps/desk.py), and behind what is asked of a model outside a search:
what it knows of the lessons, and the wording of drafts. See ADR 0013.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from attuner.core.base import Record
from attuner.core.campaign import ProposerSpec
from attuner.core.errors import Refused, UserError
from attuner.core.events import History
from attuner.core.message import Message, Prompt, Reply, Usage
from attuner.policy import dollars

Past = Callable[[], History]
Put = Callable[[str, str, Record], None]


class Calls:
    """Keeps the record of one subject's calls; implements ports.Desk for the two words `message` and `reply`.

    Args:
        spec: model, price and limit of dollars.
        subject: what the calls belong to: a hypothesis's id, a lesson's.
        past: reads the records that the calls stand among.
        put: appends one record there: kind, key, record.
        first: number of the first call that the limit counts.
    """

    def __init__(self, spec: ProposerSpec, subject: str, *, past: Past, put: Put, first: int = 1) -> None:
        self._spec, self._subject, self._past, self._put, self._first = spec, subject, past, put, first

    def __call__(self, name: str, given: dict[str, Any]) -> Any:
        """Answer one word.

        Raises:
            Refused: there is no such word, or the dollars are spent (BudgetExceeded).
            UserError: its input is wrong.
        """
        if name == "message":
            return self.message(given)
        if name == "reply":
            return self.reply(given)
        raise Refused(f"{name}: fixed code does not do this for a model; it puts calls on record (message, reply)")

    def message(self, given: dict[str, Any]) -> dict[str, Any]:
        """Put a call on record before it is made; see __call__ for what it raises."""
        history, spec = self._past(), self._spec
        if spec.price is None:
            raise Refused(f"{self._subject}: no price of {spec.model or 'a model'} is on record, so no call is made")
        body = {**given, "number": len(dollars.calls(history)) + 1, "hypothesis": self._subject, "model": spec.model}
        try:
            prompt = Prompt.model_validate(given.get("prompt") or {})
            unpriced = Message.model_validate({**body, "prompt": prompt.digest(), "bound_usd": 0.0})
        except ValueError as error:
            raise UserError(f"message: {' '.join(str(error).split())[:300]}") from None
        bound = dollars.bound_usd(unpriced.input_tokens, unpriced.max_tokens, spec.price)
        dollars.require(history, bound, spec.max_usd, since=self._first)
        if history.find("prompt", unpriced.prompt, Prompt) is None:
            self._put("prompt", unpriced.prompt, prompt)
        self._put("message", unpriced.key(), unpriced.model_copy(update={"bound_usd": bound}))
        return {"number": unpriced.number, "bound_usd": bound}

    def reply(self, given: dict[str, Any]) -> dict[str, Any]:
        """Put on record what came of a call; its price is made here, from the tokens. See __call__ for what it raises."""
        history, price = self._past(), self._spec.price
        asked = next((m for m, reply in dollars.calls(history) if m.number == given.get("number") and reply is None), None)
        if asked is None or price is None:
            raise Refused(f"reply: call {given.get('number')} is not waiting for one")
        try:
            usage = Usage.model_validate(given.get("usage") or {})
            status = given.get("status")
            usd = {"failed": 0.0, "lost": asked.bound_usd}.get(str(status), dollars.cost_usd(usage, price))
            body = {k: v for k, v in given.items() if k not in ("number", "usage", "usd")}
            reply = Reply.model_validate({**body, "usage": usage, "usd": usd})
        except ValueError as error:
            raise UserError(f"reply: {' '.join(str(error).split())[:300]}") from None
        self._put("reply", asked.key(), reply)
        return {"usd": usd, "spent_usd": dollars.spent_usd(history) - asked.bound_usd + usd}
