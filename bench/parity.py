"""Same weights, same rows, every layout: `python bench/parity.py [--steps 2]` trains each once and prints a markdown table.

The model is the quickstart's with four layers (so that virtual stages exist) and an auxiliary loss (so that it shows); one
checkpoint is trained a little by one layout and read by all. Rows whose name says `no aux` run without the auxiliary loss,
because with it the micro batch is part of the objective.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from attuner.config import load_recipe
from attuner.stacks.mcore import dataset

ROOT = Path(__file__).resolve().parent.parent
RECIPE = ROOT / "configs" / "recipes" / "mcore" / "tiny-moe-carried-over.yaml"
PLAIN: dict[str, Any] = {
    "tensor_model_parallel_size": 1,
    "sequence_parallel": False,
    "recompute_granularity": None,
    "recompute_method": None,
    "recompute_num_layers": None,
    "optimizer_cpu_offload": False,
    "optimizer_offload_fraction": 0.0,
}
TP2 = {"tensor_model_parallel_size": 2, "sequence_parallel": True}
EP2 = {"expert_model_parallel_size": 2}
PP2 = {"pipeline_model_parallel_size": 2}
VPP2 = {**PP2, "virtual_pipeline_model_parallel_size": 2}
OVERLAP = {"overlap_grad_reduce": True, "bucket_size": 100_000}
NO_AUX = {"moe_router_load_balancing_type": "none", "moe_aux_loss_coeff": 0.0}
LAYOUTS: list[tuple[str, int, dict[str, Any]]] = [
    (
        "baseline: tp2 sp, full recompute, offload",
        2,
        {k: v for k, v in load_recipe(RECIPE).arguments.items() if k in {*PLAIN, "recompute_modules"}},
    ),
    ("dp2", 2, {}),
    ("ep2, alltoall", 2, EP2),
    ("ep2, allgather", 2, {**EP2, "moe_token_dispatcher_type": "allgather"}),
    ("tp2 sp", 2, TP2),
    ("tp2 sp ep2 etp1", 2, {**TP2, **EP2, "expert_tensor_parallel_size": 1}),
    ("pp2", 2, PP2),
    ("pp2, first stage 3 layers", 2, {**PP2, "num_layers_in_first_pipeline_stage": 3}),
    ("pp2 vpp2", 2, VPP2),
    (
        "dp2, full recompute in blocks",
        2,
        {"recompute_granularity": "full", "recompute_method": "block", "recompute_num_layers": 2},
    ),
    ("dp2, selective recompute", 2, {"recompute_granularity": "selective", "recompute_modules": ["core_attn", "moe"]}),
    ("dp2, overlapped gradient reduce, small buckets", 2, OVERLAP),
    (
        "dp2, distributed optimizer, overlapped gather",
        2,
        {**OVERLAP, "use_distributed_optimizer": True, "overlap_param_gather": True},
    ),
    ("dp2, optimizer offload", 2, {"optimizer_cpu_offload": True, "optimizer_offload_fraction": 1.0}),
    ("ep2, sdpa attention", 2, {**EP2, "attention_implementation": "sdpa"}),
    ("4 ranks: pp2 ep2", 4, {**PP2, **EP2}),
    ("4 ranks: tp2 sp ep2 etp2", 4, {**TP2, **EP2, "expert_tensor_parallel_size": 2}),
    ("no aux: dp2, micro batch 1", 2, NO_AUX),
    ("no aux: ep2, micro batch 4, sdpa", 2, {**NO_AUX, **EP2, "micro_batch_size": 4, "attention_implementation": "sdpa"}),
    ("no aux: tp2 sp, micro batch 8", 2, {**NO_AUX, **TP2, "micro_batch_size": 8}),
]


def train(folder: Path, arguments: dict[str, Any], world: int, **job: Any) -> list[dict[str, Any]]:
    """Run one layout under torchrun and return its step lines."""
    folder.mkdir()
    device = {"kind": "cpu", "mem_gib": None, "threads": 1}
    spec = {"launch_id": folder.name, "attempt": 1, "stack": "mcore", "arguments": arguments, "env": {}, "world_size": world}
    (folder / "job.json").write_text(json.dumps({**spec, "warmup_steps": 1, "profile_steps": 0, "device": device, **job}))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={world}"]
    done = subprocess.run(
        [*command, "-m", "attuner.runner.train_mcore", str(folder)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"{folder.name}: {done.stderr[-2000:]}")
    return [json.loads(line) for line in (folder / "steps.jsonl").read_text().splitlines()]


def main() -> None:
    """Train every layout and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=2)
    count = parser.parse_args().steps
    recipe = load_recipe(RECIPE).arguments
    model = {**recipe, **PLAIN, "num_layers": 4, "moe_router_load_balancing_type": "aux_loss", "moe_aux_loss_coeff": 0.01}
    rows_per_step = int(str(recipe["global_batch_size"]))
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        dataset.freeze(dataset.NAME, work / "rows", seq_len=int(str(recipe["seq_length"])), num_rows=rows_per_step * (20 + count))
        common = {"rows": str(work / "rows")}
        train(work / "prepare", model, 2, first_row=0, steps=20, load=None, save=str(work / "checkpoint"), **common)
        print("| layout | step-0 loss | off the first row's | grad norm | aux loss | step-1 loss |")
        print("|---|---|---|---|---|---|")
        first: float | None = None
        for i, (title, world, change) in enumerate(LAYOUTS):
            job = {"first_row": rows_per_step * 20, "steps": count, "load": str(work / "checkpoint"), "save": None}
            steps = train(work / f"run{i}", {**model, **change}, world, **job, **common)
            loss = float(steps[0]["lm_loss"])
            first = loss if first is None else first
            aux = next(iter(steps[0]["aux"].values()), None)
            shown = "–" if aux is None else f"{aux:.7f}"
            off = f"{abs(loss - first) / first:.1e}"
            print(
                f"| {title} | {loss:.7f} | {off} | {steps[0]['grad_norm']:.7f} | {shown} | {steps[1]['lm_loss']:.7f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
