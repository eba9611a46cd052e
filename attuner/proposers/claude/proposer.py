"""The proposer `claude`: a tool-use loop with a language model, that ends in exactly one move.

It runs in a process of its own (attuner/proposers/worker.py) and can neither write nor launch. What it reads is data; what it
asks of fixed code goes through the brief's desk; every call stands in the ledger before it is made and again before its answer is
acted on, so that a crash goes on where it was. Source of the arms: ATTUNE, tables 3 and D4.
"""

from __future__ import annotations

import os

from attuner.core.campaign import ProposerSpec
from attuner.core.errors import BudgetExceeded, UserError
from attuner.core.message import Question, Said
from attuner.core.search import Hypothesis, Stop
from attuner.ports import Brief, Desk
from attuner.proposers.claude import moves, news, saying
from attuner.proposers.claude.arms import ARMS, Arm, prompt
from attuner.proposers.claude.caller import Caller
from attuner.proposers.claude.conversation import Block, Conversation
from attuner.proposers.claude.reading import Reading, fenced
from attuner.proposers.claude.tools import MOVES, tools

KEY = "ANTHROPIC_API_KEY"
MAX_TURNS = 24
"""Answers of the model for one move; then the search ends."""
ROLES = ("diagnostician", "engineer", "sceptic")
ROLE_TURNS = 8
MAX_REPORT = 6_000


class Claude:
    """Implements ports.Proposer and ports.Adviser."""

    def __init__(self, *, key: str | None = None) -> None:
        """Use this key, or the one that the environment of this process was given."""
        self._key = os.environ.get(KEY, "") if key is None else key

    def close(self) -> None:
        """Nothing stays open between moves; see ports.Proposer."""

    def ask(self, brief: Brief) -> Hypothesis | Stop:
        """Return the model's move, or a Stop when the dollars are spent or it makes none; see ports.Proposer.

        Raises:
            Transient: the server can't be reached, or is too busy.
            UserError: the server refuses the call.
        """
        spec = brief.campaign.proposer
        if spec.arm not in ARMS:
            raise UserError(f"proposer.arm: {spec.arm}: unknown; known: {', '.join(ARMS)}")
        if brief.desk is None or not self._key:
            raise UserError(f"claude: no {'desk' if brief.desk is None else KEY} was given to it")
        caller = Caller(spec, brief.desk, key=self._key)
        try:
            return Turn(brief, ARMS[spec.arm], caller).move()
        except BudgetExceeded as error:
            return Stop(reason="the dollar limit is reached", evidence=[str(error)])
        finally:
            caller.close()

    def say(self, question: Question, desk: Desk) -> Said:
        """Return the form that the model filled in; see ports.Adviser. It is given no other tool.

        Raises:
            BudgetExceeded: the dollars are spent.
            Transient: the server can't be reached, or is too busy.
            UserError: the server refuses the call, or there is no key.
        """
        if not self._key:
            raise UserError(f"claude: no {KEY} was given to it")
        spec = ProposerSpec(name="claude", model=question.model, base_url=question.base_url, effort=question.effort)
        caller = Caller(spec, desk, key=self._key)
        try:
            return saying.filled(question, caller)
        finally:
            caller.close()


class Turn:
    """One move being made."""

    def __init__(self, brief: Brief, arm: Arm, caller: Caller) -> None:
        """Make the move that this brief asks for."""
        self._brief, self._arm, self._caller = brief, arm, caller
        self._reading = Reading(brief, arm)

    def move(self) -> Hypothesis | Stop:
        """Talk until the model makes its move."""
        brief, asked = self._brief, self._brief.next_id
        talk = Conversation.main(brief.history, asked)
        system, offered = news.system(brief, self._arm), tools(brief, self._arm)
        # what was said before a crash is acted on, not asked again: nothing is paid twice
        sent = self._acted(talk) if talk.of_move(asked) else self._opened(talk)
        while isinstance(sent, list):
            if len(talk.of_move(asked)) >= MAX_TURNS:
                return Stop(
                    reason="the model made no move", evidence=[f"{MAX_TURNS} answers to {asked}, none of them a valid move"]
                )
            self._caller.call(talk, sent, hypothesis=asked, system=system, tools=offered)
            sent = self._acted(talk)
        return sent

    def _opened(self, talk: Conversation) -> list[Block]:
        """Return the user's turn that asks for a move: results of the last one first, then what is new."""
        discussion = self._discussed() if self._arm.committee else ""
        told = news.since(self._brief) if talk.exchanges else news.opening(self._brief)
        blocks = [_result(b, "This move was made; what came of it stands below.") for b in talk.last() if b["type"] == "tool_use"]
        blocks.append(_text(fenced(told, "the campaign's records")))
        if discussion:
            blocks.append(_text(fenced(discussion, "what your colleagues said")))
        return [*blocks, _text(f"Make move {self._brief.next_id}: read what you need, then submit one move.")]

    def _acted(self, talk: Conversation) -> Hypothesis | Stop | list[Block]:
        """Act on the model's last answer: return its move, or the user's turn that follows."""
        reply = talk.exchanges[-1].reply
        called = [b for b in reply.content if b["type"] == "tool_use"]
        if reply.stop_reason == "model_context_window_exceeded":
            return Stop(reason="the conversation outgrew the model's window", evidence=[f"{reply.usage.prompt_tokens()} tokens"])
        if reply.stop_reason == "refusal":
            return Stop(reason="the model refused to go on", evidence=[_said(reply.content)[:500] or "it gave no reason"])
        if reply.stop_reason == "max_tokens":
            cut = "Your answer was cut off at its limit, so nothing was done. Be brief."
            return [*(_result(b, cut, error=True) for b in called), *([] if called else [_text(cut)])]
        if not called:
            return [_text("Use a tool. Your turn ends with submit_hypothesis or submit_stop.")]
        made = [b for b in called if b["name"] in MOVES]
        if len(made) > 1:
            return [_result(b, "One move at a time: nothing of this answer was done.", error=True) for b in called]
        wrong = ""
        if made:
            try:
                return self._submitted(made[0], talk)
            except UserError as error:
                wrong = str(error)
        return [_result(b, wrong, error=True) if b["name"] in MOVES else self._used(b) for b in called]

    def _submitted(self, block: Block, talk: Conversation) -> Hypothesis | Stop:
        assumed = self._assumed(talk)
        given = block["input"] if isinstance(block["input"], dict) else {}
        if block["name"] == "submit_stop":
            return self._held(moves.stop(given, assumed))
        return moves.hypothesis(given, self._brief, self._arm, assumed)

    def _held(self, stop: Stop) -> Stop:
        """Return the stop if its evidence holds. Raises UserError with what doesn't: the model may mend it or go on."""
        desk = self._brief.desk
        wrong = desk("check_stop", stop.data())["wrong"] if desk is not None else []
        if wrong:
            raise UserError(f"the stop does not hold: {'; '.join(wrong)}")
        return stop

    def _assumed(self, talk: Conversation) -> list[str]:
        """Return what the model asked a person in this move, with the default it took."""
        asked = [
            b["input"]
            for x in talk.of_move(self._brief.next_id)
            for b in x.reply.content
            if b["type"] == "tool_use" and b["name"] == "ask_person" and isinstance(b["input"], dict)
        ]
        return [f"{x['question']} → {x['default']}"[:MAX_REPORT] for x in asked if x.get("question") and x.get("default")]

    def _used(self, block: Block) -> Block:
        """Run one tool that makes no move."""
        given = block["input"] if isinstance(block["input"], dict) else {}
        if block["name"] == "ask_person":
            if not given.get("question") or not given.get("default"):
                return _result(block, "question, default: both are needed", error=True)
            return _result(block, f"Nobody is there. Your default is taken and recorded as an assumption: {given['default']}")
        if not self._offered(block["name"]):
            return _result(block, f"{block['name']}: there is no such tool here; you can only read and propose.", error=True)
        text, error = self._reading.answer(block["name"], given)
        return _result(block, text, error=error)

    def _offered(self, name: str) -> bool:
        return any(t["name"] == name for t in tools(self._brief, self._arm, moves=False))

    # -- the committee

    def _discussed(self) -> str:
        """Let each role speak in a conversation of its own; return what they said."""
        said: list[str] = []
        for role in ROLES:
            said.append(f"The {role}:\n{self._spoke(role, said)}")
        return "\n\n".join(said)

    def _spoke(self, role: str, before: list[str]) -> str:
        brief = self._brief
        talk = Conversation.of(brief.history, role, hypothesis=brief.next_id)
        system, offered = [prompt(role), news.facts(brief)], tools(brief, self._arm, moves=False)
        while True:
            called = [b for b in talk.last() if b["type"] == "tool_use"]
            if talk.exchanges and (not called or len(talk.exchanges) >= ROLE_TURNS):
                return _said(talk.last())[:MAX_REPORT] or "(no words)"
            sent = [self._used(b) for b in called]
            if not talk.exchanges:
                sent = [_text(fenced("\n\n".join([news.opening(brief), *before]), "records, and what your colleagues said"))]
            if len(talk.exchanges) == ROLE_TURNS - 1:
                sent.append(_text("Speak now, without tools."))
            self._caller.call(talk, sent, hypothesis=brief.next_id, system=system, tools=offered)


def _text(text: str) -> Block:
    return {"type": "text", "text": text}


def _result(block: Block, text: str, *, error: bool = False) -> Block:
    return {"type": "tool_result", "tool_use_id": block["id"], "content": text, **({"is_error": True} if error else {})}


def _said(content: list[Block]) -> str:
    return "\n".join(b["text"] for b in content if b["type"] == "text").strip()
