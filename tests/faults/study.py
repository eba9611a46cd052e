"""The gate study: `python -m tests.faults.study` makes every run of the plan that is missing, judges each candidate against
its baseline with the project's own looks, and writes docs/gate_study/*.csv. It can be stopped and started at any time: a run
whose folder holds its end and the digest of its plan entry is not made again."""

import argparse
import hashlib
import json
import shutil
import time
from pathlib import Path

from . import plan, tables, workload
from .farm import Farm

WORK = Path("out/gate-study")
RESULTS = Path("docs/gate_study")


def finished(case: plan.Case, work: Path, runner: str = "") -> bool:
    """Tell whether a run is there, whole, and made from this plan entry (and by this runner, where one is named)."""
    folder = work / "runs" / case.name
    try:
        known = json.loads((folder / "plan.json").read_text())
    except (FileNotFoundError, ValueError):
        return False
    if runner and known.get("runner") != runner:
        return False
    return bool(known["digest"] == case.digest(work) and (known["status"] == "failed" or (folder / "done.json").exists()))


def runner_digest() -> str:
    """Return the digest of the trainer and its probe: what a run was made with."""
    whole = hashlib.sha256()
    for path in sorted(Path("attuner/runner").rglob("*.py")):
        whole.update(path.read_bytes())
    return whole.hexdigest()[:12]


def run(case: plan.Case, work: Path, farm: Farm, runner: str) -> tuple[str, float]:
    """Make one run. Returns its outcome and seconds; a failed one leaves its log and is an outcome."""
    folder = work / "runs" / case.name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "job.json").write_text(json.dumps(case.job(work)))
    answer = farm.run(folder, case.fault)
    status = "failed" if any(answer["status"]) else "ok"
    known = {"digest": case.digest(work), "status": status, "seconds": answer["seconds"], "runner": runner}
    (folder / "plan.json").write_text(json.dumps(known))
    return status, float(answer["seconds"])


def make(cases: list[plan.Case], work: Path, limit: int, *, renew: bool) -> None:
    """Make what is missing of the cases (renew: or was made by another runner), at most `limit` runs, and say how it goes."""
    runner = runner_digest()
    missing = [case for case in cases if not finished(case, work, runner if renew else "")][: limit or None]
    print(f"{len(cases)} runs planned, {len(missing)} to make", flush=True)
    if not missing:
        return
    start = time.monotonic()
    with Farm() as farm:
        workload.prepare(work, farm)
        for done, case in enumerate(missing, 1):
            status, seconds = run(case, work, farm, runner)
            left = (time.monotonic() - start) / done * (len(missing) - done)
            print(f"{done:4}/{len(missing)} {case.name:60} {status:6} {seconds:5.1f} s   {left / 60:5.1f} min left", flush=True)


def main() -> None:
    """Run, judge, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=["faults", "healthy"], default="")
    parser.add_argument("--fault", action="append", default=[], help="only this fault; may be given several times")
    parser.add_argument("--limit", type=int, default=0, help="make at most this many runs")
    parser.add_argument("--renew", action="store_true", help="make runs again that another trainer or probe made")
    parser.add_argument("--judge-only", action="store_true", help="judge the runs that are there")
    parser.add_argument("--work", type=Path, default=WORK, help=f"folder of the runs (default {WORK})")
    parser.add_argument("--results", type=Path, default=RESULTS, help=f"folder of the tables (default {RESULTS})")
    chosen = parser.parse_args()
    work = chosen.work.resolve()
    cases = plan.whole(chosen.only)
    if chosen.fault:
        some = [case for case in cases if case.fault in chosen.fault]
        cases = [*dict.fromkeys(case.baseline(r) for case in some for r in (0, 1)), *some]
    if not chosen.judge_only:
        make(cases, work, chosen.limit, renew=chosen.renew)
    there = [case for case in cases if finished(case, work)]
    tables.write(there, work, chosen.results)


if __name__ == "__main__":
    main()
