"""How fast `attuner data` reads and writes, and whether its memory stays flat as the sources grow.

    python bench/data.py [--mib 256] [--rounds 3] [--tokenizer tokenizer.json] [--dir DIR]

Every run is a process of its own, from start to exit (imports included; nothing is cached but by the system, and files were
just written). MB/s are source bytes over wall-clock time, the median of the rounds; over CPU time (all threads) they don't
depend on what else the machine does. Peak memory is the kernel's VmHWM at the end, the largest of the rounds (ru_maxrss would
carry over from whoever starts the process). Each case runs at a quarter of the size and at the whole of it: a flat memory is the
same in both. Sources are made here from a fixed seed: words with Zipf's frequencies, in documents of about 2 kB.
"""

from __future__ import annotations

import argparse
import gzip
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

BLOCK = 8 << 20
WATCHED = """
import sys, time
from attuner.cli.main import main
code = main(["data", *sys.argv[1:]])
peak = next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(time.process_time(), peak, file=sys.stderr)
sys.exit(code)
"""


@dataclass(frozen=True)
class Run:
    """One process: wall-clock and CPU seconds, peak memory in MiB."""

    wall_s: float
    cpu_s: float
    peak_mib: float


def run(words: list[str]) -> Run:
    """Run `attuner data …` to its end and return what it took.

    Raises:
        SystemExit: it failed.
    """
    begun = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", WATCHED, *words], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    wall_s = time.perf_counter() - begun
    if done.returncode:
        raise SystemExit(f"failed: attuner data {' '.join(words)}: {done.stderr}")
    cpu_s, peak_kib = done.stderr.split()[-2:]
    return Run(wall_s, float(cpu_s), int(peak_kib) / 1024)


def documents(num_bytes: int) -> list[str]:
    """Return documents of about `num_bytes` in all, the same every time."""
    chance = np.random.default_rng(7)
    letters = np.array(list("etaoinshrdlucmfwypvbgkjqxz"))
    vocabulary = np.array(["".join(chance.choice(letters, size=n)) for n in chance.integers(2, 10, size=20_000)])
    weights = 1 / np.arange(1, len(vocabulary) + 1)
    words = chance.choice(vocabulary, size=num_bytes // 6, p=weights / weights.sum())
    cuts = np.cumsum(chance.geometric(1 / 330, size=len(words) // 330))
    return [" ".join(part) for part in np.split(words, cuts[cuts < len(words)])]


def sources(folder: Path, mib: int) -> dict[str, Path]:
    """Write the sources of a size: one text file, JSONL, the same packed."""
    texts = documents(BLOCK)
    text, lines = (
        "\n\n".join(texts).encode(),
        "".join(json.dumps({"id": n, "text": t}) + "\n" for n, t in enumerate(texts)).encode(),
    )
    folder.mkdir(parents=True)
    found = {"text": folder / "x.txt", "jsonl": folder / "x.jsonl", "jsonl.gz": folder / "x.jsonl.gz"}
    for name, block in (("text", text), ("jsonl", lines)):
        with found[name].open("wb") as file:
            for _ in range(-(-(mib << 20) // len(block))):
                file.write(block)
    with found["jsonl"].open("rb") as plain, gzip.open(found["jsonl.gz"], "wb", compresslevel=1) as packed:
        shutil.copyfileobj(plain, packed)
    return found


def cases(found: dict[str, Path], folder: Path, tokenizer: str) -> list[tuple[str, Path, list[str], list[Path]]]:
    """Return (name, source, words, outputs to remove before each round)."""
    row, out = ["--seq-len", "4096"], folder / "out"
    names = {name: str(path) for name, path in found.items()}
    listed = [
        ("rows, text, bytes", found["text"], ["rows", names["text"], "-o", str(out), *row], [out]),
        ("rows, jsonl, bytes", found["jsonl"], ["rows", names["jsonl"], "-o", str(out), *row], [out]),
        ("rows, jsonl.gz, bytes", found["jsonl"], ["rows", names["jsonl.gz"], "-o", str(out), *row], [out]),
        ("rows, jsonl, one a row", found["jsonl"], ["rows", names["jsonl"], "-o", str(out), *row, "--pack", "document"], [out]),
        ("rows, jsonl, shuffled", found["jsonl"], ["rows", names["jsonl"], "-o", str(out), *row, "--shuffle", "1"], [out]),
        ("lengths, jsonl", found["jsonl"], ["lengths", names["jsonl"]], []),
    ]
    made = folder / "made"
    run(["rows", names["jsonl"], "-o", str(made), *row, "--format", "megatron", "--force"])
    listed += [
        ("rows, .bin/.idx", made / "rows.bin", ["rows", str(made / "rows"), "-o", str(out), "--seq-len", "1024"], [out]),
        ("masks, after a marker", made / "rows.bin", ["masks", str(made), "--after", "the ", "--until", " of", "--force"], []),
    ]
    if tokenizer:
        listed.append(
            (
                "rows, jsonl, tokenizer",
                found["jsonl"],
                ["rows", names["jsonl"], "-o", str(out), *row, "--tokenizer", tokenizer, "--eos", "0"],
                [out],
            )
        )
    return listed


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--mib", type=int, default=256, help="size of a source (default 256)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokenizer", default="", metavar="FILE", help="a tokenizer.json to measure too")
    parser.add_argument("--dir", default=None, metavar="DIR", help="where the sources are made (default: the system's)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.dir) as name:
        sizes = {mib: Path(name) / str(mib) for mib in (max(1, arguments.mib // 4), arguments.mib)}
        prepared = {mib: cases(sources(folder, mib), folder, arguments.tokenizer) for mib, folder in sizes.items()}
        small, large = prepared
        print(f"| case | MB | MB/s | MB per CPU second | peak MiB at {small} MiB | peak MiB at {large} MiB |")
        print("|---|---|---|---|---|---|")
        for few, many in zip(prepared[small], prepared[large], strict=True):
            taken: dict[int, list[Run]] = {small: [], large: []}
            for _ in range(arguments.rounds):
                for mib, (_, _, words, outputs) in ((small, few), (large, many)):
                    for output in outputs:
                        shutil.rmtree(output, ignore_errors=True)
                    taken[mib].append(run(words))
            size = many[1].stat().st_size / 1e6
            wall_s = statistics.median(r.wall_s for r in taken[large])
            cpu_s = statistics.median(r.cpu_s for r in taken[large])
            peaks = " | ".join(f"{max(r.peak_mib for r in taken[mib]):,.0f}" for mib in (small, large))
            print(f"| {many[0]} | {size:,.0f} | {size / wall_s:,.1f} | {size / cpu_s:,.1f} | {peaks} |", flush=True)


if __name__ == "__main__":
    main()
