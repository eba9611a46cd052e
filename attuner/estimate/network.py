"""Collectives on a network of two levels. Which group stays inside a node follows from Megatron's rank order (tp-cp-ep-dp-pp).

A group of `size` ranks, `stride` apart, has `stride·size` neighbours; `near` of its members share a node. Bytes are what one
rank holds. Every device has a link of its own out of the node, so a group with `near` members there has that many links.
"""

from __future__ import annotations

from dataclasses import dataclass

from attuner.estimate.hardware import Hardware


@dataclass(frozen=True)
class Group:
    """The members of one collective."""

    size: int
    near: int

    @classmethod
    def of(cls, size: int, stride: int, gpus_per_node: int) -> Group:
        """Return the group of `size` ranks that are `stride` apart."""
        return cls(size, max(1, min(size, gpus_per_node // max(1, min(stride, gpus_per_node)))))

    @property
    def far(self) -> bool:
        """Tell whether the group crosses nodes."""
        return self.size > self.near


def gather_s(group: Group, whole_bytes: float, machine: Hardware) -> float:
    """Return the seconds of an all-gather whose result, or a reduce-scatter whose input, has `whole_bytes` on each rank."""
    n, k = group.size, group.near
    if n == 1:
        return 0.0
    near_s = (k - 1) / k * whole_bytes / machine.near_bytes_s
    if not group.far:
        return near_s + machine.intra_latency_s
    far_s = (n - k) / n * whole_bytes / machine.out_bytes_s(k)
    return max(near_s, far_s) + machine.inter_latency_s


def all_reduce_s(group: Group, num_bytes: float, machine: Hardware) -> float:
    """Return the seconds of an all-reduce of `num_bytes`: a reduce-scatter and an all-gather."""
    return 2 * gather_s(group, num_bytes, machine)


def all_to_all_s(group: Group, num_bytes: float, machine: Hardware) -> float:
    """Return the seconds of an all-to-all in which each rank sends `num_bytes`, its own share included, evenly spread."""
    n, k = group.size, group.near
    if n == 1:
        return 0.0
    near_s = (k - 1) / n * num_bytes / machine.near_bytes_s
    if not group.far:
        return near_s + machine.intra_latency_s
    far_s = (n - k) / n * num_bytes / machine.far_bytes_s
    return max(near_s, far_s) + machine.inter_latency_s


def send_s(num_bytes: float, machine: Hardware, *, far: bool) -> float:
    """Return the seconds to send `num_bytes` to one other rank."""
    if far:
        return num_bytes / machine.far_bytes_s + machine.inter_latency_s
    return num_bytes / machine.near_bytes_s + machine.intra_latency_s
