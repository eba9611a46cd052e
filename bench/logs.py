"""Speed and memory of the log reader on one core: a generated log of iteration lines among NCCL chatter, read in one pass.

`python bench/logs.py [--mib 1024] [--seed 0]`. Prints MB/s (10**6 bytes), the steps found against those written, and the
peak memory after a tenth and after the whole: flat means that they are the same.
"""

from __future__ import annotations

import argparse
import random
import resource
import sys
import tempfile
import time
from pathlib import Path

from attuner.logs.reader import LogReader

PIECE = 1 << 20
CHATTER = (
    "node-{n:03d}:{pid}:{tid} [{gpu}] NCCL INFO Channel {c:02d}/0 : {a}[{a}] -> {b}[{b}] via P2P/CUMEM/read",
    "node-{n:03d}:{pid}:{tid} [{gpu}] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [RO]; OOB bond0:10.0.{n}.{gpu}<0>",
    "[rank{a}]:[W101 12:20:31.000000001 ProcessGroupNCCL.cpp:1250] Warning: WARNING: process group has NOT been destroyed",
    '\x1b[36m(TrainActor pid={pid}, ip=10.0.0.{gpu})\x1b[0m INFO:     10.0.{n}.11:41646 - "GET /health HTTP/1.1" 200 OK',
    "[rank{a}]: /usr/lib/python3/site-packages/torch/utils/checkpoint.py:295: UserWarning: x is deprecated",
)


def step(i: int, chance: random.Random) -> str:
    """Return one iteration line."""
    seconds, told = (
        f"{i % 60:02d}.{i % 1000000:06d}",
        {
            "consumed samples": f"{i * 2048:12d}",
            "elapsed time per iteration (ms)": f"{2000 + chance.random() * 50:.1f}",
            "throughput per GPU (TFLOP/s/GPU)": f"{390 + chance.random():.1f}",
            "learning rate": f"{1e-4:.6E}",
            "global batch size": " 2048",
            "lm loss": f"{3 + chance.random():.6E}",
            "load_balancing_loss": f"{1 + chance.random() / 10:.6E}",
            "loss scale": "1.0",
            "grad norm": f"{chance.random():.3f}",
            "number of skipped iterations": "  0",
            "number of nan iterations": "  0",
        },
    )
    fields = "".join(f" {k}: {v} |" for k, v in told.items())
    return f" [2026-02-11 08:40:{seconds}] iteration {i:8d}/ {10**8:8d} |{fields}"


def write(path: Path, size: int, seed: int, steps_per_line: float) -> int:
    """Write a log of about `size` bytes; return the number of iteration lines."""
    chance, steps, written = random.Random(seed), 0, 0
    with path.open("wb") as file:
        while written < size:
            lines = []
            for _ in range(2000):
                if chance.random() < steps_per_line:
                    steps += 1
                    lines.append(step(steps, chance))
                else:
                    what = chance.choice(CHATTER)
                    told = {"n": chance.randrange(64), "pid": chance.randrange(10**5), "tid": chance.randrange(10**5)}
                    lines.append(
                        what.format(**told, gpu=chance.randrange(8), c=chance.randrange(32), a=chance.randrange(512), b=3)
                    )
            data = ("\n".join(lines) + "\n").encode()
            file.write(data)
            written += len(data)
    return steps


def read(path: Path, size: int) -> tuple[int, float]:
    """Read the first `size` bytes; return steps and processor seconds."""
    reader, found, start = LogReader(seq_length=4096, world_size=512), 0, time.process_time()
    with path.open("rb", buffering=0) as file:
        while size > 0 and (piece := file.read(min(PIECE, size))):
            found += len(reader.feed(piece))
            size -= len(piece)
    return found + len(reader.close()), time.process_time() - start


def peak_mib() -> float:
    """Return the most memory that this process held so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> int:
    """Measure and print; exit 1 below 20 MB/s."""
    options = argparse.ArgumentParser()
    options.add_argument("--mib", type=int, default=1024)
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--steps", type=float, default=0.05, help="share of lines that are steps (default 0.05)")
    asked = options.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "log.txt"
        wanted = write(path, asked.mib << 20, asked.seed, asked.steps)
        size = path.stat().st_size
        read(path, size // 10)
        small = peak_mib()
        found, seconds = read(path, size)
        rate = size / 1e6 / seconds
        print(f"{size / 1e6:.0f} MB, {wanted} step lines ({asked.steps:.0%} of lines): found {found}")
        memory = f"peak memory {small:.0f} MiB after a tenth, {peak_mib():.0f} MiB after all"
        print(f"{rate:.0f} MB/s on one core ({seconds:.2f} s); {memory}")
    return 0 if rate >= 20 and found == wanted else 1


if __name__ == "__main__":
    sys.exit(main())
