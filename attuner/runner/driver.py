"""The Ray job of one attempt: reserve whole nodes, look at them, run the ranks under torchrun, stamp allocation and release.

`python -m attuner_runner.driver RUN_DIR [JOB]`, as the entrypoint of a Ray job; JOB is the job document, where it doesn't lie in
RUN_DIR already. Devices are reserved with a placement group, so a busy cluster queues the attempt without charging it. GPU-hours
come from the stamps written here, never from Ray's job times (its start time is the submit time). The driver also decides what
the control plane can't see from afar: no step for `hang_s` is a hang, `time_limit_s` after allocation is the end, a node that
went away is `node_lost`. Whatever happens, the release is stamped, and a heartbeat tells until when the devices were held if the
driver is killed outright.
"""

import contextlib
import logging
import os
import secrets
import sys
import time
from pathlib import Path
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup, remove_placement_group

from . import files, node_check, placement, stopping
from .heart import Heart
from .nodes import SILENT_S, AnyNode, Local, NodeLost, Remote, end_all, gather
from .stopping import Stopped
from .storage import Storage, StorageError
from .watching import Mirror, cause, watch

FREE_AGAIN_S = 60.0
SEEN = ".seen"
EXIT = {"ok": 0, "oom": 77, "hang": 78, "time_limit": 79, "stopped": 80, "never_allocated": 81, "node_lost": 83}


class Attempt:
    """One attempt: the job, its folder, what it stamps, what it holds."""

    def __init__(self, job: dict[str, Any], run_dir: Path) -> None:
        self.job, self.run_dir = job, run_dir
        self.storage = Storage(job, run_dir)
        self.heart = Heart(run_dir, self.storage)
        self.group: PlacementGroup | None = None
        self.nodes: list[AnyNode] = []
        self.mirror: Mirror | None = None
        self.load: float | None = None
        self.allocated_at = 0.0
        self.finished = False
        self.lost = ""

    def stamp(self, event: str, **what: Any) -> None:
        """Write one stamp."""
        files.append_jsonl(self.run_dir / files.STAMPS, {"event": event, "t": time.time(), **what})

    def reserve(self) -> None:
        """Wait for the devices and stamp their allocation. Raises placement.NoRoom, StorageError."""
        self.storage.begin()
        self._still_wanted()
        self.group = placement.reserve(self.job)
        self.allocated_at = time.time()
        try:
            self._still_wanted()
        except placement.NoRoom:
            self.free()
            raise
        ids = placement.nodes_of(self.group)
        hosts = sorted(placement.hosts_of(ids).values())
        self.stamp("allocated", hosts=hosts, gpus=self.job["gpus"], pid=os.getpid(), nodes=ids)

    def _still_wanted(self) -> None:
        if self.storage.cancelled():
            raise placement.NoRoom("given up by the control side before it began")

    def free(self) -> None:
        """Give the devices back."""
        if self.group is not None:
            remove_placement_group(self.group)
            self.group = None

    # ------------------------------------------------------------------------------------------ the ranks' run

    def run(self) -> tuple[str, str, str]:
        """Run the ranks on reserved devices; return outcome, phase and detail. Raises NodeLost, node_check.Unfit."""
        counts = placement.counts(self.job)
        self._take_nodes()
        try:
            self._share_folder()
            self._look(counts)
            commands = (
                node_check.torchrun(self.job["module"], self.run_dir, self.nodes, counts)
                if self.job["torchrun"]
                else [[sys.executable, "-m", f"{__package__}.{self.job['module']}", str(self.run_dir)] for _ in self.nodes]
            )
            asked = [
                node.ask("start", command, self.job["env"], str(self.run_dir / node_check.log_name(i, files.LOG)))
                for i, (node, command) in enumerate(zip(self.nodes, commands, strict=True))
            ]
            for node, a in zip(self.nodes, asked, strict=True):
                node.answer(a, 60.0)
            outcome, detail = watch(self.job, self.run_dir, self.nodes, self.heart, since=self.allocated_at, mirror=self.mirror)
            self._bring_home()
        finally:
            self._end_nodes()
        return cause(self.run_dir, outcome, detail)

    def _take_nodes(self) -> None:
        if self.group is None:
            raise RuntimeError("no devices are reserved")
        here = ray.get_runtime_context().get_node_id()
        silent_s = float(self.job.get("node_silent_s") or SILENT_S)
        self.nodes = [
            Local(node_id) if node_id == here else Remote(self.group, i, node_id, silent_s)
            for i, node_id in enumerate(placement.nodes_of(self.group))
        ]

    def _share_folder(self) -> None:
        """See that every node sees the run's folder; one lone node may have its own, which is then copied. Raises Unfit."""
        token = secrets.token_hex(8)
        (self.run_dir / SEEN).write_text(token)
        seen = gather(self.nodes, "sees", str(self.run_dir / SEEN), token, limit_s=120.0)
        (self.run_dir / SEEN).unlink()
        blind = [node for node, sees in zip(self.nodes, seen, strict=True) if not sees]
        if not blind:
            return
        if len(self.nodes) > 1 or not self.storage.apart:
            names = ", ".join(x for x in placement.hosts_of([n.id for n in blind]).values())
            raise node_check.Unfit(
                f"{names}: {self.run_dir} of the driver's node is not seen there; all nodes of a run need one folder: "
                "set storage (a path of the cluster) or scratch in the cluster's file"
            )
        gather(self.nodes, "settle_in", str(self.run_dir), self.job, limit_s=600.0)
        self.mirror = Mirror(self.nodes[0], self.run_dir)

    def _look(self, counts: list[int]) -> None:
        """Stamp what the nodes are and have, and take others in place of slow ones if there are spares."""
        report = self._report(counts)
        if report["slow"] and self.group is not None:
            other = placement.replaced(self.job, self.group, report["slow"])
            if other is None:
                report["warnings"].append("no spare node is free: the run goes on with the slow one")
            else:
                self.stamp("topology", **report, replaced=report["slow"])
                self._end_nodes()
                self.group = other
                self._take_nodes()
                self._share_folder()
                report = self._report(counts)
        self.stamp("topology", **report, replaced=[])
        self.stamp("versions", versions=gather(self.nodes[:1], "versions", self.job["env"], limit_s=90.0)[0])

    def _report(self, counts: list[int], *, probed: bool = True) -> dict[str, Any]:
        ids = [node.id for node in self.nodes]
        job = self.job if probed else {**self.job, "node_check": "off"}
        report = node_check.look(job, self.run_dir, self.nodes, counts, placement.hosts_of(ids))
        models = sorted({model for row in report["nodes"] for model in row["hardware"]})
        self.stamp("nodes", hardware=models, ids=ids, hosts=[row["host"] for row in report["nodes"]])
        return report

    def _bring_home(self) -> None:
        loads = gather(self.nodes, "cores", limit_s=30.0)
        self.load = max((x for x in loads if x is not None), default=None)
        if self.mirror is not None:
            self.mirror.pull(all_of_it=True)
            gather(self.nodes, "hand_over", str(self.run_dir), self.job, limit_s=1800.0)
        else:
            self.storage.keep_saved()

    def _end_nodes(self) -> None:
        end_all(self.nodes)

    # ----------------------------------------------------------------------------------- a framework with actors of its own

    def run_alone(self) -> tuple[str, str, str]:
        """Run the module once on this node, without holding devices: it takes them by itself. They were free a moment ago."""
        self._take_nodes()
        try:
            self.stamp("topology", **self._report(placement.counts(self.job), probed=False), replaced=[])
            self.stamp("versions", versions=gather(self.nodes[:1], "versions", self.job["env"], limit_s=90.0)[0])
        finally:
            self._end_nodes()
        self.free()
        node = Local(ray.get_runtime_context().get_node_id())
        self.nodes = [node]
        try:
            command = [sys.executable, "-m", f"{__package__}.{self.job['module']}", str(self.run_dir)]
            node.ask("start", command, self.job["env"], str(self.run_dir / files.LOG))
            outcome, detail = watch(self.job, self.run_dir, self.nodes, self.heart, since=self.allocated_at)
            self._bring_home()
        finally:
            self._end_nodes()
        outcome, phase, detail = cause(self.run_dir, outcome, detail)
        if not placement.wait_until_free(self.job, FREE_AGAIN_S):
            detail = f"{detail}; its devices were not free again {FREE_AGAIN_S:g} s after its end".lstrip("; ")
        return outcome, phase, detail

    def finish(self, outcome: str, phase: str, detail: str) -> None:
        """Copy what is kept, give the devices back, and stamp the release; who is asked to stop has no time to copy first."""
        self.finished = True
        try:
            if outcome != "stopped":
                self.storage.finish()
        except (StorageError, OSError) as error:
            detail = f"{detail}; storage: {error}".lstrip("; ")[:400]
        self.free()
        lost = {"lost": [self.lost]} if self.lost else {}
        self.stamp("released", outcome=outcome, phase=phase, detail=detail, other_load=self.load, **lost)
        self.heart.stop()
        with contextlib.suppress(StorageError, OSError):
            self.storage.sync()
            if outcome == "stopped":
                self.storage.finish()


def execute(attempt: Attempt) -> str:
    """Run one attempt from reservation to release; return its outcome."""
    try:
        attempt.reserve()
    except (placement.NoRoom, StorageError, Stopped, KeyboardInterrupt) as error:
        detail = str(error) or "asked to stop"
        sys.stderr.write(f"attuner: {detail}\n")  # the last lines of a job are told by Ray where storage can't
        attempt.finish("never_allocated", "", detail)
        return "never_allocated"
    outcome, phase, detail = "crash", "driver", "the driver failed"
    try:
        alone = attempt.job.get("devices_by") == "job"
        outcome, phase, detail = attempt.run_alone() if alone else attempt.run()
    except (Stopped, KeyboardInterrupt):
        outcome, phase, detail = "stopped", "", "asked to stop"
    except NodeLost as error:
        attempt.lost = error.node_id
        outcome, phase, detail = "node_lost", "", str(error)
    except node_check.Unfit as error:
        outcome, phase, detail = "crash", "topology", str(error)
    except StorageError as error:
        outcome, phase, detail = "crash", "storage", str(error)
    finally:
        if stopping.asked() and outcome != "ok":  # whatever else the order to stop looked like on its way
            outcome, phase, detail = "stopped", "", "asked to stop"
        attempt.finish(outcome, phase, detail)
    return outcome


def main(run_dir: Path, document: Path | None = None) -> int:
    """Run one attempt; the exit code tells the outcome."""
    run_dir.mkdir(parents=True, exist_ok=True)
    if document is not None:
        files.write_json(run_dir / files.JOB, files.read_json(document))
    job = files.read_json(run_dir / files.JOB)

    stopping.listen()
    try:
        attempt = Attempt(job, run_dir)
        ray.init(log_to_driver=False, logging_level=logging.ERROR)
        stopping.listen()  # again: Ray's start puts a handler of its own in place of ours, which ends the process on the spot
    except (Stopped, StorageError) as error:
        detail = str(error) or "asked to stop"
        sys.stderr.write(f"attuner: {detail}\n")
        files.append_jsonl(
            run_dir / files.STAMPS, {"event": "released", "t": time.time(), "outcome": "never_allocated", "detail": detail}
        )
        return EXIT["never_allocated"]
    attempt.heart.start()
    outcome = ""
    try:
        outcome = execute(attempt)
    finally:
        if not outcome and not attempt.finished:  # an error of ours before the devices were held: say so, hold nothing
            attempt.finish("crash", "driver", "the driver failed; see the job's log in Ray")
    return EXIT.get(outcome, 1)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) > 2 else None))
