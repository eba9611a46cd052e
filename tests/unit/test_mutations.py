"""The law of the later looks: nothing that the probe saw of the first two steps can get lost or move far without being said."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
from lab import ROOT
from looks import Data, evidence, fingerprint

from attuner.config import load_tolerances
from attuner.core.fingerprint import Fingerprint
from attuner.core.judgement import worst
from attuner.policy.forward import forward_look
from attuner.policy.update import update_look

Path = tuple[str | int, ...]
LIMITS = load_tolerances(ROOT / "rules", "mcore")
TOLD_ELSEWHERE = {"loss", "aux"}
"""The steps' own lines hold these, and the looks read them there."""
NOTHING_LOST = {
    "rows_digest",
    "replicas_compared",
    "replicas_differ",
    "stale",
    "grad_replicas",
    "weight_replicas",
    "zeros",
    "used_norm",
}
"""A sum of other digests; counts of what layouts differ in; what is empty in a healthy run; a figure that only clipping needs."""
MAY_MOVE = {"replicas_compared", "zeros", "unexplained", "census", "numel"}
"""Layouts differ in these, or half of nearly nothing is nearly nothing."""


def decision(data: Data) -> str:
    try:
        seen = Fingerprint.model_validate(data)
    except ValueError:
        return "invalid"
    base = evidence()
    run = base.model_copy(update={"fingerprint": seen})
    looks = (forward_look, update_look)
    return worst([look([base], run, limits=LIMITS, subject="l02#1", recipe="r").decision for look in looks])


def leaves(data: Any, at: Path = ()) -> Iterator[Path]:
    parts = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, value in parts:
        yield (*at, key)
        yield from leaves(value, (*at, key))


def holder(data: Any, at: Path) -> Any:
    for key in at[:-1]:
        data = data[key]
    return data


HEALTHY = fingerprint("fp32")
PATHS = [p for p in leaves(HEALTHY["steps"]) if len(p) > 1 and p[1] not in TOLD_ELSEWHERE]


def name(path: Path) -> str:
    return ".".join(map(str, path))


@pytest.mark.parametrize("path", [p for p in PATHS if not NOTHING_LOST & set(p)], ids=name)
def test_nothing_can_get_lost(path: Path) -> None:
    data = copy.deepcopy(HEALTHY)
    del holder(data["steps"], path)[path[-1]]
    assert decision(data) != "admit"


MOVED = [
    p
    for p in PATHS
    if isinstance(v := holder(HEALTHY["steps"], p)[p[-1]], int | float)
    and not isinstance(v, bool)
    and abs(v) > 1e-4
    and p[-1] != "step"
    and not MAY_MOVE & set(p)
    and not (p[0] == 1 and p[-1] in ("weight_norm", "weight_projection"))  # step 0's and the update between them say it
]


@pytest.mark.parametrize("path", MOVED, ids=name)
def test_no_figure_can_move_by_half(path: Path) -> None:
    data = copy.deepcopy(HEALTHY)
    where = holder(data["steps"], path)
    where[path[-1]] = type(where[path[-1]])(where[path[-1]] * 1.5 + (where[path[-1]] > 1))
    assert decision(data) != "admit"


def test_the_healthy_one_is_admitted() -> None:
    assert decision(copy.deepcopy(HEALTHY)) == "admit"
