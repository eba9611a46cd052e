"""Runs of Megatron-LM's own pretrain_gpt.py on two CPU ranks with the probe attached. They need a source checkout of it, tag
core_v0.16.1, named by ATTUNER_MEGATRON_SRC; without one these tests skip."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCE = os.environ.get("ATTUNER_MEGATRON_SRC", "")
ARGUMENTS = """--transformer-impl local --distributed-backend gloo --mock-data --tokenizer-type NullTokenizer --vocab-size 511
 --num-layers 4 --hidden-size 64 --num-attention-heads 4 --ffn-hidden-size 128 --seq-length 64 --max-position-embeddings 64
 --micro-batch-size 1 --global-batch-size 8 --train-iters 3 --lr 1e-3 --min-lr 1e-4 --lr-decay-style constant
 --lr-warmup-iters 0 --lr-decay-iters 100 --split 99,1,0 --eval-iters 0 --eval-interval 1000 --log-interval 1 --num-workers 0
 --seed 1234 --no-masked-softmax-fusion --no-gradient-accumulation-fusion --no-bias-gelu-fusion --no-bias-dropout-fusion
 --no-persist-layer-norm --no-rope-fusion --hidden-dropout 0 --attention-dropout 0 --ckpt-format torch_dist
 --no-create-attention-mask-in-dataloader""".split()  # noqa: SIM905
SAVE = ["--save-interval", "3", "--no-save-optim", "--no-save-rng"]
LOAD = ["--no-load-optim", "--no-load-rng", "--finetune"]

Pretrain = Callable[..., Path]


@pytest.fixture(scope="session")
def source() -> Path:
    if not SOURCE:
        pytest.skip("ATTUNER_MEGATRON_SRC names no Megatron-LM checkout")
    return Path(SOURCE).resolve()


@pytest.fixture(scope="session")
def pretrain(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Pretrain:
    """Run a training script with the probe: pretrain(name, *arguments, script=...) → the probe's folder (log.txt beside it)."""
    home = tmp_path_factory.mktemp("pretrain")

    def run(name: str, *arguments: str, script: Path | None = None) -> Path:
        out = home / name
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        torchrun = ["-m", "torch.distributed.run", "--nproc-per-node=2", "--master-addr=127.0.0.1", f"--master-port={port}"]
        probe = ["-m", "attuner.runner.probe", "--out", str(out), str(script or source / "pretrain_gpt.py")]
        environment = {"PYTHONPATH": f"{source}:{ROOT}", "ATTUNER_CPU": "1", "OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            [sys.executable, *torchrun, *probe, *ARGUMENTS, *arguments],
            env={**os.environ, **environment, "CUDA_DEVICE_MAX_CONNECTIONS": "1"},
            cwd=home,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
        (out / "log.txt").write_text(done.stdout + done.stderr)
        return out

    return run


@pytest.fixture(scope="session")
def trained(pretrain: Pretrain, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Arguments that load weights which were trained a little: random ones depend on the layout."""
    folder = tmp_path_factory.mktemp("checkpoint")
    pretrain("first", "--save", str(folder), *SAVE)
    return ["--load", str(folder), *LOAD]
