"""The law of the proposer's process: it searches, and can reach nothing that judges, records, pays or launches."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from lab import ROOT
from test_proposer import book, brief

from attuner.core.errors import Broken, UserError
from attuner.core.search import Hypothesis, Stop
from attuner.proposers import jail
from attuner.proposers.apart import Apart
from attuner.proposers.catalog import Catalog

HERE = str(Path(__file__).parent)
needs_landlock = pytest.mark.skipif(jail.version() < 6, reason="this kernel has no Landlock of version 6 (Linux 6.12)")


@pytest.fixture
def hostile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Apart, Path]]:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-secret")
    proposer = Apart("hostile:Hostile", path=[HERE], env={"HOSTILE_TARGET": str(tmp_path)})
    yield proposer, tmp_path
    proposer.close()


@needs_landlock
def test_a_proposer_can_write_no_rule_no_lock_no_tolerance_and_no_ledger(hostile: tuple[Apart, Path]) -> None:
    proposer, folder = hostile
    targets = {
        "rule": ROOT / "rules/mcore/objective.yaml",
        "lock": ROOT / "rules/LOCK",
        "tolerance": ROOT / "rules/mcore/tolerances.yaml",
        "gate": ROOT / "attuner/policy/gate.py",
        "ledger": folder / "attuner.duckdb",
    }
    targets["ledger"].write_bytes(b"acknowledged rows")
    before = {name: path.read_bytes() for name, path in targets.items()}
    (folder / "targets").write_text("")  # a folder of its own is no way out either
    move = proposer.ask(brief(book()))
    assert isinstance(move, Stop)
    got = dict(line.split(": ", 1) for line in move.evidence)
    for name in targets:
        for act in ("append", "truncate", "replace", "remove"):
            assert got[f"{act} {name}"] in ("PermissionError", "OSError"), (act, name, got[f"{act} {name}"])
    assert {name: path.read_bytes() for name, path in targets.items()} == before
    assert got["make file"] == "PermissionError"


@needs_landlock
def test_it_reads_no_token_reaches_no_server_and_signals_no_process(hostile: tuple[Apart, Path]) -> None:
    proposer, folder = hostile
    (folder / "token").write_text("bearer")
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        (folder / "port").write_text(str(server.getsockname()[1]))
        proposer = Apart(
            "hostile:Hostile", path=[HERE], env={"HOSTILE_TARGET": str(folder), "HOSTILE_PORT": str(server.getsockname()[1])}
        )
        move = proposer.ask(brief(book()))
        proposer.close()
    assert isinstance(move, Stop)
    got = dict(line.split(": ", 1) for line in move.evidence)
    assert got["read token"] == "PermissionError"
    assert got["connect"] == "PermissionError"
    assert got["signal parent"] == "PermissionError"


def test_it_inherits_no_secret(hostile: tuple[Apart, Path]) -> None:
    proposer, _ = hostile
    move = proposer.ask(brief(book()))
    assert isinstance(move, Stop)
    assert "sk-secret" not in " ".join(move.evidence)
    assert "environment: " + ", ".join(sorted({"HOSTILE_TARGET"})) in move.evidence


def test_apart_a_proposer_says_the_same() -> None:
    asked = brief(book())
    apart = Apart("attuner.proposers.catalog:Catalog")
    try:
        assert apart.ask(asked) == Catalog().ask(asked)
        assert apart.ask(asked) == Catalog().ask(asked)  # the same process answers again
    finally:
        apart.close()


def test_what_it_says_of_the_campaign_file_is_the_users_error() -> None:
    made = book()
    apart = Apart("attuner.proposers.scripted:Scripted")
    try:
        script = [{"arguments": {"micro_batch_size": 2}}]
        spec = made.history.campaign().proposer.model_copy(update={"script": script})
        asked = brief(made)
        campaign = asked.campaign.model_copy(update={"proposer": spec})
        with pytest.raises(UserError, match=r"proposer.script\[0\]: group"):
            apart.ask(type(asked)(campaign, asked.levers, asked.remaining_gpu_hours, asked.next_id, asked.history))
    finally:
        apart.close()


@pytest.mark.parametrize("kind", ["hostile:Dies", "hostile:Lies"])
def test_a_proposer_that_dies_or_lies_is_said_so(kind: str) -> None:
    apart = Apart(kind, path=[HERE])
    try:
        with pytest.raises(Broken, match="proposer hostile"):
            apart.ask(brief(book()))
    finally:
        apart.close()


def test_a_move_is_a_record_that_fixed_code_numbers() -> None:
    assert set(Hypothesis.model_fields) >= {"id", "parent", "group", "arguments", "env"}
