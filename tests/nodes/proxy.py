"""A proxy before a cluster's API: it speaks TLS if given a certificate, and answers 500 when it is told to."""

from __future__ import annotations

import ssl
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


class Proxy:
    """Where it listens, and whether it is in trouble."""

    def __init__(self) -> None:
        self.url = ""
        self.trouble = False
        self.headers: list[dict[str, str]] = []


@contextmanager
def before(upstream: str, *, certificate: Path | None = None, key: Path | None = None) -> Iterator[Proxy]:
    """Pass requests on to `upstream` for the time of the block."""
    proxy = Proxy()

    class Handler(BaseHTTPRequestHandler):
        def _do(self) -> None:
            proxy.headers.append(dict(self.headers.items()))
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0)) or None
            kept = {k: v for k, v in self.headers.items() if k.lower() not in ("host", "connection", "content-length")}
            request = urllib.request.Request(upstream + self.path, data=body, headers=kept, method=self.command)
            try:
                if proxy.trouble:
                    status, data = 500, b"trouble"
                else:
                    with urllib.request.urlopen(request, timeout=30) as answer:
                        status, data = answer.status, answer.read()
            except urllib.error.HTTPError as error:
                status, data = error.code, error.read()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = do_PUT = do_DELETE = _do

        def log_message(self, *_args: object) -> None:
            """Say nothing."""

    class Server(ThreadingHTTPServer):
        def handle_error(self, *_args: object) -> None:
            """A client that trusts nobody hangs up: that is not this server's error."""

    server = Server(("127.0.0.1", 0), Handler)
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    proxy.url = f"http{'s' if certificate else ''}://127.0.0.1:{server.server_address[1]}"
    try:
        yield proxy
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
