"""However a checkout's code ends a fork, there is an answer and the next question is answered; the checkout sees no secret."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest

from attuner.core.errors import UserError
from attuner.runner.megatron_import import commit
from attuner.runner.resolve_megatron import forked
from attuner.stacks.megatron.resolver import KEPT, Resolver, environment

ARGUMENTS = """
    import argparse, os, signal, sys

    def add_megatron_arguments(parser):
        parser.add_argument("--die", action="store_true")
        parser.add_argument("--leave", action="store_true")
        parser.add_argument("--see", type=str)
        parser.add_argument("--yaml-cfg", type=str)
        return parser

    def parse_args(extra_args_provider=None, ignore_unknown_args=False):
        args = add_megatron_arguments(argparse.ArgumentParser(allow_abbrev=False)).parse_args()
        if args.die:
            print("last words", flush=True)
            os.kill(os.getpid(), signal.SIGSEGV)
        if args.leave:
            sys.exit(3)
        if args.see:
            raise ValueError(f"{args.see} is {os.environ.get(args.see)}")
        raise AssertionError
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Return a folder with just enough of Megatron-LM to be imported and asked."""
    files = {
        "training/__init__.py": "",
        "training/training.py": "",
        "training/arguments.py": ARGUMENTS,
        "core/__init__.py": "",
        "core/package_info.py": "__version__ = '0.16.1+abc'",
        "core/utils.py": "from packaging.version import Version as PkgVersion",
    }
    for name, text in files.items():
        path = tmp_path / "megatron" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
    return tmp_path


def crash() -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


def sleep() -> NoReturn:
    time.sleep(60)
    raise AssertionError


def leave() -> NoReturn:
    os.write(2, b"some last words\n")
    os._exit(5)


@pytest.mark.parametrize(
    ("end", "timeout_s", "wanted"),
    [(crash, 60, "killed by signal 9"), (sleep, 0.3, "no answer within 0.3 s"), (leave, 60, "exit 5; it said: some last words")],
    ids=lambda x: getattr(x, "__name__", ""),
)
def test_a_fork_that_ends_badly_is_an_answer(end: Callable[[], dict[str, Any]], timeout_s: float, wanted: str) -> None:
    answer = forked(end, name=7, timeout_s=timeout_s)
    assert (answer["id"], answer["ok"], answer["kind"]) == (7, False, "crash")
    assert wanted in answer["error"]


def test_a_fork_may_answer_more_than_a_pipe_holds() -> None:
    assert len(forked(lambda: {"long": "x" * 1_000_000})["long"]) == 1_000_000


def test_a_server_outlives_what_its_checkout_does(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_TOKEN", "secret")
    resolver = Resolver(str(checkout))
    try:
        ask = {"world_size": 1, "env": {"MINE": "yes"}}
        died = resolver.ask({"arguments": {"die": True}, **ask})
        assert "killed by signal 11; it said: last words" in died["error"]
        assert "exit 3" in resolver.ask({"arguments": {"leave": True}, **ask})["error"]
        assert resolver.ask({"arguments": {"see": "SOME_TOKEN"}, **ask})["error"] == "Megatron refuses: SOME_TOKEN is None"
        assert resolver.ask({"arguments": {"see": "MINE"}, **ask})["error"] == "Megatron refuses: MINE is yes"
        assert resolver.ask({"arguments": {"see": "WORLD_SIZE"}, **ask})["error"] == "Megatron refuses: WORLD_SIZE is 1"
        assert "arguments.py:20: raise AssertionError" in resolver.ask({"arguments": {}, **ask})["error"]
        assert "another validator" in resolver.ask({"arguments": {"argv": ["--yaml-cfg=x"]}, **ask})["error"]
        assert "did you mean leave?" in resolver.ask({"arguments": {"leav": True}, **ask})["error"]
        assert resolver.versions["megatron_core"] == "0.16.1"
        assert {entry["name"] for entry in resolver.catalogue} == {"die", "leave", "see", "yaml_cfg"}
    finally:
        resolver.close()
        resolver.close()


def test_a_folder_without_megatron_is_said_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no Megatron-LM checkout: it has no megatron/training"):
        Resolver(str(tmp_path)).ask({"arguments": {}, "world_size": 1})


def test_the_resolvers_environment_holds_no_secret() -> None:
    given = {"PATH": "/bin", "PREFECT_API_KEY": "x", "ANTHROPIC_API_KEY": "x", "HF_TOKEN": "x", "AWS_SECRET_ACCESS_KEY": "x"}
    assert set(environment(given)) - {"OMP_NUM_THREADS", "PYTHONDONTWRITEBYTECODE"} == {"PATH"}
    assert not any(word in name for name in KEPT for word in ("TOKEN", "KEY", "SECRET"))


def test_the_job_answers_every_question(checkout: Path, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    requests = [{"id": i, "arguments": given, "world_size": 1} for i, given in enumerate([{"leave": True}, {"see": "NVTE_X"}])]
    (run_dir / "job.json").write_text(json.dumps({"source": str(checkout), "requests": requests}))
    command = [sys.executable, "-P", "-m", "attuner.runner.resolve_megatron", str(run_dir)]
    subprocess.run(command, check=True, env={**environment(os.environ), "NVTE_X": "of the image"}, capture_output=True)
    document = json.loads((run_dir / "resolved.json").read_text())
    assert [a["id"] for a in document["answers"]] == [0, 1]
    assert document["answers"][1]["error"] == "Megatron refuses: NVTE_X is of the image"
    assert document["versions"]["megatron_core"] == "0.16.1"


def test_a_job_without_a_checkout_says_why_it_failed(tmp_path: Path) -> None:
    (tmp_path / "job.json").write_text(json.dumps({"source": str(tmp_path), "requests": []}))
    command = [sys.executable, "-P", "-m", "attuner.runner.resolve_megatron", str(tmp_path)]
    done = subprocess.run(command, check=False, env=environment(os.environ), capture_output=True)
    failure = json.loads((tmp_path / "failure.rank0.json").read_text())
    assert done.returncode == 1
    assert (failure["kind"], failure["phase"]) == ("config", "resolving")


def test_a_checkout_tells_its_commit_and_whether_it_was_edited(tmp_path: Path) -> None:
    assert commit(tmp_path) == ""

    def git(*words: str) -> str:
        known = ["-c", "user.name=t", "-c", "user.email=t@t", "-c", "commit.gpgsign=false"]
        done = subprocess.run(["git", *known, *words], cwd=tmp_path, check=True, capture_output=True, text=True)
        return done.stdout.strip()

    (tmp_path / "file").write_text("one")
    git("init", "--quiet")
    git("add", "file")
    git("commit", "--quiet", "-m", "one")
    head = git("rev-parse", "HEAD")
    assert commit(tmp_path) == head
    (tmp_path / "file").write_text("two")
    assert commit(tmp_path) == f"{head}+edited"
