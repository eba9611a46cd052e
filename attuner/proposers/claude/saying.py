"""One question outside a search, answered by filling in one form: no other tool, no catalog, no lessons, no records."""

from __future__ import annotations

from attuner.core.message import FORM, Question, Said
from attuner.proposers.claude.caller import Caller
from attuner.proposers.claude.conversation import Block, Conversation

TRIES = 2
"""Answers of the model to one question; then it filled in no form."""


def filled(question: Question, caller: Caller) -> Said:
    """Ask, and once more if the answer is no form; return the form unchecked.

    Raises:
        BudgetExceeded, Transient, UserError: as Caller.call.
    """
    talk = Conversation(question.thread, [])
    tools = [{"name": FORM, "description": "Your answer. Fill it in once.", "input_schema": question.form}]
    sent: list[Block] = [{"type": "text", "text": question.text}]
    why = ""
    for _ in range(TRIES):
        reply = caller.call(talk, sent, hypothesis=question.subject, system=[question.system], tools=tools)
        called = [b for b in reply.content if b["type"] == "tool_use"]
        if reply.stop_reason in ("refusal", "model_context_window_exceeded"):
            return Said(why=reply.stop_reason)
        whole = reply.stop_reason != "max_tokens"
        if whole and len(called) == 1 and called[0]["name"] == FORM and isinstance(called[0]["input"], dict):
            return Said(form=called[0]["input"])
        why = "it filled in no form" if whole else "its answer was cut off at its limit"
        sent = [
            {"type": "tool_result", "tool_use_id": b["id"], "content": f"{why}; use {FORM}", "is_error": True} for b in called
        ] or [{"type": "text", "text": f"Use the tool {FORM}, once; {why}."}]
    return Said(why=why)
