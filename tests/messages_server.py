"""A server that speaks the Messages API over HTTP, for a scripted model: the real client talks to it as to the real one.

It refuses what the real one refuses (no key, a tool call without its result, more than four cache marks, an empty turn), counts
tokens as characters over four, and bills a prompt cache by the longest prefix that was marked before. A script answers by how far
its conversation has come, so a call that is made again is answered again, and billed again: `billed` tells.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

KEY = "sk-test-of-nobody"
Block = dict[str, Any]
Brain = Callable[[dict[str, Any]], list[Block]]


def use(name: str, **given: Any) -> Block:
    """A tool call; the server gives it its id."""
    return {"type": "tool_use", "name": name, "input": given}


def say(text: str) -> Block:
    return {"type": "text", "text": text}


def scripted(*turns: list[Block]) -> Brain:
    """A model that says its next turn, whatever it hears; after its last one it stops the search."""

    def brain(body: dict[str, Any]) -> list[Block]:
        done = sum(m["role"] == "assistant" for m in body["messages"])
        return (
            turns[done]
            if done < len(turns)
            else [
                use("submit_stop", reason="the script has ended", evidence=["l01 and what came after it: the script has ended"])
            ]
        )

    return brain


@dataclass
class Failure:
    """An answer that is none."""

    status: int
    kind: str = "api_error"
    message: str = "scripted failure"


@dataclass
class MessagesServer:
    """One server on a port of its own; use it as `with serving(brain) as server`."""

    brain: Brain
    key: str = KEY
    failures: list[Failure] = field(default_factory=list)
    stop_reason: str = ""
    counts: bool = True
    calls: list[dict[str, Any]] = field(default_factory=list)
    billed: list[dict[str, int]] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    hold_at: int = 0
    """The number of the call that is billed and then not answered until `release` is set."""
    held: threading.Event = field(default_factory=threading.Event)
    release: threading.Event = field(default_factory=threading.Event)
    url: str = ""
    lock: threading.Lock = field(default_factory=threading.Lock)
    cached: set[str] = field(default_factory=set)

    def answer(self, path: str, headers: Any, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        with self.lock:
            wrong = problem(body, counting=path.endswith("count_tokens"))
            if self.key not in (headers.get("x-api-key"), str(headers.get("authorization")).removeprefix("Bearer ")):
                return 401, error("authentication_error", "invalid key")
            if not headers.get("anthropic-version"):
                return 400, error("invalid_request_error", "anthropic-version: header is required")
            if wrong:
                self.refused.append(wrong)
                return 400, error("invalid_request_error", wrong)
            if path.endswith("count_tokens"):
                return (200, {"input_tokens": tokens(body)}) if self.counts else (404, error("not_found_error", "no such path"))
            if self.failures:
                failure = self.failures.pop(0)
                return failure.status, error(failure.kind, failure.message)
            self.calls.append(body)
            number = len(self.calls)
            content = [dict(b) for b in self.brain(body)]
            for place, block in enumerate(content):
                if block["type"] == "tool_use":
                    block.setdefault("id", f"toolu_{number:03d}_{place}")
            usage = self.bill(body, content)
            self.billed.append(usage)
            tools = any(b["type"] == "tool_use" for b in content)
            stop = self.stop_reason or ("tool_use" if tools else "end_turn")
        if number == self.hold_at:
            self.held.set()
            self.release.wait(120)
        said = {"id": f"msg_{number}", "type": "message", "role": "assistant", "model": body["model"], "content": content}
        return 200, {**said, "stop_reason": stop, "stop_sequence": None, "usage": usage}

    def bill(self, body: dict[str, Any], content: list[Block]) -> dict[str, int]:
        marks = list(prefixes(body))
        read = max((n for digest, n in marks if digest in self.cached), default=0)
        last = max((n for _, n in marks), default=0)
        self.cached |= {digest for digest, _ in marks}
        return {
            "input_tokens": max(tokens(body) - last, 0),
            "cache_read_input_tokens": read,
            "cache_creation_input_tokens": last - read,
            "output_tokens": len(json.dumps(content)) // 4 + 1,
        }


def tokens(body: dict[str, Any]) -> int:
    return sum(len(json.dumps(body.get(part, []))) for part in ("system", "tools", "messages")) // 4


def prefixes(body: dict[str, Any]) -> Iterator[tuple[str, int]]:
    """Yield (digest, tokens) of every prefix of the prompt that ends at a cache mark."""
    blocks = [*body.get("tools", []), *body.get("system", []), *(b for m in body["messages"] for b in m["content"])]
    seen, digest = 0, hashlib.sha256()
    for block in blocks:
        text = json.dumps({k: v for k, v in block.items() if k != "cache_control"}, sort_keys=True)
        seen += len(text)
        digest.update(text.encode())
        if "cache_control" in block:
            yield digest.hexdigest(), seen // 4


def problem(body: dict[str, Any], *, counting: bool) -> str:
    """What the real API would refuse of a request; '' if nothing."""
    if not body.get("model") or not body.get("messages"):
        return "model, messages: field required"
    if not counting and not isinstance(body.get("max_tokens"), int):
        return "max_tokens: field required"
    if "tool_choice" in body or "temperature" in body:
        return "tool_choice, temperature: not supported by this model"
    blocks = [*body.get("tools", []), *body.get("system", []), *(b for m in body["messages"] for b in m["content"])]
    if sum("cache_control" in b for b in blocks) > 4:
        return "cache_control: at most 4 blocks"
    if body["messages"][0]["role"] != "user" or body["messages"][-1]["role"] != "user":
        return "messages: must begin and end with the user"
    for number, message in enumerate(body["messages"]):
        if not message["content"]:
            return f"messages.{number}: content must not be empty"
        if any(b["type"] == "text" and not b["text"].strip() for b in message["content"]):
            return f"messages.{number}: text content blocks must contain non-whitespace text"
        asked = [b["id"] for b in message["content"] if b["type"] == "tool_use"]
        if asked:
            given = [b.get("tool_use_id") for b in body["messages"][number + 1]["content"] if b["type"] == "tool_result"]
            if sorted(given) != sorted(asked):
                return f"messages.{number + 1}: `tool_use` ids were found without `tool_result` blocks: {set(asked) ^ set(given)}"
    return ""


def error(kind: str, message: str) -> dict[str, Any]:
    return {"type": "error", "error": {"type": kind, "message": message}}


@contextmanager
def serving(brain: Brain, **settings: Any) -> Iterator[MessagesServer]:
    """Serve until the block ends."""
    server = MessagesServer(brain, **settings)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: Any) -> None:
            pass

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            path = self.path.partition("?")[0]
            if path not in ("/v1/messages", "/v1/messages/count_tokens"):
                status, said = 404, error("not_found_error", path)
            else:
                status, said = server.answer(path, self.headers, body)
            data = json.dumps(said).encode()
            try:
                self.send_response(status)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(data)))
                if status >= 429:
                    self.send_header("retry-after-ms", "10")
                self.end_headers()
                self.wfile.write(data)
            except OSError:
                return  # whoever asked is gone

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    http.daemon_threads = True
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    server.url = f"http://127.0.0.1:{http.server_port}"
    try:
        yield server
    finally:
        server.release.set()
        http.shutdown()
        http.server_close()
        thread.join()
