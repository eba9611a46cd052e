"""Loads and calls a user's own hooks: functions named "package.module:function" that look at a model and say numbers. See
the package's own words for an example."""

import importlib
import math
from collections.abc import Callable
from typing import Any

LIMIT = 64
"""Values of all hooks together that a fingerprint keeps."""
_TEXT = 200


class Hooks:
    """A user's hooks and what they said. An error in one is noted in `missing` and ends that hook, never the run."""

    def __init__(self, names: list[str]) -> None:
        self.values: dict[str, float | str | None] = {}
        self.missing: dict[str, str] = {}
        self.not_finite: list[str] = []
        self._functions: dict[str, Callable[..., Any]] = {}
        for name in names:
            try:
                module, _, function = name.partition(":")
                self._functions[name] = getattr(importlib.import_module(module), function)
            except Exception as error:  # noqa: BLE001 - a user's module may fail in any way
                self._fail(name, error)

    def call(self, chunks: list[Any], optimizer: Any, step: int) -> None:
        """Call every hook once and keep what it says as `stepN.NAME`."""
        for name, function in list(self._functions.items()):
            try:
                said = dict(function(chunks, optimizer, step))
                for key, value in said.items():
                    self._keep(f"step{step}.{key}"[:_TEXT], value)
            except Exception as error:  # noqa: BLE001 - a user's function may fail in any way
                self._fail(name, error)

    def _keep(self, key: str, value: Any) -> None:
        if len(self.values) >= LIMIT and key not in self.values:
            self.missing["hooks"] = f"only the first {LIMIT} values are kept"
        elif isinstance(value, str):
            self.values[key] = value[:_TEXT]
        else:
            number = float(value)
            self.values[key] = number if math.isfinite(number) else None
            if not math.isfinite(number):
                self.not_finite.append(f"hooks.{key}")

    def _fail(self, name: str, error: Exception) -> None:
        self._functions.pop(name, None)
        self.missing[f"hook {name}"[:_TEXT]] = f"{type(error).__name__}: {error}"[:_TEXT]
