"""The desk: what fixed code does for a proposer that may do nothing itself. It answers questions to the ledger, takes the gate's
first look without recording anything, and puts calls to a model on record, refusing those that don't fit the dollars left.

A proposer asks through its pipe (attuner/proposers/apart.py), by name and plain JSON. What is not listed here can't be asked.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from attuner.config import load_levers
from attuner.core.campaign import ProposerSpec
from attuner.core.errors import BudgetExceeded, Refused, UserError
from attuner.core.events import History
from attuner.core.judgement import Finding, Note, Verdict
from attuner.core.search import Hypothesis, Stop
from attuner.policy import citations, conduct, people, stopping
from attuner.ports import Kit
from attuner.source import Source
from attuner.steps.calls import Calls
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
            "check_stop": self._check_stop,
            "message": self._message,
            "reply": lambda given: self._calls().reply(given),
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

    def _check_stop(self, given: dict[str, Any]) -> dict[str, Any]:
        """Say what is wrong with a stop, before it is made. Nothing is recorded."""
        try:
            stop = Stop.model_validate(given)
        except ValueError as error:
            raise UserError(f"check_stop: {' '.join(str(error).split())[:300]}") from None
        return {"wrong": stopping.problems(past(self._kit, self._campaign_id), stop, self._hypothesis_id)}

    def _message(self, given: dict[str, Any]) -> dict[str, Any]:
        """Put a call on record before it is made; that the dollars don't allow it is put on record too: a stop may rest on it."""
        try:
            return self._calls().message(given)
        except BudgetExceeded as error:
            key = stopping.no_dollars(self._hypothesis_id)
            if past(self._kit, self._campaign_id).find("note", key, Note) is None:
                put(self._kit, self._campaign_id, "note", key, Note(text=str(error)))
            raise

    def _calls(self) -> Calls:
        spec = past(self._kit, self._campaign_id).campaign().proposer
        return calls_of(self._kit, self._campaign_id, spec, self._hypothesis_id)


def calls_of(kit: Kit, campaign_id: str, spec: ProposerSpec, subject: str) -> Calls:
    """Return what puts calls of one subject on a campaign's record, within the campaign's dollars."""
    return Calls(
        spec,
        subject,
        past=lambda: past(kit, campaign_id),
        put=lambda kind, key, record: put(kit, campaign_id, kind, key, record),
    )


def first_look(kit: Kit, history: History, move: Hypothesis) -> Verdict:
    """Return what conduct, citations, the layout and the gate's first look would say of a move. Nothing is recorded."""
    campaign = history.campaign()
    wrong = uncited(kit, history, move)
    if wrong:
        return refused_citations(move, wrong)
    rule, digest = "conduct", ""
    try:
        levers = load_levers(kit.rules_dir, campaign.stack.name)
        conduct.check_group(move, levers, proposer=campaign.proposer.name)
        if why := people.forbids(history, move, levers):
            raise Refused(f"{move.id}: {why}")
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
    required = (
        spec.name == "claude" and spec.arm != "bare" and not move.by
    )  # a person's move, or a re-tuning's first, cites nothing
    return citations.problems(move, Source(kit.source).lines if kit.source else None, required=required)


def refused_citations(move: Hypothesis, wrong: list[str]) -> Verdict:
    """Return the refusal of a move that rests on places which don't say what it claims."""
    findings = [Finding(rule="citation", decision="refuse", reason=x) for x in wrong]
    return Verdict(look="config", subject=move.id, recipe="", decision="refuse", findings=findings)
