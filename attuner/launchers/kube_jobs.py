"""Launches attempts as RayJobs on Kubernetes: one attempt, one RayJob, one Ray cluster, one charge from its pods.

The name is the submission id, so a create that is asked twice makes one RayJob; one that exists is attached to if it is
ours. How an attempt ended is decided once and written into its folder; then the RayJob is deleted, and the attempt counts as
done when its last pod has given its devices back.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from attuner.core.campaign import Cluster
from attuner.core.errors import Transient, UserError
from attuner.core.run import Attempt
from attuner.launchers.kuberay import capacity, checks, manifest
from attuner.launchers.kuberay.api import (
    CREATE_JOB,
    CREATE_SHIP,
    DELETE_JOB,
    GET_JOB,
    LIST_EVENTS,
    LIST_PODS,
    READ_LOG,
    KubeApi,
)
from attuner.launchers.kuberay.pods import PodLog, stamp_of
from attuner.launchers.kuberay.preflight import Preflight
from attuner.launchers.kuberay.reasons import Reason, assess
from attuner.launchers.kuberay.verdict import Verdict, judge, words
from attuner.launchers.kuberay.watch import View, Watcher
from attuner.launchers.ray_jobs import GONE_S, LAG_S, job_document
from attuner.launchers.run_folder import Stamps, read_stamps, write_job
from attuner.launchers.storage import RunStorage, open_store
from attuner.ports import JobSpec, JobState, RunFiles, Stamp
from attuner.runner import files

AWAY_S = 60.0
"""The server may be away this long before contact counts as lost."""
RELEASE_S = 180.0
"""Pods that hold devices this long after the attempt's end are no longer waited for in one go."""
OVER = ("SUCCEEDED", "FAILED", "STOPPED")
EVENTS_S = 5.0
LIST_S, JOB_S = 0.5, 2.0
FIRST_LISTS_S = 15.0


class KubeRay:
    """The launcher `kuberay`.

    Args:
        cluster: the devices, with `kube`.
        folder: the campaign's folder.
        runner: folder of the runner's sources.
        storage_mount: where this machine sees the cluster's `storage`, if elsewhere.
        away_s: see AWAY_S.
        lag_s: see LAG_S.
        api: instead of one made from the cluster file.
    """

    def __init__(
        self,
        cluster: Cluster,
        folder: Path,
        *,
        runner: Path,
        storage_mount: str = "",
        away_s: float = AWAY_S,
        lag_s: float = LAG_S,
        api: KubeApi | None = None,
    ) -> None:
        self._cluster, self._runner = cluster, runner
        self._kube = manifest.kube_of(cluster)
        self._api = api or KubeApi(self._kube)
        self._away_s, self._lag_s = away_s, lag_s
        store = open_store(cluster.storage, mount=storage_mount) if cluster.storage else None
        self._storage = RunStorage(store, folder, scratch=cluster.scratch) if store else None
        self._watchers: dict[str, Watcher] = {}
        self._preflight = Preflight(self._api, cluster)
        self._events: dict[str, list[dict[str, Any]]] = {}
        self._doubts: dict[str, float] = {}
        self._ending: dict[str, float] = {}
        self._asked: dict[tuple[str, str], float] = {}
        self._beats: dict[str, tuple[float | None, float]] = {}

    # ------------------------------------------------------------------------------------------ submission

    def submit(self, attempt: Attempt, job: JobSpec) -> Attempt:
        """Create the RayJob, or attach to the one that is this attempt; see ports.Launcher.

        Raises:
            UserError: a right is missing, a quota or the nodes can never hold it, or the name is somebody else's.
        """
        where = attempt.model_copy(update={"address": f"kube:{self._kube.namespace}/{attempt.submission_id}"})
        if self._log_of(attempt).ended:
            return where
        document, body, package = self._written(attempt, job)
        found = self._get(attempt)
        if found is None and not self._begun(attempt):
            found = self._create(attempt, body)
        if found is None:  # it ran, and is gone: poll says so
            return where
        if not manifest.is_ours(found, body):
            raise UserError(
                f"namespace {self._kube.namespace}: RayJob {attempt.submission_id} exists and is not this attempt; "
                "delete it if nobody needs it, then resume"
            )
        owner = {"name": found["metadata"]["name"], "uid": found["metadata"]["uid"]}
        self._send(manifest.ship(attempt, self._kube.namespace, document, package, owner=owner))
        return where

    def _written(self, attempt: Attempt, job: JobSpec) -> tuple[dict[str, Any], dict[str, Any], bytes]:
        """Return job document, RayJob and runner package of an attempt. Raises UserError for what can't be sent."""
        document = job_document(job, attempt, self._cluster)
        if self._storage is not None:
            document = self._storage.share(document)
        write_job(Path(attempt.folder), document)
        package = manifest.runner_zip(self._runner)
        run_dir = self._storage.folder(attempt.folder) if self._storage else attempt.folder
        prefer = self._prefer(attempt, job, document, run_dir)
        body = manifest.rayjob(
            attempt,
            job,
            self._cluster,
            document=document,
            package=manifest.zip_name(package),
            run_dir=run_dir,
            prefer=prefer,
            avoid=list(document.get("exclude_nodes") or []),
        )
        wrong = checks.problems(body)
        if wrong:
            raise UserError(f"cluster {self._cluster.name}: {wrong[0]}")
        return document, body, package

    def _prefer(self, attempt: Attempt, job: JobSpec, document: dict[str, Any], run_dir: str) -> list[str]:
        offset = document.get("placement_offset")
        nodes = self._preflight.nodes() if offset is not None else None
        if not nodes:
            return []
        bare = manifest.rayjob(attempt, job, self._cluster, document=document, package="", run_dir=run_dir, prefer=[], avoid=[])
        return capacity.preferred(nodes, bare, key=self._kube.gpu_key, offset=offset)

    def _begun(self, attempt: Attempt) -> bool:
        """Tell whether this attempt has ever run, whatever became of its RayJob."""
        log = self._watcher(attempt).log
        return bool(log.job or log.pods) or self._stamps(attempt).started()

    def _get(self, attempt: Attempt) -> dict[str, Any] | None:
        method = self._api.custom().get_namespaced_custom_object
        answer = self._api.call(GET_JOB, method, **self._api.rayjobs(), name=attempt.submission_id, ok=(404,))
        return answer.body if answer.ok else None

    def _create(self, attempt: Attempt, body: dict[str, Any]) -> dict[str, Any] | None:
        """Check and create; return the RayJob that has the name then, whoever made it."""
        self._preflight.schema(body)
        method = self._api.custom().create_namespaced_custom_object
        call: dict[str, Any] = {**self._api.rayjobs(), "body": body, "field_validation": "Strict"}
        self._api.call(CREATE_JOB, method, **call, dry_run="All", ok=(409,))
        self._preflight.room(body)
        answer = self._api.call(CREATE_JOB, method, **call, ok=(409,))
        return answer.body if answer.ok else self._get(attempt)

    def _send(self, ship: dict[str, Any]) -> None:
        """Create the ConfigMap; pods wait for it. It is the RayJob's, so that it goes with it and nobody must delete it."""
        wrong = checks.oversized(ship)
        if wrong:
            raise UserError(wrong)
        method = self._api.core().create_namespaced_config_map
        self._api.call(CREATE_SHIP, method, self._kube.namespace, body=ship, ok=(409,))

    # ------------------------------------------------------------------------------------------ following

    def _watcher(self, attempt: Attempt) -> Watcher:
        name = attempt.submission_id
        if name not in self._watchers:
            self._watchers[name] = Watcher(self._api, name, Path(attempt.folder))
        return self._watchers[name]

    def _stamps(self, attempt: Attempt, *, final: bool = False) -> Stamps:
        if self._storage is not None:
            self._storage.fetch(attempt.folder, final=final)
        return read_stamps(Path(attempt.folder))

    def poll(self, attempt: Attempt) -> JobState:
        """Return the state; see ports.Launcher. The server is asked for little that its watch has not told."""
        if (done := _closed(self._log_of(attempt))) is not None:
            return done
        watcher = self._watcher(attempt)
        view = watcher.view(wait_s=FIRST_LISTS_S)
        if not view.synced or view.away_s > self._away_s:
            raise Transient(f"Kubernetes has not answered for {view.away_s:.0f} s: {view.why}")
        if view.job is None:
            view.job = self._get(attempt)  # the watch may be a moment behind a create; only an answer of 404 proves absence
        if not watcher.log.ended:
            verdict, going = self._judged(attempt, watcher, view)
            if verdict is None:
                return going
            self._forbid(attempt)
            watcher.log.end(time.time(), verdict.data())
        return self._released(attempt, watcher, view)

    def _judged(self, attempt: Attempt, watcher: Watcher, view: View) -> tuple[Verdict | None, JobState]:
        """Return how the attempt ended, if it did, and the state of one that goes on."""
        verdict, reason, stamp = self._judge(attempt, view)
        if verdict is not None and not stamp.outcome:
            # nobody has heard the driver's last word, and what was heard of Kubernetes may be late: ask anew
            view.job = self._get(attempt)
            verdict, reason, stamp = self._judge(attempt, view, final=True)
            status = (view.job or {}).get("status") or watcher.log.job
            since = self._doubts.setdefault(attempt.submission_id, time.monotonic())
            late = status.get("jobStatus") in OVER and time.monotonic() - since < self._lag_s
            if verdict is not None and not stamp.outcome and late:
                return None, JobState(phase="ending", detail="its last stamps are not here yet")
        if verdict is not None and verdict.phase == "failed" and reason is not None and reason.kind == "container":
            verdict = verdict.model_copy(update={"detail": self._with_log(verdict.detail, view)})
        phase = words(view.job or {}, stamp)
        return verdict, JobState(phase=phase, detail=reason.line if reason and phase != "running" else "")

    def _judge(self, attempt: Attempt, view: View, *, final: bool = False) -> tuple[Verdict | None, Reason | None, Stamp]:
        stamp = self._stamps(attempt, final=final).stamp()
        reason = self._reason(attempt, view, stamp)
        return judge(view.job, reason, stamp, now=time.time(), queue_timeout_s=self._kube.queue_timeout_s), reason, stamp

    def _reason(self, attempt: Attempt, view: View, stamp: Stamp) -> Reason | None:
        """Return what stands in the way; events are asked for while it does not run."""
        if view.job is None:
            return None
        begun = stamp.allocated_at is not None and not stamp.outcome
        still_s = self._still_s(attempt, stamp) if begun else 0.0
        if still_s > GONE_S:
            return Reason("silent", f"its driver's heartbeat stands still for {still_s:.0f} s", final=True, lost=True)
        events = [] if begun else self._told(attempt)
        now, patience_s = time.time(), self._kube.pull_patience_s
        return assess(view.job, view.pods, events, now=now, pull_patience_s=patience_s, begun=begun)

    def _still_s(self, attempt: Attempt, stamp: Stamp) -> float:
        """Return for how long the heartbeat stands still, by this machine's clock: the cluster's may be another."""
        now, beat = time.monotonic(), stamp.last_heartbeat
        known = self._beats.get(attempt.submission_id)
        if known is None or known[0] != beat:
            self._beats[attempt.submission_id] = known = (beat, now)
        return now - known[1]

    def _told(self, attempt: Attempt) -> list[dict[str, Any]]:
        events = self._events.get(attempt.submission_id, [])
        if not self._due(attempt, "events", EVENTS_S):
            return events
        method = self._api.core().list_namespaced_event
        try:
            answer = self._api.call(LIST_EVENTS, method, self._kube.namespace, ok=(403,), patience_s=0.0)
        except Transient:
            return events
        if answer.status == 403:
            self._preflight.say("events may not be listed here; why a job does not start may stay unknown")
        events = list(answer.body.get("items", []))
        self._events[attempt.submission_id] = events
        return events

    def _with_log(self, detail: str, view: View) -> str:
        """Return a detail with the last line that the failed pod wrote."""
        failed = [p for p in view.pods if p.get("status", {}).get("phase") == "Failed"] or view.pods[-1:]
        if not failed:
            return detail
        method, name = self._api.core().read_namespaced_pod_log, failed[-1]["metadata"]["name"]
        try:
            answer = self._api.call(
                READ_LOG, method, name, self._kube.namespace, tail_lines=5, ok=(400, 403, 404), patience_s=0.0
            )
        except Transient:
            return detail
        last = [x for x in answer.text.splitlines() if x.strip()][-1:] if answer.ok else []
        return f"{detail}; its last line: {last[0].strip()[:200]}" if last else detail

    # ------------------------------------------------------------------------------------------ ending

    def _released(self, attempt: Attempt, watcher: Watcher, view: View) -> JobState:
        """Return the verdict once every device is given back; until then the RayJob is being deleted.

        Raises:
            Transient: pods go on holding devices; calling again waits on.
        """
        if view.job is not None and self._due(attempt, "job", JOB_S):
            view.job = self._get(attempt)  # a watch may have fallen silent
        self._delete(attempt, view)
        verdict = _verdict(watcher.log)
        listed = view.job is None and self._list_pods(attempt, watcher)
        held = [p for p in watcher.log.all() if p.gpus and p.end() is None]
        waited = time.monotonic() - self._ending.setdefault(attempt.submission_id, time.monotonic())
        if listed and not held:
            stamp = self._stamp(attempt, watcher.log, final=True)
            detail = "; ".join(dict.fromkeys(x for x in (verdict.detail, stamp.detail, *stamp.warnings) if x))
            watcher.log.close(time.time(), detail)
            self._watchers.pop(attempt.submission_id).close()
            return JobState(phase=verdict.phase, detail=detail, gone=verdict.lost)
        if waited > RELEASE_S and (held or view.job is not None):
            what = f"{len(held)} pods still hold devices" if held else "its RayJob is still there"
            why = verdict.detail or verdict.phase
            raise Transient(
                f"{attempt.submission_id} has ended ({why}), but {what} after {waited:.0f} s; does KubeRay's operator run?"
            )
        return JobState(phase="releasing", detail=verdict.detail)

    def _list_pods(self, attempt: Attempt, watcher: Watcher) -> bool:
        """Ask for the pods once more before the charge is closed, whatever the watch has told; not more often than need be."""
        if not self._due(attempt, "list", LIST_S):
            return False
        chosen = f"{manifest.ATTEMPT}={attempt.submission_id}"
        answer = self._api.call(LIST_PODS, self._api.core().list_namespaced_pod, self._kube.namespace, label_selector=chosen)
        watcher.listed(answer.body)
        return True

    def _due(self, attempt: Attempt, what: str, every_s: float) -> bool:
        """Tell whether it is time to ask something of the server again."""
        key, now = (attempt.submission_id, what), time.monotonic()
        if now - self._asked.get(key, float("-inf")) < every_s:
            return False
        self._asked[key] = now
        return True

    def _delete(self, attempt: Attempt, view: View) -> None:
        """Ask for the RayJob's deletion, again now and then; its cluster, pods and ConfigMap go with it."""
        if view.job is None or view.job["metadata"].get("deletionTimestamp"):
            return
        if not self._due(attempt, "delete", EVENTS_S):
            return
        name = attempt.submission_id
        method = self._api.custom().delete_namespaced_custom_object
        self._api.call(DELETE_JOB, method, **self._api.rayjobs(), name=name, propagation_policy="Background", ok=(404, 409))

    def cancel(self, attempt: Attempt) -> None:
        """Delete the RayJob and wait until its devices are free; harmless if it has ended or is gone."""
        if _closed(self._log_of(attempt)) is not None:
            return
        self._watcher(attempt).log.end(time.time(), Verdict(phase="stopped").data())
        self._forbid(attempt)
        while not self.poll(attempt).done():
            time.sleep(0.2)

    def _forbid(self, attempt: Attempt) -> None:
        """Forbid the driver to begin, should it still come up."""
        Path(attempt.folder).mkdir(parents=True, exist_ok=True)
        (Path(attempt.folder) / files.CANCELLED).touch()
        if self._storage is not None:
            self._storage.forbid(attempt.folder)

    def files(self, attempt: Attempt) -> RunFiles:
        """Return what the attempt left so far, with the charge of its pods."""
        return RunFiles(folder=attempt.folder, stamp=self._stamp(attempt, self._log_of(attempt)))

    def _log_of(self, attempt: Attempt) -> PodLog:
        """Return what was seen of an attempt, without looking again."""
        watcher = self._watchers.get(attempt.submission_id)
        return watcher.log if watcher else PodLog(Path(attempt.folder))

    def _stamp(self, attempt: Attempt, log: PodLog, *, final: bool = False) -> Stamp:
        stamps = self._stamps(attempt, final=final) if not log.closed else read_stamps(Path(attempt.folder))
        driver = stamps.stamp()
        if not driver.outcome and log.ended:
            told = {"outcome": log.ended["outcome"], "detail": log.ended["detail"]}
            driver = driver.model_copy(update={k: v for k, v in told.items() if v})
        gpus = next((int(x.get("gpus", 0)) for x in stamps.lines if x.get("event") == "allocated"), 0)
        lost = sorted({p.node for p in log.all() if p.gpus and p.reason and p.node})
        stamp = stamp_of(driver, log, gpus=gpus, now=time.time())
        return stamp.model_copy(update={"lost_nodes": lost})  # Kubernetes' names; Ray's own mean nothing to the next cluster

    def close(self) -> None:
        """Stop watching; jobs that run go on."""
        while self._watchers:
            self._watchers.popitem()[1].close()
        self._api.close()


def _verdict(log: PodLog) -> Verdict:
    return Verdict.model_validate({k: v for k, v in log.ended.items() if k not in ("kind", "at")})


def _closed(log: PodLog) -> JobState | None:
    """Return the state of an attempt whose end and release are on record; the server need not be asked again."""
    if not log.ended or not log.closed:
        return None
    verdict = _verdict(log)
    return JobState(phase=verdict.phase, detail=str(log.closed["detail"]), gone=verdict.lost)
