"""Walks for some steps, a line each, in place of a trainer: for tests of what is around one.

Job keys: steps, pace_s, by ('file', 'log'), hold (slots that it takes by a Ray actor of its own).
"""

import json
import os
import sys
import time
from pathlib import Path

from .rank import die_with_parent


def main(run_dir: Path) -> None:
    die_with_parent()
    job = json.loads((run_dir / "job.json").read_text())
    (run_dir / f"walked.{os.getpid()}").write_text(os.environ.get("WALK", ""))
    holder = _hold(job["hold"]) if job.get("hold") else None
    for step in range(int(job["steps"])):
        if job.get("by", "file") == "log":
            sys.stdout.write(f"iteration {step + 1}/ {job['steps']} | loss 1.0\n")
            sys.stdout.flush()
        else:
            with (run_dir / "steps.jsonl").open("a") as out:
                out.write(json.dumps({"step": step}) + "\n")
        time.sleep(float(job.get("pace_s", 0.1)))
    del holder
    (run_dir / "done.json").write_text("{}")


def _hold(slots: int) -> object:
    import ray

    ray.init(log_to_driver=False)

    class Held:
        def here(self) -> str:
            return ray.get_runtime_context().get_node_id()

    holders = [ray.remote(Held).options(num_cpus=0, resources={"slot": 1}).remote() for _ in range(slots)]
    ray.get([h.here.remote() for h in holders])
    return holders


if __name__ == "__main__":
    main(Path(sys.argv[1]))
