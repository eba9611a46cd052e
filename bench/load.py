"""A year's ledger, and how long the verbs take on it: 50 campaigns, 100,000 events.

    python bench/load.py                          play, multiply, time every verb; prints a table
    python bench/load.py --like LEDGER            the records of real campaigns on record there, instead of played ones
    python bench/load.py --keep DIR               keep the ledger there, and use the one that is there already

Campaigns are played on a replay table by attuner's own steps, then written again under further ids, each with a chain of its own;
`attuner ledger verify` must call the whole sound. A campaign that is too short has its search lapped, launches numbered on, until
it has its share of events. Every verb is a process of its own; told are the median of its wall times, the least, and the CPU time
of that run (on a busy machine the wall tells of the others). `board` and `ledger verify` leave half to a second process where a
core is free: their CPU time is that of both. Exits 1 if a verb fails, or its median wall is over its limit.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from attuner.bench import arms
from attuner.bench.play import Entry, Protocol, campaign, run
from attuner.core.events import Event
from attuner.ledgers import chain
from attuner.ledgers.anchor import write_anchor
from attuner.ledgers.chain import Marks, Row, Tail
from attuner.ledgers.duckdb_file import DuckdbLedger
from attuner.tables import load_table
from attuner.wiring import proposer_class

ROOT = Path(__file__).resolve().parents[1]
TABLE = "formula-moe-16xgpu"
ARMS = ("random", "random", "random", "catalog")
LAUNCHES = 120
"""Budget of a played campaign, in baseline launches: about 2,000 events."""
ONE_LEFT_RUNNING = 7
"""Every so manieth campaign is cut off in its search: a year's ledger holds some that run."""
ID = re.compile(r"\b([lh])(\d{2,})\b")
CHUNK = 2_000
AT_ONCE = 10
"""Campaigns that run at once, so that their rows lie between each other."""


class Verb(NamedTuple):
    """One command, and the seconds that its median may take (0: none is stated)."""

    words: tuple[str, ...]
    limit_s: float


def verbs(name: str, site: Path) -> list[Verb]:
    """Return what is timed; `name` is the campaign asked for by name."""
    return [
        Verb(("status",), 2),
        Verb(("status", name), 2),
        Verb(("board",), 2),
        Verb(("report", name), 2),
        Verb(("ledger", "verify"), 5),
        Verb(("ledger", "verify", name), 5),
        Verb(("spend",), 0),
        Verb(("spend", name), 0),
        Verb(("board", "--html", str(site)), 0),
    ]


# -- the ledger


def played(num_kinds: int) -> list[list[Event]]:
    """Play campaigns of several proposers and seeds to their end and return their events."""
    found = []
    for k in range(num_kinds):
        file = ROOT / "configs" / "replay" / f"{TABLE}.yaml"
        table, arm = load_table(file), arms.arm(ARMS[k % len(ARMS)])
        entry = Entry(file, arm, 1 + k, Protocol(launches=LAUNCHES))
        born = campaign(table, entry, configs=ROOT / "configs")
        began = time.perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            proposer = proposer_class(arm.proposer, "bench/load.py")()
            history = run(table, born, proposer, folder=Path(folder), rules=ROOT / "rules")
        say(f"played {born.id} on {file.stem}: {len(history.events)} events, {time.perf_counter() - began:.1f} s")
        found.append(history.events)
    return found


def on_record(files: Sequence[str]) -> list[list[Event]]:
    """Return the events of every campaign that was shipped in these ledgers."""
    found = []
    for file in files:
        with DuckdbLedger(Path(file)) as ledger:
            found += [ledger.history(name) for name in ledger.campaigns()]
    return [events for events in found if any(e.kind == "shipment" for e in events)]


def stretched(events: Sequence[Event], num: int) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield kind, key and record of a campaign of about `num` events: its search again and again, numbered on."""
    first = next(i for i, e in enumerate(events) if e.kind == "calibration") + 1
    last = next(i for i, e in enumerate(events) if e.kind == "stop")
    head, search, tail = events[:first], events[first:last], events[last:]
    laps = max(1, round((num - len(head) - len(tail)) / len(search)))
    before = {kind: sum(e.kind == name for e in head) for kind, name in (("l", "launch"), ("h", "hypothesis"))}
    lap = {kind: sum(e.kind == name for e in search) for kind, name in (("l", "launch"), ("h", "hypothesis"))}

    def numbered(text: str, k: int) -> str:
        def on(found: re.Match[str]) -> str:
            kind, number = found[1], int(found[2])
            return f"{kind}{number + k * lap[kind]:02d}" if number > before[kind] else found[0]

        return ID.sub(on, text)

    parts = [(e, 0) for e in head] + [(e, k) for k in range(laps) for e in search] + [(e, laps - 1) for e in tail]
    for event, k in parts:
        yield event.kind, numbered(event.key, k), json.loads(numbered(json.dumps(event.record), k)) if k else event.record


def fill(path: Path, sources: Sequence[Sequence[Event]], *, campaigns: int, events: int) -> int:
    """Write the campaigns, some at once, until there are about `events` of them; return how many there are."""
    share = math.ceil(events / campaigns)
    waiting = []
    for k in range(campaigns):
        source = sources[k % len(sources)]
        rows = stretched(source, share)
        if k % ONE_LEFT_RUNNING == ONE_LEFT_RUNNING - 1:
            rows = islice(rows, share // 2)
        waiting.append(_rows(f"year-{k:03d}", rows, start=1_700_000_000.0 + k * 86_400.0))
    with DuckdbLedger(path) as ledger:
        ledger.claim("seed")  # makes the tables, the views and the triggers
        first = ledger.history("seed")[-1]
        marks = Marks(1, {"seed": chain.Mark(1, first.hash)})
        with ledger._open(write=True) as db:
            running: list[Iterator[Row]] = []
            while waiting or running:
                running += [waiting.pop(0) for _ in range(min(AT_ONCE - len(running), len(waiting)))]
                lot: list[Row] = []
                for writer in list(running):
                    some = list(islice(writer, CHUNK // AT_ONCE))
                    if not some:
                        running.remove(writer)
                    for row in some:
                        lot.append(row._replace(seq=marks.seq + 1))
                        marks = chain.moved(marks, lot[-1])
                if lot:
                    places = ", ".join("(?, ?, ?, ?, ?, ?, ?, ?, ?, ?)" for _ in lot)
                    db.execute(f"INSERT INTO events VALUES {places}", [x for row in lot for x in row])
            write_anchor(path.with_name(path.name + ".anchor"), marks)
    return marks.seq


def _rows(name: str, given: Iterator[tuple[str, str, dict[str, Any]]], *, start: float) -> Iterator[Row]:
    """Chain a campaign's records under another id, in which the campaign is said to be that one."""
    tail = Tail(0, 0, chain.FIRST_PREV, 1, None)
    for kind, key, record in given:
        if kind == "campaign":
            key, record = name, {**record, "id": name}
        row = chain.next_row(tail, name, kind, key=key, at=start + 30.0 * tail.n, fence=1, record=record)
        yield row
        tail = Tail(0, row.n, row.hash, 1, None)


# -- the clock


class Run(NamedTuple):
    """One run of a verb: its wall and CPU seconds, exit code, and what it printed last."""

    wall_s: float
    cpu_s: float
    code: int
    last: str


def timed(home: Path, words: Sequence[str]) -> Run:
    """Run one verb as a process of its own."""
    env = {**os.environ, "ATTUNER_HOME": str(home), "ATTUNER_PROJECT": str(ROOT)}
    with tempfile.TemporaryFile("w+") as out:
        began = time.perf_counter()
        process = subprocess.Popen([sys.executable, "-m", "attuner.cli.main", *words], env=env, cwd=ROOT, stdout=out, stderr=out)
        _, state, used = os.wait4(process.pid, 0)
        wall = time.perf_counter() - began
        process.returncode = os.waitstatus_to_exitcode(state)
        out.seek(0)
        last = out.read().strip().rpartition("\n")[2]
    return Run(wall, used.ru_utime + used.ru_stime, process.returncode, last)


def report(home: Path, *, rounds: int) -> bool:
    """Time every verb and print the table; True if each was right and within its limit."""
    with DuckdbLedger(home / "attuner.duckdb") as ledger:
        counts = ledger.counts()
    name = max(counts, key=lambda c: counts[c])
    good = True
    timed(home, ["status"])  # the file is in the page cache from here on
    say(f"{'verb':28} {'wall s':>7} {'least':>6} {'CPU s':>6}   limit     last line")
    for verb in verbs(name, home / "site"):
        runs = [timed(home, verb.words) for _ in range(rounds)]
        wall, best = statistics.median(r.wall_s for r in runs), min(runs, key=lambda r: r.wall_s)
        within = not verb.limit_s or wall <= verb.limit_s
        good = good and within and best.code == 0
        words = " ".join(w if len(w) < 16 else "DIR" for w in verb.words)
        state = (f"{verb.limit_s:g} s" if verb.limit_s else "–") + ("" if within else " OVER")
        told = (f"exit {best.code}: " if best.code else "") + best.last[:70]
        say(f"{words:28} {wall:7.2f} {best.wall_s:6.2f} {best.cpu_s:6.2f}  {state:9} {told}")
    say(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    return good


def say(text: str) -> None:
    """Write one line at once."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def main() -> int:
    """Make the ledger if it isn't there, then time the verbs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--campaigns", type=int, default=50)
    parser.add_argument("--events", type=int, default=100_000)
    parser.add_argument("--kinds", type=int, default=4, help="different campaigns to play before they are multiplied")
    parser.add_argument("--like", action="append", default=[], metavar="LEDGER", help="multiply what is on record there")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--keep", default="", metavar="DIR", help="home folder to keep, or to use again")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        home = Path(args.keep or name).absolute()
        path = home / "attuner.duckdb"
        if not path.exists():
            home.mkdir(parents=True, exist_ok=True)
            began = time.perf_counter()
            sources = on_record(args.like) if args.like else played(args.kinds)
            num = fill(path, sources, campaigns=args.campaigns, events=args.events)
            size = path.stat().st_size / 2**20
            say(f"wrote {num:,} events of {args.campaigns} campaigns, {size:.0f} MiB, in {time.perf_counter() - began:.0f} s")
        return 0 if report(home, rounds=args.rounds) else 1


if __name__ == "__main__":
    sys.exit(main())
