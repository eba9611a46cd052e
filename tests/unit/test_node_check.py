"""What is read of nodes, and which one is called slow or sick: from figures and texts, without a cluster."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from attuner.runner import drills, machine, node_check, topology

H100 = """\t\x1b[4mGPU0\tGPU1\tGPU2\tNIC0\tCPU Affinity\x1b[0m
GPU0\t X \tNV18\tNV18\tPIX\t0-47
GPU1\tNV18\t X \tNV18\tNODE\t0-47
GPU2\tNV18\tNV18\t X \tSYS\t0-47
NIC0\tPIX\tNODE\tSYS\t X
"""


def row(name: str, matmul_ms: float = 10.0, exchange_gb_s: float | None = 40.0, **more: Any) -> dict[str, Any]:
    facts = {"hardware": ["H100"], "num_gpus": 8, "nvlink": "all pairs", "nics": [], "infiniband": []}
    return {
        "id": name,
        "host": f"host-{name}",
        "ranks": 8,
        "matmul_ms": matmul_ms,
        "exchange_gb_s": exchange_gb_s,
        **facts,
        **more,
    }


def slow(*rows: dict[str, Any], factor: float = 1.5) -> list[str]:
    return [r["id"] for r, _ in node_check.slow(list(rows), factor)]


def test_a_node_slower_than_the_median_by_the_factor_is_slow_and_none_else() -> None:
    assert slow(row("a"), row("b", 14.9), row("c", 15.1), row("d"), row("e")) == ["c"]
    assert slow(row("a"), row("b", 14.9), row("c", 15.1), row("d"), row("e"), factor=1.6) == []


def test_of_two_nodes_the_slower_one_is_held_against_the_better_one() -> None:
    assert slow(row("a", 10.0), row("b", 16.0)) == ["b"]


def test_a_node_whose_exchange_with_both_neighbours_is_slow_is_found_among_three_and_more() -> None:
    assert slow(row("a"), row("b", exchange_gb_s=20.0), row("c")) == ["b"]


def test_of_one_pair_nobody_says_which_end_is_slow() -> None:
    assert slow(row("a", exchange_gb_s=5.0), row("b", exchange_gb_s=40.0)) == []


def test_unlike_devices_and_ports_that_are_down_are_said_with_the_node() -> None:
    up = [{"name": f"mlx5_{i}:1", "active": True, "rate": "400 Gb/sec", "layer": "InfiniBand"} for i in range(2)]
    down = [up[0], {**up[1], "active": False}]
    said = node_check.differences([row("a", infiniband=up), row("b", infiniband=down, nvlink="some pairs, domain x:1")])
    assert said == [
        "nodes differ in nvlink: all pairs on host-a; some pairs on host-b",
        "node host-b (b): 1 InfiniBand ports are active, 2 elsewhere",
    ]
    assert node_check.differences([row("a", nvlink="all pairs, domain x:1"), row("b", nvlink="all pairs, domain y:1")]) == []


@pytest.mark.parametrize("nodes", [1, 2, 3, 4, 5, 8])
def test_the_pairs_of_a_round_are_disjoint_and_all_rounds_together_are_a_ring(nodes: int) -> None:
    rounds = topology.pairings(nodes)
    for pairs in rounds:
        assert len({n for pair in pairs for n in pair}) == 2 * len(pairs)
    ends = [n for pairs in rounds for pair in pairs for n in pair]
    assert sorted(ends) == sorted([n for n in range(nodes) for _ in range(0 if nodes == 1 else 1 if nodes == 2 else 2)])


def test_nvlink_is_read_from_the_matrix_and_its_domain_from_the_fabric_section() -> None:
    fabric = "  Fabric\n    State : Completed\n    CliqueId : 7\n    ClusterUUID : 1b2c3d4e-0000-1111-2222-333344445555\n"
    assert machine.nvlink(H100, "") == "all pairs"
    assert machine.nvlink(H100, fabric) == "all pairs, domain 1b2c3d4e-0000-1111-2222-333344445555:7"
    assert (
        machine.nvlink(H100, fabric.replace("1b2c3d4e-0000-1111-2222-333344445555", "00000000-0000-0000-0000-000000000000"))
        == "all pairs"
    )
    assert machine.nvlink(H100.replace("NV18\tPIX", "SYS\tPIX"), "") == "some pairs"
    assert machine.nvlink(H100.replace("NV18", "PHB"), "") == "no pairs"
    assert machine.nvlink("", "") == "unknown"


def test_a_slow_node_is_rehearsed_on_the_named_node_only() -> None:
    job = {"inject": {"kind": "slow_node", "node": 1, "factor": 3}}
    assert [drills.slowness(job, n, f"id{n}") for n in (0, 1)] == [1.0, 3.0]
    assert drills.slowness({"inject": {**job["inject"], "node": "id0"}}, 0, "id0") == 3.0
    assert drills.slowness({}, 1) == 1.0
    drills.rehearse(job["inject"], 0, True, [], None)  # the trainer goes on untouched


class Told:
    """A node that answers for its facts and is asked for nothing else."""

    def __init__(self, name: str, **facts: Any) -> None:
        self.id, self._facts = name, {**{k: v for k, v in row(name).items() if k not in ("id", "host", "ranks")}, **facts}

    def ask(self, method: str) -> Any:
        assert method == "facts", f"the probe was started: {method}"
        return self._facts

    def answer(self, asked: Any, _limit_s: float) -> Any:
        return asked


def looked(folder: Path, nodes: list[Told], resource: str = "GPU", ranks: int = 8) -> dict[str, Any]:
    job = {"resource": resource, "env": {}}
    return node_check.look(job, folder, nodes, [ranks] * len(nodes), {})  # type: ignore[arg-type]


def test_nodes_that_passed_within_the_hour_are_not_probed_again_and_a_new_one_is(tmp_path: Path) -> None:
    run = tmp_path / "runs" / "l01-a1"
    run.mkdir(parents=True)
    (run.parent / node_check.PASSED).write_text(
        json.dumps({"a": time.time() - 60, "b": time.time() - 3000, "old": time.time() - 4000})
    )
    assert looked(run, [Told("a"), Told("b")])["probe"].startswith("passed 30")
    for other in ("c", "old"):
        with pytest.raises(AssertionError, match="the probe was started"):
            looked(run, [Told("a"), Told(other)])


def test_a_node_with_fewer_gpus_than_ranks_ends_the_run_before_any_rank(tmp_path: Path) -> None:
    with pytest.raises(node_check.Unfit, match="has 7 GPUs for 8 ranks"):
        looked(tmp_path, [Told("a", num_gpus=7)])
    assert looked(tmp_path, [Told("a", num_gpus=0)], resource="slot")["warnings"] == []
    assert "neither the kernel nor nvidia-smi" in looked(tmp_path, [Told("a", num_gpus=0)])["warnings"][0]
