"""One call to the Messages API: counted, put on record with its bound, made, and put on record with its price before anybody acts
on it. The client retries what passes by itself (429, 5xx, 529, broken connections); what is left then is Transient."""

from __future__ import annotations

import json
from typing import Any

import anthropic

from attuner.core.campaign import ProposerSpec
from attuner.core.errors import Transient, UserError
from attuner.core.message import Message, Reply, Usage
from attuner.ports import Desk
from attuner.proposers.claude.conversation import EPHEMERAL, Block, Conversation, Exchange

RETRIES = 4
TIMEOUT_S = 300.0
MAX_TOKENS = 16_000
"""Of one answer, thinking included."""
MARGIN = 1.05
EXTRA_TOKENS = 1_000
"""On top of what the server counts: its count is an estimate."""
PASSING = (408, 409, 429)
"""Statuses below 500 that may be gone at the next try."""


class Caller:
    """Makes calls for one campaign's proposer."""

    def __init__(self, spec: ProposerSpec, desk: Desk, *, key: str) -> None:
        """Talk to the server that the campaign names, or to Anthropic's."""
        self._spec, self._desk = spec, desk
        self._counts = True
        self._client = anthropic.Anthropic(
            api_key=key, base_url=spec.base_url or "https://api.anthropic.com", max_retries=RETRIES, timeout=TIMEOUT_S
        )

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def call(
        self, conversation: Conversation, sent: list[Block], *, hypothesis: str, system: list[str], tools: list[dict[str, Any]]
    ) -> Reply:
        """Send a user's turn and return the answer, which stands in the conversation then.

        Raises:
            BudgetExceeded: the call might not fit the dollars left; it was not made.
            Transient: the server can't be reached, or is too busy.
            UserError: the server refuses the call.
        """
        request: dict[str, Any] = {
            "model": self._spec.model,
            "system": _marked([{"type": "text", "text": text} for text in system]),
            "tools": _marked(tools),
            "messages": conversation.messages(sent),
        }
        if self._spec.effort:
            request["output_config"] = {"effort": self._spec.effort}
        given = {
            "thread": conversation.thread,
            "sent": sent,
            "input_tokens": self._tokens(request),
            "max_tokens": MAX_TOKENS,
        }
        number = int(self._desk("message", {**given, "prompt": {"system": system, "tools": tools}})["number"])
        reply = self._made(number, request)
        message = {**given, "number": number, "hypothesis": hypothesis, "model": self._spec.model, "bound_usd": 0.0}
        conversation.exchanges.append(Exchange(Message.model_validate(message), reply))
        return reply

    def _made(self, number: int, request: dict[str, Any]) -> Reply:
        try:
            answer = self._client.messages.create(**request, max_tokens=MAX_TOKENS)
        except anthropic.APIStatusError as error:
            self._failed(number, "failed", f"{error.status_code}: {_line(error)}")
            if error.status_code in PASSING or error.status_code >= 500:
                raise Transient(f"claude: the server answers {error.status_code}: {_line(error)}; try again later") from None
            raise UserError(f"claude: the server refuses the call, {error.status_code}: {_line(error)}") from None
        except anthropic.APIConnectionError as error:
            never_sent = type(error.__cause__).__name__ in ("ConnectError", "ConnectTimeout")
            self._failed(number, "failed" if never_sent else "lost", _line(error))
            raise Transient(f"claude: no contact with the server ({_line(error)}); try again later") from None
        except anthropic.AnthropicError as error:
            self._failed(number, "lost", _line(error))
            raise UserError(f"claude: {_line(error)}") from None
        body = {
            "status": "answered",
            "content": [block.to_dict(mode="json") for block in answer.content],
            "stop_reason": answer.stop_reason or "",
            "usage": {
                "input_tokens": answer.usage.input_tokens,
                "output_tokens": answer.usage.output_tokens,
                "cache_write_tokens": answer.usage.cache_creation_input_tokens or 0,
                "cache_read_tokens": answer.usage.cache_read_input_tokens or 0,
            },
        }
        cost = self._desk("reply", {"number": number, **body})
        return Reply.model_validate({**body, "usage": Usage.model_validate(body["usage"]), "usd": cost["usd"]})

    def _failed(self, number: int, status: str, detail: str) -> None:
        self._desk("reply", {"number": number, "status": status, "detail": detail})

    def _tokens(self, request: dict[str, Any]) -> int:
        """Return a count of the prompt's tokens from above: the server's, or one a byte where it doesn't count."""
        if self._counts:
            try:
                counted = self._client.messages.count_tokens(**{k: v for k, v in request.items() if k != "output_config"})
                return int(counted.input_tokens * MARGIN) + EXTRA_TOKENS
            except anthropic.APIStatusError as error:
                if error.status_code not in (404, 405, 501):
                    _refused(error)
                self._counts = False
            except anthropic.APIConnectionError as error:
                raise Transient(f"claude: no contact with the server ({_line(error)}); try again later") from None
        return len(json.dumps(request, ensure_ascii=False).encode()) + EXTRA_TOKENS


def _refused(error: anthropic.APIStatusError) -> None:
    if error.status_code in PASSING or error.status_code >= 500:
        raise Transient(f"claude: the server answers {error.status_code}: {_line(error)}; try again later") from None
    raise UserError(f"claude: the server refuses the call, {error.status_code}: {_line(error)}") from None


def _marked(blocks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the blocks with the last one marked for the cache."""
    return [*blocks[:-1], {**blocks[-1], "cache_control": EPHEMERAL}]


def _line(error: Exception) -> str:
    """Return what an error says, in one line without the request."""
    body = getattr(error, "body", None)
    inner = body.get("error", body) if isinstance(body, dict) else None
    text = inner.get("message", "") if isinstance(inner, dict) else ""
    return " ".join(str(text or error).split())[:200]
