"""Can this RayJob ever run here: what it asks against ResourceQuotas and against the nodes' allocatable devices. Pure."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

UNITS = {
    **{"": 1.0, "m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18},
    **{"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40, "Pi": 2.0**50, "Ei": 2.0**60},
}


def quantity(text: str | float) -> float:
    """Return a Kubernetes quantity as a number. Raises ValueError."""
    words = str(text).strip()
    unit = next((u for u in sorted(UNITS, key=len, reverse=True) if u and words.endswith(u)), "")
    return float(words.removesuffix(unit) if unit else words) * UNITS[unit]


def pods_of(rayjob: dict[str, Any]) -> list[tuple[str, int, dict[str, Any]]]:
    """Return (group, number of pods, pod spec) of the head and of each worker group."""
    cluster = rayjob["spec"]["rayClusterSpec"]
    head = ("head", 1, cluster["headGroupSpec"]["template"]["spec"])
    return [head, *((w["groupName"], w["replicas"], w["template"]["spec"]) for w in cluster["workerGroupSpecs"])]


def asked(rayjob: dict[str, Any]) -> dict[str, float]:
    """Return what all pods of a RayJob ask together, by the names that ResourceQuotas use."""
    total: defaultdict[str, float] = defaultdict(float)
    for _, count, spec in pods_of(rayjob):
        total["pods"] += count
        for container in spec["containers"]:
            for kind in ("requests", "limits"):
                for name, value in container["resources"].get(kind, {}).items():
                    total[f"{kind}.{name}"] += count * quantity(value)
    return {**total, **{k.removeprefix("requests."): v for k, v in total.items() if k in ("requests.cpu", "requests.memory")}}


def quota_problem(quotas: list[dict[str, Any]], rayjob: dict[str, Any]) -> str:
    """Return why a namespace's quotas can never admit the RayJob, '' if they can (perhaps later)."""
    wanted = asked(rayjob)
    for quota in quotas:
        if quota.get("spec", {}).get("scopes") or quota.get("spec", {}).get("scopeSelector"):
            continue  # concerns some pods only; the server decides
        hard = quota.get("status", {}).get("hard") or quota.get("spec", {}).get("hard") or {}
        for name, limit in sorted(hard.items()):
            if wanted.get(name, 0.0) > quantity(limit):
                return (
                    f"ResourceQuota {quota['metadata']['name']} admits at most {limit} of {name}, the job asks {wanted[name]:g}"
                )
    return ""


def usable(node: dict[str, Any], selector: dict[str, str]) -> bool:
    """Tell whether pods with this node selector may go to a node at all."""
    tags = node["metadata"].get("labels") or {}
    return not node.get("spec", {}).get("unschedulable") and all(tags.get(k) == v for k, v in selector.items())


def capacity_problem(nodes: list[dict[str, Any]], rayjob: dict[str, Any], *, key: str) -> str:
    """Return why these nodes could never hold the RayJob's devices, even when empty; '' if they could."""
    for group, count, spec in pods_of(rayjob):
        each = sum(int(c["resources"].get("limits", {}).get(key, 0)) for c in spec["containers"])
        if not each:
            continue
        fitting = [n for n in nodes if usable(n, spec.get("nodeSelector", {}))]
        room = [int(quantity(n.get("status", {}).get("allocatable", {}).get(key, 0))) for n in fitting]
        places = sum(r // each for r in room)
        if places < count:
            where = f" with {spec['nodeSelector']}" if spec.get("nodeSelector") else ""
            return (
                f"group {group} needs {count} × {each} {key}; {len(nodes)} nodes have room for {places}{where}, even when empty"
            )
    return ""


def free_devices(nodes: list[dict[str, Any]], key: str) -> dict[str, int]:
    """Return allocatable devices by node, of the nodes that have any."""
    found = {n["metadata"]["name"]: int(quantity(n.get("status", {}).get("allocatable", {}).get(key, 0))) for n in nodes}
    return {name: count for name, count in sorted(found.items()) if count}


def preferred(nodes: list[dict[str, Any]], rayjob: dict[str, Any], *, key: str, offset: int | None) -> list[str]:
    """Return the nodes that the nth calibration run should prefer, so that runs differ in their nodes where there are spares.

    Args:
        offset: number of the run; None: no preference.
    """
    if offset is None:
        return []
    groups = [(n, s) for _, n, s in pods_of(rayjob) if any(key in c["resources"].get("limits", {}) for c in s["containers"])]
    needed = sum(n for n, _ in groups)
    each = max(int(c["resources"]["limits"].get(key, 0)) for _, s in groups for c in s["containers"])
    selector = groups[0][1].get("nodeSelector", {})
    names = [n for n, room in free_devices([x for x in nodes if usable(x, selector)], key).items() if room >= each]
    if len(names) <= needed:
        return []
    return [names[(offset * needed + i) % len(names)] for i in range(needed)]
