"""Conversations with the model, rebuilt from the campaign's records: what was said stays said, so a crash repeats no paid call.

A campaign has one conversation, `main`, begun anew as `main.2` and so on when it has grown long (what happened is then told again
in short). In the arm `committee` each role has one of its own for every move.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from attuner.core.events import History
from attuner.core.message import Message, Reply
from attuner.policy import dollars

Block = dict[str, Any]
MAIN = "main"
LONG_TOKENS = 80_000
"""A prompt of more tokens than this is not carried into the next move."""
EPHEMERAL = {"type": "ephemeral"}


@dataclass(frozen=True)
class Exchange:
    """One call that was answered."""

    message: Message
    reply: Reply


class Conversation:
    """One thread: what was answered in it, in order."""

    def __init__(self, thread: str, exchanges: list[Exchange]) -> None:
        """Go on with these exchanges."""
        self.thread = thread
        self.exchanges = exchanges

    @classmethod
    def of(cls, history: History, thread: str, *, hypothesis: str = "") -> Conversation:
        """Return the answered part of a thread, of one move only where it is named."""
        return cls(
            thread,
            [
                Exchange(m, reply)
                for m, reply in dollars.calls(history)
                if m.thread == thread and reply and reply.status == "answered" and hypothesis in ("", m.hypothesis)
            ],
        )

    @classmethod
    def main(cls, history: History, hypothesis: str) -> Conversation:
        """Return the thread in which this move is made: the last one, or a new one if that has grown long."""
        names = [m.thread for m, reply in dollars.calls(history) if m.thread.partition(".")[0] == MAIN]
        last = cls.of(history, names[-1] if names else MAIN)
        if last.of_move(hypothesis) or not last.exchanges:
            return last
        if last.exchanges[-1].reply.usage.prompt_tokens() <= LONG_TOKENS:
            return last
        number = int(last.thread.partition(".")[2] or 1) + 1
        return cls(f"{MAIN}.{number}", [])

    def of_move(self, hypothesis: str) -> list[Exchange]:
        """Return the exchanges that belong to one move."""
        return [x for x in self.exchanges if x.message.hypothesis == hypothesis]

    def last(self) -> list[Block]:
        """Return the blocks that the model said last."""
        return self.exchanges[-1].reply.content if self.exchanges else []

    def messages(self, sent: list[Block]) -> list[dict[str, Any]]:
        """Return the whole prompt: what was said, then `sent`, with the ends of the last two user turns marked for the cache."""
        turns: list[dict[str, Any]] = []
        for exchange in self.exchanges:
            turns.append({"role": "user", "content": list(exchange.message.sent)})
            if exchange.reply.content:  # an empty turn is no turn to the API
                turns.append({"role": "assistant", "content": exchange.reply.content})
        turns.append({"role": "user", "content": list(sent)})
        for turn in [t for t in turns if t["role"] == "user"][-2:]:
            turn["content"][-1] = {**turn["content"][-1], "cache_control": EPHEMERAL}
        return turns
