"""The table that the board's page compares recipes from: for every final value that isn't one in all of them, its distinct
values, and which recipe has which. It has no first and second recipe, so every comparison reads the same from both sides."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from attuner.core.base import Value
from attuner.core.recipe import same_value
from attuner.report.board_rows import BoardEntry
from attuner.report.words import clean, value

ABSENT = -1
"""Index of a recipe that doesn't have the value at all; that is not the same as one set to null."""


def table(recipes: Sequence[Mapping[str, Value]]) -> dict[str, Any]:
    """Return `varying`, a list of [name, distinct values as text, index per recipe], and the number `same` in all."""
    names = sorted({name for recipe in recipes for name in recipe})
    varying, same = [], 0
    for name in names:
        distinct: list[Value] = []
        picks = [_pick(distinct, recipe[name]) if name in recipe else ABSENT for recipe in recipes]
        if len(set(picks)) == 1:
            same += 1
        else:
            varying.append([clean(name), [value(v) for v in distinct], picks])
    return {"varying": varying, "same": same}


def _pick(distinct: list[Value], wanted: Value) -> int:
    """Return the index of a value among the distinct ones; a new one joins them."""
    for index, known in enumerate(distinct):
        if same_value(known, wanted):
            return index
    distinct.append(wanted)
    return len(distinct) - 1


def data(found: Sequence[BoardEntry]) -> dict[str, Any]:
    """Return what the page's script reads: the recipes in the table's order, and the table of their values."""
    recipes = [
        {
            "slug": e.slug,
            "name": clean(e.facts.campaign_id),
            "about": clean(f"{e.facts.campaign.workload.model}, {e.facts.campaign.workload.hardware}, {e.framework}"),
            "page": e.page,
            "resolved": e.final_is_resolved,
        }
        for e in found
    ]
    return {"recipes": recipes, **table([e.final for e in found])}


def embedded(content: object) -> str:
    """Return JSON that can't end the script element around it, nor open one, whatever text is in it."""
    text = json.dumps(content, ensure_ascii=True, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
