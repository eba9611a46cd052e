"""Ten campaigns at once on one Prefect server: do all finish, does every chain verify, does anything lock?

    python bench/load_flows.py                    10 replay campaigns, one ledger, one server (SQLite, loopback, no telemetry)
    python bench/load_flows.py --campaigns 4      fewer
    python bench/load_flows.py --ledger FILE      on a copy of this ledger, e.g. the year's of bench/load.py

Each campaign is a process of its own, `attuner run` with the server's address, as a worker would start it: its flow run and its
tasks are on that server. Prints wall times, what the server's database says of the flow runs, and every line that tells of a
lock. Exits 1 if a campaign fails, a chain is unsound, or a flow run is not completed.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from pathlib import Path
from typing import Any

from attuner.core.events import History
from attuner.ledgers.duckdb_file import DuckdbLedger

ROOT = Path(__file__).resolve().parents[1]
CAMPAIGN = ROOT / "configs" / "campaigns" / "replay-formula.yaml"
LOCKED = re.compile(r"is locked|another process kept this lock|another program holds|503 Service Unavailable", re.IGNORECASE)
"""SQLite's own words, the ledger's own words, and what Prefect's server answers when its database stayed locked."""
PATIENCE = {"PREFECT_SERVER_DATABASE_TIMEOUT": "60", "PREFECT_CLIENT_MAX_RETRIES": "20"}
"""Prefect's own are 10 s and 5 tries. With these, ten processes that start at once on two busy cores wait instead of failing."""


def ask(url: str, path: str, body: Any = None) -> Any:
    """Return what the server answers, or None while it does not."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url + path, data=data, headers={"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.loads(answer.read() or b"null")
    except OSError:
        return None


def served(folder: Path, *, patient: bool) -> tuple[subprocess.Popen[bytes], dict[str, str]]:
    """Start a Prefect server of our own; return it, and the environment in which it and the campaigns run."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PREFECT_", "ATTUNER_", "RAY_"))}
    env = {
        **kept,
        "PREFECT_HOME": str(folder / "prefect"),
        "PREFECT_API_URL": f"http://127.0.0.1:{port}/api",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "DO_NOT_TRACK": "1",
        "PREFECT_LOGGING_LEVEL": "WARNING",
        **(PATIENCE if patient else {}),
        "ATTUNER_HOME": str(folder / "out"),
        "ATTUNER_PROJECT": str(ROOT),
    }
    with (folder / "server.log").open("w") as out:
        command = [sys.executable, "-m", "prefect", "server", "start", "--host", "127.0.0.1", "--port", str(port)]
        process = subprocess.Popen(command, env=env, stdout=out, stderr=out)
    deadline = time.monotonic() + 180
    while ask(env["PREFECT_API_URL"], "/health") is not True:
        if time.monotonic() > deadline or process.poll() is not None:
            process.terminate()
            raise SystemExit(f"the server did not start:\n{(folder / 'server.log').read_text()[-2000:]}")
        time.sleep(0.3)
    return process, env


def run(folder: Path, env: dict[str, str], number: int) -> list[float]:
    """Run the campaigns at once; return the wall time of each, and print how one that failed ended."""
    began = time.perf_counter()
    running: dict[int, subprocess.Popen[bytes]] = {}
    for k in range(number):
        with (folder / f"run-{k}.log").open("w") as out:
            command = [sys.executable, "-m", "attuner.cli.main", "run", "--quiet", str(CAMPAIGN)]
            running[k] = subprocess.Popen(command, env=env, cwd=ROOT, stdout=out, stderr=out)
    took = []
    while running:
        for k, process in list(running.items()):
            if process.poll() is not None:
                took.append(time.perf_counter() - began)
                del running[k]
                if process.returncode:
                    say(f"campaign {k} exit {process.returncode}: {(folder / f'run-{k}.log').read_text()[-600:]}")
        time.sleep(0.2)
    return took


def judged(folder: Path, url: str, *, number: int, before: set[str]) -> bool:
    """Print what came of them, and tell whether all of it is as it should be."""
    flows = ask(url, "/flow_runs/filter", {"limit": 200}) or []
    states = Counter(f["state"]["type"] for f in flows)
    tasks = ask(url, "/task_runs/count", {})
    with DuckdbLedger(folder / "out" / "attuner.duckdb") as ledger:
        names = [n for n in ledger.campaigns() if n not in before]
        shipped = [n for n in names if History(ledger.history(n)).shipment()]
        problems = ledger.verify()
        counts = ledger.counts()
    say(f"flow runs on the server: {dict(states)}, task runs: {tasks}")
    events = sum(counts[n] for n in names)
    said = f"ledger: {len(names)} campaigns, {len(shipped)} with a shipment, {events} events"
    say(f"{said}; verify finds {len(problems)} problems")
    for problem in problems[:5]:
        say(f"  {problem.line()}")
    locks = [
        f"{log.name}: {line[:160]}"
        for log in sorted(folder.glob("*.log"))
        for line in log.read_text(errors="replace").splitlines()
        if LOCKED.search(line)
    ]
    say(f"lines that tell of a lock: {len(locks)}")
    for line in locks[:10]:
        say(f"  {line}")
    return len(names) == len(shipped) == number == states.get("COMPLETED", 0) and not problems


def say(text: str) -> None:
    """Write one line at once."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def main() -> int:
    """Start the server, run the campaigns, judge them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--campaigns", type=int, default=10)
    parser.add_argument("--ledger", default="", metavar="FILE", help="ledger to copy first: campaigns run on a year's history")
    parser.add_argument("--impatient", action="store_true", help="Prefect's own time-outs and number of tries")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "out").mkdir()
        before: set[str] = set()
        if args.ledger:
            for suffix in ("", ".anchor"):
                shutil.copy(args.ledger + suffix, folder / "out" / f"attuner.duckdb{suffix}")
            with DuckdbLedger(folder / "out" / "attuner.duckdb") as ledger:
                before = set(ledger.campaigns())
        process, env = served(folder, patient=not args.impatient)
        try:
            took = sorted(run(folder, env, args.campaigns))
            say(f"{args.campaigns} campaigns at once: first done after {took[0]:.0f} s, last after {took[-1]:.0f} s")
            good = judged(folder, env["PREFECT_API_URL"], number=args.campaigns, before=before)
        finally:
            process.terminate()
            process.wait(60)
        say(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
        return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
