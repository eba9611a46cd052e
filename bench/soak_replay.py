"""Part A: replay campaigns as deployed flow runs on a real Prefect server with a real worker, several at once in one ledger,
with faults aimed at events. A run that was broken is gone on with as a person or an automation would."""

from __future__ import annotations

import json
import random
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import soak_processes as processes
import yaml
from soak_house import House
from soak_plan import Case, Fault
from soak_record import Known, Record

from attuner.core.errors import AttunerError
from attuner.ledgers.duckdb_file import DuckdbLedger

SILENT_S, ORPHAN_S, UNBORN_S = 20.0, 45.0, 300.0
"""How long a run may have no process before it is called dead: after it had one; if worker or server died since; else."""
PATIENCE_S = 1500.0
ON_PURPOSE = re.compile(r"encountered an exception: (UserError|Refused|BudgetExceeded|RegisterChanged|Broken):")
"""A run that failed with one of these said why in one line; any other failure is gone on with."""
MOST_MENDS = 25
LAST = "SELECT kind, key FROM events WHERE campaign_id = '{}' ORDER BY n DESC LIMIT 1"


class Marks:
    """How far each campaign has come, from the file beside the ledger that says what was acknowledged."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.campaigns: dict[str, int] = {}

    def read(self) -> None:
        """Read it again."""
        try:
            data = json.loads((self.home / "attuner.duckdb.anchor").read_bytes())
        except (OSError, ValueError):
            return
        self.campaigns = {name: int(n) for name, (n, _) in data["campaigns"].items()}

    def of(self, name: str) -> list[tuple[str, int]]:
        """Return the campaigns that were born of one file: (id, number of events), the furthest first."""
        return sorted(((c, n) for c, n in self.campaigns.items() if c.rpartition("-")[0] == name), key=lambda x: -x[1])

    def last(self, campaign_id: str) -> str:
        """Return `kind key` of the campaign's newest event."""
        try:
            with DuckdbLedger(self.home / "attuner.duckdb") as ledger:
                rows = ledger.query(LAST.format(campaign_id)).rows
        except AttunerError as error:
            return f"unread: {error}"
        return " ".join(str(x) for x in rows[0]) if rows else ""


class Job:
    """One campaign under way. `step` is called again and again until `done`."""

    def __init__(self, case: Case, house: House, marks: Marks, record: Record, known: Known | None = None) -> None:
        self.case, self.house, self.marks, self.record = case, house, marks, record
        self.chance = random.Random(f"{case.name} mends")
        self.pending = list(case.faults)
        self.run, self.second, self.frozen = "", "", 0
        self.thaw_at = self.looked_at = self.due_at = 0.0
        self.done, self.asked_to_cancel = False, 0.0
        self.mends, self.pid, self.seen_at = 0, 0, time.monotonic()
        self.had_process, self.starts = False, 0
        self.reasons: list[str] = []
        self.last_fault, self.mend = 0.0, "new run"
        self.begun_at = time.monotonic()
        self.file = house.folder / "campaigns" / f"{case.name}.yaml"
        if known is None or known.begun is None:
            self.file.parent.mkdir(exist_ok=True)
            self.file.write_text(yaml.safe_dump(case.body, sort_keys=False))
            self.say("begin", name=case.name, shape=case.shape, planned=len(case.faults))
        else:
            self.pending, self.mends = self.pending[len(known.faults) :], known.mended
        self.go = self._start

    def say(self, what: str, **more: Any) -> None:
        """Write one line of the soak's record."""
        self.record.say(self.case.part, self.case.i, what, **more)

    @property
    def campaign(self) -> str:
        """The campaign's id, '' before its birth."""
        found = self.marks.of(self.case.name)
        return found[0][0] if found else ""

    def step(self, runs: dict[str, int]) -> None:
        """Look at the campaign and do what is due. `runs`: the process of each flow run."""
        now = time.monotonic()
        pid = runs.get(self.run, 0)
        if pid:
            self.pid, self.seen_at, self.had_process = pid, now, True
        elif self.pid and not processes.alive(self.pid):
            self.pid = 0
        if self.frozen and now >= self.thaw_at:
            processes.send(self.frozen, signal.SIGCONT)
            self.frozen = 0
        if self.pid and self.pending and not self.frozen:
            self._fault(now)
        if now - self.looked_at >= 0.7:
            self.looked_at = now
            self._look_at_second(runs)
            self.go()

    # ------------------------------------------------------------------------------------------ the run

    def _start(self) -> None:
        """Trigger a run: of the file, or of the campaign that was born of it."""
        name = self.campaign
        given = {"campaign_id": name} if name else {"file": str(self.file)}
        self.run = self.house.api.start(given)
        if self.run:
            self._fresh()
            self.say("run", run=self.run, of=name or self.file.name)
            self.go = self._watch

    def _fresh(self) -> None:
        """A run was asked for and has no process yet."""
        self.seen_at, self.had_process, self.pid, self.starts = time.monotonic(), False, 0, self.house.starts()

    def _watch(self) -> None:
        """Look at the run's state."""
        kind, message = self.house.api.state(self.run)
        now = time.monotonic()
        if kind == "COMPLETED":
            self._end("completed", message)
        elif kind in ("FAILED", "CRASHED", "CANCELLED"):
            if not self.pid:
                self._broken(kind, message)
        elif kind == "CANCELLING" and self.pid and now - self.asked_to_cancel > 40:
            self.say("note", text="a cancel was not served for 40 s: SIGTERM to the process, as a person would")
            processes.send(self.pid, signal.SIGTERM)
            self.asked_to_cancel = now
        elif kind and not self.pid and now - self.seen_at > self._silence_s(kind):
            self.say("note", text=f"{kind} without a process: marked as crashed, as the automation does")
            self.house.api.put(self.run, "CRASHED", message="no heartbeat")
            self.seen_at = now
        if now - self.begun_at > PATIENCE_S and not self.done:
            self._end("not ended", f"{kind}: {message}")

    def _silence_s(self, kind: str) -> float:
        """Return how long this run may go without a process."""
        if self.had_process:
            return SILENT_S
        return ORPHAN_S if self.house.starts() != self.starts and kind == "PENDING" else UNBORN_S

    def _broken(self, kind: str, message: str) -> None:
        """Go on with a run that ended before its campaign did; the same one-line reason twice is a stop."""
        message = " ".join(message.split())[:400]
        self.reasons.append(message)
        if kind == "FAILED" and ON_PURPOSE.search(message) and self.reasons.count(message) == 2:
            self._end("stopped", message)
            return
        if self.mends >= MOST_MENDS:
            self._end("not ended", f"{kind}: {message}")
            return
        self.mends += 1
        by = "new run" if kind == "CANCELLED" else self.mend
        self.say("go on", by=by, after=kind, message=message)
        self.mend = self.chance.choice(("retry", "new run"))
        if by == "retry" and self.house.api.put(self.run, "SCHEDULED", name="AwaitingRetry", message="Retry"):
            self._fresh()
            return
        self.go = self._start

    def _look_at_second(self, runs: dict[str, int]) -> None:
        """Note how the second run ended: refused, if the first one lived."""
        if not self.second:
            return
        kind, message = self.house.api.state(self.second)
        if kind in ("COMPLETED", "FAILED", "CRASHED", "CANCELLED") and self.second not in runs:
            self.say("second ended", run=self.second, state=kind, message=" ".join(message.split())[:300])
            self.second = ""

    def _end(self, how: str, message: str) -> None:
        if self.second and time.monotonic() - self.begun_at < PATIENCE_S:
            return  # asked again: the second run comes to its end first
        self.done = True
        self.say("end", how=how, message=message[:400], mends=self.mends, missed=len(self.pending), campaign=self.campaign)

    # ------------------------------------------------------------------------------------------ faults

    def _fault(self, now: float) -> None:
        """Inject the next fault if it is due."""
        fault = self.pending[0]
        came = self.marks.of(self.case.name)
        if (came[0][1] if came else 0) < fault.after:
            return
        self.due_at = self.due_at or now + fault.delay_s
        if now < self.due_at:
            return
        if not ACTS[fault.kind](self, fault):
            return  # not now: the server is away, say
        self.due_at = 0.0
        self.pending.pop(0)
        self.mend = fault.mend
        name = self.campaign
        self.say("fault", kind=fault.kind, after=fault.after, state=self.marks.last(name) if name else "before birth")

    def kill_flow(self, _fault: Fault, *, what: int = signal.SIGKILL) -> bool:
        """End the flow run's process."""
        return processes.send(self.pid, what)

    def cancel(self, _fault: Fault) -> bool:
        """Press Cancel."""
        self.asked_to_cancel = time.monotonic()
        return self.house.api.put(self.run, "CANCELLING")

    def second_run(self, fault: Fault, *, freeze: bool) -> bool:
        """Start a second run of the campaign while the first one lives; perhaps the first is stopped meanwhile."""
        self.second = self.house.api.start({"campaign_id": self.campaign}) if self.campaign else ""
        if self.second and freeze:
            self.frozen, self.thaw_at = self.pid, time.monotonic() + 8 + fault.down_s
            processes.send(self.pid, signal.SIGSTOP)
        if self.second:
            self.say("second", run=self.second)
        return bool(self.second)


def _kill(*names: str) -> Callable[[Job, Fault], bool]:
    def act(job: Job, fault: Fault) -> bool:
        hit = True
        for name in names:
            hit = job.kill_flow(fault) if name == "flow" else getattr(job.house, name).kill(down_s=fault.down_s)
        return hit

    return act


ACTS: dict[str, Callable[[Job, Fault], bool]] = {
    "kill flow": _kill("flow"),
    "end flow": lambda job, fault: job.kill_flow(fault, what=signal.SIGTERM),
    "cancel": Job.cancel,
    "kill worker": _kill("worker"),
    "kill server": _kill("server"),
    "kill flow and worker": _kill("worker", "flow"),
    "kill flow and server": _kill("server", "flow"),
    "second run": lambda job, fault: job.second_run(fault, freeze=False),
    "freeze, second run": lambda job, fault: job.second_run(fault, freeze=True),
}


def play(house: House, cases: list[Case], record: Record, *, at_once: int, until: float = float("inf")) -> None:
    """Run the cases, `at_once` of them together; no new one is begun after the monotonic time `until`."""
    marks = Marks(house.folder / "home")
    known = record.known("replay")
    waiting = [c for c in cases if known.get(c.i) is None or known[c.i].end is None]
    jobs: list[Job] = []
    runs: dict[str, int] = {}
    scanned = 0.0
    while jobs or (waiting and time.monotonic() < until):
        while waiting and len(jobs) < at_once and time.monotonic() < until:
            case = waiting.pop(0)
            jobs.append(Job(case, house, marks, record, known.get(case.i)))
        house.tick()
        marks.read()
        if time.monotonic() - scanned > 0.6:
            runs, scanned = processes.flow_processes(marks.home), time.monotonic()
        for job in jobs:
            job.step(runs)
        for job in (j for j in jobs if j.done):
            print(
                f"{time.strftime('%H:%M:%S')} {job.case.name} {job.case.shape}: {job.mends} mends, {len(jobs)} under way",
                flush=True,
            )
        jobs = [j for j in jobs if not j.done]
        time.sleep(0.03)
