"""slime's runner on a real Ray: a stand-in of slime's train.py gets the recipe's words in the words of its own parser, and its
Ray actors get the job's variables, on another node than the driver's too. The stand-in trains nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from nodes.cluster import RESOURCE
from nodes.node_lab import Site

from attuner.ports import JobSpec
from attuner.runner import files

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
ARGUMENTS = """
def add_megatron_arguments(parser):
    parser.add_argument("--lr", type=float)
    parser.add_argument("--save")
    parser.add_argument("--lr-decay-iters", type=int)
    parser.add_argument("--bf16", action="store_true")
    return parser
"""
OPTIONS = """
def get_slime_extra_args_provider(custom=None):
    def add(parser):
        parser.add_argument("--num-rollout", type=int)
        parser.add_argument("--custom-megatron-init-path")
        return parser
    return add
"""
TRAIN = f"""
import json, os, pathlib, sys
import ray

class Actor:
    def train(self, step):
        import attuner_runner.run_slime as shipped
        folder = pathlib.Path(os.environ[shipped.RUN_DIR])
        line = {{"step": step, "told": os.environ["TOLD"], "path": os.environ["PYTHONPATH"]}}
        with (folder / "steps.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\\n")
        return ray.get_runtime_context().get_node_id()

def main():
    print("words", json.dumps(sys.argv[1:]))
    actors = [ray.remote(Actor).options(num_cpus=0, resources={{"{RESOURCE}": 1}}).remote() for _ in range(2)]
    nodes = [ray.get(actor.train.remote(i)) for i, actor in enumerate(actors)]
    print("nodes", len(set(nodes)))
    print("step 1: {{'train/loss': 1.0}}")

main()
"""


def checkout(folder: Path) -> Path:
    """Write stand-ins of slime and of what its train.py needs."""
    for name in ("sglang", "transformers", "torch_memory_saver", "slime", "slime/utils", "megatron", "megatron/training"):
        (folder / name).mkdir(parents=True)
        (folder / name / "__init__.py").write_text("")
    (folder / "megatron" / "training" / "arguments.py").write_text(ARGUMENTS)
    (folder / "slime" / "utils" / "arguments.py").write_text(OPTIONS)
    (folder / "train.py").write_text(TRAIN)
    return folder


def test_slimes_actors_get_the_jobs_words_and_variables(site: Site, tmp_path: Path) -> None:
    source = checkout(tmp_path / "slime")
    document = {
        **{"slime_source": str(source), "source": "", "script": "train.py", "steps": 2, "profile_steps": 0, "drop": ["save"]},
        "arguments": {"lr": 0.1, "bf16": True, "save": "/out", "num_rollout": 3000},
        "set": {
            "num_rollout": 2,
            "lr_decay_iters": 12000,
            "debug_train_only": True,
            "load_debug_rollout_data": "/d/{rollout_id}.pt",
        },
    }
    job = JobSpec(
        module="run_slime",
        job=document,
        env={"TOLD": "yes"},
        gpus=2,
        gpus_per_node=1,
        resource=RESOURCE,
        time_limit_s=90.0,
        hang_s=60.0,
        torchrun=False,
        devices_by="job",
        step_pattern=r"\bstep \d+: \{",
    )
    launcher = site.launcher(node_check="off")
    attempt = site.submit(launcher, "l01", job)
    state = site.end_of(launcher, attempt)
    folder = Path(attempt.folder)
    log = (folder / files.LOG).read_text()
    assert (state.phase, launcher.files(attempt).stamp.outcome) == ("succeeded", "ok"), log[-2000:]
    words = json.loads(next(line for line in log.splitlines() if line.startswith("words ")).removeprefix("words "))
    assert sorted(words) == sorted(
        [
            *("--lr", "0.1", "--bf16", "--num-rollout", "2", "--lr-decay-iters", "12000", "--debug-train-only"),
            *("--load-debug-rollout-data", "/d/{rollout_id}.pt"),
        ]
    )
    steps = files.read_jsonl(folder / files.STEPS)
    assert [(s["step"], s["told"]) for s in steps] == [(0, "yes"), (1, "yes")]
    assert all(str(source) in s["path"] for s in steps)
    assert "nodes 2" in log
    assert (folder / files.DONE).exists()
