"""The flow as a team runs it: a real Prefect server, a deployment, a worker; one task fails once, and Retry mends it."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prefect_server import PREFECT, Server, stopped

from attuner.core.events import History

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Return a copy of the checkout's own parts, so that its rules can be broken."""
    copy = tmp_path / "project"
    for name in ("flows", "tasks", "rules", "configs", "prefect.yaml"):
        source = ROOT / name
        (shutil.copytree if source.is_dir() else shutil.copy)(source, copy / name if source.is_dir() else copy)
    return copy


@pytest.fixture
def server(drill: Any, tmp_path: Path) -> Iterator[Server]:
    env = {
        **drill.env,
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "DO_NOT_TRACK": "1",
        "PREFECT_WORKER_QUERY_SECONDS": "1",
        "PREFECT_LOGGING_LEVEL": "WARNING",
    }
    found = Server(env, tmp_path / "server.log")
    yield found
    found.process.terminate()
    found.process.wait(30)


@pytest.fixture
def worker(server: Server, project: Path, tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    server.command("work-pool", "create", "attuner", "--type", "process", cwd=project)
    server.command("--no-prompt", "deploy", "--all", cwd=project)
    with (tmp_path / "worker.log").open("w") as out:
        command = [*PREFECT, "worker", "start", "--pool", "attuner"]
        process = subprocess.Popen(command, env=server.env, cwd=project, stdout=out, stderr=out)
    yield process
    stopped(process)


def test_a_retry_runs_only_the_failed_task_and_what_follows(
    drill: Any, server: Server, worker: subprocess.Popen[bytes], project: Path
) -> None:
    drill.write(script=[])
    found = server.ask("GET", "/deployments/name/campaign/campaign")
    run = server.ask("POST", f"/deployments/{found['id']}/create_flow_run", {"parameters": {"file": str(drill.file)}})["id"]
    server.until(lambda: drill_history(drill).trial("l02") is not None, 300)
    rules = project / "rules" / "common.yaml"
    sound = rules.read_text()
    rules.write_text(sound + "# edited after the campaign began\n")
    server.until(lambda: server.state(run) in ("FAILED", "CRASHED"), 120)
    before = server.tasks(run)
    failed = [name for name, state, _ in before if state == "Failed"]
    assert len(failed) == 1, before
    assert failed[0].startswith("score"), failed
    rules.write_text(sound)
    server.command("flow-run", "retry", run, cwd=project)
    server.until(lambda: server.state(run) == "COMPLETED", 400)
    after = server.tasks(run)
    print("\n".join(f"{name:28} {state:12} runs {count}" for name, state, count in after))
    again = [name for name, _, _ in after]
    assert {name for name, state, _ in after if state == "Failed"} <= set(failed)
    executed = Counter(name for name, state, _ in after if state != "Cached")
    done_before = {name for name, state, _ in before if state == "Completed"}
    assert all(executed[name] == 1 for name in done_before if name.startswith(("birth", "launch", "calibrate"))), executed
    assert any(state == "Cached" for _, state, _ in after)
    assert any(name.startswith("ship") for name in again)
    history = drill_history(drill)
    assert all(len(history.attempts(x.id)) == 1 for x in history.launches())
    assert history.shipment() is not None
    artifacts = server.ask("POST", "/artifacts/filter", {"limit": 200})
    kinds = {a["type"] for a in artifacts}
    assert {"markdown", "table", "progress"} <= kinds
    shots = os.environ.get("ATTUNER_TEST_SHOTS")
    if shots:  # a person wants to look at the UI: pictures of the flow run and its artifacts
        picture(server, f"/runs/flow-run/{run}", Path(shots) / "flow-run.png")
        picture(server, f"/runs/flow-run/{run}?tab=Artifacts", Path(shots) / "artifacts.png")
        report = next(a for a in artifacts if str(a["key"]).endswith("-report"))
        picture(server, f"/artifacts/artifact/{report['id']}", Path(shots) / "report-artifact.png")


def drill_history(drill: Any) -> History:
    return History(drill.events() if (drill.home / "attuner.duckdb").exists() else [])


def picture(server: Server, path: str, target: Path) -> None:
    """Take a picture of one page of the UI with a headless browser."""
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-sync"]
    page = server.url.removesuffix("/api") + path
    subprocess.run(
        [
            *(
                "chromium",
                *flags,
                "--disable-quic",
                "--disable-component-update",
                f"--user-data-dir={target.parent}/browser",
                "--window-size=1500,1300",
            ),
            *("--virtual-time-budget=15000", f"--screenshot={target}", page),
        ],
        check=True,
        capture_output=True,
        timeout=120,
    )
