"""Reads YAML as data: safe_load, unknown keys are errors, no templating, no environment. Every problem is one line that names
the file, the key and how to mend it."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from attuner.core.errors import UserError

M = TypeVar("M", bound=BaseModel)


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """safe_load that refuses a key written twice: YAML would silently keep the last one."""


def _mapping(loader: Any, node: Any) -> dict[Any, Any]:
    seen = set()
    for key_node, _ in node.value:
        key = loader.construct_object(key_node, deep=True)
        try:
            twice = key in seen
        except TypeError:
            raise UserError(f"line {key_node.start_mark.line + 1}: a key must be a word, not {key!r}") from None
        if twice:
            raise UserError(f"key {key!r} stands twice (line {key_node.start_mark.line + 1}); keep one")
        seen.add(key)
    return dict(loader.construct_pairs(node, deep=True))


_Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)


def read_yaml(path: Path) -> Any:
    """Return a YAML file's data.

    Raises:
        UserError: it is missing, not YAML, or has a key twice.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: can't be read: {error}") from None
    try:
        return yaml.load(text, Loader=_Loader)
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    except yaml.YAMLError as error:
        raise UserError(f"{path}: not YAML: {' '.join(str(error).split())[:200]}") from None


def documents(text: str, source: Path | str) -> list[Any]:
    """Return the data of every document in a YAML text.

    Raises:
        UserError: it is not YAML, or has a key twice.
    """
    try:
        return list(yaml.load_all(text, Loader=_Loader))
    except UserError as error:
        raise UserError(f"{source}: {error}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # ValueError: a date that is none
        raise UserError(f"{source}: not YAML: {' '.join(str(error).split())[:200]}") from None


def parse(model: type[M], data: Any, source: Path | str) -> M:
    """Validate data against a record.

    Raises:
        UserError: one line: file, key, what is wrong, and the nearest known key for an unknown one.
    """
    if not isinstance(data, dict):
        raise UserError(f"{source}: expected keys and values, found {type(data).__name__}")
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise UserError(f"{source}: {_first_problem(model, error)}") from None


def _first_problem(model: type[BaseModel], error: ValidationError) -> str:
    problem = error.errors()[0]
    where = ".".join(str(x) for x in problem["loc"])
    if problem["type"] == "extra_forbidden":
        known = _keys_at(model, problem["loc"][:-1])
        near = difflib.get_close_matches(str(problem["loc"][-1]), known, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(sorted(known))}"
        return f"{where}: unknown key; {hint}"
    if problem["type"] == "missing":
        return f"{where}: is missing; add it"
    message = problem["msg"].removeprefix("Value error, ")
    value = "" if isinstance(problem["input"], dict) else f", not {problem['input']!r}"
    return f"{where}: {message}{value}" if where else message


def _keys_at(model: type[BaseModel], path: tuple[int | str, ...]) -> list[str]:
    current: Any = model
    for step in path:
        field = getattr(current, "model_fields", {}).get(step)
        if field is None:
            return []
        current = field.annotation
    return list(getattr(current, "model_fields", {}))
