"""What a run is told of its nodes before its ranks start, and which of them are slow or sick.

Facts of every node (devices, NVLink, ports) must fit the layout; where there are several nodes a short probe (`topology`)
measures them. A node is slow if its product of matrices, or its exchange with both neighbours, is worse than the median of the
nodes by `slow_node_factor`; of two nodes, than the better one.
"""

import statistics
import sys
import time
from pathlib import Path
from typing import Any

from . import files, stopping
from .nodes import AnyNode, NodeLost, gather

PROBE_S = 120.0
PROBE_LOG = "topology.log.txt"
AGAIN_S = 3600.0
"""A node that passed is not probed again for so long, within one campaign."""
PASSED = "nodes.json"
"""File beside the campaign's runs: when each node passed."""


class Unfit(Exception):
    """The nodes can't hold the layout; no rank was started."""


def look(job: dict[str, Any], run_dir: Path, nodes: list[AnyNode], counts: list[int], hosts: dict[str, str]) -> dict[str, Any]:
    """Return what is stamped as `topology`: a row a node, warnings, and the ids of slow nodes.

    Raises:
        Unfit: a node has fewer devices than ranks.
        NodeLost: a node went away meanwhile.
    """
    facts = gather(nodes, "facts")
    rows = [
        {"id": n.id, "host": hosts.get(n.id, ""), "ranks": count, **fact}
        for n, count, fact in zip(nodes, counts, facts, strict=True)
    ]
    report: dict[str, Any] = {"nodes": rows, "warnings": differences(rows), "slow": []}
    if job["resource"] == "GPU":
        for row in rows:
            if not row["num_gpus"]:
                report["warnings"].append(f"node {row['host']} ({row['id']}): neither the kernel nor nvidia-smi tells of a GPU")
            elif row["num_gpus"] < row["ranks"]:
                raise Unfit(f"node {row['host']} ({row['id']}) has {row['num_gpus']} GPUs for {row['ranks']} ranks")
    if len(nodes) < 2 or job.get("node_check", "auto") == "off":
        report["probe"] = "off" if len(nodes) > 1 else "one node"
        return report
    ids = [node.id for node in nodes]
    known = run_dir.parent / PASSED
    if (ago := _passed_ago(known, ids)) is not None:
        report["probe"] = f"passed {ago:.0f} s ago"
        return report
    failed = _probe(job, run_dir, nodes, counts)
    if failed:
        report["probe"] = "failed"
        report["warnings"].append(f"the probe of the nodes failed ({failed}); see {PROBE_LOG}: nothing is known of slow nodes")
        return report
    told = files.read_json(run_dir / files.TOPOLOGY)
    report["probe"] = told["backend"]
    report["allreduce_gb_s"] = min(rank["allreduce_gb_s"] for rank in told["ranks"])
    for index, row in enumerate(rows):
        own = [rank for rank in told["ranks"] if rank["node"] == index]
        row["matmul_ms"] = max(rank["matmul_ms"] for rank in own)
        row["exchange_gb_s"] = min((r["exchange_gb_s"] for r in own if r["exchange_gb_s"] is not None), default=None)
    for row, why in slow(rows, float(job.get("slow_node_factor") or 1.5)):
        report["slow"].append(row["id"])
        report["warnings"].append(f"node {row['host']} ({row['id']}) is slow or sick: {why}")
    if not report["slow"]:
        now = time.time()
        files.write_json(known, {**_known(known), **{node_id: now for node_id in ids}})
    return report


def _known(file: Path) -> dict[str, float]:
    """Return when nodes of this campaign passed the probe last, by id."""
    try:
        found = files.read_json(file)
    except (OSError, ValueError):
        return {}
    return {k: float(v) for k, v in found.items()} if isinstance(found, dict) else {}


def _passed_ago(file: Path, ids: list[str]) -> float | None:
    """Return how long ago all these nodes had passed, None if one has to be probed: the probe holds all devices for seconds."""
    known, now = _known(file), time.time()
    ages = [now - known.get(node_id, 0.0) for node_id in ids]
    return max(ages) if all(0 <= age < AGAIN_S for age in ages) else None


def slow(rows: list[dict[str, Any]], factor: float) -> list[tuple[dict[str, Any], str]]:
    """Return the rows of slow nodes, each with the figure that shows it."""
    found: dict[int, str] = {}
    products = [row["matmul_ms"] for row in rows]
    usual = statistics.median(products) if len(rows) > 2 else min(products)
    for i, row in enumerate(rows):
        if row["matmul_ms"] > factor * usual:
            found[i] = f"matrix product {row['matmul_ms']:.3g} ms, {row['matmul_ms'] / usual:.2g} × the usual {usual:.3g} ms"
    speeds = [row["exchange_gb_s"] for row in rows]
    if len(rows) > 2 and all(speeds):  # of one pair nobody can tell which end is slow
        usual = statistics.median(speeds)
        for i, row in enumerate(rows):
            if i not in found and row["exchange_gb_s"] * factor < usual:
                found[i] = f"exchange with neighbours {row['exchange_gb_s']:.3g} GB/s where {usual:.3g} GB/s is usual"
    return [(rows[i], why) for i, why in sorted(found.items())]


def differences(rows: list[dict[str, Any]]) -> list[str]:
    """Return what is odd about a set of nodes by their facts alone: unlike devices, links, ports; ports that are down."""
    said = []
    for what in ("hardware", "num_gpus", "nvlink"):
        kinds: dict[str, list[str]] = {}
        for row in rows:
            value = row[what]
            if what == "nvlink":
                value = str(value).partition(", domain")[0]
            kinds.setdefault(str(value), []).append(row["host"])
        if len(kinds) > 1:
            said.append(f"nodes differ in {what}: " + "; ".join(f"{k} on {', '.join(v[:4])}" for k, v in sorted(kinds.items())))
    ports = [sum(p["active"] for p in row["infiniband"]) for row in rows]
    for row, active in zip(rows, ports, strict=True):
        if active < max(ports):
            said.append(f"node {row['host']} ({row['id']}): {active} InfiniBand ports are active, {max(ports)} elsewhere")
    return said


def log_name(index: int, name: str) -> str:
    """Return the name of a node's log: the first node's has no number."""
    return f"node{index}.{name}" if index else name


def torchrun(module: str, run_dir: Path, nodes: list[AnyNode], counts: list[int]) -> list[list[str]]:
    """Return the command of every node: one torchrun each, a rank a device."""
    address, port = nodes[0].answer(nodes[0].ask("address"), 30.0)
    host = "127.0.0.1" if len(nodes) == 1 else address
    base = [sys.executable, "-m", "torch.distributed.run", f"--nnodes={len(nodes)}", "--max-restarts=0", "--monitor-interval=0.1"]
    where = [f"--master-addr={host}", f"--master-port={port}"]
    return [
        [*base, f"--nproc-per-node={count}", f"--node-rank={i}", *where, "-m", f"{__package__}.{module}", str(run_dir)]
        for i, count in enumerate(counts)
    ]


def _probe(job: dict[str, Any], run_dir: Path, nodes: list[AnyNode], counts: list[int]) -> str:
    """Run the probe on all nodes; return why it failed, '' if it didn't."""
    (run_dir / files.TOPOLOGY).unlink(missing_ok=True)
    commands = torchrun("topology", run_dir, nodes, counts)
    asked = [
        node.ask("start", command, {**job["env"], "ATTUNER_NODE_ID": node.id}, str(run_dir / log_name(i, PROBE_LOG)))
        for i, (node, command) in enumerate(zip(nodes, commands, strict=True))
    ]
    for node, a in zip(nodes, asked, strict=True):
        node.answer(a, 60.0)
    deadline = time.monotonic() + PROBE_S
    try:
        while True:
            stopping.check()
            codes = [node.poll(False) for node in nodes]
            if any(codes):
                return f"exit codes {codes}"
            if all(code == 0 for code in codes):
                return "" if (run_dir / files.TOPOLOGY).exists() else "it left no result"
            if time.monotonic() > deadline:
                return f"no result within {PROBE_S:g} s"
            time.sleep(0.1)
    finally:
        for node in nodes:
            try:
                node.answer(node.ask("stop"), 20.0)
            except NodeLost:  # found by whoever asks it next
                continue
