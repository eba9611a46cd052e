"""Launches attempts through the Ray Job Submission API: a given cluster, or a local Ray of the campaign's own.

The submission id is decided before submission, and every submit looks first: a retry attaches to the running job, it never
pays twice. What a job cost and how it ended is read from what its driver stamped in the run's folder, which survives the
Ray head. `gone` is only said when it is proved: the head's process is dead, or Ray knows the job no more, or the job's
supervisor died without a release, or the driver's heartbeat has stood still for so long that the driver, if it lives, has ended
its ranks by itself (runner/heart.py). A server in trouble (HTTP 500, no contact) proves nothing while the heartbeat goes on.
"""

from __future__ import annotations

import contextlib
import logging
import shlex
import shutil
import time
from pathlib import Path
from typing import Any

from attuner.core.access import Access
from attuner.core.campaign import Cluster
from attuner.core.errors import Transient, UserError
from attuner.core.run import Attempt
from attuner.launchers.local_ray import LocalRay
from attuner.launchers.ray_client import RayClient
from attuner.launchers.ray_room import Room, room
from attuner.launchers.run_folder import Stamps, read_stamps, write_job
from attuner.launchers.storage import RunStorage, open_store
from attuner.ports import JobSpec, JobState, RunFiles
from attuner.runner import files

PACKAGE = "attuner_runner"
TERMINAL = {"SUCCEEDED": "succeeded", "FAILED": "failed", "STOPPED": "stopped"}
CANCEL_TIMEOUT_S = 60.0
STOP_WAIT_S = 20
"""How long Ray gives a stopped job to end its ranks and stamp the release; its own default is 3 s."""
START_GRACE_S = 60.0
"""What a driver that gives up by itself gets beyond the start time-out."""
LAG_S = 60.0
"""How long stamps of an ended job may take to be seen here (attribute caches of shared file systems)."""
GONE_S = 240.0
"""A heartbeat that stands still for longer: the allocation is gone. More than the driver's own limit (FENCE_S, 120 s)."""

log = logging.getLogger(__name__)


class RayJobs:
    """The launcher `ray_jobs`.

    Args:
        cluster: the devices, and the Ray resource that stands for one.
        folder: the campaign's folder; the local Ray is recorded there and the runner is staged there.
        access: the way to a running cluster, or to a local Ray; `address` and `python` may be given alone in its place.
        runner: folder of the runner's sources.
        answer_timeout_s: how long one request may wait; Ray's own client would wait for ever.
        gone_s: see GONE_S.
    """

    def __init__(
        self,
        cluster: Cluster,
        folder: Path,
        *,
        runner: Path,
        access: Access | None = None,
        address: str = "",
        python: str = "python",
        answer_timeout_s: float = 20.0,
        gone_s: float = GONE_S,
    ) -> None:
        self._access = access or Access(address=address, python=python)
        self._cluster, self._folder, self._runner = cluster, folder, runner
        self._answer_timeout_s, self._gone_s = answer_timeout_s, gone_s
        self._local = None if self._access.address else LocalRay(folder, resource=cluster.resource, devices=cluster.devices)
        self._client: RayClient | None = None
        self._storage: RunStorage | None = None
        self._beats: dict[str, tuple[float | None, float]] = {}
        self._ended: dict[str, float] = {}
        self._told: set[str] = set()
        self._token_of = 0.0

    def submit(self, attempt: Attempt, job: JobSpec) -> Attempt:
        """Submit, or attach if Ray knows this submission id; see ports.Launcher. Raises UserError if it can never be held."""
        client = self._connect()
        run_dir = Path(attempt.folder)
        self._fetch(attempt)
        if self._info(attempt.submission_id) is None and not read_stamps(run_dir).started():
            self._check_room(attempt, job)
            storage = self._stored()
            document = self._document(job, attempt)
            write_job(run_dir, storage.share(document) if storage else document)
            words = [self._access.python, "-m", f"{PACKAGE}.driver", storage.folder(attempt.folder) if storage else str(run_dir)]
            stage = self._stage(run_dir / "ship" if storage else self._folder / "ship")
            if storage:  # no folder is shared: the job document travels with the runner
                shutil.copyfile(run_dir / files.JOB, stage / files.JOB)
                words.append(files.JOB)
            client.call(
                "submit_job",
                entrypoint=" ".join(shlex.quote(word) for word in words),
                submission_id=attempt.submission_id,
                runtime_env={"working_dir": str(stage), "env_vars": {"RAY_JOB_STOP_WAIT_TIME_S": str(STOP_WAIT_S)}},
                metadata={"launch": attempt.launch_id, "attempt": str(attempt.number)},
            )
        pid = self._local.pid if self._local else None
        return attempt.model_copy(update={"address": client.address, "head_pid": pid})

    def poll(self, attempt: Attempt) -> JobState:
        """Return the state; see ports.Launcher."""
        state = self._state(attempt)
        stamps = read_stamps(Path(attempt.folder))
        waited = time.time() - attempt.submitted_at - self._cluster.start_timeout_s
        if state.done() or stamps.allocated() or waited < (START_GRACE_S if stamps.started() or state.phase != "pending" else 0):
            return state
        self.cancel(attempt)
        state = self._state(attempt)
        if read_stamps(Path(attempt.folder)).allocated():
            return state
        return JobState(phase="stopped", detail=f"no devices within {self._cluster.start_timeout_s:g} s; nothing was charged")

    def cancel(self, attempt: Attempt) -> None:
        """Stop the job; Ray ignores the stop of a pending one (ray#58353), so its driver is forbidden to begin."""
        Path(attempt.folder).mkdir(parents=True, exist_ok=True)
        (Path(attempt.folder) / files.CANCELLED).touch()
        if storage := self._stored():
            storage.forbid(attempt.folder)
        deadline = time.monotonic() + CANCEL_TIMEOUT_S
        asked = False
        while time.monotonic() < deadline:
            state = self._state(attempt)
            if state.phase == "ending" or (state.done() and (asked or state.phase != "stopped")):
                return
            with contextlib.suppress(LookupError):
                self._connect().call("stop_job", attempt.submission_id)
            asked = True
            time.sleep(0.5)
        raise Transient(f"{attempt.submission_id} does not stop: still {state.phase} after {CANCEL_TIMEOUT_S:.0f} s")

    def files(self, attempt: Attempt) -> RunFiles:
        """Return what the attempt left so far."""
        self._fetch(attempt)
        return RunFiles(folder=attempt.folder, stamp=read_stamps(Path(attempt.folder)).stamp())

    def close(self) -> None:
        """End the local Ray, if it is ours."""
        if self._local is not None:
            self._local.end()

    # ------------------------------------------------------------------------------------------ what is known of a job

    def _state(self, attempt: Attempt) -> JobState:
        if self._local is not None and not self._local.alive():
            self._local.end()
            return JobState(phase="gone", detail="the local Ray head is dead", gone=True)
        if self._local is not None and attempt.head_pid not in (None, self._local.pid):
            return JobState(phase="gone", detail="the Ray head that ran it is dead", gone=True)
        if self._local is not None and not self._local.answers():
            # it lives: whatever it runs is being paid for, so it is neither ended nor replaced
            raise Transient("the local Ray head lives but does not answer")
        try:
            info = self._info(attempt.submission_id)
        except Transient as lost:
            if self._local is not None:
                raise
            return self._unanswered(attempt, str(lost))
        self._fetch(attempt)
        stamps = read_stamps(Path(attempt.folder))
        if info is None:
            self._fetch(attempt, final=True)
            return JobState(phase="gone", detail="Ray does not know this job", gone=not stamps.released() or stamps.lost())
        status, said = str(info.status.value), " ".join(str(info.message or "").split())[:300]
        if status in TERMINAL:
            return self._terminal(attempt, TERMINAL[status], said, code=info.driver_exit_code)
        self._ended.pop(attempt.submission_id, None)
        if status == "PENDING" and (Path(attempt.folder) / files.CANCELLED).exists() and not stamps.started():
            return JobState(phase="stopped", detail="stopped before it began; its driver is forbidden to begin")
        if stamps.allocated() and not stamps.released() and self._still_s(attempt, stamps) > self._gone_s:
            self._connect().call("stop_job", attempt.submission_id)
            return JobState(
                phase="gone", detail=f"its heartbeat stands still for {self._gone_s:g} s, Ray says {status}", gone=True
            )
        waits = stamps.started() or not said.startswith("Job has not started yet")
        return JobState(
            phase="queued" if status == "RUNNING" and not stamps.allocated() else status.lower(), detail=said if waits else ""
        )

    def _terminal(self, attempt: Attempt, phase: str, said: str, *, code: int | None) -> JobState:
        """Return the state of a job that has ended, once its stamps are here."""
        self._fetch(attempt, final=True)
        stamps = read_stamps(Path(attempt.folder))
        since = self._ended.setdefault(attempt.submission_id, time.monotonic())
        if self._local is None and code is not None and not stamps.released() and time.monotonic() - since < LAG_S:
            return JobState(phase="ending", detail="its last stamps are not here yet")
        unfinished = phase == "failed" and code is None and not stamps.released()
        return JobState(phase=phase, detail=_told(stamps) or said, gone=unfinished or stamps.lost())

    def _unanswered(self, attempt: Attempt, why: str) -> JobState:
        """Return what the run's own files prove while Ray doesn't answer. Raises Transient if they prove nothing."""
        self._fetch(attempt)
        stamps = read_stamps(Path(attempt.folder))
        if stamps.released():
            self._fetch(attempt, final=True)
            ok = stamps.stamp().outcome == "ok"
            return JobState(phase="succeeded" if ok else "failed", detail=_told(stamps), gone=stamps.lost())
        if not stamps.allocated():
            raise Transient(f"{why}; no devices were allocated yet")
        still = self._still_s(attempt, stamps)
        if still <= self._gone_s:
            raise Transient(f"{why}; its heartbeat was last seen to move {still:.0f} s ago")
        return JobState(phase="gone", detail=f"{why}; its heartbeat stands still for {still:.0f} s", gone=True)

    def _still_s(self, attempt: Attempt, stamps: Stamps) -> float:
        """Return for how long the heartbeat stands still, by this machine's clock: the cluster's may be another."""
        now, beat = time.monotonic(), stamps.last_heartbeat
        known = self._beats.get(attempt.submission_id)
        if known is None or known[0] != beat:
            self._beats[attempt.submission_id] = known = (beat, now)
        return now - known[1]

    def _info(self, submission_id: str) -> Any:
        try:
            return self._connect().call("get_job_info", submission_id)
        except LookupError:
            return None

    # ------------------------------------------------------------------------------------------ the cluster

    def _connect(self) -> RayClient:
        if self._local is None:
            written = Path(self._access.token_file).stat().st_mtime if self._access.token_file else 0.0
            if self._client is None or written != self._token_of:  # tokens are renewed
                self._client = RayClient(self._access, timeout_s=self._answer_timeout_s)
                self._token_of = written
            return self._client
        head = self._local.ensure()
        if self._client is None or self._client.address != head.dashboard:
            access = self._access.model_copy(update={"address": head.dashboard})
            token = {"Authorization": f"Bearer {self._local.token()}"}
            self._client = RayClient(access, timeout_s=self._answer_timeout_s, headers=token)
        return self._client

    def room(self, job: JobSpec) -> Room:
        """Return whether the cluster can hold this job. Raises Transient."""
        client = self._connect()
        nodes, status = client.get("/api/v0/nodes?limit=10000&detail=1"), client.get("/api/cluster_status")
        grows = self._cluster.autoscaled
        return room(nodes, status, gpus=job.gpus, gpus_per_node=job.gpus_per_node, resource=job.resource, autoscaled=grows)

    def _check_room(self, attempt: Attempt, job: JobSpec) -> None:
        if self._local is not None:
            return
        found = self.room(job)
        if never := found.never():
            raise UserError(f"cluster {self._cluster.name} at {self._access.address}: launch {attempt.launch_id} {never}")
        if (busy := found.busy()) and attempt.submission_id not in self._told:
            self._told.add(attempt.submission_id)
            log.warning("%s %s", attempt.launch_id, busy)

    def _stored(self) -> RunStorage | None:
        if self._storage is None and self._cluster.storage:
            store = open_store(self._cluster.storage, mount=self._access.storage_mount)
            self._storage = RunStorage(store, self._folder, scratch=self._cluster.scratch)
        return self._storage

    def _fetch(self, attempt: Attempt, *, final: bool = False) -> None:
        if storage := self._stored():
            storage.fetch(attempt.folder, final=final)

    def _document(self, job: JobSpec, attempt: Attempt) -> dict[str, Any]:
        return job_document(job, attempt, self._cluster)

    def _stage(self, stage: Path) -> Path:
        """Copy the runner alone to a folder of its own: Ray ships that, never the rest of attuner."""
        target = stage / PACKAGE
        sources = sorted(self._runner.rglob("*.py"))
        if not sources:
            raise UserError(f"{self._runner}: no runner sources; reinstall attuner")
        for source in sources:
            copy = target / source.relative_to(self._runner)
            if not copy.exists() or copy.read_bytes() != source.read_bytes():
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(source, copy)
        return stage


def job_document(job: JobSpec, attempt: Attempt, cluster: Cluster) -> dict[str, Any]:
    """Return the document that driver and ranks read."""
    return {
        **job.job,
        "module": job.module,
        "torchrun": job.torchrun,
        "devices_by": job.devices_by,
        "step_pattern": job.step_pattern,
        "env": job.env,
        "launch_id": attempt.launch_id,
        "attempt": attempt.number,
        "resource": job.resource,
        "gpus": job.gpus,
        "gpus_per_node": job.gpus_per_node,
        "cpus_per_node": cluster.cpus_per_node,
        "time_limit_s": job.time_limit_s,
        "hang_s": job.hang_s,
        "alloc_timeout_s": cluster.start_timeout_s,
        "node_check": cluster.node_check,
        "slow_node_factor": cluster.slow_node_factor,
        "keep_ranks": cluster.keep_ranks,
    }


def _told(stamps: Stamps) -> str:
    """Return the driver's last word, with what it saw of its nodes."""
    stamp = stamps.stamp()
    return "; ".join(x for x in (stamp.detail, *stamp.warnings) if x)[:600]
