"""A tiny job that tells what the nodes of a cluster would give a run: Python, packages, storage. Holds no device.

`python -m attuner_runner.checkup JOB` prints one line: `CHECKUP {...}` with a row for every node that has devices, up to `limit`.
"""

import json
import logging
import os
import sys
from pathlib import Path
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from . import files, machine
from .storage import Storage, StorageError
from .versions import versions

SAID = "CHECKUP "


def node(job: dict[str, Any]) -> dict[str, Any]:
    """Return what this node has, and whether it can write where runs write."""
    found: dict[str, Any] = {"host": os.uname().nodename, "python": sys.executable, "versions": versions(), "storage": ""}
    found["num_gpus"] = len(machine.gpu_models())
    run_dir = Path(job["run_dir"])
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
        mark = run_dir / f"{ray.get_runtime_context().get_node_id()}.json"
        files.write_json(mark, {"nonce": job["nonce"]})
        found["sees_control"] = (run_dir / job["nonce"]).exists()
        Storage(job, run_dir).sync()
        if not job.get("storage"):
            mark.unlink()
    except (OSError, StorageError) as error:
        found["storage"] = " ".join(str(error).split())[:200]
    return found


def main(document: Path) -> int:
    """Ask the nodes and print what they said."""
    job = files.read_json(document)
    ray.init(log_to_driver=False, logging_level=logging.ERROR)
    alive = [n["NodeID"] for n in ray.nodes() if n["Alive"] and n["Resources"].get(job["resource"], 0) > 0][: job["limit"]]
    ask = ray.remote(node)
    asked = [
        ask.options(num_cpus=0, max_retries=0, scheduling_strategy=NodeAffinitySchedulingStrategy(x, soft=False)).remote(job)
        for x in alive
    ]
    rows = []
    for node_id, a in zip(alive, asked, strict=True):
        try:
            said: dict[str, Any] = ray.get([a], timeout=60)[0]
            rows.append({"id": node_id, **said})
        except ray.exceptions.RayError as error:
            rows.append({"id": node_id, "failed": " ".join(str(error).split())[:200]})
    sys.stdout.write(f"{SAID}{json.dumps({'ray': ray.__version__, 'nodes': rows})}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
