"""Communication: what is exchanged (kind), between whom (group), and from what evidence both are told.

The same exchange is `gloo:all_to_all` on a CPU worker thread, `c10d::alltoall_base_` where it is launched and
`ncclDevKernel_SendRecv` on a GPU. People choose levers by what is exchanged and with whom, so that is what these say.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from attuner.traces.intervals import Ints

KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv", "broadcast", "barrier", "other")
GROUPS = ("tensor", "data", "expert", "pipeline", "context", "unknown")

# in this order: a send inside `all_to_all` must not win over it
_STEMS = (
    ("reducescatter", "reduce_scatter"),
    ("allreduce", "all_reduce"),
    ("allgather", "all_gather"),
    ("alltoall", "all_to_all"),
    ("broadcast", "broadcast"),
    ("barrier", "barrier"),
    ("send", "send_recv"),
    ("recv", "send_recv"),
)
_NOT_A_LETTER = re.compile(r"[^a-z]+")

# in this order. Megatron-LM's and torchtitan's own names; a group that spans several directions has no entry
_DESCRIBED = (
    ("EXPERT_DATA", "data"),
    ("EXPERT_TENSOR_PARALLEL", "tensor"),
    ("EXPERT_MODEL_PARALLEL", "expert"),
    ("EXPERT_TENSOR", ""),
    ("TENSOR_AND", ""),
    ("DATA_PARALLEL_GROUP", "data"),
    ("HYBRID_DP_CP", "data"),
    ("DISTRIBUTED_OPTIMIZER", "data"),
    ("CONTEXT_PARALLEL", "context"),
    ("TENSOR_MODEL_PARALLEL", "tensor"),
    ("PIPELINE_MODEL_PARALLEL", "pipeline"),
    ("EMBEDDING_GROUP", "pipeline"),
    ("MODEL_PARALLEL_GROUP", ""),
)
_MESH = re.compile(r"(?<![a-z])(dp|fsdp|ddp|tp|ep|pp|cp|data|tensor|expert|pipeline|context)(?![a-z])", re.IGNORECASE)
_SHORT = {"dp": "data", "fsdp": "data", "ddp": "data", "tp": "tensor", "ep": "expert", "pp": "pipeline", "cp": "context"}

_POSSIBLE = {
    "all_to_all": ("expert", "context"),
    "send_recv": ("pipeline", "context"),
    "all_reduce": ("tensor", "data"),
    "reduce_scatter": ("tensor", "data", "expert"),
    "all_gather": ("tensor", "data", "context", "expert"),
    "broadcast": ("data", "tensor"),
}
"""Groups in which trainers exchange in this way, the commonest first."""
_COMMON = {"all_to_all": "expert", "send_recv": "pipeline"}
"""Told from the kind alone where nothing else is known."""


@functools.lru_cache(maxsize=4096)
def kind_of(name: str) -> str:
    """Return the kind of a collective, one of `KINDS`, from any profiler's spelling of it."""
    letters = _NOT_A_LETTER.sub("", name.lower())
    return next((kind for stem, kind in _STEMS if stem in letters), "other")


@functools.lru_cache(maxsize=4096)
def group_of(description: str) -> str:
    """Return the group that a process group's description names, one of `GROUPS`; `unknown` if it names none.

    Source: `group_desc` in megatron-core's parallel_state; names of device-mesh dimensions (`mesh_tp`).
    """
    for stem, group in _DESCRIBED:
        if stem in description.upper():
            return group or "unknown"
    found = {_SHORT.get(word, word) for word in (m.lower() for m in _MESH.findall(description))}
    if found == {"data", "context"}:  # weights are sharded over both: what is exchanged there is data parallel
        return "data"
    return found.pop() if len(found) == 1 else "unknown"


class Groups:
    """Tells the group of a collective, from what a trace says of its process groups."""

    def __init__(self, distributed: Mapping[str, Any]) -> None:
        listed = distributed.get("pg_config")
        configs = [c for c in listed if isinstance(c, dict)] if isinstance(listed, list) else []
        self._by_name = {str(c.get("pg_name")): str(c.get("pg_desc")) for c in configs}
        told = {group_of(str(c.get("pg_desc"))) for c in configs if isinstance(c.get("pg_size"), int) and c["pg_size"] > 1}
        self._live = told - {"unknown"}
        self._sizes_known = any(group_of(d) != "unknown" for d in self._by_name.values())
        self.told_from = {"description": 0, "only_group": 0, "kind": 0, "untold": 0}

    def of(self, kind: str, description: Any = None, name: Any = None) -> str:
        """Return one of `GROUPS` for a collective of this kind, and count from what it was told.

        Evidence in order: the description of its process group; the only group of more than one rank in which this
        kind is used; the kind alone.
        """
        for text in (description, self._by_name.get(str(name)) if name is not None else None):
            if isinstance(text, str) and (group := group_of(text)) != "unknown":
                self.told_from["description"] += 1
                return group
        group, source = _COMMON.get(kind, "unknown"), "kind"
        if self._sizes_known:
            possible = [g for g in _POSSIBLE.get(kind, ()) if g in self._live]
            group, source = (possible[0] if len(possible) == 1 else "unknown"), "only_group"
        self.told_from[source if group != "unknown" else "untold"] += 1
        return group


def label(kinds: Iterable[str], groups: Iterable[str]) -> list[int]:
    """Return one number for each pair of kind and group; `named` reads it back."""
    return [KINDS.index(k) * len(GROUPS) + GROUPS.index(g) for k, g in zip(kinds, groups, strict=True)]


NUM_LABELS = len(KINDS) * len(GROUPS)


def named(lengths: Ints, which: int) -> dict[str, int]:
    """Return lengths by label as lengths by kind (`which` 0) or by group (1); what has none is left out."""
    out: dict[str, int] = {}
    for k in np.flatnonzero(lengths).tolist():
        name = (KINDS[k // len(GROUPS)], GROUPS[k % len(GROUPS)])[which]
        out[name] = out.get(name, 0) + int(lengths[k])
    return dict(sorted(out.items()))
