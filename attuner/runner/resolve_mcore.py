"""Says what a recipe would mean to megatron-core without running it: effective arguments and derived facts, by the same
code as the trainer. A server on standard input and output, one JSON document a line; imports torch and megatron once.
Run it as `python -m attuner_runner.resolve_mcore`."""

import json
import logging
import os
import sys
import warnings
from typing import Any, TextIO

from .errors import ConfigError, LayoutError
from .rank import last_line


class _Answer:
    """Context of one request: an exception that escapes becomes the answer's error, and the server goes on."""

    def __init__(self) -> None:
        self.answer: dict[str, Any] = {"id": None}

    def __enter__(self) -> dict[str, Any]:
        return self.answer

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> bool:
        if not isinstance(error, Exception):
            return False
        what = "layout" if isinstance(error, LayoutError) else "config" if isinstance(error, ConfigError) else "crash"
        self.answer.update({"ok": False, "error": last_line(error), "kind": what})
        return True


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Resolve one request {"id", "arguments", "world_size", "device_kind"}.

    Returns: {"id", "ok": true, "arguments", "facts"}, or {"id", "ok": false, "error", "kind"} where kind is 'config',
    'layout' or 'crash'.
    """
    from .mcore_config import build_configs, describe
    from .mcore_layout import derive

    context = _Answer()
    with context as result:
        result["id"] = request.get("id")
        configs = build_configs(request["arguments"], request["device_kind"])
        facts = derive(configs, int(request["world_size"]))
        result.update({"ok": True, "arguments": describe(configs), "facts": facts})
    return context.answer


def serve(requests: TextIO, answers: TextIO) -> None:
    """Answer requests until the input ends; the first line says that the server is ready."""
    from . import cpu_shim

    # Only functions compiled for a GPU's sake are skipped; nothing here runs a model.
    cpu_shim.skip_compilation()
    from . import mcore_layout  # noqa: F401
    from .train_mcore import versions

    _say(answers, {"ready": True, "versions": versions()})
    for line in requests:
        if not line.strip():
            continue
        context = _Answer()
        with context:
            request = json.loads(line)
            if not isinstance(request, dict):
                raise ConfigError("a request is a JSON object")
            context.answer = answer(request)
        _say(answers, context.answer)


def _say(answers: TextIO, value: dict[str, Any]) -> None:
    answers.write(json.dumps(value, sort_keys=True, allow_nan=False) + "\n")
    answers.flush()


def main() -> None:
    """Serve on this process's standard streams; whatever libraries write to stdout goes to stderr instead."""
    own = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    warnings.simplefilter("ignore")
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING)
    serve(sys.stdin, own)


if __name__ == "__main__":
    main()
