"""Calls to a language model as records: the Prompt, the Message before it is sent, the Reply that came, what tokens cost."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from attuner.core.base import Record


class ModelPrice(Record):
    """US dollars per million tokens of one model."""

    input_usd: float = Field(ge=0, description="input")
    output_usd: float = Field(ge=0, description="output, thinking included")
    cache_write_usd: float = Field(ge=0, description="input that the cache keeps for five minutes")
    cache_read_usd: float = Field(ge=0, description="input that the cache held")
    long_prompt_tokens: int | None = Field(default=None, gt=0, description="above so many tokens of input a call costs more")
    long_prompt_times: float = Field(default=1.0, ge=1, description="so many times, on every token of the call")
    source: str = Field(default="", description="where it is from")
    read: str = Field(default="", description="day on which the source said so")


class Usage(Record):
    """Tokens of one call, as the server counted them."""

    input_tokens: int = Field(default=0, ge=0, description="neither read from the cache nor written to it")
    output_tokens: int = Field(default=0, ge=0)
    cache_write_tokens: int = Field(default=0, ge=0)
    cache_read_tokens: int = Field(default=0, ge=0)

    def prompt_tokens(self) -> int:
        """Return the tokens of the whole prompt."""
        return self.input_tokens + self.cache_write_tokens + self.cache_read_tokens


class Prompt(Record):
    """What stands before a conversation; on record once, under its digest."""

    system: list[str] = Field(default_factory=list)
    tools: list[dict[str, Any]] = Field(default_factory=list)


class Message(Record):
    """One call to a model, on record before it is made; `sent` is what it adds to its conversation."""

    number: int = Field(ge=1, description="counts the campaign's calls")
    hypothesis: str = Field(description="the move that it is part of")
    thread: str = Field(description="the conversation that it continues")
    model: str
    prompt: str = Field(default="", description="digest of the prompt that stands before it")
    sent: list[dict[str, Any]] = Field(description="blocks of the user's turn")
    input_tokens: int = Field(ge=0, description="of the whole prompt, from above")
    max_tokens: int = Field(gt=0)
    bound_usd: float = Field(ge=0, description="the most that it can cost; what it counts as until a reply is on record")

    def key(self) -> str:
        """Return the ledger key; its reply has the same."""
        return f"m{self.number:04d}"


class Reply(Record):
    """What came of a call, on record before anybody acts on it."""

    status: Literal["answered", "failed", "lost"] = Field(
        description="failed: refused, nothing was charged; lost: contact broke, it counts as its bound"
    )
    content: list[dict[str, Any]] = Field(default_factory=list, description="blocks of the assistant's turn")
    stop_reason: str = ""
    usage: Usage = Usage()
    usd: float = Field(default=0.0, ge=0)
    detail: str = ""


FORM = "answer"
"""Name of the one tool that a question's answer is given by."""


class Question(Record):
    """Something asked of a model outside a search; it answers by filling in one form, and does nothing else."""

    thread: str = Field(description="its conversation, on record")
    subject: str = Field(description="what it is about: stands where a move's id stands in a search")
    model: str
    base_url: str = ""
    effort: str = ""
    system: str
    text: str
    form: dict[str, Any] = Field(description="JSON schema of the answer's fields")


class Said(Record):
    """What a model answered to a question."""

    form: dict[str, Any] | None = Field(
        default=None, description="the form as it was filled in, unchecked; None: it filled in none"
    )
    why: str = Field(default="", description="why there is none")
