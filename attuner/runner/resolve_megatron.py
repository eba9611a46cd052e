"""Says what a recipe would mean to Megatron-LM without running it: final arguments and configuration objects, environment and
derived facts, by the very code of a source checkout. Imports the checkout once and forks for every candidate, since Megatron
keeps its arguments in globals: a crash or an exit of its code ends a fork, never this process.

    python -m attuner_runner.resolve_megatron --serve SOURCE [SLIME]   JSON lines: a question on stdin, an answer on stdout
    python -m attuner_runner.resolve_megatron RUN_DIR                  a job: RUN_DIR/job.json in, RUN_DIR/resolved.json out

A question is {"id", "arguments", "world_size"} and optionally "env", "entry" (pretrain_gpt.py or slime), "capability" ([9, 0]),
"torch" and "transformer_engine" (the cluster's versions). An answer is {"id", "ok": true, "arguments", "env", "facts"}, or
{"id", "ok": false, "error", "kind"} with kind 'config', 'layout' or 'crash'. The first line of a server is {"ready": true,
"versions", "catalogue"}, or {"ready": false, "error"}. A job's document is {"source", "slime_source", "requests": [question,
...]}; its answers are {"versions", "answers"}. The job was run as a process and through the driver on a local Ray, on CPUs; not
yet inside a training image."""

import gc
import json
import logging
import os
import select
import signal
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, TextIO

from . import files
from .errors import ConfigError, LayoutError
from .megatron_import import Framework, load
from .megatron_tokens import Vocabulary
from .rank import Rank, die_with_parent, environment, last_line

ANSWER_TIMEOUT_S = 60.0
TAIL = 4000


def answer(framework: Framework, vocabulary: Vocabulary, request: Any) -> dict[str, Any]:
    """Answer one question in this process, which is of no use afterwards."""
    if not isinstance(request, dict):
        return {"id": None, **_refusal(ConfigError("a question is a JSON object"))}
    from .megatron_final import resolve

    with _Told({"id": request.get("id")}) as told:
        told.update({"ok": True, **resolve(framework, vocabulary, request)})
    return told


class _Told:
    """Context of one question: an exception that escapes becomes the answer."""

    def __init__(self, answer: dict[str, Any]) -> None:
        self.answer = answer

    def __enter__(self) -> dict[str, Any]:
        return self.answer

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> bool:
        if isinstance(error, Exception):
            self.answer.update(_refusal(error))
        return isinstance(error, Exception)


def _refusal(error: Exception) -> dict[str, Any]:
    kind = "layout" if isinstance(error, LayoutError) else "config" if isinstance(error, ConfigError) else "crash"
    return {"ok": False, "error": last_line(error), "kind": kind}


def forked(ask: Callable[[], dict[str, Any]], *, name: Any = None, timeout_s: float = ANSWER_TIMEOUT_S) -> dict[str, Any]:
    """Call `ask` in a fork and return what it answers; however the fork ends, there is an answer."""
    reader, writer = os.pipe()
    with tempfile.TemporaryFile() as said:
        child = os.fork()
        if child == 0:
            os.close(reader)
            _in_child(ask, writer, said)
        os.close(writer)
        text = _read(reader, timeout_s)
        if text is None:
            os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        lines = _tail(said)
    found: dict[str, Any] = _json(text)
    if not found.get("ok", bool(found)):
        sys.stderr.write("".join(f"megatron: {line}\n" for line in lines))
    if found:
        return found
    code = os.waitstatus_to_exitcode(status)
    how = f"no answer within {timeout_s:g} s" if text is None else f"killed by signal {-code}" if code < 0 else f"exit {code}"
    last = f"; it said: {lines[-1]}" if lines else ""
    return {"id": name, "ok": False, "error": f"Megatron ended without an answer: {how}{last}"[:2000], "kind": "crash"}


def _json(text: bytes | None) -> dict[str, Any]:
    """Return what a fork wrote; nothing where it was cut short."""
    try:
        found: dict[str, Any] = json.loads(text or b"{}")
    except ValueError:
        return {}
    return found


def _in_child(ask: Callable[[], dict[str, Any]], writer: int, said: BinaryIO) -> None:
    """Ask, write the answer, and end: nothing of the parent is run to its end or closed twice."""
    try:
        die_with_parent()
        os.dup2(said.fileno(), 1)
        os.dup2(said.fileno(), 2)
        text = json.dumps(ask(), sort_keys=True, allow_nan=False).encode()
        sys.stdout.flush()
        with os.fdopen(writer, "wb") as pipe:
            pipe.write(text)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


def _read(reader: int, timeout_s: float) -> bytes | None:
    """Read a pipe to its end; None when that takes too long."""
    deadline = time.monotonic() + timeout_s
    parts: list[bytes] = []
    with os.fdopen(reader, "rb", buffering=0) as pipe:
        while True:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([pipe], [], [], left)[0]:
                return None
            part = pipe.read(1 << 16)
            if not part:
                return b"".join(parts)
            parts.append(part)


def _tail(said: BinaryIO) -> list[str]:
    """Return the last lines that a fork's code printed."""
    size = said.seek(0, os.SEEK_END)
    said.seek(max(0, size - TAIL))
    return [line for line in said.read().decode(errors="replace").splitlines() if line.strip()][-20:]


def serve(source: str, slime: str, requests: TextIO, answers: TextIO) -> None:
    """Answer questions until the input ends; the first line says that the server is ready, or why it can't be."""
    try:
        framework = load(source, slime)
    except ConfigError as error:
        _say(answers, {"ready": False, "error": last_line(error)})
        return
    vocabulary = Vocabulary(framework.parser())
    gc.collect()
    gc.freeze()  # forks share the imports' pages for longer
    _say(answers, {"ready": True, "versions": framework.versions, "catalogue": vocabulary.catalogue()})
    for line in requests:
        if not line.strip():
            continue
        try:
            request = json.loads(line)
        except ValueError as error:
            _say(answers, {"id": None, **_refusal(ConfigError(f"not JSON: {error}"))})
            continue
        name = request.get("id") if isinstance(request, dict) else None
        _say(answers, forked(lambda question=request: answer(framework, vocabulary, question), name=name))  # type: ignore[misc]


def _say(answers: TextIO, value: dict[str, Any]) -> None:
    answers.write(json.dumps(value, sort_keys=True, allow_nan=False) + "\n")
    answers.flush()


def job(run_dir: Path) -> None:
    """Answer the questions of a job; the image's own environment lies under what they ask for.

    Raises: ConfigError when the checkout can't be used.
    """
    document = files.read_json(run_dir / files.JOB)
    framework = load(str(document["source"]), str(document.get("slime_source") or ""))
    vocabulary, image = Vocabulary(framework.parser()), environment()
    answers = []
    for request in document["requests"]:
        question = {**request, "env": {**image, **(request.get("env") or {})}}
        answers.append(forked(lambda question=question: answer(framework, vocabulary, question), name=question.get("id")))  # type: ignore[misc]
    files.write_json(run_dir / files.RESOLVED, {"versions": framework.versions, "answers": answers})
    files.write_json(run_dir / files.DONE, {"answers": len(answers)})


def main(words: list[str]) -> None:
    """Serve on this process's standard streams, or run a job; what libraries write to stdout goes to stderr instead."""
    warnings.simplefilter("ignore")
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING)
    if words[:1] == ["--serve"] and len(words) in (2, 3):
        own = os.fdopen(os.dup(1), "w", encoding="utf-8")
        os.dup2(2, 1)
        serve(words[1], words[2] if len(words) == 3 else "", sys.stdin, own)
    elif len(words) == 1:
        with Rank(words[0]) as rank:
            rank.phase = "resolving"
            job(rank.run_dir)
    else:
        raise SystemExit("usage: resolve_megatron --serve SOURCE [SLIME] | resolve_megatron RUN_DIR")


if __name__ == "__main__":
    main(sys.argv[1:])
