"""Which nodes a run gets: whole ones, all different, none that it must keep off, and others than before where there are spares.

Nodes are told apart by Ray's own label `ray.io/node-id`: a selector names the nodes that may, or may not, be taken, so a node
that dies between choice and reservation costs a wait, never a hang. `exclude_nodes` of the job takes node ids, addresses and
host names.
"""

import time
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup, placement_group, placement_group_table, remove_placement_group

from . import stopping

NODE_ID = "ray.io/node-id"
PREFER_S = 20.0
"""How long a run waits for the nodes it would like best before it takes any."""
SPARE_S = 10.0
"""How long it waits for a node in place of a slow one."""


class NoRoom(Exception):
    """The cluster had no room in time; nothing was held."""


def counts(job: dict[str, Any]) -> list[int]:
    """Return the devices of every node: full nodes first."""
    gpus, per_node = int(job["gpus"]), int(job["gpus_per_node"])
    return [min(per_node, gpus - first) for first in range(0, gpus, per_node)]


def excluded(job: dict[str, Any], also: set[str] | frozenset[str] = frozenset()) -> set[str]:
    """Return the ids of nodes that must not be taken; `also` are further ids, addresses or host names."""
    words = {str(x) for x in job.get("exclude_nodes") or []} | also
    names = ("NodeID", "NodeManagerAddress", "NodeManagerHostname", "NodeName")
    return {str(n["NodeID"]) for n in ray.nodes() if words & {str(n.get(name)) for name in names}}


def fitting(job: dict[str, Any], exclude: set[str]) -> list[str]:
    """Return the ids of live nodes that could hold one node's share, in an order that lasts as long as their addresses do."""
    need = max(counts(job))
    found = [
        n for n in ray.nodes() if n["Alive"] and n["NodeID"] not in exclude and n["Resources"].get(job["resource"], 0) >= need
    ]
    return [str(n["NodeID"]) for n in sorted(found, key=lambda n: (n["NodeManagerAddress"], n["NodeID"]))]


def preferred(job: dict[str, Any], exclude: set[str]) -> list[str]:
    """Return the nodes that this run would like best, [] where there is no choice: run k takes the next ones after run k − 1."""
    offset, needed = job.get("placement_offset"), len(counts(job))
    nodes = fitting(job, exclude)
    if offset is None or len(nodes) <= needed:
        return []
    return [nodes[(int(offset) * needed + i) % len(nodes)] for i in range(needed)]


def reserve(job: dict[str, Any], *, also_exclude: set[str] | frozenset[str] = frozenset()) -> PlacementGroup:
    """Return a placement group with a bundle per node.

    Raises:
        NoRoom: not within `alloc_timeout_s`; nothing is charged.
    """
    deadline = time.monotonic() + float(job["alloc_timeout_s"])
    exclude = excluded(job, also_exclude)
    wanted = preferred(job, exclude)
    if wanted:
        group = _wait(_group(job, only=wanted), min(deadline, time.monotonic() + PREFER_S), wanted)
        if group is not None:
            return group
    group = _wait(_group(job, exclude=exclude), deadline, [])
    if group is None:
        raise NoRoom(
            f"no {job['gpus']} × {job['resource']} on {len(counts(job))} nodes within {float(job['alloc_timeout_s']):g} s"
            + (f", {len(exclude)} nodes excluded" if exclude else "")
        )
    return group


def replaced(job: dict[str, Any], group: PlacementGroup, slow: list[str]) -> PlacementGroup | None:
    """Return a group with other nodes in place of the slow ones, or None if none is free now; then `group` is kept.

    The spare is held before the old group is let go, so that nobody takes it in between.
    """
    current = nodes_of(group)
    exclude = excluded(job) | set(current)
    if len(fitting(job, exclude)) < len(slow):
        return None
    shares = counts(job)
    spare_job = {**job, "gpus": max(shares) * len(slow), "gpus_per_node": max(shares)}
    spare = _wait(_group(spare_job, exclude=exclude), time.monotonic() + SPARE_S, [])
    if spare is None:
        return None
    nodes = [n for n in current if n not in slow] + nodes_of(spare)
    remove_placement_group(spare)
    remove_placement_group(group)
    found = _wait(_group(job, only=nodes), time.monotonic() + SPARE_S, nodes)
    return found if found is not None else reserve({**job, "placement_offset": None}, also_exclude=set(slow))


def nodes_of(group: PlacementGroup) -> list[str]:
    """Return the node id of every bundle, in their order."""
    where = placement_group_table(group)["bundles_to_node_id"]
    return [str(where[i]) for i in range(len(where))]


def hosts_of(ids: list[str]) -> dict[str, str]:
    """Return id → host name."""
    return {str(n["NodeID"]): str(n["NodeManagerHostname"]) for n in ray.nodes() if n["NodeID"] in set(ids)}


def wait_until_free(job: dict[str, Any], limit_s: float) -> bool:
    """Tell whether the devices of a run that held them by itself are free again within `limit_s`."""
    group = _wait(_group(job, exclude=excluded(job)), time.monotonic() + limit_s, [])
    if group is not None:
        remove_placement_group(group)
    return group is not None


def _group(job: dict[str, Any], *, only: list[str] | None = None, exclude: set[str] | None = None) -> PlacementGroup:
    cpus = float(job.get("cpus_per_node") or 0)
    bundles = [{job["resource"]: float(n), **({"CPU": cpus} if cpus else {})} for n in counts(job)]
    ids = only or sorted(exclude or [])
    selector = {NODE_ID: f"{'' if only else '!'}in({','.join(ids)})"}
    return placement_group(
        bundles,
        strategy="PACK" if len(bundles) == 1 else "STRICT_SPREAD",
        bundle_label_selector=[selector] * len(bundles) if ids else None,
    )


def _wait(group: PlacementGroup, deadline: float, needs: list[str]) -> PlacementGroup | None:
    """Return the group once it holds its nodes; None, and nothing held, at the deadline or when one of `needs` is dead."""
    try:
        while not group.wait(1):
            stopping.check()
            alive = {n["NodeID"] for n in ray.nodes() if n["Alive"]}
            if time.monotonic() >= deadline or not set(needs) <= alive:
                remove_placement_group(group)
                return None
    except BaseException:
        remove_placement_group(group)
        raise
    return group
