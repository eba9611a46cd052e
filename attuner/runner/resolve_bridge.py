"""Says what a Megatron-Bridge recipe would mean without running it, by Bridge's own code, where that is installed or checked out.

    python -m attuner_runner.resolve_bridge --serve [SOURCE]   JSON lines: a question on stdin, an answer on stdout
    python -m attuner_runner.resolve_bridge RUN_DIR            a job: RUN_DIR/job.json in, RUN_DIR/resolved.json out

Questions and answers are those of `resolve_megatron`. Run up to Bridge's own imports only: here they fail, and say what is
missing."""

import json
import logging
import os
import sys
import warnings
from pathlib import Path
from typing import Any, TextIO

from . import files
from .bridge_config import import_bridge, resolve, versions
from .errors import ConfigError, LayoutError
from .rank import Rank, environment, last_line
from .resolve_megatron import forked


def prepare(source: str) -> dict[str, str]:
    """Import Bridge without a GPU and return its versions. Raises: ConfigError that names what is missing."""
    from . import cpu_shim

    cpu_shim.skip_compilation()
    import_bridge(source)
    return versions()


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Answer one question in this process, which is of no use afterwards."""
    name = request.get("id")
    try:
        return {"id": name, "ok": True, **resolve(request)}
    except Exception as error:  # noqa: BLE001 - whatever Bridge's code raises is the answer
        kind = "layout" if isinstance(error, LayoutError) else "config" if isinstance(error, ConfigError) else "crash"
        return {"id": name, "ok": False, "error": last_line(error), "kind": kind}


def serve(source: str, requests: TextIO, answers: TextIO) -> None:
    """Answer questions until the input ends; the first line says that the server is ready, or why it can't be."""
    try:
        found = prepare(source)
    except ConfigError as error:
        _say(answers, {"ready": False, "error": last_line(error)})
        return
    _say(answers, {"ready": True, "versions": found})
    for line in requests:
        if line.strip():
            request = json.loads(line)
            _say(answers, forked(lambda question=request: answer(question), name=request.get("id")))  # type: ignore[misc]


def _say(answers: TextIO, value: dict[str, Any]) -> None:
    answers.write(json.dumps(value, sort_keys=True, allow_nan=False) + "\n")
    answers.flush()


def job(run_dir: Path) -> None:
    """Answer the questions of a job. Raises: ConfigError when Bridge can't be used here."""
    document = files.read_json(run_dir / files.JOB)
    found, image, answers = prepare(str(document.get("source") or "")), environment(), []
    for request in document["requests"]:
        question = {**request, "env": {**image, **(request.get("env") or {})}}
        answers.append(forked(lambda question=question: answer(question), name=question.get("id")))  # type: ignore[misc]
    files.write_json(run_dir / files.RESOLVED, {"versions": found, "answers": answers})
    files.write_json(run_dir / files.DONE, {"answers": len(answers)})


def main(words: list[str]) -> None:
    """Serve on this process's standard streams, or run a job; what libraries write to stdout goes to stderr instead."""
    warnings.simplefilter("ignore")
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING)
    if words[:1] == ["--serve"] and len(words) in (1, 2):
        own = os.fdopen(os.dup(1), "w", encoding="utf-8")
        os.dup2(2, 1)
        serve(words[1] if len(words) == 2 else "", sys.stdin, own)
    elif len(words) == 1:
        with Rank(words[0]) as rank:
            rank.phase = "resolving"
            job(rank.run_dir)
    else:
        raise SystemExit("usage: resolve_bridge --serve [SOURCE] | resolve_bridge RUN_DIR")


if __name__ == "__main__":
    main(sys.argv[1:])
