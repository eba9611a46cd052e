"""The Kubernetes API as the launcher sees it: one call with patience, one stream, and errors that say what to mend.

A refused connection, 429 and 5xx are asked again with a growing pause, as the server's Retry-After says, until the patience
is spent: then contact is lost (Transient). 403 is a right that is missing, by name. Nothing else is retried: a create has
its name decided beforehand, so asking twice can't launch twice.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import urllib3.exceptions

from attuner.core.errors import Transient, UserError
from attuner.core.kube import KubeSpec

ROLE = "configs/kube/role.yaml"
CLUSTER_ROLE = "configs/kube/capacity.yaml"
GROUP, VERSION = "ray.io", "v1"
TIMEOUT = (5.0, 20.0)
"""Seconds to connect and to answer."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.2, 5.0


@dataclass(frozen=True)
class Right:
    """One thing that an account may be allowed to do."""

    verb: str
    resource: str
    group: str = ""
    cluster: bool = False
    """Whether it is a right on the whole cluster; those are optional."""

    def words(self) -> str:
        """Return it as people say it."""
        return f"{self.verb} {self.resource}" + (f".{self.group}" if self.group else "")


CREATE_JOB = Right("create", "rayjobs", GROUP)
GET_JOB = Right("get", "rayjobs", GROUP)
LIST_JOBS = Right("list", "rayjobs", GROUP)
WATCH_JOBS = Right("watch", "rayjobs", GROUP)
DELETE_JOB = Right("delete", "rayjobs", GROUP)
CREATE_SHIP = Right("create", "configmaps")
LIST_PODS = Right("list", "pods")
WATCH_PODS = Right("watch", "pods")
READ_LOG = Right("get", "pods/log")
LIST_EVENTS = Right("list", "events")
LIST_QUOTAS = Right("list", "resourcequotas")
GET_CLAIM = Right("get", "persistentvolumeclaims")
GET_QUEUE = Right("get", "localqueues", "kueue.x-k8s.io")
LIST_NODES = Right("list", "nodes", cluster=True)
GET_CRD = Right("get", "customresourcedefinitions", "apiextensions.k8s.io", cluster=True)
NEEDED = (CREATE_JOB, GET_JOB, LIST_JOBS, WATCH_JOBS, DELETE_JOB, CREATE_SHIP, LIST_PODS, WATCH_PODS)
"""Without these nothing can be launched."""
HELPFUL = (READ_LOG, LIST_EVENTS, LIST_QUOTAS, GET_CLAIM, GET_QUEUE)
"""Without these the launcher knows less of why something does not start. They stand in the Role all the same."""
OPTIONAL = (LIST_NODES, GET_CRD)
"""Rights on the whole cluster, in a ClusterRole of their own."""


@dataclass(frozen=True)
class Answer:
    """Status and body of one answer."""

    status: int
    body: dict[str, Any] = field(default_factory=dict)
    text: str = ""

    @property
    def ok(self) -> bool:
        """Tell whether it succeeded."""
        return 200 <= self.status <= 299


class KubeApi:
    """The client of one cluster file; nothing is contacted before the first call.

    Args:
        spec: where the cluster is.
        patience_s: how long a call may be asked again before contact counts as lost.
    """

    def __init__(self, spec: KubeSpec, *, patience_s: float = 20.0) -> None:
        self.spec, self.patience_s = spec, patience_s
        self._client: Any = None
        self._lock = threading.Lock()

    def core(self) -> Any:
        """Return the API of pods, events and the like."""
        from kubernetes import client

        return client.CoreV1Api(self._connected())

    def custom(self) -> Any:
        """Return the API of custom resources."""
        from kubernetes import client

        return client.CustomObjectsApi(self._connected())

    def extensions(self) -> Any:
        """Return the API of custom resource definitions."""
        from kubernetes import client

        return client.ApiextensionsV1Api(self._connected())

    def reviews(self) -> Any:
        """Return the API that answers what this account may do."""
        from kubernetes import client

        return client.AuthorizationV1Api(self._connected())

    def rayjobs(self) -> dict[str, Any]:
        """Return what addresses RayJobs of the namespace."""
        return {"group": GROUP, "version": VERSION, "namespace": self.spec.namespace, "plural": "rayjobs"}

    def _connected(self) -> Any:
        with self._lock:
            if self._client is None:
                self._client = connect(self.spec)
            return self._client

    def call(
        self,
        right: Right,
        method: Callable[..., Any],
        *args: Any,
        ok: tuple[int, ...] = (),
        patience_s: float | None = None,
        **more: Any,
    ) -> Answer:
        """Call one method of the official client, and again while the server is away or busy.

        Args:
            right: what it needs, for the message if it is not allowed.
            method: of one of the APIs above.
            ok: statuses that are answers here, not errors (404, 409, 403).
            patience_s: instead of the client's own.

        Raises:
            Transient: no usable answer within the patience.
            UserError: refused, or not understood.
        """
        deadline = time.monotonic() + (self.patience_s if patience_s is None else patience_s)
        pause = FIRST_PAUSE_S
        while True:
            wait, why = pause, ""
            try:
                answer, after = _answer(self.stream(method, *args, read_s=TIMEOUT[1], **more))
                if answer.ok or answer.status in ok:
                    return answer
                if answer.status != 429 and answer.status < 500:
                    raise refusal(right, answer, self.spec)
                why, wait = f"it answers {answer.status}: {said(answer)}", max(pause, after)
            except (urllib3.exceptions.HTTPError, OSError) as error:
                why = _line(error)
            if time.monotonic() + wait > deadline:
                raise Transient(f"Kubernetes: can't {right.words()}: {why}") from None
            time.sleep(wait)
            pause = min(pause * 2, LONGEST_PAUSE_S)

    def stream(self, method: Callable[..., Any], *args: Any, read_s: float, **more: Any) -> Any:
        """Make one request and return the raw answer, whatever its status; its body is not read yet."""
        from kubernetes.client import ApiException

        try:
            return method(*args, _preload_content=False, _request_timeout=(TIMEOUT[0], read_s), **more)
        except ApiException as error:  # what some methods do for a status that is not 2xx, others return
            return _Refused(error)

    def close(self) -> None:
        """Let go of the connections."""
        with self._lock:
            if self._client is not None:
                self._client.rest_client.pool_manager.clear()


def connect(spec: KubeSpec) -> Any:
    """Return a client by kubeconfig, or by the account of the pod that this runs in.

    Raises:
        UserError: neither is there.
    """
    from kubernetes import client, config

    settings = client.Configuration()
    try:
        try:
            config.load_kube_config(  # type: ignore[no-untyped-call]
                config_file=spec.kubeconfig or None,
                context=spec.context or None,
                client_configuration=settings,
                persist_config=False,
            )
        except config.ConfigException:
            if spec.kubeconfig or spec.context:
                raise
            config.load_incluster_config(client_configuration=settings)  # type: ignore[no-untyped-call]
    except (config.ConfigException, OSError) as error:
        where = spec.kubeconfig or "KUBECONFIG, ~/.kube/config and the pod's service account"
        raise UserError(f"kube.kubeconfig: {where}: {_line(error)}; name a kubeconfig, or run inside the cluster") from None
    settings.retries = False  # our own patience, which says when contact is lost
    settings.connection_pool_maxsize = 16
    return client.ApiClient(settings)


class _Refused:
    """An error of the client, as an answer."""

    def __init__(self, error: Any) -> None:
        self.status, self.headers = int(error.status or 500), error.headers or {}
        self.data = str(error.body or error.reason or "").encode()

    def release_conn(self) -> None:
        """Nothing is held."""

    def close(self) -> None:
        """Nothing is held."""


def _answer(response: Any) -> tuple[Answer, float]:
    """Return the answer, and how long the server asks to wait."""
    try:
        data = bytes(response.data or b"")
        status = int(response.status)
    finally:
        response.release_conn()
    try:
        body = json.loads(data) if data else {}
    except ValueError:
        body = {}
    return Answer(status, body if isinstance(body, dict) else {}, data.decode(errors="replace")), wait_of(response)


def wait_of(response: Any) -> float:
    """Return how long the server asks to wait, in seconds."""
    after = str(response.headers.get("Retry-After", ""))
    return float(after) if after.isdigit() else 0.0


def said(answer: Answer) -> str:
    """Return the server's own words, on one line."""
    return _line(answer.body.get("message") or answer.text)


def refusal(right: Right, answer: Answer, spec: KubeSpec) -> UserError:
    """Return the one line for a person: what the server refused, and how to mend it."""
    words, told = right.words(), said(answer)
    if answer.status == 401:
        return UserError(f"Kubernetes refuses the credentials ({told}); log in again, or mend kube.kubeconfig")
    if answer.status == 403 and "exceeded quota" in told:
        return UserError(f"namespace {spec.namespace}: {told}; ask for less, or for a larger ResourceQuota")
    if answer.status == 403:
        role = CLUSTER_ROLE if right.cluster else ROLE
        return UserError(f"namespace {spec.namespace}: the right to {words} is missing; apply {role} ({told})")
    if answer.status == 404:
        return UserError(
            f"namespace {spec.namespace}: can't {words}: not found; is KubeRay installed, and is the namespace right? ({told})"
        )
    return UserError(f"namespace {spec.namespace}: can't {words}: {told}")


def _line(error: object) -> str:
    return " ".join(str(error).split())[:400]
