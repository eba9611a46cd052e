"""Part B: quickstart-size campaigns with real training on a Ray of their own, gone on with by `attuner resume`, under faults of
the flow's process, the Ray head, its raylet, the driver and the ranks; all by process id."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable

import soak_processes as processes
import yaml
from soak_house import ROOT, House
from soak_plan import Case
from soak_record import Known, Record
from soak_replay import MOST_MENDS, Marks

ATTUNER = [sys.executable, "-m", "attuner.cli.main"]
PATIENCE_S = 1500.0
RAY_MARK = "ATTUNER_RAY_ID"


class RealJob:
    """One real campaign under way. `step` is called again and again until `done`."""

    def __init__(self, case: Case, house: House, marks: Marks, record: Record, known: Known | None = None) -> None:
        self.case, self.house, self.marks, self.record = case, house, marks, record
        self.pending = list(case.faults)
        self.chance = random.Random(f"{case.name} mends")
        self.file = house.folder / "campaigns" / f"{case.name}.yaml"
        self.log = house.folder / "logs" / f"{case.name}.log"
        self.done, self.mends, self.due_at, self.begun_at = False, 0, 0.0, time.monotonic()
        self.reasons: list[str] = []
        self.process: subprocess.Popen[bytes] | None = None
        # a server of its own for some, as for a person without one
        self.env = house.env if case.i % 5 else {k: v for k, v in house.env.items() if k != "PREFECT_API_URL"}
        for folder in (self.file.parent, self.log.parent):
            folder.mkdir(exist_ok=True)
        if known is None or known.begun is None:
            self.file.write_text(yaml.safe_dump(case.body, sort_keys=False))
            self.say("begin", name=case.name, shape=case.shape, planned=len(case.faults))
        else:
            self.pending, self.mends = self.pending[len(known.faults) :], known.mended

    def say(self, what: str, **more: object) -> None:
        """Write one line of the soak's record."""
        self.record.say(self.case.part, self.case.i, what, **more)

    @property
    def campaign(self) -> str:
        """The campaign's id, '' before its birth."""
        found = self.marks.of(self.case.name)
        return found[0][0] if found else ""

    def step(self) -> None:
        """Look at the campaign and do what is due."""
        if self.process is None:
            self._start()
            return
        code = self.process.poll()
        if code is not None:
            self._ended(code)
        elif self.pending:
            self._fault(time.monotonic())
        if time.monotonic() - self.begun_at > PATIENCE_S and not self.done:
            self._end("not ended", f"still running after {PATIENCE_S:.0f} s")
            if self.process is not None:
                processes.send(self.process.pid, signal.SIGTERM)

    def _start(self) -> None:
        name = self.campaign
        words = ["resume", name] if name else ["run", str(self.file)]
        with self.log.open("ab") as out:
            self.process = subprocess.Popen([*ATTUNER, *words, "--quiet"], env=self.env, cwd=ROOT, stdout=out, stderr=out)
        self.say("run", run=str(self.process.pid), of=words[0])

    def _ended(self, code: int) -> None:
        """Go on with a command that ended before its campaign did; the same words twice are a stop."""
        said = self._last_words()
        if code == 0:
            self._end("completed", said)
            return
        self.reasons.append(said)
        if code > 0 and code != 130 and self.reasons[-2:] == [said, said]:
            self._end("stopped", said)
        elif self.mends >= MOST_MENDS:
            self._end("not ended", f"exit {code}: {said}")
        else:
            self.mends += 1
            self._bury(code)
            self.say("go on", by="resume" if self.campaign else "run", after=str(code), message=said)
            self.process = None

    def _bury(self, code: int) -> None:
        """Mark the flow run of a killed command as crashed, as the automation does when its heartbeat is missed."""
        if code >= 0 or "PREFECT_API_URL" not in self.env:
            return
        for run in self.house.api.unfinished({f"campaign {self.case.name}", f"campaign {self.campaign}"}):
            if self.house.api.put(run, "CRASHED", message="no heartbeat"):
                self.say("note", text=f"{run} without a process: marked as crashed, as the automation does")

    def _last_words(self) -> str:
        lines = [x for x in self.log.read_text(errors="replace").splitlines() if x.strip()]
        return " ".join((lines or [""])[-1].split())[:400]

    def _end(self, how: str, message: str) -> None:
        self.done = True
        more = {"mends": self.mends, "missed": len(self.pending), "campaign": self.campaign}
        self.say("end", how=how, message=message, seconds=round(time.monotonic() - self.begun_at, 1), **more)

    # ------------------------------------------------------------------------------------------ faults

    def _fault(self, now: float) -> None:
        """Inject the next fault if it is due, and its victim there."""
        fault = self.pending[0]
        came = self.marks.of(self.case.name)
        if (came[0][1] if came else 0) < fault.after:
            return
        self.due_at = self.due_at or now + fault.delay_s
        if now < self.due_at:
            return
        state = self.marks.last(self.campaign) if self.campaign else "before birth"
        hit = ACTS[fault.kind](self)
        if hit:
            self.due_at = 0.0
            self.pending.pop(0)
            self.say("fault", kind=fault.kind, after=fault.after, state=state, hit=hit)

    def flow(self, what: int = signal.SIGKILL) -> list[int]:
        """Signal the command."""
        return self._send([self.process.pid] if self.process is not None else [], what)

    def _send(self, pids: list[int], what: int = signal.SIGKILL) -> list[int]:
        return [p for p in pids if processes.send(p, what)]

    def head(self) -> int:
        """Return the process id of the campaign's Ray head; 0 if none lives."""
        folder = self.marks.home / self.campaign
        try:
            pid, mark = int((folder / "ray.pid").read_text()), json.loads((folder / "ray.json").read_text())["id"]
        except (OSError, ValueError):
            return 0
        return pid if processes.environment(pid).get(RAY_MARK) == mark else 0

    def kill_head(self) -> list[int]:
        """Kill the head; half of the time together with all that it started that isn't a job's."""
        head = self.head()
        if not head:
            return []
        below = [p for p in processes.descendants(head) if "attuner_runner" not in processes.command(p)]
        return self._send([*(below if self.chance.random() < 0.5 else []), head])

    def raylet(self) -> list[int]:
        """Kill the raylet."""
        head = self.head()
        found = [p for p in processes.descendants(head) if processes.command(p).split(" ")[0].endswith("/raylet")] if head else []
        return self._send(found[:1])

    def jobs(self, *, rank: bool) -> list[int]:
        """Return the processes of the launch under way: its ranks, or its driver."""
        head = self.head()
        mark = processes.environment(head).get(RAY_MARK) if head else None
        marked = [p for p in processes.everybody() if mark and processes.environment(p).get(RAY_MARK) == mark]
        if rank:
            return [
                p for p in marked if "RANK" in processes.environment(p) and "torch.distributed.run" not in processes.command(p)
            ]
        return [p for p in marked if "-m attuner_runner.driver" in processes.command(p) and "/bin/sh" not in processes.command(p)]

    def job(self, what: int, *, rank: bool) -> list[int]:
        """Signal one rank, or the driver."""
        found = sorted(p for p in self.jobs(rank=rank) if p != os.getpid())
        return self._send([self.chance.choice(found)] if found else [], what)


ACTS: dict[str, Callable[[RealJob], list[int]]] = {
    "kill flow": RealJob.flow,
    "end flow": lambda job: job.flow(signal.SIGTERM),
    "interrupt flow": lambda job: job.flow(signal.SIGINT),
    "kill head": RealJob.kill_head,
    "kill raylet": RealJob.raylet,
    "kill driver": lambda job: job.job(signal.SIGKILL, rank=False),
    "kill rank": lambda job: job.job(signal.SIGKILL, rank=True),
    "stop rank": lambda job: job.job(signal.SIGSTOP, rank=True),
    "kill flow and head": lambda job: [*job.kill_head(), *job.flow()],
}


def train(house: House, cases: list[Case], record: Record, *, at_once: int, until: float) -> None:
    """Run the cases, `at_once` of them together; no new one is begun after the monotonic time `until`."""
    marks = Marks(house.folder / "home")
    known = record.known("real")
    waiting = [c for c in cases if known.get(c.i) is None or known[c.i].end is None]
    jobs: list[RealJob] = []
    while jobs or (waiting and time.monotonic() < until):
        while waiting and len(jobs) < at_once and time.monotonic() < until:
            case = waiting.pop(0)
            jobs.append(RealJob(case, house, marks, record, known.get(case.i)))
        house.tick(known={job.process.pid for job in jobs if job.process is not None})
        marks.read()
        for job in jobs:
            job.step()
        for job in (j for j in jobs if j.done):
            print(f"{time.strftime('%H:%M:%S')} {job.case.name} {job.case.shape}: {job.mends} mends", flush=True)
        jobs = [j for j in jobs if not j.done]
        time.sleep(0.05)
