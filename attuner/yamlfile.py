"""Reads YAML as data: safe_load, unknown keys are errors, no templating, no environment. Every problem is one line that names
the file, the key and how to mend it."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from attuner.core.errors import UserError

M = TypeVar("M", bound=BaseModel)
MAX_SHOWN = 40
"""Letters of a value that a message quotes."""


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """safe_load that refuses a key written twice, of which YAML would keep the last, and reads `1:30` as text, not as 90."""


def _mapping(loader: Any, node: Any) -> dict[Any, Any]:
    if not isinstance(node, yaml.MappingNode):
        raise UserError(f"line {node.start_mark.line + 1}: expected keys and values after !!map; write them, or take the tag out")
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


def _plain(construct: Callable[[Any, Any], Any], what: str) -> Callable[[Any, Any], Any]:
    """Return a constructor whose problem is one line: PyYAML passes on what Python says of 2026-13-45."""

    def read(loader: Any, node: Any) -> Any:
        try:
            return construct(loader, node)
        except (ValueError, KeyError, IndexError, AttributeError, OverflowError):
            text = str(node.value)
            shown = repr(text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}…")
            raise UserError(
                f"line {node.start_mark.line + 1}: {shown} is no {what}; mend it, or quote it if it is text"
            ) from None

    return read


def _without_sixties(tag: str, pattern: re.Pattern[str]) -> re.Pattern[str]:
    """Return what a bare number looks like, without YAML 1.1's numbers to the base of 60."""
    return re.compile(f"(?!.*:)(?:{pattern.pattern})", pattern.flags) if tag in (f"{_TAG}int", f"{_TAG}float") else pattern


_TAG = "tag:yaml.org,2002:"
_SCALARS = {"int": "whole number", "float": "number", "bool": "true or false", "timestamp": "date"}
_Loader.add_constructor(f"{_TAG}map", _mapping)
for _kind, _what in _SCALARS.items():
    _Loader.add_constructor(f"{_TAG}{_kind}", _plain(getattr(yaml.SafeLoader, f"construct_yaml_{_kind}"), _what))
_Loader.yaml_implicit_resolvers = {
    first: [(tag, _without_sixties(tag, pattern)) for tag, pattern in found]
    for first, found in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


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
    return _loaded(lambda: yaml.load(text, Loader=_Loader), path)


def documents(text: str, source: Path | str) -> list[Any]:
    """Return the data of every document in a YAML text.

    Raises:
        UserError: it is not YAML, or has a key twice.
    """
    return list(_loaded(lambda: list(yaml.load_all(text, Loader=_Loader)), source))


def _loaded(load: Callable[[], Any], source: Path | str) -> Any:
    try:
        return load()
    except UserError as error:
        raise UserError(f"{source}: {error}") from None
    except RecursionError:
        raise UserError(f"{source}: nested too deeply to be read; no file of attuner is") from None
    except (yaml.YAMLError, ValueError, TypeError) as error:
        raise UserError(f"{source}: not YAML: {' '.join(str(error).split())[:200]}") from None


def is_file(path: Path) -> bool:
    """Tell whether there is such a file; a name too long for any file is none."""
    try:
        return path.is_file()
    except OSError:
        return False


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
