"""A laboratory campaign that is searched by `claude`, talking to a local server by the real client."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lab import Lab, campaign
from messages_server import KEY, MessagesServer, use

from attuner.core.campaign import Campaign
from attuner.core.message import ModelPrice
from attuner.launchers.replay import Row
from attuner.proposers.claude.proposer import Claude

PRICE = ModelPrice(input_usd=4, output_usd=20, cache_write_usd=5, cache_read_usd=0.2)
TABLE = [Row(match={"micro_batch_size": 4}, step_s=0.5), Row()]
WORDS = {"title": "t", "bottleneck": "host", "mechanism": "fewer launches", "predicted_gain": 0.2, "predicted_error": 0.1}
MODEL = "claude-opus-5-5"


def move(group: str, arguments: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    """A submitted hypothesis."""
    return use("submit_hypothesis", **{"parent": "leader", "group": group, **WORDS, "arguments": arguments or {}, **more})


MICRO = move("micro-batch", {"micro_batch_size": 4})
STOP = use("submit_stop", reason="nothing is left", evidence=["the band is 3%"])


def born(server: MessagesServer, **spec: Any) -> Campaign:
    """A campaign of the laboratory whose proposer talks to this server."""
    given = {"name": "claude", "model": MODEL, "max_usd": 50.0, "price": PRICE.data(), "base_url": server.url, **spec}
    return campaign(proposer=given)


def laboratory(folder: Path, table: list[Row] | None = None, **more: Any) -> Lab:
    return Lab(folder, TABLE if table is None else table, proposer=Claude(key=KEY), **more)


def heard(server: MessagesServer, call: int = -1) -> str:
    """All that the user's turns of one call say, as text."""
    turns = [b for m in server.calls[call]["messages"] if m["role"] == "user" for b in m["content"]]
    return "\n".join(str(b.get("text") or b.get("content")) for b in turns)


def last_heard(server: MessagesServer, call: int = -1) -> str:
    """What the last user's turn of one call says."""
    return "\n".join(str(b.get("text") or b.get("content")) for b in server.calls[call]["messages"][-1]["content"])
