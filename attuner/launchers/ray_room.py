"""Whether a Ray cluster can hold a launch: at all, and now. Pure, over what Ray's API tells of its nodes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Room:
    """How many nodes could hold one node's share of a launch."""

    needed: int
    per_node: int
    resource: str
    could: int
    free: int | None
    nodes: int
    devices: float
    grows: bool

    def never(self) -> str:
        """Return why the cluster as it is can't ever hold the launch, '' if it can or if it grows by itself."""
        if self.could >= self.needed or self.grows:
            return ""
        return (
            f"needs {self.needed} nodes with {self.per_node} × {self.resource} each; of its {self.nodes} nodes "
            f"{self.could} have that ({self.devices:g} × {self.resource} in all)"
        )

    def busy(self) -> str:
        """Return that the launch has to wait, '' if there is room now or nobody knows."""
        if self.free is None or self.free >= self.needed:
            return ""
        return f"queued: {self.free} of {self.needed} nodes with {self.per_node} × {self.resource} are free"


def room(nodes: Any, status: Any, *, gpus: int, gpus_per_node: int, resource: str, autoscaled: bool = False) -> Room:
    """Return the room of a cluster.

    Args:
        nodes: answer of /api/v0/nodes.
        status: answer of /api/cluster_status.
        autoscaled: nodes are added on demand; Ray's API doesn't tell how many there could be.
    """
    rows = [n for n in _dig(nodes, "data", "result", "result") or [] if n.get("state") == "ALIVE"]
    totals = [float((n.get("resources_total") or {}).get(resource, 0.0)) for n in rows]
    per_node = min(gpus, gpus_per_node)
    usage = _dig(status, "data", "clusterStatus", "loadMetricsReport", "usageByNode")
    free = None
    if isinstance(usage, dict):
        free = 0
        for used in usage.values():
            taken, total = (used.get(resource) or used.get(_camel(resource)) or [0.0, 0.0])[:2]
            free += total - taken >= per_node
    report = _dig(status, "data", "clusterStatus", "autoscalerReport") or {}
    return Room(
        needed=math.ceil(gpus / gpus_per_node),
        per_node=per_node,
        resource=resource,
        could=sum(t >= per_node for t in totals),
        free=free,
        nodes=len(rows),
        devices=sum(totals),
        grows=autoscaled or bool(report.get("pendingNodes") or report.get("pendingLaunches")),
    )


def _camel(name: str) -> str:
    """Return a resource's name as the dashboard spells it."""
    first, *rest = name.split("_")
    return first + "".join(x.title() for x in rest)


def _dig(value: Any, *keys: str) -> Any:
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value
