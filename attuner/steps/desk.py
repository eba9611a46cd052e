"""The desk: what fixed code does for a proposer that may do nothing itself. It answers questions to the ledger, takes the gate's
first look without recording anything, and puts calls to a model on record, refusing those that don't fit the dollars left.

A proposer asks through its pipe (attuner/proposers/apart.py), by name and plain JSON. What is not listed here can't be asked.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from attuner.config import load_levers
from attuner.core.errors import Refused, UserError
from attuner.core.events import History
from attuner.core.judgement import Finding, Verdict
from attuner.core.message import Message, Prompt, Reply, Usage
from attuner.core.search import Hypothesis
from attuner.policy import citations, conduct, dollars
from attuner.ports import Kit
from attuner.source import Source
from attuner.steps.common import past, put
from attuner.steps.gate import look

HIDDEN = {"no_diagnosis": ("breakdown",), "bare": ("taught",)}
"""Kinds of records that an arm may not see, so that SQL is no way around what it does without."""
MAX_FINDINGS = 20


class Desk:
    """Answers one proposer while it makes one move; implements ports.Desk."""

    def __init__(self, kit: Kit, campaign_id: str, hypothesis_id: str) -> None:
        """Serve the move with this id."""
        self._kit, self._campaign_id, self._hypothesis_id = kit, campaign_id, hypothesis_id
        self._known: dict[str, Callable[[dict[str, Any]], Any]] = {
            "query_ledger": self._query,
            "dry_run": self._dry_run,
            "message": self._message,
            "reply": self._reply,
        }

    def __call__(self, name: str, given: dict[str, Any]) -> Any:
        """Answer one question.

        Raises:
            Refused: there is no such question, or it may not be (BudgetExceeded: the dollars are spent).
            UserError: its input is wrong.
        """
        if name not in self._known:
            raise Refused(f"{name}: fixed code does not do this for a proposer; it does {', '.join(self._known)}")
        return self._known[name](given)

    def _query(self, given: dict[str, Any]) -> dict[str, Any]:
        history = past(self._kit, self._campaign_id)
        hidden = HIDDEN.get(history.campaign().proposer.arm, ())
        events = [e for e in history.events if e.kind not in hidden]
        return self._kit.ledger.ask(events, str(given.get("sql", ""))).data()

    def _dry_run(self, given: dict[str, Any]) -> dict[str, Any]:
        """Take the first look at a move. Nothing is recorded, reserved or launched."""
        try:
            move = Hypothesis.model_validate({**given, "id": self._hypothesis_id})
        except ValueError as error:
            raise UserError(f"dry_run: {' '.join(str(error).split())[:300]}") from None
        verdict = first_look(self._kit, past(self._kit, self._campaign_id), move)
        return {"decision": verdict.decision, "findings": [f.line() for f in verdict.findings[:MAX_FINDINGS]]}

    def _message(self, given: dict[str, Any]) -> dict[str, Any]:
        """Put a call on record before it is made."""
        history = past(self._kit, self._campaign_id)
        spec = history.campaign().proposer
        if spec.price is None:
            raise Refused(f"{self._campaign_id}: no price of {spec.model or 'a model'} is on record, so no call is made")
        body = {**given, "number": len(dollars.calls(history)) + 1, "hypothesis": self._hypothesis_id, "model": spec.model}
        try:
            prompt = Prompt.model_validate(given.get("prompt") or {})
            unpriced = Message.model_validate({**body, "prompt": prompt.digest(), "bound_usd": 0.0})
        except ValueError as error:
            raise UserError(f"message: {' '.join(str(error).split())[:300]}") from None
        bound = dollars.bound_usd(unpriced.input_tokens, unpriced.max_tokens, spec.price)
        dollars.require(history, bound, spec.max_usd)
        if history.find("prompt", unpriced.prompt, Prompt) is None:
            put(self._kit, self._campaign_id, "prompt", unpriced.prompt, prompt)
        put(self._kit, self._campaign_id, "message", unpriced.key(), unpriced.model_copy(update={"bound_usd": bound}))
        return {"number": unpriced.number, "bound_usd": bound}

    def _reply(self, given: dict[str, Any]) -> dict[str, Any]:
        """Put on record what came of a call; its price is made here, from the tokens."""
        history = past(self._kit, self._campaign_id)
        asked = next((m for m, reply in dollars.calls(history) if m.number == given.get("number") and reply is None), None)
        price = history.campaign().proposer.price
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
        put(self._kit, self._campaign_id, "reply", asked.key(), reply)
        return {"usd": usd, "spent_usd": dollars.spent_usd(history) - asked.bound_usd + usd}


def first_look(kit: Kit, history: History, move: Hypothesis) -> Verdict:
    """Return what conduct, citations, the layout and the gate's first look would say of a move. Nothing is recorded."""
    campaign = history.campaign()
    wrong = uncited(kit, history, move)
    if wrong:
        return refused_citations(move, wrong)
    rule, digest = "conduct", ""
    try:
        conduct.check_group(move, load_levers(kit.rules_dir, campaign.stack.name), proposer=campaign.proposer.name)
        candidate = conduct.candidate(history, move)
        digest = candidate.digest()
        conduct.check_recipe(history, digest)
        rule = "layout"
        effective = kit.stack.resolve(candidate, campaign)
    except Refused as error:
        finding = Finding(rule=rule, decision="refuse", reason=str(error))
        return Verdict(look="config", subject=move.id, recipe=digest, decision="refuse", findings=[finding])
    return look(kit, history, effective, subject=move.id, recipe=digest)


def uncited(kit: Kit, history: History, move: Hypothesis) -> list[str]:
    """Return what is wrong with a move's citations. Only a proposer that can read the source owes any."""
    spec = history.campaign().proposer
    required = spec.name == "claude" and spec.arm != "bare"
    return citations.problems(move, Source(kit.source).lines if kit.source else None, required=required)


def refused_citations(move: Hypothesis, wrong: list[str]) -> Verdict:
    """Return the refusal of a move that rests on places which don't say what it claims."""
    findings = [Finding(rule="citation", decision="refuse", reason=x) for x in wrong]
    return Verdict(look="config", subject=move.id, recipe="", decision="refuse", findings=findings)
