"""Launches attempts through the Ray Job Submission API: a given cluster, or a local Ray of the campaign's own.

The submission id is decided before submission, and every submit looks first: a retry attaches to the running job, it never
pays twice. What a job cost and how it ended is read from what its driver stamped in the run's folder, which survives the
Ray head. `gone` is only said when it is proved: the head's process is dead, or Ray knows the job no more, or the job's
supervisor died without a release.
"""

from __future__ import annotations

import logging
import shutil
import time
from pathlib import Path
from typing import Any

from attuner.core.campaign import Cluster
from attuner.core.errors import Transient, UserError
from attuner.core.run import Attempt
from attuner.launchers.local_ray import LocalRay
from attuner.launchers.run_folder import read_stamps, write_job
from attuner.ports import JobSpec, JobState, RunFiles

PACKAGE = "attuner_runner"
TERMINAL = {"SUCCEEDED": "succeeded", "FAILED": "failed", "STOPPED": "stopped"}
CANCEL_TIMEOUT_S = 30.0
ALLOC_TIMEOUT_S = 600.0


class RayJobs:
    """The launcher `ray_jobs`.

    Args:
        cluster: the devices, and the Ray resource that stands for one.
        folder: the campaign's folder; the local Ray is recorded there and the runner is staged there.
        address: job API of a running cluster (http://…), or '' for a local Ray.
        python: interpreter on the cluster's nodes.
        runner: folder of the runner's sources.
        answer_timeout_s: how long one request may wait; Ray's own client would wait for ever.
    """

    def __init__(
        self, cluster: Cluster, folder: Path, *, address: str, python: str, runner: Path, answer_timeout_s: float = 20.0
    ) -> None:
        self._cluster, self._folder, self._python, self._runner = cluster, folder, python, runner
        self._address, self._answer_timeout_s = address, answer_timeout_s
        self._local = None if address else LocalRay(folder, resource=cluster.resource, devices=cluster.devices)
        self._client: Any = None
        self._client_of = ""

    def submit(self, attempt: Attempt, job: JobSpec) -> Attempt:
        """Submit, or attach if Ray knows this submission id; see ports.Launcher."""
        address = self._connect()
        run_dir = Path(attempt.folder)
        if self._info(attempt.submission_id) is None and not read_stamps(run_dir).started():
            write_job(run_dir, self._document(job, attempt))
            self._call(
                "submit_job",
                entrypoint=f"{self._python} -m {PACKAGE}.driver {run_dir}",
                submission_id=attempt.submission_id,
                runtime_env={"working_dir": str(self._stage())},
                metadata={"launch": attempt.launch_id, "attempt": str(attempt.number)},
            )
        pid = self._local.pid if self._local else None
        return attempt.model_copy(update={"address": address, "head_pid": pid})

    def poll(self, attempt: Attempt) -> JobState:
        """Return the state; see ports.Launcher."""
        if self._local is not None and not self._local.alive():
            self._local.end()
            return JobState(phase="gone", detail="the local Ray head is dead", gone=True)
        if self._local is not None and attempt.head_pid not in (None, self._local.pid):
            return JobState(phase="gone", detail="the Ray head that ran it is dead", gone=True)
        if self._local is not None and not self._local.answers():
            # it lives: whatever it runs is being paid for, so it is neither ended nor replaced
            raise Transient("the local Ray head lives but does not answer")
        self._connect()
        info = self._info(attempt.submission_id)
        if info is None:
            return JobState(phase="gone", detail="Ray does not know this job", gone=True)
        phase = TERMINAL.get(str(info.status.value), str(info.status.value).lower())
        unfinished = phase == "failed" and info.driver_exit_code is None and not read_stamps(Path(attempt.folder)).released()
        return JobState(phase=phase, detail=" ".join(str(info.message or "").split())[:300], gone=unfinished)

    def cancel(self, attempt: Attempt) -> None:
        """Stop the job; Ray ignores the stop of a pending job (ray#58353), so ask until it has ended."""
        deadline = time.monotonic() + CANCEL_TIMEOUT_S
        while time.monotonic() < deadline:
            state = self.poll(attempt)
            if state.done():
                return
            self._call("stop_job", attempt.submission_id)
            time.sleep(0.5)
        raise Transient(f"{attempt.submission_id} does not stop: still {state.phase} after {CANCEL_TIMEOUT_S:.0f} s")

    def files(self, attempt: Attempt) -> RunFiles:
        """Return what the attempt left so far."""
        return RunFiles(folder=attempt.folder, stamp=read_stamps(Path(attempt.folder)).stamp())

    def close(self) -> None:
        """End the local Ray, if it is ours."""
        if self._local is not None:
            self._local.end()

    def _connect(self) -> str:
        from ray.job_submission import JobSubmissionClient  # 0.6 s, so only when something is launched

        patience = self._answer_timeout_s

        class Client(JobSubmissionClient):
            def _do_request(self, *args: Any, **kwargs: Any) -> Any:
                return super()._do_request(*args, **{"timeout": patience, **kwargs})

        for handler in logging.getLogger("ray").handlers:
            handler.setLevel(logging.WARNING)  # its upload notices are not facts of the campaign

        headers = {}
        address = self._address
        if self._local is not None:
            head = self._local.ensure()
            address, headers = head.dashboard, {"Authorization": f"Bearer {self._local.token()}"}
        if self._client is None or self._client_of != address:
            try:
                self._client = Client(address, headers=headers)
            except (OSError, RuntimeError) as error:
                raise Transient(f"Ray at {address} does not answer: {_line(error)}") from None
            self._client_of = address
        return address

    def _info(self, submission_id: str) -> Any:
        try:
            return self._call("get_job_info", submission_id)
        except LookupError:
            return None

    def _call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        try:
            return getattr(self._client, method)(*args, **kwargs)
        except RuntimeError as error:  # the client raises this for every answer that is not 200
            text = _line(error)
            if "404" in text or "does not exist" in text:
                raise LookupError(text) from None
            if "already exists" in text:  # a submit that was cut off before its answer: attach
                return None
            raise Transient(f"Ray refused {method}: {text}") from None
        except (ConnectionError, OSError) as error:
            raise Transient(f"contact with Ray lost in {method}: {_line(error)}") from None

    def _document(self, job: JobSpec, attempt: Attempt) -> dict[str, Any]:
        return {
            **job.job,
            "module": job.module,
            "torchrun": job.torchrun,
            "env": job.env,
            "launch_id": attempt.launch_id,
            "attempt": attempt.number,
            "resource": job.resource,
            "gpus": job.gpus,
            "gpus_per_node": job.gpus_per_node,
            "time_limit_s": job.time_limit_s,
            "hang_s": job.hang_s,
            "alloc_timeout_s": ALLOC_TIMEOUT_S,
        }

    def _stage(self) -> Path:
        """Copy the runner alone to a folder of its own: Ray ships that, never the rest of attuner."""
        stage = self._folder / "ship"
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


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300]
