"""Posts news to a webhook: one JSON body with `text`, as chat services read it, and the same in fields.

The URL is a secret: it stands in a file of its own, is read when it is needed, and gets into no record, message or error.
"""

from __future__ import annotations

import http.client
import json
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from attuner.core.errors import Refused, Transient, UserError
from attuner.core.news import News

TIMEOUT_S = 5.0
TRIES = 3
PAUSE_S = 1.0
HERE = "ATTUNER_WEBHOOK_FILE"


class _Stay(urllib.request.HTTPRedirectHandler):
    """Follows no redirect: what is posted to a secret address goes nowhere else."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


class Webhook:
    """Where news are posted to."""

    def __init__(self, file: Path, *, tries: int = TRIES, sleep: Callable[[float], None] = time.sleep) -> None:
        """Use the URL in this file.

        Raises:
            UserError: the file holds no http or https address.
        """
        self._file, self._tries, self._sleep = file, tries, sleep
        self._url()

    def _url(self) -> str:
        try:
            url = self._file.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError):
            raise UserError(f"{HERE}: {self._file}: can't be read") from None
        if len(url.split()) != 1 or not _address(url):
            raise UserError(f"{HERE}: {self._file}: holds no address; one line, https://…")
        return url

    def post(self, news: News) -> None:
        """Post one piece of news; a busy or silent server is tried again.

        Raises:
            Transient: nobody took it.
            Refused: the server won't take it, however often it is asked.
            UserError: the file's address is no address any more.
        """
        body = json.dumps(news.body(), ensure_ascii=False).encode()
        why = ""
        for attempt in range(self._tries):
            if attempt:
                self._sleep(PAUSE_S * attempt)
            why = self._once(body)
            if not why:
                return
            if why.startswith("4") and why[:3] not in ("408", "429"):
                raise Refused(f"webhook: {why}")  # it will say the same again
        raise Transient(f"webhook: {why}")

    def _once(self, body: bytes) -> str:
        """Return '' once the server took it, else why not; the reason never holds the address."""
        opener, url = urllib.request.build_opener(_Stay), self._url()
        try:
            request = urllib.request.Request(url, data=body, headers={"Content-Type": "application/json"}, method="POST")
            with opener.open(request, timeout=TIMEOUT_S) as answer:
                answer.read(1024)
            return ""
        except urllib.error.HTTPError as error:
            return f"{error.code} from the server"
        except (urllib.error.URLError, http.client.HTTPException, TimeoutError, OSError, ValueError) as error:
            return f"no answer ({type(error).__name__})"


def _address(url: str) -> bool:
    """Tell whether this is an address to post to; what Python says of a bad one quotes it, so that is never passed on."""
    try:
        parts = urllib.parse.urlsplit(url)
        port = parts.port
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(parts.hostname) and port != 0
