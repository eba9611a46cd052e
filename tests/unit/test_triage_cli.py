"""`attuner triage`: logs as files, folders, packed or piped; a diagnosis for a person or as JSON; exit codes for scripts."""

from __future__ import annotations

import gzip
import io
import json
import subprocess
import sys
from pathlib import Path

import pytest

from attuner.cli.main import main

OOM = [
    "Traceback (most recent call last):",
    '  File "training.py", line 1, in train_step',
    "    ok = optimizer.step()",
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.00 GiB.",
]
PIPE = "[rank1]:[W000 00:00:00 TCPStore.cpp:106] [c10d] sendBytes failed on SocketImpl(fd=93): Broken pipe\n"


def logs(folder: Path) -> Path:
    (folder / "logs").mkdir()
    (folder / "logs" / "rank1.log").write_text(PIPE)
    with gzip.open(folder / "logs" / "rank7.log.gz", "wt") as file:
        file.write("\n".join(OOM))
    return folder / "logs"


def test_a_folder_is_one_run_and_file_names_tell_ranks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = logs(tmp_path)
    assert main(["triage", str(folder), "--stack", "megatron"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[0] == "oom.optimizer_step in optimizer step, rank 7"
    assert f"{folder / 'rank7.log.gz'}:4: rank 7: torch.OutOfMemoryError" in shown[2]
    assert any(line.startswith("  levers    optimizer-offload, distributed-optimizer") for line in shown)
    assert any(line.startswith("  next      ") for line in shown)
    assert "  retry     no: the same run fails again" in shown
    assert "  also seen launch.store_lost" in shown


def test_the_folder_of_a_run_is_read_with_what_its_ranks_said_last(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "log.txt").write_text("exit code 1\n")
    told = {
        "kind": "oom",
        "phase": "forward",
        "step": 0,
        "message": "device memory limit 1 GiB exceeded: 2 GiB in forward",
        "t": 1,
    }
    (tmp_path / "failure.rank3.json").write_text(json.dumps(told))
    assert main(["triage", str(tmp_path), "--stack", "mcore"]) == 0
    assert capsys.readouterr().out.startswith("oom.forward in forward, rank 3")


def test_json_has_the_whole_record_and_what_was_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["triage", str(logs(tmp_path)), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["kind"], told["rank"], told["retry"]) == ("oom.optimizer_step", 7, "no")
    assert told["read"] == {"logs": 2, "lines": 4, "steps": 0}


def test_undetermined_is_an_exit_code_of_its_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.log").write_text("all is well\n")
    assert main(["triage", str(tmp_path / "a.log")]) == 3
    assert capsys.readouterr().out.startswith("undetermined (nothing)")


def test_a_pipe_is_a_log(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    piped = io.TextIOWrapper(io.BytesIO("\n".join(OOM).encode()))
    monkeypatch.setattr(sys, "stdin", piped)
    assert main(["triage", "-"]) == 0
    assert "-:4: torch.OutOfMemoryError" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("named", "said"), [("none.log", "no such file"), ("empty", "no log"), ("broken.log.gz", "broken.log.gz: ")]
)
def test_what_cant_be_read_is_one_line(tmp_path: Path, named: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "broken.log.gz").write_bytes(b"\x1f\x8bno gzip at all")
    assert main(["triage", str(tmp_path / named)]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_an_unknown_stack_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.log").write_text("x\n")
    assert main(["triage", str(tmp_path / "a.log"), "--stack", "nemo"]) == 2
    assert "stack nemo: unknown; known: " in capsys.readouterr().err


def test_no_heavy_third_party_is_imported() -> None:
    heavy = ["prefect", "ray", "torch", "duckdb", "anthropic", "kubernetes", "megatron"]
    verb = "import sys, attuner.cli.triage, attuner.failures, attuner.logs.triage"
    code = f"{verb}\nprint([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_control_codes_of_a_log_never_reach_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.log").write_text("\x1b]0;owned\x07\x1b[2J\x9b31mRuntimeError: CUDA out of memory \x1b[31m\u202eevil\n")
    main(["triage", str(tmp_path / "a.log")])
    shown = capsys.readouterr().out
    assert all(c.isprintable() or c == "\n" for c in shown)
    assert "owned" not in shown
