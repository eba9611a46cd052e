"""Stress the ledger file: several processes append while others read all the time, and writers killed in the middle.

    python bench/ledger_stress.py                     4 processes x 500 appends: own campaigns, then all notes to one
    python bench/ledger_stress.py --kill-rounds 20    kill -9 during appends: is every acknowledged row there?

Exits 1 if a row is missing or the ledger does not verify.
"""

from __future__ import annotations

import argparse
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from attuner.core.base import Record
from attuner.core.errors import AttunerError
from attuner.ledgers.duckdb_file import DuckdbLedger


class Remark(Record):
    """What the writers append; about as long as a score."""

    text: str


def say(text: str) -> None:
    """Write one line at once (a pipe is read by the parent)."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def work(path: Path, campaign_id: str, *, count: int, own: bool, batch: int) -> None:
    """Append `count` records and say each one's seq once it is acknowledged; then what was refused, and the times."""
    ledger, refused, took = DuckdbLedger(path), 0, []
    if own:
        ledger.claim(campaign_id)
    kind = "score" if own else "note"
    for first in range(0, count, batch):
        try:
            if batch == 1:
                took.append(_append(ledger, campaign_id, kind, first))
                continue
            with ledger.batch():
                took += [_append(ledger, campaign_id, kind, i) for i in range(first, min(first + batch, count))]
        except AttunerError as error:
            refused += 1
            sys.stderr.write(f"{error}\n")
    took.sort()
    say(f"end {refused} {took[len(took) // 2]:.4f} {took[-1]:.4f}")


def _append(ledger: DuckdbLedger, campaign_id: str, kind: str, i: int) -> float:
    began = time.perf_counter()
    seq = ledger.append(campaign_id, kind, f"k{i}", Remark(text="x" * 300))
    took = time.perf_counter() - began
    say(f"ack {seq}")
    return took


def read(path: Path, campaign_id: str) -> None:
    """Read the history again and again until the pipe closes, and check that it never shrinks."""
    ledger, seen, reads, slowest = DuckdbLedger(path), 0, 0, 0.0
    stop = False

    def finish(*_: object) -> None:
        nonlocal stop
        stop = True

    signal.signal(signal.SIGTERM, finish)
    say("ready")
    while not stop:
        began = time.perf_counter()
        events = ledger.history(campaign_id)
        slowest = max(slowest, time.perf_counter() - began)
        if len(events) < seen:
            say(f"shrank from {seen} to {len(events)}")
        seen, reads = len(events), reads + 1
    say(f"reads {reads} {slowest:.4f}")


def start(*arguments: object) -> subprocess.Popen[str]:
    """Start this file again as a writer or reader."""
    command = [sys.executable, __file__, *(str(a) for a in arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def stress(folder: Path, *, writers: int, count: int, readers: int, own: bool) -> bool:
    """Run one variant and print what came of it; True if nothing is missing."""
    path = folder / f"{'own' if own else 'one'}.duckdb"
    ids = [f"c-{i}" if own else "c-0" for i in range(writers)]
    with DuckdbLedger(path) as ledger:
        ledger.claim("c-0")
        ledger.append("c-0", "campaign", "c-0", Remark(text="birth"))
    reading = [start("read", path, ids[i % writers]) for i in range(readers)]
    for process in reading:
        assert process.stdout is not None
        process.stdout.readline()
    began = time.perf_counter()
    writing = [start("write", path, name, count, int(own), 1) for name in ids]
    acked: list[int] = []
    refused, medians, slowest = 0, [], 0.0
    for process in writing:
        lines = process.communicate()[0].splitlines()
        acked += [int(line.split()[1]) for line in lines if line.startswith("ack")]
        for line in lines:
            if line.startswith("end"):
                refused += int(line.split()[1])
                medians.append(float(line.split()[2]))
                slowest = max(slowest, float(line.split()[3]))
    wall = time.perf_counter() - began
    for process in reading:
        process.terminate()
    read_lines = [process.communicate()[0].strip() for process in reading]
    with DuckdbLedger(path) as ledger:
        found = [row[0] for row in ledger.query("SELECT seq FROM events WHERE kind IN ('score', 'note')").rows]
        problems = ledger.verify()
    expected = writers * count
    say(f"{writers} processes x {count} appends, {'each its own campaign' if own else 'all notes to one campaign'}:")
    say(f"  rows expected {expected}, acknowledged {len(acked)}, found {len(found)}, refused to caller {refused}")
    say(f"  acknowledged and missing {len(set(acked) - set(found))}, problems {len(problems)}")
    per_s, median_ms = expected / wall, 1e3 * sum(medians) / len(medians)
    say(f"  {per_s:.0f} appends/s (start of processes included), median {median_ms:.0f} ms, slowest {slowest:.2f} s")
    say(f"  readers (reads, slowest s): {'; '.join(read_lines)}")
    shrunk = any("shrank" in line for line in read_lines)
    return len(found) == len(acked) == expected and not problems and not shrunk and set(acked) == set(found)


def kill(folder: Path, *, rounds: int, seed: int) -> bool:
    """Kill a writer with SIGKILL in each round; True if every acknowledged row is there and the chain verifies."""
    path, chance = folder / "kill.duckdb", random.Random(seed)
    acked: set[int] = set()
    torn = 0
    for i in range(rounds):
        process = start("write", path, "c-kill", 100000, 1, 1 if i % 2 == 0 else 20)
        assert process.stdout is not None
        acked.add(int(process.stdout.readline().split()[1]))
        time.sleep(chance.uniform(0.05, 0.6))
        process.kill()
        acked |= {int(line.split()[1]) for line in process.communicate()[0].splitlines()}
        torn += path.with_name(path.name + ".wal").exists()
    with DuckdbLedger(path) as ledger:
        problems = ledger.verify()
        ledger.claim("c-kill")
        found = {row[0] for row in ledger.query("SELECT seq FROM events WHERE kind = 'score'").rows}
        problems += ledger.verify()
    say(f"kill -9, {rounds} rounds, every other one inside batch(); a write-ahead file was left {torn} times:")
    say(f"  acknowledged {len(acked)}, found {len(found)}, acknowledged and missing {len(acked - found)}")
    say(f"  found beyond the acknowledged {len(found - acked)}, problems {len(problems)}")
    return not problems and not acked - found


def main() -> int:
    """Run what the command line says."""
    words = sys.argv[1:]
    if words[:1] == ["write"]:
        work(Path(words[1]), words[2], count=int(words[3]), own=words[4] == "1", batch=int(words[5]))
        return 0
    if words[:1] == ["read"]:
        read(Path(words[1]), words[2])
        return 0
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--writers", type=int, default=4)
    parser.add_argument("--appends", type=int, default=500)
    parser.add_argument("--readers", type=int, default=2)
    parser.add_argument("--kill-rounds", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if args.kill_rounds:
            good = kill(folder, rounds=args.kill_rounds, seed=args.seed)
        else:
            sizes = {"writers": args.writers, "count": args.appends, "readers": args.readers}
            good = stress(folder, own=True, **sizes)
            good = stress(folder, own=False, **sizes) and good
    say("nothing lost" if good else "ROWS OR CHAIN DAMAGED")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
