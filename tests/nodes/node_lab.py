"""A launcher that reaches the nodes as a remote cluster, and jobs that are cheap."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any

from nodes.cluster import RESOURCE, Nodes, wait_for

from attuner.core.access import Access
from attuner.core.campaign import Cluster
from attuner.core.run import Attempt
from attuner.launchers.ray_jobs import RayJobs
from attuner.launchers.run_folder import Stamps, read_stamps
from attuner.ports import JobSpec, JobState

HERE = Path(__file__).parent
RUNNER = HERE.parents[1] / "attuner" / "runner"
NODES = 3


class Site:
    """One campaign folder on the cluster."""

    def __init__(self, nodes: Nodes, home: Path, python: str) -> None:
        self.nodes, self.home, self.python = nodes, home, python
        self.runner = home.parent / "runner"
        if not self.runner.exists():
            shutil.copytree(RUNNER, self.runner, ignore=shutil.ignore_patterns("__pycache__"))
            shutil.copyfile(HERE / "walk.py", self.runner / "walk.py")
        self.made: list[tuple[RayJobs, Attempt]] = []

    def launcher(self, **more: Any) -> RayJobs:
        """Return a launcher; `access` keys and cluster keys may be given."""
        access = Access(address=self.nodes.url, python=self.python, token_file=str(self.nodes.token_file))
        access = access.model_copy(update=more.pop("access", {}))
        options = {k: more.pop(k) for k in ("answer_timeout_s", "gone_s") if k in more}
        cluster = Cluster(name="nodes", resource=RESOURCE, devices=NODES, devices_per_node=1, **more)
        return RayJobs(cluster, self.home, runner=self.runner, access=access, **options)

    def submit(self, launcher: RayJobs, name: str, job: JobSpec) -> Attempt:
        """Submit an attempt."""
        folder = self.home / "runs" / f"{name}-a1"
        attempt = Attempt(
            launch_id=name, number=1, submission_id=f"{self.home.name}-{name}", folder=str(folder), submitted_at=time.time()
        )
        attempt = launcher.submit(attempt, job)
        self.made.append((launcher, attempt))
        return attempt

    def end_of(self, launcher: RayJobs, attempt: Attempt, limit_s: float = 120.0) -> JobState:
        """Return the state in which it ended."""

        def done() -> JobState | None:
            state = launcher.poll(attempt)
            return state if state.done() else None

        found: JobState = wait_for(done, limit_s, f"the end of {attempt.submission_id}")
        return found

    def stamps(self, attempt: Attempt) -> Stamps:
        """Return what its driver stamped so far."""
        return read_stamps(Path(attempt.folder))


def walk(gpus: int = 1, *, torchrun: bool = False, **keys: Any) -> JobSpec:
    """Return a cheap job; what a JobSpec has by itself goes there, the rest into its document."""
    own = {k: keys.pop(k) for k in ("env", "time_limit_s", "hang_s", "devices_by", "step_pattern") if k in keys}
    base: dict[str, Any] = {"env": {}, "time_limit_s": 90.0, "hang_s": 30.0, **own}
    document = {"steps": 3, "pace_s": 0.1, **keys}
    return JobSpec(module="walk", job=document, gpus=gpus, gpus_per_node=1, resource=RESOURCE, torchrun=torchrun, **base)
