"""What a machine can do: the names that `figures:` of a cluster file may have, and the Hardware made of them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from math import factorial

from attuner.core.campaign import Cluster
from attuner.core.errors import UserError
from attuner.estimate.constants import DEFAULT, Constants

NEEDED = {
    "peak_tflops": "TFLOP/s of one device's matrix units in the training precision, dense",
    "mem_gb_s": "GB/s of device memory (10⁹ bytes)",
    "intra_gb_s": "GB/s one device sends to others in its node, one direction",
}
OPTIONAL = {
    "peak_fp32_tflops": "TFLOP/s in fp32 (default: peak_tflops)",
    "inter_gb_s": "GB/s one device sends out of its node, one direction (default: intra_gb_s; needed for more than one node)",
    "intra_latency_us": "µs one collective takes inside a node at least",
    "inter_latency_us": "µs one collective takes across nodes at least",
    "launch_us": "µs of host time to launch one operator",
    "num_units": "processors that share a kernel's tiles (SMs); 1 on a CPU",
    "num_links": "ports out of a node (default: one for each device); where devices share them, rings of parts of a node collide",
    "gemm_ceiling": "share of peak_tflops that a large matrix product reaches",
    "mem_efficiency": "share of mem_gb_s that an operator reaches which only moves memory",
    "near_efficiency": "share of intra_gb_s that a large collective reaches",
    "far_efficiency": "share of inter_gb_s that a large collective reaches",
    "attention_ceiling": "share of peak_tflops that fused attention reaches",
    "host_gb_s": "GB/s between device and host memory, for an offloaded optimizer",
    "host_mem_gb_s": "GB/s of host memory for one device, for an offloaded optimizer's update",
    "context_gib": "GiB of a device that the driver and the framework hold beside torch's allocator",
    "mem_gib": "GiB of one device (default: device.mem_gib)",
}

SHARES = ("gemm_ceiling", "attention_ceiling", "mem_efficiency", "near_efficiency", "far_efficiency")


@dataclass(frozen=True, kw_only=True)
class Hardware:
    """One cluster's figures; speeds in bytes and operations per second, times in seconds."""

    name: str
    gpus_per_node: int
    peak_flops: float
    peak_fp32_flops: float
    mem_bytes_s: float
    intra_bytes_s: float
    inter_bytes_s: float
    intra_latency_s: float = 12e-6
    inter_latency_s: float = 25e-6
    launch_s: float = 10e-6
    num_units: int = 108
    num_links: int = 0
    host_bytes_s: float = 25e9
    host_mem_bytes_s: float = 20e9
    context_gib: float = 1.0
    mem_gib: float | None = None
    synchronous: bool = False
    constants: Constants = DEFAULT

    @classmethod
    def of(cls, cluster: Cluster) -> Hardware:
        """Return the cluster's hardware.

        Raises:
            UserError: naming the figure that is missing or unknown.
        """
        figures = cluster.figures
        for name in figures:
            if name not in NEEDED and name not in OPTIONAL:
                raise UserError(f"cluster {cluster.name}: figures.{name} is unknown; known: {', '.join([*NEEDED, *OPTIONAL])}")
        for name, text in NEEDED.items():
            if name not in figures:
                raise UserError(
                    f"cluster {cluster.name}: figures.{name} is missing ({text}); without it nothing can be estimated"
                )
        get = {name: figure.value for name, figure in figures.items()}
        if "inter_gb_s" not in get and cluster.devices > cluster.devices_per_node:
            raise UserError(f"cluster {cluster.name}: figures.inter_gb_s is missing ({OPTIONAL['inter_gb_s']})")
        cpu = cluster.device.kind == "cpu"
        return cls(
            name=cluster.name,
            gpus_per_node=cluster.devices_per_node,
            peak_flops=get["peak_tflops"] * 1e12,
            peak_fp32_flops=get.get("peak_fp32_tflops", get["peak_tflops"]) * 1e12,
            mem_bytes_s=get["mem_gb_s"] * 1e9,
            intra_bytes_s=get["intra_gb_s"] * 1e9,
            inter_bytes_s=get.get("inter_gb_s", get["intra_gb_s"]) * 1e9,
            intra_latency_s=get.get("intra_latency_us", 12.0) * 1e-6,
            inter_latency_s=get.get("inter_latency_us", 25.0) * 1e-6,
            launch_s=get.get("launch_us", 10.0) * 1e-6,
            num_units=int(get.get("num_units", 1 if cpu else 108)),
            num_links=int(get.get("num_links", 0)),
            constants=replace(DEFAULT, **{n: get[n] for n in SHARES if n in get}),
            host_bytes_s=get.get("host_gb_s", 25.0) * 1e9,
            host_mem_bytes_s=get.get("host_mem_gb_s", 20.0) * 1e9,
            context_gib=get.get("context_gib", 0.0 if cpu else 1.0),
            mem_gib=get.get("mem_gib", cluster.device.mem_gib),
            synchronous=cpu,
        )

    @property
    def near_bytes_s(self) -> float:
        """Return what a large collective reaches inside a node."""
        return self.intra_bytes_s * self.constants.near_efficiency

    @property
    def far_bytes_s(self) -> float:
        """Return what a large collective reaches out of a node, one device."""
        return self.inter_bytes_s * self.constants.far_efficiency

    def out_bytes_s(self, near: int) -> float:
        """Return what a group with `near` members in a node gets out of it.

        Every device has its share of the ports. Where devices share ports, the ring of a group that holds a part of the node
        takes one of them at random, and the slowest group decides: the one on the busiest port. A group of the whole node, or
        of one device, gets its share.
        """
        if 0 < self.num_links < self.gpus_per_node and 1 < near < self.gpus_per_node:
            port = self.far_bytes_s * self.gpus_per_node / self.num_links
            return port / busiest(self.gpus_per_node // near, self.num_links)
        return near * self.far_bytes_s

    def peak(self, precision: str) -> float:
        """Return operations per second in this precision."""
        return self.peak_fp32_flops if precision == "fp32" else self.peak_flops


@cache
def busiest(rings: int, ports: int) -> float:
    """Return how many of `rings` are expected on the busiest of `ports`, if each takes one at random."""
    expected = 0.0
    for most in range(rings):
        ways = [1.0] + [0.0] * rings  # ways to place n rings, at most `most` on a port, over the factorial of n
        for _ in range(ports):
            ways = [sum(ways[n - k] / factorial(k) for k in range(min(n, most) + 1)) for n in range(rings + 1)]
        expected += 1 - ways[rings] * factorial(rings) / ports**rings
    return expected
