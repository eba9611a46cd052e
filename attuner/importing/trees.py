"""Reads YAML and configuration trees as data: bounded in size, depth and nodes, a key written twice refused, flattened to dotted
names."""

from __future__ import annotations

import re
from typing import Any

import yaml

from attuner.core.base import Scalar, Value
from attuner.core.errors import UserError
from attuner.importing.model import Notes, plain
from attuner.yamlfile import documents

MAX_DEPTH = 60
MAX_NODES = 20_000
MAX_ALIASES = 200


def read_documents(text: str, name: str) -> list[Any]:
    """Return the documents of a YAML text.

    Raises:
        UserError: it is not YAML, has a key twice, or is deeper, larger or more folded than a configuration.
    """
    depth = nodes = aliases = 0
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        for event in yaml.parse(text, Loader=loader):
            nodes += 1
            aliases += isinstance(event, yaml.AliasEvent)
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > MAX_DEPTH or nodes > MAX_NODES * 2 or aliases > MAX_ALIASES:
                raise UserError(f"{name}: deeper, larger or more folded than a configuration is")
    except (yaml.YAMLError, RecursionError) as error:
        raise UserError(f"{name}: not YAML: {' '.join(str(error).split())[:200]}") from None
    return documents(text, name)


def flat(tree: Any, name: str, notes: Notes) -> dict[str, Value]:
    """Return a tree as dotted names with plain values; lists of plain values stay lists."""
    found: dict[str, Value] = {}
    stack: list[tuple[str, Any]] = [("", tree)]
    count = 0
    while stack:
        path, value = stack.pop()
        count += 1
        if count > MAX_NODES or path.count(".") > MAX_DEPTH:
            raise UserError(f"{name}: larger or deeper than a configuration is, once its anchors are unfolded")
        constant = _target(value)
        if constant is not None:
            found[path] = constant
        elif isinstance(value, dict):
            stack += [(f"{path}.{k}" if path else str(k), v) for k, v in reversed(value.items())]
        elif isinstance(value, list) and not all(_is_scalar(v) for v in value):
            notes.add("unparsed", f"{path}: a list of lists or mappings, written as {path}.0, {path}.1, …")
            stack += [(f"{path}.{i}", v) for i, v in reversed(list(enumerate(value)))]
        elif isinstance(value, list):
            found[path] = [_scalar(v, path) for v in value]
        elif _is_scalar(value):
            found[path] = _scalar(value, path)
        else:  # a date, bytes, a set
            notes.add("unparsed", f"{path}: {type(value).__name__} is read as text")
            found[path] = str(value)
    return found


def _is_scalar(value: Any) -> bool:
    return value is None or isinstance(value, bool | int | float | str)


def _scalar(value: Any, path: str) -> Scalar:
    if isinstance(value, str):
        found = plain(value, path.rsplit(".", 1)[-1])
        return value if isinstance(found, list) else found
    return value if value is None or isinstance(value, bool | int | float) else str(value)


def _target(value: Any) -> str | None:
    """Return the name that a dumped constant stands for: an enum, a type, a function that is not called."""
    if not isinstance(value, dict) or not isinstance(value.get("_target_"), str):
        return None
    rest = set(value) - {"_target_", "_call_", "_partial_"}
    if not rest and value.get("_call_") is False:
        return str(value["_target_"])
    if rest == {"_args_"} and isinstance(value["_args_"], list) and len(value["_args_"]) == 1 and _is_scalar(value["_args_"][0]):
        return f"{value['_target_'].rsplit('.', 1)[-1]}.{value['_args_'][0]}"
    return None


def yaml_value(text: str, path: str) -> Value:
    """Return the right side of a printed override `a.b=c`: a scalar, or a list of scalars."""
    cleaned = text.strip()
    if cleaned in ("None", "null", "~", ""):
        return None
    if cleaned.lower() in ("true", "false"):
        return cleaned.lower() == "true"
    inside = re.fullmatch(r"\[([^\[\]{}]*)\]|\(([^()\[\]{}]*)\)", cleaned)
    if inside:
        parts = [p.strip() for p in (inside[1] or inside[2] or "").split(",")]
        return [_scalar(_unquoted(p), path) if p not in ("None", "null") else None for p in parts if p]
    return _scalar(_unquoted(cleaned), path) if cleaned == _unquoted(cleaned) else _unquoted(cleaned)


def _unquoted(text: str) -> str:
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"" else text
