"""Follows one attempt: its RayJob and its pods, by list and watch, each in a thread of its own, written down as it is seen.

A watch that ends is opened again at the version it had come to; one that has expired (410) begins with a fresh list, whose
missing pods ended unseen. While the server is away nothing is concluded: what was known stays known, and `away_s` grows.
"""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import urllib3.exceptions

from attuner.core.errors import Transient, UserError
from attuner.launchers.kuberay.api import (
    FIRST_PAUSE_S,
    LIST_JOBS,
    LIST_PODS,
    LONGEST_PAUSE_S,
    WATCH_JOBS,
    WATCH_PODS,
    Answer,
    KubeApi,
    Right,
    refusal,
    wait_of,
)
from attuner.launchers.kuberay.manifest import ATTEMPT
from attuner.launchers.kuberay.pods import PodLog, read_pod

WATCH_S = 240
"""How long the server keeps one watch open."""
SILENCE_S = 100.0
"""A watch without a word for this long (bookmarks come about every minute) is opened again."""
LIST_S = 30.0
"""How long a list is asked for again before the pause grows."""
KEPT = (
    "jobDeploymentStatus",
    "jobStatus",
    "reason",
    "message",
    "startTime",
    "endTime",
    "rayClusterName",
    "jobId",
    "succeeded",
    "failed",
)
GONE = 410


@dataclass
class View:
    """What is known of an attempt now."""

    synced: bool
    """Both lists have been read at least once."""
    job: dict[str, Any] | None
    pods: list[dict[str, Any]] = field(default_factory=list)
    """Every pod that was seen, with `seen`, and `gone` for those that are no more."""
    away_s: float = 0.0
    """For how long the server has not answered."""
    why: str = ""


class Feed(threading.Thread):
    """List and watch of one kind of object; hands on what it sees."""

    def __init__(
        self,
        method: Callable[[], Callable[..., Any]],
        where: dict[str, Any],
        rights: tuple[Right, Right],
        api: KubeApi,
        *,
        listed: Callable[[list[dict[str, Any]]], None],
        changed: Callable[[str, dict[str, Any]], None],
    ) -> None:
        super().__init__(daemon=True, name=f"attuner-watch-{rights[0].resource}")
        self._method, self._where, self._rights, self._api = method, where, rights, api
        self._listed, self._changed = listed, changed
        self._ending, self._response = threading.Event(), None
        self.synced = threading.Event()
        self.fatal: UserError | None = None
        self.lost_at: float | None = time.monotonic()
        """Since when the server has not answered; None: it does."""
        self.why = "not contacted yet"

    def run(self) -> None:
        """Follow until stopped."""
        version, pause = "", FIRST_PAUSE_S
        while not self._ending.is_set():
            try:
                if not version:
                    version = self._list()
                version = self._follow(version)
                pause = FIRST_PAUSE_S
            except UserError as error:
                self.fatal = error
                return
            except (Transient, urllib3.exceptions.HTTPError, OSError, ValueError, AttributeError) as error:
                if self._ending.is_set():
                    return
                self._lost(error)
                self._ending.wait(pause)
                pause = min(pause * 2, LONGEST_PAUSE_S)

    def _lost(self, error: Exception) -> None:
        self.why = " ".join(str(error).split())[:200]
        if self.lost_at is None:
            self.lost_at = time.monotonic()

    def _list(self) -> str:
        if self.lost_at is None:
            self.lost_at = time.monotonic()  # until it answers
        body = self._api.call(self._rights[0], self._method(), **self._where, patience_s=LIST_S).body
        self._listed(list(body.get("items", [])))
        self.lost_at = None
        self.synced.set()
        return str(body["metadata"]["resourceVersion"])

    def _follow(self, version: str) -> str:
        """Read one watch to its end; return the version it came to, '' if it has expired."""
        response = self._api.stream(
            self._method(),
            read_s=SILENCE_S,
            **self._where,
            watch=True,
            resource_version=version,
            allow_watch_bookmarks=True,
            timeout_seconds=WATCH_S,
        )
        self._response = response
        try:
            if response.status == GONE:
                return ""
            if response.status in (401, 403):
                raise refusal(self._rights[1], Answer(response.status), self._api.spec)
            if response.status != 200:
                self._ending.wait(wait_of(response))
                raise Transient(f"{self._rights[1].words()}: it answers {response.status}")
            self.lost_at = None
            for event in _events(response):
                kind, found = event["type"], event["object"]
                if kind == "ERROR":
                    if found.get("code") == GONE:
                        return ""
                    raise Transient(f"{self._rights[1].words()}: {found.get('message')}")
                version = str(found["metadata"]["resourceVersion"])
                self._changed(kind, found)
        except urllib3.exceptions.ReadTimeoutError:
            return version  # silent: opened again where it was
        finally:
            self._response = None
            response.close()
        return version

    def stop(self) -> None:
        """Stop following; a read that waits is ended."""
        self._ending.set()
        connection = getattr(self._response, "connection", None)
        sock = getattr(connection, "sock", None)
        if sock is not None:
            try:
                sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                return


def _events(response: Any) -> Iterator[dict[str, Any]]:
    """Yield the events of a stream, one JSON document a line."""
    rest = b""
    for chunk in response.stream(amt=None, decode_content=False):
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            if line.strip():
                yield json.loads(line)


class Watcher:
    """The two feeds of one attempt, and the file they fill."""

    def __init__(self, api: KubeApi, name: str, folder: Path, *, now: Callable[[], float] = time.time) -> None:
        self.log = PodLog(folder)
        self._name, self._key, self._now = name, api.spec.gpu_key, now
        self._lock = threading.Lock()
        self._job: dict[str, Any] | None = None
        self._pods = {p.uid: _remembered(p) for p in self.log.all()}
        chosen = f"{ATTEMPT}={name}"
        self._jobs_feed = Feed(
            lambda: api.custom().list_namespaced_custom_object,
            {**api.rayjobs(), "label_selector": chosen},
            (LIST_JOBS, WATCH_JOBS),
            api,
            listed=self._jobs_listed,
            changed=self._job_changed,
        )
        self._pods_feed = Feed(
            lambda: api.core().list_namespaced_pod,
            {"namespace": api.spec.namespace, "label_selector": chosen},
            (LIST_PODS, WATCH_PODS),
            api,
            listed=self._pods_listed,
            changed=self._pod_changed,
        )
        for feed in self._feeds():
            feed.start()

    def _feeds(self) -> tuple[Feed, Feed]:
        return (self._jobs_feed, self._pods_feed)

    def _jobs_listed(self, items: list[dict[str, Any]]) -> None:
        with self._lock:
            self._take_job(next((x for x in items if x["metadata"]["name"] == self._name), None))

    def _job_changed(self, kind: str, found: dict[str, Any]) -> None:
        with self._lock:
            if kind != "BOOKMARK":
                self._take_job(None if kind == "DELETED" else found)

    def _take_job(self, found: dict[str, Any] | None) -> None:
        self._job = found
        if found is not None:
            status = found.get("status") or {}
            self.log.see_job({k: status[k] for k in KEPT if status.get(k) not in (None, "")}, self._now())

    def listed(self, body: dict[str, Any]) -> None:
        """Take in a fresh list of the pods: what a watch has not told of yet, and what it has missed."""
        items, version = list(body.get("items", [])), _version(body)
        with self._lock:  # a pod that is younger than the list is not missing from it
            younger = [p for p in self._pods.values() if "gone" not in p and _version(p) > version]
        uids = {x["metadata"]["uid"] for x in items}
        self._pods_listed([*items, *(p for p in younger if p["metadata"]["uid"] not in uids)])

    def _pods_listed(self, items: list[dict[str, Any]]) -> None:
        with self._lock:
            now, watched = self._now(), self.log.last
            for found in items:
                self._take_pod(found, now, deleted=False)
            present = {x["metadata"]["uid"] for x in items}
            self.log.missing(present, now, watched=watched)
            for uid in self._pods.keys() - present:
                self._pods[uid].setdefault("gone", now)

    def _pod_changed(self, kind: str, found: dict[str, Any]) -> None:
        with self._lock:
            now = self._now()
            if kind != "BOOKMARK":
                self._take_pod(found, now, deleted=kind == "DELETED")
            self.log.alive(now)

    def _take_pod(self, found: dict[str, Any], now: float, *, deleted: bool) -> None:
        uid = found["metadata"]["uid"]
        self._pods[uid] = {**found, "seen": now, **({"gone": now} if deleted else {})}
        self.log.see(read_pod(found, key=self._key, now=now, deleted=deleted), now)

    def refresh(self) -> None:
        """Look again at pods whose end is a matter of time alone: those that should have gone long ago."""
        with self._lock:
            now = self._now()
            for found in list(self._pods.values()):
                if "gone" not in found and found.get("metadata", {}).get("deletionTimestamp"):
                    self.log.see(read_pod(found, key=self._key, now=now), now)

    def view(self, *, wait_s: float = 0.0) -> View:
        """Return what is known now; waits up to `wait_s` for the first lists. Raises UserError for a right that is missing."""
        deadline = time.monotonic() + wait_s
        for feed in self._feeds():
            while not feed.synced.wait(max(min(0.05, deadline - time.monotonic()), 0.0)) and feed.fatal is None:
                if time.monotonic() >= deadline:
                    break
            if feed.fatal is not None:
                raise feed.fatal
        self.refresh()
        lost = [f for f in self._feeds() if f.lost_at is not None]
        away = max((time.monotonic() - f.lost_at for f in lost if f.lost_at is not None), default=0.0)
        with self._lock:
            synced = all(f.synced.is_set() for f in self._feeds())
            return View(synced, self._job, list(self._pods.values()), away, lost[0].why if lost else "")

    def close(self) -> None:
        """Stop following."""
        for feed in self._feeds():
            feed.stop()
        for feed in self._feeds():
            feed.join(timeout=2.0)


def _version(found: dict[str, Any]) -> int:
    """Return a resourceVersion as the growing number that it is in every API server there is; 0 if it is none."""
    version = str(found.get("metadata", {}).get("resourceVersion", ""))
    return int(version) if version.isdigit() else 0


def _remembered(pod: Any) -> dict[str, Any]:
    """Return a pod of an earlier watch, as far as reasons need it."""
    status: dict[str, Any] = {"phase": "Failed" if pod.reason else pod.phase, "reason": pod.reason}
    found = {
        "metadata": {"name": pod.name, "uid": pod.uid, "labels": {"ray.io/node-type": pod.role}},
        "spec": {"nodeName": pod.node},
        "status": status,
    }
    return {**found, "gone": pod.gone} if pod.gone is not None else found
