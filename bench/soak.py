"""Soak: campaigns under random faults. Seeded and resumable: run the same command again, and it goes on where it was.

python bench/soak.py replay --folder F --campaigns 200     on a real Prefect server and worker, faults of flow, worker and server
python bench/soak.py real   --folder F --campaigns 20      real training on a local Ray, faults of flow, head, driver and ranks
python bench/soak.py judge  --folder F                     is every law kept; exit 1 if not
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

sys.path.insert(0, str(Path(__file__).resolve().parent))

import soak_processes as processes
from soak_house import ROOT, House
from soak_page import page
from soak_plan import Case, real_case, replay_case
from soak_real import train
from soak_record import Record
from soak_replay import play

CONFIGS = ROOT / "configs"
FIGURES = "<!-- figures -->"
"""In a page: what follows is the judge's."""


def bases() -> dict[str, dict[str, Any]]:
    """Return the campaign files that the soak's are made from."""
    names = ("replay-formula", "replay-quickstart", "quickstart")
    return {n: yaml.safe_load((CONFIGS / "campaigns" / f"{n}.yaml").read_text()) for n in names}


def replay(arguments: argparse.Namespace) -> int:
    """Run part A."""
    cases = [replay_case(i, seed=arguments.seed, configs=CONFIGS, base=bases()) for i in range(arguments.campaigns)]
    return _soak(arguments, cases, play, worker=True)


def real(arguments: argparse.Namespace) -> int:
    """Run part B."""
    cases = [real_case(i, seed=arguments.seed, configs=CONFIGS, base=bases()) for i in range(arguments.campaigns)]
    return _soak(arguments, cases, train, worker=False)


def _soak(arguments: argparse.Namespace, cases: list[Case], run: Callable[..., None], *, worker: bool) -> int:
    folder = Path(arguments.folder[0]).resolve()
    (folder / "home").mkdir(parents=True, exist_ok=True)
    processes.adopt()
    house, record = House(folder, limit=arguments.at_once + 2), Record(folder / "soak.jsonl")
    ended = False
    try:
        house.open(worker=worker)
        run(house, cases, record, at_once=arguments.at_once, until=time.monotonic() + 60 * arguments.minutes)
        ended = True
        record.say("soak", -1, "unfinished", runs=house.api.unfinished())
    finally:
        house.close()
        leftovers(folder, record if ended else None)
    return 0


def leftovers(folder: Path, record: Record | None) -> None:
    """End every process that is left of the soak some seconds after its end; note it, unless the soak was stopped midway."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline and (left := {*processes.of_home(folder / "home"), *processes.descendants(os.getpid())}):
        processes.reap(set())
        time.sleep(0.2)
    for pid in left:
        if record:
            record.say("soak", -1, "left", pid=pid, command=processes.command(pid))
        processes.send(pid)


def judge(arguments: argparse.Namespace) -> int:
    """Print what the soak did and which laws it broke."""
    text, broken = page([Path(x).resolve() for x in arguments.folder])
    print(text)
    if arguments.into:
        head, mark, _ = Path(arguments.into).read_text().partition(FIGURES)
        Path(arguments.into).write_text(f"{head}{mark}\n\n{text}")
    return 1 if broken else 0


def main() -> int:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=["replay", "real", "judge"])
    parser.add_argument("--folder", required=True, nargs="+", help="where everything of this soak lies; judge: of several")
    parser.add_argument("--campaigns", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--at-once", type=int, default=3, help="campaigns under way together")
    parser.add_argument("--into", default="", help="judge: put the table into this page")
    parser.add_argument("--minutes", type=float, default=600, help="begin no campaign after these")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what was started is ended all the same
    return {"replay": replay, "real": real, "judge": judge}[arguments.part](arguments)


if __name__ == "__main__":
    raise SystemExit(main())
