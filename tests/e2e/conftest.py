"""A drill campaign small enough to be killed and resumed many times: real Ray, real megatron-core training, real Prefect."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]

RECIPE: dict[str, Any] = {
    "num_layers": 2,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "ffn_hidden_size": 128,
    "num_moe_experts": 4,
    "moe_router_topk": 2,
    "moe_ffn_hidden_size": 128,
    "moe_router_load_balancing_type": "none",
    "normalization": "RMSNorm",
    "gated_linear_unit": True,
    "activation_func": "silu",
    "add_bias_linear": False,
    "hidden_dropout": 0.0,
    "attention_dropout": 0.0,
    "vocab_size": 256,
    "seq_length": 64,
    "global_batch_size": 8,
    "lr": 0.001,
    "clip_grad": 1.0,
    "grad_reduce_in_fp32": True,
    "seed": 1234,
    "tensor_model_parallel_size": 2,
    "sequence_parallel": True,
    "micro_batch_size": 1,
    "recompute_granularity": "full",
    "recompute_method": "uniform",
    "recompute_num_layers": 1,
    "moe_token_dispatcher_type": "alltoall",
}
SCRIPT: list[dict[str, Any]] = [
    {
        "group": "layout",
        "title": "tp→dp",
        "arguments": {"tensor_model_parallel_size": 1, "sequence_parallel": False, "expert_tensor_parallel_size": 1},
    },
    {"group": "micro-batch", "title": "micro batch 1→4", "parent": "h01", "arguments": {"micro_batch_size": 4}},
]


class Drill:
    """One home folder and one campaign file, and the command line run on them."""

    def __init__(self, folder: Path) -> None:
        self.home = folder / "out"
        self.file = folder / "drill.yaml"
        self.started: list[subprocess.Popen[str]] = []
        self.env = {
            **{k: v for k, v in os.environ.items() if not k.startswith(("ATTUNER_", "PREFECT_", "RAY_"))},
            "ATTUNER_HOME": str(self.home),
            "PREFECT_HOME": str(folder / "prefect"),
        }

    def write(self, *, script: list[dict[str, Any]] | None = None, recipe: dict[str, Any] | None = None, **changes: Any) -> None:
        """Write the campaign file; keyword arguments replace whole sections."""
        baseline = self.file.parent / "baseline.yaml"
        baseline.write_text(yaml.safe_dump({"stack": "mcore", "arguments": {**RECIPE, **(recipe or {})}}))
        body: dict[str, Any] = {
            "name": "drill",
            "workload": {
                "model": "drill-moe",
                "dataset": "python-stdlib",
                "seq_len": 64,
                "global_batch": 8,
                "precision": "fp32",
                "seed": 1234,
                "steps": 6,
                "warmup_steps": 2,
                "gpus": 2,
                "hardware": "cpu",
            },
            "baseline": "baseline.yaml",
            "stack": {"name": "mcore", "version": "0.16.1"},
            "launcher": {
                "name": "ray_jobs",
                "cluster": {"name": "laptop", "devices": 2, "devices_per_node": 2, "device": {"mem_gib": 1.0}},
            },
            "proposer": {"name": "scripted", "script": SCRIPT if script is None else script},
            "budget": {"gpu_hours": 2.0},
            "noise": {"max_step_spread": 30.0, "busy_sigma": 0.9, "sigmas": 0.5},
            "launch": {"expected_s": 20, "max_s": 120, "hang_s": 20},
            "prepare": {
                "steps": 4,
                "arguments": {
                    "tensor_model_parallel_size": 1,
                    "sequence_parallel": False,
                    "micro_batch_size": 4,
                    "recompute_granularity": None,
                },
            },
        }
        self.file.write_text(yaml.safe_dump({**body, **changes}))

    def attuner(self, *arguments: str, check: bool = True, timeout: float = 400) -> subprocess.CompletedProcess[str]:
        """Run one command to its end."""
        done = subprocess.run(
            [sys.executable, "-m", "attuner.cli.main", *arguments],
            cwd=ROOT,
            env=self.env,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        if check and done.returncode:
            raise AssertionError(f"attuner {arguments}: exit {done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}")
        return done

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Start one command and leave it running."""
        process = subprocess.Popen(
            [sys.executable, "-m", "attuner.cli.main", *arguments],
            cwd=ROOT,
            env=self.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.started.append(process)
        return process

    def campaign(self) -> str:
        """Return the id of the only campaign, or ''."""
        found = json.loads(self.attuner("status", "--json").stdout)
        return found[0]["campaign"] if found else ""

    def events(self) -> list[Any]:
        """Return the campaign's events."""
        from attuner.ledgers.duckdb_file import DuckdbLedger

        with DuckdbLedger(self.home / "attuner.duckdb") as ledger:
            names = ledger.campaigns()
            return list(ledger.history(names[0])) if names else []

    def wait_for(self, condition: Callable[[list[Any]], bool], process: subprocess.Popen[str], timeout: float = 200) -> None:
        """Wait until the ledger fulfils a condition, while the process runs."""
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            if (self.home / "attuner.duckdb").exists() and condition(self.events()):
                return
            if process.poll() is not None:
                raise AssertionError(f"ended early: {process.stdout.read() if process.stdout else ''}"[-3000:])
            time.sleep(0.2)
        raise AssertionError("the condition never came true")

    def marked(self) -> list[int]:
        """Return processes that runs of this home started and that still live: Ray, ranks, a temporary Prefect server."""
        home = f"ATTUNER_HOME={self.home}".encode()
        left = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit() or int(entry.name) == os.getpid():
                continue
            try:
                environment = (entry / "environ").read_bytes().split(b"\0")
            except OSError:
                continue
            if home in environment and any(x.startswith((b"ATTUNER_RAY_ID=", b"ATTUNER_SERVES=")) for x in environment):
                left.append(int(entry.name))
        return left


@pytest.fixture
def drill(tmp_path: Path) -> Iterator[Drill]:
    """Return a drill whose leftovers are ended, by process id, whatever the test did."""
    found = Drill(tmp_path)
    yield found
    for process in found.started:
        if process.poll() is None:
            process.kill()
        process.wait()
        if process.stdout:
            process.stdout.close()
    for pid in found.marked():
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
