"""Rows, a trained checkpoint and a launcher for tests that really train with megatron-core on CPUs."""

import hashlib
import json
import os
import random
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
SEQ = 64
ARGUMENTS: dict[str, Any] = {
    "num_layers": 4,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_query_groups": 2,
    "ffn_hidden_size": 128,
    "gated_linear_unit": True,
    "activation_func": "silu",
    "add_bias_linear": False,
    "normalization": "RMSNorm",
    "qk_layernorm": True,
    "num_moe_experts": 4,
    "moe_router_topk": 2,
    "moe_ffn_hidden_size": 64,
    "moe_router_load_balancing_type": "aux_loss",
    "moe_aux_loss_coeff": 0.01,
    "moe_token_dispatcher_type": "alltoall",
    "moe_router_dtype": "fp32",
    "micro_batch_size": 1,
    "global_batch_size": 4,
    "seq_length": SEQ,
    "vocab_size": 256,
    "lr": 1e-3,
    "weight_decay": 0.1,
    "clip_grad": 1.0,
}


@dataclass
class Launched:
    """What a launch left."""

    folder: Path
    status: int
    log: str
    steps: list[dict[str, Any]]

    def json(self, name: str) -> Any:
        return json.loads((self.folder / name).read_text())

    def failure(self) -> Any:
        """The first failure: torchrun may end the other ranks before they tell theirs."""
        told = [json.loads(path.read_text()) for path in self.folder.glob("failure.rank*.json")]
        return min(told, key=lambda failure: float(failure["t"]))


def write_rows(folder: Path, count: int, seq: int) -> Path:
    """Rows that a model can learn: an affine walk with noise."""
    folder.mkdir(parents=True)
    draw, tokens = random.Random(7), bytearray()
    for _ in range(count):
        token = draw.randrange(256)
        for _ in range(seq + 1):
            tokens.append(token)
            token = (token * 5 + 17 + draw.randrange(4)) % 256
    (folder / "rows.bin").write_bytes(tokens)
    about = {"num_rows": count, "seq_len": seq, "vocab_size": 256, "sha256": hashlib.sha256(tokens).hexdigest()}
    (folder / "rows.json").write_text(json.dumps({**about, "source": "tests"}))
    return folder


def start(folder: Path, job: dict[str, Any], ranks: int, module: str = "train_mcore") -> Launched:
    """Run one launch to its end; `module` is one of the runner's, or a full name."""
    module = module if "." in module else f"attuner.runner.{module}"
    folder.mkdir(parents=True)
    (folder / "job.json").write_text(json.dumps(job))
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--max-restarts=0", f"--nproc-per-node={ranks}"]
    done = subprocess.run(
        [sys.executable, *torchrun, "-m", module, str(folder)],
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    steps = folder / "steps.jsonl"
    lines = [json.loads(line) for line in steps.read_text().splitlines()] if steps.exists() else []
    return Launched(folder, done.returncode, done.stdout + done.stderr, lines)


@pytest.fixture(scope="session")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_rows(tmp_path_factory.mktemp("data") / "rows", 256, SEQ)


@pytest.fixture(scope="session")
def launch(tmp_path_factory: pytest.TempPathFactory, rows: Path) -> Callable[..., Launched]:
    """Launch the trainer: launch(ranks, arguments, **job keys); `module` in its place."""

    def go(ranks: int, arguments: dict[str, Any] | None = None, *, module: str = "train_mcore", **keys: Any) -> Launched:
        job = {
            "launch_id": "test",
            "attempt": 0,
            "stack": "mcore",
            "arguments": {**ARGUMENTS, **(arguments or {})},
            "env": {},
            "world_size": ranks,
            "rows": str(rows),
            "first_row": 0,
            "load": None,
            "save": None,
            "steps": 2,
            "warmup_steps": 1,
            "profile_steps": 0,
            "device": {"kind": "cpu", "mem_gib": None, "threads": 1},
        }
        return start(tmp_path_factory.mktemp("run") / "run", {**job, **keys}, ranks, module)

    return go


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory, launch: Callable[..., Launched]) -> tuple[str, Launched]:
    """A checkpoint trained a little by one rank; random weights would hide faults."""
    path = tmp_path_factory.mktemp("checkpoint") / "trained"
    done = launch(1, save=str(path), steps=4, warmup_steps=0, first_row=128)
    assert done.status == 0, done.log[-3000:]
    return str(path), done
