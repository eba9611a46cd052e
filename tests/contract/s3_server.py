"""A small S3 for tests: put, get, head, list and multipart uploads over HTTP, buckets in memory. Checks no signature."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

PAGE = 3
"""Keys a page: small, so that tests meet the second page."""


class S3:
    """The buckets, and what is wrong with the server."""

    def __init__(self) -> None:
        self.url = ""
        self.buckets: dict[str, dict[str, bytes]] = {"bucket": {}}
        self.parts: dict[str, dict[int, bytes]] = {}
        self.trouble: tuple[int, str] | None = None
        self.lock = threading.Lock()


def _error(code: str) -> bytes:
    return f'<?xml version="1.0"?><Error><Code>{code}</Code><Message>{code}</Message></Error>'.encode()


def _body(handler: BaseHTTPRequestHandler) -> bytes:
    """Return a request's body; botocore sends it in signed chunks with a checksum at the end."""
    raw = handler.rfile.read(int(handler.headers.get("Content-Length") or 0))
    if "aws-chunked" not in handler.headers.get("Content-Encoding", ""):
        return raw
    found = b""
    while raw:
        size, _, raw = raw.partition(b"\r\n")
        length = int(size.split(b";")[0], 16)
        if not length:
            break
        found, raw = found + raw[:length], raw[length + 2 :]
    return found


class Handler(BaseHTTPRequestHandler):
    """One request; the server knows the buckets."""

    protocol_version = "HTTP/1.1"

    def _say(self, status: int, data: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        if "Content_Length" not in headers:
            self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def _do(self) -> None:
        s3 = self.server.s3  # type: ignore[attr-defined]
        where = urlsplit(self.path)
        bucket, _, key = unquote(where.path).lstrip("/").partition("/")
        query = {k: v[0] for k, v in parse_qs(where.query, keep_blank_values=True).items()}
        body = _body(self)
        with s3.lock:
            if s3.trouble:
                self._say(s3.trouble[0], _error(s3.trouble[1]))
            elif bucket not in s3.buckets:
                self._say(404, _error("NoSuchBucket"))
            else:
                self._object(s3.buckets[bucket], key, query, body)

    def _object(self, objects: dict[str, bytes], key: str, query: dict[str, str], body: bytes) -> None:
        parts: dict[str, dict[int, bytes]] = self.server.s3.parts  # type: ignore[attr-defined]
        if not key:
            self._list(objects, query)
        elif self.command == "POST" and "uploads" in query:
            parts[key] = {}
            self._say(200, b"<InitiateMultipartUploadResult><UploadId>u</UploadId></InitiateMultipartUploadResult>")
        elif self.command == "PUT" and "partNumber" in query:
            parts[key][int(query["partNumber"])] = body
            self._say(200, ETag=f'"{hashlib.md5(body).hexdigest()}"')
        elif self.command == "POST":
            objects[key] = b"".join(part for _, part in sorted(parts.pop(key).items()))
            self._say(200, b'<CompleteMultipartUploadResult><ETag>"x"</ETag></CompleteMultipartUploadResult>')
        elif self.command == "PUT":
            objects[key] = body
            self._say(200, ETag=f'"{hashlib.md5(body).hexdigest()}"')
        elif key not in objects:
            self._say(404, _error("NoSuchKey"))
        else:
            self._get(objects[key])

    def _get(self, data: bytes) -> None:
        tag = f'"{hashlib.md5(data).hexdigest()}"'
        wanted = self.headers.get("Range", "")
        if self.command == "GET" and wanted.startswith("bytes="):
            first, _, last = wanted.removeprefix("bytes=").partition("-")
            piece = data[int(first) : int(last) + 1 if last else None]
            span = f"bytes {first}-{int(first) + len(piece) - 1}/{len(data)}"
            self._say(206, piece, ETag=tag, Content_Range=span)
        elif self.command == "HEAD":
            self._say(200, ETag=tag, Content_Length=str(len(data)), Accept_Ranges="bytes")
        else:
            self._say(200, data, ETag=tag)

    def _list(self, objects: dict[str, bytes], query: dict[str, str]) -> None:
        keys = sorted(k for k in objects if k.startswith(query.get("prefix", "")) and k > query.get("continuation-token", ""))
        page, more = keys[:PAGE], len(keys) > PAGE
        rows = "".join(
            f"<Contents><Key>{escape(k)}</Key><Size>{len(objects[k])}</Size>"
            f'<ETag>"{hashlib.md5(objects[k]).hexdigest()}"</ETag></Contents>'
            for k in page
        )
        following = f"<NextContinuationToken>{escape(page[-1])}</NextContinuationToken>" if more else ""
        self._say(
            200,
            f"<ListBucketResult><IsTruncated>{str(more).lower()}</IsTruncated>{following}{rows}</ListBucketResult>".encode(),
            Content_Type="application/xml",
        )

    do_GET = do_PUT = do_POST = do_HEAD = _do

    def log_message(self, *_args: object) -> None:
        """Say nothing."""


@contextmanager
def serving() -> Iterator[S3]:
    """Serve on loopback for the time of the block."""
    s3 = S3()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.s3 = s3  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    s3.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield s3
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
