"""How fast `attuner profile` reads traces beside HTA, and how much memory a trace of a gigabyte takes.

    python bench/traces.py --traces ../shared/traces/hta --hta /path/to/venv/bin/python [--rounds 5]
    python bench/traces.py --huge 1.0

HTA: `python -m venv V && V/bin/pip install HolisticTraceAnalysis==0.5.0 "pandas<3"`. Runs are interleaved: one round is
every trace once with each program, each in a process of its own. In process: parse and breakdown, without imports (HTA:
`TraceAnalysis`, `get_temporal_breakdown`, `get_comm_comp_overlap`). Whole process: start to exit. Medians are printed, and
the ratios of CPU time beside them, which a busy machine disturbs less.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

FIVE = (
    "df_index_resolver/df_index_resolver.json.gz",
    "trace_diff/test/test.json.gz",
    "trace_diff/control/control.json.gz",
    "negative_queue_length_values_check/rank0.json.gz",
    "nccl_parser_config/nccl_data.json.gz",
)
# byte code is kept, as for any installed package: compiling it anew in every run is no part of reading a trace
ENVIRONMENT = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
HTA = """
import contextlib, io, logging, sys, time, warnings
warnings.simplefilter("ignore"); logging.disable(logging.WARNING)
from hta.trace_analysis import TraceAnalysis
with contextlib.redirect_stdout(io.StringIO()):
    begun, cpu = time.perf_counter(), time.process_time()
    analysis = TraceAnalysis(trace_files={0: sys.argv[1]}, trace_dir="")
    analysis.get_temporal_breakdown(visualize=False); analysis.get_comm_comp_overlap(visualize=False)
    took, cpu = time.perf_counter() - begun, time.process_time() - cpu
print(took, cpu)
"""
OURS = """
import sys, time
from pathlib import Path
from attuner.cli.profile import pieces
from attuner.traces.profile import profile
begun, cpu = time.perf_counter(), time.process_time()
profile(pieces(Path(sys.argv[1])))
print(time.perf_counter() - begun, time.process_time() - cpu)
"""


def run(command: list[str]) -> tuple[float, float, float, str]:
    """Return wall-clock seconds, CPU seconds, peak memory in MiB, and what was printed."""
    begun = time.perf_counter()
    with tempfile.TemporaryFile() as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.DEVNULL, env=ENVIRONMENT)
        _, status, usage = os.wait4(process.pid, 0)
        took = time.perf_counter() - begun
        process.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        text = out.read().decode()
    if process.returncode:
        raise SystemExit(f"{command}: exit code {process.returncode}")
    return took, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024, text


def against(folder: Path, hta: str, rounds: int) -> list[dict[str, Any]]:
    """Return the medians for the five traces."""
    rows: dict[str, dict[str, list[float]]] = {name: {} for name in FIVE}
    run([sys.executable, "-m", "attuner.cli.main", "profile", str(folder / FIVE[-1])])  # compiles what isn't yet
    for number in range(rounds):
        for name in FIVE:
            path = str(folder / name)
            for who, inside, whole in (
                ("hta", [hta, "-c", HTA, path], None),
                ("ours", [sys.executable, "-c", OURS, path], [sys.executable, "-m", "attuner.cli.main", "profile", path]),
            ):
                wall, cpu, mib, text = run(inside)
                own, own_cpu = map(float, text.split())
                if whole is not None:
                    wall, cpu, mib, _ = run(whole)
                for what, value in (("s", own), ("cpu_s", own_cpu), ("process_s", wall), ("process_cpu_s", cpu), ("mib", mib)):
                    rows[name].setdefault(f"{who}_{what}", []).append(value)
        print(f"round {number + 1} of {rounds} done", file=sys.stderr)
    return [{"trace": name, **{k: statistics.median(v) for k, v in took.items()}} for name, took in rows.items()]


def table(rows: list[dict[str, Any]]) -> str:
    """Return the comparison as Markdown."""
    head = "trace | HTA in process | attuner | × | × CPU | HTA process | attuner | × | × CPU | HTA peak MiB | attuner"
    out = [f"| {head} |", "|---|" + "---|" * 10]
    for r in rows:
        inside, inside_cpu, whole, whole_cpu = (
            r[f"hta_{k}"] / r[f"ours_{k}"] for k in ("s", "cpu_s", "process_s", "process_cpu_s")
        )
        name = r["trace"].removesuffix(".json.gz")
        out.append(
            f"| {name} | {r['hta_s']:.2f} s | {r['ours_s']:.3f} s | {inside:.1f} | {inside_cpu:.1f} | "
            f"{r['hta_process_s']:.2f} s | {r['ours_process_s']:.2f} s | {whole:.1f} | {whole_cpu:.1f} | "
            f"{r['hta_mib']:.0f} | {r['ours_mib']:.0f} |"
        )
    return "\n".join(out)


def event(cat: str, name: str, pid: int, tid: int, ts: float, dur: float, args: str) -> str:
    """Return one complete event as Kineto writes it."""
    head = f'  {{"ph": "X", "cat": "{cat}", "name": "{name}", "pid": {pid}, "tid": {tid}, '
    return head + f'"ts": {ts:.3f}, "dur": {dur:.3f}, "args": {{{args}}}}}'


def write_huge(path: Path, gigabytes: float) -> int:
    """Write a GPU trace of that many 10⁹ bytes and return its number of events: 20 steps of operators, launches, kernels."""
    size, number, clock = 0, 0, 5_000_000_000_000.0
    args = '"External id": {n}, "Record function id": 0, "Sequence number": {n}, "Fwd thread id": 0, "Ev Idx": {n}'
    on_gpu = '"device": 0, "context": 1, "stream": 7, "correlation": {n}, "registers per thread": 32, "grid": [24, 1, 1]'
    with path.open("w") as file:
        size += file.write('{\n  "schemaVersion": 1,\n  "distributedInfo": {"backend": "nccl", "rank": 0, "world_size": 1},\n')
        size += file.write('  "traceEvents": [\n')
        part = gigabytes * 1e9 / 20
        for step in range(20):
            begun, until = clock, size + part
            while size < until:
                lines = [
                    event("cpu_op", f"aten::op{number % 97}", 9, 9, clock, 4.125, args.format(n=number)),
                    event(
                        "cuda_runtime", "cudaLaunchKernel", 9, 9, clock + 1, 2.001, f'"correlation": {number + 1}, "cbid": 211'
                    ),
                    event(
                        "kernel", f"void kernel_{number % 97}<float, 4>(int)", 0, 7, clock + 6, 5.313, on_gpu.format(n=number + 1)
                    ),
                ]
                size += file.write(",\n".join(lines) + ",\n")
                number += 1
                clock += 9.137
            mark = event("user_annotation", f"ProfilerStep#{step}", 9, 9, begun, clock - begun, "")
            size += file.write(mark + (",\n" if step < 19 else "\n"))
        file.write('  ],\n  "displayTimeUnit": "ms", "baseTimeNanoseconds": 1790857026000000000\n}\n')
    return number * 3 + 20


def huge(gigabytes: float) -> None:
    """Write a huge trace, read it, and print time and peak memory."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rank-0.json"
        written = write_huge(path, gigabytes)
        wall, _, mib, text = run([sys.executable, "-m", "attuner.cli.main", "profile", "--json", str(path)])
        (rank,) = json.loads(text)["ranks"]
        sums = all(s["span"] == sum(s[k] for k in ("compute", "exposed", "copy", "host", "idle")) for s in rank["steps"])
        print(f"{path.stat().st_size / 1e9:.2f} GB, {rank['events']:,} of {written:,} events, {len(rank['steps'])} steps")
        print(f"{wall:.1f} s, peak memory {mib:.0f} MiB, parts add up to every step: {sums}")


def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--traces", type=Path, default=Path(__file__).resolve().parents[2] / "shared" / "traces" / "hta")
    parser.add_argument("--hta", default="", metavar="PYTHON", help="interpreter of an environment with HTA 0.5.0 and pandas 2")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--huge", type=float, default=0.0, metavar="GB", help="write and read a trace of that size instead")
    chosen = parser.parse_args()
    if chosen.huge:
        huge(chosen.huge)
    if chosen.hta:
        print(table(against(chosen.traces, chosen.hta, chosen.rounds)))


if __name__ == "__main__":
    main()
