"""Requests to a Ray cluster: its job API and what it says of its nodes, with token, certificates and a bound on every wait.

Secrets are read from their files when a request is made; they are in no record, argument, log or message. What goes wrong is told
apart: the job is unknown to Ray (LookupError), contact is lost or the server is in trouble (Transient), this machine is set up
wrongly (UserError).
"""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

from attuner.core.access import Access
from attuner.core.errors import Transient, UserError

NO_SUCH_JOB = "does not exist"
"""Ray's own words with its 404; a proxy's 404 says nothing about a job."""


class RayClient:
    """One cluster's API.

    Args:
        access: address and files of secrets.
        timeout_s: how long one request may wait; Ray's own client would wait for ever.
        headers: more headers, e.g. of a local Ray.
    """

    def __init__(self, access: Access, *, timeout_s: float, headers: dict[str, str] | None = None) -> None:
        from ray.exceptions import AuthenticationError
        from ray.job_submission import JobSubmissionClient  # 0.6 s, so only when something is launched

        class Client(JobSubmissionClient):
            def _do_request(self, *args: Any, **kwargs: Any) -> Any:
                return super()._do_request(*args, **{"timeout": timeout_s, **kwargs})

        for handler in logging.getLogger("ray").handlers:
            handler.setLevel(logging.WARNING)  # its upload notices are not facts of the campaign

        self.address, self._refused = access.address, AuthenticationError
        secret = {**(headers or {}), **secrets_of(access)}
        verify: str | bool = access.ca or True
        self._client: Any = None
        self._client = self._do("connect", lambda: Client(access.address, headers=secret, verify=verify))

    def call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method of Ray's job client. Raises LookupError, Transient, UserError."""
        return self._do(method, lambda: getattr(self._client, method)(*args, **kwargs))

    def get(self, path: str) -> Any:
        """Return the JSON of a GET request. Raises LookupError, Transient, UserError."""

        def ask() -> Any:
            answer = self._client._do_request("GET", path)
            if answer.status_code != 200:
                raise RuntimeError(f"status code {answer.status_code}: {answer.text[:200]}")
            return answer.json()

        return self._do(path, ask)

    def _do(self, what: str, call: Any) -> Any:
        import requests

        try:
            return call()
        except self._refused as error:
            raise UserError(
                f"Ray at {self.address} refuses this token ({_line(error)[:120]}); ATTUNER_RAY_TOKEN_FILE names the file with it"
            ) from None
        except RuntimeError as error:  # the client raises this for every answer that is not 200
            text = _line(error)
            if NO_SUCH_JOB in text and "404" in text:
                raise LookupError(text) from None
            if "already exists" in text:  # a submit that was cut off before its answer: attach
                return None
            if any(f"status code {code}" in text for code in (401, 403)):
                raise UserError(f"Ray at {self.address} refuses {what}: {text}; see ATTUNER_RAY_TOKEN_FILE") from None
            raise Transient(f"Ray refused {what}: {text}") from None
        except ValueError as error:  # no JSON: something else answers there
            raise Transient(f"Ray at {self.address} answers {what} with no JSON: {_line(error)}") from None
        except OSError as error:  # requests' errors are of this kind
            if (untrusted := _caused_by(error, requests.exceptions.SSLError)) is not None:
                raise UserError(
                    f"Ray at {self.address}: no trust in its certificate ({_reason(untrusted)}); check it with ATTUNER_RAY_CA"
                ) from None
            raise Transient(f"contact with Ray lost in {what}: {_line(error)}") from None


def secrets_of(access: Access) -> dict[str, str]:
    """Return the headers that the files of secrets give. Raises UserError for a file that can't be used."""
    headers: dict[str, str] = {}
    if access.headers_file:
        try:
            given = json.loads(Path(access.headers_file).read_text())
        except (OSError, ValueError) as error:
            raise UserError(f"ATTUNER_RAY_HEADERS_FILE: {access.headers_file}: {_kind(error)}") from None
        if not isinstance(given, dict) or not all(isinstance(v, str) for v in given.values()):
            raise UserError(f"ATTUNER_RAY_HEADERS_FILE: {access.headers_file}: expected one JSON object of names and texts")
        headers |= given
    if access.token_file:
        try:
            token = Path(access.token_file).read_text().strip()
        except (OSError, ValueError) as error:
            raise UserError(f"ATTUNER_RAY_TOKEN_FILE: {access.token_file}: {_kind(error)}") from None
        if not token or len(token.split()) != 1 or not token.isascii():
            raise UserError(f"ATTUNER_RAY_TOKEN_FILE: {access.token_file}: expected one token and nothing else")
        if access.address.startswith("http://") and not access.address.startswith(("http://127.", "http://localhost")):
            logging.getLogger(__name__).warning(
                "the token goes to %s unencrypted: use https:// outside of a trusted network", access.address
            )
        headers["Authorization"] = f"Bearer {token}"
    return headers


def _kind(error: BaseException) -> str:
    """Return what went wrong with a file, without a word of what is in it."""
    return (error.strerror or "can't be read") if isinstance(error, OSError) else "is not what it should be"


def _caused_by(error: BaseException | None, kind: type[BaseException]) -> BaseException | None:
    """Return the error of this kind that led to another one: Ray's client turns all of them into ConnectionError."""
    while error is not None and not isinstance(error, kind):
        error = error.__cause__ or error.__context__
    return error


def _reason(error: BaseException) -> str:
    text = _line(error)
    return text[text.find("[SSL") :][:120] if "[SSL" in text else text[:120]


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300]
