"""What the catalog can do from a launch: every option of levers.yaml that applies, and every point of a lever's `space`."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from attuner.core.base import Value
from attuner.core.recipe import same_value
from attuner.policy.conditions import holds
from attuner.proposers.space import SPLITS, end_layers, unbuildable

SHORT = {
    "tensor_model_parallel_size": "tp",
    "pipeline_model_parallel_size": "pp",
    "virtual_pipeline_model_parallel_size": "vp",
    "context_parallel_size": "cp",
    "expert_model_parallel_size": "ep",
    "expert_tensor_parallel_size": "etp",
    "micro_batch_size": "micro batch ",
    "recompute_granularity": "recompute ",
    "num_layers_in_first_pipeline_stage": "first stage ",
    "num_layers_in_last_pipeline_stage": "last stage ",
    "decoder_first_pipeline_num_layers": "first stage ",
    "decoder_last_pipeline_num_layers": "last stage ",
}
MAX_POINTS = 20_000
"""Points of one lever's space; beyond it the space is a mistake of the file."""


@dataclass(frozen=True)
class Move:
    """One lever group, with all arguments that it sets; `option` is its entry in levers.yaml, empty for a point of the space."""

    lever: Mapping[str, Any]
    option: Mapping[str, Any]
    title: str
    arguments: dict[str, Value]

    @property
    def group(self) -> str:
        """Return the lever group's id."""
        return str(self.lever["id"])


def facts_of(arguments: Mapping[str, Value], world: int) -> dict[str, Value]:
    """Return the facts that conditions of options ask for: data-parallel size and micro-batches, where they come out whole."""

    def size(name: str) -> int:
        value = arguments.get(name)
        return value if isinstance(value, int) and value > 0 else 1

    dp = world // (size("tensor_model_parallel_size") * size("pipeline_model_parallel_size") * size("context_parallel_size"))
    rows = arguments.get("global_batch_size")
    facts: dict[str, Value] = {"data_parallel_size": dp}
    if isinstance(rows, int) and dp:
        facts["num_microbatches"] = rows // (size("micro_batch_size") * dp)
    return facts


def moves(
    levers: list[dict[str, Any]],
    final: Mapping[str, Value],
    facts: Mapping[str, Value],
    *,
    world: int,
    space: Mapping[str, list[Value]] | None = None,
    points: bool = True,
    without: frozenset[str] = frozenset(),
) -> list[Move]:
    """Return every move from these final arguments; each changes at least one of them.

    Args:
        levers: the catalog.
        final: final arguments of the launch that is changed.
        facts: its derived facts, for the options' conditions.
        world: number of devices.
        space: values of each argument that the campaign names; default: what the catalog says.
        points: the points of each lever's space too, whose worth only an estimate can tell.
        without: groups that are left alone.
    """
    values = {**final, **{f"fact:{k}": v for k, v in facts.items()}}
    found: list[Move] = []
    for lever in levers:
        if lever["id"] in without:
            continue
        for option in lever["options"]:
            move = _of_option(lever, option, final, values, world)
            if move is not None:
                found.append(move)
        if points:
            found += _of_space(lever, space or {}, final, world)
    return found


def _of_option(
    lever: dict[str, Any], option: dict[str, Any], final: Mapping[str, Value], values: dict[str, Value], world: int
) -> Move | None:
    if not all(holds(c, values, values) for c in option.get("when", [])):
        return None
    arguments = {name: _value(spec, final.get(name), world) for name, spec in option["set"].items()}
    if all(same_value(v, final.get(k)) for k, v in arguments.items()):
        return None
    return Move(lever=lever, option=option, title=str(option.get("title") or titled(final, arguments)), arguments=arguments)


def _value(spec: Any, current: Value, world: int) -> Value:
    if isinstance(spec, dict):
        if "times" in spec and isinstance(current, int):
            return int(current * spec["times"])
        if "world" in spec:
            return world
    return spec if isinstance(spec, bool | int | float | str | list) else None


def _of_space(
    lever: Mapping[str, Any], given: Mapping[str, list[Value]], final: Mapping[str, Value], world: int
) -> Iterator[Move]:
    """Yield the points of a lever's space that the framework can build; `given` is the campaign's own space."""
    source = given or lever.get("space") or {}
    space = {name: source[name] for name in sorted(lever["changes"]) if name in source}
    if not space:
        return
    for values in itertools.islice(itertools.product(*space.values()), MAX_POINTS):
        point = dict(zip(space, values, strict=True))
        if all(same_value(v, final.get(k)) for k, v in point.items()):
            continue
        arguments = point | _following(lever, final, point)
        if not unbuildable({**final, **arguments}, gpus=world):
            yield Move(lever=lever, option={}, title=titled(final, point), arguments=arguments)


def _following(lever: Mapping[str, Any], final: Mapping[str, Value], point: Mapping[str, Value]) -> dict[str, Value]:
    """Return what is set along with a point: what `follows`, and layers of the end stages that make the split come out."""
    values: dict[str, Value] = {**final, **point}
    out: dict[str, Value] = {}
    for names in SPLITS:
        if "pipeline_model_parallel_size" in point and set(names) <= set(lever["changes"]):
            out |= dict.fromkeys(names, end_layers(values))
    for entry in lever.get("follows", []):
        if holds(entry["when"], dict(final), values):
            out |= entry["set"]
    return out


def titled(before: Mapping[str, Value], arguments: Mapping[str, Value]) -> str:
    """Return a short title of a change: `tp2→1, ep16→8`."""
    changed = [k for k, v in arguments.items() if not same_value(v, before.get(k))]
    return ", ".join(f"{SHORT.get(k, k + ' ')}{_short(before.get(k))}→{_short(arguments[k])}" for k in changed)


def _short(value: Value) -> str:
    return "none" if value is None else str(value)
