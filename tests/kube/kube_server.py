"""A stand-in for the Kubernetes API server: HTTP on loopback, enough of it for the real client to be tested against.

uids, resourceVersions, label selectors, list and watch with bookmarks, expiry (410), conflicts, RBAC, schema validation, dry
runs, finalizers, graceful deletion of pods, garbage collection by owner. Every request is kept in `log`.
"""

from __future__ import annotations

import json
import threading
import time
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from kube_store import KINDS, Obj, Refuse, Rule, Store, selected


@dataclass
class Request:
    """One request as it was answered."""

    at: float
    user: str
    verb: str
    group: str
    resource: str
    name: str
    status: int
    dry: bool = False


class KubeServer:
    """The server: `with KubeServer(...) as server:`; `server.url`, `server.log`, `server.store`.

    Args:
        users: rules of each bearer token; None: everything is allowed.
    """

    def __init__(self, users: dict[str, list[Rule] | None], *, bookmark_s: float = 0.5) -> None:
        self.users, self.bookmark_s = users, bookmark_s
        self.store = Store()
        self.log: list[Request] = []
        self.busy = 0
        """How many requests are answered 429 next."""
        self.retry_after = "0"
        self.broken = 0
        """How many requests are answered 503 next."""
        self.stalled = False
        """Watches are open and say nothing."""
        self.silent = ""
        """Watches of this resource alone say nothing."""
        self.logs: dict[str, str] = {}
        """What `pods/log` says, by pod."""
        self.generation = 0
        self._httpd: ThreadingHTTPServer | None = None
        self.port = 0
        self.start()

    @property
    def url(self) -> str:
        """Return its address."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def away(self) -> bool:
        """Tell whether nobody listens."""
        return self._httpd is None

    def start(self) -> None:
        """Listen; on the same port as before."""
        server = self

        class Handler(_Handler):
            kube = server

        self._httpd = _Server(("127.0.0.1", self.port), Handler)
        self.port = self._httpd.server_address[1]
        threading.Thread(target=self._httpd.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def stop(self) -> None:
        """Stop listening, and cut every watch: connections are refused."""
        if self._httpd is not None:
            httpd, self._httpd = self._httpd, None
            httpd.shutdown()
            httpd.server_close()
            self.drop_watches()

    def drop_watches(self) -> None:
        """Cut every watch that is open."""
        with self.store.changed:
            self.generation += 1
            self.store.changed.notify_all()

    def __enter__(self) -> KubeServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def allowed(self, user: str, verb: str, group: str, resource: str) -> bool:
        """Tell what RBAC says."""
        rules = self.users.get(user, [])
        return rules is None or any(verb in r.verbs and group in r.groups and resource in r.resources for r in rules)

    def verbs(self, user: str) -> set[tuple[str, str, str]]:
        """Return (group, resource, verb) of everything that a user asked for."""
        return {(r.group, r.resource, r.verb) for r in self.log if r.user == user}

    def created(self, resource: str, user: str = "attuner") -> list[str]:
        """Return the names of what a user created, dry runs left out."""
        return [
            r.name
            for r in self.log
            if (r.resource, r.user, r.verb) == (resource, user, "create") and r.status == 201 and not r.dry
        ]


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is no error here."""


class _Handler(BaseHTTPRequestHandler):
    kube: KubeServer
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        """Say nothing on stderr."""

    def do_GET(self) -> None:
        self._serve("GET")

    def do_POST(self) -> None:
        self._serve("POST")

    def do_DELETE(self) -> None:
        self._serve("DELETE")

    def _serve(self, method: str) -> None:
        size = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(size) or b"{}") if size else {}
        split = urlsplit(self.path)
        query = {k: v[0] for k, v in parse_qs(split.query).items()}
        words = [unquote(w) for w in split.path.strip("/").split("/")]
        group = "" if words[0] == "api" else words[1]
        rest = words[2:] if words[0] == "api" else words[3:]
        namespace, rest = (rest[1], rest[2:]) if rest[0] == "namespaces" else ("", rest)
        resource, name = rest[0], rest[1] if len(rest) > 1 else ""
        full = f"{resource}/{rest[2]}" if len(rest) > 2 else resource
        watch = query.get("watch", "").lower() == "true"
        verb = {"GET": "watch" if watch else "get" if name else "list", "POST": "create", "DELETE": "delete"}[method]
        user = self.headers.get("Authorization", "").removeprefix("Bearer ")
        asked = Request(time.time(), user, verb, group, full, name or body.get("metadata", {}).get("name", ""), 0)
        asked.dry = query.get("dryRun") == "All"
        try:
            self._faults(user)
            if not (resource == "selfsubjectaccessreviews" or self.kube.allowed(user, verb, group, full)):
                raise Refuse(403, "Forbidden", f'User "{user}" cannot {verb} resource "{full}" in API group "{group}"')
            if watch:
                asked.status = 200
                self.kube.log.append(asked)
                self._watch(resource, namespace, query)
                return
            code, answer = self._answer(method, user, resource, full, namespace, name, body, query)
        except Refuse as refused:
            code = refused.code
            status = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code}
            answer = {**status, "reason": refused.reason, "message": refused.message}
        asked.status = code
        self.kube.log.append(asked)
        self._send(code, answer)

    def _faults(self, user: str) -> None:
        if user == "attuner" and self.kube.busy > 0:
            self.kube.busy -= 1
            raise Refuse(429, "TooManyRequests", "the server has received too many requests")
        if user == "attuner" and self.kube.broken > 0:
            self.kube.broken -= 1
            raise Refuse(503, "ServiceUnavailable", "etcdserver: leader changed")

    def _answer(
        self, method: str, user: str, resource: str, full: str, namespace: str, name: str, body: Obj, query: dict[str, str]
    ) -> tuple[int, Any]:
        store = self.kube.store
        if resource == "selfsubjectaccessreviews":
            a = body["spec"]["resourceAttributes"]
            what = f"{a['resource']}/{a['subresource']}" if a.get("subresource") else a["resource"]
            allowed = self.kube.allowed(user, a["verb"], a.get("group", ""), what)
            return 201, {**body, "kind": "SelfSubjectAccessReview", "status": {"allowed": allowed}}
        if full == "pods/log":
            store.get("pods", namespace, name)
            return 200, self.kube.logs.get(name, "")
        if resource not in KINDS:
            raise Refuse(404, "NotFound", "the server could not find the requested resource")
        if method == "POST":
            dry, strict = query.get("dryRun") == "All", query.get("fieldValidation") == "Strict"
            return 201, store.create(resource, namespace, body, dry=dry, strict=strict)
        if method == "DELETE":
            return 200, store.delete(resource, namespace, name)
        if name:
            return 200, store.get(resource, namespace, name)
        with store.changed:
            items = store.list(resource, namespace, query.get("labelSelector", ""))
            api, kind = KINDS[resource]
            return 200, {
                "apiVersion": api,
                "kind": f"{kind}List",
                "metadata": {"resourceVersion": str(store.version)},
                "items": items,
            }

    def _send(self, code: int, answer: Any) -> None:
        data = answer.encode() if isinstance(answer, str) else json.dumps(answer).encode()
        self.send_response(code)
        self.send_header("Content-Type", "text/plain" if isinstance(answer, str) else "application/json")
        self.send_header("Content-Length", str(len(data)))
        if code == 429:
            self.send_header("Retry-After", self.kube.retry_after)
        self.end_headers()
        self.wfile.write(data)

    def _watch(self, resource: str, namespace: str, query: dict[str, str]) -> None:
        """Stream what happened after a version, then what happens, until the time is over or the watch is cut."""
        store, seen = self.kube.store, int(query.get("resourceVersion") or 0)
        selector, generation = query.get("labelSelector", ""), self.kube.generation
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        end = time.monotonic() + float(query.get("timeoutSeconds", 60))
        while time.monotonic() < end and generation == self.kube.generation:
            if self.kube.stalled or resource == self.kube.silent:
                time.sleep(0.02)
                continue
            with store.changed:
                if seen < store.oldest:
                    gone = {"kind": "Status", "code": 410, "reason": "Expired", "message": f"too old resource version: {seen}"}
                    self._chunk({"type": "ERROR", "object": gone})
                    break
                if not any(x[0] > seen for x in store.past[-1:]):
                    store.changed.wait(self.kube.bookmark_s)
                new = [x for x in store.past if x[0] > seen]
                if not new:
                    mark = {"kind": KINDS[resource][1], "metadata": {"resourceVersion": str(store.version)}}
                    new_seen, events = store.version, [{"type": "BOOKMARK", "object": mark}]
                else:
                    new_seen = new[-1][0]
                    mine = [x for x in new if x[2] == resource and namespace in ("", x[3]) and selected(x[4], selector)]
                    events = [{"type": x[1], "object": x[4]} for x in mine]
            if generation != self.kube.generation:
                self.close_connection = True
                return  # cut, without a proper end
            for event in events:
                self._chunk(event)
            seen = new_seen
        self._chunk(None)
        self.close_connection = True

    def _chunk(self, event: Any) -> None:
        data = json.dumps(event).encode() + b"\n" if event is not None else b""
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        self.wfile.flush()
